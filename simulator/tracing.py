"""From executed tasks to a trace."""

from simulator.engine import Executed, Rank, Task
from simulator.program import Program
from simulator.trace import Piece, RankTrace, Span, Trace


def build_trace(
    name: str, program: Program, executed: Executed, stage_stride: int, v_shaped: bool = False
) -> Trace:
    """Spans of every simulated rank; waiting leaves no span."""
    spans = _Spans()
    ranks = [
        RankTrace(rank.rank, rank.stage, rank.num_ranks, spans.of(rank)) for rank in program.ranks
    ]
    ranks.sort(key=lambda r: (r.stage, r.rank))
    num_stages = 1 + max(rank.stage for rank in ranks)
    return Trace(name, executed.end_s, num_stages, tuple(ranks), v_shaped, stage_stride)


class _Spans:
    """Makes spans; passes alike share their pieces."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, float, float], tuple[Piece, ...]] = {}

    def of(self, rank: Rank) -> tuple[Span, ...]:
        made = (self._span(stream, t) for stream, tasks in rank.streams.items() for t in tasks)
        return tuple(span for span in made if span.end_s > span.start_s)

    def _span(self, stream: str, task: Task) -> Span:
        start_s = task.start_s
        pieces: tuple[Piece, ...] = ()
        if task.profile is not None:
            key = (id(task.profile), task.from_s, task.to_s)
            if key not in self._pieces:
                self._pieces[key] = task.profile.pieces(task.from_s, task.to_s)
            pieces = self._pieces[key]
        elif task.exchange is not None:
            start_s = max(start_s, task.exchange.start_s)
        return Span(
            stream, task.name, task.category, start_s, task.end_s, task.microbatch, task.chunk,
            pieces,
        )  # fmt: skip
