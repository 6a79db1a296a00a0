"""A step as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" (Google, the Chromium project): metadata ("M"), complete ("X") and
flow ("s", "f") events. One process per rank, one thread per stream; both are numbered from 1,
since Perfetto takes process and thread 0 for the kernel's idle ones (its issues 394 and 560).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from simulator.feeds import Feeds
from simulator.files import whole_file
from simulator.gantt_rows import shown_category, streams
from simulator.trace import RankTrace, Span, Trace

Event: TypeAlias = dict[str, Any]

TICKS_PER_S = 8_000_000.0
"""Times are whole multiples of 1/8 microsecond, the finest step that is exact in binary
microseconds and whole in nanoseconds: viewers convert without rounding, so events that touch never
overlap by a nanosecond, which Perfetto takes for broken nesting."""


def chrome_trace(
    trace: Trace, *, detail_microbatches: int = 1, flows: bool = True
) -> dict[str, Any]:
    """The trace as a JSON object, times in microseconds.

    Passes of the first `detail_microbatches` microbatches, and what belongs to none, hold their
    operations as nested events; `flows` draws an arrow from each transfer between stages to the
    pass that it feeds.
    """
    threads = {rank.rank: list(streams(rank)) for rank in trace.ranks}
    events: list[Event] = []
    for position, rank in enumerate(trace.ranks):
        events += _metadata(rank, position, threads[rank.rank])
    for rank in trace.ranks:
        for tid, spans in enumerate(streams(rank).values(), 1):
            for span in sorted(spans, key=lambda s: s.start_s):
                events += _span_events(span, _pid(rank.rank), tid, detail_microbatches)
    if flows:
        events += _flow_events(trace, threads)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"name": trace.name, "step_time_s": trace.step_time_s},
    }


def write_chrome_trace(
    trace: Trace, path: Path | str, *, detail_microbatches: int = 1, flows: bool = True
) -> None:
    """Write `chrome_trace` as a JSON file, whole or not at all."""
    content = chrome_trace(trace, detail_microbatches=detail_microbatches, flows=flows)
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    with whole_file(Path(path)) as scratch:
        scratch.write_text(text + "\n", encoding="utf-8")


def _metadata(rank: RankTrace, position: int, names: Iterable[str]) -> Iterator[Event]:
    alike = f" (x{rank.num_ranks})" if rank.num_ranks > 1 else ""
    name = f"stage {rank.stage} · rank {rank.rank}{alike}"
    pid = _pid(rank.rank)
    yield _about(pid, 1, "process_name", {"name": name})
    yield _about(pid, 1, "process_sort_index", {"sort_index": position})
    for tid, stream in enumerate(names, 1):
        yield _about(pid, tid, "thread_name", {"name": stream})
        yield _about(pid, tid, "thread_sort_index", {"sort_index": tid})


def _pid(rank: int) -> int:
    return rank + 1


def _about(pid: int, tid: int, name: str, args: Mapping[str, Any]) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args}


def _span_events(span: Span, pid: int, tid: int, detail_microbatches: int) -> Iterator[Event]:
    """The span, and its operations if asked for; nothing where both ends fall on one tick."""
    start, end = _tick(span.start_s), _tick(span.end_s)
    if start == end:
        return
    category = shown_category(span)
    args: Event = {"category": category}
    if span.microbatch >= 0:
        args["microbatch"] = span.microbatch
    if span.chunk >= 0:
        args["chunk"] = span.chunk
    yield _complete(pid, tid, span.name, category, start, end, args)
    if span.microbatch < detail_microbatches and len(span.pieces) > 1:
        yield from _piece_events(span, pid, tid)


def _piece_events(span: Span, pid: int, tid: int) -> Iterator[Event]:
    """Operations end to end, stretched where the span was slowed."""
    inside_s = sum(piece.duration_s for piece in span.pieces)
    stretch = span.duration_s / inside_s if inside_s > 0 else 0.0
    done_s, last = 0.0, _tick(span.end_s)
    start = _tick(span.start_s)
    for piece in span.pieces:
        done_s += piece.duration_s
        end = min(_tick(span.start_s + done_s * stretch), last)
        if end > start:
            args = {"category": piece.category, "kind": piece.kind}
            yield _complete(pid, tid, piece.name, piece.category, start, end, args)
        start = end


def _complete(
    pid: int, tid: int, name: str, category: str, start: int, end: int, args: Event
) -> Event:
    return {
        "ph": "X", "pid": pid, "tid": tid, "name": name, "cat": category,
        "ts": start / 8, "dur": (end - start) / 8, "args": args,
    }  # fmt: skip


def _flow_events(trace: Trace, threads: Mapping[int, list[str]]) -> Iterator[Event]:
    """Arrows from the start of each transfer to the first part of the pass that needs it."""
    feeds, number = Feeds(trace), 0
    for rank in trace.ranks:
        seen: set[tuple[str, int, int]] = set()
        for span in rank.spans:
            key = (span.category, span.microbatch, span.chunk)
            if span.stream != "compute" or key in seen:
                continue
            seen.add(key)
            send = feeds.of(rank, span)
            if send is None or _empty(send.span) or _empty(span):
                continue
            number += 1
            tid = threads[send.rank].index(send.span.stream) + 1
            yield _flow("s", number, send.rank, tid, send.span.start_s)
            compute = threads[rank.rank].index("compute") + 1
            yield _flow("f", number, rank.rank, compute, span.start_s) | {"bp": "e"}


def _flow(phase: str, number: int, rank: int, tid: int, at_s: float) -> Event:
    return {
        "ph": phase, "id": number, "pid": _pid(rank), "tid": tid, "ts": _tick(at_s) / 8,
        "name": "transfer", "cat": "pp",
    }  # fmt: skip


def _tick(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def _empty(span: Span) -> bool:
    return _tick(span.start_s) == _tick(span.end_s)
