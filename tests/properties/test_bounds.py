"""What no step can escape: its terms sum to it, and it lasts at least as long as its compute."""

import pytest
from hypothesis import given, settings
from small_runs import small_cluster, small_model, small_run
from test_folding import runs

from simulator.breakdown import TERMS, Breakdown
from simulator.runspec import RunSpec
from simulator.simulate import Result, simulate
from workloads.graph import StageWork
from workloads.pipeline import Pass


def executed_flops(stage: StageWork, step: Pass) -> float:
    layers = stage.chunks[step.chunk]
    if step.direction == "forward":
        return sum(op.flops for layer in layers for op in layer.forward)
    return sum(op.flops for layer in layers for op in (*layer.recompute, *layer.backward))


def check_breakdown(result: Result) -> None:
    """Of every rank, not of the critical stage's only."""
    step_s = result.metrics["step_time_s"]
    terms = result.metrics["breakdown_s"]
    assert sum(terms.values()) == pytest.approx(step_s, rel=1e-9)
    breakdown = Breakdown(step_s)
    for rank in result.program.ranks:
        terms = breakdown.terms_s(rank)
        assert tuple(terms) == TERMS
        assert sum(terms.values()) == pytest.approx(step_s, rel=1e-9)
        assert min(terms.values()) >= -1e-12


def check_lower_bounds(result: Result) -> None:
    run, step_s = result.run, result.metrics["step_time_s"]
    peak = run.cluster.node.gpu.peak_flops_per_s.bf16
    for stage in result.work.stages:
        assert step_s >= sum(executed_flops(stage, step) for step in stage.order) / peak
    for rank in result.program.ranks:
        quiet_s = sum(
            piece.duration_s
            for task in rank.streams["compute"]
            if task.profile is not None
            for piece in task.profile.pieces(task.from_s, task.to_s)
        )
        assert step_s >= quiet_s * (1 - 1e-12)
    assert 0.0 <= result.metrics["bubble_fraction"] < 1.0
    for kind in result.metrics["communication"].values():
        assert -1e-12 <= kind["exposed_s"] <= step_s
        assert kind["bytes"] >= 0.0


@settings(max_examples=40, deadline=None)
@given(runs(max_gpus=32))
def test_every_run(run: RunSpec) -> None:
    result = simulate(run)
    check_breakdown(result)
    check_lower_bounds(result)


def test_model_flops_over_peak() -> None:
    """Counted as executed (causal attention half), model FLOPs cannot beat the peak."""
    run = small_run(
        small_cluster(2, 4), tp=2, pp=2,
        model=small_model(hidden_size=4096, num_layers=4, num_attention_heads=32),
        training={"seq_length": 4096, "flops_convention": "causal"},
    )  # fmt: skip
    mfu = simulate(run).metrics["mfu"]
    assert 0.05 < mfu < 1.0
