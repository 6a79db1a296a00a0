"""A trainer's own log, or a profiler trace, beside the prediction of the same run: term by term.

Like is compared with like: the allocator's peak with the predicted memory inside the allocator,
kernels by class with the operations of the same class, timers with the same passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.runspec import RunSpec
from simulator.simulate import Result, simulate
from simulator.summary_text import seconds_text
from validation.compare_terms import (
    Term,
    communication_terms,
    kernel_terms,
    stage_of,
    timer_terms,
)
from validation.contradictions import Contradiction, find_contradictions
from validation.kineto import KernelTrace, looks_like_trace, read_kineto
from validation.megatron_log import MegatronLog, read_megatron_log
from workloads.flops import model_flops
from workloads.spec import TrainingSpec

MATTERS = 0.005
"""Share of the step from which a difference is put in words."""
AS_PREDICTED = 0.0005
"""Relative difference that is none."""
MOST_SENTENCES = 4
FLOPS_APART = 0.01
"""Relative difference of FLOPs per step beyond rounding: another convention, or another model."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number of the whole run, measured and predicted, in SI units."""

    name: str
    measured: float | None
    predicted: float | None
    note: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus 1."""
        if self.measured is None or self.predicted is None or self.measured == 0:
            return None
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Comparison:
    """What `clustersim compare` says."""

    run: str
    path: Path
    kind: Literal["megatron_log", "kineto_trace"]
    quantities: tuple[Quantity, ...]
    terms: tuple[Term, ...]
    differences: tuple[str, ...]
    """The terms that differ most, in words, the largest first."""
    contradictions: tuple[Contradiction, ...]
    notes: tuple[str, ...]
    kernels: Mapping[str, float]
    """Of a trace: seconds per step by class of kernel; of a log: empty."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, SI units."""
        return {
            "run": self.run,
            "log": str(self.path),
            "kind": self.kind,
            "measured": {q.name: q.measured for q in self.quantities},
            "predicted": {q.name: q.predicted for q in self.quantities},
            "error": {q.name: q.error for q in self.quantities},
            "terms": [asdict(t) | {"difference_s": t.difference_s} for t in self.terms],
            "differences": list(self.differences),
            "contradictions": [asdict(c) for c in self.contradictions],
            "warnings": [str(c) for c in self.contradictions],
            "notes": list(self.notes),
            "kernels_s": dict(self.kernels),
        }


def compare_file(run: RunSpec, path: Path) -> Comparison:
    """Simulate the run and put what `path` holds beside it.

    Raises `ConfigError` where the file is neither a training log nor a trace, `SimulationError`
    where the run cannot be simulated.
    """
    if looks_like_trace(path):
        trace = read_kineto(path)
        return compare_trace(simulate(run), trace)
    log = read_megatron_log(path)
    return compare_log(simulate(run), log)


def compare_log(result: Result, log: MegatronLog) -> Comparison:
    """A training log beside a simulated step."""
    contradictions = find_contradictions(result.run, log)
    training, flops_note = _as_counted(result.run, log)
    quantities = [
        *_speed(result, log.step_time_s, training, log.tflops_per_gpu),
        *_memory(result, log.max_allocated_bytes),
    ]
    terms = timer_terms(result, log)
    return Comparison(
        result.run.name, log.path, "megatron_log", tuple(quantities), tuple(terms),
        _in_words(quantities, terms), contradictions,
        (*log.notes, *flops_note, *_silence(log), *_predictions(result)), {},
    )  # fmt: skip


def compare_trace(result: Result, trace: KernelTrace) -> Comparison:
    """A profiler trace of one rank beside the busiest stage of a simulated step."""
    quantities = [
        *_speed(result, trace.step_time_s, result.run.training),
        *_memory(result, trace.peak_allocated_bytes),
    ]
    terms = [*kernel_terms(result, trace), *communication_terms(result, trace)]
    return Comparison(
        result.run.name, trace.path, "kineto_trace", tuple(quantities), tuple(terms),
        _in_words(quantities, terms), (),
        (*trace.notes, *_trace_notes(result, trace), *_predictions(result)),
        {str(kind): seconds for kind, seconds in trace.seconds.items()},
    )  # fmt: skip


def _speed(
    result: Result, step_time_s: float, training: TrainingSpec, logged_tflops: float | None = None
) -> list[Quantity]:
    """Step time, TFLOP/s (as logged, or by the FLOPs of `training`) and MFU by the run file's."""
    run, metrics = result.run, result.metrics
    predicted_s = metrics["step_time_s"]
    counted = model_flops(run.model, training) / run.cluster.num_gpus / 1e12
    by_time = "from the measured step time"
    if logged_tflops is None:
        tflops = Quantity(
            "model_tflops_per_gpu", counted / step_time_s, counted / predicted_s, by_time
        )
    else:
        tflops = Quantity("model_tflops_per_gpu", logged_tflops, counted / predicted_s, "as logged")
    mfu = metrics["mfu"]
    return [
        Quantity("step_time_s", step_time_s, predicted_s),
        tflops,
        Quantity("mfu", mfu * predicted_s / step_time_s, mfu, by_time),
    ]


