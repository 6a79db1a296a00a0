"""Knees against curves whose knee is known by hand."""

import pytest

from simulator.study.knee import find_knee, is_logarithmic


def test_time_that_is_hidden_from_a_rate_on() -> None:
    """A transfer of 8 hides under 2 from rate 4 on: max(2, 8 / x). On a logarithmic axis from 1 to
    16 the chord falls from 8 to 2; distances: 0, |1/4 - 4/6|, |2/4 - 1|, |3/4 - 1|, 0."""
    assert find_knee([1, 2, 4, 8, 16], [8, 4, 2, 2, 2]) == 2


def test_harm_that_begins_at_a_value() -> None:
    assert find_knee([1, 2, 4, 8], [10, 10, 10, 20]) == 2


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1, 2], [2, 1]),  # two points bend nowhere
        ([1, 2, 3], [3, 2, 1]),  # straight
        ([1, 10, 100], [3, 2, 1]),  # straight on its axis
        ([1, 2, 3], [100, 99.1, 99]),  # less than 2 % in all
        ([1, 2, 3, 4], [5, 1, 2, 5]),  # has a best value, no knee
        ([1, 2, 3], [1, 1, 1]),
    ],
)
def test_curves_without_a_knee(x: list[float], y: list[float]) -> None:
    assert find_knee(x, y) is None


def test_scale_does_not_matter() -> None:
    x = [50.0, 100.0, 200.0, 400.0]
    y = [3 + 100 / v for v in x]
    assert find_knee(x, y) == find_knee([v * 1e9 for v in x], [v * 1e-3 for v in y]) == 1


def test_which_axes_are_logarithmic() -> None:
    assert is_logarithmic([1, 2, 4])
    assert not is_logarithmic([1, 2, 3])
    assert not is_logarithmic([0, 2, 400])
