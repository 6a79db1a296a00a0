"""What other jobs put on the trunks of a shared fabric, link by link.

Every NIC of a background job sends at its rate, to the same rail of the next node or to that of all
its other nodes. On each trunk its flows are always on; they are taken to be held up nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from hardware.links import Link, Standing
from hardware.spec import BackgroundJob

Trunks = Callable[[int, int, int], Iterable[Link]]
"""Port and two nodes -> trunks between the ports of these nodes."""


def standing_flows(
    jobs: Iterable[BackgroundJob],
    ports_per_node: int,
    nics_per_port: float,
    port_bytes_per_s: float,
    nodes_per_unit: int,
    trunks: Trunks,
) -> Mapping[Link, tuple[Standing, ...]]:
    """Flows of all jobs on each trunk that they cross, none faster than its port."""
    found: dict[Link, dict[float, float]] = {}
    for job in jobs:
        limit = min(job.rate * nics_per_port, port_bytes_per_s)
        for port in range(ports_per_node):
            for src, dst, flows in _pairs(job, nodes_per_unit):
                for link in trunks(port, src, dst):
                    by_limit = found.setdefault(link, {})
                    by_limit[limit] = by_limit.get(limit, 0.0) + flows
    return {
        link: tuple(Standing(flows, limit) for limit, flows in sorted(by_limit.items()))
        for link, by_limit in found.items()
    }


def _pairs(job: BackgroundJob, nodes_per_unit: int) -> Iterator[tuple[int, int, float]]:
    """Sending and receiving node, and how many flows of a NIC's rate go that way. Nodes of one unit
    are under the same leaves, so that one may stand for all."""
    hosts = job.hosts
    if job.traffic == "ring":
        yield from ((a, b, 1.0) for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True))
        return
    units: dict[int, list[int]] = {}
    for host in hosts:
        units.setdefault(host // nodes_per_unit, []).append(host)
    for senders in units.values():
        for receivers in units.values():
            if senders is not receivers:
                flows = len(senders) * len(receivers) / (len(hosts) - 1)
                yield senders[0], receivers[0], flows


def rate_beside(standing: Iterable[Standing], capacity: float, weight: float) -> float:
    """Max-min rate of a flow of `weight` on a link with standing flows: all rise together until the
    link is full, each standing one to its limit at most.

    >>> rate_beside([Standing(2, 3.0)], 10.0, 1.0)  # the two take 3 each, 4 are left
    4.0
    >>> rate_beside([Standing(2, 5.0)], 10.0, 1.0)  # a third each
    3.3333333333333335
    """
    used, rising = 0.0, weight + sum(flow.num_flows for flow in standing)
    for flow in sorted(standing, key=lambda flow: flow.limit_bytes_per_s):
        if used + rising * flow.limit_bytes_per_s >= capacity:
            break
        used += flow.num_flows * flow.limit_bytes_per_s
        rising -= flow.num_flows
    return (capacity - used) / rising
