"""`clustersim whatif`: options in, a study's table and pictures out."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import (
    Json,
    NoFold,
    Quiet,
    RunFile,
    Set,
    app,
    check_outputs,
    summary_console,
    write_json,
)
from simulator.errors import ConfigError, Place, Problem

if TYPE_CHECKING:
    from simulator.study.whatif import Answer, Execute, Study

FILE = "FILE"


@app.command()
def whatif(
    run_file: RunFile,
    vary: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="PATH=V1,V2,...",
            help="Try these values, or factors (x0.5), of a setting; may be repeated.",
        ),
    ],
    set_: Set = None,
    zip_: Annotated[
        bool, typer.Option("--zip", help="Vary all settings together, not in every combination.")
    ] = False,
    json_: Json = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar=FILE, help="Write the table, .csv.")
    ] = None,
    parquet: Annotated[
        str | None, typer.Option("--parquet", metavar=FILE, help="Write the table, .parquet.")
    ] = None,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar=FILE, help="Draw each setting's curves, .png or .svg."),
    ] = None,
    heatmap: Annotated[
        str | None,
        typer.Option(
            "--heatmap", metavar=FILE, help="Draw a study of two settings as a map, .png or .svg."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar=FILE,
            help="SQLite file that remembers each point; RUN.whatif.sqlite here if left out.",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Points at a time; as many as cores if left out."),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", metavar="ADDRESS", help="Simulate on a Dask cluster: tcp://host:8786."
        ),
    ] = None,
    no_fold: NoFold = False,
    quiet: Quiet = False,
) -> None:
    """Vary settings of a run: tables and pictures. A study that is stopped goes on where it was."""
    remembered = store or f"{Path(run_file).stem}.whatif.sqlite"
    check_outputs(
        run_file,
        {
            "--json": json_, "--csv": csv, "--parquet": parquet, "--plot": plot,
            "--heatmap": heatmap, "--store": remembered,
        },
    )  # fmt: skip
    study = _study(run_file, set_, vary, zip_, not no_fold)
    if heatmap is not None and not study.is_two_way:
        raise ConfigError("--heatmap needs two --vary options, and no --zip")
    if scheduler is not None and processes is not None:
        raise ConfigError("--scheduler and --processes: choose one, the cluster or this machine")
    answer = _answer(study, Path(remembered), _executor(scheduler, processes))
    for note in answer.notes:
        typer.echo(note, err=True)
    _check_any(answer)
    title = _title(study)
    _write(answer, title, {"csv": csv, "parquet": parquet, "plot": plot, "heatmap": heatmap})
    if json_ is not None:
        from simulator.study.rows import answer_json

        write_json(json_, answer_json(answer))
    if not quiet and json_ != "-":
        from simulator.study.summary import print_study

        print_study(answer, summary_console(), title)


def _study(
    run_file: str, overrides: list[str] | None, vary: list[str], zipped: bool, fold: bool
) -> "Study":
    from simulator.study.varied import parse_varied
    from simulator.study.whatif import Study

    problems: list[Problem] = []
    varied = []
    for text in vary:
        try:
            varied.append(parse_varied(text))
        except ConfigError as error:
            problems.extend(error.problems)
    if problems:
        raise ConfigError(problems)
    return Study(run_file, tuple(overrides or ()), tuple(varied), zipped, fold)


def _executor(scheduler: str | None, processes: int | None) -> "Execute | None":
    if scheduler is not None:
        from simulator.study.dask_cluster import run_on_cluster

        return partial(run_on_cluster, address=scheduler)
    if processes is not None:
        from simulator.study.processes import run_in_processes

        return partial(run_in_processes, processes=processes)
    return None


def _answer(study: "Study", path: Path, execute: "Execute | None") -> "Answer":
    from simulator.study.store import open_store
    from simulator.study.whatif import run_study

    with open_store(path) as store, _progress() as progress:
        return run_study(study, store, execute, progress)


def _check_any(answer: "Answer") -> None:
    """A study in which no point is valid asks for something that cannot be."""
    if all(row.outcome.status == "invalid" for row in answer.rows):
        reasons = dict.fromkeys(row.outcome.reason for row in answer.rows)
        place = Place("--vary")
        raise ConfigError([Problem(reason, place=place) for reason in list(reasons)[:8]])


def _title(study: "Study") -> str:
    from simulator.loading import load_unchecked

    try:
        return load_unchecked(study.run_file, study.overrides).name
    except ConfigError:  # a study may set what the run file lacks
        return Path(study.run_file).stem


def _write(answer: "Answer", title: str, names: dict[str, str | None]) -> None:
    """Write the files that were asked for."""
    paths = {option: Path(name) for option, name in names.items() if name is not None}
    if "csv" in paths:
        from simulator.study.rows import write_csv

        write_csv(answer, paths["csv"])
    if "parquet" in paths:
        from simulator.study.rows import write_parquet

        write_parquet(answer, paths["parquet"])
    if "plot" in paths:
        from simulator.study.charts import write_curves

        write_curves(answer, paths["plot"], title)
    if "heatmap" in paths:
        from simulator.study.heatmaps import write_heatmaps

        write_heatmaps(answer, paths["heatmap"], title)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar with an estimate of the rest on a terminal, nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        "simulating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("points", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
