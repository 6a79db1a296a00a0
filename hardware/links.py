"""Names of the directed capacities that traffic crosses, and a path as a row of them."""

from typing import Literal, NamedTuple, TypeAlias

LinkKind: TypeAlias = Literal[
    "nvlink_tx", "nvlink_rx", "nic_tx", "nic_rx",
    "leaf_up", "leaf_down", "spine_up", "spine_down",
]  # fmt: skip


class Link(NamedTuple):
    """A directed capacity, named by what it belongs to.

    nvlink: node, GPU in the node; nic: node, port in the node (`NodeSpec.ports_per_node`); leaf:
    unit, leaf in the unit (its trunk to the spines); spine: pod, spine group in the pod (its trunk
    to the cores).
    """

    kind: LinkKind
    owner: int
    port: int


class Path(NamedTuple):
    """Links that can bind between two GPUs, in order, and the latency of every hop."""

    links: tuple[Link, ...]
    latency_s: float
    num_switches: int
    """Network switches crossed; an NVSwitch is not counted."""


class Standing(NamedTuple):
    """Flows that are always on a link: so many alike, each at most at this rate."""

    num_flows: float
    limit_bytes_per_s: float
