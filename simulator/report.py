"""What a step's result says, for people: summaries on a terminal, and a page of their own.

Reads the result's JSON (see `simulator.metrics`); every key but the step time may be missing.
Lines are laid out here, to the width of the console, so that a pipe gets the same plain text.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from simulator.summary_rows import (
    breakdown_rows,
    communication_rows,
    cost_rows,
    headline_cells,
    layout_parts,
    memory_terms,
    memory_verdict,
    simulation_counts,
    waterfall,
)
from simulator.summary_text import seconds_text

if TYPE_CHECKING:
    from simulator.simulate import Result

Metrics = Mapping[str, Any]

_WIDEST = 100
_ASCII = str.maketrans({"·": "|", "µ": "u", "…": "~", "█": "#", "▌": "#", "−": "-", "×": "x"})
_STRONG, _DIM, _BAD, _GOOD = "bold", "dim", "red", "green"
_FEWEST_BAR = 6


def print_summary(result: "Result", console: Console) -> None:
    """The step at a glance: speed, where the time goes, communication, memory, cost."""
    metrics, page = result.to_json(), _Page(console)
    page.heading(metrics)
    _print_speed(page, metrics)
    _print_breakdown(page, metrics)
    _print_communication(page, metrics.get("communication") or {})
    _print_memory_line(page, metrics.get("memory") or {})
    _print_cost(page, metrics.get("cost") or {})
    _print_simulation(page, metrics.get("simulation") or {})
    _print_warnings(page, metrics)


def print_memory(result: "Result", console: Console) -> None:
    """Memory of each pipeline stage by kind, in GB, and whether the fullest one fits."""
    metrics, page = result.to_json(), _Page(console)
    page.heading(metrics)
    memory = metrics.get("memory") or {}
    stages: Sequence[Mapping[str, Any]] = memory.get("per_stage") or ()
    if stages:
        _print_stages(page, stages, memory.get("capacity_bytes"))
    _print_memory_line(page, memory)
    _print_warnings(page, metrics)


def print_explain(result: "Result", console: Console) -> None:
    """A waterfall from the peak rate to what is achieved, in points of MFU."""
    metrics, page = result.to_json(), _Page(console)
    page.heading(metrics)
    steps = waterfall(metrics)
    if not steps:
        page.line("The result has no waterfall.")
        return
    width = page.bar_width(used=28 + 11 + 9 + 2)
    page.line(f"{'from peak to achieved':28}{'time':>11}{'MFU':>9}", style=_DIM)
    for step in steps:
        seconds = "" if step.seconds is None else seconds_text(step.seconds)
        style = _STRONG if step.is_total else ""
        page.line(
            (f"{_cut(step.name, 28):28}{seconds:>11}{step.points_text:>9}  ", style),
            (_bar(step.low, step.high, width), _GOOD if step.is_total else _BAD),
        )
    losses = [step for step in steps if not step.is_total and not step.is_gain]
    if losses:
        most = max(losses, key=lambda step: step.high - step.low)
        points = (most.high - most.low) * 100
        page.line()
        page.line(f"Largest loss: {most.name}, {points:.1f} points of MFU.")
    _print_warnings(page, metrics)


def write_html(result: "Result", path: Path | str) -> None:
    """Write one self-contained page: numbers, Gantt charts, waterfall, memory, cost.

    The file is written whole or not at all.
    """
    from simulator.files import write_text
    from simulator.html_report import html_page

    write_text(Path(path), html_page(result.to_json(), result.trace))


@dataclass(frozen=True)
class _Page:
    """Lines of a console: never wrapped, cut at its width, in ASCII where it has nothing else."""

    console: Console

    @property
    def width(self) -> int:
        return min(self.console.width, _WIDEST)

    def bar_width(self, used: int) -> int:
        """Columns left for bars, 0 where too few are."""
        left = self.width - used
        return left if left >= _FEWEST_BAR else 0

    def line(self, *parts: str | tuple[str, str], style: str = "") -> None:
        text = Text()
        for part in parts:
            words, part_style = part if isinstance(part, tuple) else (part, style)
            text.append(words if self._unicode else _ascii(words), part_style)
        text.rstrip()
        self.console.print(
            text, no_wrap=True, overflow="ellipsis" if self._unicode else "crop", highlight=False
        )

    def paragraph(self, words: str, indent: str = "  ", style: str = "") -> None:
        """Prose, wrapped between words."""
        for line in textwrap.wrap(words, max(self.width - len(indent), 20)):
            self.line(indent + line, style=style)

    def section(self, title: str) -> None:
        self.line()
        self.line(title, style=_STRONG)

    def heading(self, metrics: Metrics) -> None:
        self.line(str(metrics.get("name") or "one training step"), style=_STRONG)
        parts = layout_parts(metrics.get("layout") or {})
        if parts:
            self.line(" · ".join(parts), style=_DIM)
        self.line()

    @property
    def _unicode(self) -> bool:
        return not self.console.options.ascii_only


def _print_speed(page: _Page, metrics: Metrics) -> None:
    cells = headline_cells(metrics)
    for left, right in zip(cells[::2], [*cells[1::2], None], strict=False):
        parts: list[str | tuple[str, str]] = [f"  {left[0]:12}", (f"{left[1]:>12}", _STRONG)]
        if right is not None:
            parts += [f"      {right[0]:24}", (f"{right[1]:>10}", _STRONG)]
        page.line(*parts)


def _print_breakdown(page: _Page, metrics: Metrics) -> None:
    rows = breakdown_rows(metrics)
    if not rows:
        return
    stage = metrics.get("critical_stage")
    where = "" if stage is None else f" (stage {stage}, the busiest)"
    page.section(f"Where the step goes{where}")
    width = page.bar_width(used=2 + 28 + 11 + 9 + 2)
    largest_s = max(seconds for _, seconds, _ in rows)
    for name, seconds, share in rows:
        bar = _bar(0.0, seconds / largest_s, width)
        page.line(f"  {_cut(name, 28):28}{seconds_text(seconds):>11}{share:>9}  ", (bar, "cyan"))


def _print_communication(page: _Page, kinds: Mapping[str, Mapping[str, float]]) -> None:
    rows = communication_rows(kinds)
    if not rows:
        return
    page.section("Communication of one GPU")
    page.line(f"  {'':18}{'sent':>10}{'busy':>12}{'exposed':>12}{'bus bandwidth':>17}", style=_DIM)
    for name, sent, busy, exposed, rate in rows:
        page.line(f"  {name:18}{sent:>10}{busy:>12}{exposed:>12}{rate:>17}")


def _print_memory_line(page: _Page, memory: Mapping[str, Any]) -> None:
    verdict = memory_verdict(memory)
    if verdict:
        page.section("Memory per GPU")
        good = memory.get("fits", True)
        page.line(f"  {verdict}", style="" if good else _BAD)


def _print_stages(
    page: _Page, stages: Sequence[Mapping[str, Any]], capacity_bytes: float | None
) -> None:
    """A line per stage: GB of each kind, and a bar on the scale of the GPU's capacity."""
    terms = memory_terms(stages)
    widths = [max(len(term), 7) + 1 for term in terms]
    used = 5 + sum(widths) + 8
    head = "stage" + "".join(f"{t:>{w}}" for t, w in zip(terms, widths, strict=True))
    page.line("GB of each kind, by pipeline stage", style=_DIM)
    page.line(f"{head}{'total':>8}", style=_DIM)
    bar_width = page.bar_width(used + 1)
    largest = max(stage["total_bytes"] for stage in stages)
    scale = max(capacity_bytes or 0.0, largest) or 1.0
    for stage in stages:
        sizes = [stage.get(term, 0.0) / 1e9 for term in terms]
        cells = "".join(f"{size:>{w}.2f}" for size, w in zip(sizes, widths, strict=True))
        total = stage["total_bytes"]
        full = capacity_bytes is not None and total > capacity_bytes
        bar = _bar(0.0, total / scale, bar_width)
        page.line(
            f"{stage['stage']:>5}{cells}", (f"{total / 1e9:>8.2f} ", _STRONG),
            (bar, _BAD if full else _GOOD),
        )  # fmt: skip


