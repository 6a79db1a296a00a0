"""Ranks on GPUs, their classes, and what one class's exchanges look like."""

import pytest
from small_runs import TREE, small_cluster

from hardware.collectives import CollectiveCost, GroupShape, point_to_point
from hardware.spec import ClusterSpec
from simulator.placement import FoldedRanks
from workloads.layout import RankGrid

COST = CollectiveCost(0.0, 1.0, 1e9, "ring", "simple", 1)


def fold(
    cluster: ClusterSpec, tp: int, pp: int, *, wraps: bool = False, folded: bool = True
) -> FoldedRanks:
    grid = RankGrid(tp=tp, dp=cluster.num_gpus // tp // pp, pp=pp)
    return FoldedRanks(cluster, grid, wraps=wraps, folded=folded)


def test_a_healthy_cluster_is_one_class_per_stage() -> None:
    ranks = fold(small_cluster(8), tp=4, pp=4)
    assert [ranks.count(c) for c in range(len(ranks))] == [16] * 4
    assert [ranks.representative(c) for c in range(4)] == [0, 16, 32, 48]
    assert [ranks.stage(c) for c in range(4)] == [0, 1, 2, 3]
    assert [(ranks.previous(c), ranks.next(c)) for c in (1, 2)] == [(0, 2), (1, 3)]


def test_unfolded_every_rank_is_a_class() -> None:
    ranks = fold(small_cluster(2), tp=4, pp=2, folded=False)
    assert [ranks.representative(c) for c in range(len(ranks))] == list(range(16))
    assert ranks.next(3) == 3 + 8
    assert ranks.classes("tp", 5) == (4, 5, 6, 7)
    assert ranks.classes("dp", 5) == (1, 5)
    assert ranks.classes("embedding", 5) == (5, 13)


def test_stages_wrap_around_with_chunks() -> None:
    ranks = fold(small_cluster(1), tp=2, pp=4, wraps=True)
    assert [ranks.next(c) for c in range(4)] == [1, 2, 3, 0]
    assert set(ranks.transfers(0, 1.0)) == {True, False}
    assert set(fold(small_cluster(1), tp=2, pp=4).transfers(0, 1.0)) == {True}


def test_groups_lie_on_nodes() -> None:
    """4 nodes of 8, tp 2, pp 2: dp 8 with 4 members on each of 2 nodes, each on a NIC of its
    own; first and last stage 16 ranks apart."""
    ranks = fold(small_cluster(4), tp=2, pp=2)
    assert ranks.shape("tp", 0) == GroupShape(2, 1, 2)
    assert ranks.shape("dp", 0) == GroupShape(8, 2, 4)
    assert ranks.shape("embedding", 0) == GroupShape(2, 2, 1)
    assert ranks.shape("world", 0) == GroupShape(32, 4, 8)


def test_a_middle_stage_is_in_no_embedding_group() -> None:
    ranks = fold(small_cluster(1), tp=2, pp=4)
    assert ranks.shape("embedding", 1) == GroupShape(1, 1, 0)
    assert ranks.hub("embedding", 1) == -1
    assert ranks.classes("embedding", 1) == (1,)


def test_one_slow_gpu_unfolds_only_who_can_tell() -> None:
    """Per stage: the slow one's place in the grid, its tensor row, its data column, the rest."""
    ranks = fold(small_cluster(8, slow_gpus={17: 0.8}), tp=4, pp=2)
    assert len(ranks) == 2 * 4
    slow = [c for c in range(len(ranks)) if ranks.speed(c) == 0.8]
    assert [(ranks.representative(c), ranks.count(c)) for c in slow] == [(17, 1)]
    assert sorted(ranks.count(c) for c in range(len(ranks)) if ranks.stage(c) == 0) == [
        1, 3, 7, 21,
    ]  # fmt: skip
    assert len(ranks.classes("tp", slow[0])) == len(ranks.classes("dp", slow[0])) == 2


def test_uneven_groups_split_by_how_many_share_a_node() -> None:
    """3 nodes of 4, pp 2: stage 0's data group has 4 members on node 0, 2 on node 1, so their NICs
    carry 1/4 and 1/2 of its bytes; both kinds split again by the node they send to."""
    ranks = fold(small_cluster(3, 4), tp=1, pp=2)
    class_of = ranks._partition.class_of
    assert len(set(class_of[:4]) & set(class_of[4:6])) == 0
    nic = ranks._cluster.nic_rate_bytes_per_s
    loads = ((ranks.capacities()[k], w) for k, w in ranks.links("dp", 0, COST))
    assert {weight for rate, weight in loads if rate == nic} == {1 / 4, 1 / 2}


def test_links_of_a_group_inside_a_node() -> None:
    """Every member's NVLink port, in and out; half as much when the switch reduces."""
    ranks = fold(small_cluster(1), tp=8, pp=1)
    loads = dict(ranks.links("tp", 0, COST))
    capacities = ranks.capacities()
    assert [capacities[k] for k in loads] == [370.8e9] * 2
    assert set(loads.values()) == {1.0}
    half = CollectiveCost(0.0, 1.0, 1e9, "nvls", "simple", 1, nvlink_weight=0.5)
    assert set(dict(ranks.links("tp", 0, half)).values()) == {0.5}


def test_links_of_a_group_of_one_gpu_per_node() -> None:
    """tp 8, dp 4: each member's NIC, in and out, with all its bytes."""
    ranks = fold(small_cluster(4), tp=8, pp=1)
    loads = dict(ranks.links("dp", 0, COST))
    nic = 400e9 / 8 * 0.96
    assert [ranks.capacities()[k] for k in loads] == pytest.approx([nic] * 2)
    assert set(loads.values()) == {1.0}


def test_a_nic_shared_by_two_gpus_carries_both_flows() -> None:
    """tp 8, dp 4 and 4 NICs for 8 GPUs: two data groups of the same class on each NIC. Both ways
    are loaded alike and so one class of links."""
    ranks = fold(small_cluster(4, node_nics_per_node=4), tp=8, pp=1)
    assert len(ranks) == 1
    assert [weight for _, weight in ranks.links("dp", 0, COST)] == [2.0]
    unfolded = fold(small_cluster(4, node_nics_per_node=4), tp=8, pp=1, folded=False)
    assert {weight for _, weight in unfolded.links("dp", 0, COST)} == {1.0}


def test_a_bound_trunk_carries_all_flows_that_cross_it() -> None:
    """2 nodes, each under its own leaf with 8 NICs and a trunk of 8 / 4 NICs; tp 8, dp 2: eight
    data groups each send over it with one byte per byte."""
    cluster = small_cluster(2, fabric=TREE, fabric_nodes_per_unit=1, fabric_oversubscription=4.0)
    ranks = fold(cluster, tp=8, pp=1)
    nic = cluster.nic_rate_bytes_per_s
    loads = {weight: ranks.capacities()[k] for k, weight in ranks.links("dp", 0, COST)}
    assert loads == pytest.approx({1.0: nic, 8.0: 8 * nic / 4})


def test_transfers_inside_and_between_nodes() -> None:
    """4 stages of 4 ranks on 2 nodes: stage 1 sends to node 1, between unlike rails and so by
    leaf, spine, leaf, and back inside node 0."""
    cluster = small_cluster(2)
    ranks = fold(cluster, tp=4, pp=4)
    transfers = ranks.transfers(1, 1e6)
    rate, fabric = cluster.nic_rate_bytes_per_s, cluster.fabric
    wire_s = fabric.nic_latency_s + 3 * fabric.switch_latency_s
    assert transfers[True][0] == point_to_point(1e6, False, cluster.node, rate, wire_s)
    hop_s = cluster.node.nvlink.latency_s
    assert transfers[False][0] == point_to_point(1e6, True, cluster.node, rate, hop_s)
    assert [weight for _, weight in transfers[True][1]] == [1.0, 1.0]
