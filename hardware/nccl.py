"""The ways in which NCCL can run a collective, and how long each takes when alone.

Hop latencies, protocols' shares of the bandwidth and caps are those of NCCL's own tuner
(`src/graph/tuning.cc`, `topo.h`, commit 5067397c, June 2026). A tuner compares; it need not know
how a real transfer gathers speed. That is added here from published nccl-tests curves: a launch,
a ramp, and the share of a link that long messages reach.

Fitted to eight curves (NVIDIA dgxc-benchmarking, H100 x 8 all-reduce; MooreThreads SimuMax, H100 x
8 all-gather and all-to-all; Azure AI-benchmarking-guide, A100 x 8; nccl-tests issue 309, H100 x 16
by two users and x 32; stas00/ml-engineering, B200 x 8): mean absolute error 7 % from 1 MiB up.
Scored on 34 others, A100 to GB300, 4 to 1,024 GPUs: 9 % from 1 MiB up (6 % as a mean of curves),
13 % over all sizes; below 1 MiB launches dominate, which differ between hosts (13 to 45 us for the
same eight H100). Curves of 64 and 1,024 GPUs chose the form of the tree's ramp and of the ring's
overlap; their error is 11 to 23 %. Not described: networks other than InfiniBand and RoCE (AWS EFA,
Slingshot: 25 to 50 % too fast), all-reduce over several NVL72 racks (20 to 60 % too fast).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log2, sqrt
from typing import Literal, NamedTuple, TypeAlias

from hardware.spec import NodeSpec

Kind: TypeAlias = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
Shape: TypeAlias = Literal["ring", "tree"]
Protocol: TypeAlias = Literal["ll", "ll128", "simple"]

PROTOCOLS: tuple[Protocol, ...] = ("ll", "ll128", "simple")


class _Hop(NamedTuple):
    """Microseconds by protocol."""

    ll: float
    ll128: float
    simple: float


BASE_US = {"tree": _Hop(6.8, 14.0, 8.4), "ring": _Hop(6.6, 14.0, 8.4)}
"""tuning.cc baseLatencies."""

NVLINK_US = {"tree": _Hop(0.6, 1.25, 4.0), "ring": _Hop(0.6, 1.9, 3.4)}
NETWORK_US = {"tree": _Hop(5.0, 8.5, 14.0), "ring": _Hop(2.7, 4.0, 14.0)}
NVLS_US = 25.0
NVLS_TREE_NETWORK_US = 20.9
"""tuning.cc hwLatencies."""

RACK_HOP_US = 0.9
"""More for each LL or LL128 hop in an NVLink domain of more than 8 GPUs, whose switches are trays
of their own: short all-gathers of 8 and 32 GB200 take 21 and 57 us, 1.5 us a hop (Google Cloud
A4X); longer ones, by Simple, do not show it."""

NVLS_SHARP_NETWORK_US = 18.0
CHAIN_NVLINK_US, CHAIN_NETWORK_US = 2.8, 30.0
"""tuning.cc hwLatencies of NVLS and CollNetChain, which need SHARP between nodes. What share of the
NICs' rate they reach is taken as whole: no curve of them was read."""

SLOW_RING = 1.4
"""tuning.cc: latency of a Simple ring all-reduce between nodes, times this, from Ampere on."""

LL_CAP_BYTES_PER_S = {
    "ampere": (87.7e9, 22.5e9, 19.0e9),
    "ada": (87.7e9, 22.5e9, 19.0e9),
    "hopper": (141.0e9, 45.0e9, 35.0e9),
    "blackwell": (282.0e9, 90.0e9, 70.0e9),
}
"""tuning.cc llMaxBws on 1, 2 to 3, and more nodes (Intel hosts)."""

LL_SHARE, LL128_SHARE, TREE_SHARE = 0.5, 0.92, 0.92
"""tuning.cc: of the bus bandwidth; LL sends a flag beside each 4 bytes, LL128 one in 128 bytes."""

LAUNCH_S = {"ampere": 20e-6, "ada": 20e-6, "hopper": 8e-6, "blackwell": 8e-6}
"""On top of the tuner's base latency. Judged from the floors of the published curves: A100 x 8 34
to 45 us, H100 and H200 x 8 13 to 45 us."""

RING_SHARE = {"ampere": 0.975, "ada": 0.975, "hopper": 0.965, "blackwell": 0.94}
"""Of the usable NVLink rate, long messages: A100 235 of 240, H200 361 to 367 of 371, B200 682 of
722 GB/s (stas00/ml-engineering, network). Ada has no curve and is taken as Ampere."""

