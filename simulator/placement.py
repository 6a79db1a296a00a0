"""Which rank sits where, which ranks behave alike, and what a class's exchanges look like.

Ranks lie on the GPUs of the run's nodes: packed node by node as launchers do, or striped over them
(`rank_gpus`). The classes come from `simulator.symmetry`;
this module says what tells ranks, groups and links apart (stage, speed, group shape, path,
capacity) and answers for one class: its groups, its neighbours, the links that it loads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from hardware.collectives import CollectiveCost, GroupShape, point_to_point
from hardware.links import Link, Path, Standing
from hardware.spec import ClusterSpec
from hardware.topology import Topology
from hardware.variation import slowest_excess
from simulator.network import Weights
from simulator.shared_links import ConcreteFlow, FlowKey, SharedLinks
from simulator.symmetry import Hubs, Incidence, Ints, Partition, fold, unfolded
from workloads.layout import GROUP_AXES, RankGrid

LinkKey: TypeAlias = tuple[str, int]
"""(kind, class of the GPU that owns it), or ("shared", class of the link)."""

_NO_GROUP = GroupShape(1, 1, 0)
_IN_PASSES = ("tp", "cp", "cp_a2a", "cp_ring", "etp", "ep")
"""Axes along which the operations of a pass communicate."""


class GroupPlace(NamedTuple):
    """How one group lies on nodes, the share of its NICs' rate that the fabric leaves it when all
    groups of its axis send at once, the wire's latency between neighbours of its ring, and what is
    left of the weakest NVLink port of its members."""

    shape: GroupShape
    network_share: float = 1.0
    hop_latency_s: float = 0.0
    nvlink_share: float = 1.0


_ALONE = GroupPlace(_NO_GROUP)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """What the price of a rank's passes depends on: its groups, and its speed as a fraction of a
    typical GPU's."""

    groups: tuple[tuple[str, GroupPlace], ...] = ()
    speed: float = 1.0

    def group(self, axis: str) -> GroupPlace:
        """The group along `axis`; a group of one where there is none."""
        return next((place for name, place in self.groups if name == axis), _ALONE)

    def shape(self, axis: str) -> GroupShape:
        return self.group(axis).shape


def rank_gpus(cluster: ClusterSpec) -> Ints:
    """GPU of the fabric on which each rank lies."""
    per_node = cluster.node.gpus_per_node
    first = np.array(cluster.node_order, np.int64) * per_node
    gpus: Ints = first[:, None] + np.arange(per_node)
    return (gpus if cluster.placement == "packed" else gpus.T).ravel()


