"""`clustersim whatif` from the command line: files, refusals, and studies that are killed."""

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from validation.cli import app

ROOT = Path(__file__).parents[2]
TOY = ROOT / "examples/toy-2-nodes.yaml"
LINK = "cluster.fabric.link_bandwidth"


def whatif(tmp_path: Path, *options: object, run_file: Path = TOY) -> Any:
    store = ("--store", tmp_path / "study.sqlite")
    arguments = ["whatif", run_file, *store, "--processes", 1, *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_all_outputs(tmp_path: Path) -> None:
    files = {
        "--csv": "a.csv", "--parquet": "a.parquet", "--json": "a.json", "--plot": "a.png",
        "--heatmap": "b.svg",
    }  # fmt: skip
    options = [part for option, name in files.items() for part in (option, tmp_path / name)]
    vary = ["--vary", f"{LINK}=x0.5,x1,x2", "--vary", "cluster.num_nodes=2,3"]
    done = whatif(tmp_path, *vary, *options)
    assert done.exit_code == 0, done.output
    assert "invalid (3 points): " in " ".join(done.stdout.split())
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*files.values(), "study.sqlite"])
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["status"] for row in rows] == ["ok", "invalid"] * 3
    assert [float(row[LINK]) for row in rows] == [12.5e9, 12.5e9, 25e9, 25e9, 50e9, 50e9]
    slow, same, fast = (float(row["step_time_s"]) for row in rows[::2])
    assert slow > same >= fast
    points = json.loads((tmp_path / "a.json").read_text())["points"]
    assert points[2]["result"]["step_time_s"] == same


def test_a_point_is_what_simulate_says(tmp_path: Path) -> None:
    done = whatif(tmp_path, "--vary", "training.micro_batch_size=2", "--json", "-")
    found = json.loads(done.stdout)["points"][0]["result"]
    arguments = ["simulate", str(TOY), "--set", "training.micro_batch_size=2", "--json", "-"]
    result = json.loads(CliRunner().invoke(app, arguments).stdout)
    del result["simulation"]["wall_time_s"]
    assert found == result


def test_zipped(tmp_path: Path) -> None:
    vary = ["--vary", "cluster.num_nodes=2,x2", "--vary", "training.global_batch_size=32,x2"]
    done = whatif(tmp_path, "--zip", *vary, "--json", "-")
    points = json.loads(done.stdout)["points"]
    assert [point["result"]["layout"]["num_gpus"] for point in points] == [16, 32]


def test_the_second_time_is_remembered(tmp_path: Path) -> None:
    vary = ["--vary", f"{LINK}=x1,x2"]
    first = whatif(tmp_path, *vary, "--json", tmp_path / "1.json")
    again = whatif(tmp_path, *vary, "--json", tmp_path / "2.json")
    assert "known from before" not in first.stdout
    assert "2 points · 2 known from before" in again.stdout
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_a_changed_run_file_is_told(tmp_path: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text(TOY.read_text())
    whatif(tmp_path, "--vary", "seed=1,2", run_file=run_file)
    run_file.write_text(TOY.read_text().replace("micro_batch_size: 1", "micro_batch_size: 2"))
    done = whatif(tmp_path, "--vary", "seed=1,2", run_file=run_file)
    assert done.exit_code == 0
    assert "has changed: 2 points" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vary", "seed"], "--vary seed: must read PATH=V1,V2,..."),
        (["--vary", "seed=1", "--vary", "seed=2"], "is varied twice"),
        (["--zip", "--vary", "seed=1", "--vary", "name=a,b"], "as many values of each"),
        (["--vary", "sead=1,2"], "--vary: sead: unknown key; did you mean 'seed'?"),
        (["--vary", "seed=1", "--heatmap", "{}/a.png"], "--heatmap needs two --vary options"),
        (["--vary", "seed=1", "--plot", "{}/a.gif"], "'.gif' is not allowed"),
        (["--vary", "seed=1", "--csv", "{}/a.txt"], "'.txt' is not allowed"),
        (["--vary", "seed=1", "--csv", "{}/none/a.csv"], "none does not exist"),
        (["--vary", "seed=1", "--store", "{}"], "is a directory"),
        (["--vary", "seed=1", "--scheduler", "tcp://localhost:1"], "choose one"),
        ([], "--vary"),
    ],
)
def test_wrong_input(options: list[str], words: str, tmp_path: Path) -> None:
    done = whatif(tmp_path, *(option.replace("{}", str(tmp_path)) for option in options))
    assert done.exit_code == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_where_results_go_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["whatif", str(TOY), "--vary", "seed=1", "--processes", "1", "--quiet"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["toy-2-nodes.whatif.sqlite"]


NUM_POINTS, NUM_KILLS = 200, 5


def stored(path: Path) -> dict[str, int]:
    """Settings of each row, and a number that changes when the row is written again."""
    if not path.exists():
        return {}
    connection = sqlite3.connect(path, timeout=30)
    try:
        return dict(connection.execute("SELECT settings, rowid FROM points"))
    except sqlite3.OperationalError:  # not made yet
        return {}
    finally:
        connection.close()


def test_a_study_killed_five_times_has_each_row_once(tmp_path: Path) -> None:
    store, table = tmp_path / "study.sqlite", tmp_path / "a.csv"
    rates = ",".join(f"{10 + i}GB/s" for i in range(NUM_POINTS))
    command = [
        sys.executable, "-m", "validation", "whatif", str(TOY), "--vary", f"{LINK}={rates}",
        "--store", str(store), "--processes", "2", "--csv", str(table),
    ]  # fmt: skip
    known: dict[str, int] = {}
    for kill in range(1, NUM_KILLS + 1):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while len(stored(store)) < kill * NUM_POINTS / (NUM_KILLS + 1):
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        now = stored(store)
        assert now.items() >= known.items(), "a point was simulated again"
        known = now
    assert not table.exists()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"{NUM_POINTS} points · {len(known)} known from before" in done.stdout
    assert stored(store).items() >= known.items()
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [int(row["point"]) for row in rows] == list(range(NUM_POINTS))
    assert len({row[LINK] for row in rows}) == len(stored(store)) == NUM_POINTS
    assert all(row["status"] == "ok" for row in rows)
