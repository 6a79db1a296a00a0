"""Errors for people: a table on the terminal, a page, a picture."""

import base64
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from simulator.files import whole_file, write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

    from validation.points import ScoredPoint

COLUMNS = (
    "source", "rows", "scored", "mean", "median", "90th", "bias", "fast", "tau", "memory", "fits",
)  # fmt: skip
LEGEND = (
    "mean, median, 90th: absolute error of step time; bias: mean of signed errors, + is too slow; "
    "fast: share predicted too fast; tau: Kendall's, of the order of layouts within one model and "
    "GPU count; memory: median absolute error of the peak; fits: share of fits-or-OOM said right"
)
SETTINGS = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "data_parallel_size", "micro_batch_size",
    "num_microbatches", "num_gpus", "seq_length", "hidden_size", "recompute_granularity",
)  # fmt: skip
"""What the errors are set against."""
MAX_REASONS = 4


def source_cells(source: str, score: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table of sources."""
    oom = score["oom"]
    tau = score["layouts"]["kendall_tau"]
    return (
        source,
        str(score["rows"]),
        str(score["scored"]),
        _percent(score["mean_absolute_error"]),
        _percent(score["median_absolute_error"]),
        _percent(score["p90_absolute_error"]),
        _percent(score["bias"], signed=True),
        _percent(score["share_too_fast"], digits=0),
        "" if tau is None else f"{tau:.2f}",
        _percent(score["memory"]["median_absolute_error"]),
        _percent(None if oom is None else oom["accuracy"], digits=0),
    )


def print_report(result: Mapping[str, Any], console: "Console") -> None:
    """The table of sources, their worst rows, and what was skipped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "source" else "right", no_wrap=True)
    for source, score in result["by_source"].items():
        table.add_row(*source_cells(source, score))
    console.print(table)
    console.print(LEGEND, style="dim", highlight=False)
    for source, score in result["by_source"].items():
        _print_details(source, score, console)


def _print_details(source: str, score: Mapping[str, Any], console: "Console") -> None:
    worst = ", ".join(f"{w['id']} {_percent(w['error'], signed=True)}" for w in score["worst"][:3])
    if worst:
        console.print(f"{source}: worst {worst}", highlight=False, markup=False, soft_wrap=True)
    if score["oom"]:
        counts = ", ".join(
            f"{count} {name.replace('_', ' ')}"
            for name, count in score["oom"].items()
            if name != "accuracy"
        )
        console.print(f"{source}: {counts}", highlight=False, markup=False, soft_wrap=True)
    reasons = list(score["skip_reasons"].items())
    for reason, count in reasons[:MAX_REASONS]:
        console.print(
            f"{source}: {count} skipped: {reason}", highlight=False, markup=False, soft_wrap=True
        )
    if len(reasons) > MAX_REASONS:
        rest = sum(count for _, count in reasons[MAX_REASONS:])
        console.print(
            f"{source}: {rest} skipped for other reasons", highlight=False, soft_wrap=True
        )


def print_points(points: "Sequence[ScoredPoint]", console: "Console") -> None:
    """Errors of collectives or kernels by group, and what was skipped."""
    from rich.table import Table

    from validation.score import error_summary

    groups: dict[str, list[float]] = {}
    reasons: dict[str, int] = {}
    for point in points:
        if point.error is not None:
            groups.setdefault(point.group, []).append(point.error)
        else:
            reasons[point.reason] = reasons.get(point.reason, 0) + 1
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name in ("group", "points", "mean", "median", "90th", "bias"):
        table.add_column(name, justify="left" if name == "group" else "right")
    everything = [error for errors in groups.values() for error in errors]
    for group, errors in (*groups.items(), ("all", everything)):
        s = error_summary(errors)
        table.add_row(
            group, str(s["count"]), _percent(s["mean_absolute_error"]),
            _percent(s["median_absolute_error"]), _percent(s["p90_absolute_error"]),
            _percent(s["bias"], signed=True),
        )  # fmt: skip
    console.print(table)
    for reason, count in sorted(reasons.items(), key=lambda item: -item[1]):
        console.print(f"{count} skipped: {reason}", highlight=False, markup=False, soft_wrap=True)