RACK_GATHER_SHARE = 0.66
"""All-gather and reduce-scatter in an NVLink domain of more than 8 GPUs: GB200 NVL72, 454 and 482
of 722 GB/s at 8 and 32 GPUs (Google Cloud A4X document)."""

RING_RAMP = {"ampere": 0.7, "ada": 0.7, "hopper": 0.1, "blackwell": 0.5}
"""Fitted; Blackwell's is a guess, no ring curve of it was read."""

RING_OVERLAP = 1.5
"""How steps of a Simple ring between nodes hide behind its transfer; from one H100 log of 1,024
GPUs (nccl-tests), whose step is 9.4 us up to 2 MiB a GPU and transfer-bound from 4 MiB."""

TREE_RAMP, NVLS_TREE_RAMP = 0.6, 1.0
"""Fitted; a tree's grows with its depth between nodes."""

NVLS_SHARE = {"ampere": 0.0, "ada": 0.0, "hopper": 0.74, "blackwell": 0.705}
NVLS_RAMP = {"ampere": 0.0, "ada": 0.0, "hopper": 0.7, "blackwell": 1.4}
"""Of the usable NVLink rate, bytes of the buffer (not bus bytes); fitted. Measured: 270 of 371 on
H200, 479 of 722 on B200."""

NVLS_MIN_RANKS = 5
"""Per node: a 4-GPU group stays on the ring (H200, NCCL 2.27, stas00/ml-engineering network)."""

NVLS_TREE_SHARE = 0.92
"""Of all NICs' rate; fitted to 16 to 64 H100. Over two nodes the bus rate may be twice that
(tuning.cc: each half of the tree crosses once)."""

ALL_TO_ALL_S = 55e-6
ALL_TO_ALL_SHARE = 0.96
ALL_TO_ALL_NETWORK_SHARE = (0.94, 0.78)
"""Grouped sends: fitted to H100 x 8 in one node. Between nodes, of the NICs' achieved rate on 2 to
3, and on more nodes: B300 90 of 100, MI355X 45.5 and 38 of 50 GB/s (AWS and OCI documents)."""

CHANNELS = {"ampere": 24, "ada": 24, "hopper": 16, "blackwell": 24}
"""Most channels, one SM each: 16 of NVLS on Hopper and 24 on Blackwell (nvls.cc); rings of 24 on
A100 are from memory."""

NETWORK_CHANNEL_BYTES_PER_S = 14e9
"""One channel for each of these of a NIC's rate, and at least 2 (NCCL's rule for send and receive;
taken for rings over few NICs too)."""

SEND_S, SEND_NETWORK_S = 8e-6, 14e-6
"""Launch of a send inside a node; NCCL's Simple hop over the network (tuning.cc). The path's own
latency comes on top: 10 to 20 us in all, as pipeline transfers see."""


@dataclass(frozen=True, slots=True)
class Way:
    """One algorithm with one protocol; see `time_s`."""

    algorithm: str
    protocol: str
    start_s: float
    """Launch and base latency."""
    steps_s: float
    """Hops, one after the other."""
    rate_bytes_per_s: float
    """Of wire (bus) bytes."""
    num_channels: int
    ramp: float = 0.0
    overlap: float = 1.0
    nvlink_weight: float = 1.0
    nic_weight: float = 1.0

    def time_s(self, wire_bytes: float) -> float:
        """Seconds alone: start + |(steps, x / rate)|_overlap + ramp sqrt((start + steps) x / rate).

        Steps and transfer add up when `overlap` is 1; a larger norm lets the longer hide the other.
        """
        moving_s = wire_bytes / self.rate_bytes_per_s
        ramp_s = self.ramp * sqrt((self.start_s + self.steps_s) * moving_s)
        if self.overlap == 1.0:
            return self.start_s + self.steps_s + moving_s + ramp_s
        joined: float = self.steps_s**self.overlap + moving_s**self.overlap
        both_s: float = joined ** (1.0 / self.overlap)
        return self.start_s + both_s + ramp_s


