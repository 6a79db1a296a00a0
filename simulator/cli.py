"""The `clustersim` command: options in, files and summaries out. Nothing is computed here.

Exit status: 0 done; 1 the run is valid but impossible; 2 the input is wrong. Modules that do the
work are imported inside the commands, so that `--help` answers at once.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from simulator.errors import ConfigError, Place, Problem, SimulationError

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.runspec import RunSpec
    from simulator.simulate import Result

IMPOSSIBLE = 1
WRONG_INPUT = 2
INTERRUPTED = 128 + 2  # as shells report SIGINT
CLOSED_PIPE = 128 + 13  # as shells report SIGPIPE
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h


class _Commands(TyperGroup):
    """Turns the program's exceptions into messages and exit statuses."""

    def invoke(self, ctx: Any) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except ConfigError as error:
            raise _stop(WRONG_INPUT, str(error)) from None
        except SimulationError as error:
            raise _stop(IMPOSSIBLE, f"the run cannot be simulated: {error}") from None
        except MemoryError:
            raise _stop(IMPOSSIBLE, "out of memory: too large to simulate here") from None
        except KeyboardInterrupt:
            raise _stop(INTERRUPTED, "interrupted") from None
        except BrokenPipeError:
            _abandon_stdout()
            raise typer.Exit(CLOSED_PIPE) from None
        except OSError as error:  # a full disk behind stdout, say
            _abandon_stdout()
            raise _stop(WRONG_INPUT, f"cannot be written: {error}") from None
        return value


