"""What must hold between the keys of a cluster: nodes that exist and are used once, switches that
can be wired, links that exist."""

from collections.abc import Iterator

from hardware.degradation import degradation_problems
from hardware.fabric_shape import fabric_shape
from hardware.spec import ClusterSpec

KeyPath = tuple[str, ...]


def cluster_problems(cluster: ClusterSpec) -> Iterator[tuple[KeyPath, str]]:
    """Each problem: path of the key below `cluster`, and what is wrong in words."""
    found = list(_node_problems(cluster))
    yield from found
    if found:
        return
    try:
        fabric_shape(cluster)
    except ValueError as error:
        yield ("fabric", "num_spines"), str(error)
        return
    for i, message in degradation_problems(cluster):
        yield ("fabric", "degraded", str(i), "link"), message


def _node_problems(cluster: ClusterSpec) -> Iterator[tuple[KeyPath, str]]:
    if cluster.hosts and len(cluster.hosts) != cluster.num_nodes:
        yield ("hosts",), f"{len(cluster.hosts)} nodes for num_nodes {cluster.num_nodes}"
    cabled = cluster.fabric_nodes
    if cluster.num_nodes > cabled and not cluster.hosts:
        yield (
            ("fabric", "num_nodes"),
            f"{cabled} nodes are too few for a run on {cluster.num_nodes}",
        )
    own = set(cluster.node_order)
    jobs: list[tuple[KeyPath, tuple[int, ...]]] = [(("hosts",), cluster.hosts)]
    jobs += [(("background", str(i), "hosts"), b.hosts) for i, b in enumerate(cluster.background)]
    for path, hosts in jobs:
        twice = sorted({node for node in hosts if hosts.count(node) > 1})
        if twice:
            yield path, f"node {twice[0]} twice"
        if hosts and max(hosts) >= cabled:
            yield path, f"there is no node {max(hosts)}; the fabric has 0 to {cabled - 1}"
        shared = sorted(own.intersection(hosts)) if path[0] == "background" else []
        if shared:
            yield path, f"node {shared[0]} belongs to the run itself"
