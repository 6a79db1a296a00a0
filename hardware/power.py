"""Watts of a GPU from how busy it is."""

from hardware.spec import NodeSpec

IDLE_FRACTION = 0.3
"""Power while a GPU waits or communicates, as a fraction of its limit. A stated guess: between
about 0.1 at rest and the limit, which the GEMMs of a training step reach (our H200 holds its 700 W
after 0.1 s of them, sustained.csv)."""


def node_power_w(node: NodeSpec, busy_fraction: float) -> float:
    """Mean power of one node, watts, whose GPUs compute for `busy_fraction` of the time."""
    share = IDLE_FRACTION + (1.0 - IDLE_FRACTION) * busy_fraction
    return node.gpus_per_node * node.gpu.tdp_w * share + node.power_overhead_w
