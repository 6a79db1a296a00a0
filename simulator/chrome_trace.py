"""A step as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" (Google, the Chromium project): metadata ("M"), complete ("X") and
flow ("s", "f") events. One process per rank, one thread per stream; both are numbered from 1,
since Perfetto takes process and thread 0 for the kernel's idle ones (its issues 394 and 560).
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from simulator.feeds import Feeds
from simulator.files import whole_file
from simulator.gantt_rows import shown_category, streams
from simulator.trace import RankTrace, Span, Trace

TICKS_PER_S = 8_000_000.0
"""Times are whole multiples of 1/8 microsecond, the finest step that is exact in binary
microseconds and whole in nanoseconds: viewers convert without rounding, so events that touch never
overlap by a nanosecond, which Perfetto takes for broken nesting."""
_TICKS_PER_US = 8
_FIRST = 1  # number of the first thread of a process


def chrome_trace(
    trace: Trace, detail_microbatches: int = 1, *, flows: bool = True
) -> dict[str, Any]:
    """The trace as a JSON object, times in microseconds.

    Passes of the first `detail_microbatches` microbatches, and what belongs to none, hold their
    operations as nested events; `flows` draws an arrow from each transfer between stages to the
    pass that it feeds.
    """
    text = "".join(_text(trace, detail_microbatches, flows))
    content: dict[str, Any] = json.loads(text)
    return content


def write_chrome_trace(
    trace: Trace, path: Path | str, *, detail_microbatches: int = 1, flows: bool = True
) -> None:
    """Write `chrome_trace` as a JSON file, whole or not at all; faster than by way of objects."""
    with whole_file(Path(path)) as scratch, scratch.open("w", encoding="utf-8") as file:
        file.writelines(_text(trace, detail_microbatches, flows))


def _text(trace: Trace, detail_microbatches: int, flows: bool) -> Iterator[str]:
    """Pieces of the JSON text; one event a line."""
    head = {"displayTimeUnit": "ms", "otherData": {
        "name": trace.name, "step_time_s": trace.step_time_s}}  # fmt: skip
    yield json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": [\n'
    separator = ""
    for event in _events(trace, detail_microbatches, flows):
        yield separator
        yield event
        separator = ",\n"
    yield "\n]}\n"


def _events(trace: Trace, detail_microbatches: int, flows: bool) -> Iterator[str]:
    """Metadata, then spans thread by thread in order of start, then flows."""
    threads = {rank.rank: streams(rank) for rank in trace.ranks}
    for position, rank in enumerate(trace.ranks):
        yield from _metadata(rank, position, threads[rank.rank])
    for rank in trace.ranks:
        for tid, spans in enumerate(threads[rank.rank].values(), _FIRST):
            for span in sorted(spans, key=lambda s: s.start_s):
                yield from _span_events(span, _pid(rank.rank), tid, detail_microbatches)
    if flows:
        numbers = {r: {name: i for i, name in enumerate(t, _FIRST)} for r, t in threads.items()}
        yield from _flow_events(trace, numbers)


def _metadata(rank: RankTrace, position: int, names: Mapping[str, object]) -> Iterator[str]:
    alike = f" (x{rank.num_ranks} ranks)" if rank.num_ranks > 1 else ""
    name = f"stage {rank.stage} · rank {rank.rank}{alike}"
    pid = _pid(rank.rank)
    yield _about(pid, _FIRST, "process_name", "name", name)
    yield _about(pid, _FIRST, "process_sort_index", "sort_index", position)
    for tid, stream in enumerate(names, _FIRST):
        yield _about(pid, tid, "thread_name", "name", stream)
        yield _about(pid, tid, "thread_sort_index", "sort_index", tid)


def _pid(rank: int) -> int:
    return rank + 1


def _about(pid: int, tid: int, name: str, key: str, value: str | int) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {key: value}})


def _span_events(span: Span, pid: int, tid: int, detail_microbatches: int) -> Iterator[str]:
    """The span, and its operations if asked for; nothing where both ends fall on one tick."""
    start, end = _tick(span.start_s), _tick(span.end_s)
    if start == end:
        return
    category = shown_category(span)
    args = f'"category": {_quoted(category)}'
    if span.microbatch >= 0:
        args += f', "microbatch": {span.microbatch}'
    if span.chunk >= 0:
        args += f', "chunk": {span.chunk}'
    yield _complete(pid, tid, span.name, category, start, end, args)
    if span.microbatch < detail_microbatches and len(span.pieces) > 1:
        yield from _piece_events(span, pid, tid)


def _piece_events(span: Span, pid: int, tid: int) -> Iterator[str]:
    """Operations end to end, stretched where the span was slowed."""
    inside_s = sum(piece.duration_s for piece in span.pieces)
    stretch = span.duration_s / inside_s if inside_s > 0 else 0.0
    done_s, start, last = 0.0, _tick(span.start_s), _tick(span.end_s)
    for piece in span.pieces:
        done_s += piece.duration_s
        end = min(_tick(span.start_s + done_s * stretch), last)
        if end > start:
            args = f'"category": {_quoted(piece.category)}, "kind": {_quoted(piece.kind)}'
            yield _complete(pid, tid, piece.name, piece.category, start, end, args)
        start = end


def _complete(pid: int, tid: int, name: str, category: str, start: int, end: int, args: str) -> str:
    return (
        f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {start / _TICKS_PER_US!r}, '
        f'"dur": {(end - start) / _TICKS_PER_US!r}, "name": {_quoted(name)}, '
        f'"cat": {_quoted(category)}, "args": {{{args}}}}}'
    )


def _flow_events(trace: Trace, threads: Mapping[int, Mapping[str, int]]) -> Iterator[str]:
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
            if send is None or _is_empty(send.span) or _is_empty(span):
                continue
            number += 1
            sender = threads[send.rank][send.span.stream]
            yield _flow('"s"', number, send.rank, sender, send.span.start_s)
            compute = threads[rank.rank]["compute"]
            yield _flow('"f", "bp": "e"', number, rank.rank, compute, span.start_s)


def _flow(phase: str, number: int, rank: int, tid: int, at_s: float) -> str:
    return (
        f'{{"ph": {phase}, "id": {number}, "pid": {_pid(rank)}, "tid": {tid}, '
        f'"ts": {_tick(at_s) / _TICKS_PER_US!r}, "name": "transfer", "cat": "pp"}}'
    )


def _tick(seconds: float) -> int:
    return round(seconds * TICKS_PER_S)


def _is_empty(span: Span) -> bool:
    return _tick(span.start_s) == _tick(span.end_s)


@cache
def _quoted(text: str) -> str:
    return json.dumps(text)
