"""Operation and placement to seconds or flows: the one place where workload and hardware meet.

Operations inside a pass are priced here once, as a `Profile`; exchanges that the event loop decides
on (data parallel, pipeline) get their latency, bytes and rate limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import NamedTuple

from hardware.collectives import CollectiveCost, GroupShape, collective_cost, point_to_point
from hardware.contention import CONTENTION, MEMORY_BOUND_SHARE, gemm_slowdown
from hardware.host import adam_time_s, collective_check_s, copy_cost
from hardware.kernels import KernelModel, KernelTime, kernel_model
from hardware.spec import ClusterSpec, with_nvlink_share
from hardware.token_exchange import token_exchange_cost
from simulator.overlap import concurrent_s, pipelined_s, ring_exchange_s
from simulator.placement import GroupPlace, RankPlace
from simulator.profile import Profile, Segment, Slowdown
from simulator.trace import Category, Piece, communication_kind
from workloads.backward import input_part, weight_part
from workloads.operations import (
    Attention,
    Collective,
    Compute,
    Gemm,
    GroupedGemm,
    LayerWork,
    MemoryBound,
    Operation,
    Overlapped,
    Ring,
    expert_parameters,
)
from workloads.passes import Direction

USERBUFFER_SMS = 16
"""SMs of a pipelined reduce-scatter, and
USERBUFFER_SPLITS its chunks: Transformer Engine's defaults (pytorch/module/base.py,
initialize_ub). Its ring-exchange all-gather goes by copy engine and takes one SM."""
USERBUFFER_SPLITS = 4


class PricedCompute(NamedTuple):
    """A kernel with its price."""

    piece: Piece
    slowed_s: float
    """The part of its duration that a neighbour's slow-down multiplies."""


