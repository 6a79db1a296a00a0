"""Parts of a step, measured beside predicted: timers of a log, classes of kernels of a trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.breakdown import Breakdown
from simulator.runspec import RunSpec
from simulator.simulate import Result
from simulator.trace import RankTrace, Span
from validation.kernel_names import MEMORY_BOUND
from validation.kineto import KernelTrace
from validation.megatron_log import MegatronLog
from workloads.layout import RankGrid

OPTIMIZER_KERNELS = frozenset({"adam", "gradient norm", "clip gradients"})
"""Operations of the optimizer that run as multi-tensor kernels; the trace cannot tell its copies
and fills from others', so they count as memory-bound on both sides."""


@dataclass(frozen=True, slots=True)
class Term:
    """A part of the step, seconds."""

    name: str
    measured_s: float
    predicted_s: float
    of: Literal["step", "communication"] = "step"
    """`step` terms share out the step's wall time; the others are sums over kernels or timers."""
    note: str = ""

    @property
    def difference_s(self) -> float:
        """Measured minus predicted."""
        return self.measured_s - self.predicted_s


# terms of a log: timers


def timer_terms(result: Result, log: MegatronLog) -> list[Term]:
    """Passes and optimizer as Megatron-LM times them, slowest rank; what is left is the rest.

    Which timers there are depends on --timing-log-level; a pass's timer covers all microbatches.
    """
    measured = {name: timer.max_s for name, timer in log.timers.items()}
    ranks = result.trace.ranks
    predicted = {
        "forward-compute": max(_stream_s(rank, "forward") for rank in ranks),
        "backward-compute": max(_stream_s(rank, "backward") for rank in ranks),
        "forward-backward": max(_until_last_pass_s(rank) for rank in ranks),
        "optimizer": max(_stream_s(rank, "optimizer") for rank in ranks),
    }
    known = {name: (measured[name], predicted[name]) for name in predicted if name in measured}
    terms = [Term(_TIMERS[name], *known[name]) for name in ("forward-compute", "backward-compute")
             if name in known]  # fmt: skip
    if "forward-backward" in known and terms:
        note = "pipeline, communication and host inside forward-backward"
        terms.append(_rest("between passes", known["forward-backward"], terms, note))
    elif "forward-backward" in known:
        terms.append(Term(_TIMERS["forward-backward"], *known["forward-backward"]))
    if "optimizer" in known:
        terms.append(Term(_TIMERS["optimizer"], *known["optimizer"]))
    if {"forward-backward", "optimizer"} <= known.keys():
        whole = log.step_time_s, result.metrics["step_time_s"]
        note = "gradient reduction, data, logging, host"
        terms.append(_rest("rest of the step", whole, terms, note))
    return terms


_TIMERS = {
    "forward-compute": "forward passes",
    "backward-compute": "backward passes",
    "forward-backward": "forward and backward",
    "optimizer": "optimizer",
}


def _rest(name: str, whole: tuple[float, float], terms: list[Term], note: str) -> Term:
    """What the terms leave of a whole, measured and predicted."""
    measured_s = whole[0] - sum(term.measured_s for term in terms)
    predicted_s = whole[1] - sum(term.predicted_s for term in terms)
    return Term(name, measured_s, predicted_s, note=note)


def _stream_s(rank: RankTrace, category: str) -> float:
    """Seconds of a rank's compute stream in spans of a category, without the host's own time."""
    spans = [s for s in rank.spans if s.stream == "compute" and s.category == category]
    host_s = sum(p.duration_s for s in spans for p in s.pieces if p.kind == "overhead")
    return sum(s.duration_s for s in spans) - host_s


def _until_last_pass_s(rank: RankTrace) -> float:
    passes = [s for s in rank.spans if s.category in ("forward", "backward", "backward_weight")]
    return max(s.end_s for s in passes) - min(s.start_s for s in passes)


# terms of a trace: kernels


def stage_of(run: RunSpec, trace: KernelTrace) -> int | None:
    """The pipeline stage of the rank that was traced; None where the trace does not tell."""
    if trace.rank is None or trace.rank >= run.cluster.num_gpus:
        return None
    return RankGrid.of(run.parallelism, run.cluster.num_gpus).coordinates(trace.rank).pp


def kernel_terms(result: Result, trace: KernelTrace) -> list[Term]:
    """Classes of kernels, communication that nothing covers, and idle time: they share the step.

    Predicted is a rank of the traced one's stage, or of the busiest if the trace names no rank.
    """
    stage = stage_of(result.run, trace)
    stage = result.metrics["critical_stage"] if stage is None else stage
    step_time_s = result.metrics["step_time_s"]
    rank = next(r for r in result.program.ranks if r.stage == stage)
    breakdown = Breakdown(step_time_s).terms_s(rank)
    spans = next(r.spans for r in result.trace.ranks if r.stage == stage)
    predicted = _predicted_kernels(spans)
    seconds = trace.seconds
    measured = {
        "gemm": seconds.get("gemm", 0.0),
        "attention": seconds.get("attention", 0.0),
        "memory_bound": sum(seconds.get(kind, 0.0) for kind in MEMORY_BOUND),
        "optimizer": seconds.get("optimizer", 0.0),
    }
    terms = [Term(name, measured[name], predicted[name]) for name in measured]
    exposed_s = sum(s for name, s in breakdown.items() if name.endswith("_exposed"))
    computed_s = sum(predicted.values()) + breakdown.get("interference", 0.0)
    if exposed_s > 0 or trace.communication_s > 0:
        note = "the trace's includes waiting for other ranks"
        terms.append(
            Term("exposed_communication", trace.exposed_communication_s, exposed_s, note=note)
        )
    idle_s = max(0.0, step_time_s - computed_s - exposed_s)
    terms.append(Term("idle", trace.idle_s, idle_s, note="pipeline bubble, host and launch time"))
    return terms


def _predicted_kernels(spans: Sequence[Span]) -> dict[str, float]:
    """Seconds on a rank's compute stream, by class as a trace tells them."""
    seconds = dict.fromkeys(("gemm", "attention", "memory_bound", "optimizer"), 0.0)
    for span in spans:
        for piece in span.pieces:
            kind = "optimizer" if piece.name in OPTIMIZER_KERNELS else piece.kind
            if kind in seconds:
                seconds[kind] += piece.duration_s
    return seconds


def communication_terms(result: Result, trace: KernelTrace) -> Iterator[Term]:
    """Busy time of communication by axis where the trace names its groups, else all together."""
    busy = {axis: kind["busy_s"] for axis, kind in result.metrics["communication"].items()}
    named_s = sum(trace.axis_seconds.values())
    if trace.communication_s > 0 and named_s > 0.9 * trace.communication_s:
        for axis in dict.fromkeys((*busy, *trace.axis_seconds)):
            measured_s, predicted_s = trace.axis_seconds.get(axis, 0.0), busy.get(axis, 0.0)
            if measured_s > 0 or predicted_s > 0:
                yield Term(f"{axis} communication", measured_s, predicted_s, "communication")
    elif trace.communication_s > 0 or sum(busy.values()) > 0:
        yield Term(
            "communication", trace.communication_s, sum(busy.values()), "communication",
            "all kinds, hidden or not; the trace does not name its groups",
        )  # fmt: skip
