"""Boxes of a Gantt chart and the labels in them: one artist per fill and per distinct text.

A path holds all boxes of one fill, so that tens of thousands cost no more than a few.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.font_manager import FontProperties
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from simulator.gantt_rows import Box, Row, Window
from simulator.palette import BUBBLE, Style, is_ramp, style, text_color

_BAR = 0.86  # height of a box, of the row's
_MIN_EDGE_PX = 7.0  # boxes narrower than this, in the median, get no white edge
_THIN_PX = 1.5  # boxes narrower than this would come and go with the rounding to pixels
_PADDING_PX = 1.5  # kept free on both sides of a label
_SMALLEST = 5.5  # points
_DIGIT = 0.64  # advance of a digit, of the font size; DejaVu Sans has them all alike
_POINTS_PER_INCH = 72.0


@dataclass(frozen=True)
class Scale:
    """How the rows lie on the picture."""

    window: Window
    width_px: float
    row_px: float
    dpi: float
    least_px: float = 0.0
    """Shorter boxes are drawn as long as this, so that they leave a trace."""

    def width(self, box: Box) -> float:
        """Pixels of the box within the window."""
        seen_s = min(box.end_s, self.window[1]) - max(box.start_s, self.window[0])
        return seen_s * self.px_per_s

    def shows_all(self, box: Box) -> bool:
        """Whether the window does not cut the box."""
        return self.window[0] <= box.start_s and box.end_s <= self.window[1]

    @property
    def px_per_s(self) -> float:
        return self.width_px / (self.window[1] - self.window[0])


def draw_boxes(axes: Axes, rows: Sequence[Row], scale: Scale) -> None:
    """Idle first, over whole rows, then passes, then what else covers them.

    Limits stay as they are set: working them out from the boxes would take seconds.
    """
    idle = [(*scale.window, y) for y in range(len(rows))]
    axes.add_artist(_patch(idle, Style(BUBBLE, "idle"), edge=False, thin=False))
    edges = {inside: _has_edges(rows, inside, scale) for inside in (False, True)}
    fills: dict[tuple[bool, str, Style, bool, bool], list[tuple[float, float, int]]] = {}
    for y, row in enumerate(rows):
        for box in row.boxes:
            ramp, thin = is_ramp(box.category), scale.width(box) < _THIN_PX
            edge = ramp and not thin and edges[row.operations]
            key = (not ramp, box.category, _style(box), edge, thin)
            fills.setdefault(key, []).append((box.start_s, box.end_s, y))
    for key in sorted(fills, key=lambda k: (*k[:2], k[2].fill, *k[3:])):
        axes.add_artist(_patch(fills[key], *key[2:], least_s=scale.least_px / scale.px_per_s))


def _has_edges(rows: Sequence[Row], operations: bool, scale: Scale) -> bool:
    boxes = [b for row in rows if row.operations == operations for b in row.boxes]
    widths = [scale.width(b) for b in boxes if is_ramp(b.category)]
    return bool(widths) and median(widths) >= _MIN_EDGE_PX


def _style(box: Box) -> Style:
    return style(box.category, box.shade, box.num_shades)


def _patch(
    spans: Sequence[tuple[float, float, int]], fill: Style, edge: bool, thin: bool,
    least_s: float = 0.0,
) -> PathPatch:  # fmt: skip
    """All boxes of one fill. Wide ones are sharp and leave no seam between neighbours; thin ones
    tint a pixel by the part of it that they cover."""
    start, end, y = np.array(spans, dtype=float).T
    end = np.maximum(end, start + least_s)
    low, high = y - _BAR / 2, y + _BAR / 2
    corners = [(start, low), (end, low), (end, high), (start, high), (start, low)]
    vertices = np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)
    hatch = "" if thin else fill.hatch
    codes = np.tile([Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY], len(spans))
    return PathPatch(
        Path(vertices.reshape(-1, 2), codes.astype(Path.code_type)),
        facecolor=fill.fill,
        edgecolor=fill.hatch_color if edge or hatch else "none",
        linewidth=0.5 if edge else 0.0,
        hatch=hatch or None,
        snap=not thin,
    )


@dataclass(frozen=True)
class _Text:
    """A label's outline at one point of size, centred, and its width."""

    path: Path
    width: float


