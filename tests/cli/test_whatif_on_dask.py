"""`clustersim whatif --scheduler` against a real Dask scheduler with workers on loopback."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from test_whatif_command import LINK, ROOT, TOY, stored

pytest.importorskip("distributed")
START_S = 60.0


@contextmanager
def process(module: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask's, ended at the end."""
    command = [sys.executable, "-m", f"distributed.cli.{module}", *options, "--no-dashboard"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@contextmanager
def scheduler(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Its address, and the file by which workers find it."""
    file = tmp_path / "scheduler.json"
    where = ("--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    with process("dask_scheduler", *where):
        yield address_in(file), file


def address_in(file: Path) -> str:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        with suppress(OSError, ValueError):  # not there yet, or half written
            return str(json.loads(file.read_text())["address"])
        time.sleep(0.05)
    raise TimeoutError("the scheduler did not start")


def worker(file: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    return process("dask_worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny")


def study(tmp_path: Path, address: str, count: int) -> list[str]:
    rates = ",".join(f"{10 + i}GB/s" for i in range(count))
    return [
        sys.executable, "-m", "validation", "whatif", str(TOY), "--vary", f"{LINK}={rates}",
        "--scheduler", address, "--store", str(tmp_path / "study.sqlite"),
        "--csv", str(tmp_path / "a.csv"),
    ]  # fmt: skip


def test_a_worker_is_killed_in_the_middle(tmp_path: Path) -> None:
    count = 120
    with scheduler(tmp_path) as (address, file), worker(file) as first, worker(file):
        command = study(tmp_path, address, count)
        started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while len(stored(tmp_path / "study.sqlite")) < count // 4:
            assert started.poll() is None, "it ended before the worker was killed"
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(first.pid, signal.SIGKILL)
        assert started.wait(timeout=120) == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [int(row["point"]) for row in rows] == list(range(count))
    assert {row["status"] for row in rows} == {"ok"}


def test_a_cluster_gives_what_this_machine_gives(tmp_path: Path) -> None:
    with scheduler(tmp_path) as (address, file), worker(file):
        subprocess.run(study(tmp_path, address, 3), cwd=ROOT, check=True, capture_output=True)
    there = (tmp_path / "a.csv").read_bytes()
    (tmp_path / "study.sqlite").unlink()
    here = study(tmp_path, address, 3)
    at = here.index("--scheduler")
    here[at : at + 2] = ["--processes", "1"]
    subprocess.run(here, cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "a.csv").read_bytes() == there


def test_a_cluster_without_workers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator.errors import ConfigError
    from simulator.study import dask_cluster

    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    with (
        scheduler(tmp_path) as (address, _),
        pytest.raises(ConfigError, match="the scheduler has no workers"),
    ):
        list(dask_cluster.run_on_cluster([], address))


def test_no_scheduler_at_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.errors import ConfigError
    from simulator.study import dask_cluster

    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match="no scheduler answers there"):
            list(dask_cluster.run_on_cluster([], address))


def test_a_worker_of_another_version_is_refused() -> None:
    from simulator.study.dask_cluster import OtherVersionError, evaluate_there

    with pytest.raises(OtherVersionError, match=r"a worker has clustersim .*, this is 0\.0\+x"):
        evaluate_there(None, "0.0+x")  # type: ignore[arg-type]
