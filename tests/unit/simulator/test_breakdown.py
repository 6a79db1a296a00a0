"""Terms of wall time, on streams whose times are set by hand."""

import pytest

from simulator.breakdown import TERMS, Breakdown
from simulator.engine import Exchange, Rank, Task
from simulator.profile import Profile, Segment
from simulator.trace import Category, Piece


def compute(start_s: float, end_s: float, *pieces: Piece, needs: tuple[Task, ...] = ()) -> Task:
    """A task of these pieces; what it took longer than them is interference."""
    profile = Profile([Segment((piece,), piece.duration_s) for piece in pieces])
    task = Task("pass", "forward", needs, profile, 0.0, profile.duration_s)
    task.start_s, task.end_s = start_s, end_s
    return task


def gemm(seconds: float) -> Piece:
    return Piece("g", "forward", "gemm", seconds)


def join(
    category: Category, arrive_s: float, start_s: float, end_s: float,
    needs: tuple[Task, ...] = (),
) -> Task:  # fmt: skip
    """A member that arrives at `arrive_s` at an exchange that runs from `start_s`."""
    exchange = Exchange("x", 2, start_s=start_s, end_s=end_s)
    task = Task("x", category, needs, exchange=exchange)
    task.start_s, task.end_s = arrive_s, end_s
    return task


def terms_of(step_s: float, *tasks: Task, dp: tuple[Task, ...] = ()) -> dict[str, float]:
    """Terms that are not zero."""
    rank = Rank(0, 0, 1, streams={"compute": list(tasks), "dp": list(dp)})
    terms = Breakdown(step_s).terms_s(rank)
    assert tuple(terms) == TERMS
    assert sum(terms.values()) == pytest.approx(step_s)
    return {term: seconds for term, seconds in terms.items() if seconds}


def test_pieces_by_kind_and_category() -> None:
    pieces = (
        gemm(1.0),
        Piece("a", "backward", "attention", 2.0),
        Piece("n", "forward", "memory_bound", 4.0),
        Piece("r", "recompute", "gemm", 8.0),
        Piece("o", "optimizer", "memory_bound", 16.0),
        Piece("h", "overhead", "overhead", 32.0),
        Piece("t", "tp", "tp", 64.0),
    )
    assert terms_of(127.0, compute(0.0, 127.0, *pieces)) == {
        "gemm": 1.0, "attention": 2.0, "memory_bound": 4.0, "recompute": 8.0, "optimizer": 16.0,
        "overhead": 32.0, "tp_exposed": 64.0,
    }  # fmt: skip


def test_what_compute_takes_longer_is_interference() -> None:
    assert terms_of(5.0, compute(0.0, 5.0, gemm(4.0))) == {"gemm": 4.0, "interference": 1.0}


def test_waiting_at_both_ends_is_bubble() -> None:
    """Nothing before 3 s but a far pass; nothing after 5 s of 9."""
    far = compute(0.0, 3.0, gemm(3.0))
    assert terms_of(9.0, compute(3.0, 5.0, gemm(2.0), needs=(far,))) == {
        "gemm": 2.0, "bubble": 3.0 + 4.0,
    }  # fmt: skip


def test_waiting_for_a_transfer_splits_where_it_starts() -> None:
    """Idle from 1 to 6; the transfer runs from 4 to 6: 3 s of bubble, 2 s exposed."""
    sent = join("pp", 4.0, 4.0, 6.0)
    parts = compute(0.0, 1.0, gemm(1.0)), compute(6.0, 7.0, gemm(1.0), needs=(sent,))
    assert terms_of(7.0, *parts) == {"gemm": 2.0, "bubble": 3.0, "pp_exposed": 2.0}


def test_what_ended_last_tells_what_was_waited_for() -> None:
    early, late = join("pp", 1.0, 1.0, 2.0), join("dp", 0.0, 0.0, 3.0)
    task = compute(3.0, 4.0, gemm(1.0), needs=(early, late))
    assert terms_of(4.0, task, dp=(late,)) == {"gemm": 1.0, "dp_exposed": 3.0}


def test_all_gradient_traffic_before_the_awaited_one_is_exposed() -> None:
    """Idle from 1 to 7 behind two reductions, 2 to 4 and 5 to 7."""
    first, second = join("dp", 1.0, 2.0, 4.0), join("dp", 4.0, 5.0, 7.0)
    parts = compute(0.0, 1.0, gemm(1.0)), compute(7.0, 8.0, gemm(1.0), needs=(second,))
    assert terms_of(8.0, *parts, dp=(first, second)) == {
        "gemm": 2.0, "dp_exposed": 2.0 + 2.0, "bubble": 2.0,
    }  # fmt: skip


def test_an_exchange_on_the_compute_stream() -> None:
    """Arrives at 1, the others at 3, runs to 8: waiting is bubble, running is exposed."""
    parts = compute(0.0, 1.0, gemm(1.0)), join("dp", 1.0, 3.0, 8.0)
    assert terms_of(8.0, *parts) == {"gemm": 1.0, "bubble": 2.0, "dp_exposed": 5.0}


def test_waiting_at_a_barrier_is_for_a_straggler() -> None:
    parts = compute(0.0, 1.0, gemm(1.0)), join("tp", 1.0, 3.0, 3.0)
    assert terms_of(3.0, *parts) == {"gemm": 1.0, "straggler_wait": 2.0}
