"""The commands: options, exit statuses, what goes where. The simulation itself is a stand-in."""

import json
import os
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulator.errors import SimulationError
from simulator.trace import Trace
from validation.cli import app

ROOT = Path(__file__).parents[2]
GOOD = ROOT / "tests/unit/simulator/good_run.yaml"
RUNNER = CliRunner()
TRACE = Trace("stand-in", 2.0, 2, ())


@dataclass
class StandIn:
    """What `simulate` gives back."""

    run: Any
    fold: bool
    fits: bool = True
    trace: Trace = TRACE

    def to_json(self) -> dict[str, Any]:
        return {"step_time_s": 2.0, "memory": {"fits": self.fits}, "fold": self.fold}


class Calls(list[tuple[str, Any]]):
    fits = True
    raises: BaseException | None = None


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Stand-ins for the modules behind the commands, and a record of their calls."""
    calls = Calls()

    def simulate(run: Any, fold: bool = True) -> StandIn:
        calls.append(("simulate", fold))
        if calls.raises is not None:
            raise calls.raises
        return StandIn(run, fold, calls.fits)

    def write_gantt(trace: Trace, path: Path, *, window: Any, stage: Any) -> None:
        calls.append(("gantt", (path.suffix, window, stage)))
        path.write_bytes(b"picture")

    def printer(name: str) -> Callable[..., None]:
        def show(result: Any, console: Any) -> None:
            console.print(f"this is the {name}")

        return show

    fakes: dict[str, dict[str, Any]] = {
        "simulator.simulate": {"simulate": simulate},
        "simulator.plots": {"write_gantt": write_gantt},
        "simulator.chrome_trace": {
            "write_chrome_trace": lambda trace, path: path.write_text('{"traceEvents": []}')
        },
        "simulator.report": {
            "print_summary": printer("summary"),
            "print_memory": printer("memory"),
            "print_explain": printer("waterfall"),
            "write_html": lambda result, path: path.write_text("<html>"),
        },
    }
    for name, members in fakes.items():
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def clustersim(*arguments: object) -> Any:
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The message of a call that must exit with 2."""
    result = clustersim(*arguments)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    return str(result.stderr)


@pytest.mark.parametrize(
    ("command", "words"), [("simulate", "summary"), ("explain", "waterfall"), ("memory", "memory")]
)
def test_each_command_prints_its_own(command: str, words: str, calls: Calls) -> None:
    result = clustersim(command, GOOD)
    assert (result.exit_code, result.stdout) == (0, f"this is the {words}\n")
    assert clustersim(command, GOOD, "--quiet").output == ""


@pytest.mark.parametrize("command", ["simulate", "explain", "memory"])
def test_json_alone_on_stdout(command: str, calls: Calls, tmp_path: Path) -> None:
    result = clustersim(command, GOOD, "--json", "-")
    assert json.loads(result.stdout)["step_time_s"] == 2.0
    result = clustersim(command, GOOD, "--json", tmp_path / "out.json")
    assert "this is the" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["step_time_s"] == 2.0


def test_files_of_simulate(calls: Calls, tmp_path: Path) -> None:
    names = {"--gantt": "a.svg", "--trace": "b.json", "--report": "c.html", "--json": "d.json"}
    options = [part for option, name in names.items() for part in (option, tmp_path / name)]
    window = ["--gantt-window", "100ms:1.5", "--gantt-stage", "1"]
    result = clustersim("simulate", GOOD, *options, *window, "--quiet", "--no-fold")
    assert (result.exit_code, result.output) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names.values())
    assert calls == [("simulate", False), ("gantt", (".svg", (0.1, 1.5), 1))]
    assert json.loads((tmp_path / "b.json").read_text()) == {"traceEvents": []}


def test_overrides_reach_the_run(calls: Calls) -> None:
    message = refused("simulate", GOOD, "--set", "model.num_layers=x", "--set", "seed=y")
    assert "--set model.num_layers=x: 'x' is not a whole number" in message
    assert "--set seed=y: 'y' is not a whole number" in message


