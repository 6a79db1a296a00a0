"""The host beside the GPUs: copies over its link, Adam on its cores, checks of collectives."""

from hardware.collectives import CollectiveCost, GroupShape
from hardware.spec import NodeSpec, ProfileSpec

COPY_LATENCY_S = 3e-6
"""Of one copy between pinned host memory and GPU (64 KiB take 3.0 to 3.8 us on our H200)."""
ADAM_BYTES = 28
"""Per parameter: fp32 gradient, master weight and two moments read, the last three written."""
ADAM_EFFICIENCY = 0.5
"""Share of the memory's nominal bandwidth that a fused CPU Adam reaches. A stated guess, between
0.8 as STREAM has it and 0.15: 11.6e9 parameters in 8.2 s (DeepSpeed pull request 735), on a DGX-2
(256 GB/s) if it was one."""


def copy_cost(num_bytes: float, node: NodeSpec) -> CollectiveCost:
    """A copy between one GPU and the host, one way."""
    rate = node.host_link_bandwidth_bytes_per_s or node.pcie_bandwidth_bytes_per_s
    return CollectiveCost(COPY_LATENCY_S, num_bytes, rate, "copy", "none", 0)


def adam_time_s(parameters: float, node: NodeSpec) -> float:
    """One GPU's parameters, while those of all other GPUs of the node are stepped too."""
    share = node.host_memory_bandwidth_bytes_per_s / node.gpus_per_node
    return parameters * ADAM_BYTES / (share * ADAM_EFFICIENCY)


def collective_check_s(shape: GroupShape, profile: ProfileSpec) -> float:
    """Seconds of the host before a collective of this group may start."""
    if shape.num_ranks == 1:
        return 0.0
    inside = shape.num_nodes == 1
    each_s = profile.collective_check_s if inside else profile.network_collective_check_s
    return shape.num_ranks * each_s