def draw_labels(axes: Axes, rows: Sequence[Row], scale: Scale, largest: float) -> None:
    """Microbatch numbers and names of operations, in the boxes that are wide enough for them."""
    texts: dict[str, _Text] = {}
    boxes = list(_labelled(rows, scale))
    for _, box, _ in boxes:
        if box.label not in texts:
            texts[box.label] = _measured(box.label)
    size = _font_size(boxes, texts, scale, largest)
    px = size * scale.dpi / _POINTS_PER_INCH
    places: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for y, box, width_px in boxes:
        # the size may have been chosen to fit this very box: allow for rounding
        if texts[box.label].width * px + 2 * _PADDING_PX <= width_px + 1e-6:
            middle = max(box.start_s, scale.window[0]) + min(box.end_s, scale.window[1])
            color = text_color(_style(box).fill)
            places.setdefault((box.label, color), []).append((middle / 2, y))
    for (label, color), offsets in places.items():
        axes.add_collection(_stamp(texts[label].path, px, color, offsets, axes), autolim=False)


def _labelled(rows: Sequence[Row], scale: Scale) -> Iterator[tuple[int, Box, float]]:
    """Row number, box and width of what could hold a letter; hatched boxes stay bare."""
    letter_px = 0.5 * _SMALLEST * scale.dpi / _POINTS_PER_INCH
    for y, row in enumerate(rows):
        for box in row.boxes:
            width_px = scale.width(box)
            if width_px > letter_px and box.label and not _style(box).hatch:
                yield y, box, width_px


def _measured(label: str) -> _Text:
    outline = TextPath((0, 0), label, size=100, prop=FontProperties(family="DejaVu Sans"))
    # the hull of the control points, a hair wider than the exact extent and far quicker to find
    x = np.asarray(outline.vertices)[np.asarray(outline.codes) != Path.CLOSEPOLY, 0]
    left, right = float(x.min()), float(x.max())
    # digits are 0.73 high; letters of one text share their base line with those of others
    to_unit = Affine2D().translate(-(left + right) / 2, -36.5).scale(0.01)
    # 11 is drawn narrower than 10, but must not be shown where 10 is not
    width = _DIGIT * len(label) if label.isdecimal() else (right - left) / 100
    return _Text(to_unit.transform_path(outline), width)


def _font_size(
    boxes: Sequence[tuple[int, Box, float]], texts: dict[str, _Text], scale: Scale, largest: float
) -> float:
    """Points: as large as the rows allow, or smaller so that nearly all numbers fit.

    The widest number counts for each box, so that what is shown does not depend on digits; boxes
    much narrower than most do not decide.
    """
    row = scale.row_px * _BAR * 0.6 * _POINTS_PER_INCH / scale.dpi
    size = min(largest, row)
    whole = [(b.label, w) for _, b, w in boxes if b.label.isdecimal() and scale.shows_all(b)]
    if not whole:
        return size
    widest = max(texts[label].width for label, _ in whole) * scale.dpi / _POINTS_PER_INCH
    fitting = sorted((width_px - 2 * _PADDING_PX) / widest for _, width_px in whole)
    fitting = [fits for fits in fitting if fits >= _SMALLEST]
    if not fitting:
        return min(size, _SMALLEST)
    usual = min(size, fitting[len(fitting) // 4])
    return max(min(usual, fitting[len(fitting) // 50]), 0.7 * usual)


def _stamp(
    path: Path, px: float, color: str, offsets: list[tuple[float, float]], axes: Axes
) -> PathCollection:
    return PathCollection(
        [path], facecolors=color, linewidths=0.0, offsets=offsets,
        offset_transform=axes.transData, transform=Affine2D().scale(px),
    )  # fmt: skip
