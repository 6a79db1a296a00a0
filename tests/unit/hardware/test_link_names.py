"""Names of links, and what damage leaves of the fabric, counted by hand."""

import pytest
from small_runs import TREE, small_cluster

from hardware.cluster_checks import cluster_problems
from hardware.degradation import degradation
from hardware.fabric_shape import fabric_shape
from hardware.link_names import LinkName, parse_link
from hardware.links import Link
from hardware.presets import load_fabric
from hardware.quantities import parse_nodes
from hardware.spec import ClusterSpec, DegradedLink
from hardware.topology import Topology

RAILS = small_cluster(4, fabric_nodes_per_unit=2)
"""2 units of 8 leaves, each of 2 cables down and up. A switch has 4 ports, too few for 16 leaves:
each rail has spines of its own, 2 by its 2 cables, and cores join them."""
LEAVES_2 = small_cluster(4, fabric=TREE, fabric_nodes_per_unit=2)
"""Two leaves of 16 NICs, 16 cables up each to one spine of 32 ports."""


def parsed(name: str, cluster: ClusterSpec) -> LinkName:
    return parse_link(name, cluster, fabric_shape(cluster))


@pytest.mark.parametrize("name", ["leaf-1/spine-0", "node-3/nic-7", "node-0/gpu-0", "spine-0"])
def test_names_that_there_are(name: str) -> None:
    assert str(parsed(name, LEAVES_2)) == name


def test_either_end_may_come_first() -> None:
    assert parsed("spine-0/leaf-1", LEAVES_2) == parsed("leaf-1/spine-0", LEAVES_2)


def test_a_leafs_spines_count_from_the_first_or_over_the_fabric() -> None:
    """Rails with spines of their own: 2 for each, leaf 3 is wired to spines 6 and 7."""
    shape = fabric_shape(RAILS)
    assert (shape.tiers, shape.spines_per_group) == (3, 2)
    assert list(shape.spines_of(3)) == [6, 7]
    assert str(parsed("leaf-3/spine-1", RAILS)) == "leaf-3/spine-7"
    assert str(parsed("leaf-3/spine-7", RAILS)) == "leaf-3/spine-7"
    assert shape.leaves_of(7) == [3, 11]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("leaf-9/spine-0", "leaf-1/spine-0"),
        ("leaf-0/spine-12", "leaf-0/spine-0"),
        ("lef-1/spine-0", "leaf-1/spine-0"),
        ("node-4/nic-2", "node-3/nic-2"),
        ("node-1/nics-8", "node-1/nic-7"),
        ("node-1/gpu-100", "node-1/gpu-7"),
        ("spines-3", "spine-0"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"no link '{name}'; the nearest is {near}: "):
        parsed(name, LEAVES_2)


@pytest.mark.parametrize("name", ["", "leaf", "leaf-1", "leaf-0/core-0", "nic-2", "a/b", "17", "/"])
def test_what_is_no_name_is_told_what_is(name: str) -> None:
    with pytest.raises(ValueError, match="no name of a link; write leaf-0/spine-1, "):
        parsed(name, LEAVES_2)


def test_a_switch_that_a_small_fabric_lacks() -> None:
    with pytest.raises(ValueError, match="4 nodes need no core switches on this fabric"):
        parsed("spine-0/core-0", LEAVES_2)
    single = small_cluster(4, fabric=load_fabric("single-switch"))
    with pytest.raises(ValueError, match="need no spine switches"):
        parsed("leaf-0/spine-0", single)


# what is left


def damaged(cluster: ClusterSpec, **factors: float) -> Topology:
    return Topology(with_damage(cluster, **factors))


def with_damage(cluster: ClusterSpec, **factors: float) -> ClusterSpec:
    degraded = tuple(
        DegradedLink(link=name.replace("__", "/").replace("_", "-"), factor=factor)
        for name, factor in factors.items()
    )
    fabric = cluster.fabric.model_copy(update={"degraded": degraded})
    return cluster.model_copy(update={"fabric": fabric})


UP = Link("leaf_up", 0, 0)


def test_a_whole_spine_down_takes_its_part_of_every_trunk() -> None:
    """4 spines: one dead leaves 3/4 of both leaves' trunks, and it can bind now: 12 of 16 NICs."""
    four = LEAVES_2.model_copy(
        update={"fabric": LEAVES_2.fabric.model_copy(update={"num_spines": 4})}
    )
    topology, whole = damaged(four, spine_2=0.0), Topology(four)
    for link in (UP, Link("leaf_down", 1, 0)):
        assert topology.capacity(link) == pytest.approx(0.75 * whole.capacity(link))
        assert topology.can_bind(link)
        assert not whole.can_bind(link)


