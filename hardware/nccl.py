"""The ways in which NCCL can run a collective, and how long each takes when alone.

Hop latencies, shares of the bandwidth and caps are those of NCCL's own tuner (src/graph/tuning.cc
and topo.h, commit 5067397c, June 2026). What a tuner need not know, how a real transfer gathers
speed, is added from published nccl-tests curves: a ramp, the launch, and the share of a link that
long messages reach. Rates are of wire (bus) bytes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import floor, log2, sqrt
from typing import Literal, NamedTuple, TypeAlias

from hardware.spec import NodeSpec

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
Algorithm: TypeAlias = Literal["ring", "tree"]
Protocol: TypeAlias = Literal["ll", "ll128", "simple"]


@dataclass(frozen=True, slots=True)
class Way:
    """One algorithm with one protocol.

    Time of x bytes: start + (latency^p + (x / rate)^p)^(1/p) + ramp sqrt((start + latency) x/rate);
    p = `overlap` is 1 where steps wait for each other and larger where they overlap.
    """

    algorithm: str
    protocol: str
    latency_s: float
    rate_bytes_per_s: float
    num_channels: int
    ramp: float = 0.0
    overlap: float = 1.0
    start_s: float = field(default=0.0)
    nvlink_weight: float = 1.0
    nic_weight: float = 1.0

    def time_s(self, wire_bytes: float) -> float:
        moving_s = wire_bytes / self.rate_bytes_per_s
        ramp_s = self.ramp * sqrt((self.start_s + self.latency_s) * moving_s)
        if self.overlap == 1.0:
            return self.start_s + self.latency_s + moving_s + ramp_s
        joined = self.latency_s**self.overlap + moving_s**self.overlap
        return float(self.start_s + joined ** (1.0 / self.overlap) + ramp_s)


class Group(NamedTuple):
    """Members of a collective, evenly on nodes, and the rates of their links."""

    num_ranks: int
    num_nodes: int
    nics: int
    """Used, per node."""
    node: NodeSpec
    nic_rate_bytes_per_s: float

    @property
    def per_node(self) -> float:
        return self.num_ranks / self.num_nodes

    @property
    def once(self) -> float:
        """(n - 1) / n."""
        return (self.num_ranks - 1) / self.num_ranks

    @property
    def fabric_rate(self) -> float:
        """Of all NICs that one node's members use."""
        return self.nics * self.nic_rate_bytes_per_s

    @property
    def ring_rate(self) -> float:
        """Bus bytes/s that rings through all members can carry."""
        inside = self.node.nvlink.usable_bytes_per_s * self._share()
        if self.num_nodes == 1:
            return inside
        return min(inside, self.fabric_rate) if self.per_node > 1 else self.fabric_rate

    def _share(self) -> float:
        shares = RING_SHARE[self.node.gpu.architecture]
        return shares[0] if self.node.gpus_per_node <= 8 else shares[1]


class _Hop(NamedTuple):
    """Microseconds by protocol."""

    ll: float
    ll128: float
    simple: float


# tuning.cc: baseLatencies and hwLatencies.
BASE_US = {"tree": _Hop(6.8, 14.0, 8.4), "ring": _Hop(6.6, 14.0, 8.4)}
NVLINK_US = {"tree": _Hop(0.6, 1.25, 4.0), "ring": _Hop(0.6, 1.9, 3.4)}
NETWORK_US = {"tree": _Hop(5.0, 8.5, 14.0), "ring": _Hop(2.7, 4.0, 14.0)}
NVLS_US = 25.0
NVLS_TREE_NETWORK_US = 20.9
RING_ALL_REDUCE_NETWORK_FACTOR = 1.4
"""Of the latency of a Simple ring all-reduce between nodes, from Ampere on."""

