"""A cluster as a networkx graph, for views, routes and independent checks.

Nodes are tuples: ("gpu", rank), ("nvswitch", node), ("nic", node, nic), ("leaf", unit, leaf),
("spine", pod, group, index), ("core", index), each with a `kind`. Edges are directed, with
`capacity_bytes_per_s` and `latency_s`. The latency of a switch stands on the edge into it; that
of the NICs half on the edge out of the sending one, half on the edge into the receiving one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import networkx as nx

from hardware.links import Link

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
    """Inside each node, and from its NICs to their leaves. NICs that one GPU has to itself are one
    vertex."""
    cluster = topology.cluster
    node, fabric = cluster.node, cluster.fabric
    half_hop_s, half_nic_s = node.nvlink.latency_s / 2, fabric.nic_latency_s / 2
    pcie, leaf_s = node.pcie_bandwidth_bytes_per_s * node.nics_per_port, fabric.tier_latencies_s[0]
    for gpu in range(topology.num_gpus):
        server = topology.node_of(gpu)
        switch, nic = ("nvswitch", server), ("nic", server, topology.nic_of(gpu))
        usable = topology.capacity(Link("nvlink_tx", server, gpu % node.gpus_per_node))
        yield _edge(("gpu", gpu), switch, usable, half_hop_s)
        yield _edge(switch, ("gpu", gpu), usable, half_hop_s)
        yield _edge(("gpu", gpu), nic, pcie, 0.0)
        yield _edge(nic, ("gpu", gpu), pcie, 0.0)
    for server in range(cluster.fabric_nodes):
        for index in range(node.ports_per_node):
            leaf = ("leaf", *topology.leaf_of(server, index))
            rate = topology.capacity(Link("nic_tx", server, index))
            yield _edge(("nic", server, index), leaf, rate, half_nic_s + leaf_s)
            yield _edge(leaf, ("nic", server, index), rate, half_nic_s)


def _fabric_edges(topology: "Topology") -> Iterator[Edge]:
    """Leaves to their spines, spines to the cores of their plane; trunks shared evenly but for what
    is degraded."""
    shape = topology.shape
    if shape.tiers < 2:
        return
    leaf_s, spine_s, core_s = topology.cluster.fabric.tier_latencies_s
    for unit in range(shape.num_units):
        for port in range(shape.leaves_per_unit):
            leaf, up = ("leaf", unit, port), Link("leaf_up", unit, port)
            pod, group = shape.spine_group_of(unit, port)
            share = shape.leaf_trunk_bytes_per_s / shape.spines_per_group
            for number in shape.spines_of(unit * shape.leaves_per_unit + port):
                spine = ("spine", pod, group, number % shape.spines_per_group)
                left = share * topology.bundle_share(up, (number,))
                yield _edge(leaf, spine, left, spine_s)
                yield _edge(spine, leaf, left, leaf_s)
    for number in range(shape.num_spines if shape.tiers == 3 else 0):
        at, index = divmod(number, shape.spines_per_group)
        pod, group = divmod(at, shape.spine_groups_per_pod)
        share = shape.spine_trunk_bytes_per_s(pod) / shape.spines_per_group / shape.cores_per_spine
        for core in shape.cores_of(number):
            left = share * topology.bundle_share(Link("spine_up", pod, group), (number, core))
            yield _edge(("spine", pod, group, index), ("core", core), left, core_s)
            yield _edge(("core", core), ("spine", pod, group, index), left, spine_s)
