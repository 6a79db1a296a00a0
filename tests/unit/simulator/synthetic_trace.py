"""Traces made without the event loop: unit passes in a real order, sends, gathers, an optimizer."""

from dataclasses import dataclass, field

from simulator.trace import Piece, RankTrace, Span, Trace
from workloads.passes import Pass, Route, pass_input
from workloads.pipeline import SCHEDULES

FORWARD_S, BACKWARD_S, SEND_S, GATHER_S, OPTIMIZER_S = 1.0, 2.0, 0.25, 0.5, 1.0
PIECES = {
    "forward": (
        Piece("qkv", "forward", "gemm", 0.5),
        Piece("attention", "forward", "attention", 0.25),
        Piece("norm", "forward", "memory_bound", 0.125),
        Piece("qkv input", "tp", "tp", 0.125),
    ),
    "backward": (Piece("wgrad", "backward", "gemm", 1.5), Piece("again", "recompute", "gemm", 0.5)),
}


@dataclass
class _Stage:
    order: list[Pass]
    now_s: float
    next: int = 0
    streams: dict[str, list[Span]] = field(default_factory=dict)


def synthetic_trace(
    schedule: str = "1f1b", stages: int = 4, microbatches: int = 8, chunks: int = 1,
    ranks_per_stage: int = 2,
) -> Trace:  # fmt: skip
    """One rank per stage; each pass starts when its stage is free and its input has arrived."""
    state = [
        _Stage(list(SCHEDULES[schedule](s, stages, microbatches, chunks)), GATHER_S)
        for s in range(stages)
    ]
    arrives: dict[tuple[int, Pass], float] = {}
    progress = True
    while progress:
        progress = False
        for s, stage in enumerate(state):
            while stage.next < len(stage.order):
                step = stage.order[stage.next]
                source = pass_input(step, s, Route(stages, chunks))
                key = (source.stage, source.source) if source else None
                if key is not None and key not in arrives:
                    break
                ready_s = arrives[key] if key is not None else 0.0
                arrives[s, step] = _run(stage, step, ready_s)
                stage.next += 1
                progress = True
    assert all(stage.next == len(stage.order) for stage in state)
    return _finished(state, ranks_per_stage)


def _run(stage: _Stage, step: Pass, ready_s: float) -> float:
    """Append the pass and its send; return when the send arrives."""
    start_s = max(stage.now_s, ready_s)
    end_s = start_s + (FORWARD_S if step.direction == "forward" else BACKWARD_S)
    stage.now_s = end_s
    title = f"{step.direction} {step.microbatch}.{step.chunk}"
    _add(stage, Span("compute", title, step.direction, start_s, end_s, step.microbatch, step.chunk,
                     PIECES[step.direction]))  # fmt: skip
    stream = "pp_next" if step.direction == "forward" else "pp_prev"
    sends = stage.streams.setdefault(stream, [])
    sent_s = max([end_s, *(s.end_s for s in sends[-1:])])
    _add(stage, Span(stream, f"send {title}", "pp", sent_s, sent_s + SEND_S, step.microbatch,
                     step.chunk))  # fmt: skip
    return sent_s + SEND_S


def _add(stage: _Stage, span: Span) -> None:
    stage.streams.setdefault(span.stream, []).append(span)


def _finished(state: list[_Stage], ranks_per_stage: int) -> Trace:
    last_s = max(stage.now_s for stage in state)
    ranks = []
    for s, stage in enumerate(state):
        adam = (Piece("adam", "optimizer", "memory_bound", OPTIMIZER_S),)
        _add(stage, Span("compute", "adam", "optimizer", last_s, last_s + 1.0, pieces=adam))
        host = (Piece("host", "overhead", "overhead", 1.0),)
        _add(stage, Span("compute", "host", "optimizer", last_s + 1.0, last_s + 2.0, pieces=host))
        _add(stage, Span("dp", "gather parameters 0.0", "dp", 0.0, GATHER_S, chunk=0))
        spans = tuple(span for stream in stage.streams.values() for span in stream)
        ranks.append(RankTrace(s * ranks_per_stage, s, ranks_per_stage, spans))
    return Trace(
        "a <synthetic> run $x$", last_s + 2.0, len(state), tuple(ranks),
        stage_stride=ranks_per_stage,
    )  # fmt: skip
