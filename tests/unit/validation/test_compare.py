"""Measured beside predicted: our own H200 runs, and settings that do not agree."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_cluster, small_run

from simulator.loading import load_run
from simulator.runspec import RunSpec
from simulator.simulate import Result, simulate
from validation.compare import Comparison, compare_file, compare_log, compare_trace
from validation.contradictions import find_contradictions
from validation.kernel_names import KernelClass
from validation.kineto import KernelTrace
from validation.megatron_arguments import Argument
from validation.megatron_log import Iteration, MegatronLog, MemoryReport, ParameterCount
from validation.megatron_timers import Timer
from workloads.flops import model_flops
from workloads.stages import stage_chunks

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests/fixtures"
NOWHERE = Path("train.log")


@pytest.fixture(scope="module")
def width_7b() -> RunSpec:
    return load_run(ROOT / "examples/h200-llama-7b-width.yaml")


@pytest.fixture(scope="module")
def width_70b() -> RunSpec:
    return load_run(ROOT / "examples/h200-llama-70b-width.yaml")


@pytest.fixture(scope="module")
def result() -> Result:
    """Two stages of two tensor-parallel ranks, two replicas."""
    return simulate(small_run(small_cluster(), tp=2, pp=2))


def quantity(comparison: Comparison, name: str) -> Any:
    return next(q for q in comparison.quantities if q.name == name)


def log_of(result: Result, **changes: Any) -> MegatronLog:
    """A log that agrees with a simulated step in all it tells."""
    step_s = result.metrics["step_time_s"]
    batch = result.run.training.global_batch_size
    steady = tuple(Iteration(n, step_s, n, global_batch_size=batch) for n in range(1, 6))
    return dataclasses.replace(MegatronLog(NOWHERE, steady), **changes)


@pytest.mark.parametrize("width", ["7b", "70b"])
def test_our_h200_runs(width: str, request: pytest.FixtureRequest) -> None:
    run = request.getfixturevalue(f"width_{width}")
    comparison = compare_file(run, FIXTURES / f"h200_{width}_width.log")
    assert comparison.kind == "megatron_log"
    assert comparison.contradictions == ()
    assert abs(quantity(comparison, "step_time_s").error) < 0.03
    assert abs(quantity(comparison, "model_tflops_per_gpu").error) < 0.03
    assert abs(quantity(comparison, "max_allocated_bytes").error) < 0.05


def test_the_kernels_of_an_h200_step(width_70b: RunSpec) -> None:
    training = width_70b.training.model_copy(update={"global_batch_size": 2})
    run = width_70b.model_copy(update={"training": training})
    comparison = compare_file(run, FIXTURES / "h200_70b_width_kernels.csv.gz")
    assert comparison.kind == "kineto_trace"
    terms = {term.name: term for term in comparison.terms}
    assert set(terms) == {"gemm", "attention", "memory_bound", "optimizer", "idle"}
    for name, tolerance in (("gemm", 0.10), ("attention", 0.15), ("optimizer", 0.15)):
        assert terms[name].predicted_s == pytest.approx(terms[name].measured_s, rel=tolerance)
    step = quantity(comparison, "step_time_s")
    assert sum(t.predicted_s for t in terms.values()) == pytest.approx(step.predicted)
    # one stream but for a few fills: kernels and gaps fill the step
    total_s = sum(t.measured_s for t in terms.values())
    assert total_s == pytest.approx(step.measured, rel=1e-3)
    assert sum(comparison.kernels.values()) == pytest.approx(
        step.measured - terms["idle"].measured_s, rel=1e-3
    )


def test_timers_share_out_the_step(width_7b: RunSpec) -> None:
    comparison = compare_file(width_7b, FIXTURES / "h200_7b_width_timers.log")
    terms = {term.name: term for term in comparison.terms}
    assert set(terms) == {
        "forward passes", "backward passes", "between passes", "optimizer", "rest of the step",
    }  # fmt: skip
    step = quantity(comparison, "step_time_s")
    assert sum(t.measured_s for t in terms.values()) == pytest.approx(step.measured)
    assert sum(t.predicted_s for t in terms.values()) == pytest.approx(step.predicted)
    assert terms["optimizer"].predicted_s == pytest.approx(terms["optimizer"].measured_s, rel=0.2)


def test_the_term_that_differs_most_comes_first(result: Result) -> None:
    step_s = result.metrics["step_time_s"]
    log = log_of(
        result,
        iterations=(Iteration(9, 2 * step_s, 1),),
        timers={"forward-compute": Timer(0, 1.5 * step_s), "optimizer": Timer(0, 0.1 * step_s)},
    )
    differences = compare_log(result, log).differences
    assert differences[0].startswith("The step: ")
    assert differences[0].endswith(" more than predicted.")
    assert differences[1].startswith("Forward passes: ")


def test_a_log_that_agrees(result: Result) -> None:
    memory = result.metrics["memory"]
    inside = memory["peak_bytes"] - memory["framework"]
    log = log_of(result, memory=(MemoryReport(0, 2, 1, inside, 2 * inside),))
    comparison = compare_log(result, log)
    assert comparison.contradictions == ()
    assert len(comparison.differences) == 1
    assert comparison.differences[0].endswith("as predicted.")
    for name in ("step_time_s", "model_tflops_per_gpu", "mfu", "max_allocated_bytes"):
        assert quantity(comparison, name).error == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("logged", ["full", "causal"])
def test_tflops_are_compared_as_the_log_counts_them(result: Result, logged: str) -> None:
    run, step_s = result.run, result.metrics["step_time_s"]
    training = run.training.model_copy(update={"flops_convention": logged})
    tflops = model_flops(run.model, training) / step_s / run.cluster.num_gpus / 1e12
    log = log_of(result, iterations=(Iteration(9, step_s, 1, tflops=tflops),))
    comparison = compare_log(result, log)
    assert quantity(comparison, "model_tflops_per_gpu").predicted == pytest.approx(tflops)
    assert any("by half" in note for note in comparison.notes) is (logged == "causal")


def test_other_flops_are_noted(result: Result) -> None:
    step_s = result.metrics["step_time_s"]
    tflops = 2 * result.metrics["model_tflops_per_gpu"]
    log = log_of(result, iterations=(Iteration(9, step_s, 1, tflops=tflops),))
    assert any("100.0% more FLOPs" in note for note in compare_log(result, log).notes)


ARGUMENTS = {
    "world_size": "8", "data_parallel_size": "2", "tensor_model_parallel_size": "2",
    "pipeline_model_parallel_size": "2", "virtual_pipeline_model_parallel_size": "None",
    "micro_batch_size": "1", "global_batch_size": "8", "num_microbatches": "4",
    "seq_length": "512", "num_layers": "4", "hidden_size": "512", "ffn_hidden_size": "2048",
    "num_attention_heads": "8", "kv_channels": "64", "swiglu": "False",
    "padded_vocab_size": "8192", "group_query_attention": "False", "num_query_groups": "1",
    "recompute_granularity": "None", "sequence_parallel": "False", "bf16": "True",
    "use_distributed_optimizer": "False", "overlap_grad_reduce": "False", "fp8": "None",
}  # fmt: skip
"""As Megatron-LM would print them for the run of `result`."""


def contradictions(result: Result, **changes: str) -> dict[str, tuple[str, str]]:
    arguments = {n: Argument(v, 7) for n, v in (ARGUMENTS | changes).items()}
    found = find_contradictions(result.run, log_of(result, arguments=arguments))
    return {one.argument: (one.log, one.run) for one in found}


def test_arguments_that_agree(result: Result) -> None:
    assert contradictions(result) == {}


@pytest.mark.parametrize(
    ("argument", "value", "run"),
    [
        ("world_size", "16", "8"),
        ("tensor_model_parallel_size", "4", "2"),
        ("pipeline_model_parallel_size", "4", "2"),
        ("virtual_pipeline_model_parallel_size", "2", "1"),
        ("context_parallel_size", "2", "1"),
        ("micro_batch_size", "2", "1"),
        ("global_batch_size", "16", "8"),
        ("seq_length", "1024", "512"),
        ("num_layers", "8", "4"),
        ("hidden_size", "1024", "512"),
        ("ffn_hidden_size", "1408", "2048"),
        ("swiglu", "True", "False"),
        ("sequence_parallel", "True", "False"),
        ("recompute_granularity", "full", "none"),
        ("use_distributed_optimizer", "True", "False"),
        ("padded_vocab_size", "32128", "8192"),
        ("hidden_dropout", "0.0", "0.1"),
    ],
)
def test_arguments_that_do_not(result: Result, argument: str, value: str, run: str) -> None:
    assert contradictions(result, **{argument: value}) == {argument: (value, run)}


def test_query_groups_count_where_they_are_used(result: Result) -> None:
    found = contradictions(result, group_query_attention="True", num_query_groups="2")
    assert found == {"num_query_groups": ("2", "8")}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ({"bf16": "False", "fp16": "True"}, {"precision": ("fp16", "bf16")}),
        ({"fp8": "hybrid"}, {"precision": ("fp8", "bf16")}),
        ({"bf16": "False"}, {}),
    ],
)
def test_precision(
    result: Result, flags: dict[str, str], found: dict[str, tuple[str, str]]
) -> None:
    assert contradictions(result, **flags) == found


def test_values_that_cannot_be_read_are_no_contradiction(result: Result) -> None:
    assert contradictions(result, num_layers="None", swiglu="swish") == {}


def test_the_batch_size_of_the_iterations(result: Result) -> None:
    log = log_of(result, iterations=(Iteration(9, 1.0, 42, global_batch_size=3),))
    (found,) = find_contradictions(result.run, log)
    assert (found.argument, found.log, found.run, found.line) == ("global_batch_size", "3", "8", 42)
    assert "3 in the log, 8 in the run file (training.global_batch_size)" in str(found)


@pytest.mark.parametrize(("factor", "contradicts"), [(1.0, False), (1.001, False), (1.1, True)])
def test_weights_of_a_stage(result: Result, factor: float, contradicts: bool) -> None:
    run = result.run
    held = stage_chunks(run.model, run.training, run.parallelism)
    weights = sum(layer.parameters for layer in held[1, 0])
    log = log_of(result, parameters=(ParameterCount((0, 1), round(weights * factor), 9),))
    assert bool(find_contradictions(run, log)) is contradicts


def trace_of(result: Result, seconds: dict[KernelClass, float], **changes: Any) -> KernelTrace:
    busy_s = sum(seconds.values())
    return dataclasses.replace(
        KernelTrace(NOWHERE, 1, result.metrics["step_time_s"], seconds, {}, busy_s, busy_s),
        **changes,
    )


def test_communication_by_axis_where_the_trace_names_it(result: Result) -> None:
    trace = trace_of(result, {"all_reduce": 0.3}, axis_seconds={"tp": 0.2, "dp": 0.1})
    terms = {t.name: t for t in compare_trace(result, trace).terms if t.of == "communication"}
    assert set(terms) == {"tp communication", "dp communication", "pp communication"}
    busy = result.metrics["communication"]
    assert terms["tp communication"].measured_s == 0.2
    assert terms["tp communication"].predicted_s == busy["tp"]["busy_s"]
    assert terms["pp communication"].measured_s == 0.0


def test_communication_all_together_where_it_does_not(result: Result) -> None:
    trace = trace_of(result, {"all_reduce": 0.3, "send_recv": 0.1})
    (term,) = [t for t in compare_trace(result, trace).terms if t.of == "communication"]
    busy = result.metrics["communication"]
    assert term.measured_s == pytest.approx(0.4)
    assert term.predicted_s == pytest.approx(sum(kind["busy_s"] for kind in busy.values()))


def test_the_predicted_terms_of_a_trace_sum_to_the_step(result: Result) -> None:
    for rank in (None, 0, 7):
        comparison = compare_trace(result, trace_of(result, {"gemm": 0.1}, rank=rank))
        step_terms = [t for t in comparison.terms if t.of == "step"]
        total_s = sum(t.predicted_s for t in step_terms)
        assert total_s == pytest.approx(result.metrics["step_time_s"])


def test_the_stage_of_the_traced_rank(result: Result) -> None:
    """Rank 0 is of the first stage, 7 of the last, whose logits make its products longer."""
    first, last = (
        compare_trace(result, trace_of(result, {"gemm": 0.1}, rank=rank)) for rank in (0, 7)
    )
    assert first.terms[0].name == last.terms[0].name == "gemm"
    assert first.terms[0].predicted_s < last.terms[0].predicted_s
    assert "the trace is of rank 7, stage 1" in last.notes


def test_another_gpu_is_noted(result: Result) -> None:
    trace = trace_of(result, {"gemm": 0.1}, device="NVIDIA A100-SXM4-80GB")
    assert any("A100-SXM4" in note for note in compare_trace(result, trace).notes)
    trace = trace_of(result, {"gemm": 0.1}, device="NVIDIA H100 80GB HBM3")
    assert not any("the trace is of NVIDIA" in note for note in compare_trace(result, trace).notes)


def test_as_plain_data(width_7b: RunSpec) -> None:
    plain = compare_file(width_7b, FIXTURES / "h200_7b_width_timers.log").to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["error"]["step_time_s"] == pytest.approx(
        plain["predicted"]["step_time_s"] / plain["measured"]["step_time_s"] - 1
    )
    term = plain["terms"][0]
    assert term["difference_s"] == pytest.approx(term["measured_s"] - term["predicted_s"])
