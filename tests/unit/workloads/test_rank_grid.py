"""Ranks and their coordinates, groups and neighbours."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import layout

from workloads.layout import Coordinates, RankGrid
from workloads.spec import ParallelismSpec

SIZES = st.integers(1, 4)
GRIDS = st.builds(RankGrid, tp=SIZES, cp=SIZES, dp=SIZES, pp=SIZES, etp=st.just(1))
ORDERS = st.sampled_from(["tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "dp-tp-ep-cp-pp"])


@st.composite
def expert_grids(draw: st.DrawFn) -> RankGrid:
    """Experts folded over the dense layers' ranks: etp ep divides tp cp dp."""
    tp, cp, dp, pp = (draw(st.sampled_from([1, 2, 4])) for _ in range(4))
    etp = draw(st.sampled_from([n for n in (1, 2, 4) if tp * cp * dp % n == 0]))
    ep = draw(st.sampled_from([n for n in (1, 2, 4, 8) if tp * cp * dp % (n * etp) == 0]))
    return RankGrid(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp)


def axis_of(group: list[int], grid: RankGrid) -> set[str]:
    """Coordinates in which the members of a group differ."""
    places = [grid.coordinates(rank) for rank in group]
    return {a for a in Coordinates._fields if len({getattr(p, a) for p in places}) > 1}


