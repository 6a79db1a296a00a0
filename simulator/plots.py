"""Gantt charts of a step as PNG or SVG: the whole pipeline, or the streams of one stage.

Drawn with matplotlib's object interface. The same trace gives the same bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from simulator.gantt_boxes import Scale, draw_boxes, draw_labels
from simulator.gantt_legend import Legend, build_legend
from simulator.gantt_rows import (
    MAX_RANKS,
    Row,
    Window,
    count_chunks,
    pipeline_rows,
    stage_ranks,
    stage_rows,
)
from simulator.pictures import DPI, own_settings, save_figure
from simulator.summary_text import seconds_text
from simulator.trace import Trace

_POINTS_PER_INCH = 72.0
_MIN_OPERATION_PX = 2.0  # operations are shown where the average one is wider
_LEAST_PX = 0.4  # the shortest transfer of a stage still leaves a trace
_BOX_PX = 20.0  # wished for each box of the fullest row
_MARGIN = 0.14  # inches
_HEADING = 1.3  # of the font size
_LINE = 1.4  # line height, of the font size


def write_gantt(
    trace: Trace,
    path: Path | str,
    *,
    window: Window | None = None,
    stage: int | None = None,
    title: str | None = None,
) -> None:
    """Draw a step over time: one row per pipeline stage, or with `stage` that stage's streams.

    `window` is (start, end) in seconds, the whole step if None. The file is written whole or not
    at all. Raises ValueError for an ending other than .png and .svg, a window that does not meet
    the step, and a stage that is not there.
    """
    ending = Path(path).suffix.lower()
    if ending not in (".png", ".svg"):
        raise ValueError(f"{path}: a Gantt chart ends in .png or .svg, not {ending or 'nothing'}")
    shown = _clipped(trace, window)
    with own_settings():
        save_figure(_draw(trace, shown, stage, title), Path(path))


def _clipped(trace: Trace, window: Window | None) -> Window:
    if window is None:
        return 0.0, trace.step_time_s
    start_s, end_s = max(window[0], 0.0), min(window[1], trace.step_time_s)
    if not start_s < end_s:
        raise ValueError(
            f"window {window[0]:.6g} to {window[1]:.6g} s: nothing of the step lies in it; "
            f"choose within 0 to {trace.step_time_s:.6g} s"
        )
    return start_s, end_s


def _draw(trace: Trace, window: Window, stage: int | None, title: str | None) -> Figure:
    pixel_s = (window[1] - window[0]) / (10 * DPI)  # of a narrow sheet
    rows = _rows(trace, window, stage, 0.5 * pixel_s)
    sheet = _layout(
        rows, count_chunks(trace), "idle (bubble)" if stage is None else "idle", pixel_s
    )
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes(sheet.axes_box)
    _scale_axes(axes, sheet, rows, window)
    # in the pipeline view a trace of each short wait would hide the passes around it
    least_px = 0.0 if stage is None else _LEAST_PX
    scale = Scale(window, sheet.axes_width * DPI, sheet.row_height * DPI, DPI, least_px)
    draw_boxes(axes, rows, scale)
    draw_labels(axes, rows, scale, sheet.font)
    heading = title if title is not None else trace.name
    _draw_title(figure, sheet, heading, _subtitle(trace, window, stage))
    sheet.legend.draw(figure)
    return figure


def _rows(trace: Trace, window: Window, stage: int | None, resolution_s: float) -> list[Row]:
    if stage is None:
        return pipeline_rows(trace, window, resolution_s)
    return stage_rows(trace, stage, window, resolution_s, _shows_operations(trace, window, stage))


def _shows_operations(trace: Trace, window: Window, stage: int) -> bool:
    """Whether the operations of the stage's first rank are wide enough to see."""
    count = sum(
        len(span.pieces)
        for span in stage_ranks(trace, stage)[0].spans
        if span.end_s > window[0] and span.start_s < window[1]
    )
    return 0 < count * _MIN_OPERATION_PX < 10 * DPI


@dataclass(frozen=True)
class _Sheet:
    """Sizes in inches, fonts in points."""

    num_rows: int
    width: float
    row_height: float
    left: float
    font: float
    legend: Legend
    right: float = 0.45

    @property
    def top(self) -> float:
        return 2 * _MARGIN + (_HEADING + 1) * _LINE * self.font / _POINTS_PER_INCH

    @property
    def bottom(self) -> float:
        ticks_and_label = 3.8 * self.font / _POINTS_PER_INCH
        return self.legend.height + ticks_and_label + _MARGIN

    @property
    def height(self) -> float:
        return self.num_rows * self.row_height + self.top + self.bottom

    @property
    def axes_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def axes_box(self) -> tuple[float, float, float, float]:
        """Left, bottom, width, height, as fractions of the figure."""
        height = self.num_rows * self.row_height / self.height
        return (
            self.left / self.width,
            self.bottom / self.height,
            self.axes_width / self.width,
            height,
        )


