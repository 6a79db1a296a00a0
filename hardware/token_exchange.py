"""What an exchange of tokens costs that sends each token once to each rank that needs it, and over
the network once to each node (DeepEP, HybridEP).

DeepEP's normal kernels (deepseek-ai/DeepEP, README): a token goes over the network to the GPU of
its own rail in each node that has experts for it, and over NVLink from there; both legs run side by
side.
"""

from hardware.collectives import CollectiveCost, GroupShape
from hardware.spec import NodeSpec

NVLINK_SHARE = 0.97
"""Of the usable NVLink rate: 153 to 158 of about 160 GB/s on H800 (DeepEP README, 8 ranks)."""
NETWORK_SHARE = 0.9
"""Of a NIC's rate: 43 to 58 GB/s of 50 are printed for 16 to 64 ranks, counting what stays in the
node (DeepEP README); 43 with 16 ranks, where half of it does, is the lowest."""
LATENCY_S = 60e-6
"""Layout, notification and the first hop: a stated guess from DeepEP's low-latency figures (77 us
for 128 tokens)."""
SMS = 24
"""DeepEP's default (Buffer.num_sms is 20; its README tests with 24)."""


def token_exchange_cost(
    num_bytes: float,
    choices: int,
    shape: GroupShape,
    node: NodeSpec,
    nic_rate_bytes_per_s: float,
) -> CollectiveCost:
    """Price sending a rank's tokens, `num_bytes` of all, each to `choices` experts that lie on the
    ranks of `shape` at random."""
    if num_bytes == 0.0 or shape.num_ranks == 1:
        return CollectiveCost(0.0, 0.0, node.nvlink.usable_bytes_per_s, "none", "none", 0)
    ranks = expected_places(choices, shape.num_ranks)
    wire_bytes = num_bytes * ranks * (shape.num_ranks - 1) / shape.num_ranks
    seconds = wire_bytes / (NVLINK_SHARE * node.nvlink.usable_bytes_per_s)
    nic_weight = 0.0
    if shape.num_nodes > 1:
        nodes = expected_places(choices, shape.num_nodes)
        per_node = shape.num_ranks // shape.num_nodes
        sent = num_bytes * nodes * (shape.num_nodes - 1) / shape.num_nodes * per_node
        nics = max(1, shape.nics_per_node_used)
        seconds = max(seconds, sent / nics / (NETWORK_SHARE * nic_rate_bytes_per_s))
        nic_weight = sent / wire_bytes
    return CollectiveCost(
        LATENCY_S, wire_bytes, wire_bytes / seconds, "p2p", "simple", SMS, 1.0, nic_weight
    )


def expected_places(choices: int, places: int) -> float:
    """Places among `places` equal ones that `choices` random picks hit at least once."""
    return places * (1.0 - (1.0 - 1.0 / places) ** choices)
