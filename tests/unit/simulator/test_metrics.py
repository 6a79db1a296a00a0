"""The numbers of a result against expressions in the run's own sizes."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from simulator.simulate import Result, simulate
from workloads.flops import model_flops

TOKENS, HIDDEN, LAYERS, WORDS = 512, 512, 4, 8192
PARAMETERS = LAYERS * (12 * HIDDEN**2 + 13 * HIDDEN) + 2 * HIDDEN + (WORDS + TOKENS) * HIDDEN
"""GPT with biases: 12 h^2 + 13 h a layer, final norm, tied words and positions."""
NORM_BYTES = 4
"""Of the gradient norm, all-reduced over all ranks."""


def result_of(num_nodes: int = 1, **changes: Any) -> Result:
    model = small_model(num_layers=LAYERS, vocab_size=WORDS)
    return simulate(small_run(small_cluster(num_nodes), **({"model": model} | changes)))


def test_rates_follow_from_the_step() -> None:
    result = result_of(2, tp=2, pp=2)
    metrics, step_s = result.metrics, result.metrics["step_time_s"]
    assert metrics["tokens_per_s_per_gpu"] == pytest.approx(4 * 4 * TOKENS / step_s / 16)
    flops = model_flops(result.run.model, result.run.training)
    assert metrics["model_tflops_per_gpu"] == pytest.approx(flops / step_s / 16 / 1e12)
    assert metrics["mfu"] == pytest.approx(flops / step_s / 16 / 989e12)
    assert metrics["hfu"] == pytest.approx(metrics["mfu"])


def test_layout() -> None:
    layout = result_of(2, tp=2, pp=2, num_microbatches=6).metrics["layout"]
    names = ("num_gpus", "tp", "pp", "vpp", "dp", "micro_batch_size", "num_microbatches")
    assert [layout[name] for name in names] == [16, 2, 2, 1, 4, 1, 6]


def test_explanation_leads_from_peak_to_achieved() -> None:
    """Ideal time and all losses make the step; all points lost and the MFU make one."""
    result = result_of(2, tp=2, pp=2)
    metrics, step_s = result.metrics, result.metrics["step_time_s"]
    lost_s = sum(row["seconds"] for row in metrics["explain"])
    points = sum(row["mfu_points"] for row in metrics["explain"])
    assert lost_s + metrics["mfu"] * step_s == pytest.approx(step_s)
    assert points + metrics["mfu"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [
        ({}, 2 * 4),  # all-reduce of fp32 gradients
        ({"use_distributed_optimizer": True}, 4 + 2),  # scatter gradients, gather weights
        ({"use_distributed_optimizer": True, "overlap_grad_reduce": True,
          "overlap_param_gather": True}, 4 + 2),
    ],
)  # fmt: skip
def test_data_parallel_bytes(optimizer: dict[str, bool], bytes_per_parameter: int) -> None:
    """(n - 1) / n of the buffer, twice for all-reduce (nccl-tests, PERFORMANCE.md)."""
    dp = result_of(optimizer=optimizer).metrics["communication"]["dp"]
    expected = 7 / 8 * (bytes_per_parameter * PARAMETERS + 2 * NORM_BYTES)
    assert dp["bytes"] == pytest.approx(expected, rel=1e-12)
    assert dp["busbw"] == pytest.approx(dp["bytes"] / dp["busy_s"])
    assert 0.0 < dp["exposed_s"] <= dp["busy_s"] * (1 + 1e-9)


def test_gradients_in_two_bytes_halve_what_is_reduced() -> None:
    training = {"accumulate_allreduce_grads_in_fp32": False}
    dp = result_of(training=training).metrics["communication"]["dp"]
    assert dp["bytes"] == pytest.approx(7 / 8 * (2 * 2 * PARAMETERS + 2 * NORM_BYTES), rel=1e-12)


@pytest.mark.parametrize("vpp", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_pipeline_bytes(tp: int, vpp: int) -> None:
    """1/t of a microbatch's activations per transfer: the first stage sends each chunk's forward
    on, and backward that of every chunk but the first; the last one the other way round."""
    result = result_of(tp=tp, pp=2, vpp=vpp, num_microbatches=6)
    transfers = 6 * (2 * vpp - 1)
    expected = transfers * TOKENS * HIDDEN * 2 / tp
    assert result.metrics["communication"]["pp"]["bytes"] == pytest.approx(expected)


def test_tensor_parallel_bytes() -> None:
    """t = 8, no sequence parallelism; all-reduces send 2 * 7/8 of their buffer. Per microbatch and
    layer two of the activations each way; one at the embedding, one backward at the logits; three
    fp32 per token for the loss. No data-parallel group to speak of."""
    tp = result_of(tp=8).metrics["communication"]["tp"]
    activations = TOKENS * HIDDEN * 2
    per_microbatch = (4 * LAYERS + 2) * activations + 3 * 4 * TOKENS
    assert tp["bytes"] == pytest.approx(4 * 2 * 7 / 8 * per_microbatch)


def test_kinds_that_do_not_occur_are_zero() -> None:
    communication = result_of(tp=8).metrics["communication"]
    for kind in ("cp", "ep", "pp"):
        assert set(communication[kind].values()) == {0.0}


def test_exposed_times_are_those_of_the_breakdown() -> None:
    metrics = result_of(2, tp=2, pp=2).metrics
    for kind in ("tp", "pp", "dp"):
        exposed_s = metrics["communication"][kind]["exposed_s"]
        assert exposed_s == metrics["breakdown_s"][f"{kind}_exposed"]


def test_the_critical_stage_computes_most() -> None:
    """A large vocabulary makes it the last; a first stage with nothing but its layers is not."""
    model = small_model(num_layers=LAYERS, vocab_size=131072)
    assert result_of(pp=4, model=model).metrics["critical_stage"] == 3


def test_memory_is_that_of_the_fullest_stage() -> None:
    memory = result_of(pp=4).metrics["memory"]
    totals = [stage["total_bytes"] for stage in memory["per_stage"]]
    assert len(totals) == 4
    assert memory["peak_bytes"] == max(totals)
    assert memory["fits"]
    assert not [w for w in result_of(pp=4).metrics["warnings"] if "does not fit" in w]


def test_what_does_not_fit_is_said() -> None:
    model = small_model(num_layers=LAYERS, hidden_size=32768, num_attention_heads=256)
    metrics = result_of(model=model).metrics
    assert not metrics["memory"]["fits"]
    assert any(warning.startswith("does not fit") for warning in metrics["warnings"])


def test_cost_per_step_and_per_trillion_tokens() -> None:
    metrics = result_of(2).metrics
    cost, step_s = metrics["cost"], metrics["step_time_s"]
    assert cost["gpu_hours_per_step"] == pytest.approx(16 * step_s / 3600)
    steps = 1e12 / (16 * 4 * TOKENS)
    for kind in ("gpu_hours", "energy_j", "usd"):
        whole = cost[f"{kind}_per_trillion_tokens"]
        assert whole == pytest.approx(cost[f"{kind}_per_step"] * steps)


def test_recomputation_counts_for_hardware_flops_only() -> None:
    """All layers' forward again: 4 passes of them for 3."""
    kept, again = (
        result_of(training={"recompute_granularity": how}).metrics for how in ("none", "full")
    )
    assert again["step_time_s"] > kept["step_time_s"]
    assert again["breakdown_s"]["recompute"] > kept["breakdown_s"]["recompute"] == 0.0
    assert again["hfu"] > again["mfu"]