def test_megatron_order_by_hand() -> None:
    """16 GPUs, TP 2, PP 4, so DP 2: the example of Megatron-LM's parallel_state.py,
    initialize_model_parallel."""
    grid = RankGrid.of(layout(2, 4), 16)
    assert grid == RankGrid(tp=2, dp=2, pp=4, etp=2)
    assert grid.groups("tp").tolist() == [[i, i + 1] for i in range(0, 16, 2)]
    assert grid.groups("dp").tolist() == [
        [0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15],
    ]  # fmt: skip
    assert grid.groups("pp").tolist() == [
        [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
    ]  # fmt: skip
    assert grid.groups("embedding").tolist() == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert grid.coordinates(13) == Coordinates(tp=1, cp=0, dp=0, pp=3)
    assert grid.stages().tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4


def test_context_and_experts_by_hand() -> None:
    """16 GPUs, TP 2, CP 2, PP 2, so DP 2; experts EP 4 with tensor size 1, so 2 copies."""
    grid = RankGrid(tp=2, cp=2, dp=2, pp=2, ep=4, etp=1)
    assert grid.edp == 2
    assert grid.groups("cp").tolist()[:4] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert grid.groups("dp").tolist()[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert grid.groups("ep").tolist() == [[i, i + 1, i + 2, i + 3] for i in range(0, 16, 4)]
    assert grid.groups("edp").tolist()[:4] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert grid.groups("etp").tolist() == [[i] for i in range(16)]


def test_levels_of_a_context_group() -> None:
    """CP 4 of TP 2: pairs of neighbours swap heads, and rank i of each pair meets rank i of the
    other in a ring."""
    grid = RankGrid(tp=2, cp=4, etp=2, cp_a2a=2)
    assert grid.groups("cp").tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert grid.groups("cp_a2a").tolist() == [[0, 2], [4, 6], [1, 3], [5, 7]]
    assert grid.groups("cp_ring").tolist() == [[0, 4], [2, 6], [1, 5], [3, 7]]


def test_experts_that_lie_as_dense_layers_do() -> None:
    alike = RankGrid(tp=2, cp=2, dp=2, pp=2, etp=2)
    assert (alike.canonical("etp"), alike.canonical("edp")) == ("tp", "dp")
    for mine, dense in (("etp", "tp"), ("edp", "dp")):
        assert np.array_equal(alike.groups(mine), alike.groups(dense))
    assert RankGrid(tp=2, dp=4, ep=2, etp=2).canonical("edp") == "edp"


def test_pipeline_before_data() -> None:
    """Order tp-cp-ep-pp-dp: 8 ranks, TP 2, PP 2, DP 2; stages alternate in pairs."""
    grid = RankGrid(tp=2, dp=2, pp=2, etp=2, order="tp-cp-ep-pp-dp")
    assert grid.stages().tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert grid.groups("dp").tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert grid.neighbours(1, False).tolist() == [2, 3, -1, -1, 6, 7, -1, -1]


@given(expert_grids())
def test_every_rank_is_in_one_group_of_each_axis(grid: RankGrid) -> None:
    widths = {
        "tp": grid.tp, "cp": grid.cp, "dp": grid.dp * grid.cp, "pp": grid.pp, "etp": grid.etp,
        "ep": grid.ep, "edp": grid.edp,
    }  # fmt: skip
    for axis, width in widths.items():
        groups = grid.groups(axis)
        assert groups.shape == (grid.num_ranks // width, width)
        assert sorted(groups.ravel().tolist()) == list(range(grid.num_ranks))


@given(GRIDS, ORDERS)
def test_a_group_differs_in_its_own_coordinates_only(grid: RankGrid, order: str) -> None:
    grid = replace(grid, order=order)
    own = {"tp": {"tp"}, "cp": {"cp"}, "dp": {"dp", "cp"}, "pp": {"pp"}}
    for axis, allowed in own.items():
        for group in grid.groups(axis).tolist():
            assert axis_of(group, grid) <= allowed
            assert group == sorted(group)


@given(expert_grids())
def test_experts_of_one_group_are_on_one_stage(grid: RankGrid) -> None:
    stages = grid.stages()
    for axis in ("etp", "ep", "edp"):
        groups = grid.groups(axis)
        assert np.array_equal(stages[groups].min(axis=1), stages[groups].max(axis=1))


@given(GRIDS, ORDERS)
def test_coordinates_name_one_rank(grid: RankGrid, order: str) -> None:
    grid = replace(grid, order=order)
    places = [grid.coordinates(rank) for rank in range(grid.num_ranks)]
    assert len(set(places)) == grid.num_ranks
    assert [place.pp for place in places] == grid.stages().tolist()


@given(GRIDS, ORDERS, st.sampled_from([1, -1]))
def test_neighbours(grid: RankGrid, order: str, step: int) -> None:
    grid = replace(grid, order=order)
    for wraps in (False, True):
        there = grid.neighbours(step, wraps)
        for rank in range(grid.num_ranks):
            here, stage = grid.coordinates(rank), grid.coordinates(rank).pp + step
            if not wraps and not 0 <= stage < grid.pp:
                assert there[rank] == -1
            else:
                other = grid.coordinates(int(there[rank]))
                assert other == here._replace(pp=stage % grid.pp)


@given(GRIDS)
def test_next_and_previous_undo_each_other(grid: RankGrid) -> None:
    after, before = grid.neighbours(1, True), grid.neighbours(-1, True)
    assert np.array_equal(after[before], np.arange(grid.num_ranks))


def test_embedding_group_needs_two_stages() -> None:
    assert RankGrid(tp=2, dp=3).groups("embedding").shape == (0, 2)


def test_unknown_axis() -> None:
    with pytest.raises(ValueError, match="no axis 'sp'"):
        RankGrid().groups("sp")


def test_pipelines_before_replicas_by_hand() -> None:
    """TP 2, PP 4, DP 2 with --use-tp-pp-dp-mapping: each replica on 8 neighbouring ranks."""
    spec = layout(2, 4).model_copy(update={"rank_order": "tp-cp-ep-pp-dp"})
    grid = RankGrid.of(spec, 16)
    assert grid.groups("pp").tolist() == [[i, i + 2, i + 4, i + 6] for i in (0, 1, 8, 9)]
    assert grid.groups("dp").tolist() == [[i, i + 8] for i in range(8)]
    assert grid.stages().tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 2
    assert grid.neighbours(1, wraps=False).tolist()[:8] == [2, 3, 4, 5, 6, 7, -1, -1]
    assert grid.stage_stride == 2
    assert RankGrid.of(layout(2, 4), 16).stage_stride == 4


@pytest.mark.parametrize("order", ["tp-cp-ep-pp-dp", "dp-tp-cp-ep-pp"])
def test_stages_of_dense_layers_and_experts(order: str) -> None:
    """TP 2, DP 4, PP 2; experts EP 4, 2 copies. Pipelines before replicas: a dense stage is 2
    ranks, an experts' 1 x 4. Pipelines last: both are half of all."""
    grid = RankGrid(tp=2, dp=4, pp=2, ep=4, etp=1, order=order)
    assert grid.stages_agree == order.endswith("pp")


@pytest.mark.parametrize("text", ["", "tp-dp-pp", "tp-cp-ep-dp-dp", "tp-cp-ep-dp-pp-tp", "TP"])
def test_what_is_no_order(text: str) -> None:
    with pytest.raises(ValueError, match="no order of all axes, such as tp-cp-ep-dp-pp"):
        ParallelismSpec(rank_order=text)
