"""`clustersim compare`: what is printed and written, and what wrong input gets."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from validation.cli import app

ROOT = Path(__file__).parents[2]
RUN = str(ROOT / "examples/h200-llama-7b-width.yaml")
LOG = str(ROOT / "tests/fixtures/h200_7b_width.log")
KERNELS = str(ROOT / "tests/fixtures/h200_70b_width_kernels.csv.gz")


def compare(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["compare", *arguments])


def test_a_log() -> None:
    done = compare(RUN, LOG)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    (step,) = [line.split() for line in lines if line.strip().startswith("step time")]
    assert step[2:4] == ["714.4", "ms"]
    assert abs(float(step[-1].rstrip("%"))) < 3
    assert any(line.strip().startswith("memory, max allocated") for line in lines)
    assert "What differs most" in lines
    assert "not of the same run" not in done.output


def test_a_trace() -> None:
    done = compare(RUN.replace("7b", "70b"), KERNELS, "--set", "training.global_batch_size=2")
    assert done.exit_code == 0, done.output
    for name in ("matrix products", "attention", "memory-bound kernels", "optimizer", "idle"):
        assert f"\n  {name}" in done.output


def test_contradictions_are_printed() -> None:
    done = compare(RUN, LOG, "--set", "training.global_batch_size=4")
    assert done.exit_code == 0
    assert "Log and run file are not of the same run" in done.output
    assert "num_microbatches is 8 in the log, 4 in the run file" in " ".join(done.output.split())


def test_json_on_stdout_is_alone() -> None:
    done = compare(RUN, LOG, "--json", "-")
    plain = json.loads(done.output)
    assert plain["kind"] == "megatron_log"
    assert plain["measured"]["step_time_s"] == pytest.approx(0.71435)
    assert abs(plain["error"]["step_time_s"]) < 0.03
    assert plain["contradictions"] == []


def test_json_in_a_file(tmp_path: Path) -> None:
    done = compare(RUN, LOG, "--json", str(tmp_path / "out.json"), "--quiet")
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["terms"] == []


@pytest.mark.parametrize(
    ("run", "log", "words"),
    [
        (RUN, "missing.log", "missing.log: cannot be read"),
        (RUN, RUN, "has no iteration; looked for"),
        ("missing.yaml", LOG, "missing.yaml"),
        (RUN, str(ROOT), "cannot be read"),
    ],
)
def test_wrong_input(run: str, log: str, words: str) -> None:
    done = compare(run, log)
    assert done.exit_code == 2
    assert words in done.output
    assert "Traceback" not in done.output


def test_output_that_cannot_be_written() -> None:
    done = compare(RUN, LOG, "--json", "/nowhere/out.json")
    assert done.exit_code == 2
    assert "/nowhere" in done.output


def test_the_whole_command_is_quick_and_needs_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "validation", "compare", RUN, LOG],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "step time" in done.stdout