def residuals(
    rows: Iterable[Mapping[str, Any]], setting: str
) -> list[tuple[Any, int, float, float]]:
    """(value, rows, mean signed error, median absolute error) for each value of a setting."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        if row["error"] is not None and setting in row["settings"]:
            groups.setdefault(row["settings"][setting], []).append(row["error"])
    return [
        (value, len(errors), fmean(errors), median(map(abs, errors)))
        for value, errors in sorted(groups.items(), key=lambda item: (str(type(item[0])), item[0]))
    ]


def write_report(path: Path, result: Mapping[str, Any]) -> None:
    """A page (.html) with tables and charts, or the charts alone (.png)."""
    if path.suffix.lower() == ".png":
        with whole_file(path) as scratch:
            draw(scratch, result)
        return
    write_text(path, html_page(result))


def html_page(result: Mapping[str, Any]) -> str:
    """One self-contained page: sources, charts, errors by setting, every row."""
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "errors.png"
        draw(picture, result)
        image = base64.b64encode(picture.read_bytes()).decode("ascii")
    sources = [source_cells(key, score) for key, score in result["by_source"].items()]
    parts = [
        "<!doctype html><meta charset='utf-8'><title>clustersim validate</title>",
        "<style>body{font:15px sans-serif;margin:2em;max-width:75em}td,th{padding:.15em .7em;"
        "text-align:right}td:first-child,th:first-child{text-align:left}th{border-bottom:1px "
        "solid #888}img{max-width:100%}h2{margin-top:2em}</style>",
        "<h1>Predicted against measured</h1>",
        _html_table(COLUMNS, sources),
        f"<p>{escape(LEGEND)}</p>",
        f"<img alt='errors' src='data:image/png;base64,{image}'>",
        *(_html_residuals(key, result["runs"]) for key in result["by_source"]),
        "<h2>Rows</h2>",
        _html_table(("id", "predicted s", "measured s", "error", "note"), _row_cells(result)),
    ]
    return "\n".join(parts) + "\n"


def _html_residuals(source: str, rows: Sequence[Mapping[str, Any]]) -> str:
    own = [row for row in rows if row["source_key"] == source and row["error"] is not None]
    if not own:
        return ""
    lines = []
    for setting in SETTINGS:
        found = residuals(own, setting)
        if len(found) > 1:
            lines += [
                (setting.replace("_", " "), str(value), str(count), _percent(bias, signed=True),
                 _percent(middle))
                for value, count, bias, middle in found
            ]  # fmt: skip
    heads = ("setting", "value", "rows", "bias", "median")
    return f"<h2>{escape(source)}: errors by setting</h2>" + _html_table(heads, lines)


def _row_cells(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            row["id"], _seconds(row["predicted_step_time_s"]),
            _seconds(row["measured_step_time_s"]), _percent(row["error"], signed=True),
            row["reason"] or "; ".join(row["notes"]),
        )
        for row in result["runs"]
    ]  # fmt: skip


def _html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}" for h in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}" for c in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def draw(path: Path, result: Mapping[str, Any]) -> None:
    """Predicted over measured, error by source, and error against each setting, as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in result["runs"] if row["error"] is not None]
    figure = Figure(figsize=(15, 12), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, 3).flat
    _draw_scatter(next(axes), rows)
    _draw_sources(next(axes), rows)
    for setting in SETTINGS:
        _draw_setting(next(axes), rows, setting)
    figure.savefig(path, dpi=110)


def _draw_scatter(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    for number, source in enumerate(_sources(rows)):
        own = [r for r in rows if r["source_key"] == source]
        axes.scatter(
            [r["measured_step_time_s"] for r in own], [r["predicted_step_time_s"] for r in own],
            s=10, alpha=0.6, marker="osv^D"[number // 10 % 5], label=source,
        )  # fmt: skip
    if rows:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axline((0.1, 0.1), (1.0, 1.0), color="#888888", linewidth=0.8)
        axes.legend(fontsize=6, ncols=2)
    axes.set_xlabel("measured step time, s")
    axes.set_ylabel("predicted, s")


def _draw_sources(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    names = _sources(rows)
    _draw_groups(axes, names, lambda n: [r["error"] for r in rows if r["source_key"] == n])
    axes.set_title("by source", fontsize=9)


def _draw_setting(axes: "Axes", rows: Sequence[Mapping[str, Any]], setting: str) -> None:
    values = [value for value, *_ in residuals(rows, setting)]
    _draw_groups(
        axes, values, lambda v: [r["error"] for r in rows if r["settings"].get(setting) == v]
    )
    axes.set_title(setting.replace("_", " "), fontsize=9)


def _draw_groups(
    axes: "Axes", names: Sequence[Any], errors_of: Callable[[Any], list[float]]
) -> None:
    """Errors of each group as dots, its median as a bar."""
    axes.axhline(0.0, color="#888888", linewidth=0.8)
    for x, name in enumerate(names):
        errors = [100 * e for e in errors_of(name)]
        axes.scatter([x] * len(errors), errors, s=6, alpha=0.35, color="#0072b2")
        axes.plot([x - 0.3, x + 0.3], [median(errors)] * 2, color="#d55e00")
    axes.set_xticks(range(len(names)), [str(n) for n in names], rotation=60, fontsize=7)
    axes.set_ylabel("error, %", fontsize=8)


def _sources(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["source_key"] for row in rows))


def _percent(value: float | None, signed: bool = False, digits: int = 1) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.{digits}f}%" if signed else f"{100 * value:.{digits}f}%"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
