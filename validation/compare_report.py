"""A comparison for people: measured beside predicted, terms, and in words what differs most.

Only here are its numbers scaled: times in s, ms or µs, memory in GiB.
"""

from typing import TYPE_CHECKING

from simulator.summary_text import seconds_text
from simulator.text_page import BAD, DIM, STRONG, TextPage
from validation.compare import Comparison, Quantity
from validation.compare_terms import Term

if TYPE_CHECKING:
    from rich.console import Console

_NAME = 26  # columns of a row's name
_NAMES = {
    "step_time_s": "step time",
    "model_tflops_per_gpu": "TFLOP/s per GPU",
    "mfu": "MFU",
    "max_allocated_bytes": "memory, max allocated",
    "memory_bound": "memory-bound kernels",
    "gemm": "matrix products (GEMM)",
}
_KINDS = {"megatron_log": "training log", "kineto_trace": "profiler trace"}


def print_comparison(comparison: Comparison, console: "Console") -> None:
    """Print contradictions first, then the numbers, then the words."""
    page = TextPage(console)
    page.line(comparison.run, style=STRONG)
    page.paragraph(f"{_KINDS[comparison.kind]} {comparison.path}", indent="", style=DIM)
    _print_contradictions(page, comparison)
    page.line()
    _print_head(page, "measured", "predicted", "error")
    for quantity in comparison.quantities:
        _print_quantity(page, quantity)
    _print_terms(page, comparison)
    page.section("What differs most")
    for sentence in comparison.differences:
        page.paragraph(sentence, hanging="  ")
    if comparison.notes:
        page.section("Notes")
        for note in comparison.notes:
            page.paragraph(note, hanging="  ")


def _print_contradictions(page: TextPage, comparison: Comparison) -> None:
    if not comparison.contradictions:
        return
    page.section("Log and run file are not of the same run")
    for one in comparison.contradictions:
        page.paragraph(f"{one} [line {one.line}]", hanging="  ", style=BAD)


def _print_head(page: TextPage, *names: str) -> None:
    page.line(f"  {'':{_NAME}}" + "".join(f"{name:>13}" for name in names), style=DIM)


def _print_quantity(page: TextPage, quantity: Quantity) -> None:
    values = (quantity.measured, quantity.predicted)
    cells = "".join(f"{_value(quantity.name, v):>13}" for v in values)
    error = "" if quantity.error is None else f"{quantity.error:+.1%}"
    page.line(f"  {_NAMES.get(quantity.name, quantity.name):{_NAME}}{cells}{error:>13}")


def _print_terms(page: TextPage, comparison: Comparison) -> None:
    groups = {
        "Where the step goes": [t for t in comparison.terms if t.of == "step"],
        "Communication, hidden or not": [t for t in comparison.terms if t.of != "step"],
    }
    for title, terms in groups.items():
        if terms:
            page.section(title)
            _print_head(page, "measured", "predicted", "difference")
            for term in terms:
                _print_term(page, term)


def _print_term(page: TextPage, term: Term) -> None:
    name = _NAMES.get(term.name, term.name.replace("_", " "))
    sign = "-" if term.difference_s < 0 else "+"
    cells = (
        seconds_text(term.measured_s), seconds_text(term.predicted_s),
        sign + seconds_text(abs(term.difference_s)),
    )  # fmt: skip
    page.line(f"  {name:{_NAME}}" + "".join(f"{cell:>13}" for cell in cells))


def _value(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if name.endswith("_bytes"):
        return f"{value / 2**30:.2f} GiB"
    if name.endswith("_s"):
        return seconds_text(value)
    return f"{value:.1%}" if name == "mfu" else f"{value:.1f}"
