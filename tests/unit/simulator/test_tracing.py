"""Spans of executed tasks."""

import pytest
from small_runs import small_cluster, small_run

from simulator.simulate import Result, simulate


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(
        small_run(small_cluster(2), tp=2, pp=4, vpp=2, optimizer={"overlap_grad_reduce": True})
    )


def test_one_trace_per_simulated_rank_by_stage(result: Result) -> None:
    trace = result.trace
    assert [(r.stage, r.rank, r.num_ranks) for r in trace.ranks] == [
        (0, 0, 4), (1, 4, 4), (2, 8, 4), (3, 12, 4),
    ]  # fmt: skip
    assert (trace.num_stages, trace.name) == (4, "run")
    assert trace.step_time_s == result.metrics["step_time_s"]


def test_spans_of_a_stream_follow_each_other_within_the_step(result: Result) -> None:
    for rank in result.trace.ranks:
        for stream in {span.stream for span in rank.spans}:
            spans = [span for span in rank.spans if span.stream == stream]
            marks = [t for span in spans for t in (span.start_s, span.end_s)]
            assert marks == sorted(marks)
            assert 0.0 <= marks[0] < marks[-1] <= result.trace.step_time_s


def test_every_pass_has_its_span(result: Result) -> None:
    """4 microbatches through 2 chunks, forward and backward, on each of 4 stages."""
    passes = {
        (rank.stage, span.category, span.microbatch, span.chunk)
        for rank in result.trace.ranks
        for span in rank.spans
        if span.category in ("forward", "backward")
    }
    assert len(passes) == 4 * 2 * 4 * 2


def test_pieces_fill_a_span_that_nothing_slowed(result: Result) -> None:
    quiet = 0
    for rank in result.trace.ranks:
        for span in rank.spans:
            inside_s = sum(piece.duration_s for piece in span.pieces)
            assert inside_s <= span.duration_s * (1 + 1e-9)
            quiet += inside_s == pytest.approx(span.duration_s)
    assert quiet


def test_waiting_leaves_no_span(result: Result) -> None:
    """An exchange's span begins when it runs, not when its member arrives."""
    exchanges: dict[tuple[int, str, str, str], float] = {
        (rank.rank, stream, task.category, task.name): task.exchange.start_s
        for rank in result.program.ranks
        for stream, tasks in rank.streams.items()
        for task in tasks
        if task.exchange is not None
    }
    seen = 0
    for rank in result.trace.ranks:
        for span in rank.spans:
            began_s = exchanges.get((rank.rank, span.stream, span.category, span.name))
            if began_s is not None:
                assert span.start_s == began_s
                seen += 1
    assert seen > 50