def test_a_core_down_takes_its_part_of_the_trunks_of_its_plane() -> None:
    """16 leaves of 2 cables up, 32 cables to cores of 4 ports: 8 cores; 2 spines a group in 2
    planes of 4 cores. Core 0 is one of 4 of spine 0 of every group: 1/8 of a group's cables."""
    shape = fabric_shape(RAILS)
    assert (shape.num_cores, shape.num_core_planes, shape.cores_per_spine) == (8, 2, 4)
    topology, whole = damaged(RAILS, core_0=0.0), Topology(RAILS)
    for group in range(8):
        link = Link("spine_up", 0, group)
        assert topology.capacity(link) == pytest.approx(7 / 8 * whole.capacity(link))


def test_two_faults_of_one_link_multiply() -> None:
    state = degradation(with_damage(LEAVES_2, leaf_0__spine_0=0.5, spine_0=0.5),
                        fabric_shape(LEAVES_2))  # fmt: skip
    assert state.trunks[UP].sum_share == 0.25
    assert state.trunks[Link("leaf_up", 1, 0)].sum_share == 0.5


def test_the_graph_shows_the_damage() -> None:
    graph = damaged(LEAVES_2, leaf_1__spine_0=0.25, node_2__nic_3=0.5).graph()
    whole = Topology(LEAVES_2).graph()
    for edge, factor in (
        ((("leaf", 1, 0), ("spine", 0, 0, 0)), 0.25),
        ((("spine", 0, 0, 0), ("leaf", 1, 0)), 0.25),
        ((("leaf", 0, 0), ("spine", 0, 0, 0)), 1.0),
        ((("nic", 2, 3), ("leaf", 1, 0)), 0.5),
    ):
        capacity, full = (g.edges[edge]["capacity_bytes_per_s"] for g in (graph, whole))
        assert capacity == pytest.approx(factor * full)


def test_gpus_of_a_dead_nic_use_the_next_that_lives() -> None:
    topology = damaged(LEAVES_2, node_1__nic_6=0.0, node_1__nic_7=0.0)
    assert [topology.nic_of(8 + i) for i in range(8)] == [0, 1, 2, 3, 4, 5, 0, 0]
    assert [topology.nic_of(i) for i in range(8)] == list(range(8))
    assert topology.users(1, 0) == (8, 14, 15)


# what cannot be


def problems(cluster: ClusterSpec) -> list[str]:
    return [f"{'.'.join(path)}: {message}" for path, message in cluster_problems(cluster)]


def test_a_fabric_cut_in_two_is_refused() -> None:
    cut = with_damage(LEAVES_2, leaf_1__spine_0=0.0)
    assert problems(cut) == ["fabric.degraded.0.link: no cable up is left of leaf-1"]
    lost = with_damage(LEAVES_2, **{f"node_2__nic_{i}": 0.0 for i in range(8)})
    assert problems(lost) == ["fabric.degraded.7.link: no NIC is left of node-2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hosts": (0, 1)}, "hosts: 2 nodes for num_nodes 4"),
        ({"hosts": (0, 1, 2, 2)}, "hosts: node 2 twice"),
        ({"hosts": (0, 1, 2, 9), "fabric_num_nodes": 8},
         "hosts: there is no node 9; the fabric has 0 to 7"),
        ({"fabric_num_nodes": 3}, "fabric.num_nodes: 3 nodes are too few for a run on 4"),
        ({"fabric_nodes_per_unit": 1, "fabric_num_spines": 2}, "fabric.num_spines: by nodes_per"),
    ],
)  # fmt: skip
def test_nodes_and_spines_that_cannot_be(changes: dict[str, object], message: str) -> None:
    (problem,) = problems(small_cluster(4, **changes))
    assert problem.startswith(message)


# lists of nodes


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("node[0-2,8]", (0, 1, 2, 8)),
        ("gpu-a17", (17,)),
        (" 5 , 4 ", (5, 4)),
        ("dgx-[010-012]", (10, 11, 12)),
    ],
)
def test_lists_of_nodes_as_schedulers_write_them(text: str, nodes: tuple[int, ...]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "node", "1-", "1-2-3", "1,,2", "a,b", "[1]2", "3-1", "-1"])
def test_what_is_no_list_of_nodes(text: str) -> None:
    with pytest.raises(ValueError, match="write, say, 0-3,8"):
        parse_nodes(text)


def test_a_list_that_goes_too_far() -> None:
    with pytest.raises(ValueError, match="beyond the 100000 nodes"):
        parse_nodes("0-99999999999")
