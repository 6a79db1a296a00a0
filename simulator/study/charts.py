"""Pictures of a study along its settings: step time, MFU and exposed communication, knee marked.

One column per varied setting, the others held. A setting whose values are numbers gets an axis to
scale (logarithmic where they spread widely), any other one place per value.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from simulator.palette import style
from simulator.pictures import DPI, own_settings, save_figure
from simulator.study.curves import Axis, Curve, curves, exposed_s, mfu, step_time_s
from simulator.study.knee import is_logarithmic
from simulator.study.whatif import Answer, Row
from simulator.text_page import cut

FONT = 9.0
GREY = "#444444"
_COLUMN = 5.6  # inches
_HEIGHT = 7.6
_MOST_TICKS = 12
_LONGEST = 24  # letters of a value
_LEAST_SPAN = 0.05  # of the largest value: a smaller change is drawn as the small thing it is
_KNEE = "#963c00"  # the palette's dark vermillion


def write_curves(answer: Answer, path: Path, title: str) -> None:
    """Draw the study along each of its settings, .png or .svg."""
    with own_settings():
        save_figure(_draw(curves(answer), title), path)


def _draw(found: Sequence[Curve], title: str) -> Figure:
    width = max(_COLUMN * len(found), 7.0)
    figure = Figure(figsize=(width, _HEIGHT), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    draw_title(figure, title)
    panels: Any = figure.subplots(
        3, len(found), sharex="col", sharey="row", squeeze=False, height_ratios=(3, 3, 4)
    )
    factor, unit = time_unit([step_time_s(row) for curve in found for row in curve.rows])
    _draw_lines(panels[0], found, lambda row: _times(step_time_s(row), factor), "forward")
    _draw_lines(panels[1], found, lambda row: _times(mfu(row), 100.0), "dp")
    for axes, curve in zip(panels[2], found, strict=True):
        _draw_exposed(axes, curve, factor)
    for column, curve in enumerate(found):
        _finish_column([row[column] for row in panels], curve)
    _draw_legend(figure, found)
    names = (f"step time ({unit})", "MFU (%)", f"exposed communication ({unit})")
    for row, label in zip(panels, names, strict=True):
        row[0].set_ylabel(label, fontsize=FONT)
    return figure


def time_unit(seconds: Sequence[float | None]) -> tuple[float, str]:
    """Units per second, and the unit's name, in which the longest of times reads well."""
    longest = max((s for s in seconds if s is not None), default=1.0)
    return (1.0, "s") if longest >= 1.0 else (1e3, "ms")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def draw_title(figure: Figure, title: str) -> None:
    """The heading of a study's picture."""
    figure.suptitle(
        " ".join(title.split()), fontsize=1.3 * FONT, weight="bold", x=0.01, ha="left",
        parse_math=False,
    )  # fmt: skip


def _finish_column(panels: Sequence[Axes], curve: Curve) -> None:
    for axes in panels:
        plain_frame(axes)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    _scale(panels[-1], curve.axis)
    if curve.held:
        held = ", ".join(f"{path.split('.')[-1]} {text}" for path, text in curve.held)
        panels[0].set_title(f"at {held}", fontsize=FONT, color=GREY, loc="left", parse_math=False)
    _mark_knee(panels, curve)