def test_require_fit(calls: Calls) -> None:
    calls.fits = False
    assert clustersim("simulate", GOOD, "--quiet").exit_code == 0
    for command in ("simulate", "memory"):
        result = clustersim(command, GOOD, "--quiet", "--require-fit")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "does not fit" in result.stderr
    calls.fits = True
    assert clustersim("simulate", GOOD, "--quiet", "--require-fit").exit_code == 0


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (SimulationError("0 waits for 1"), 1, "0 waits for 1"),
        (MemoryError(), 1, "out of memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_a_run_that_stops(error: BaseException, status: int, words: str, calls: Calls) -> None:
    calls.raises = error
    result = clustersim("simulate", GOOD)
    assert (result.exit_code, result.stdout) == (status, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--gantt", "{}/a.gif"], "'.gif' is not allowed; choose a name that ends in .png or .svg"),
        (["--gantt", "{}/a"], "no ending is not allowed"),
        (["--trace", "{}/a.txt"], "'.txt' is not allowed; choose a name that ends in .json"),
        (["--report", "{}/a.pdf"], "choose a name that ends in .html or .htm"),
        (["--json", "{}/none/a.json"], "/none does not exist"),
        (["--json", "{}"], "is a directory"),
        (["--json", "{}/a.json", "--trace", "{}/a.json"], "--trace {}/a.json: is also --json"),
        (["--gantt-window", "0:1"], "need --gantt FILE"),
        (["--gantt", "{}/a.png", "--gantt-window", "1"], "write START:END"),
        (["--gantt", "{}/a.png", "--gantt-window", "1:x"], "'x' is not a quantity"),
        (["--gantt", "{}/a.png", "--gantt-window", "2:1"], "START must be at least 0"),
        (["--gantt", "{}/a.png", "--gantt-window", "-1:1"], "START must be at least 0"),
        (["--gantt", "{}/a.png", "--gantt-window", "nan:1"], "'nan' is not a quantity"),
        (["--gantt", "{}/a.png", "--gantt-stage", "2"], "no such stage; choose 0 to 1"),
        (["--gantt", "{}/a.png", "--gantt-stage", "x"], "--gantt-stage"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_options_are_refused_before_simulating(
    options: list[str], expected: str, calls: Calls, tmp_path: Path
) -> None:
    filled = [option.replace("{}", str(tmp_path)) for option in options]
    message = refused("simulate", GOOD, *filled)
    assert expected.replace("{}", str(tmp_path)) in message
    assert calls == []
    assert list(tmp_path.iterdir()) == []


def test_a_window_after_the_step(calls: Calls, tmp_path: Path) -> None:
    message = refused("simulate", GOOD, "--gantt", tmp_path / "a.png", "--gantt-window", "3:4")
    assert "starts after the step's end at 2 s" in message
    assert list(tmp_path.iterdir()) == []


def test_the_run_file_is_not_overwritten(calls: Calls, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    run.write_text(GOOD.read_text())
    (tmp_path / "link.json").symlink_to(run)
    assert "is also the run file" in refused("simulate", run, "--json", tmp_path / "link.json")
    assert run.read_text() == GOOD.read_text()


@pytest.mark.parametrize("arguments", [["simulate"], ["nothing"], ["simulate", "a", "b"]])
def test_usage_errors(arguments: list[str]) -> None:
    assert "Usage: " in refused(*arguments)


def test_no_run_file(tmp_path: Path) -> None:
    for command in ("simulate", "explain", "memory"):
        assert "cannot be read: No such file" in refused(command, tmp_path / "none.yaml")
        assert "is a directory" in refused(command, tmp_path)


def test_catalog() -> None:
    result = clustersim("catalog", "gpus")
    assert result.exit_code == 0
    assert "h100-sxm" in result.stdout
    values = json.loads(clustersim("catalog", "fabrics", "--json", "-").stdout)
    assert list(values) == ["fabrics"]
    assert values["fabrics"]["ndr-rail-optimized"]["link_bandwidth"] == 400e9 / 8
    message = refused("catalog", "gpu")
    kinds = "gpus, nvlinks, nodes, fabrics, profiles, models"
    assert f"'gpu' is not a kind; choose {kinds}; did you mean 'gpus'?" in message


def test_help_lists_what_works() -> None:
    text = clustersim("--help").stdout
    listed = {line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line}
    assert listed == {
        "simulate", "explain", "memory", "catalog", "schema", "validate", "compare", "whatif",
        "import", "calibrate",
    }  # fmt: skip


# real processes


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "simulator", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_malformed_file_in_a_process(tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(GOOD.read_text().replace("num_layers: 8", "num_layers: -8"))
    done = process("simulate", run)
    assert (done.returncode, done.stdout) == (2, "")
    expected = "model.num_layers: '-8' is not a whole number above 0 and at most 10000"
    assert done.stderr == f"{run}:5: {expected}\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['clustersim', '--help']\n"
        "from simulator.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'pydantic', 'numpy', 'simpy', 'networkx', 'matplotlib', 'yaml', 'rich'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.benchmark
def test_help_answers_at_once() -> None:
    best = min(_seconds_of_help() for _ in range(5))
    assert best < 0.4


def _seconds_of_help() -> float:
    start = time.perf_counter()
    process("--help")
    return time.perf_counter() - start


def test_a_reader_that_leaves() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "simulator", "schema"],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "simulator", "schema"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "cannot be written: [Errno 28] No space left on device\n"
