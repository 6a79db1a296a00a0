"""A study on a terminal: a line per point, why some have no result, and where curves bend."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from simulator.study.curves import Curve, curves, exposed_s, mfu, step_time_s
from simulator.study.whatif import Answer, Row
from simulator.summary_text import gib_text, percent_text, seconds_text
from simulator.text_page import BAD, DIM, STRONG, TextPage, cut

Cell = Callable[[Row], str]
_FEWEST_FIGURES = 2  # step time and MFU, however narrow the terminal
_WIDEST_SETTING = 18  # columns of a value


def print_study(answer: Answer, console: Console, title: str) -> None:
    """Print the table and what there is to read in it."""
    page = TextPage(console)
    page.line(title, style=STRONG)
    page.line(_counts(answer), style=DIM)
    page.line()
    figures = _figures(answer.rows)
    table = _table(answer, figures)
    while len(figures) > _FEWEST_FIGURES and _width(table, console) > console.width:
        figures.pop()
        table = _table(answer, figures)
    console.print(table)
    shown = {name for name, _ in figures}
    kinds = ", ".join(kind for kind in _exposed_kinds(answer.rows) if kind in shown)
    if kinds:
        page.line(f"{kinds}: communication that compute does not cover", style=DIM)
    page.line()
    for sentence in (*_reasons(answer.rows), *_findings(answer)):
        page.paragraph(sentence, indent="", hanging="  ")


def _counts(answer: Answer) -> str:
    parts = [f"{len(answer.rows)} points"]
    if answer.num_reused:
        parts.append(f"{answer.num_reused} known from before")
    return " · ".join(parts)


def _width(table: Table, console: Console) -> int:
    """Columns that a table takes when nothing but names of settings is wrapped."""
    return Measurement.get(console, console.options.update(max_width=1000), table).minimum


def _table(answer: Answer, figures: Sequence[tuple[str, Cell]]) -> Table:
    fastest = _fastest(answer.rows)
    table = Table(box=None, header_style=DIM, padding=(0, 1, 0, 1), pad_edge=False)
    varied = answer.study.varied
    for name, v in zip(setting_names([v.path for v in varied]), varied, strict=True):
        widest = min(max(map(len, v.texts)), _WIDEST_SETTING)
        table.add_column(name, justify="right", overflow="fold", min_width=widest)
    for name, _ in figures:
        table.add_column(name, justify="right", no_wrap=True)
    for row in answer.rows:
        cells = [cut(setting.text, _WIDEST_SETTING) for setting in row.point.settings]
        if row.outcome.result is None:
            table.add_row(*cells, row.outcome.status, style=BAD)
        else:
            style = STRONG if row is fastest else ""
            table.add_row(*cells, *(cell(row) for _, cell in figures), style=style)
    return table


def setting_names(paths: Sequence[str]) -> list[str]:
    """The last key of each path, or all of it where that would not tell two apart."""
    last = Counter(path.split(".")[-1] for path in paths)
    return [key if last[key := path.split(".")[-1]] == 1 else path for path in paths]


def _exposed_kinds(rows: Sequence[Row]) -> list[str]:
    """Kinds of communication of which some point exposes anything."""
    return list({kind: None for row in rows for kind, s in exposed_s(row).items() if s > 0})


def _figures(rows: Sequence[Row]) -> list[tuple[str, Cell]]:
    """Heading and contents of each column of results."""

    def exposed(kind: str) -> Cell:
        return lambda row: seconds_text(exposed_s(row)[kind])

    return [
        ("step", lambda row: seconds_text(step_time_s(row) or 0.0)),
        ("MFU", lambda row: percent_text(mfu(row) or 0.0)),
        *((kind, exposed(kind)) for kind in _exposed_kinds(rows)),
        ("memory", _memory),
        ("bubble", lambda row: percent_text((row.outcome.result or {})["bubble_fraction"])),
    ]


def _memory(row: Row) -> str:
    memory = (row.outcome.result or {})["memory"]
    text = gib_text(memory["peak_bytes"])
    return text if memory["fits"] else f"{text} too much"


def _fastest(rows: Sequence[Row]) -> Row | None:
    there = [row for row in rows if row.outcome.result is not None]
    return min(there, key=lambda row: step_time_s(row) or 0.0, default=None)


def _reasons(rows: Sequence[Row]) -> Iterator[str]:
    """Each reason once, with how many points it is of."""
    counts = Counter((r.outcome.status, r.outcome.reason) for r in rows if r.outcome.result is None)
    for (status, reason), count in counts.items():
        yield f"{status} ({count} point{'s' if count > 1 else ''}): {reason}"


def _findings(answer: Answer) -> Iterator[str]:
    if len(answer.rows) < 2 or _fastest(answer.rows) is None:
        return
    for curve in curves(answer):
        yield from _knee(curve)


def _knee(curve: Curve) -> Iterator[str]:
    """What the setting changes up to its knee, and what beyond."""
    knee = curve.knee()
    if knee is None:
        return
    there = [row for row in curve.rows if row.outcome.result is not None]
    first, bend, last = (step_time_s(row) or 0.0 for row in (there[0], curve.rows[knee], there[-1]))
    texts = dict(zip((r.number for r in curve.rows), curve.axis.texts, strict=True))
    path = curve.axis.path.split("\n")[0]
    yield (
        f"{path}: the knee is at {curve.axis.texts[knee]}: the step changes by "
        f"{_percent(bend, first)} from {texts[there[0].number]} to there, by "
        f"{_percent(last, bend)} from there to {texts[there[-1].number]}"
    )


def _percent(after_s: float, before_s: float) -> str:
    return f"{100 * (after_s / before_s - 1):+.1f}\N{NO-BREAK SPACE}%"
