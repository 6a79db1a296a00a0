"""What a step's result says, for people: summaries on a terminal, and a page of their own.

Reads the result's JSON (see `simulator.metrics`); every key but the step time may be missing. Only
here, in what this module calls and in `simulator.plots` are numbers scaled: GB are decimal, memory
is in GiB, times in s, ms or µs.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from simulator.explanations import explanation, large_terms
from simulator.summary_rows import (
    WaterfallStep,
    breakdown_rows,
    communication_rows,
    cost_rows,
    headline_cells,
    layout_parts,
    memory_parts,
    memory_terms,
    memory_verdict,
    simulation_counts,
    stage_cells,
    term_name,
    waterfall,
)
from simulator.summary_text import points_text, seconds_text
from simulator.text_page import BAD, DIM, GOOD, PLAIN_BAR, STRONG, TextPage, bar, cut

if TYPE_CHECKING:
    from simulator.runspec import RunSpec
    from simulator.simulate import Result

Metrics = Mapping[str, Any]

_NAME = 28  # columns of a term's name


def print_summary(result: "Result", console: Console) -> None:
    """Print the step at a glance: speed, where the time goes, communication, memory, cost."""
    metrics, page = result.to_json(), TextPage(console)
    _print_heading(page, metrics)
    _print_speed(page, metrics)
    _print_breakdown(page, metrics)
    _print_communication(page, metrics.get("communication") or {})
    _print_memory(page, metrics.get("memory") or {})
    _print_cost(page, metrics.get("cost") or {})
    _print_simulation(page, metrics.get("simulation") or {})
    _print_warnings(page, metrics)


def print_memory(result: "Result", console: Console) -> None:
    """Print what each pipeline stage holds, in GiB, and whether the fullest one fits."""
    metrics, page = result.to_json(), TextPage(console)
    _print_heading(page, metrics)
    memory = metrics.get("memory") or {}
    stages: Sequence[Metrics] = memory.get("per_stage") or ()
    if stages:
        _print_stages(page, stages, memory.get("capacity_bytes"))
    _print_verdict(page, memory)
    _print_warnings(page, metrics)


def print_explain(result: "Result", console: Console) -> None:
    """Print a waterfall from the peak rate to the achieved MFU, and what the large terms are."""
    metrics, page = result.to_json(), TextPage(console)
    _print_heading(page, metrics)
    steps = waterfall(metrics)
    if not steps:
        page.line("The result has no waterfall.")
        return
    _print_waterfall(page, steps)
    _print_explanations(page, metrics, result.run)
    _print_warnings(page, metrics)


def write_html(result: "Result", path: Path | str) -> None:
    """Write one self-contained page: numbers, Gantt charts, waterfall, memory, cost.

    The file is written whole or not at all. Raises `ConfigError` where the system refuses.
    """
    from simulator.files import write_text
    from simulator.html_report import html_page

    write_text(Path(path), html_page(result.to_json(), result.trace, result.run))


def _print_heading(page: TextPage, metrics: Metrics) -> None:
    page.line(str(metrics.get("name") or "one training step"), style=STRONG)
    parts = layout_parts(metrics.get("layout") or {})
    if parts:
        page.line(" · ".join(parts), style=DIM)
    page.line()


def _print_speed(page: TextPage, metrics: Metrics) -> None:
    cells = headline_cells(metrics)
    for left, right in zip(cells[::2], [*cells[1::2], None], strict=False):
        parts: list[str | tuple[str, str]] = [f"  {left[0]:12}", (f"{left[1]:>12}", STRONG)]
        if right is not None:
            parts += [f"      {right[0]:24}", (f"{right[1]:>10}", STRONG)]
        page.line(*parts)


def _print_breakdown(page: TextPage, metrics: Metrics) -> None:
    rows = breakdown_rows(metrics)
    if not rows:
        return
    stage = metrics.get("critical_stage")
    where = "" if stage is None else f" (stage {stage}, the busiest)"
    page.section(f"Where the step goes{where}")
    width = page.bar_width(used=2 + _NAME + 11 + 9 + 2)
    largest_s = max(seconds for _, seconds, _ in rows)
    for name, seconds, share in rows:
        drawn = bar(0.0, seconds / largest_s, width)
        words = f"  {cut(name, _NAME):{_NAME}}{seconds_text(seconds):>11}{share:>9}  "
        page.line(words, (drawn, PLAIN_BAR))


def _print_communication(page: TextPage, kinds: Mapping[str, Mapping[str, float]]) -> None:
    rows = communication_rows(kinds)
    if not rows:
        return
    page.section("Communication of one GPU")
    page.line(f"  {'':18}{'sent':>10}{'busy':>12}{'exposed':>12}{'bus bandwidth':>17}", style=DIM)
    for name, sent, busy, exposed, rate in rows:
        page.line(f"  {name:18}{sent:>10}{busy:>12}{exposed:>12}{rate:>17}")


def _print_memory(page: TextPage, memory: Metrics) -> None:
    if memory_verdict(memory):
        page.section("Memory per GPU")
        _print_verdict(page, memory, indent="  ")
        page.paragraph(memory_parts(memory), style=DIM)


def _print_verdict(page: TextPage, memory: Metrics, indent: str = "") -> None:
    style = STRONG if memory.get("fits", True) else f"{STRONG} {BAD}"
    page.paragraph(memory_verdict(memory), indent=indent, style=style)


def _print_stages(page: TextPage, stages: Sequence[Metrics], capacity_bytes: float | None) -> None:
    """A line per stage: GiB of each kind, and a bar on the scale of the GPU's capacity."""
    terms = memory_terms(stages)
    heads = ["stage", *terms, "total", *(["full"] if capacity_bytes else [])]
    widths = [max(len(head), 6) + 1 for head in heads]
    page.line("GiB per GPU of each pipeline stage", style=DIM)
    page.line("".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)), style=DIM)
    width = page.bar_width(sum(widths) + 2)
    largest = max(stage["total_bytes"] for stage in stages)
    scale = max(capacity_bytes or 0.0, largest) or 1.0
    for stage in stages:
        cells = [str(stage["stage"]), *stage_cells(stage, terms, capacity_bytes)]
        words = "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        total = stage["total_bytes"]
        over = capacity_bytes is not None and total > capacity_bytes
        page.line((words, BAD if over else ""), "  ",
                  (bar(0.0, total / scale, width), BAD if over else GOOD))  # fmt: skip
    page.line()


