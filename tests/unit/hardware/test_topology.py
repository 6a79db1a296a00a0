"""Paths and loads by arithmetic against the graph of the same cluster, tables and hand counts."""

from itertools import permutations

import networkx as nx
import pytest

from hardware.fabric_shape import fabric_shape
from hardware.links import Link
from hardware.presets import load_fabric, load_node, preset_names
from hardware.spec import ClusterSpec
from hardware.topology import Topology


def cluster(num_nodes, fabric="ndr-rail-optimized", node="dgx-h100", node_changes=None, **changes):
    node_spec = load_node(node).model_copy(update=node_changes or {})
    fabric_spec = load_fabric(fabric).model_copy(update=changes)
    return ClusterSpec(node=node_spec, num_nodes=num_nodes, fabric=fabric_spec)


TWO_GPUS = {"gpus_per_node": 2, "nics_per_node": 2}
SHARED_NIC = {"gpus_per_node": 4, "nics_per_node": 2}
SMALL = {
    "single": cluster(3, "single-switch", node_changes=TWO_GPUS),
    "rail, one unit": cluster(3, node_changes=TWO_GPUS, nodes_per_unit=4),
    "rail, two tiers": cluster(5, node_changes=TWO_GPUS, nodes_per_unit=2),
    "rail, three tiers": cluster(9, node_changes=TWO_GPUS, nodes_per_unit=2, units_per_pod=3),
    "rail, oversubscribed": cluster(
        9, node_changes=SHARED_NIC, nodes_per_unit=2, units_per_pod=2, oversubscription=2.0
    ),
    "tree, one leaf": cluster(2, "ndr-fat-tree", node_changes=TWO_GPUS),
    "tree, two tiers": cluster(5, "ndr-fat-tree", node_changes=TWO_GPUS, nodes_per_unit=2),
    "tree, three tiers": cluster(
        7, "ndr-fat-tree", node_changes=SHARED_NIC, nodes_per_unit=1, units_per_pod=2
    ),
    "tree, core oversubscribed": cluster(
        7, "meta-roce", node_changes=TWO_GPUS, nodes_per_unit=1, units_per_pod=3
    ),
    "tree, two tiers forced": cluster(
        7, "ndr-fat-tree", node_changes=TWO_GPUS, nodes_per_unit=1, units_per_pod=2, tiers=2
    ),
}


def without(graph, kind):
    """Routes inside a node use no NIC; those between nodes pass through no other GPU."""
    return graph.subgraph([v for v in graph if v[0] != kind])


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL.keys())
def test_paths_agree_with_networkx(spec):
    topology = Topology(spec)
    graph = topology.graph()
    inside, outside = without(graph, "nic"), without(graph, "nvswitch")
    latency = dict(nx.all_pairs_dijkstra_path_length(inside, weight="latency_s"))
    for src, lengths in nx.all_pairs_dijkstra_path_length(outside, weight="latency_s"):
        latency[src] = lengths | latency.get(src, {})
    for src, dst in permutations(range(spec.num_gpus), 2):
        path = topology.path(src, dst)
        assert path.latency_s == pytest.approx(latency["gpu", src]["gpu", dst])
        if topology.node_of(src) == topology.node_of(dst):
            continue
        route = nx.shortest_path(outside, ("gpu", src), ("gpu", dst))
        assert path.num_switches == len(route) - 4  # GPUs and NICs at both ends
        if src < 2:  # flows are slow: from two GPUs only
            most = min(map(topology.capacity, path.links))
            flow = nx.maximum_flow_value(
                outside, ("gpu", src), ("gpu", dst), capacity="capacity_bytes_per_s"
            )
            assert most == pytest.approx(flow)


@pytest.mark.parametrize("spec", SMALL.values(), ids=SMALL.keys())
def test_trunks_carry_the_sum_of_the_graphs_edges(spec):
    topology = Topology(spec)
    graph = topology.graph()
    for unit in range(topology.shape.num_units if topology.shape.tiers > 1 else 0):
        for leaf in range(topology.shape.leaves_per_unit):
            up = [d for _, v, d in graph.out_edges(("leaf", unit, leaf), data=True)
                  if v[0] == "spine"]  # fmt: skip
            total = sum(d["capacity_bytes_per_s"] for d in up)
            assert topology.capacity(Link("leaf_up", unit, leaf)) == pytest.approx(total)
    for pod in range(topology.shape.num_pods if topology.shape.tiers > 2 else 0):
        for group in range(topology.shape.spine_groups_per_pod):
            total = sum(
                d["capacity_bytes_per_s"]
                for u, v, d in graph.edges(data=True)
                if u[:3] == ("spine", pod, group) and v[0] == "core"
            )
            assert topology.capacity(Link("spine_up", pod, group)) == pytest.approx(total)


