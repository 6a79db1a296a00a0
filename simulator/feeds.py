"""Which transfer brought a pass its input: sends of one rank, passes of another."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.trace import RankTrace, Span, Trace
from workloads.passes import Direction, Pass, Route, pass_input


class Send(NamedTuple):
    """A transfer between stages, and the rank that sent it."""

    rank: int
    span: Span


@dataclass(frozen=True)
class Feeds:
    """Looks up the transfers of one trace."""

    trace: Trace

    def of(self, receiver: RankTrace, span: Span) -> Send | None:
        """The transfer that feeds this pass; None at the ends of the model, for what is no pass,
        and where the trace does not say which rank sent it."""
        if span.category not in ("forward", "backward"):
            return None
        step = Pass(span.category, span.microbatch, span.chunk)
        source = pass_input(step, receiver.stage, self._route)
        sender = self._sender(receiver, source.stage) if source is not None else None
        if source is None or sender is None:
            return None
        sent = self._sends[sender.rank].get(source.source)
        return None if sent is None else Send(sender.rank, sent)

    def _sender(self, receiver: RankTrace, stage: int) -> RankTrace | None:
        """The only rank of a stage, or the one at the receiver's place within its stage."""
        ranks = self._stages[stage]
        if len(ranks) == 1:
            return next(iter(ranks.values()))
        return ranks.get(self._place(receiver))

    @cached_property
    def _route(self) -> Route:
        chunks = 1 + max((s.chunk for r in self.trace.ranks for s in r.spans), default=0)
        return Route(self.trace.num_stages, chunks, self.trace.v_shaped)

    def _place(self, rank: RankTrace) -> int:
        """Number of a rank within its stage."""
        stride = self.trace.stage_stride
        before, within = divmod(rank.rank, stride * self.trace.num_stages)
        return before * stride + within % stride

    @cached_property
    def _stages(self) -> dict[int, dict[int, RankTrace]]:
        stages: dict[int, dict[int, RankTrace]] = {}
        for rank in self.trace.ranks:
            stages.setdefault(rank.stage, {})[self._place(rank)] = rank
        return stages

    @cached_property
    def _sends(self) -> dict[int, dict[Pass, Span]]:
        return {rank.rank: _sends(rank) for rank in self.trace.ranks}


def _sends(rank: RankTrace) -> dict[Pass, Span]:
    sends: dict[Pass, Span] = {}
    for span in rank.spans:
        if span.category == "pp":
            direction: Direction = "forward" if "forward" in span.name else "backward"
            sends[Pass(direction, span.microbatch, span.chunk)] = span
    return sends
