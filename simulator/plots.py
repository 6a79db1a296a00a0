"""Gantt charts of a step as PNG or SVG: the whole pipeline, or the streams of one stage.

Drawn by matplotlib's object interface with one collection per fill, so that tens of thousands of
boxes take about a second. The same trace gives the same bytes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Affine2D

from simulator.files import whole_file
from simulator.gantt_rows import (
    KERNEL_KINDS,
    MAX_RANKS,
    Box,
    Row,
    Window,
    count_chunks,
    pipeline_rows,
    stage_ranks,
    stage_rows,
)
from simulator.palette import BUBBLE, CATEGORIES, Style, is_ramp, style, text_color
from simulator.trace import Trace

DPI = 150
_POINTS_PER_INCH = 72.0
_BAR = 0.86  # height of a box, of the row's
_MIN_EDGE_PX = 7.0  # boxes narrower than this, on average, get no white edge
_MIN_HATCH_PX = 5.0  # hatches are not seen in less, and slow to draw
_MIN_OPERATION_PX = 2.0  # operations are shown where the average one is wider
_LABEL_PADDING_PX = 3.0
_SETTINGS = {
    "font.family": ["DejaVu Sans"],
    "hatch.linewidth": 0.7,
    "svg.hashsalt": "clustersim",
    "svg.fonttype": "path",
    "path.simplify": False,
}


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
    shown = _window(trace, window)
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_SETTINGS)
        figure = _draw(trace, shown, stage, title)
        metadata: dict[str, Any] = {"Date": None} if ending == ".svg" else {"Software": None}
        with whole_file(Path(path)) as scratch:
            figure.savefig(scratch, format=ending[1:], dpi=DPI, metadata=metadata)


def _window(trace: Trace, window: Window | None) -> Window:
    if window is None:
        return 0.0, trace.step_time_s
    start_s, end_s = max(window[0], 0.0), min(window[1], trace.step_time_s)
    if not start_s < end_s:
        raise ValueError(f"window {window[0]} to {window[1]} s: nothing of the step lies in it")
    return start_s, end_s


@dataclass(frozen=True)
class _Sheet:
    """Sizes in inches, fonts in points."""

    num_rows: int
    width: float
    row_height: float
    left: float
    bottom: float
    font: float
    right: float = 0.25
    top: float = 0.75

    @property
    def height(self) -> float:
        return self.num_rows * self.row_height + self.top + self.bottom

    @property
    def axes_width_px(self) -> float:
        return (self.width - self.left - self.right) * DPI


def _draw(trace: Trace, window: Window, stage: int | None, title: str | None) -> Figure:
    sheet, rows = _layout(trace, window, stage)
    figure = Figure(figsize=(sheet.width, sheet.height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((
        sheet.left / sheet.width,
        sheet.bottom / sheet.height,
        1 - (sheet.left + sheet.right) / sheet.width,
        1 - (sheet.bottom + sheet.top) / sheet.height,
    ))  # fmt: skip
    _scale_axes(axes, sheet, rows, window)
    _draw_boxes(axes, sheet, rows, window)
    _draw_labels(axes, sheet, rows, window)
    _draw_title(figure, sheet, trace, window, stage, title)
    _draw_legend(figure, sheet, rows, count_chunks(trace))
    return figure


def _layout(trace: Trace, window: Window, stage: int | None) -> tuple[_Sheet, list[Row]]:
    """Rows, and a sheet that suits their number and how full they are."""
    span_s = window[1] - window[0]
    draft = span_s / (10 * DPI)
    if stage is None:
        rows = pipeline_rows(trace, window, draft)
    else:
        operations = _shows_operations(trace, window, stage)
        rows = stage_rows(trace, stage, window, draft, operations)
    fullest = max(len(row.boxes) for row in rows if not row.operations)
    width = min(max(11.0, fullest * 12 / DPI), 18.0)
    font = 9.0 + (width - 11.0) * 0.4
    row_height = min(max(9.0 / max(len(rows), 1), 0.16), 0.5)
    longest = max(len(row.label) for row in rows)
    left = 0.35 + longest * font * 0.62 / _POINTS_PER_INCH
    return _Sheet(len(rows), width, row_height, left, 0.75 + font * 0.055, font), rows


def _shows_operations(trace: Trace, window: Window, stage: int) -> bool:
    """Whether the operations of the stage's first rank are wide enough to see."""
    count = sum(
        len(span.pieces)
        for span in stage_ranks(trace, stage)[0].spans
        if span.end_s > window[0] and span.start_s < window[1]
    )
    return 0 < count * _MIN_OPERATION_PX < 10 * DPI


