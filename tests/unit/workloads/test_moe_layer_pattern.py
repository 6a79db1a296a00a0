"""Patterns of layers, as numbers and as text."""

import pytest

from workloads.layer_pattern import read_pattern


@pytest.mark.parametrize(
    ("value", "expected"),
    [(2, 2), ("3", 3), ([0, 1], (0, 1)), (("1", "0"), (1, 0))],
)
def test_what_is_read(value: object, expected: object) -> None:
    assert read_pattern(value) == expected


@pytest.mark.parametrize("value", [0, -1, "two", [], [2], [0, "x"], None, True, 1.5])
def test_what_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="neither a whole number above 0"):
        read_pattern(value)