LL_CAP_GB_PER_S = {
    "ampere": (87.7, 22.5, 19.0),
    "ada": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
"""tuning.cc llMaxBw on 1, 2, 4 and more nodes."""

LAUNCH_S = {"ampere": 20e-6, "ada": 20e-6, "hopper": 8e-6, "blackwell": 8e-6}
RING_SHARE = {
    "ampere": (0.975, 0.975),
    "ada": (0.975, 0.975),
    "hopper": (0.965, 0.965),
    "blackwell": (0.94, 0.94),
}
GATHER_SHARE = {"blackwell": (0.84, 0.66)}
NVLS_SHARE = {"hopper": 0.74, "blackwell": 0.705}
NVLS_RAMP = {"hopper": 0.7, "blackwell": 1.4}
NVLS_TREE_RAMP = 1.0
TREE_RAMP = 0.6
RING_RAMP = {"ampere": 0.7, "ada": 0.7, "hopper": 0.1, "blackwell": 0.5}
NVLS_TREE_FABRIC_SHARE = 0.92
RING_OVERLAP = 1.5
ALL_TO_ALL_S = 55e-6


def ways(kind: Kind, group: Group) -> Iterator[Way]:
    """All ways open to a collective among two or more ranks."""
    if kind == "all_to_all":
        yield _all_to_all(group)
        return
    for protocol in ("ll", "ll128", "simple"):
        yield _ring(kind, protocol, group)
    if kind != "all_reduce" or group.num_ranks < 3:
        return
    for protocol in ("ll", "ll128", "simple"):
        yield _tree(protocol, group)
    if group.node.nvlink.in_switch_reduction and group.per_node >= 5:
        yield _nvls(group)


def _launch_s(group: Group) -> float:
    return LAUNCH_S[group.node.gpu.architecture]


def _us(table: dict[str, _Hop], algorithm: Algorithm, protocol: Protocol) -> float:
    return float(getattr(table[algorithm], protocol))


def _protocol_rate(protocol: Protocol, rate: float, group: Group) -> float:
    """LL carries 4 of 8 bytes and is capped by latency, LL128 carries 120 of 128."""
    if protocol == "ll":
        cap = LL_CAP_GB_PER_S[group.node.gpu.architecture][min(2, group.num_nodes // 2)]
        return min(0.5 * rate, cap * 1e9)
    return 0.92 * rate if protocol == "ll128" else rate


def _ring(kind: Kind, protocol: Protocol, group: Group) -> Way:
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (group.num_nodes - 1)
    inside = rounds * (group.num_ranks - 1) - between
    hop_in = _us(NVLINK_US, "ring", protocol)
    hop_out = _us(NETWORK_US, "tree" if group.per_node == 1 else "ring", protocol)
    latency = (inside * hop_in + between * hop_out) * 1e-6
    factor = RING_ALL_REDUCE_NETWORK_FACTOR if rounds == 2 and protocol == "simple" else 1.0
    single = group.num_nodes == 1
    return Way(
        "ring", protocol, latency * (1.0 if single else factor),
        _protocol_rate(protocol, group.ring_rate, group), 16,
        RING_RAMP[group.node.gpu.architecture] if single and protocol != "ll" else 0.0,
        1.0 if single or protocol != "simple" else RING_OVERLAP,
        _launch_s(group) + _us(BASE_US, "ring", protocol) * 1e-6,
    )  # fmt: skip


def _tree(protocol: Protocol, group: Group) -> Way:
    hops = (group.per_node - 1) * _us(NVLINK_US, "tree", protocol)
    hops += floor(log2(group.num_nodes)) * _us(NETWORK_US, "tree", protocol)
    rate = 0.92 * group.ring_rate * group.once
    return Way(
        "tree", protocol, 2 * hops * 1e-6, _protocol_rate(protocol, rate, group), 16,
        TREE_RAMP * max(1.0, log2(group.num_nodes)),
        start_s=_launch_s(group) + _us(BASE_US, "tree", protocol) * 1e-6,
    )  # fmt: skip


def _nvls(group: Group) -> Way:
    arch = group.node.gpu.architecture
    factor = 2.0 * group.once
    rate = NVLS_SHARE[arch] * group.node.nvlink.usable_bytes_per_s * factor
    latency = NVLS_US * 1e-6
    if group.num_nodes == 1:
        return Way(
            "nvls",
            "simple",
            latency,
            rate,
            16,
            NVLS_RAMP[arch],
            start_s=_launch_s(group),
            nvlink_weight=1 / factor,
        )
    nic_weight = (group.num_nodes - 1) / group.num_nodes / group.once
    most = group.fabric_rate * (2.0 if group.num_nodes == 2 else 1.0)
    rate = min(rate, NVLS_TREE_FABRIC_SHARE * most)
    latency += 2 * log2(group.num_nodes) * NVLS_TREE_NETWORK_US * 1e-6
    return Way(
        "nvls_tree",
        "simple",
        latency,
        rate,
        16,
        NVLS_TREE_RAMP,
        start_s=_launch_s(group),
        nvlink_weight=1 / factor,
        nic_weight=nic_weight,
    )


def _all_to_all(group: Group) -> Way:
    rate = 0.96 * group.node.nvlink.usable_bytes_per_s
    weight = 1.0
    if group.num_nodes > 1:
        away = (group.num_nodes - 1) / group.num_nodes / group.once
        share = 0.94 if group.num_nodes < 4 else 0.78
        rate = min(rate, share * group.fabric_rate / group.per_node / away)
        weight = group.per_node * away
    return Way("p2p", "simple", ALL_TO_ALL_S, rate, 16, start_s=_launch_s(group), nic_weight=weight)


def send_way(same_node: bool, node: NodeSpec, nic_rate: float) -> Way:
    """One send and its receive."""
    if same_node:
        return Way("p2p", "simple", 12e-6, node.nvlink.usable_bytes_per_s, 8)
    return Way("p2p", "simple", 22e-6, nic_rate, 2)
