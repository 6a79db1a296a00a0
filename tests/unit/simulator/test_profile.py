"""Positions and times inside a run of operations, quiet and slowed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.profile import QUIET, Profile, Segment, Slowdown, read_clock
from simulator.trace import Piece

seconds = st.floats(0.0, 10.0)
shares = st.floats(0.0, 1.0)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    parts = draw(st.lists(st.tuples(seconds, shares, shares), min_size=1, max_size=6))
    return Profile([Segment((), d, d * c, d * n) for d, c, n in parts])


def test_slowed_time_by_hand() -> None:
    """2 s compute and 3 s traffic: 2 * 1.5 + 3 * 3 = 12 when compute takes half more and traffic
    twice more."""
    profile = Profile([Segment((), 2.0, 2.0, 0.0), Segment((), 3.0, 0.0, 3.0)])
    quiet, slow = profile.clock(QUIET), profile.clock(Slowdown(0.5, 2.0))
    assert read_clock(slow, quiet, 5.0) == 12.0
    assert read_clock(quiet, slow, 3.0) == 2.0
    assert read_clock(quiet, slow, 6.0) == 3.0
    assert read_clock(quiet, quiet, 3.0) == 3.0


def test_clocks_stand_at_the_ends() -> None:
    profile = Profile([Segment((), 1.0, 1.0), Segment((), 0.0), Segment((), 2.0)])
    quiet, slow = profile.clock(QUIET), profile.clock(Slowdown(1.0))
    assert [read_clock(slow, quiet, s) for s in (-1.0, 0.0, 1.0, 3.0, 4.0)] == [0, 0, 2, 4, 4]
    assert [read_clock(quiet, quiet, s) for s in (0.5, 9.0)] == [0.5, 3.0]
    nothing = Profile([])
    assert read_clock(nothing.clock(Slowdown(1.0)), nothing.clock(QUIET), 0.0) == 0.0


@given(profiles(), shares, st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_reading_back(profile: Profile, a: float, compute: float, link: float) -> None:
    position = a * profile.duration_s
    slowdown = Slowdown(compute, link)
    quiet, slow = profile.clock(QUIET), profile.clock(slowdown)
    seconds = read_clock(slow, quiet, position)
    assert seconds >= position * (1 - 1e-12) - 1e-12
    assert read_clock(quiet, slow, seconds) == pytest.approx(position, abs=1e-9)


def test_pieces_between_bounds() -> None:
    names = ["a", "b", "c"]
    profile = Profile([Segment((Piece(n, "forward", "gemm", 1.0),), 1.0, 1.0, 0.0) for n in names])
    assert [p.name for p in profile.pieces(1.0, 3.0)] == ["b", "c"]
