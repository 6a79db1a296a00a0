"""Patterns of layers: Python's lists, sums and repeats, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.importing.layer_pattern import layer_pattern


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("([0]*3+[1]*2)", [0, 0, 0, 1, 1]),
        ("[1,0]*2", [1, 0, 1, 0]),
        ("[]", []),
        ("[0] + ([1] * 2) * 2", [0, 1, 1, 1, 1]),
        ("1", None),
        ("[0]*3+1", None),
        ("[True]", None),
        ("[0]*-1", None),
        ("[0]*10**9", None),
        ("[0]*1000000", None),
        ("__import__('os').system('true')", None),
        ("[x]", None),
        ("([0]", None),
    ],
)
def test_values(text: str, expected: list[int] | None) -> None:
    assert layer_pattern(text) == expected


@given(st.text(alphabet="[]()01*+, x", max_size=30))
def test_any_text_is_a_list_or_none(text: str) -> None:
    found = layer_pattern(text)
    assert found is None or all(type(value) is int for value in found)
