"""Windows of layers in which activations are copied, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.activation_offload import LayerCopy, copies_down, copies_up, most_held, windows


@pytest.mark.parametrize(
    ("num_layers", "num_offloaded", "expected"),
    [(32, 16, list(range(1, 32, 2))), (4, 3, [1, 2, 3]), (8, 1, [7]), (7, 3, [2, 4, 6])],
)
def test_windows(num_layers: int, num_offloaded: int, expected: list[int]) -> None:
    assert windows(num_layers, num_offloaded) == expected


def test_four_layers_of_which_two_go() -> None:
    """Forward 0 1 2 3: layer 0 goes while layer 1 runs, layer 1 while 2 and 3 do. Backward 3 2 1 0:
    layer 1 comes while 3 and 2 run, layer 0 while layer 1 does."""
    assert copies_down(4, 2) == [LayerCopy(0, 1, 2), LayerCopy(1, 2, 4)]
    assert copies_up(4, 2) == [LayerCopy(1, 0, 2), LayerCopy(0, 2, 3)]
    assert most_held(4, 2) == 3


@given(num_layers=st.integers(2, 60), data=st.data())
def test_a_layer_goes_after_it_ran_and_is_back_before_it_runs(
    num_layers: int, data: st.DataObject
) -> None:
    num_offloaded = data.draw(st.integers(1, num_layers - 1))
    down, up = copies_down(num_layers, num_offloaded), copies_up(num_layers, num_offloaded)
    assert all(copy.layer < copy.after <= copy.before <= num_layers for copy in down)
    assert down[-1].before == num_layers
    for copy in up:
        its_turn = num_layers - 1 - copy.layer
        assert 0 <= copy.after <= copy.before <= its_turn
    for copies in (down, up):
        assert len({copy.after for copy in copies}) == len(copies)
        assert len({copy.before for copy in copies}) == len(copies)
    assert [copy.layer for copy in up] == [copy.layer for copy in reversed(down)]
    assert most_held(num_layers, num_offloaded) == num_layers - num_offloaded + 1