def _print_waterfall(page: TextPage, steps: Sequence[WaterfallStep]) -> None:
    width = page.bar_width(used=_NAME + 11 + 9 + 2)
    page.line(f"{'from peak to achieved':{_NAME}}{'time':>11}{'MFU':>9}", style=DIM)
    for step in steps:
        seconds = "" if step.seconds is None else seconds_text(step.seconds)
        style = STRONG if step.is_total else ""
        page.line(
            (f"{cut(step.name, _NAME):{_NAME}}{seconds:>11}{step.points_text:>9}  ", style),
            (bar(step.low, step.high, width), GOOD if step.is_total or step.is_gain else BAD),
        )


def _print_explanations(page: TextPage, metrics: Metrics, run: "RunSpec") -> None:
    """A sentence for each large term, the largest first."""
    sentences = [(term, points, explanation(term, run)) for term, points in large_terms(metrics)]
    if any(sentence for _, _, sentence in sentences):
        page.section("What the large terms are")
    for term, points, sentence in sentences:
        if sentence:
            page.line(f"  {term_name(term)}, {points_text(points)}", style=STRONG)
            page.paragraph(sentence, indent="    ")


def _print_cost(page: TextPage, cost: Mapping[str, float | None]) -> None:
    rows = cost_rows(cost)
    if not rows:
        return
    page.section("Cost")
    page.line(f"  {'':18}{'per step':>14}{'per trillion tokens':>24}", style=DIM)
    for name, per_step, per_trillion in rows:
        page.line(f"  {name:18}{per_step:>14}{per_trillion:>24}")


def _print_simulation(page: TextPage, simulation: Metrics) -> None:
    parts = [f"{number} {name}" for name, number in simulation_counts(simulation)[:3]]
    if not parts:
        return
    wall_s = simulation.get("wall_time_s")
    when = "" if wall_s is None else f" in {seconds_text(wall_s)}"
    page.line()
    page.paragraph(f"simulated{when}: {', '.join(parts)}", indent="", style=DIM)


def _print_warnings(page: TextPage, metrics: Metrics) -> None:
    warnings: Iterable[str] = metrics.get("warnings") or ()
    for i, warning in enumerate(warnings):
        if i == 0:
            page.section("Assumed or extrapolated")
        page.paragraph(warning, hanging="  ")
