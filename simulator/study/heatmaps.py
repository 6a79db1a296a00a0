"""Two-way studies as heat maps: step time, MFU and exposed communication over two settings.

Cells are of equal size whatever lies between the values. In each row of the step time the knee
along the row is framed. A cell without a result is hatched, one that does not fit in memory says so
by a cross.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulator.palette import text_color
from simulator.pictures import DPI, own_settings, save_figure
from simulator.study.charts import FONT, GREY, draw_title, slant_labels, tick_names, time_unit
from simulator.study.curves import Plane, all_exposed_s, knee_index, mfu, plane, step_time_s
from simulator.study.whatif import Answer, Row

_KEY = "framed: the knee along the row;  hatched: no result;  ×: does not fit in memory"
_MOST_BESIDE = 6  # columns of maps that stand side by side rather than below each other
_MOST_LABELLED = 12  # columns in which numbers can be read
_PANELS: tuple[tuple[str, Callable[[Row], float | None], tuple[str, str]], ...] = (
    ("step time", step_time_s, ("#e9f2f8", "#003655")),
    ("MFU", mfu, ("#e3f4ee", "#00513b")),
    ("exposed communication", all_exposed_s, ("#fff3da", "#963c00")),
)
"""Heading, figure, and the hues of `simulator.palette` from light to dark."""


def write_heatmaps(answer: Answer, path: Path, title: str) -> None:
    """Draw a two-way study, .png or .svg."""
    with own_settings():
        save_figure(_draw(plane(answer), title), path)


def _draw(found: Plane, title: str) -> Figure:
    columns, lines = len(found.along.texts), len(found.down.texts)
    width, height = min(max(1.4 + 0.62 * columns, 3.6), 11.0), min(max(0.42 * lines, 2.2), 8.0)
    beside = columns <= _MOST_BESIDE
    width, height = (3 * width, height + 2.2) if beside else (width, 3 * (height + 0.3) + 1.6)
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    draw_title(figure, title)
    shape = (1, 3) if beside else (3, 1)
    panels: Any = figure.subplots(*shape, sharex=True, sharey=True)
    seconds = time_unit([step_time_s(row) for line in found.rows for row in line])
    for axes, (heading, read, hues) in zip(panels, _PANELS, strict=True):
        factor, unit = (100.0, "%") if read is mfu else seconds
        values = [[_scaled(read(row), factor) for row in line] for line in found.rows]
        axes.set_title(f"{heading} ({unit})", fontsize=FONT, loc="left")
        _draw_cells(axes, found, values, hues)
        axes.label_outer()
    for axes in panels if beside else panels[-1:]:
        axes.set_xlabel(found.along.path, fontsize=FONT, parse_math=False)
    for axes in panels[:1] if beside else panels:
        axes.set_ylabel(found.down.path, fontsize=FONT, parse_math=False)
    _frame_knees(panels[0], found)
    figure.supxlabel(_KEY, fontsize=FONT, color=GREY, x=0.01, ha="left")
    return figure


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _draw_cells(
    axes: Axes, found: Plane, values: Sequence[Sequence[float | None]], hues: tuple[str, str]
) -> None:
    there = [v for line in values for v in line if v is not None] or [0.0]
    colors = LinearSegmentedColormap.from_list("study", hues)
    scale = Normalize(min(there), max(there) if max(there) > min(there) else min(there) + 1.0)
    labelled = len(found.along.texts) <= _MOST_LABELLED
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            fill = "#ffffff" if value is None else to_hex(colors(scale(value)))
            axes.add_patch(
                Rectangle((j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor="#ffffff")
                if value is not None
                else Rectangle(
                    (j - 0.5, i - 0.5), 1, 1, facecolor=fill, edgecolor="#bbbbbb", hatch="////"
                )
            )
            if value is not None and labelled:
                mark = "" if _fits(found.rows[i][j]) else " ×"
                axes.text(
                    j, i, f"{_number_text(value)}{mark}", ha="center", va="center",
                    fontsize=FONT - 1, color=text_color(fill),
                )  # fmt: skip
    _label_axes(axes, found)


def _fits(row: Row) -> bool:
    return row.outcome.result is None or bool(row.outcome.result["memory"]["fits"])


def _number_text(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def _label_axes(axes: Axes, found: Plane) -> None:
    columns, lines = len(found.along.texts), len(found.down.texts)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(lines - 0.5, -0.5)
    every = -(-columns // _MOST_LABELLED)
    axes.set_xticks(range(0, columns, every), tick_names(found.along)[::every])
    every = -(-lines // 24)
    axes.set_yticks(range(0, lines, every), tick_names(found.down)[::every])
    axes.tick_params(labelsize=FONT, length=0)
    slant_labels(axes)
    axes.spines[:].set_visible(False)


def _frame_knees(axes: Axes, found: Plane) -> None:
    """Frame the cell of each row beyond which the setting along it hardly pays."""
    if found.along.values is None:
        return
    for i, line in enumerate(found.rows):
        knee = knee_index(found.along.values, [step_time_s(row) for row in line])
        if knee is not None:
            axes.add_patch(
                Rectangle(
                    (knee - 0.46, i - 0.44), 0.92, 0.88, fill=False, edgecolor="#e39400",
                    linewidth=1.8,
                )
            )  # fmt: skip