@pytest.mark.parametrize(
    ("units", "leaves", "spines", "cores"),
    [
        (2, 16, 8, 0),
        (4, 32, 16, 0),
        (8, 64, 32, 0),
        (16, 128, 128, 64),
        (32, 256, 256, 128),
        (64, 512, 512, 256),
    ],
)
def test_switch_counts_of_the_h100_superpod(units, leaves, spines, cores):
    """NVIDIA DGX SuperPOD reference architecture, H100 and B200, table of scalable units."""
    shape = fabric_shape(cluster(32 * units))
    assert (shape.num_leaves, shape.num_spines, shape.num_cores) == (leaves, spines, cores)


def test_switch_counts_of_the_a100_superpod():
    """140 nodes in 7 units: 56 leaves, 80 spines, 28 cores (A100 reference architecture)."""
    shape = fabric_shape(cluster(140, "hdr-rail-optimized", "dgx-a100"))
    assert (shape.num_leaves, shape.num_spines, shape.num_cores) == (56, 80, 28)


def test_the_graph_holds_those_switches():
    topology = Topology(cluster(32 * 16))
    kinds = [data["kind"] for _, data in topology.graph().nodes(data=True)]
    assert kinds.count("gpu") == kinds.count("nic") == 512 * 8
    assert kinds.count("nvswitch") == 512
    assert [kinds.count(k) for k in ("leaf", "spine", "core")] == [128, 128, 64]


def test_same_rail_stays_below_the_core_and_other_rails_cross_it():
    topology = Topology(cluster(768))
    first, same_unit, far = 0, 8 * 31, 8 * 700
    assert topology.path(first, same_unit).num_switches == 1
    assert topology.path(first, far).num_switches == 3
    assert topology.path(first, far + 1).num_switches == 5
    assert topology.path(first, first + 7).num_switches == 0


def test_a_full_fabric_never_binds_and_paths_list_only_what_can():
    topology = Topology(cluster(768))
    assert not topology.can_bind(Link("leaf_up", 0, 0))
    assert not topology.can_bind(Link("spine_down", 0, 3))
    assert [link.kind for link in topology.path(0, 8 * 700).links] == ["nic_tx", "nic_rx"]


def test_an_oversubscribed_trunk_binds_only_where_enough_nodes_feed_it():
    topology = Topology(cluster(34, oversubscription=4.0))
    assert topology.can_bind(Link("leaf_up", 0, 0))  # 32 NICs on 8 cables
    assert not topology.can_bind(Link("leaf_up", 1, 0))  # 2 NICs on 8 cables


def test_bisection_of_an_oversubscribed_fabric_by_hand():
    """Four full units, 8 leaves each of 32 NICs at 48 GB/s; up-links a quarter of that."""
    topology = Topology(cluster(128, oversubscription=4.0))
    graph = nx.DiGraph(without(topology.graph(), "nvswitch"))
    for node in range(128):
        for nic in range(8):
            end = "source" if node < 64 else "sink"
            edge = (end, ("nic", node, nic)) if end == "source" else (("nic", node, nic), end)
            graph.add_edge(*edge)
    flow = nx.maximum_flow_value(graph, "source", "sink", capacity="capacity_bytes_per_s")
    assert flow == pytest.approx(64 * 8 * 0.96 * 50e9 / 4)