def _stop(status: int, message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(status)


def _abandon_stdout() -> None:
    """Let nothing more be flushed into an output that is gone, also not at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Simulate the training of large language models on GPU clusters.",
)

RunFile = Annotated[str, typer.Argument(metavar="RUN.yaml", help="The run file.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override a value of the run file, such as cluster.num_nodes=4; may be repeated.",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="Take the cluster's profile from a file that calibrate wrote, or from the catalog.",
    ),
]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")]
NoFold = Annotated[
    bool, typer.Option("--no-fold", help="Simulate every rank, not one of each kind.")
]
RequireFit = Annotated[
    bool, typer.Option("--require-fit", help="Exit with 1 if the run does not fit in memory.")
]


@app.command()
def simulate(
    run_file: RunFile,
    set_: Set = None,
    profile: Profile = None,
    json_: Json = None,
    quiet: Quiet = False,
    gantt: Annotated[
        str | None,
        typer.Option(
            "--gantt", metavar="FILE", help="Draw the step as a Gantt chart, .png or .svg."
        ),
    ] = None,
    gantt_window: Annotated[
        str | None,
        typer.Option(
            "--gantt-window", metavar="START:END", help="Draw this part of it, such as 0.5:900ms."
        ),
    ] = None,
    gantt_stage: Annotated[
        int | None,
        typer.Option("--gantt-stage", metavar="N", help="Draw the streams of one stage, from 0."),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option("--trace", metavar="FILE", help="Write a trace for Perfetto, .json."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="Write a page with all results, .html."),
    ] = None,
    no_fold: NoFold = False,
    require_fit: RequireFit = False,
) -> None:
    """Predict one training step."""
    outputs = {"--json": json_, "--gantt": gantt, "--trace": trace, "--report": report}
    check_outputs(run_file, outputs)
    window = _window(gantt_window, gantt_stage, gantt)
    run = _load(run_file, overrides(set_, profile))
    _check_stage(run, gantt_stage)
    result = _simulated(run, not no_fold)
    _check_window(window, result)
    if gantt is not None:
        from simulator.plots import write_gantt

        _write(
            gantt, lambda path: write_gantt(result.trace, path, window=window, stage=gantt_stage)
        )
    if trace is not None:
        from simulator.chrome_trace import write_chrome_trace

        _write(trace, lambda path: write_chrome_trace(result.trace, path))
    if report is not None:
        from simulator.report import write_html

        _write(report, lambda path: write_html(result, path))
    _write_result(result, json_)
    if _shows_summary(json_, quiet):
        from simulator.report import print_summary

        print_summary(result, summary_console())
    _require_fit(result, require_fit)


@app.command()
def explain(
    run_file: RunFile,
    set_: Set = None,
    profile: Profile = None,
    json_: Json = None,
    quiet: Quiet = False,
    no_fold: NoFold = False,
) -> None:
    """Say why the MFU is what it is: a waterfall from peak to achieved."""
    check_outputs(run_file, {"--json": json_})
    result = _simulated(_load(run_file, overrides(set_, profile)), not no_fold)
    _write_result(result, json_)
    if _shows_summary(json_, quiet):
        from simulator.report import print_explain

        print_explain(result, summary_console())


@app.command()
def memory(
    run_file: RunFile,
    set_: Set = None,
    profile: Profile = None,
    json_: Json = None,
    quiet: Quiet = False,
    require_fit: RequireFit = False,
) -> None:
    """Memory per GPU and pipeline stage, and whether it fits."""
    check_outputs(run_file, {"--json": json_})
    result = _simulated(_load(run_file, overrides(set_, profile)), True)
    _write_result(result, json_)
    if _shows_summary(json_, quiet):
        from simulator.report import print_memory

        print_memory(result, summary_console())
    _require_fit(result, require_fit)


@app.command()
def catalog(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="gpus, nodes, fabrics or models.")
    ] = None,
    json_: Json = None,
) -> None:
    """List the GPUs, nodes, fabrics and models that ship."""
    from simulator.catalog import catalog_json, check_kind, print_catalog
    from simulator.preset_loading import KINDS

    check_outputs(None, {"--json": json_})
    kinds = KINDS if kind is None else (check_kind(kind),)
    if json_ is not None:
        write_json(json_, catalog_json(kinds))
    if json_ != "-":
        print_catalog(kinds, summary_console())


@app.command()
def schema() -> None:
    """Print the JSON Schema of the run file, for editors."""
    from simulator.schema import run_file_schema

    write_json("-", run_file_schema())


def main() -> None:
    """Run the command line. A fault of our own is told in one line, with CLUSTERSIM_TRACEBACK=1
    in full."""
    gc.disable()  # one short job whose objects live to its end: looking for garbage is waste
    try:
        app(prog_name="clustersim")
    except Exception as error:
        if os.environ.get("CLUSTERSIM_TRACEBACK"):
            raise
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f" at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
        typer.echo(
            f"clustersim: internal error: {type(error).__name__}: {error}{where}\n"
            "This is a fault of the program; CLUSTERSIM_TRACEBACK=1 shows more.",
            err=True,
        )
        sys.exit(INTERNAL_ERROR)
    finally:
        gc.freeze()  # nor when the interpreter ends: 0.2 s of a headline step


def overrides(set_: list[str] | None, profile: str | None) -> list[str]:
    """Settings to lay over a run file; a profile's path is relative to the working directory."""
    if profile is None:
        return set_ or []
    is_file = "/" in profile or profile.lower().endswith((".yaml", ".yml", ".json"))
    name = str(Path(profile).resolve()) if is_file else profile
    return [f"cluster.profile={json.dumps(name)}", *(set_ or [])]


def _load(run_file: str, overrides: list[str]) -> "RunSpec":
    from simulator.loading import load_run

    return load_run(run_file, overrides or ())


def _simulated(run: "RunSpec", fold: bool) -> "Result":
    """Simulate, with a sign of life where somebody watches."""
    from simulator.simulate import simulate as simulate_run

    if not sys.stderr.isatty():
        return simulate_run(run, fold=fold)
    from rich.console import Console

    with Console(stderr=True).status(f"simulating {run.name}"):
        return simulate_run(run, fold=fold)


def summary_console(*, to_stderr: bool = False) -> "Console":
    """Where summaries are printed: stdout, unless that carries a file's text."""
    from rich.console import Console

    class Summary(Console):
        def on_broken_pipe(self) -> None:
            """Leave it to `_Commands`; rich would exit with 1."""
            raise BrokenPipeError

    return Summary(stderr=to_stderr)


def _write_result(result: "Result", json_: str | None) -> None:
    if json_ is not None:
        write_json(json_, result.to_json())


def _shows_summary(json_: str | None, quiet: bool) -> bool:
    """Whether stdout is free for people."""
    return not quiet and json_ != "-"


def _require_fit(result: "Result", required: bool) -> None:
    if required and not result.to_json()["memory"]["fits"]:
        typer.echo("does not fit in memory, and --require-fit was given", err=True)
        raise typer.Exit(IMPOSSIBLE)


_PICTURE = (".png", ".svg")
_ENDINGS = {
    "--gantt": _PICTURE, "--trace": (".json",), "--report": (".html", ".htm"),
    "--csv": (".csv",), "--parquet": (".parquet",), "--plot": _PICTURE, "--heatmap": _PICTURE,
}  # fmt: skip


def check_outputs(run_file: str | None, outputs: Mapping[str, str | None]) -> None:
    """Refuse what cannot be written before anything is computed."""
    from simulator.files import check_output

    problems: list[Problem] = []
    taken = {} if run_file is None else {os.path.realpath(run_file): "the run file"}
    for option, name in outputs.items():
        if name is None or (option == "--json" and name == "-"):
            continue
        try:
            check_output(Path(name), option, _ENDINGS.get(option, ()))
        except ConfigError as error:
            problems.extend(error.problems)
        other = taken.setdefault(os.path.realpath(name), option)
        if other != option and not name.startswith("/dev/"):
            problems.append(Problem(f"is also {other}", place=Place(f"{option} {name}")))
    if problems:
        raise ConfigError(problems)


def _window(text: str | None, stage: int | None, gantt: str | None) -> tuple[float, float] | None:
    """Read START:END; either may carry a unit, a number alone is in seconds."""
    if gantt is None and (text is not None or stage is not None):
        raise ConfigError("--gantt-window and --gantt-stage need --gantt FILE")
    if text is None:
        return None
    from hardware.quantities import parse_quantity

    start, colon, end = text.partition(":")
    try:
        window = parse_quantity(start, {"s": 1.0}), parse_quantity(end, {"s": 1.0})
    except ValueError as error:
        raise ConfigError(
            f"--gantt-window {text}: write START:END, such as 0.5:900ms; {error}"
        ) from None
    if not colon or not 0 <= window[0] < window[1]:
        raise ConfigError(f"--gantt-window {text}: START must be at least 0 and below END")
    return window


def _check_window(window: tuple[float, float] | None, result: "Result") -> None:
    if window is not None and window[0] >= result.trace.step_time_s:
        end = result.trace.step_time_s
        raise ConfigError(f"--gantt-window: starts after the step's end at {end:.6g} s")


def _check_stage(run: "RunSpec", stage: int | None) -> None:
    stages = run.parallelism.pipeline_model_parallel_size
    if stage is not None and not 0 <= stage < stages:
        raise ConfigError(
            f"--gantt-stage {stage}: there is no such stage; choose 0 to {stages - 1}"
        )


def _write(name: str, write: Callable[[Path], object]) -> None:
    from simulator.files import whole_file

    with whole_file(Path(name)) as scratch:
        write(scratch)


def write_json(name: str, value: object) -> None:
    """Write plain data to a file, whole or not at all, or to stdout (-)."""
    import json

    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if name == "-":
        sys.stdout.write(text)
        return
    from simulator.files import write_text

    write_text(Path(name), text)
