"""Where a rank's step went: exclusive terms of wall time that sum to the step.

Walks one compute stream from the start of the step to its end. What a task waits for is told by
what ended last before it: a transfer or collective that was running is communication not hidden; a
wait before that is the pipeline's bubble.
"""

from collections import Counter
from collections.abc import Sequence

from simulator.engine import Exchange, Task

TERMS = (
    "gemm", "attention", "memory_bound", "recompute", "optimizer", "tp_exposed", "pp_exposed",
    "dp_exposed", "interference", "straggler_wait", "overhead", "bubble",
)  # fmt: skip
"""gemm, attention, memory_bound: kernels of forward and backward. recompute: forward kernels run
again. *_exposed: communication that compute does not cover. interference: what compute lost to
communication beside it. straggler_wait: waiting inside a pass for a slower tensor-parallel
neighbour. bubble: idle because of the pipeline."""

_EXPOSED = {"tp": "tp_exposed", "pp": "pp_exposed", "dp": "dp_exposed"}


def breakdown_s(compute: Sequence[Task], step_time_s: float) -> dict[str, float]:
    """Seconds of each term of `TERMS`, in that order, for the tasks of one compute stream."""
    terms: Counter[str] = Counter()
    now_s = 0.0
    for task in compute:
        _add_wait(terms, task, now_s)
        if task.profile is not None:
            _add_compute(terms, task)
        elif task.exchange is not None:
            waiting = "straggler_wait" if task.category == "tp" else "bubble"
            _add_exchange(terms, task.exchange, task.category, task.start_s, task.end_s, waiting)
        now_s = task.end_s
    terms["bubble"] += step_time_s - now_s
    return {term: terms[term] for term in TERMS}


def _add_wait(terms: "Counter[str]", task: Task, since_s: float) -> None:
    """The gap before a task, by the need that ended last."""
    if task.start_s <= since_s:
        return
    last = max(task.needs, key=lambda need: need.end_s)
    if last.exchange is None:
        terms["bubble"] += task.start_s - since_s
    else:
        _add_exchange(terms, last.exchange, last.category, since_s, task.start_s, "bubble")


def _add_exchange(
    terms: "Counter[str]",
    exchange: Exchange,
    category: str,
    from_s: float,
    to_s: float,
    waiting: str,
) -> None:
    running_s = max(0.0, min(to_s, exchange.end_s) - max(from_s, exchange.start_s))
    terms[_EXPOSED[category]] += running_s
    terms[waiting] += (to_s - from_s) - running_s


def _add_compute(terms: "Counter[str]", task: Task) -> None:
    assert task.profile is not None
    quiet_s = 0.0
    for piece in task.profile.pieces(task.from_s, task.to_s):
        quiet_s += piece.duration_s
        if piece.category in ("recompute", "optimizer", "overhead"):
            terms[piece.category] += piece.duration_s
        else:
            terms[_EXPOSED.get(piece.kind, piece.kind)] += piece.duration_s
    terms["interference"] += (task.end_s - task.start_s) - quiet_s
