"""Ranks and their coordinates, groups and neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import layout

from workloads.layout import Coordinates, RankGrid

GRIDS = st.builds(RankGrid, st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
AXES = ("tp", "dp", "pp")


def size(grid: RankGrid) -> int:
    return grid.tp * grid.dp * grid.pp


def test_megatron_order_by_hand() -> None:
    """16 GPUs, TP 2, PP 4, so DP 2: the example of Megatron-LM's parallel_state.py,
    initialize_model_parallel."""
    grid = RankGrid.of(layout(2, 4), 16)
    assert grid == RankGrid(tp=2, dp=2, pp=4)
    assert grid.groups("tp").tolist() == [[i, i + 1] for i in range(0, 16, 2)]
    assert grid.groups("dp").tolist() == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    assert grid.groups("pp").tolist() == [
        [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
    ]  # fmt: skip
    assert grid.groups("embedding").tolist() == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert grid.coordinates(13) == Coordinates(tp=1, dp=0, pp=3)
    assert grid.stages().tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


@given(GRIDS)
def test_every_rank_is_in_one_group_of_each_axis(grid: RankGrid) -> None:
    for axis in AXES:
        groups = grid.groups(axis)
        assert groups.shape == (size(grid) // getattr(grid, axis), getattr(grid, axis))
        assert sorted(groups.ravel().tolist()) == list(range(size(grid)))


@given(GRIDS)
def test_a_group_differs_in_its_own_coordinate_only(grid: RankGrid) -> None:
    for axis in AXES:
        for group in grid.groups(axis).tolist():
            places = [grid.coordinates(rank) for rank in group]
            assert [getattr(place, axis) for place in places] == list(range(len(group)))
            assert len({place._replace(**{axis: 0}) for place in places}) == 1


@given(GRIDS)
def test_coordinates_name_one_rank(grid: RankGrid) -> None:
    places = [grid.coordinates(rank) for rank in range(size(grid))]
    assert len(set(places)) == size(grid)
    assert [place.pp for place in places] == grid.stages().tolist()
    for rank, place in enumerate(places):
        assert rank == place.tp + grid.tp * (place.dp + grid.dp * place.pp)


@given(GRIDS, st.sampled_from([1, -1]))
def test_neighbours(grid: RankGrid, step: int) -> None:
    for wraps in (False, True):
        there = grid.neighbours(step, wraps)
        for rank in range(size(grid)):
            here, stage = grid.coordinates(rank), grid.coordinates(rank).pp + step
            if not wraps and not 0 <= stage < grid.pp:
                assert there[rank] == -1
            else:
                other = grid.coordinates(int(there[rank]))
                assert other == here._replace(pp=stage % grid.pp)


@given(GRIDS)
def test_next_and_previous_undo_each_other(grid: RankGrid) -> None:
    after, before = grid.neighbours(1, True), grid.neighbours(-1, True)
    assert np.array_equal(after[before], np.arange(size(grid)))


def test_embedding_group_needs_two_stages() -> None:
    assert RankGrid(2, 3, 1).groups("embedding").shape == (0, 2)


def test_unknown_axis() -> None:
    with pytest.raises(ValueError, match="no axis 'cp'"):
        RankGrid(1, 1, 1).groups("cp")