def _print_cost(page: _Page, cost: Mapping[str, float | None]) -> None:
    rows = cost_rows(cost)
    if not rows:
        return
    page.section("Cost")
    page.line(f"  {'':18}{'per step':>12}{'per trillion tokens':>24}", style=_DIM)
    for name, per_step, per_trillion in rows:
        page.line(f"  {name:18}{per_step:>12}{per_trillion:>24}")


def _print_simulation(page: _Page, simulation: Mapping[str, Any]) -> None:
    parts = [f"{number} {name}" for name, number in simulation_counts(simulation)]
    if simulation.get("wall_time_s") is not None:
        parts.append(f"in {seconds_text(simulation['wall_time_s'])}")
    if parts:
        page.line()
        page.paragraph("simulated " + ", ".join(parts), indent="", style=_DIM)


def _print_warnings(page: _Page, metrics: Metrics) -> None:
    warnings: Iterable[str] = metrics.get("warnings") or ()
    for i, warning in enumerate(warnings):
        if i == 0:
            page.section("Assumed or extrapolated")
        page.paragraph(warning)


def _bar(low: float, high: float, width: int) -> str:
    """A bar from `low` to `high`, fractions of `width` columns; a sliver is never invisible."""
    if width <= 0:
        return ""
    start, end = (round(min(max(x, 0.0), 1.0) * width * 2) for x in (low, high))
    start = min(start, end, 2 * width - 1)
    if end == start and high > low:
        end = start + 1
    full, half = divmod(end, 2)
    blank = start // 2
    return " " * blank + "█" * (full - blank) + "▌" * half


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
