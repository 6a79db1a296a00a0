"""The event loop on programs small enough to time by hand."""

import pytest

from simulator.engine import Engine, Exchange, Rank, Task
from simulator.errors import SimulationError
from simulator.profile import Profile, Segment, Slowdown
from simulator.trace import Piece


def work(*seconds: float) -> Profile:
    return Profile([Segment((Piece("k", "forward", "gemm", s),), s, s, 0.0) for s in seconds])


def compute(name: str, seconds: float, *needs: Task) -> Task:
    return Task(name, "forward", needs, work(seconds), 0.0, seconds)


def join(exchange: Exchange, *needs: Task) -> Task:
    return Task(exchange.name, "dp", needs, exchange=exchange)


def run(*streams: dict[str, list[Task]], links: tuple[float, ...] = ()) -> float:
    ranks = [Rank(i, 0, 1, dict(s)) for i, s in enumerate(streams)]
    return Engine(ranks, links).run().end_s


def test_a_stream_runs_in_order_and_waits_for_needs() -> None:
    a, b = compute("a", 2.0), compute("b", 1.0)
    c = compute("c", 3.0, a)
    assert run({"compute": [a, b]}, {"compute": [c]}) == 2.0 + 3.0
    assert (b.start_s, b.end_s, c.start_s) == (2.0, 3.0, 2.0)


def test_an_exchange_starts_with_its_last_member() -> None:
    """Arrivals at 1 and 4; 0.5 of latency and 10 bytes at 5 B/s: ends at 4 + 0.5 + 2."""
    meet = Exchange("meet", 2, 0.5, 10.0, ((0, 1.0),))
    first, second = join(meet), join(meet)
    end = run({"compute": [compute("a", 1.0), first]}, {"compute": [compute("b", 4.0), second]},
              links=(5.0,))  # fmt: skip
    assert end == 6.5
    assert (first.start_s, first.end_s, second.start_s, meet.start_s) == (1.0, 6.5, 4.0, 4.0)


def test_compute_is_slowed_while_a_collective_runs() -> None:
    """10 s of compute beside a collective from 2 s to 5 s that slows by a half: 2 done, then
    3 / 1.5 = 2 more, then 6: ends at 11."""
    busy = Exchange("busy", 1, 3.0, slowdown=Slowdown(0.5))
    task = compute("long", 10.0)
    trigger = compute("trigger", 2.0)
    end = run({"compute": [task], "dp": [join(busy, trigger)]}, {"compute": [trigger]})
    assert end == pytest.approx(2.0 + 3.0 + (10.0 - 2.0 - 2.0))


def test_only_the_parts_that_can_be_slowed_are() -> None:
    """4 s compute, then 4 s of tensor-parallel traffic, all under a slow-down of compute by 1:
    8 + 4."""
    profile = Profile([
        Segment((), 4.0, 4.0, 0.0),
        Segment((), 4.0, 0.0, 4.0, axis="tp", traffic_bytes=1.0),
    ])  # fmt: skip
    task = Task("pass", "forward", (), profile, 0.0, 8.0)
    busy = Exchange("busy", 1, 100.0, slowdown=Slowdown(1.0, 0.0))
    run({"compute": [task], "dp": [join(busy)]})
    assert task.end_s == 12.0


def test_a_running_exchange_does_not_delay_an_idle_rank() -> None:
    busy = Exchange("busy", 1, 3.0, slowdown=Slowdown(0.5))
    late = compute("late", 1.0)
    gate = compute("gate", 5.0)
    late.needs = (gate,)
    assert run({"compute": [late], "dp": [join(busy)]}, {"compute": [gate]}) == 6.0


def test_cut_profile_equals_whole() -> None:
    profile = work(1.0, 2.0, 0.5)
    parts = [Task("p", "forward", (), profile, a, b) for a, b in [(0, 1.0), (1.0, 3.0), (3.0, 3.5)]]
    assert run({"compute": parts}) == run({"compute": [Task("w", "forward", (), profile, 0, 3.5)]})


def test_a_deadlock_says_who_waits_for_whom() -> None:
    """Two ranks that enter two collectives in opposite order."""
    a, b = Exchange("a", 2, 1.0), Exchange("b", 2, 1.0)
    with pytest.raises(SimulationError, match=r"rank 0 .*'a': 1 of 2 .*rank 1 .*'b': 1 of 2"):
        run({"compute": [join(a), join(b)]}, {"compute": [join(b), join(a)]})


def test_a_need_that_never_ends_is_named() -> None:
    never = compute("never", 1.0)
    with pytest.raises(SimulationError, match="it needs 'never'"):
        run({"compute": [compute("x", 1.0, never)]})
