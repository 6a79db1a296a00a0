"""From executed tasks to a trace."""

from simulator.engine import Executed, Task
from simulator.program import Program
from simulator.trace import Piece, RankTrace, Span, Trace


def build_trace(name: str, program: Program, executed: Executed) -> Trace:
    """Spans of every simulated rank; waiting leaves no span."""
    ranks = [
        RankTrace(
            rank.rank,
            rank.stage,
            rank.num_ranks,
            tuple(
                span
                for stream, tasks in rank.streams.items()
                for task in tasks
                for span in [_span(stream, task)]
                if span.end_s > span.start_s
            ),
        )
        for rank in program.ranks
    ]
    ranks.sort(key=lambda r: (r.stage, r.rank))
    num_stages = 1 + max(rank.stage for rank in ranks)
    return Trace(name, executed.end_s, num_stages, tuple(ranks))


def _span(stream: str, task: Task) -> Span:
    start_s = task.start_s
    pieces: tuple[Piece, ...] = ()
    if task.profile is not None:
        pieces = task.profile.pieces(task.from_s, task.to_s)
    elif task.exchange is not None:
        start_s = max(start_s, task.exchange.start_s)
    return Span(
        stream, task.name, task.category, start_s, task.end_s, task.microbatch, task.chunk, pieces
    )
