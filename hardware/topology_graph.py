"""A cluster as a networkx graph, for views, routes and independent checks.

Nodes are tuples: ("gpu", rank), ("nvswitch", node), ("nic", node, nic), ("leaf", unit, leaf),
("spine", pod, group, index), ("core", index), each with a `kind`. Edges are directed, with
`capacity_bytes_per_s` and `latency_s`. The latency of a switch stands on the edge into it; that
of the NICs half on the edge out of the sending one, half on the edge into the receiving one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from hardware.topology import Topology

Vertex = tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int]
Edge = tuple[Vertex, Vertex, dict[str, float]]


def build_graph(topology: "Topology") -> "nx.DiGraph":
    """Build the graph of a cluster: about 50,000 edges for 768 nodes."""
    graph = nx.DiGraph()
    graph.add_edges_from(_node_edges(topology))
    graph.add_edges_from(_fabric_edges(topology))
    for vertex, data in graph.nodes.items():
        data["kind"] = vertex[0]
    return graph


def _edge(src: Vertex, dst: Vertex, capacity_bytes_per_s: float, latency_s: float) -> Edge:
    return src, dst, {"capacity_bytes_per_s": capacity_bytes_per_s, "latency_s": latency_s}


def _node_edges(topology: "Topology") -> Iterator[Edge]:
    """Inside each node, and from its NICs to their leaves."""
    cluster = topology.cluster
    node, fabric = cluster.node, cluster.fabric
    usable, half_hop_s = node.nvlink.usable_bytes_per_s, node.nvlink.latency_s / 2
    pcie, rate, half_nic_s = (
        node.pcie_bandwidth_bytes_per_s, cluster.nic_rate_bytes_per_s, fabric.nic_latency_s / 2,
    )  # fmt: skip
    for gpu in range(cluster.num_gpus):
        server = topology.node_of(gpu)
        switch, nic = ("nvswitch", server), ("nic", server, topology.nic_of(gpu))
        yield _edge(("gpu", gpu), switch, usable, half_hop_s)
        yield _edge(switch, ("gpu", gpu), usable, half_hop_s)
        yield _edge(("gpu", gpu), nic, pcie, 0.0)
        yield _edge(nic, ("gpu", gpu), pcie, 0.0)
    for server in range(cluster.num_nodes):
        for index in range(node.nics_per_node):
            leaf = ("leaf", *topology.leaf_of(server, index))
            yield _edge(("nic", server, index), leaf, rate, half_nic_s + fabric.switch_latency_s)
            yield _edge(leaf, ("nic", server, index), rate, half_nic_s)


def _fabric_edges(topology: "Topology") -> Iterator[Edge]:
    """Leaves to their spines, spines to the cores of their plane; trunks shared evenly."""
    shape, hop_s = topology.shape, topology.cluster.fabric.switch_latency_s
    if shape.tiers < 2:
        return
    for unit in range(shape.num_units):
        for leaf in range(shape.leaves_per_unit):
            pod, group = topology.spine_group_of(unit, leaf)
            share = shape.leaf_trunk_bytes_per_s / shape.spines_per_group
            for index in range(shape.spines_per_group):
                spine = ("spine", pod, group, index)
                yield _edge(("leaf", unit, leaf), spine, share, hop_s)
                yield _edge(spine, ("leaf", unit, leaf), share, hop_s)
    planes = shape.num_core_planes
    for pod in range(shape.num_pods if shape.tiers == 3 else 0):
        trunk = shape.spine_trunk_bytes_per_s(pod)
        share = trunk / shape.spines_per_group / (shape.num_cores // planes)
        for group in range(shape.spine_groups_per_pod):
            for index in range(shape.spines_per_group):
                for core in range(index % planes, shape.num_cores, planes):
                    yield _edge(("spine", pod, group, index), ("core", core), share, hop_s)
                    yield _edge(("core", core), ("spine", pod, group, index), share, hop_s)
