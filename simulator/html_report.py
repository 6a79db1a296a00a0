"""A step's result as one web page that needs nothing else: styles, pictures and charts inside."""

import base64
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from simulator.explanations import explanation, large_terms
from simulator.html_charts import bar_svg, memory_svg, waterfall_svg
from simulator.summary_rows import (
    breakdown_rows,
    communication_rows,
    cost_rows,
    headline_cells,
    layout_parts,
    memory_terms,
    memory_verdict,
    simulation_counts,
    stage_cells,
    term_name,
    waterfall,
)
from simulator.summary_text import points_text, seconds_text
from simulator.trace import Trace

if TYPE_CHECKING:
    from simulator.runspec import RunSpec

_STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1180px; padding: 24px 28px 60px; color: #1c1c1c;
  background: #fff; font-size: 15px; line-height: 1.5;
  font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 10px; }
p { margin: 4px 0 10px; max-width: 75ch; }
.note { color: #595959; }
.bad { color: #a40000; font-weight: 600; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin: 20px 0 0; padding: 0; }
.cards div { border: 1px solid #d9d9d9; border-radius: 8px; padding: 10px 16px; min-width: 120px; }
.cards dt { color: #595959; font-size: 13px; }
.cards dd { margin: 0; font-size: 21px; font-weight: 600; white-space: nowrap; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 18px 4px 0; text-align: right; white-space: nowrap; }
th { color: #595959; font-weight: 500; font-size: 13px; border-bottom: 1px solid #bbb; }
th:first-child, td:first-child { text-align: left; }
td { border-bottom: 1px solid #eee; }
figure { margin: 0 0 18px; overflow-x: auto; }
figure img { display: block; width: 100%; min-width: 640px; height: auto; }
figure svg { display: block; }
section { min-width: 0; max-width: 100%; }
.terms { margin: 0; max-width: 85ch; }
.terms dt { font-weight: 600; }
.terms dd { margin: 0 0 8px; overflow-wrap: anywhere; }
summary { cursor: pointer; }
td svg { vertical-align: middle; }
.two { display: flex; flex-wrap: wrap; gap: 0 56px; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page shows what it carries; a browser that reads this fetches nothing and runs nothing."""
_CLOSE_UP_PASSES = 40


def html_page(result: Mapping[str, Any], trace: Trace, run: "RunSpec") -> str:
    """The page's text. Keys of the result other than the step time may be missing."""
    name = str(result.get("name") or trace.name)
    simulation = _simulation(result.get("simulation") or {})
    sections = [
        _head(result, name),
        _gantt(trace),
        _waterfall(result, run),
        f'<div class="two">{_breakdown(result)}{_communication(result)}</div>',
        _memory(result.get("memory") or {}),
        f'<div class="two">{_cost(result.get("cost") or {})}{simulation}</div>',
        _warnings(result.get("warnings") or ()),
    ]
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(name)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _head(result: Mapping[str, Any], name: str) -> str:
    cards = headline_cells(result)
    layout = escape(" · ".join(layout_parts(result.get("layout") or {})))
    boxes = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in cards)
    return f'<h1>{escape(name)}</h1>\n<p class="note">{layout}</p>\n<dl class="cards">{boxes}</dl>'


def _gantt(trace: Trace) -> str:
    """The whole step, and a close-up of its middle where passes are too narrow for numbers."""
    figures = [_figure(trace, None, "The whole step")]
    passes_s = [
        span.duration_s
        for span in trace.ranks[0].spans
        if span.category in ("forward", "backward", "backward_weight") and span.stream == "compute"
    ]
    seen_s = _CLOSE_UP_PASSES * median(passes_s) if passes_s else trace.step_time_s
    if seen_s < 0.5 * trace.step_time_s:
        middle_s = 0.5 * trace.step_time_s
        window = (middle_s - seen_s / 2, middle_s + seen_s / 2)
        figures.append(_figure(trace, window, "A close-up of its middle"))
    return "<h2>Timeline</h2>\n" + "\n".join(figures)


def _figure(trace: Trace, window: tuple[float, float] | None, title: str) -> str:
    from simulator.plots import write_gantt

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gantt.png"
        write_gantt(trace, path, window=window, title=title)
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    alt = escape(f"Gantt chart: {title}")
    return f'<figure><img alt="{alt}" src="data:image/png;base64,{data}"></figure>'


def _waterfall(result: Mapping[str, Any], run: "RunSpec") -> str:
    steps = waterfall(result)
    if not steps:
        return ""
    return (
        "<h2>From peak to achieved</h2>\n"
        '<p class="note">What each term takes from the peak rate, in points of MFU.</p>\n'
        f"<figure>{waterfall_svg(steps)}</figure>\n{_explanations(result, run)}"
    )


def _explanations(result: Mapping[str, Any], run: "RunSpec") -> str:
    """A sentence for each large term, the largest first."""
    told = [(term, points, explanation(term, run)) for term, points in large_terms(result)]
    items = "".join(
        f"<dt>{escape(term_name(term))}, {points_text(points)}</dt><dd>{escape(sentence)}</dd>"
        for term, points, sentence in told
        if sentence
    )
    return f'<dl class="terms">{items}</dl>' if items else ""


def _breakdown(result: Mapping[str, Any]) -> str:
    rows = breakdown_rows(result)
    if not rows:
        return ""
    largest_s = max(seconds for _, seconds, _ in rows)
    cells = [
        (escape(name), seconds_text(seconds), share, bar_svg(seconds / largest_s))
        for name, seconds, share in rows
    ]
    stage = result.get("critical_stage")
    where = "" if stage is None else f" (stage {stage}, the busiest)"
    table = _html_table(("term", "time", "of step", ""), cells)
    return _section(f"Where the step goes{where}", table)


def _communication(result: Mapping[str, Any]) -> str:
    rows = communication_rows(result.get("communication") or {})
    head = ("kind", "sent", "busy", "exposed", "bus bandwidth")
    return _section("Communication of one GPU", _table(head, rows)) if rows else ""


def _memory(memory: Mapping[str, Any]) -> str:
    verdict = memory_verdict(memory)
    if not verdict:
        return ""
    state = "note" if memory.get("fits", True) else "bad"
    parts = [f'<h2>Memory per GPU</h2>\n<p class="{state}">{escape(verdict)}</p>']
    stages: Sequence[Mapping[str, Any]] = memory.get("per_stage") or ()
    if stages:
        terms, capacity = memory_terms(stages), memory.get("capacity_bytes")
        parts.append(f"<figure>{memory_svg(stages, terms, capacity)}</figure>")
        head = ("stage (GiB)", *terms, "total", *(["full"] if capacity else []))
        rows = [(str(s["stage"]), *stage_cells(s, terms, capacity)) for s in stages]
        parts.append(f"<details><summary>Numbers</summary>{_table(head, rows)}</details>")
    return "\n".join(parts)


def _cost(cost: Mapping[str, float | None]) -> str:
    rows = cost_rows(cost)
    head = ("", "per step", "per trillion tokens")
    return _section("Cost", _table(head, rows)) if rows else ""


def _simulation(simulation: Mapping[str, Any]) -> str:
    rows = [(name, number) for name, number in simulation_counts(simulation)]
    if simulation.get("wall_time_s") is not None:
        rows.append(("time it took", seconds_text(simulation["wall_time_s"])))
    return _section("Simulation", _table(("", ""), rows)) if rows else ""


def _warnings(warnings: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    return f"<h2>Assumed or extrapolated</h2>\n<ul>{items}</ul>" if items else ""


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{content}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return _html_table(head, [[escape(cell) for cell in row] for row in rows])


def _html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are markup already."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head) if any(head) else ""
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    header = f"<thead><tr>{top}</tr></thead>" if top else ""
    return f'<div class="scroll"><table>{header}<tbody>{lines}</tbody></table></div>'
