"""What a Gantt chart shows, as rows of boxes: from trace to rows, before anything is drawn.

The pipeline view has a row per stage: its busiest rank's compute stream, and, where that waits,
the communication it waits for; what no box covers is bubble. The stage view has a row per stream
of a stage's ranks, and one for the operations inside the passes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.feeds import Feeds
from simulator.palette import is_ramp
from simulator.trace import RankTrace, Span, Trace

MAX_RANKS = 8
"""Ranks of one stage that the stage view shows."""
KERNEL_KINDS = ("gemm", "attention", "memory_bound")
"""Kinds of operations in the order of their shades, dark to light."""
Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A coloured stretch of a row. `shade` is the chunk, or the kind of kernel; `label` is drawn
    where it fits."""

    start_s: float
    end_s: float
    category: str
    shade: int = 0
    num_shades: int = 1
    label: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the chart. `operations` says that shades mean kinds of kernels, not chunks."""

    label: str
    boxes: tuple[Box, ...]
    operations: bool = False
    note: str = ""
    """Said beside the label."""


def pipeline_rows(trace: Trace, window: Window, resolution_s: float) -> list[Row]:
    """One row per stage, the first on top. Gaps shorter than `resolution_s` close: they could not
    be seen, and rounding to pixels would show some of them and not others."""
    feeds, num_chunks = Feeds(trace), count_chunks(trace)
    rows = []
    for stage in range(trace.num_stages):
        rank = busiest_rank(trace, stage)
        compute = [s for s in rank.spans if s.stream == "compute"]
        waits = [b for b in _waits(rank, compute, feeds) if _visible(b, window)]
        boxes = _boxes(compute, num_chunks, window)
        rows.append(Row(f"stage {stage}", (*_closed(boxes, resolution_s), *waits)))
    return rows


def stage_rows(
    trace: Trace, stage: int, window: Window, resolution_s: float, operations: bool
) -> list[Row]:
    """A row per stream of the stage's ranks; with `operations` one more for what passes execute."""
    num_chunks = count_chunks(trace)
    ranks = stage_ranks(trace, stage)[:MAX_RANKS]
    rows = []
    for rank in ranks:
        prefix = f"rank {rank.rank}  " if len(ranks) > 1 else ""
        for stream, spans in streams(rank).items():
            boxes = _closed(_boxes(spans, num_chunks, window), resolution_s)
            busy = _percent_text(busy_fraction(spans, window))
            rows.append(Row(prefix + stream, tuple(boxes), note=f"{busy} busy"))
            if stream == "compute" and operations:
                inside = tuple(_operation_boxes(spans, window))
                rows.append(Row(prefix + "operations", inside, operations=True))
    return rows


def stage_ranks(trace: Trace, stage: int) -> list[RankTrace]:
    """The stage's ranks in the trace. Raises ValueError for a stage that is not there."""
    ranks = [rank for rank in trace.ranks if rank.stage == stage]
    if not ranks:
        raise ValueError(f"there is no stage {stage}; choose 0 to {trace.num_stages - 1}")
    return ranks


def busiest_rank(trace: Trace, stage: int) -> RankTrace:
    """The rank that computes longest, which others wait for; the first of equals."""
    return max(stage_ranks(trace, stage), key=_compute_s)


def streams(rank: RankTrace) -> dict[str, list[Span]]:
    """The rank's spans by stream, compute first, otherwise as in the trace."""
    by_stream: dict[str, list[Span]] = {"compute": []}
    for span in rank.spans:
        by_stream.setdefault(span.stream, []).append(span)
    return {stream: spans for stream, spans in by_stream.items() if spans}


def count_chunks(trace: Trace) -> int:
    """Model chunks per stage."""
    return 1 + max((s.chunk for r in trace.ranks for s in r.spans), default=0)


def busy_fraction(spans: Iterable[Span], window: Window) -> float:
    """The part of the window in which a stream ran something."""
    busy_s = sum(max(0.0, min(s.end_s, window[1]) - max(s.start_s, window[0])) for s in spans)
    return min(busy_s / (window[1] - window[0]), 1.0)


def _percent_text(fraction: float) -> str:
    return "<1 %" if 0.0 < fraction < 0.005 else f"{fraction * 100:.0f} %"


def shown_category(span: Span) -> str:
    """The span's category, or the only one of its operations: host time inside the optimizer."""
    inside = {piece.category for piece in span.pieces} if span.microbatch < 0 else set()
    return inside.pop() if len(inside) == 1 else span.category


def _compute_s(rank: RankTrace) -> float:
    passes = ("forward", "backward", "backward_weight")
    busy_s = sum(s.duration_s for s in rank.spans if s.category in passes)
    return round(busy_s, 9)  # so that equals stay equal


def _visible(item: Box | Span, window: Window) -> bool:
    return item.end_s > window[0] and item.start_s < window[1]


def _boxes(spans: Iterable[Span], num_chunks: int, window: Window) -> Iterator[Box]:
    for span in spans:
        if _visible(span, window):
            label = str(span.microbatch) if span.microbatch >= 0 else ""
            yield Box(
                span.start_s, span.end_s, shown_category(span), max(span.chunk, 0), num_chunks,
                label or span.name,
            )  # fmt: skip


def _closed(boxes: Iterable[Box], resolution_s: float) -> list[Box]:
    """Let a pass last until the next one where the gap is short, and make its parts one box.

    Other boxes keep their length: a short transfer must not grow by the wait before the next.
    """
    closed: list[Box] = []
    for box in boxes:
        last = closed[-1] if closed else None
        if last is not None and box.start_s - last.end_s < resolution_s:
            if (last.category, last.shade, last.label) == (box.category, box.shade, box.label):
                closed[-1] = replace(last, end_s=box.end_s)
                continue
            if is_ramp(last.category):
                closed[-1] = replace(last, end_s=max(box.start_s, last.end_s))
        closed.append(box)
    return closed


def _waits(rank: RankTrace, compute: Sequence[Span], feeds: Feeds) -> Iterator[Box]:
    """Communication that ran while the compute stream waited for it.

    As in the breakdown of the step, a wait belongs to what ended last before it was over; a wait
    that nothing ended is bubble.
    """
    gradients = [s for s in rank.spans if s.stream == "dp"]
    ends = {s.end_s for s in gradients}
    now_s = 0.0
    for span in compute:
        if span.start_s > now_s:
            send = feeds.of(rank, span)
            if send is not None and send.span.end_s == span.start_s:
                yield from _clipped([send.span], now_s, span.start_s)
            elif span.start_s in ends:
                yield from _clipped(gradients, now_s, span.start_s)
        now_s = max(now_s, span.end_s)


def _clipped(spans: Iterable[Span], from_s: float, to_s: float) -> Iterator[Box]:
    for span in spans:
        start_s, end_s = max(span.start_s, from_s), min(span.end_s, to_s)
        if end_s > start_s:
            yield Box(start_s, end_s, span.category)


def _operation_boxes(spans: Iterable[Span], window: Window) -> Iterator[Box]:
    """The operations inside spans, stretched where the span was slowed."""
    for span in spans:
        inside_s = sum(piece.duration_s for piece in span.pieces)
        if inside_s <= 0 or not _visible(span, window):
            continue
        stretch, at_s = span.duration_s / inside_s, span.start_s
        for piece in span.pieces:
            end_s = at_s + piece.duration_s * stretch
            shade = KERNEL_KINDS.index(piece.kind) if piece.kind in KERNEL_KINDS else 0
            box = Box(at_s, end_s, piece.category, shade, len(KERNEL_KINDS), piece.name)
            if _visible(box, window):
                yield box
            at_s = end_s