def test_core_oversubscription_by_hand():
    """A pod of 192 racks, 2 x 8 NICs each, every NIC 50 GB/s at 0.95; one seventh leaves it."""
    topology = Topology(cluster(12288 // 8, "meta-roce"))
    up = Link("spine_up", 0, 0)
    assert topology.capacity(up) == pytest.approx(192 * 16 * 0.95 * 50e9 / 7)
    assert topology.can_bind(up)
    assert not topology.can_bind(Link("leaf_up", 0, 0))
    assert up in topology.path(0, 8 * 1000).links
    assert up not in topology.path(0, 8 * 300).links


def test_gpus_share_nics_in_order():
    topology = Topology(cluster(2, node="hgx-a100-4nic", fabric="hdr-rail-optimized"))
    assert [topology.nic_of(gpu) for gpu in range(8, 16)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_gpu_off_the_cluster_is_refused():
    with pytest.raises(ValueError, match="GPU 16 is not one of 16"):
        Topology(cluster(2)).path(0, 16)


# Loads of a ring


def test_ring_inside_a_node_loads_every_port_once():
    load = Topology(cluster(2)).collective_links([0, 3, 5])
    expected = [Link(k, 0, g) for g in (0, 3, 5) for k in ("nvlink_tx", "nvlink_rx")]
    assert load == dict.fromkeys(expected, 1.0)


def test_ring_of_one_gpu_a_node_loads_one_nic_of_each():
    load = Topology(cluster(48)).collective_links(range(2, 48 * 8, 8))
    assert load == {Link(k, n, 2): 1.0 for n in range(48) for k in ("nic_tx", "nic_rx")}


def test_ring_of_k_members_a_node_spreads_over_k_nics():
    load = Topology(cluster(2)).collective_links([0, 1, 2, 3, 8, 9, 10, 11])
    nics = {link: w for link, w in load.items() if link.kind.startswith("nic")}
    assert nics == {Link(k, n, i): 1 / 4 for n in (0, 1) for i in range(4)
                    for k in ("nic_tx", "nic_rx")}  # fmt: skip
    assert all(load[Link("nvlink_tx", n, g)] == 1.0 for n in (0, 1) for g in range(4))


def test_members_that_share_a_nic_add_up():
    topology = Topology(cluster(2, node="hgx-a100-4nic", fabric="hdr-rail-optimized"))
    load = topology.collective_links([0, 1, 2, 8, 9, 10])
    assert load[Link("nic_tx", 0, 0)] == pytest.approx(2 / 3)
    assert load[Link("nic_tx", 0, 1)] == pytest.approx(1 / 3)


def test_ring_over_units_loads_trunks_at_the_unit_borders_only():
    """Units of 2 nodes; the ring 0 1 2 3 leaves unit 0 after node 1, and comes back after 3."""
    topology = Topology(cluster(4, nodes_per_unit=2, oversubscription=2.0))
    load = topology.collective_links([3, 8 + 3, 16 + 3, 24 + 3])
    trunks = {link: w for link, w in load.items() if link.kind.startswith("leaf")}
    assert trunks == {Link(k, u, 3): 1.0 for u in (0, 1) for k in ("leaf_up", "leaf_down")}


def test_ring_that_jumps_between_units_loads_trunks_with_every_hop():
    topology = Topology(cluster(4, nodes_per_unit=2, oversubscription=2.0))
    load = topology.collective_links([0, 16, 8, 24])  # nodes 0 2 1 3
    assert load[Link("leaf_up", 0, 0)] == load[Link("leaf_down", 1, 0)] == 2.0


@pytest.mark.parametrize("members", [[], [5]])
def test_a_group_of_one_loads_nothing(members):
    assert Topology(cluster(2)).collective_links(members) == {}


@pytest.mark.parametrize("fabric", preset_names("fabrics"))
@pytest.mark.parametrize("num_nodes", [1, 2, 33, 700, 2500])
def test_every_fabric_of_the_catalog_takes_any_size(fabric, num_nodes):
    topology = Topology(cluster(num_nodes, fabric))
    path = topology.path(0, 8 * num_nodes - 1)
    assert path.latency_s > 0
    assert all(topology.capacity(link) > 0 for link in path.links)


@pytest.mark.benchmark
def test_speed_of_queries_and_graph(benchmark):
    big = Topology(cluster(12288))
    benchmark(big.path, 5, 98000)


def test_all_to_all_inside_and_between_nodes() -> None:
    """8 members, 4 in each of 2 nodes: each sends 3/7 of its bytes over NVLink and 4/7 to the other
    node; on rails by the NIC of the receiver, whose rail has 4 senders of 1/7 each."""
    load = Topology(cluster(2)).all_to_all_links([0, 1, 2, 3, 8, 9, 10, 11])
    assert load[Link("nvlink_tx", 0, 2)] == pytest.approx(3 / 7)
    assert load[Link("nic_tx", 0, 1)] == pytest.approx(4 / 7)
    assert load[Link("nic_rx", 1, 3)] == pytest.approx(4 / 7)
    assert Link("nic_tx", 0, 4) not in load


def test_all_to_all_of_few_receivers_on_rails() -> None:
    """GPUs 0 and 1 of node 0, and 0 of node 1: both send half of their bytes to rail 0 of node 1,
    so that node 0's NIC 0 carries a whole share; node 1's sender uses the rails of both."""
    load = Topology(cluster(2)).all_to_all_links([0, 1, 8])
    assert load[Link("nic_tx", 0, 0)] == pytest.approx(1.0)
    assert Link("nic_tx", 0, 1) not in load
    assert load[Link("nic_tx", 1, 0)] == load[Link("nic_tx", 1, 1)] == pytest.approx(0.5)


def test_all_to_all_through_oversubscribed_spines() -> None:
    """A tree with one node per leaf: all of a node's 16/16 x 8/15... bytes to the other leaf."""
    tree = cluster(2, fabric="ndr-fat-tree", nodes_per_unit=1, oversubscription=4.0)
    load = Topology(tree).all_to_all_links(range(16))
    assert load[Link("leaf_up", 0, 0)] == pytest.approx(8 * 8 / 15)
    assert load[Link("nic_tx", 0, 5)] == pytest.approx(8 / 15)


def test_one_ring_loads_one_nic_per_node() -> None:
    """0 -> 1 -> 8 -> 9 -> 0: GPU 1 and GPU 9 send between the nodes, whole."""
    load = Topology(cluster(2)).ring_links([0, 1, 8, 9])
    assert load[Link("nic_tx", 0, 1)] == load[Link("nic_tx", 1, 1)] == 1.0
    assert load[Link("nic_rx", 1, 0)] == load[Link("nic_rx", 0, 0)] == 1.0
    assert Link("nic_tx", 0, 0) not in load
    assert load[Link("nvlink_tx", 0, 0)] == 1.0
