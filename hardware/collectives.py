"""What a collective costs: which algorithm NCCL would take, bytes on the wire, rate, latency.

A cost is split so that links can be shared: `latency_s` is the part that no sharing changes, and
`wire_bytes` go at `rate_bytes_per_s` when nothing else is on the way. Bytes are those of
nccl-tests: the whole buffer (all-gather: what each rank ends with; reduce-scatter: what each
starts with), and wire bytes are bytes times the bus-bandwidth factor of its PERFORMANCE.md.
"""

from dataclasses import dataclass

from hardware import nccl
from hardware.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class GroupShape:
    """How the members of a group lie on nodes: evenly, with `nics_per_node_used` NICs each."""

    num_ranks: int
    num_nodes: int
    nics_per_node_used: int


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Time alone is `latency_s + wire_bytes / rate_bytes_per_s`, see `time_s`."""

    latency_s: float
    wire_bytes: float
    """Bus bytes: what each member sends, whatever the algorithm."""
    rate_bytes_per_s: float
    algorithm: str
    protocol: str
    num_channels: int
    """SMs that it occupies: one for each channel."""
    nvlink_weight: float = 1.0
    """Bytes over a member's NVLink port per wire byte; less when switches reduce."""
    nic_weight: float = 1.0
    """Bytes over a node's NICs per wire byte; a tree over two nodes sends about half."""

    @property
    def time_s(self) -> float:
        """Seconds when nothing shares its links."""
        if self.wire_bytes == 0.0:
            return self.latency_s
        return self.latency_s + self.wire_bytes / self.rate_bytes_per_s


def bus_factor(kind: nccl.Kind, num_ranks: int) -> float:
    """Wire bytes per byte of the buffer. Source: nccl-tests, doc/PERFORMANCE.md."""
    if kind == "broadcast":
        return 1.0 if num_ranks > 1 else 0.0
    once = (num_ranks - 1) / num_ranks
    return 2.0 * once if kind == "all_reduce" else once


def collective_cost(
    kind: nccl.Kind,
    num_bytes: float,
    shape: GroupShape,
    node: NodeSpec,
    nic_rate_bytes_per_s: float,
    in_network_reduction: bool = False,
) -> CollectiveCost:
    """Price a collective of `num_bytes` among the ranks of `shape`.

    The fastest of the algorithms and protocols that NCCL offers is taken, as its tuner does; but a
    group on several nodes is never faster than its members of one node would be alone. A group of
    one, or no bytes, costs nothing. Raises `ValueError` on a shape that cannot be.
    """
    _check(num_bytes, shape)
    wire_bytes = num_bytes * bus_factor(kind, shape.num_ranks)
    if wire_bytes == 0.0:
        return CollectiveCost(0.0, 0.0, node.nvlink.usable_bytes_per_s, "none", "none", 0)
    group = nccl.Group(
        shape.num_ranks, shape.num_nodes, shape.nics_per_node_used, node, nic_rate_bytes_per_s,
        in_network_reduction,
    )  # fmt: skip
    best, time_s = _fastest(kind, num_bytes, group)
    local = group._replace(num_ranks=shape.num_ranks // shape.num_nodes, num_nodes=1)
    if shape.num_nodes > 1 and local.num_ranks > 1:
        time_s = max(time_s, _fastest(kind, num_bytes, local)[1])
    return CollectiveCost(
        time_s - wire_bytes / best.rate_bytes_per_s,
        wire_bytes,
        best.rate_bytes_per_s,
        best.algorithm,
        best.protocol,
        best.num_channels,
        best.nvlink_weight,
        best.nic_weight,
    )


def _fastest(kind: nccl.Kind, num_bytes: float, group: nccl.Group) -> tuple[nccl.Way, float]:
    wire_bytes = num_bytes * bus_factor(kind, group.num_ranks)
    timed = ((way, way.time_s(wire_bytes)) for way in nccl.ways(kind, group))
    return min(timed, key=lambda pair: pair[1])


def point_to_point(
    num_bytes: float,
    same_node: bool,
    node: NodeSpec,
    nic_rate_bytes_per_s: float,
    path_latency_s: float = 0.0,
) -> CollectiveCost:
    """Price one send and its receive between two GPUs.

    `path_latency_s` is the wire's own (`Topology.path`); it comes on top of NCCL's hop.
    """
    if num_bytes < 0:
        raise ValueError(f"cannot send {num_bytes} bytes")
    rate = node.nvlink.usable_bytes_per_s if same_node else nic_rate_bytes_per_s
    if num_bytes == 0:
        return CollectiveCost(0.0, 0.0, rate, "none", "none", 0)
    way = nccl.send_way(same_node, node, nic_rate_bytes_per_s)
    return CollectiveCost(
        way.start_s + path_latency_s,
        num_bytes,
        way.rate_bytes_per_s,
        way.algorithm,
        way.protocol,
        way.num_channels,
    )


def _check(num_bytes: float, shape: GroupShape) -> None:
    if num_bytes < 0:
        raise ValueError(f"a collective of {num_bytes} bytes")
    if not 1 <= shape.num_nodes <= shape.num_ranks:
        raise ValueError(f"{shape.num_ranks} ranks do not spread over {shape.num_nodes} nodes")
    if shape.num_nodes > 1 and shape.nics_per_node_used < 1:
        raise ValueError(f"{shape.num_nodes} nodes without a NIC")