def _draw_lines(
    panels: Sequence[Axes], found: Sequence[Curve], read: Callable[[Row], float | None], color: str
) -> None:
    """One figure of all curves, on one scale; a cross at the foot where there is no result."""
    there: list[float] = []
    for axes, curve in zip(panels, found, strict=True):
        values = [read(row) for row in curve.rows]
        there += [v for v in values if v is not None]
        drawn = [float("nan") if v is None else v for v in values]
        joined = "-" if curve.axis.values is not None else ""
        axes.plot(
            curve.axis.positions, drawn, f"{joined}o", color=style(color).fill, markersize=5,
            linewidth=1.8,
        )  # fmt: skip
        lost = [x for x, v in zip(curve.axis.positions, values, strict=True) if v is None]
        axes.plot(
            lost, [0.05] * len(lost), "x", color="#888888",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
    if there:
        half = max(max(there) - min(there), _LEAST_SPAN * max(there)) / 2
        middle = (max(there) + min(there)) / 2
        panels[0].set_ylim(middle - 1.15 * half, middle + 1.15 * half)


def _kinds(found: Sequence[Curve]) -> list[str]:
    """Kinds of communication of which some point exposes anything."""
    seen = {k: None for c in found for r in c.rows for k, v in exposed_s(r).items() if v > 0}
    return list(seen)


def _draw_exposed(axes: Axes, curve: Curve, factor: float) -> None:
    """Kinds on top of each other: the upper edge is their sum."""
    there = [(x, r) for x, r in zip(curve.axis.positions, curve.rows, strict=True) if exposed_s(r)]
    positions = [x for x, _ in there]
    base = [0.0] * len(there)
    for kind in _kinds([curve]):
        look = style(kind)
        top = [b + factor * exposed_s(row)[kind] for b, (_, row) in zip(base, there, strict=True)]
        filled: dict[str, Any] = {
            "facecolor": look.fill, "hatch": look.hatch, "edgecolor": look.hatch_color,
            "linewidth": 0.0,
        }  # fmt: skip
        if curve.axis.values is not None and len(there) > 1:
            axes.fill_between(positions, base, top, **filled)
            axes.plot(positions, top, color="#ffffff", linewidth=0.8)
        else:
            heights = [t - b for b, t in zip(base, top, strict=True)]
            axes.bar(positions, heights, _bar_width(curve.axis), bottom=base, **filled)
        base = top
    if curve.axis.values is not None:
        axes.plot(positions, base, "o", color=GREY, markersize=3.5)
    axes.set_ylim(bottom=0.0)


def _bar_width(axis: Axis) -> float:
    if axis.values is None:
        return 0.6
    return 0.1 * (abs(axis.values[0]) or 1.0)  # a single number


def _scale(axes: Axes, axis: Axis) -> None:
    if axis.values is not None and len(axis.values) > 1 and is_logarithmic(axis.values):
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    step = -(-len(axis.texts) // _MOST_TICKS)
    names = tick_names(axis)[::step]
    axes.set_xticks(axis.positions[::step], names)
    if max(len(line) for name in names for line in name.split("\n")) * len(names) > 52:
        slant_labels(axes)
    axes.set_xlabel(axis.path, fontsize=FONT, parse_math=False)


def plain_frame(axes: Axes) -> None:
    """Small ticks, and lines only where values are read."""
    axes.tick_params(labelsize=FONT, length=3, width=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:.6g}"))


def tick_names(axis: Axis) -> list[str]:
    """The values as written, cut where they would take the picture's room."""
    return ["\n".join(cut(line, _LONGEST) for line in text.split("\n")) for text in axis.texts]


def slant_labels(axes: Axes) -> None:
    """Let long names below an axis end at their ticks."""
    for label in axes.get_xticklabels():
        label.set(rotation=35, ha="right", rotation_mode="anchor")


def _mark_knee(panels: Sequence[Axes], curve: Curve) -> None:
    knee = curve.knee()
    if knee is None:
        return
    x = curve.axis.positions[knee]
    for axes in panels:
        axes.axvline(x, color=_KNEE, linestyle=(0, (4, 3)), linewidth=1.1, zorder=3)
    right = knee >= len(curve.rows) / 2
    panels[0].annotate(
        f"knee: {curve.axis.texts[knee]}", (x, 0.97), xycoords=panels[0].get_xaxis_transform(),
        xytext=(-5 if right else 5, 0), textcoords="offset points", va="top",
        ha="right" if right else "left", color=_KNEE, fontsize=FONT, parse_math=False,
    )  # fmt: skip


def _draw_legend(figure: Figure, found: Sequence[Curve]) -> None:
    handles = [
        Patch(
            facecolor=style(kind).fill, hatch=style(kind).hatch,
            edgecolor=style(kind).hatch_color, linewidth=0.0, label=style(kind).label,
        )
        for kind in reversed(_kinds(found))
    ]  # fmt: skip
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=2 if len(found) == 1 else 3,
            frameon=False, fontsize=FONT, handleheight=1.3, handlelength=2.2,
        )  # fmt: skip