def _as_counted(run: RunSpec, log: MegatronLog) -> tuple[TrainingSpec, tuple[str, ...]]:
    """The training with the FLOPs convention that the log follows, and what to say of it.

    Megatron-LM counted causal attention in full until 2025 and by half since (core_v0.15 counts
    half: megatron/training/training.py, num_floating_point_operations).
    """
    if log.tflops_per_gpu is None:
        return run.training, ()
    logged = log.tflops_per_gpu * 1e12 * log.step_time_s * run.cluster.num_gpus
    own = run.training.flops_convention
    for convention in dict.fromkeys((own, "full", "causal")):
        training = run.training.model_copy(update={"flops_convention": convention})
        if abs(logged / model_flops(run.model, training) - 1) <= FLOPS_APART:
            half = "by half" if convention == "causal" else "in full"
            note = f"the log counts causal attention {half}: predicted TFLOP/s are counted so too"
            return training, () if convention == own else (note,)
    ratio = logged / model_flops(run.model, run.training)
    more = f"{abs(ratio - 1):.1%} {'more' if ratio > 1 else 'fewer'}"
    return run.training, (
        f"the log counts {more} FLOPs per step than the run file's model has: another convention, "
        "or another model",
    )


def _memory(result: Result, max_allocated_bytes: float | None) -> list[Quantity]:
    """The allocator's peak, if it was measured."""
    if max_allocated_bytes is None:
        return []
    memory = result.metrics["memory"]
    inside = memory["peak_bytes"] - memory["framework"]
    note = "max allocated; predicted without what lies outside PyTorch's allocator"
    return [Quantity("max_allocated_bytes", max_allocated_bytes, inside, note)]


def _silence(log: MegatronLog) -> Iterator[str]:
    if not {"num_layers", "tensor_model_parallel_size"} & set(log.arguments):
        yield "the log tells no arguments: nothing checks that it is of this run"
    if log.max_allocated_bytes is None:
        yield "the log has no memory report: memory is not compared"


def _predictions(result: Result) -> Iterator[str]:
    yield from (f"predicted: {warning}" for warning in result.metrics["warnings"])


def _trace_notes(result: Result, trace: KernelTrace) -> Iterator[str]:
    if trace.num_steps == 1:
        yield "one profiled step; profiling itself slows the host"
    else:
        yield f"mean of {trace.num_steps} profiled steps; profiling itself slows the host"
    if result.run.parallelism.pipeline_model_parallel_size > 1:
        stage = stage_of(result.run, trace)
        named = "names no rank: predicted is the busiest stage" if stage is None else ""
        yield f"the trace {named or f'is of rank {trace.rank}, stage {stage}'}"
    other_s, all_s = trace.seconds.get("other", 0.0), sum(trace.seconds.values())
    if other_s > 0.02 * all_s:
        yield f"{other_s / all_s:.0%} of kernel time has names that tell nothing: memory_bound"
    gpu = result.run.cluster.node.gpu.name
    known = gpu.partition("-")[0].upper()
    if trace.device and known not in trace.device.upper().replace(" ", ""):
        yield f"the trace is of {trace.device}, the run file's GPU is {gpu}"


# words

_WORDS = {
    "gemm": "matrix products",
    "memory_bound": "memory-bound kernels",
    "exposed_communication": "communication that compute does not cover",
    "idle": "idle time of the GPU",
}


def _in_words(quantities: Sequence[Quantity], terms: Sequence[Term]) -> tuple[str, ...]:
    """The step first, then the terms that differ most, then memory."""
    step = quantities[0]
    assert step.measured is not None
    assert step.predicted is not None
    said = [f"The step: {_apart(step.measured, step.predicted)}."]
    ranked = sorted((t for t in terms if t.of == "step"), key=lambda t: -abs(t.difference_s))
    for term in ranked[:MOST_SENTENCES]:
        share = abs(term.difference_s) / step.measured
        if share < MATTERS:
            break
        name = _WORDS.get(term.name, term.name)
        apart = _apart(term.measured_s, term.predicted_s)
        said.append(f"{name[0].upper()}{name[1:]}: {apart}, {share:.1%} of the step.")
    for memory in (q for q in quantities if q.name == "max_allocated_bytes"):
        if memory.error is not None and abs(memory.error) >= MATTERS:
            more = "less" if memory.error > 0 else "more"
            share = abs(1 / (1 + memory.error) - 1)
            said.append(f"The allocator's peak: {share:.1%} {more} than predicted.")
    return tuple(said)


def _apart(measured_s: float, predicted_s: float) -> str:
    """`714.4 ms, 2.4 ms more than predicted`."""
    difference_s = measured_s - predicted_s
    if abs(difference_s) < AS_PREDICTED * measured_s:
        return f"{seconds_text(measured_s)}, as predicted"
    way = "more" if difference_s > 0 else "less"
    return f"{seconds_text(measured_s)}, {seconds_text(abs(difference_s))} {way} than predicted"
