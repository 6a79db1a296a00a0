"""How fast the links of one run were, where the run itself measured them.

The nanotron sweep of the Ultra-Scale Playbook ran on a shared cluster whose links differed from
job to job; each job timed NCCL's collectives over all of its GPUs and inside a node before it
trained, and the notes carry their bus bandwidths. Over what the catalog's links would give for the
same collective, that is the job's link efficiency.

The later jobs ran under TORCH_DISTRIBUTED_DEBUG=DETAIL (nanotron's run_multinode.sh exports it), in
which PyTorch compares fingerprints of all ranks before each collective. Their bandwidths show it:
1 GB over n GPUs takes 0.28 ms times n from 32 GPUs on, whatever the network, and an all-reduce
inside a node runs at 425 GB/s instead of 458. Such a bandwidth tells nothing of the network, which
is then taken as the catalog has it.

Runs marked after_pp_fix=False are from before the authors mended their pipeline; what it was is not
published. In checked jobs their transfers between nodes take a quarter of a second at each end,
whatever is sent, and so do those of the few jobs whose GPUs of one node met over the network.
"""

import re
from collections.abc import Mapping
from typing import Any

from hardware.collectives import GroupShape, bus_factor, collective_cost
from hardware.nccl import Kind
from hardware.spec import ClusterSpec

MESSAGE_BYTES = 2.0**30
"""Long enough for latency not to matter."""
LIMITS = (0.01, 2.0)
"""What `ProfileSpec.network_efficiency` takes."""
UNCHECKED_BYTES_PER_S = 440e9
"""All-reduce inside a node: 450 to 462 GB/s where nothing is checked, 410 to 430 where it is; and
BROKEN_BYTES_PER_S: about 45 where it went over the network."""
BROKEN_BYTES_PER_S = 300e9
COLLECTIVE_CHECK_S = 0.22e-3
"""Per rank of a group inside a node: a layer of 2, 4 and 8 tensor-parallel ranks, with its 10
collectives, takes 8.6, 13.3 and 22.3 ms in such jobs at any width, micro-batch and depth, 4.5 ms in
the others; and
NETWORK_CHECK_S, across nodes: 1 GB takes 18.2, 35, 74 and 156 ms over 64, 128, 256 and 512 GPUs."""
NETWORK_CHECK_S = 0.28e-3
SLOW_TRANSFER_S = 0.25
"""Per send and receive: a microbatch takes half a second longer in two stages, where each sends and
receives once, and a second where stages in the middle do so twice, for 1.3B to 80B parameters,
micro-batches of 1 to 128 and 1 to 32 tensor-parallel ranks."""
_RATES = re.compile(r"nccl AR/AG/RS GB/s [\d.]+/([\d.]+)/[\d.]+(?: intra ([\d.]+))?")


def with_noted_network(cluster: ClusterSpec, row: Mapping[str, str]) -> ClusterSpec:
    """The cluster with the link efficiencies and checks that the row's notes tell, if any."""
    found = _RATES.search(row.get("notes", ""))
    if found is None:
        return cluster
    inside = None if found[2] is None else float(found[2]) * 1e9
    checked = inside is not None and BROKEN_BYTES_PER_S < inside < UNCHECKED_BYTES_PER_S
    known: dict[str, Any] = {}
    if checked:
        known["collective_check_s"] = COLLECTIVE_CHECK_S
        known["network_collective_check_s"] = NETWORK_CHECK_S
    elif cluster.num_nodes > 1:
        measured = float(found[1]) * 1e9
        known["network_efficiency"] = _efficiency(
            cluster, "all_gather", cluster.num_nodes, measured
        )
    if inside is not None and cluster.node.gpus_per_node > 1:
        known["nvlink_efficiency"] = _efficiency(cluster, "all_reduce", 1, inside)
    broken = inside is not None and inside <= BROKEN_BYTES_PER_S
    unmended = checked and "after_pp_fix=False" in row["notes"] and cluster.num_nodes > 1
    if broken or unmended:
        known["host_transfer_s"] = SLOW_TRANSFER_S
    profile = cluster.profile.model_copy(update=known)
    return cluster.model_copy(update={"profile": profile})


def _efficiency(
    cluster: ClusterSpec, kind: Kind, num_nodes: int, measured_bytes_per_s: float
) -> float:
    """Bus bandwidth of a collective over whole nodes, over what the catalog's links would give."""
    node = cluster.node
    shape = GroupShape(num_nodes * node.gpus_per_node, num_nodes, node.ports_per_node)
    cost = collective_cost(kind, MESSAGE_BYTES, shape, node, cluster.nic_rate_bytes_per_s)
    expected = MESSAGE_BYTES * bus_factor(kind, shape.num_ranks) / cost.time_s
    return min(max(measured_bytes_per_s / expected, LIMITS[0]), LIMITS[1])
