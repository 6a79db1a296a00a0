"""The legend of a Gantt chart: an entry for each fill that the chart holds."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from simulator.gantt_rows import KERNEL_KINDS, Row
from simulator.palette import BUBBLE, CATEGORIES, is_ramp, style

_POINTS_PER_INCH = 72.0
_LINE = 1.75  # height of an entry, in font sizes
_KIND_NAMES = {"gemm": "GEMM", "memory_bound": "memory-bound"}
Handle = Patch | tuple[Patch, ...]


@dataclass(frozen=True)
class Legend:
    """Entries in order, laid out in columns under the axes. Sizes in inches, font in points."""

    entries: tuple[tuple[Handle, str], ...]
    num_columns: int
    font: float

    @property
    def height(self) -> float:
        lines = math.ceil(len(self.entries) / self.num_columns)
        return lines * self.font * _LINE / _POINTS_PER_INCH

    def draw(self, figure: Figure) -> None:
        handles: Any = [handle for handle, _ in self.entries]  # tuples: side by side
        figure.legend(
            handles, [label for _, label in self.entries], loc="lower center",
            bbox_to_anchor=(0.5, 0.05 / figure.get_figheight()), ncols=self.num_columns,
            fontsize=self.font, frameon=False, handlelength=2.6, handleheight=1.1,
            handler_map={tuple: HandlerTuple(None, pad=0.0)},
        )  # fmt: skip


def build_legend(
    rows: Sequence[Row],
    num_chunks: int,
    width: float,
    font: float,
    idle: str = "idle (bubble)",
    visible_s: float = 0.0,
) -> Legend:
    """The legend of these rows, in as many columns as fit into `width` inches.

    `idle` says what no box means. What covers less than `visible_s` of every row is left out.
    """
    entries = (*_entries(rows, num_chunks, visible_s), (_idle_swatch(), idle))
    # a letter takes about 0.55 of the font size; swatch and gaps take five font sizes
    widest = (max(len(label) for _, label in entries) * 0.55 + 5) * font / _POINTS_PER_INCH
    columns = min(max(int(width / widest), 1), len(entries))
    lines = math.ceil(len(entries) / columns)
    return Legend(entries, math.ceil(len(entries) / lines), font)


def _entries(
    rows: Sequence[Row], num_chunks: int, visible_s: float
) -> Iterator[tuple[Handle, str]]:
    """Only what the chart shows; shades side by side in one entry."""
    spans = _visible_categories((row for row in rows if not row.operations), visible_s)
    inside = _visible_categories((row for row in rows if row.operations), visible_s)
    for category in _ordered(spans | inside):
        if category in spans or not is_ramp(category):
            chunks = num_chunks if is_ramp(category) else 1
            said = f", chunk 0 to {chunks - 1}" if chunks > 1 else ""
            yield _swatch(category, chunks), style(category, 0, chunks).label + said
    for category in _ordered(inside):
        if is_ramp(category):
            kinds = ", ".join(_KIND_NAMES.get(kind, kind) for kind in KERNEL_KINDS)
            yield _swatch(category, len(KERNEL_KINDS)), f"{category} operations: {kinds}"


def _visible_categories(rows: Iterable[Row], visible_s: float) -> set[str]:
    """Those that cover `visible_s` of some row."""
    found: set[str] = set()
    for row in rows:
        covered: dict[str, float] = {}
        for box in row.boxes:
            covered[box.category] = covered.get(box.category, 0.0) + box.end_s - box.start_s
        found.update(category for category, seconds in covered.items() if seconds >= visible_s)
    return found


def _idle_swatch() -> Patch:
    return Patch(facecolor=BUBBLE, edgecolor="#bbbbbb", linewidth=0.5)


def _ordered(categories: set[str]) -> list[str]:
    return [c for c in CATEGORIES if c in categories] + sorted(categories - set(CATEGORIES))


def _swatch(category: str, num_shades: int) -> Handle:
    fills = [style(category, shade, num_shades) for shade in range(num_shades)]
    patches = tuple(
        Patch(facecolor=f.fill, edgecolor=f.hatch_color, hatch=f.hatch, linewidth=0.0)
        for f in fills
    )
    return patches if num_shades > 1 else patches[0]
