"""How fast the network of one run was, where the run itself measured it.

The nanotron sweep of the Ultra-Scale Playbook ran on a shared cluster whose links differed from
job to job; each job timed NCCL's all-reduce over all of its GPUs before it trained, and the notes
carry the bus bandwidth. Over what the catalog's network would give for the same collective, that
is the job's network efficiency.
"""

import re
from collections.abc import Mapping

from hardware.collectives import GroupShape, bus_factor, collective_cost
from hardware.spec import ClusterSpec

MESSAGE_BYTES = 2.0**30
"""Long enough for latency not to matter."""
LIMITS = (0.01, 2.0)
"""What `ProfileSpec.network_efficiency` takes."""
_RATE = re.compile(r"nccl AR/AG/RS GB/s ([\d.]+)/")


def with_noted_network(cluster: ClusterSpec, row: Mapping[str, str]) -> ClusterSpec:
    """The cluster with the network efficiency that the row's notes tell, if they tell one."""
    found = _RATE.search(row.get("notes", ""))
    if found is None or cluster.num_nodes == 1:
        return cluster
    shape = GroupShape(cluster.num_gpus, cluster.num_nodes, cluster.node.nics_per_node)
    cost = collective_cost(
        "all_reduce", MESSAGE_BYTES, shape, cluster.node, cluster.nic_rate_bytes_per_s
    )
    expected = MESSAGE_BYTES * bus_factor("all_reduce", cluster.num_gpus) / cost.time_s
    ratio = float(found[1]) * 1e9 / expected
    efficiency = min(max(ratio, LIMITS[0]), LIMITS[1])
    profile = cluster.profile.model_copy(update={"network_efficiency": efficiency})
    return cluster.model_copy(update={"profile": profile})
