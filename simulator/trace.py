"""What happened when: spans on the streams of ranks, one rank per class of ranks that behave alike.

A trace is the event loop's only product; metrics, charts and exports are pure functions of it.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Category: TypeAlias = Literal[
    "forward", "backward", "backward_weight", "recompute", "optimizer",
    "tp", "cp", "ep", "pp", "dp", "offload", "overhead",
]  # fmt: skip
"""`forward`, `backward` (where it is split, its input's part) and `backward_weight` passes and
`optimizer` kernels are compute; `tp`, `cp`, `ep`, `pp`, `dp` are communication of that kind;
`offload` is copies to the host and back, and what it computes; `recompute` occurs in pieces only;
`overhead` is host time."""

_KINDS: dict[str, Category] = {
    "tp": "tp", "etp": "tp", "cp": "cp", "cp_a2a": "cp", "cp_ring": "cp", "ep": "ep",
}  # fmt: skip


def communication_kind(axis: str) -> Category:
    """What a collective along `axis` counts as. Experts' tensor parallelism is tensor parallelism;
    all that ends the step (gradients, norms) is data-parallel communication."""
    return _KINDS.get(axis, "dp")


@dataclass(frozen=True, slots=True)
class Piece:
    """An operation inside a span, priced once for all spans alike: it has a duration, not a time.

    `category` as for spans; `kind` says what ran: gemm, attention, memory_bound, or a collective's
    axis for the part of it that compute does not cover.
    """

    name: str
    category: Category
    kind: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of one stream. `microbatch` and `chunk` are -1 where they have no meaning.

    `pieces` are the operations inside, in order; their durations sum to the span's own unless it
    was slowed by communication beside it.
    """

    stream: str
    """compute, pp_next, pp_prev, dp, host_down, host, host_up."""
    name: str
    category: Category
    start_s: float
    end_s: float
    microbatch: int = -1
    chunk: int = -1
    pieces: tuple[Piece, ...] = ()

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class RankTrace:
    """The spans of one rank, which stands for `num_ranks` ranks that did the same."""

    rank: int
    stage: int
    num_ranks: int
    spans: tuple[Span, ...]
    """In order of start, stream by stream."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One step, from the first forward to the last parameter gathered."""

    name: str
    step_time_s: float
    num_stages: int
    ranks: tuple[RankTrace, ...]
    """At least one per stage, ordered by stage, then rank."""
    v_shaped: bool = False
    """Whether odd chunks go back from the last stage to the first."""
    stage_stride: int = 1
    """Ranks from a place in one stage to the same place in the next."""
