"""The whole `clustersim` command: the simulator's commands, and those that compare with reality.

Validation stands on top of the simulator and may not be imported by it, so the program's entry
point is here. What does the work is imported inside the commands.
"""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.cli import (
    Json,
    Profile,
    Quiet,
    RunFile,
    Set,
    app,
    check_outputs,
    main,
    overrides,
    summary_console,
    write_json,
)
from simulator.errors import ConfigError
from simulator.importing.command import import_app
from simulator.study.command import whatif

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["app", "import_app", "main", "whatif"]

Tables = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUNS.csv]...", help="Tables of measured runs; those shipped if none."),
]


@app.command()
def validate(
    tables: Tables = None,
    collectives: Annotated[
        str | None,
        typer.Option("--collectives", metavar="POINTS.csv", help="Score measured collectives."),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option("--kernels", metavar="TABLE.csv", help="Score a table of measured kernels."),
    ] = None,
    json_: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all rows as JSON; - is stdout."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write a page or chart, .html or .png."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option("--profile", metavar="PROFILE.yaml", help="Predict under what it sets."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Rows at a time; as many as cores if left out."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
) -> None:
    """Predict measured runs, and say how far off the predictions are."""
    from simulator.files import check_output

    _check_modes(tables, collectives, kernels, report)
    check_outputs(None, {"--json": json_})
    if report is not None:
        check_output(Path(report), "--report", (".html", ".htm", ".png"))
    shows = not quiet and json_ != "-"
    if collectives is not None or kernels is not None:
        _points(collectives, kernels, json_, shows)
        return
    from validation import validation_report
    from validation.profiles import profile_fields
    from validation.validate import report_json, validate_tables

    changes = {} if profile is None else profile_fields(profile)
    with _progress() as progress:
        scored = validate_tables([Path(t) for t in tables or ()], progress, processes, changes)
    result = report_json(scored)
    if json_ is not None:
        write_json(json_, result)
    if report is not None:
        validation_report.write_report(Path(report), result)
    if shows:
        validation_report.print_report(result, summary_console())


@app.command()
def compare(
    run_file: RunFile,
    log: Annotated[
        str,
        typer.Argument(metavar="LOG", help="A Megatron-LM log, or a profiler trace (.json[.gz])."),
    ],
    set_: Set = None,
    profile: Profile = None,
    json_: Json = None,
    quiet: Quiet = False,
) -> None:
    """Put a trainer's own log beside the prediction, term by term."""
    check_outputs(run_file, {"--json": json_})
    from simulator.loading import load_run
    from validation.compare import compare_file

    run = load_run(run_file, overrides(set_, profile))
    with _working(f"simulating {run.name}"):
        comparison = compare_file(run, Path(log))
    if json_ is not None:
        write_json(json_, comparison.to_json())
    if not quiet and json_ != "-":
        from validation.compare_report import print_comparison

        print_comparison(comparison, summary_console())


@app.command()
def calibrate(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="PROFILE.yaml", help="The profile to write.")
    ],
    tables: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUNS.csv]...", help="Tables of measured runs."),
    ] = None,
    logs: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            metavar="RUN.yaml=LOG",
            help="A Megatron-LM log or profiler trace, and its run; may be repeated.",
        ),
    ] = None,
    collectives: Annotated[
        list[str] | None,
        typer.Option("--collectives", metavar="POINTS.csv", help="Measured collectives."),
    ] = None,
    kernels: Annotated[
        list[str] | None,
        typer.Option("--kernels", metavar="TABLE.csv", help="Measured kernels."),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option("--fit", metavar="NAME", help="A parameter to fit; all if none is named."),
    ] = None,
    folds: Annotated[int, typer.Option("--folds", min=2, help="Of the cross-validation.")] = 5,
    seed: Annotated[int, typer.Option("--seed", help="Of the folds.")] = 0,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Simulations at a time.")
    ] = None,
    json_: Json = None,
    quiet: Quiet = False,
) -> None:
    """Fit a hardware profile to real runs, logs, traces, collectives and kernels."""
    from simulator.files import check_output

    check_output(Path(output), "--output", (".yaml", ".yml"))
    check_outputs(None, {"--json": json_})
    from validation.calibration.calibrate import calibrate as fit_profile
    from validation.calibration.observations import read_observations
    from validation.calibration.parameters import chosen_parameters
    from validation.calibration.report import print_calibration, write_profile

    chosen = chosen_parameters(parameters or ())
    with _working("calibrating"):
        observations = read_observations(
            _paths(tables), _pairs(logs), _paths(collectives), _paths(kernels)
        )
        found = fit_profile(observations, chosen, folds=folds, seed=seed, processes=processes)
    write_profile(Path(output), found)
    if json_ is not None:
        write_json(json_, found.to_json())
    if not quiet and json_ != "-":
        print_calibration(found, summary_console())


def _paths(names: list[str] | None) -> list[Path]:
    return [Path(name) for name in names or ()]


def _pairs(texts: list[str] | None) -> list[tuple[Path, Path]]:
    pairs = []
    for text in texts or ():
        run_file, equals, log = text.partition("=")
        if not (run_file and equals and log):
            raise ConfigError(f"--log {text}: must read RUN.yaml=LOG")
        pairs.append((Path(run_file), Path(log)))
    return pairs


def _points(collectives: str | None, kernels: str | None, json_: str | None, shows: bool) -> None:
    from validation.points import score_collectives, score_kernels
    from validation.validation_report import print_points

    points = []
    if collectives is not None:
        points += score_collectives(Path(collectives))
    if kernels is not None:
        points += score_kernels(Path(kernels))
    if json_ is not None:
        write_json(json_, {"points": [point.to_json() for point in points]})
    if shows:
        print_points(points, summary_console())


def _check_modes(
    tables: list[str] | None, collectives: str | None, kernels: str | None, report: str | None
) -> None:
    if collectives is None and kernels is None:
        return
    if tables:
        raise ConfigError("score tables of runs, or --collectives and --kernels, not both at once")
    if report is not None:
        raise ConfigError("--report is of runs; there is none of --collectives and --kernels")


@contextlib.contextmanager
def _progress() -> "Iterator[Callable[[int, int], None]]":
    """A bar on a terminal, nothing in a pipe; called with rows done and rows in all."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        "simulating", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as bar:  # fmt: skip
        task = bar.add_task("rows", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def _working(words: str) -> "Iterator[None]":
    """A sign of life on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


if __name__ == "__main__":
    main()