def _layout(rows: Sequence[Row], num_chunks: int, idle: str, visible_s: float) -> _Sheet:
    """A sheet that suits the number of rows and how full they are."""
    fullest = max(len(row.boxes) for row in rows if not row.operations)
    width = min(max(11.0, fullest * _BOX_PX / DPI), 18.0)
    font = 9.0 + (width - 11.0) * 0.4  # wide pictures are shown smaller
    row_height = min(max(6.5 / len(rows), 0.16), 0.5)
    longest = max(len(_row_name(row)) for row in rows)
    left = 0.3 + longest * font * 0.62 / _POINTS_PER_INCH
    legend = build_legend(rows, num_chunks, width - 0.5, font, idle, visible_s)
    return _Sheet(len(rows), width, row_height, left, font, legend)


def _row_name(row: Row) -> str:
    return f"{row.label}  {row.note}" if row.note else row.label


def _scale_axes(axes: Axes, sheet: _Sheet, rows: Sequence[Row], window: Window) -> None:
    factor, unit = _time_unit(window)
    axes.set_xlim(*window)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"time ({unit})", fontsize=sheet.font)
    widest = len(f"{window[1] * factor:.0f}") + _decimals(window, factor) + 3
    room = sheet.axes_width * _POINTS_PER_INCH / (0.64 * sheet.font)
    locator = MaxNLocator(min(max(int(room / widest), 2), 14), steps=[1, 2, 2.5, 5, 10])
    ticks = locator.tick_values(window[0] * factor, window[1] * factor)
    shown = [t / factor for t in ticks if window[0] * factor <= t <= window[1] * factor]
    axes.set_xticks(shown)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t * factor:.12g}"))
    # where rows are lower than their names, name every second, third, ...
    step = max(1, math.ceil(sheet.font * _LINE / _POINTS_PER_INCH / sheet.row_height))
    axes.set_yticks(range(0, len(rows), step), [_row_name(row) for row in rows[::step]])
    axes.tick_params(labelsize=sheet.font, length=3, width=0.6)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _time_unit(window: Window) -> tuple[float, str]:
    """Units per second, and the unit's name, in which the window is 2 to 2000 long."""
    span_s = window[1] - window[0]
    if span_s >= 2.0:
        return 1.0, "s"
    return (1e3, "ms") if span_s >= 2e-3 else (1e6, "µs")


def _decimals(window: Window, factor: float) -> int:
    """Decimals that tell a thousandth of the window."""
    return max(0, 3 - math.floor(math.log10((window[1] - window[0]) * factor)))


def _draw_title(figure: Figure, sheet: _Sheet, heading: str, subtitle: str) -> None:
    left, top = sheet.left / sheet.width, 1 - _MARGIN / sheet.height
    size = sheet.font * _HEADING
    heading = " ".join(heading.split())
    room = int((sheet.width - sheet.left) * _POINTS_PER_INCH / (size * 0.68))
    if len(heading) > room:
        heading = heading[: room - 1] + "…"
    below = top - size * _LINE / _POINTS_PER_INCH / sheet.height
    literal: Any = {"va": "top", "parse_math": False}  # a $ in a run's name is a $
    figure.text(left, top, heading, fontsize=size, weight="bold", **literal)
    figure.text(left, below, subtitle, fontsize=sheet.font, color="#444444", **literal)


def _subtitle(trace: Trace, window: Window, stage: int | None) -> str:
    parts = [f"step time {seconds_text(trace.step_time_s)}"]
    if stage is None:
        parts += _sizes(trace)
    else:
        parts.append(_whose_streams(trace, stage))
    if window != (0.0, trace.step_time_s):
        factor, unit = _time_unit(window)
        start, end = (f"{t * factor:.{_decimals(window, factor)}f}" for t in window)
        parts.append(f"shown: {start} to {end} {unit}")
    return "  ·  ".join(parts)


def _sizes(trace: Trace) -> list[str]:
    stages, chunks = trace.num_stages, count_chunks(trace)
    batches = 1 + max((s.microbatch for r in trace.ranks for s in r.spans), default=-1)
    parts = [f"{stages} pipeline stage{'s' if stages > 1 else ''}"]
    if chunks > 1:
        parts.append(f"{chunks} chunks each")
    parts.append(f"{batches} microbatch{'es' if batches != 1 else ''}")
    per_stage = len(trace.ranks) / stages
    if per_stage > 1:
        parts.append("each row the stage's busiest rank")
    return parts


def _whose_streams(trace: Trace, stage: int) -> str:
    ranks = stage_ranks(trace, stage)
    if len(ranks) == 1:
        alike = f", one of {ranks[0].num_ranks} alike" if ranks[0].num_ranks > 1 else ""
        return f"stage {stage}: streams of rank {ranks[0].rank}{alike}"
    shown = f"the first {MAX_RANKS} of " if len(ranks) > MAX_RANKS else ""
    return f"stage {stage}: streams of {shown}{len(ranks)} ranks"