class Group(NamedTuple):
    """Members of a collective, evenly on nodes, and the rates of their links."""

    num_ranks: int
    num_nodes: int
    nics_per_node: int
    """That the members use."""
    node: NodeSpec
    nic_rate_bytes_per_s: float
    in_network_reduction: bool = False
    """Switches between nodes add up (SHARP)."""

    @property
    def architecture(self) -> str:
        return self.node.gpu.architecture

    @property
    def ranks_per_node(self) -> float:
        return self.num_ranks / self.num_nodes

    @property
    def once(self) -> float:
        """(n - 1) / n."""
        return (self.num_ranks - 1) / self.num_ranks

    @property
    def fabric_bytes_per_s(self) -> float:
        """Out of one node, over all NICs that its members use."""
        return self.nics_per_node * self.nic_rate_bytes_per_s

    def nvlink_us(self, shape: Shape, protocol: Protocol) -> float:
        """One hop inside a node."""
        in_rack = self.node.gpus_per_node > 8 and protocol != "simple"
        return _us(NVLINK_US, shape, protocol) + (RACK_HOP_US if in_rack else 0.0)

    @property
    def launch_s(self) -> float:
        return LAUNCH_S[self.architecture]

    @property
    def num_channels(self) -> int:
        most = CHANNELS[self.architecture]
        if self.num_nodes == 1:
            return most
        return min(most, self.nics_per_node * _network_channels(self.nic_rate_bytes_per_s))

    def ring_bytes_per_s(self, kind: Kind) -> float:
        """Bus bytes that rings through all members can carry."""
        share = RING_SHARE[self.architecture]
        if self.node.gpus_per_node > 8 and kind in ("all_gather", "reduce_scatter"):
            share = RACK_GATHER_SHARE
        inside = share * self.node.nvlink.usable_bytes_per_s
        if self.num_nodes == 1:
            return inside
        if self.num_ranks == self.num_nodes:
            return self.fabric_bytes_per_s
        return min(inside, self.fabric_bytes_per_s)


def ways(kind: Kind, group: Group) -> Iterator[Way]:
    """All ways open to a collective among two or more ranks."""
    if kind == "all_to_all":
        yield _all_to_all(group)
        return
    for protocol in PROTOCOLS:
        yield _ring(kind, protocol, group)
    if kind != "all_reduce" or group.num_ranks < 3:
        return
    for protocol in PROTOCOLS:
        yield _tree(protocol, group)
    if group.node.nvlink.in_switch_reduction and group.ranks_per_node >= NVLS_MIN_RANKS:
        yield _nvls(group) if group.num_nodes == 1 else _nvls_tree(group)
    if group.in_network_reduction and group.num_nodes > 1:
        yield _sharp(group)


def send_way(same_node: bool, node: NodeSpec, nic_rate_bytes_per_s: float) -> Way:
    """One send and its receive between two GPUs."""
    if same_node:
        channels = CHANNELS[node.gpu.architecture]
        return Way("p2p", "simple", SEND_S, 0.0, node.nvlink.usable_bytes_per_s, channels)
    channels = _network_channels(nic_rate_bytes_per_s)
    return Way("p2p", "simple", SEND_NETWORK_S, 0.0, nic_rate_bytes_per_s, channels)


def _network_channels(nic_rate_bytes_per_s: float) -> int:
    return max(2, ceil(nic_rate_bytes_per_s / NETWORK_CHANNEL_BYTES_PER_S))


def _us(table: dict[str, _Hop], shape: Shape, protocol: Protocol) -> float:
    hop = table[shape]
    return {"ll": hop.ll, "ll128": hop.ll128, "simple": hop.simple}[protocol]