def _scale_axes(axes: Axes, sheet: _Sheet, rows: Sequence[Row], window: Window) -> None:
    factor, unit = _time_unit(window)
    axes.set_xlim(*window)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"time ({unit})", fontsize=sheet.font)
    ticks = [t / factor for t in MaxNLocator(12, steps=[1, 2, 2.5, 5, 10]).tick_values(
        window[0] * factor, window[1] * factor)]  # fmt: skip
    axes.set_xticks([t for t in ticks if window[0] <= t <= window[1]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda t, _: f"{t * factor:.10g}"))
    step = max(1, math.ceil(sheet.font * 1.25 / _POINTS_PER_INCH / sheet.row_height))
    axes.set_yticks(range(0, len(rows), step), [row.label for row in rows[::step]])
    axes.tick_params(labelsize=sheet.font, length=3, width=0.6)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _time_unit(window: Window) -> tuple[float, str]:
    span_s = window[1] - window[0]
    if span_s >= 2.0:
        return 1.0, "s"
    return (1e3, "ms") if span_s >= 2e-3 else (1e6, "µs")


def _draw_boxes(axes: Axes, sheet: _Sheet, rows: Sequence[Row], window: Window) -> None:
    """Bubble first, over the whole rows; then a collection for each fill."""
    background = [(window[0], window[1], y) for y in range(len(rows))]
    axes.add_collection(_collection(background, Style(BUBBLE, "bubble"), edge=False))
    edge = _has_edges(sheet, rows, window)
    narrow_s = _MIN_HATCH_PX * (window[1] - window[0]) / sheet.axes_width_px
    fills: dict[tuple[bool, str, Style], list[tuple[float, float, int]]] = {}
    for y, row in enumerate(rows):
        for box in row.boxes:
            fill = _style(box)
            if fill.hatch and box.end_s - box.start_s < narrow_s:
                fill = replace(fill, hatch="")
            key = (is_ramp(box.category), box.category, fill)
            fills.setdefault(key, []).append((box.start_s, box.end_s, y))
    for key in sorted(fills, key=lambda k: (not k[0], k[1], k[2].fill, k[2].hatch)):
        axes.add_collection(_collection(fills[key], key[2], edge and key[0]))


def _style(box: Box) -> Style:
    return style(box.category, box.shade, box.num_shades)


def _has_edges(sheet: _Sheet, rows: Sequence[Row], window: Window) -> bool:
    widths = [b.end_s - b.start_s for row in rows for b in row.boxes if is_ramp(b.category)]
    if not widths:
        return False
    px_per_s = sheet.axes_width_px / (window[1] - window[0])
    return bool(np.median(widths) * px_per_s >= _MIN_EDGE_PX)


