"""Compute and communication side by side, chunk by chunk, against hand-drawn timelines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.overlap import concurrent_s, pipelined_s, ring_exchange_s

seconds = st.floats(0.0, 10.0)
chunks = st.integers(1, 8)


def test_gather_hides_behind_compute() -> None:
    """4 chunks of 3 s; hops of 2 s keep ahead: the compute alone."""
    assert ring_exchange_s(3.0, 4, 2.0) == 4 * 3.0


def test_gather_slower_than_compute() -> None:
    """4 chunks of 1 s; the last comes after 3 hops of 5 s, then is computed."""
    assert ring_exchange_s(1.0, 4, 5.0) == 3 * 5.0 + 1.0


def test_scatter_behind_compute_leaves_one_chunk() -> None:
    """4 chunks of 3 s, each sent in 2 s: the last one's sending shows."""
    assert pipelined_s(3.0, 4, 2.0, 0.0) == 4 * 3.0 + 2.0


def test_scatter_slows_all_chunks_but_the_first() -> None:
    assert pipelined_s(3.0, 4, 2.0, 0.5) == 3.0 + 3 * 3.0 * 1.5 + 2.0


def test_scatter_slower_than_compute() -> None:
    """Sending starts after the first chunk and never pauses."""
    assert pipelined_s(1.0, 4, 5.0, 0.5) == 1.0 + 4 * 5.0


def test_concurrent_by_hand() -> None:
    """10 s of compute at 1 / 1.25 of its speed for 5 s does 4 s of work: 5 + (10 - 4)."""
    assert concurrent_s(10.0, 5.0, 0.25) == 5.0 + 10.0 - 5.0 / 1.25
    assert concurrent_s(4.0, 10.0, 0.25) == 10.0
    assert concurrent_s(8.0, 10.0, 0.25) == 10.0  # slowed compute just fits
    assert concurrent_s(3.0, 0.0, 0.25) == 3.0


@given(seconds, chunks, seconds, st.floats(0.0, 1.0))
def test_never_less_than_either_nor_more_than_both(
    compute: float, num_chunks: int, comm: float, slowdown: float
) -> None:
    """Per chunk times; the slow-down counts on all compute at most."""
    whole, moved, tiny = compute * num_chunks, comm * num_chunks, 1e-9
    gathered = ring_exchange_s(compute, num_chunks, comm)
    assert max(whole, moved - comm) - tiny <= gathered <= whole + moved + tiny
    scattered = pipelined_s(compute, num_chunks, comm, slowdown)
    assert max(whole, moved) - tiny <= scattered <= whole * (1 + slowdown) + moved + tiny
    beside = concurrent_s(whole, moved, slowdown)
    assert max(whole, moved) - tiny <= beside <= max(whole * (1 + slowdown), moved) + tiny


@given(seconds, seconds, st.floats(0.0, 1.0))
def test_concurrent_is_continuous_where_compute_just_fits(
    compute: float, extra: float, slowdown: float
) -> None:
    comm = compute * (1 + slowdown)
    assert concurrent_s(compute, comm, slowdown) == pytest.approx(comm)
    assert concurrent_s(compute, comm + extra, slowdown) == pytest.approx(comm + extra)