def _protocol_bytes_per_s(protocol: Protocol, rate: float, group: Group) -> float:
    if protocol == "ll":
        cap = LL_CAP_BYTES_PER_S[group.architecture][min(2, group.num_nodes // 2)]
        return min(LL_SHARE * rate, cap)
    return LL128_SHARE * rate if protocol == "ll128" else rate


def _ring(kind: Kind, protocol: Protocol, group: Group) -> Way:
    """n - 1 hops, twice for all-reduce; over single GPUs the network hop is the tree's (tuner).
    Every link passes n - 1 messages on, and takes longer where the NIC is slow to send the next."""
    rounds = 2 if kind == "all_reduce" else 1
    between = rounds * (group.num_nodes - 1)
    inside = rounds * (group.num_ranks - 1) - between
    shape: Shape = "tree" if group.num_ranks == group.num_nodes else "ring"
    hops_us = inside * group.nvlink_us("ring", protocol)
    hops_us += between * _us(NETWORK_US, shape, protocol)
    steps_s = hops_us * 1e-6
    pipelined = protocol == "simple" and group.num_nodes > 1
    if pipelined and rounds == 2:
        steps_s *= SLOW_RING
    if group.num_nodes > 1:
        messages = rounds * (group.num_ranks - 1)
        steps_s = max(steps_s, messages * group.node.nic_message_s)
    ramps = protocol != "ll" and not pipelined
    return Way(
        algorithm="ring",
        protocol=protocol,
        start_s=group.launch_s + _us(BASE_US, "ring", protocol) * 1e-6,
        steps_s=steps_s,
        rate_bytes_per_s=_protocol_bytes_per_s(protocol, group.ring_bytes_per_s(kind), group),
        num_channels=group.num_channels,
        ramp=RING_RAMP[group.architecture] if ramps else 0.0,
        overlap=RING_OVERLAP if pipelined else 1.0,
    )


def _tree(protocol: Protocol, group: Group) -> Way:
    """Up and down a chain inside each node and a binary tree between nodes."""
    depth = log2(group.num_nodes)
    hops_us = (group.ranks_per_node - 1) * group.nvlink_us("tree", protocol)
    hops_us += floor(depth) * _us(NETWORK_US, "tree", protocol)
    rate = TREE_SHARE * group.ring_bytes_per_s("all_reduce") * group.once
    return Way(
        algorithm="tree",
        protocol=protocol,
        start_s=group.launch_s + _us(BASE_US, "tree", protocol) * 1e-6,
        steps_s=2 * hops_us * 1e-6,
        rate_bytes_per_s=_protocol_bytes_per_s(protocol, rate, group),
        num_channels=group.num_channels,
        ramp=TREE_RAMP * max(1.0, depth),
    )


def _nvls_bytes_per_s(group: Group) -> float:
    """The switch reduces: each port carries the buffer once, not 2 (n - 1) / n times."""
    usable = group.node.nvlink.usable_bytes_per_s
    return NVLS_SHARE[group.architecture] * usable * 2.0 * group.once


def _nvls(group: Group) -> Way:
    return Way(
        algorithm="nvls",
        protocol="simple",
        start_s=group.launch_s,
        steps_s=NVLS_US * 1e-6,
        rate_bytes_per_s=_nvls_bytes_per_s(group),
        num_channels=group.num_channels,
        ramp=NVLS_RAMP[group.architecture],
        nvlink_weight=0.5 / group.once,
    )


def _nvls_tree(group: Group) -> Way:
    """NVLS inside the nodes, a tree between them: (N - 1) / N of two buffers over the NICs."""
    most = group.fabric_bytes_per_s * (2.0 if group.num_nodes == 2 else 1.0)
    steps_us = NVLS_US + 2 * log2(group.num_nodes) * NVLS_TREE_NETWORK_US
    return Way(
        algorithm="nvls_tree",
        protocol="simple",
        start_s=group.launch_s,
        steps_s=steps_us * 1e-6,
        rate_bytes_per_s=min(_nvls_bytes_per_s(group), NVLS_TREE_SHARE * most),
        num_channels=group.num_channels,
        ramp=NVLS_TREE_RAMP,
        nvlink_weight=0.5 / group.once,
        nic_weight=(group.num_nodes - 1) / group.num_nodes / group.once,
    )


def _sharp(group: Group) -> Way:
    """Switches between nodes add up: each byte of the buffer leaves a node once, and comes back
    once. Inside the nodes NVLS where it can be, else a chain (NCCL's CollNetChain)."""
    inside_s = NVLS_US * 1e-6
    rate, nvlink_weight, ramp = _nvls_bytes_per_s(group), 0.5 / group.once, NVLS_TREE_RAMP
    between_us = NVLS_SHARP_NETWORK_US
    if not group.node.nvlink.in_switch_reduction or group.ranks_per_node < NVLS_MIN_RANKS:
        inside_s = 2 * (group.ranks_per_node - 1) * CHAIN_NVLINK_US * 1e-6
        rate, nvlink_weight = TREE_SHARE * group.node.nvlink.usable_bytes_per_s, 1.0
        between_us, ramp = CHAIN_NETWORK_US, TREE_RAMP
    outside = group.fabric_bytes_per_s * 2.0 * group.once
    return Way(
        algorithm="sharp",
        protocol="simple",
        start_s=group.launch_s,
        steps_s=inside_s + between_us * 1e-6,
        rate_bytes_per_s=outside if group.ranks_per_node == 1 else min(rate, outside),
        num_channels=group.num_channels,
        ramp=ramp,
        nvlink_weight=nvlink_weight,
        nic_weight=0.5 / group.once,
    )


def _all_to_all(group: Group) -> Way:
    """Sends to all; of a member's bytes, those for other nodes pass its share of the NICs."""
    rate = ALL_TO_ALL_SHARE * group.node.nvlink.usable_bytes_per_s
    nic_weight = 1.0
    if group.num_nodes > 1:
        away = (group.num_nodes - 1) / group.num_nodes / group.once
        share = ALL_TO_ALL_NETWORK_SHARE[0 if group.num_nodes < 4 else 1]
        nic_weight = group.ranks_per_node * away
        outside = share * group.fabric_bytes_per_s / nic_weight
        rate = outside if group.ranks_per_node == 1 else min(rate, outside)
    return Way(
        algorithm="p2p",
        protocol="simple",
        start_s=group.launch_s,
        steps_s=ALL_TO_ALL_S,
        rate_bytes_per_s=rate,
        num_channels=group.num_channels,
        nic_weight=nic_weight,
    )