def _collection(
    spans: Sequence[tuple[float, float, int]], fill: Style, edge: bool
) -> PolyCollection:
    start, end, y = np.array(spans, dtype=float).T
    low, high = y - _BAR / 2, y + _BAR / 2
    corners = [(start, low), (end, low), (end, high), (start, high)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    return PolyCollection(
        vertices,  # type: ignore[arg-type]
        facecolors=fill.fill,
        edgecolors=fill.hatch_color if edge or fill.hatch else "none",
        linewidths=0.5 if edge else 0.0,
        hatch=fill.hatch or None,
        antialiased=edge,
    )


def _draw_labels(axes: Axes, sheet: _Sheet, rows: Sequence[Row], window: Window) -> None:
    """Microbatch numbers, and names of operations, in the boxes that are wide enough in pixels.

    Every distinct text is one path, drawn at many places at once.
    """
    size = min(sheet.font, sheet.row_height * _BAR * _POINTS_PER_INCH * 0.6)
    font = FontProperties(family="DejaVu Sans")
    px = DPI / _POINTS_PER_INCH
    px_per_s = sheet.axes_width_px / (window[1] - window[0])
    paths: dict[str, TextPath] = {}
    places: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for y, box, width_px in _labelled(rows, window, px_per_s):
        if width_px < 0.5 * size * px:  # narrower than any digit: do not measure
            continue
        if box.label not in paths:
            paths[box.label] = TextPath((0, 0), box.label, size=size, prop=font)
        extent = paths[box.label].get_extents()
        if extent.width * px + 2 * _LABEL_PADDING_PX <= width_px:
            middle = (max(box.start_s, window[0]) + min(box.end_s, window[1])) / 2
            places.setdefault((box.label, text_color(_style(box).fill)), []).append((middle, y))
    digit = TextPath((0, 0), "0", size=size, prop=font).get_extents()
    for (label, color), offsets in places.items():
        extent = paths[label].get_extents()
        shift = Affine2D().translate(-(extent.x0 + extent.x1) / 2, -digit.height / 2)
        axes.add_collection(
            PathCollection(
                [shift.transform_path(paths[label])],
                facecolors=color,
                linewidths=0.0,
                offsets=offsets,
                offset_transform=axes.transData,
                transform=Affine2D().scale(px),
            ),
            autolim=False,
        )


def _labelled(
    rows: Sequence[Row], window: Window, px_per_s: float
) -> Iterator[tuple[int, Box, float]]:
    """Row number, box and visible width of what has a label, hatched boxes apart."""
    for y, row in enumerate(rows):
        for box in row.boxes:
            if box.label and not _style(box).hatch:
                seen_s = min(box.end_s, window[1]) - max(box.start_s, window[0])
                yield y, box, seen_s * px_per_s


def _draw_title(
    figure: Figure,
    sheet: _Sheet,
    trace: Trace,
    window: Window,
    stage: int | None,
    title: str | None,
) -> None:
    left, top = sheet.left / sheet.width, 1 - 0.14 / sheet.height
    heading = title if title is not None else trace.name
    figure.text(left, top, heading, va="top", fontsize=sheet.font * 1.3, weight="bold", wrap=False)
    below = 1 - (0.14 + sheet.font * 1.3 * 1.35 / _POINTS_PER_INCH) / sheet.height
    figure.text(
        left, below, _subtitle(trace, window, stage), va="top", fontsize=sheet.font, color="#444444"
    )


def _subtitle(trace: Trace, window: Window, stage: int | None) -> str:
    parts = [f"step time {_seconds(trace.step_time_s)}"]
    if stage is None:
        parts.append(f"{trace.num_stages} pipeline stages")
        chunks = count_chunks(trace)
        if chunks > 1:
            parts.append(f"{chunks} chunks each")
        batches = 1 + max((s.microbatch for r in trace.ranks for s in r.spans), default=-1)
        parts.append(f"{batches} microbatches")
    else:
        parts.append(_whose_streams(trace, stage))
    if window != (0.0, trace.step_time_s):
        parts.append(f"shown: {_seconds(window[0])} to {_seconds(window[1])}")
    return "  ·  ".join(parts)


def _whose_streams(trace: Trace, stage: int) -> str:
    ranks = stage_ranks(trace, stage)
    if len(ranks) == 1:
        alike = f", one of {ranks[0].num_ranks} alike" if ranks[0].num_ranks > 1 else ""
        return f"stage {stage}: streams of rank {ranks[0].rank}{alike}"
    shown = f"the first {MAX_RANKS} of " if len(ranks) > MAX_RANKS else ""
    return f"stage {stage}: streams of {shown}{len(ranks)} ranks"


def _seconds(seconds: float) -> str:
    if seconds >= 1.0 or seconds == 0.0:
        return f"{seconds:.4g} s"
    return f"{seconds * 1e3:.4g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.4g} µs"


def _draw_legend(figure: Figure, sheet: _Sheet, rows: Sequence[Row], num_chunks: int) -> None:
    handles, labels = [], []
    for handle, label in _legend_entries(rows, num_chunks):
        handles.append(handle)
        labels.append(label)
    widest = max(len(label) for label in labels) * 0.55 + 5
    columns = int((sheet.width - 0.5) * _POINTS_PER_INCH / (widest * sheet.font))
    figure.legend(
        handles, labels, loc="lower center", bbox_to_anchor=(0.5, 0.0),
        ncols=min(max(columns, 1), len(labels)), fontsize=sheet.font, frameon=False,
        handlelength=2.6, handleheight=1.1, handler_map={tuple: HandlerTuple(None, pad=0.0)},
    )  # fmt: skip


def _legend_entries(
    rows: Sequence[Row], num_chunks: int
) -> Iterator[tuple[Patch | tuple[Patch, ...], str]]:
    """Only what the chart holds; shades side by side in one entry."""
    passes = {b.category for row in rows if not row.operations for b in row.boxes}
    inside = {b.category for row in rows if row.operations for b in row.boxes}
    chunks = f", chunk 0 to {num_chunks - 1}" if num_chunks > 1 else ""
    known = [*CATEGORIES, *sorted((passes | inside) - set(CATEGORIES))]
    for category in known:
        if category in passes:
            count = num_chunks if is_ramp(category) else 1
            shown = style(category, 0, count)
            yield _patches(category, count), shown.label + (chunks if count > 1 else "")
        elif category in inside and not is_ramp(category):
            yield _patches(category, 1), style(category).label
    for category in known:
        if category in inside and is_ramp(category):
            kinds = ", ".join(kind.replace("_", "-") for kind in KERNEL_KINDS)
            yield _patches(category, len(KERNEL_KINDS)), f"{category}: {kinds}"
    yield Patch(facecolor=BUBBLE, edgecolor="#bbbbbb", linewidth=0.5), "bubble (idle)"


def _patches(category: str, count: int) -> Patch | tuple[Patch, ...]:
    patches = []
    for shade in range(count):
        fill = style(category, shade, count)
        patches.append(
            Patch(
                facecolor=fill.fill, edgecolor=fill.hatch_color, hatch=fill.hatch, linewidth=0.0
            )  # fmt: skip
        )
    return tuple(patches) if count > 1 else patches[0]
