"""Where a rank's step went: exclusive terms of wall time that sum to the step.

Walks one compute stream from the start of the step to its end. What a task waits for is told by
what ended last before it: a transfer or collective that was running is communication not hidden; a
wait before that is the pipeline's bubble.
"""

from collections.abc import Mapping, Sequence

from simulator.engine import Exchange, Rank, Task
from simulator.profile import Profile
from simulator.trace import Piece

TERMS = (
    "gemm", "attention", "memory_bound", "recompute", "optimizer", "tp_exposed", "cp_exposed",
    "ep_exposed", "pp_exposed", "dp_exposed", "offload_exposed", "interference", "gpu_variation",
    "straggler_wait", "overhead", "bubble",
)  # fmt: skip
"""gemm, attention, memory_bound: kernels of forward and backward. recompute: forward kernels run
again. *_exposed: communication that compute does not cover. interference: what compute lost to
communication beside it. gpu_variation: what compute takes longer than on a typical GPU, because it
goes at the pace of the slowest (or is a slow one itself). straggler_wait: waiting inside a pass for
a slower neighbour of its tensor-, context- or expert-parallel group. bubble: idle because of the
pipeline."""

_ON_GPU = ("gemm", "attention", "memory_bound")

_INSIDE_PASSES = ("tp", "cp", "ep")
_EXPOSED = {kind: f"{kind}_exposed" for kind in (*_INSIDE_PASSES, "pp", "dp", "offload")}


class Breakdown:
    """Breaks down compute streams of one run; remembers what each part of a profile holds."""

    def __init__(self, step_time_s: float) -> None:
        self._step_time_s = step_time_s
        self._parts: dict[tuple[Profile, float, float], tuple[dict[str, float], float]] = {}

    def terms_s(self, rank: Rank, begin_s: float = 0.0) -> dict[str, float]:
        """Seconds of each term of `TERMS`, in that order, for one rank's compute stream from
        `begin_s` on."""
        terms = dict.fromkeys(TERMS, 0.0)
        gradients = [task.exchange for task in rank.streams.get("dp", ()) if task.exchange]
        counts: dict[tuple[Profile, float, float], int] = {}
        now_s, computing_s = begin_s, 0.0
        for task in rank.streams["compute"]:
            if task.start_s > now_s:
                _add_wait(terms, task, now_s, gradients)
            if task.profile is not None:
                key = task.profile, task.from_s, task.to_s
                counts[key] = counts.get(key, 0) + 1
                computing_s += task.end_s - task.start_s
            elif task.exchange is not None:
                inside = task.category in _INSIDE_PASSES
                waiting = "straggler_wait" if inside else "bubble"
                running_s = _running_s([task.exchange], task.start_s, task.end_s)
                terms[_EXPOSED[task.category]] += running_s
                terms[waiting] += (task.end_s - task.start_s) - running_s
            now_s = task.end_s
        terms["bubble"] += begin_s + self._step_time_s - now_s
        self._add_compute(terms, counts, computing_s, rank.speed)
        return terms

    def _add_compute(
        self,
        terms: dict[str, float],
        counts: Mapping[tuple[Profile, float, float], int],
        computing_s: float,
        speed: float,
    ) -> None:
        """Add what was computed, so many times each; what it took beyond that is interference."""
        for (profile, from_s, to_s), count in counts.items():
            key = (profile, from_s, to_s)
            if key not in self._parts:
                self._parts[key] = _quiet_terms(profile.pieces(from_s, to_s), speed)
            parts, quiet_s = self._parts[key]
            for term, seconds in parts.items():
                terms[term] += count * seconds
            computing_s -= count * quiet_s
        terms["interference"] += computing_s


def _quiet_terms(pieces: Sequence[Piece], speed: float) -> tuple[dict[str, float], float]:
    """Terms of the operations inside a task, undisturbed, and their sum."""
    terms: dict[str, float] = {}
    for piece in pieces:
        term = _EXPOSED.get(piece.kind, piece.kind)
        if piece.category in ("recompute", "optimizer", "overhead"):
            term = piece.category
        typical_s = piece.duration_s * (speed if piece.kind in _ON_GPU else 1.0)
        terms[term] = terms.get(term, 0.0) + typical_s
        terms["gpu_variation"] = terms.get("gpu_variation", 0.0) + piece.duration_s - typical_s
    return terms, sum(terms.values())


def _add_wait(
    terms: dict[str, float], task: Task, since_s: float, gradients: Sequence[Exchange]
) -> None:
    """The gap before a task, by the need that ended last.

    Behind a data-parallel collective, all time in which that stream was busy is exposed; behind a
    copy from the host, all of it: the host has been at work.
    """
    last = max(task.needs, key=lambda need: need.end_s)
    exposed_s = 0.0
    if last.category == "offload":
        exposed_s = task.start_s - since_s
        terms["offload_exposed"] += exposed_s
    elif last.exchange is not None:
        running = gradients if last.category == "dp" else [last.exchange]
        exposed_s = _running_s(running, since_s, task.start_s)
        terms[_EXPOSED[last.category]] += exposed_s
    terms["bubble"] += (task.start_s - since_s) - exposed_s


def _running_s(exchanges: Sequence[Exchange], from_s: float, to_s: float) -> float:
    """Time between two moments in which one of `exchanges`, which follow each other, ran."""
    return sum(max(0.0, min(to_s, e.end_s) - max(from_s, e.start_s)) for e in exchanges)