@dataclass
class Costs:
    """Prices of one cluster; remembers which kernels it had to extrapolate."""

    cluster: ClusterSpec
    guessed: dict[str, set[str]] = field(default_factory=dict)
    """How (`extrapolated`, `roofline`) -> names of operations not measured."""

    def __post_init__(self) -> None:
        self._gpu = self.cluster.node.gpu
        self._kernels: KernelModel = kernel_model(self._gpu)
        self._profiles: dict[tuple[object, ...], Profile] = {}

    def pass_profile(
        self, layers: tuple[LayerWork, ...], direction: Direction, place: RankPlace
    ) -> Profile:
        """One microbatch through `layers`, on a rank at `place`."""
        key = (tuple(map(id, layers)), direction, place)
        if key not in self._profiles:
            order = layers if direction == "forward" else layers[::-1]
            held = [self._layer(x, direction, place) for x in order]
            issue_s = [
                self._issue_s(layer.host_launches, parts, place)
                for layer, parts in zip(order, held, strict=True)
            ]
            paced = _at_host_pace(held, issue_s, self.cluster.profile.launch_blocking)
            marks = tuple(accumulate(map(len, paced), initial=0))[:-1]
            self._profiles[key] = Profile(list(chain.from_iterable(paced)), marks)
        return self._profiles[key]

    def _issue_s(self, launches: int | None, parts: Sequence[Segment], place: RankPlace) -> float:
        """What the host takes to issue a layer's operations; of a graph, its launches alone."""
        each_s = self.cluster.profile.host_operation_s
        if launches is not None:
            return min(launches, len(parts)) * each_s
        checks_s = sum(self.check_s(place.group(part.axis)) for part in parts if part.axis)
        return sum(part.launches for part in parts) * each_s + checks_s

    def _layer(
        self, layer: LayerWork, direction: Direction, place: RankPlace
    ) -> tuple[Segment, ...]:
        if direction == "forward":
            return self.segments(layer.forward, "forward", place)
        if direction == "backward_weight":
            return self.segments(weight_part(layer), "backward_weight", place)
        again = tuple(
            replace(
                segment, parameters=0, expert_parameters=0
            )  # run again, they complete no gradient
            for segment in self.segments(layer.recompute, "recompute", place)
        )
        rest = layer.backward if direction == "backward" else input_part(layer)
        return again + self.segments(rest, "backward", place)

    def segments(
        self, operations: tuple[Operation, ...], category: Category, place: RankPlace
    ) -> tuple[Segment, ...]:
        """Each operation as a segment; collectives run in the groups of `place`."""
        return tuple(self._segment(op, category, place) for op in operations)

    def host_segments(self) -> tuple[Segment, ...]:
        """What the host does once per step while its GPU waits."""
        seconds = self.cluster.profile.step_overhead_s
        return (Segment((Piece("host between steps", "overhead", "overhead", seconds),), seconds),)

    def check_s(self, group: GroupPlace) -> float:
        """What the host takes before a collective of this group may start."""
        return collective_check_s(group.shape, self.cluster.profile)

    def host_transfer(self) -> Profile | None:
        """What the host takes for one end of a transfer between stages, if it takes any time."""
        seconds = self.cluster.profile.host_transfer_s
        if seconds == 0.0:
            return None
        piece = Piece("host at a transfer", "overhead", "overhead", seconds)
        return Profile((Segment((piece,), seconds),))

    def host_copy(self, num_bytes: float) -> CollectiveCost:
        """A copy between this GPU and its host."""
        return copy_cost(num_bytes, self.cluster.node)

    def host_adam_s(self, parameters: float) -> float:
        """Seconds of the host for one rank's share of its step."""
        return adam_time_s(parameters, self.cluster.node)

    def exchange(self, op: Collective, group: GroupPlace) -> CollectiveCost:
        """A collective, at the rate that its group has to itself."""
        nic_rate = self.cluster.nic_rate_bytes_per_s * group.network_share
        node = with_nvlink_share(self.cluster.node, group.nvlink_share)
        if op.kind == "ring_hop":
            near = group.shape.num_nodes == 1
            return point_to_point(op.num_bytes, near, node, nic_rate, group.hop_latency_s)
        if op.kind == "token_exchange":
            return token_exchange_cost(op.num_bytes, op.choices, group.shape, node, nic_rate)
        return collective_cost(
            op.kind, op.num_bytes, group.shape, node, nic_rate,
            self.cluster.fabric.in_network_reduction,
        )  # fmt: skip

    def data_parallel(self, op: Collective, group: GroupPlace, num_weights: int) -> CollectiveCost:
        """A collective outside passes: the host checks it and, where the gradients or weights that
        are shared out do not lie in one buffer, copies each weight's part for every rank."""
        cost, profile = self.exchange(op, group), self.cluster.profile
        host_s = self.check_s(group)
        if op.kind != "all_reduce":
            host_s += num_weights * group.shape.num_ranks * profile.host_copy_s
        return replace(cost, latency_s=cost.latency_s + host_s)

    def slowdown(self, cost: CollectiveCost, shape: GroupShape) -> Slowdown:
        """What a collective's ranks suffer while it runs: its channels' SMs, and on the links that
        traffic inside their passes needs too, the larger of half and what it leaves over."""
        compute = gemm_slowdown(self._gpu, cost.num_channels)
        if cost.wire_bytes == 0:
            return Slowdown(compute)
        nvlink = network = 0.0
        if shape.num_ranks > shape.num_nodes:
            nvlink = cost.rate_bytes_per_s / self.cluster.node.nvlink.usable_bytes_per_s
        if shape.num_nodes > 1:
            nics = max(1, shape.nics_per_node_used)
            network = cost.rate_bytes_per_s / nics / self.cluster.nic_rate_bytes_per_s
        return Slowdown(compute, _longer_by(nvlink), _longer_by(network))

    def transfer_slowdown(self, cost: CollectiveCost) -> Slowdown:
        """What sender and receiver suffer beside a transfer between pipeline stages."""
        return Slowdown(gemm_slowdown(self._gpu, cost.num_channels), 0.0)

    def _segment(self, op: Operation, category: Category, place: RankPlace) -> Segment:
        if isinstance(op, Collective):
            return self._collective(op, place.group(op.axis))
        if isinstance(op, Overlapped):
            return self._overlapped(op, category, place)
        if isinstance(op, Ring):
            return self._ring(op, category, place)
        priced = self._compute(op, category, place.speed)
        return Segment(
            (priced.piece,), priced.piece.duration_s, priced.slowed_s, parameters=op.parameters,
            expert_parameters=expert_parameters(op), launches=_launches(op),
        )  # fmt: skip

    def _collective(self, op: Collective, group: GroupPlace) -> Segment:
        cost = self.exchange(op, group)
        moving_s = cost.wire_bytes / cost.rate_bytes_per_s if cost.wire_bytes else 0.0
        total_s = cost.latency_s + moving_s
        kind = communication_kind(op.axis)
        piece = Piece(op.name, kind, kind, total_s)
        return Segment(
            (piece,), total_s, 0.0, *_by_link(group.shape, moving_s), 0, op.axis, cost.wire_bytes,
            total_s,
        )  # fmt: skip

    def _overlapped(self, op: Overlapped, category: Category, place: RankPlace) -> Segment:
        """Compute beside its collective; what exceeds the compute alone is exposed traffic."""
        group = place.group(op.collective.axis)
        if group.shape.num_ranks == 1:
            raise ValueError(f"{op.name}: nothing to overlap with in a group of one")
        priced = [self._compute(c, category, place.speed) for c in op.compute]
        compute_s = sum(p.piece.duration_s for p in priced)
        cost = self.exchange(op.collective, group)
        moving_s = cost.wire_bytes / cost.rate_bytes_per_s
        if op.style == "concurrent":
            comm_s = cost.latency_s + moving_s
            total_s = concurrent_s(compute_s, comm_s, gemm_slowdown(self._gpu, cost.num_channels))
        else:
            comm_s = moving_s
            total_s = self._pipelined(op, group.shape, place.speed, moving_s)
        total_s = max(total_s, compute_s)
        kind = communication_kind(op.collective.axis)
        exposed = Piece(op.collective.name, kind, kind, total_s - compute_s)
        pieces = (*(p.piece for p in priced), exposed)
        slowed_s = sum(p.slowed_s for p in priced)
        exposed_on_link = _by_link(group.shape, min(moving_s, exposed.duration_s))
        return Segment(
            pieces, total_s, slowed_s, *exposed_on_link, op.parameters, op.collective.axis,
            cost.wire_bytes, comm_s, expert_parameters(op), sum(map(_launches, op.compute)),
        )  # fmt: skip

    def _ring(self, op: Ring, category: Category, place: RankPlace) -> Segment:
        """Blocks beside hops; what exceeds the blocks alone is exposed traffic."""
        axis = op.hops[0].axis
        group = place.group(axis)
        total_s = slowed_s = sent_bytes = traffic_s = moving_s = 0.0
        pieces: list[Piece] = []
        for i, block in enumerate(op.blocks):
            priced = [self._compute(c, category, place.speed) for c in block]
            pieces += [p.piece for p in priced]
            slowed_s += sum(p.slowed_s for p in priced)
            compute_s = sum(p.piece.duration_s for p in priced)
            if i < len(op.hops):
                cost = self.exchange(op.hops[i], group)
                slowdown = gemm_slowdown(self._gpu, cost.num_channels)
                total_s += max(compute_s, concurrent_s(compute_s, cost.time_s, slowdown))
                sent_bytes += cost.wire_bytes
                traffic_s += cost.time_s
                moving_s += cost.time_s - cost.latency_s
            else:
                total_s += compute_s
        exposed_s = total_s - sum(p.duration_s for p in pieces)
        kind = communication_kind(axis)
        pieces.append(Piece(op.name, kind, kind, exposed_s))
        return Segment(
            tuple(pieces), total_s, slowed_s, *_by_link(group.shape, min(moving_s, exposed_s)), 0,
            axis, sent_bytes, traffic_s,
        )  # fmt: skip

    def _pipelined(self, op: Overlapped, shape: GroupShape, speed: float, moving_s: float) -> float:
        hop_s = self.cluster.node.nvlink.latency_s
        if op.collective.kind == "all_gather":
            chunks = shape.num_ranks
            chunk_s = sum(self._chunk_s(c, chunks, speed) for c in op.compute)
            return ring_exchange_s(
                chunk_s * (1.0 + CONTENTION), chunks, hop_s + moving_s / (chunks - 1)
            )
        chunks = USERBUFFER_SPLITS
        chunk_s = sum(self._chunk_s(c, chunks, speed) for c in op.compute)
        slowdown = gemm_slowdown(self._gpu, USERBUFFER_SMS)
        return pipelined_s(chunk_s, chunks, hop_s + moving_s / chunks, slowdown)

    def _chunk_s(self, op: Compute, num_chunks: int, speed: float) -> float:
        """One of equal chunks along the tokens (rows of a forward or dgrad GEMM)."""
        if isinstance(op, Gemm) and op.kind != "wgrad":
            rows = -(-op.m // num_chunks)
            part = self._kernels.gemm(
                rows, op.n, op.k, op.kind, op.dtype, op.batch, op.accumulate_fp32
            )
            return self._seconds(op, part) / speed
        return self._compute(op, "forward", speed).piece.duration_s / num_chunks

    def _compute(self, op: Compute, category: Category, speed: float) -> PricedCompute:
        if isinstance(op, Gemm):
            kind, share = "gemm", 1.0
            time = self._kernels.gemm(
                op.m, op.n, op.k, op.kind, op.dtype, op.batch, op.accumulate_fp32
            )
        elif isinstance(op, GroupedGemm):
            kind, share = "gemm", 1.0
            time = self._grouped(op)
        elif isinstance(op, Attention):
            kind, share = "attention", 1.0
            time = self._kernels.attention(
                op.direction, op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_kv, op.head_dim,
                op.causal, op.dtype, op.kernel,
            )  # fmt: skip
        else:
            assert isinstance(op, MemoryBound)
            kind, share = "memory_bound", MEMORY_BOUND_SHARE
            time = self._kernels.memory_bound(op.kernel, op.num_bytes)
        seconds = self._seconds(op, time) / speed
        return PricedCompute(Piece(op.name, category, kind, seconds), seconds * share)

    def _grouped(self, op: GroupedGemm) -> KernelTime:
        """One grouped launch; or a launch for each expert, over its even share of the tokens."""
        if not op.sequential and op.groups > 1:
            return self._kernels.grouped_gemm(
                op.groups, op.m, op.n, op.k, op.kind, op.dtype, op.accumulate_fp32
            )
        rows, depth = op.m, op.k
        if op.kind == "wgrad":
            depth = -(-op.k // op.groups)
        else:
            rows = -(-op.m // op.groups)
        one = self._kernels.gemm(rows, op.n, depth, op.kind, op.dtype, 1, op.accumulate_fp32)
        return KernelTime(one.seconds * op.groups, one.source)

    def _seconds(self, op: Compute, time: KernelTime) -> float:
        if time.source != "measured":
            self.guessed.setdefault(time.source, set()).add(op.name)
        profile = self.cluster.profile
        if isinstance(op, Gemm | GroupedGemm):
            return time.seconds / profile.gemm_efficiency
        if isinstance(op, Attention):
            return time.seconds / profile.attention_efficiency
        return time.seconds / profile.memory_bound_efficiency


def _launches(op: Compute) -> int:
    """What the host issues for an operation."""
    return op.launches if isinstance(op, GroupedGemm | MemoryBound) else 1


def _at_host_pace(
    layers: Sequence[tuple[Segment, ...]], issue_s: Sequence[float], blocking: bool
) -> Sequence[tuple[Segment, ...]]:
    """Layers; where the host issues their operations more slowly than the GPU executes them, each
    layer begins with its share of the wait.

    Over a pass only the totals count: the host runs ahead while the GPU is busy, unless launches
    block it.
    """
    issuing_s = sum(issue_s)
    ahead_s = 0.0 if blocking else sum(s.duration_s for layer in layers for s in layer)
    wait_s = max(0.0, issuing_s - ahead_s)
    if wait_s == 0.0:
        return layers

    def late(layer: tuple[Segment, ...], issued_s: float) -> tuple[Segment, ...]:
        if not issued_s:
            return layer
        share_s = wait_s * issued_s / issuing_s
        piece = Piece("waiting for the host", "overhead", "overhead", share_s)
        return (Segment((piece,), share_s), *layer)

    return [late(*pair) for pair in zip(layers, issue_s, strict=True)]


def _by_link(shape: GroupShape, seconds: float) -> tuple[float, float]:
    """Seconds bound by NVLink and by the network, of traffic in a group of `shape`."""
    return (seconds, 0.0) if shape.num_nodes == 1 else (0.0, seconds)


def _longer_by(taken: float) -> float:
    """Extra time per second on links of which another flow takes a share: half is left at least."""
    return 1.0 / max(0.5, 1.0 - taken) - 1.0
