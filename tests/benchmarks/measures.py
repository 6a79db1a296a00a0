"""What is measured: programs for the loop, flows for the network, groups to fold, runs by size."""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simpy

from simulator.engine import Engine, Exchange, Rank, Task
from simulator.network import Network
from simulator.profile import Profile, Segment, Slowdown
from simulator.symmetry import Hubs, fold

ROOT = Path(__file__).parents[2]
HEADLINE = ROOT / "examples/gpt-462b-6144xh100.yaml"
NUM_FLOWS = 5000
GPUS = (8, 32, 128, 1024, 6144, 24_576, 98_304)
"""Tensor parallel 8, pipeline up to 16, then replicas of 64 microbatches each."""


def size_settings(num_gpus: int) -> list[str]:
    """The headline's model and schedule on so many GPUs."""
    stages = min(16, num_gpus // 8)
    settings = [
        f"cluster.num_nodes={num_gpus // 8}",
        f"parallelism.pipeline_model_parallel_size={stages}",
        f"training.global_batch_size={64 * num_gpus // (8 * stages)}",
    ]
    if stages == 1:
        settings += [
            "parallelism.virtual_pipeline_model_parallel_size=1",
            "parallelism.pipeline_schedule=1f1b",
        ]
    return settings


@dataclass(frozen=True)
class Process:
    """One run of the command, from start to exit."""

    wall_s: float
    cpu_s: float
    """What it would take on an idle machine: others only add to the wall time."""
    peak_bytes: float


_CHILD = """
import atexit, sys
from pathlib import Path
atexit.register(lambda: print(Path("/proc/self/status").read_text(), file=sys.stderr))
from validation.cli import main
main()
"""
"""The command; says at its end how much memory it had (ru_maxrss would count its parent's)."""


def run_command(*arguments: str) -> Process:
    """Run `clustersim` in a process of its own."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    peak = re.search(r"VmHWM:\s+(\d+) kB", said)
    if process.returncode or peak is None:
        raise RuntimeError(f"{arguments} ended with {process.returncode}: {said}")
    wall_s = time.perf_counter() - began_s
    return Process(wall_s, usage.ru_utime + usage.ru_stime, int(peak.group(1)) * 1024.0)


def simulate_command(num_gpus: int) -> Process:
    """`clustersim simulate` of the headline's model on so many GPUs."""
    settings = [part for text in size_settings(num_gpus) for part in ("--set", text)]
    return run_command("simulate", str(HEADLINE), "--quiet", *settings)


def study_command(num_points: int, processes: int) -> Process:
    """`clustersim whatif` of the headline over so many link bandwidths."""
    rates = ",".join(f"{20 + 10 * i}Gb/s" for i in range(num_points))
    with tempfile.TemporaryDirectory() as folder:
        return run_command(
            "whatif", str(HEADLINE), "--vary", f"cluster.fabric.link_bandwidth={rates}",
            "--store", f"{folder}/study.sqlite", "--processes", str(processes), "--quiet",
        )  # fmt: skip


def pipeline_engine(num_ranks: int = 16, num_passes: int = 500) -> tuple[Engine, int]:
    """A chain of ranks, each pass fed by the one before and slowed by its own transfers; and its
    number of operations."""
    profile = Profile([Segment((), 1e-3, 1e-3) for _ in range(20)])
    ranks, before = [], list[Task]()
    for r in range(num_ranks):
        compute = [
            Task("pass", "forward", tuple(before[i : i + 1]), profile, 0.0, profile.duration_s)
            for i in range(num_passes)
        ]
        sends = []
        for task in compute:
            exchange = Exchange("send", 1, 1e-6, 1e5, ((r, 1.0),), slowdown=Slowdown(0.2))
            sends.append(Task("send", "pp", (task,), exchange=exchange))
        ranks.append(Rank(r, r, 1, {"compute": compute, "send": sends}))
        before = sends
    return Engine(ranks, [50e6] * num_ranks), 2 * num_ranks * num_passes


def shared_flows(num_links: int = 32, num_flows: int = NUM_FLOWS) -> simpy.Environment:
    """An environment in which flows of unlike length start one after the other, a few at a time on
    each link, each over two links."""
    env = simpy.Environment()
    network = Network(env, [1e9] * num_links)

    def start(i: int) -> None:
        links = ((i % num_links, 1.0), ((i * 7 + 3) % num_links, 0.5))
        network.start(1e6 * (1 + i % 5), links, 4e8)

    for i in range(num_flows):
        env.timeout(i * 4e-4).callbacks.append(lambda _, i=i: start(i))
    return env


def fold_ranks(num_ranks: int) -> None:
    """Fold 16 stages of tensor groups of 8 and as many replicas as that leaves."""
    replicas = num_ranks // 128
    grid = np.arange(num_ranks).reshape(16, replicas, 8)
    tensor, data = grid.reshape(-1, 8), np.moveaxis(grid, 1, 2).reshape(-1, replicas)
    families = [
        Hubs(m, np.zeros(m.shape[1], np.int64), np.zeros(len(m), np.int64)) for m in (tensor, data)
    ]
    partition, _ = fold(np.repeat(np.arange(16), replicas * 8), families)
    assert len(partition) == 16