class FoldedRanks:
    """Classes of ranks of one run, each answered for by its lowest rank."""

    def __init__(
        self, cluster: ClusterSpec, grid: RankGrid, *, wraps: bool, folded: bool = True
    ) -> None:
        """`wraps`: the last stage feeds the first one (more than one chunk per stage)."""
        self._cluster, self._grid = cluster, grid
        self._topology = Topology(cluster)
        self._gpu_of = rank_gpus(cluster)
        self._rank_of = {int(gpu): rank for rank, gpu in enumerate(self._gpu_of)}
        self.unfolded = not folded
        groups = {a: grid.groups(a) for a in GROUP_AXES if grid.canonical(a) == a}
        self._groups: dict[str, Ints] = {
            axis: rows for axis, rows in groups.items() if rows.shape[1] > 1
        }
        self._group_of = {a: _group_of(g, cluster.num_gpus) for a, g in self._groups.items()}
        self._next = grid.neighbours(1, wraps)
        self._previous = grid.neighbours(-1, wraps)
        self._stages = grid.stages()
        self._speed = np.ones(cluster.num_gpus)
        for rank, speed in cluster.slow_gpus.items():
            self._speed[rank] = speed
        self._shared = (
            None
            if self._topology.links_are_private
            else SharedLinks(self._flows(), self._topology.capacity_beside_others)
        )
        self._fold()
        self._links: dict[tuple[str, int, float, float], Weights] = {}
        self._index: dict[LinkKey, int] = {}
        self._capacity: list[float] = []
        self._standing: list[tuple[Standing, ...]] = []

    def __len__(self) -> int:
        return len(self._partition)

    def representative(self, c: int) -> int:
        """Lowest rank of class c."""
        return self._partition.representatives[c]

    def count(self, c: int) -> int:
        """Ranks in class c."""
        return self._partition.counts[c]

    def stage(self, c: int) -> int:
        """Pipeline stage of class c."""
        return int(self._stages[self.representative(c)])

    def speed(self, c: int) -> float:
        """Compute speed of class c as a fraction of a typical GPU's.

        The healthy ranks of a stage all go at the pace of the slowest that can be expected among
        them; a GPU that the run file makes slower goes at its own.
        """
        return min(float(self._speed[self.representative(c)]), 1.0 / (1.0 + self.variation))

    @property
    def variation(self) -> float:
        """Extra compute time of the slowest GPU of a stage, as a fraction."""
        deviation = self._cluster.profile.gpu_speed_deviation
        return slowest_excess(deviation, self._grid.num_ranks // self._grid.pp)

    def next(self, c: int) -> int:
        """Class that takes in what class c's forward passes put out."""
        return int(self._partition.class_of[self._neighbour(c, forward=True)])

    def previous(self, c: int) -> int:
        """Class whose forward passes feed class c."""
        return int(self._partition.class_of[self._neighbour(c, forward=False)])

    def shape(self, axis: str, c: int) -> GroupShape:
        """How class c's group along `axis` lies on nodes; `world` is all ranks."""
        if axis == "world":
            node = self._cluster.node
            return GroupShape(self._cluster.num_gpus, self._cluster.num_nodes, node.ports_per_node)
        group = self._group(axis, c)
        return self._shape(group) if group is not None else _NO_GROUP

    def place(self, c: int) -> RankPlace:
        """What the price of class c's passes depends on."""
        axes = [axis for axis in _IN_PASSES if self._grid.canonical(axis) in self._groups]
        return RankPlace(tuple((axis, self._group_place(axis, c)) for axis in axes), self.speed(c))

    def hub(self, axis: str, c: int) -> int:
        """Class of class c's group along `axis`; 0 for `world`, -1 where it is in none."""
        axis = self._grid.canonical(axis)
        if axis not in self._groups:
            return 0 if axis == "world" else -1
        group = int(self._group_of[axis][self.representative(c)])
        return int(self._hub_class[axis][group]) if group >= 0 else -1

    def classes(self, axis: str, c: int) -> tuple[int, ...]:
        """Classes that occur in class c's group along `axis`."""
        if axis == "world":
            return tuple(range(len(self)))
        group = self._group(axis, c)
        return (c,) if group is None else tuple(np.unique(self._partition.class_of[group]))

    def links(self, axis: str, c: int, cost: CollectiveCost) -> Weights:
        """Links that a collective of class c's group loads, bytes per wire byte."""
        key = (axis, self.hub(axis, c), cost.nvlink_weight, cost.nic_weight)
        if key not in self._links:
            self._links[key] = self._collective_links(axis, c, cost)
        return self._links[key]

    def _collective_links(self, axis: str, c: int, cost: CollectiveCost) -> Weights:
        group = self._group(axis, c)
        if group is None:
            return ()
        loads = self._loads(self._topology, axis, group)
        scale = {"nvlink": cost.nvlink_weight, "nic": cost.nic_weight}
        weighted = {
            link: load * scale.get(link.kind.split("_")[0], 1.0) for link, load in loads.items()
        }
        return self._weights((self._grid.canonical(axis), self.hub(axis, c)), weighted)

    def _loads(self, topology: Topology, axis: str, group: Ints) -> dict[Link, float]:
        """Bytes over each link per byte that a member of the group sends."""
        members = [int(gpu) for gpu in self._gpu_of[group]]
        if axis in ("ep", "cp_a2a"):
            return topology.all_to_all_links(members)
        if axis == "cp_ring":
            return topology.ring_links(members)
        return topology.collective_links(members)

    def _group_place(self, axis: str, c: int) -> GroupPlace:
        group = self._group(axis, c)
        assert group is not None
        hop_latency_s = self._hop_latency_s(group) if axis == "cp_ring" else 0.0
        share = min(self._topology.nvlink_share(int(gpu)) for gpu in self._gpu_of[group])
        return GroupPlace(
            self._shape(group), self._network_share(axis, group), hop_latency_s, share
        )

    def _hop_latency_s(self, group: Ints) -> float:
        """Of the slowest way from one member of a ring to the next."""
        pairs = zip(group, np.roll(group, -1), strict=True)
        return max(self._path(int(a), int(b)).latency_s for a, b in pairs)

    def _path(self, sender: int, receiver: int) -> Path:
        return self._topology.path(int(self._gpu_of[sender]), int(self._gpu_of[receiver]))

    def _network_share(self, axis: str, group: Ints) -> float:
        """What the links of a group leave it when all groups of its axis send, over what its NICs
        would carry if they were whole and its own."""
        loads = self._loads(self._topology, axis, group)
        if not any(link.kind.startswith("nic") for link in loads):
            return 1.0
        if self._shared is None:
            return 1.0
        family = self._grid.canonical(axis)
        for link in loads:
            if not self._topology.is_private(link):
                loads[link] = self._shared.family_load(family, link)
        together = min(
            self._topology.rate_beside_others(link, load)
            for link, load in loads.items()
            if not link.kind.startswith("nvlink")
        )
        whole = self._loads(self._whole, axis, group)
        nics = max(load for link, load in whole.items() if link.kind.startswith("nic"))
        return min(1.0, together * nics / self._cluster.nic_rate_bytes_per_s)

    @cached_property
    def _whole(self) -> Topology:
        """The links as if none were degraded."""
        if not self._topology.is_degraded:
            return self._topology
        fabric = self._cluster.fabric.model_copy(update={"degraded": ()})
        return Topology(self._cluster.model_copy(update={"fabric": fabric}))

    def transfers(self, c: int, num_bytes: float) -> dict[bool, tuple[CollectiveCost, Weights]]:
        """Cost and links of sending a pass's output: forward (True) to the next stage, backward
        (False) to the previous one, where there is one."""
        return {
            forward: self._transfer(self.representative(c), self._neighbour(c, forward), num_bytes)
            for forward in (True, False)
            if self._neighbour(c, forward) >= 0
        }

    def _transfer(
        self, sender: int, receiver: int, num_bytes: float
    ) -> tuple[CollectiveCost, Weights]:
        path = self._path(sender, receiver)
        near = path.num_switches == 0
        cost = point_to_point(
            num_bytes, near, self._cluster.node, self._cluster.nic_rate_bytes_per_s,
            self._transfer_latency_s(sender, receiver),
        )  # fmt: skip
        direction = "next" if receiver == self._next[sender] else "previous"
        key = (direction, int(self._partition.class_of[sender]))
        return cost, self._weights(key, dict.fromkeys(path.links, 1.0))

    def capacities(self) -> tuple[float, ...]:
        """Bytes/s of the links that `links` and `transfer` have named, by index."""
        return tuple(self._capacity)

    def standing(self) -> tuple[tuple[Standing, ...], ...]:
        """Flows of other jobs on the same links, by index."""
        return tuple(self._standing)

    # what tells ranks apart

    def _fold(self) -> None:
        axes = list(self._groups)
        families: list[Hubs | Incidence] = [self._group_hubs(a) for a in axes]
        families.append(self._pair_hubs())
        if self._shared is not None:
            families.append(self._shared.incidence)
        if self.unfolded:
            self._partition: Partition = unfolded(self._cluster.num_gpus)
            hubs: tuple[Ints, ...] = tuple(np.arange(len(f.colors)) for f in families)
        else:
            self._partition, hubs = fold(self._looks(), families)
        self._hub_class = dict(zip(axes, hubs, strict=False))
        if self._shared is not None:
            self._shared.classify(hubs[-1], self._flow_class)

    def _looks(self) -> Ints:
        """Numbers that tell ranks apart by themselves: stage and speed."""
        speeds = np.unique(self._speed, return_inverse=True)[1]
        return np.asarray(self._stages * (speeds.max() + 1) + speeds, np.int64)

    def _group_hubs(self, axis: str) -> Incidence:
        """Groups of one axis, told apart by their shape on nodes; members by how many share their
        node, and so the group's bytes."""
        groups = self._groups[axis]
        num_groups, width = groups.shape
        nodes, ports = self._nodes_and_ports(groups)
        shapes = _distinct(nodes) * (width + 1) + _distinct(ports)
        if axis == "cp_ring":
            latencies = [self._hop_latency_s(group) for group in groups]
            kinds, latency = np.unique(latencies, return_inverse=True)
            shapes = shapes * len(kinds) + latency
        hubs = np.repeat(np.arange(num_groups), width)
        return Incidence(groups.ravel(), hubs, _occurrences(nodes).ravel(), shapes)

    def _nodes_and_ports(self, ranks: Ints) -> tuple[Ints, Ints]:
        """Node of each rank, and the port that its GPU has when all live, over the whole fabric."""
        gpus, node = self._gpu_of[ranks], self._cluster.node
        return gpus // node.gpus_per_node, gpus * node.ports_per_node // node.gpus_per_node

    def _pair_hubs(self) -> Hubs:
        """Sender and receiver of each stage boundary, told apart by whether they share a node."""
        senders = np.flatnonzero(self._next >= 0)
        pairs = np.stack([senders, self._next[senders]], axis=1)
        per_node = self._cluster.node.gpus_per_node
        gpus = self._gpu_of[pairs]
        ends = np.column_stack([gpus // per_node, gpus % per_node])
        if not self._topology.is_degraded:
            same_port = ends[:, 2] == ends[:, 3]
            ends[same_port, 2:] = 0  # equal ports: the path depends on the nodes alone
        _, first, inverse = np.unique(ends, axis=0, return_index=True, return_inverse=True)
        inverse = inverse.ravel()
        paths = [self._path(int(a), int(b)) for a, b in pairs[first]]
        latency_s = np.array([path.latency_s for path in paths])[inverse]
        near = np.array([path.num_switches == 0 for path in paths], np.int64)[inverse]
        boundaries = self._stages[senders] * 2 + near
        slowest_s = np.zeros(2 * self._grid.pp)
        np.maximum.at(slowest_s, boundaries, latency_s)
        self._latency_s: list[float] = slowest_s.tolist()
        return Hubs(pairs, np.arange(2), near)

    def _transfer_latency_s(self, sender: int, receiver: int) -> float:
        """Of the longest way that any pair of this stage boundary has through the fabric.

        Replicas whose ways differ by a switch or two (a microsecond of milliseconds) are thus
        alike; their step waits for the slowest of them anyway.
        """
        forward = receiver == self._next[sender]
        near = self._path(sender, receiver).num_switches == 0
        first = sender if forward else receiver
        return self._latency_s[int(self._stages[first]) * 2 + near]

    # links

    def _flows(self) -> Iterator[ConcreteFlow]:
        """Every flow of every rank and group, with the shared links it loads."""
        private = self._topology.is_private
        for axis in self._groups:
            for g, group in enumerate(self._groups[axis]):
                loads = self._loads(self._topology, axis, group)
                shared = {k: w for k, w in loads.items() if not private(k)}
                yield ConcreteFlow(axis, g, tuple(map(int, group)), shared)
        for sender in np.flatnonzero(self._next >= 0):
            a, b = int(sender), int(self._next[sender])
            for direction, (src, dst) in (("next", (a, b)), ("previous", (b, a))):
                links = [k for k in self._path(src, dst).links if not private(k)]
                yield ConcreteFlow(direction, src, (src,), dict.fromkeys(links, 1.0))

    def _flow_class(self, flow: ConcreteFlow) -> FlowKey:
        if flow.family in self._hub_class:
            return flow.family, int(self._hub_class[flow.family][flow.owner])
        return flow.family, int(self._partition.class_of[flow.owner])

    def _owner(self, link: Link) -> int:
        """The rank that a private link belongs to."""
        if link.kind.startswith("nvlink"):
            gpu = link.owner * self._cluster.node.gpus_per_node + link.port
        else:
            (gpu,) = self._topology.users(link.owner, link.port)
        return self._rank_of[gpu]

    def _weights(self, flow: FlowKey, loads: dict[Link, float]) -> Weights:
        """Loads of one flow as loads on classes of links, by all flows of its class."""
        weights: dict[int, float] = {}
        for link, load in loads.items():
            if self._topology.is_private(link):
                key: LinkKey = (link.kind, int(self._partition.class_of[self._owner(link)]))
            else:
                assert self._shared is not None
                key = ("shared", self._shared.class_of(link))
                load = self._shared.load(flow, link)
            weights[self._link(key, link)] = load
        return tuple(weights.items())

    def _link(self, key: LinkKey, link: Link) -> int:
        if key not in self._index:
            self._index[key] = len(self._capacity)
            self._capacity.append(self._topology.capacity(link))
            self._standing.append(self._topology.standing(link))
        return self._index[key]

    def _neighbour(self, c: int, forward: bool) -> int:
        rank = self.representative(c)
        return int((self._next if forward else self._previous)[rank])

    def _group(self, axis: str, c: int) -> Ints | None:
        axis = self._grid.canonical(axis)
        if axis not in self._groups:
            return None
        index = int(self._group_of[axis][self.representative(c)])
        return None if index < 0 else self._groups[axis][index]

    def _shape(self, group: Ints) -> GroupShape:
        nodes, ports = map(np.unique, self._nodes_and_ports(group))
        return GroupShape(len(group), len(nodes), len(ports) // len(nodes))


def _group_of(groups: Ints, num_ranks: int) -> Ints:
    """Index of each rank's group, -1 for ranks that are in none."""
    index = np.full(num_ranks, -1, np.int64)
    index[groups.ravel()] = np.repeat(np.arange(len(groups)), groups.shape[1])
    return index


def _distinct(rows: Ints) -> Ints:
    """Number of distinct values in each row."""
    ordered = np.sort(rows, axis=1)
    return np.asarray(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1), np.int64)


def _occurrences(rows: Ints) -> Ints:
    """How often each value occurs in its row."""
    keys = rows + np.arange(len(rows))[:, None] * (rows.max(initial=0) + 1)
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse].reshape(rows.shape), np.int64)
