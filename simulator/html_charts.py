"""Charts of the web page, as inline SVG: the waterfall of MFU, and memory by stage."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from simulator.summary_rows import WaterfallStep
from simulator.summary_text import gib_text, seconds_text

_FONT = 'font-family="system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif" font-size="13"'
_TOTAL, _LOSS, _GAIN = "#0072b2", "#d55e00", "#009e73"
_MEMORY_COLORS = (
    "#0072b2", "#56b4e9", "#1a1a1a", "#e69f00", "#009e73", "#999999", "#cc79a7", "#f0e442",
)  # fmt: skip
"""Okabe and Ito's, in the order of the kinds of memory."""
_LABELS, _WIDTH, _NUMBERS = 215.0, 640.0, 180.0
_ROW, _BAR = 24.0, 17.0
_SMALL_WIDTH, _SMALL_HEIGHT = 130.0, 11.0


def waterfall_svg(steps: Sequence[WaterfallStep]) -> str:
    """Bars from peak to achieved, each starting where the last one ended."""
    parts = []
    for i, step in enumerate(steps):
        y = i * _ROW + 2
        left, width = _LABELS + step.low * _WIDTH, (step.high - step.low) * _WIDTH
        fill = _TOTAL if step.is_total else _GAIN if step.is_gain else _LOSS
        weight = ' font-weight="600"' if step.is_total else ""
        seconds = "" if step.seconds is None else f" · {seconds_text(step.seconds)}"
        parts.append(_text(_LABELS - 10, y, step.name, "end", weight))
        parts.append(
            _rect(left, y, max(width, 1.0), _BAR, fill, f"{step.name}: {step.points_text}")
        )
        parts.append(_text(_LABELS + _WIDTH + 12, y, step.points_text + seconds, "start", weight))
        if i + 1 < len(steps):
            edge = _LABELS + (step.high if step.is_gain or i == 0 else step.low) * _WIDTH
            parts.append(
                f'<line x1="{edge:.1f}" x2="{edge:.1f}" y1="{y:.1f}" y2="{y + _ROW + _BAR:.1f}" '
                'stroke="#888" stroke-width="1" stroke-dasharray="2 2"/>'
            )
    return _svg(_LABELS + _WIDTH + _NUMBERS, len(steps) * _ROW + 2, "waterfall of MFU", parts)


def bar_svg(share: float) -> str:
    """A small bar for a table's row, `share` of the longest."""
    parts = [_rect(0.0, 0.0, max(share * _SMALL_WIDTH, 1.0), _SMALL_HEIGHT, _TOTAL, "")]
    return _svg(_SMALL_WIDTH, _SMALL_HEIGHT, f"{share:.0%} of the longest", parts)


def memory_svg(
    stages: Sequence[Mapping[str, Any]], terms: Sequence[str], capacity_bytes: float | None
) -> str:
    """A bar per stage, stacked by kind, against the GPU's capacity."""
    largest = max(stage["total_bytes"] for stage in stages)
    scale = _WIDTH / (max(largest, capacity_bytes or 0.0) or 1.0)
    left, row, bar = 75.0, (20.0, 15.0)[len(stages) > 32], (15.0, 12.0)[len(stages) > 32]
    top = 48.0
    bottom = top + len(stages) * row
    parts = list(_key(terms))
    for i, stage in enumerate(stages):
        y, x = top + i * row, left
        parts.append(_text(left - 10, y - 1, f"stage {stage['stage']}", "end"))
        for term, fill in zip(terms, _fills(terms), strict=True):
            width = stage.get(term, 0.0) * scale
            title = f"{term}: {gib_text(stage.get(term, 0.0))}"
            parts.append(_rect(x, y, width, bar, fill, title))
            x += width
        parts.append(_text(_end(x, left, capacity_bytes, scale), y - 1,
                           gib_text(stage["total_bytes"]), "start"))  # fmt: skip
    if capacity_bytes:
        x = left + capacity_bytes * scale
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 5:.1f}" y2="{bottom:.1f}" '
            'stroke="#a40000" stroke-width="2"/>'
        )
        label = f"capacity {gib_text(capacity_bytes)}"
        parts.append(_text(x, top - 24, label, "end" if x > 400 else "start", ' fill="#a40000"'))
    return _svg(left + _WIDTH + 110, bottom + 4, "memory by stage", parts)


def _end(x: float, left: float, capacity_bytes: float | None, scale: float) -> float:
    """Where a bar's number begins: behind the bar, and clear of the capacity's line."""
    line = left + (capacity_bytes or 0.0) * scale
    return line + 8 if x + 70 > line >= x else x + 8


def _fills(terms: Sequence[str]) -> list[str]:
    return [_MEMORY_COLORS[i % len(_MEMORY_COLORS)] for i in range(len(terms))]


def _key(terms: Sequence[str]) -> Iterator[str]:
    x = 75.0
    for term, fill in zip(terms, _fills(terms), strict=True):
        yield _rect(x, 2, 13, 13, fill, term)
        yield _text(x + 18, 0, term, "start")
        x += 18 + len(term) * 7.6 + 18


def _rect(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
    return f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    """Words beside a bar whose top is at `y`."""
    return f'<text x="{x:.1f}" y="{y + 13:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" role="img" aria-label="{escape(title)}" {_FONT}>'
        + "".join(parts) + "</svg>"
    )  # fmt: skip
