"""Activations on the host between forward and backward."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from hardware.host import COPY_LATENCY_S
from simulator.simulate import Result, simulate
from workloads.memory import layer_activation_bytes

LAYERS = 6


def step(offloaded: int, *, fold: bool = True, dp: int = 1, **changes: Any) -> Result:
    """Six layers of 4,096 tokens at width 1,024; `rate` of the link to the host."""
    cluster = small_cluster(1, dp, node_pcie_bandwidth_bytes_per_s=changes.pop("rate", 55e9))
    run = small_run(
        cluster, num_microbatches=2, model=small_model(num_layers=LAYERS, hidden_size=1024),
        training={
            "seq_length": 4096, "cpu_offloading": offloaded > 0,
            "cpu_offloading_num_layers": offloaded,
        },
        optimizer=changes,
    )  # fmt: skip
    return simulate(run, fold=fold)


def copies(result: Result) -> list[Any]:
    return [s for s in result.trace.ranks[0].spans if s.category == "offload"]


def test_each_layer_goes_and_comes_back_once_per_microbatch() -> None:
    result = step(2)
    run = result.run
    kept = layer_activation_bytes(run.model, run.training, run.parallelism, recomputed=False)
    spans = copies(result)
    assert len(spans) == 2 * 2 * 2
    for span in spans:
        assert span.duration_s == pytest.approx(COPY_LATENCY_S + kept / 55e9)
    assert result.metrics["communication"]["offload"]["bytes"] == pytest.approx(8 * kept)
    names = [s.name for s in spans if s.stream == "host_up"][:2]
    assert [name.split(",")[0] for name in names] == [
        "activations of layer 1", "activations of layer 0",
    ]  # fmt: skip


def test_a_fast_link_hides_them_and_a_slow_one_does_not() -> None:
    usual, fast, slow = step(0), step(3, rate=4e12), step(3, rate=5e9)
    assert copies(usual) == []
    assert fast.metrics["step_time_s"] == pytest.approx(usual.metrics["step_time_s"], rel=1e-3)
    assert slow.metrics["step_time_s"] > 1.5 * usual.metrics["step_time_s"]
    terms = slow.metrics["breakdown_s"]
    assert terms["offload_exposed"] > 0
    assert sum(terms.values()) == pytest.approx(slow.metrics["step_time_s"])


def test_the_gpu_holds_the_layers_that_stay_and_one_on_its_way() -> None:
    """6 layers, of which n go: 6 - n + 1."""
    six, three = (step(n).metrics["memory"]["activations"] for n in (1, 4))
    run = step(1).run
    kept = layer_activation_bytes(run.model, run.training, run.parallelism, recomputed=False)
    assert six - three == pytest.approx(3 * kept)
    assert six == step(0).metrics["memory"]["activations"]


@pytest.mark.parametrize(
    "optimizer",
    [
        {"use_distributed_optimizer": True, "overlap_grad_reduce": True,
         "overlap_param_gather": True},
        {"data_parallel_sharding": "zero3", "overlap_grad_reduce": True,
         "overlap_param_gather": True},
    ],
)  # fmt: skip
def test_beside_data_parallelism_folded_or_not(optimizer: dict[str, Any]) -> None:
    folded, unfolded = (step(3, fold=fold, dp=2, rate=2e10, **optimizer) for fold in (True, False))
    assert unfolded.metrics["step_time_s"] == pytest.approx(folded.metrics["step_time_s"], rel=1e-9)
    assert len(copies(folded)) == 2 * 2 * 3
