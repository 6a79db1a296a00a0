"""The optimizer on the host: what moves, what waits, what the GPU no longer holds."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from hardware.host import COPY_LATENCY_S, adam_time_s
from simulator.simulate import Result, simulate
from simulator.trace import Span

CLUSTER = small_cluster(1, 2)


def step(fold: bool = True, **optimizer: Any) -> Result:
    run = small_run(
        CLUSTER, model=small_model(num_layers=4, hidden_size=1024, vocab_size=8192),
        optimizer={"use_distributed_optimizer": True, **optimizer},
    )  # fmt: skip
    return simulate(run, fold=fold)


def spans(result: Result) -> list[Span]:
    return [s for s in result.trace.ranks[0].spans if s.category == "offload"]


def test_down_step_up_by_hand() -> None:
    """Half of the weights on each of two ranks: 4 bytes down and 2 up each over 55 GB/s, Adam at
    the host's pace between, all of it waited for."""
    result = step(optimizer_cpu_offload=True)
    shard = result.work.stages[0].parameters / 2
    down, adam, up = spans(result)
    assert down.duration_s == pytest.approx(COPY_LATENCY_S + 4 * shard / 55e9)
    assert adam.duration_s == pytest.approx(adam_time_s(shard, CLUSTER.node))
    assert up.duration_s == pytest.approx(COPY_LATENCY_S + 2 * shard / 55e9)
    waited_s = result.metrics["breakdown_s"]["offload_exposed"]
    assert waited_s == pytest.approx(down.duration_s + adam.duration_s + up.duration_s)
    assert result.metrics["communication"]["offload"]["bytes"] == pytest.approx(6 * shard)
    assert sum(result.metrics["breakdown_s"].values()) == pytest.approx(
        result.metrics["step_time_s"]
    )


def test_layer_by_layer_hides_the_copies() -> None:
    """Six pieces (four layers and both ends): the slowest of the three, and the ends of one
    piece."""
    whole, pieces = (
        step(optimizer_cpu_offload=True, overlap_cpu_optimizer_d2h_h2d=overlap)
        for overlap in (False, True)
    )
    assert len(spans(pieces)) == 3 * 6
    down, adam, up = (s.duration_s for s in spans(whole))
    waited_s = pieces.metrics["breakdown_s"]["offload_exposed"]
    assert waited_s == pytest.approx(adam + (down + up) / 6, rel=0.02)


def test_a_fraction_is_shared_between_both() -> None:
    """Nothing offloaded is the ordinary step; half leaves half of the state and of Adam."""
    usual, none, half, all_ = (
        step(**changes).metrics
        for changes in (
            {},
            {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0},
            {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 0.5},
            {"optimizer_cpu_offload": True},
        )
    )
    assert none["step_time_s"] == usual["step_time_s"]
    assert half["memory"]["optimizer"] == usual["memory"]["optimizer"] / 2
    assert all_["memory"]["optimizer"] == 0
    waits = [m["breakdown_s"]["offload_exposed"] for m in (none, half, all_)]
    assert waits[0] == 0 < waits[1] < waits[2]
    assert usual["breakdown_s"]["optimizer"] > half["breakdown_s"]["optimizer"]


def test_folded_and_unfolded_agree() -> None:
    changes: dict[str, Any] = {
        "optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True,
        "overlap_grad_reduce": True, "overlap_param_gather": True,
    }  # fmt: skip
    folded, unfolded = (step(fold, **changes).metrics["step_time_s"] for fold in (True, False))
    assert unfolded == pytest.approx(folded, rel=1e-9)
