"""The exported trace, read back: events nest, threads are named, arrows join sends and passes."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_trace import FORWARD_S, GATHER_S, PIECES, SEND_S, synthetic_trace

from simulator.chrome_trace import chrome_trace, write_chrome_trace
from simulator.trace import Piece, RankTrace, Span, Trace

Event = dict[str, Any]
TRACE = synthetic_trace(stages=4, microbatches=8)


def events(trace: Trace = TRACE, **options: Any) -> list[Event]:
    return list(chrome_trace(trace, **options)["traceEvents"])


def of_phase(listed: list[Event], phase: str) -> list[Event]:
    return [event for event in listed if event["ph"] == phase]


def threads(listed: list[Event]) -> dict[tuple[int, int], list[Event]]:
    by_thread: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in of_phase(listed, "X"):
        by_thread[event["pid"], event["tid"]].append(event)
    return by_thread


def assert_nested(listed: list[Event]) -> None:
    """Sorted, and each event ends before the one around it does."""
    for thread in threads(listed).values():
        starts = [event["ts"] for event in thread]
        assert starts == sorted(starts)
        around: list[float] = []
        for event in thread:
            end = event["ts"] + event["dur"]
            while around and around[-1] <= event["ts"]:
                around.pop()
            assert event["dur"] > 0
            assert not around or end <= around[-1]
            around.append(end)


@pytest.mark.parametrize("detail", [0, 1, 100])
def test_events_nest_within_each_thread(detail: int) -> None:
    assert_nested(events(detail_microbatches=detail))


def test_events_nest_where_decimal_times_round_badly() -> None:
    tenths = tuple(Piece(f"p{i}", "forward", "gemm", 0.1e-6 * (1 + i % 7)) for i in range(50))
    total_s = sum(piece.duration_s for piece in tenths)
    spans = []
    for i in range(200):
        start_s = 12.3 + i * total_s * 1.37
        spans.append(Span("compute", f"f{i}", "forward", start_s, start_s + total_s * 1.37, 0, 0,
                          tenths))  # fmt: skip
    trace = Trace("t", 13.0, 1, (RankTrace(0, 0, 1, tuple(spans)),))
    listed = events(trace)
    assert_nested(listed)
    for event in of_phase(listed, "X"):  # whole nanoseconds, exactly
        assert (event["ts"] * 1000).is_integer()
        assert (event["dur"] * 1000).is_integer()


def test_times_are_microseconds() -> None:
    first = next(e for e in of_phase(events(), "X") if e["name"] == "forward 0.0")
    assert (first["ts"], first["dur"]) == (GATHER_S * 1e6, FORWARD_S * 1e6)
    assert chrome_trace(TRACE)["displayTimeUnit"] == "ms"


def test_every_span_is_there_once() -> None:
    wanted = sorted(span.name for rank in TRACE.ranks for span in rank.spans)
    found = sorted(e["name"] for e in of_phase(events(detail_microbatches=-1), "X"))
    assert found == wanted


def test_operations_of_the_first_microbatches_only() -> None:
    def count(detail: int) -> int:
        return sum(event["name"] == "qkv" for event in events(detail_microbatches=detail))

    assert [count(0), count(1), count(3), count(99)] == [0, 4 * 1, 4 * 3, 4 * 8]


def test_operations_are_stretched_with_a_slowed_span() -> None:
    slowed = Span("compute", "forward 0.0", "forward", 2.0, 4.0, 0, 0, PIECES["forward"])
    listed = events(Trace("t", 5.0, 1, (RankTrace(0, 0, 1, (slowed,)),)))
    inside = [(e["name"], e["ts"], e["dur"]) for e in of_phase(listed, "X")[1:]]
    # half, a quarter and two eighths of 2 s
    assert inside == [
        ("qkv", 2.0e6, 1.0e6), ("attention", 3.0e6, 0.5e6),
        ("norm", 3.5e6, 0.25e6), ("qkv input", 3.75e6, 0.25e6),
    ]  # fmt: skip


def test_processes_and_threads_are_named_in_order() -> None:
    meta = of_phase(events(), "M")
    names = [e["args"]["name"] for e in meta if e["name"] == "process_name"]
    assert names == [f"stage {s} · rank {2 * s} (x2 ranks)" for s in range(4)]
    streams = [e["args"]["name"] for e in meta if e["name"] == "thread_name" and e["pid"] == 3]
    assert streams == ["compute", "pp_next", "pp_prev", "dp"]
    order = [e["args"]["sort_index"] for e in meta if e["name"] == "process_sort_index"]
    assert order == [0, 1, 2, 3]
    named = {(e["pid"], e["tid"]) for e in meta if e["name"] == "thread_name"}
    assert set(threads(events())) == named
    assert all(pid > 0 and tid > 0 for pid, tid in named)  # 0 is the idle process of Perfetto


def test_arguments_tell_microbatch_chunk_and_category() -> None:
    listed = of_phase(events(), "X")
    by_name = {event["name"]: event["args"] for event in listed}
    assert by_name["backward 3.0"] == {"category": "backward", "microbatch": 3, "chunk": 0}
    assert by_name["host"] == {"category": "overhead"}
    assert by_name["attention"] == {"category": "forward", "kind": "attention"}


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved_1f1b", 3)])
def test_an_arrow_leads_from_each_transfer_to_its_pass(schedule: str, chunks: int) -> None:
    trace = synthetic_trace(schedule, 4, 8, chunks)
    listed = events(trace, detail_microbatches=-1)
    begin = {e["id"]: e for e in of_phase(listed, "s")}
    end = {e["id"]: e for e in of_phase(listed, "f")}
    # all but the first stage's first forward and the last stage's last backward take an input
    assert len(begin) == len(end) == 2 * 8 * (4 * chunks - 1)
    slices = {(e["pid"], e["tid"], e["ts"]): e for e in of_phase(listed, "X")}
    for number, start in begin.items():
        send = slices[start["pid"], start["tid"], start["ts"]]
        fed = slices[end[number]["pid"], end[number]["tid"], end[number]["ts"]]
        assert send["name"].startswith(f"send {fed['cat']} {fed['args']['microbatch']}.")
        assert send["ts"] + SEND_S * 1e6 <= fed["ts"]
    assert not of_phase(events(trace, flows=False), "s")


def test_ranks_of_one_stage_get_arrows_from_their_own_pipeline() -> None:
    alone = synthetic_trace(ranks_per_stage=2)
    twice = [replace(r, rank=r.rank + k, num_ranks=1) for r in alone.ranks for k in (0, 1)]
    listed = events(replace(alone, ranks=tuple(twice)))
    ends = {e["id"]: e["pid"] - 1 for e in of_phase(listed, "f")}
    starts = {e["id"]: e["pid"] - 1 for e in of_phase(listed, "s")}
    assert ends
    assert all(starts[number] % 2 == rank % 2 for number, rank in ends.items())


def test_the_file_holds_the_same_and_is_the_same_each_time(tmp_path: Path) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        write_chrome_trace(TRACE, path)
    assert json.loads(paths[0].read_text(encoding="utf-8")) == chrome_trace(TRACE)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_names_are_escaped() -> None:
    odd = Span("a\"b", 'he said "1\\2" µ', "forward", 0.0, 1.0, 0, 0)  # fmt: skip
    listed = events(Trace("n", 1.0, 1, (RankTrace(0, 0, 1, (odd,)),)))
    assert of_phase(listed, "X")[0]["name"] == 'he said "1\\2" µ'
