"""How fast the simulator is: asked for with `pytest -m benchmark`, printed, never judged."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.loading import load_run
from simulator.simulate import simulate
from simulator.symmetry import Hubs, fold

pytestmark = pytest.mark.benchmark

EXAMPLES = Path(__file__).parents[2] / "examples"
HEADLINE = EXAMPLES / "gpt-462b-6144xh100.yaml"


def test_headline_process(benchmark: Any, tmp_path: Path) -> None:
    """From process start to exit, JSON out."""
    command = [sys.executable, "-m", "simulator", "simulate", str(HEADLINE), "--quiet"]
    benchmark.pedantic(
        lambda: subprocess.run([*command, "--json", str(tmp_path / "out.json")], check=True),
        rounds=5, warmup_rounds=1,
    )  # fmt: skip


def test_headline_with_pictures(benchmark: Any, tmp_path: Path) -> None:
    """The same with Gantt chart and Chrome trace."""
    command = [sys.executable, "-m", "simulator", "simulate", str(HEADLINE), "--quiet"]
    pictures = ["--gantt", str(tmp_path / "step.png"), "--trace", str(tmp_path / "step.json")]
    benchmark.pedantic(
        lambda: subprocess.run([*command, *pictures], check=True), rounds=3, warmup_rounds=1
    )


@pytest.mark.parametrize("num_nodes", [768, 3072, 12288])
def test_headline_layout_on_more_nodes(benchmark: Any, num_nodes: int) -> None:
    """Same layout and microbatches, more replicas: 6,144 to 98,304 GPUs."""
    batch = 3072 * num_nodes // 768
    run = load_run(
        HEADLINE, [f"cluster.num_nodes={num_nodes}", f"training.global_batch_size={batch}"]
    )
    result = benchmark.pedantic(lambda: simulate(run), rounds=3, warmup_rounds=1)
    benchmark.extra_info["operations"] = result.metrics["simulation"]["operations"]


@pytest.mark.parametrize("replicas", [48, 768])
def test_folding(benchmark: Any, replicas: int) -> None:
    """Classes of 16 stages x 8 tensor ranks x so many replicas."""
    grid = np.arange(16 * replicas * 8).reshape(16, replicas, 8)
    tensor, data = grid.reshape(-1, 8), np.moveaxis(grid, 1, 2).reshape(-1, replicas)
    families = [
        Hubs(m, np.zeros(m.shape[1], np.int64), np.zeros(len(m), np.int64)) for m in (tensor, data)
    ]
    stages = np.repeat(np.arange(16), replicas * 8)
    benchmark.pedantic(lambda: fold(stages, families), rounds=5, warmup_rounds=1)


def test_unfolded_1024_ranks(benchmark: Any) -> None:
    """A small model on 1,024 GPUs, every rank simulated."""
    run = load_run(
        EXAMPLES / "toy-2-nodes.yaml",
        ["cluster.num_nodes=128", "training.global_batch_size=2048"],
    )  # fmt: skip
    result = benchmark.pedantic(lambda: simulate(run, fold=False), rounds=1)
    benchmark.extra_info["operations"] = result.metrics["simulation"]["operations"]
