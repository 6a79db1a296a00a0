"""How fast the simulator is: asked for with `pytest -m benchmark`, printed, never judged."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from measures import (
    GPUS,
    HEADLINE,
    NUM_FLOWS,
    ROOT,
    fold_ranks,
    pipeline_engine,
    shared_flows,
    simulate_command,
    size_settings,
    study_command,
)

from simulator.loading import load_run
from simulator.simulate import simulate

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("num_gpus", GPUS)
def test_process(benchmark: Any, num_gpus: int) -> None:
    """From process start to exit, by GPUs."""
    benchmark.pedantic(lambda: simulate_command(num_gpus), rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("num_gpus", GPUS)
def test_simulation(benchmark: Any, num_gpus: int) -> None:
    """The simulation alone, by GPUs."""
    run = load_run(HEADLINE, size_settings(num_gpus))
    result = benchmark.pedantic(lambda: simulate(run), rounds=3, warmup_rounds=1)
    benchmark.extra_info["operations"] = result.metrics["simulation"]["operations"]


def test_headline_with_pictures(benchmark: Any, tmp_path: Path) -> None:
    """The headline with Gantt chart and Chrome trace."""
    command = [sys.executable, "-m", "simulator", "simulate", str(HEADLINE), "--quiet"]
    pictures = ["--gantt", str(tmp_path / "step.png"), "--trace", str(tmp_path / "step.json")]
    benchmark.pedantic(
        lambda: subprocess.run([*command, *pictures], check=True), rounds=3, warmup_rounds=1
    )


def test_study_of_100_points(benchmark: Any) -> None:
    """A what-if study of the headline on 2 cores."""
    benchmark.pedantic(lambda: study_command(100, 2), rounds=1)


def test_loop(benchmark: Any) -> None:
    """Operations of the event loop."""

    def setup() -> tuple[tuple[Any], dict[str, Any]]:
        engine, count = pipeline_engine()
        benchmark.extra_info["operations"] = count
        return (engine,), {}

    benchmark.pedantic(lambda engine: engine.run(), setup=setup, rounds=5, warmup_rounds=1)


def test_network(benchmark: Any) -> None:
    """Flows that share links."""
    benchmark.extra_info["flows"] = NUM_FLOWS
    benchmark.pedantic(
        lambda env: env.run(), setup=lambda: ((shared_flows(),), {}), rounds=5, warmup_rounds=1
    )


@pytest.mark.parametrize("num_ranks", [1024, 6144, 24_576, 98_304])
def test_folding(benchmark: Any, num_ranks: int) -> None:
    """Classes of so many ranks."""
    benchmark.pedantic(lambda: fold_ranks(num_ranks), rounds=5, warmup_rounds=1)


def test_unfolded_1024_ranks(benchmark: Any) -> None:
    """A small model on 1,024 GPUs, every rank simulated."""
    run = load_run(
        ROOT / "examples/toy-2-nodes.yaml",
        ["cluster.num_nodes=128", "training.global_batch_size=2048"],
    )
    result = benchmark.pedantic(lambda: simulate(run, fold=False), rounds=1)
    benchmark.extra_info["operations"] = result.metrics["simulation"]["operations"]
