"""Where bytes flow: GPUs, NVSwitches, NICs and switches of a cluster, by arithmetic.

Answers what a path between two GPUs crosses, which links a collective loads and by how much, and
what each link carries. Nothing is built per node, so that a query on 100,000 GPUs costs
microseconds; `hardware.topology_graph` draws the same links as a networkx graph.

All equal-cost cables up from one leaf count as one fluid trunk, and so do those up from one group
of spines: the ideal of adaptive routing. Traffic between NICs of unlike rails crosses the spines
(NCCL's PXN detour through NVLink is not modelled).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hardware.fabric_shape import fabric_shape
from hardware.spec import ClusterSpec

if TYPE_CHECKING:
    import networkx as nx

LinkKind: TypeAlias = Literal[
    "nvlink_tx", "nvlink_rx", "nic_tx", "nic_rx",
    "leaf_up", "leaf_down", "spine_up", "spine_down",
]  # fmt: skip


class Link(NamedTuple):
    """A directed capacity, named by what it belongs to.

    nvlink: node, GPU in the node; nic: node, NIC in the node; leaf: unit, leaf in the unit (its
    trunk to the spines); spine: pod, spine group in the pod (its trunk to the cores).
    """

    kind: LinkKind
    owner: int
    port: int


class Path(NamedTuple):
    """Links that can bind between two GPUs, in order, and the latency of every hop."""

    links: tuple[Link, ...]
    latency_s: float
    num_switches: int
    """Network switches crossed; an NVSwitch is not counted."""


class Topology:
    """The links of one cluster. GPUs are numbered node by node."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.shape = fabric_shape(cluster)
        self._gpus = cluster.node.gpus_per_node
        self._nics = cluster.node.nics_per_node
        single = cluster.fabric.kind == "single_switch"
        self._nodes_per_unit = cluster.num_nodes if single else cluster.fabric.nodes_per_unit
        self._by_rail = cluster.fabric.kind == "rail_optimized"
        self._binds: dict[Link, bool] = {}

    def node_of(self, gpu: int) -> int:
        """Node that holds a GPU."""
        return gpu // self._gpus

    def nic_of(self, gpu: int) -> int:
        """NIC in its node that a GPU uses."""
        return gpu % self._gpus * self._nics // self._gpus

    def path(self, src_gpu: int, dst_gpu: int) -> Path:
        """Follow the shortest way from one GPU to another. Raises `ValueError` off the cluster."""
        for gpu in (src_gpu, dst_gpu):
            if not 0 <= gpu < self.cluster.num_gpus:
                raise ValueError(f"GPU {gpu} is not one of {self.cluster.num_gpus}")
        if src_gpu == dst_gpu:
            return Path((), 0.0, 0)
        src, dst = self.node_of(src_gpu), self.node_of(dst_gpu)
        if src == dst:
            links = (
                Link("nvlink_tx", src, src_gpu % self._gpus),
                Link("nvlink_rx", dst, dst_gpu % self._gpus),
            )
            return Path(links, self.cluster.node.nvlink.latency_s, 0)
        src_nic, dst_nic = self.nic_of(src_gpu), self.nic_of(dst_gpu)
        between, num_switches = self._trunks(src, src_nic, dst, dst_nic)
        binding: tuple[Link, ...] = ()
        if self.trunks_can_bind:
            binding = tuple(link for link in between if self.can_bind(link))
        fabric = self.cluster.fabric
        return Path(
            (Link("nic_tx", src, src_nic), *binding, Link("nic_rx", dst, dst_nic)),
            fabric.nic_latency_s + num_switches * fabric.switch_latency_s,
            num_switches,
        )

    def leaf_of(self, node: int, nic: int) -> tuple[int, int]:
        """Unit, and leaf in the unit, that a NIC is cabled to."""
        return node // self._nodes_per_unit, nic if self._by_rail else 0

    def spine_group_of(self, unit: int, leaf: int) -> tuple[int, int]:
        """Pod, and spine group in the pod, that a leaf is cabled to."""
        group = leaf if self.shape.spine_groups_per_pod > 1 else 0
        return unit // self.shape.units_per_pod, group

    def _trunks(self, src: int, src_nic: int, dst: int, dst_nic: int) -> tuple[list[Link], int]:
        """Trunks between two NICs' leaves, and the number of switches on the way."""
        up, down = self.leaf_of(src, src_nic), self.leaf_of(dst, dst_nic)
        if up == down:
            return [], 1
        spine_up, spine_down = self.spine_group_of(*up), self.spine_group_of(*down)
        if spine_up == spine_down:
            return [Link("leaf_up", *up), Link("leaf_down", *down)], 3
        links = [
            Link("leaf_up", *up),
            Link("spine_up", *spine_up),
            Link("spine_down", *spine_down),
            Link("leaf_down", *down),
        ]
        return links, 5

    def capacity(self, link: Link) -> float:
        """What a link carries, bytes/s: usable NVLink rate, achieved NIC rate, a trunk's cables."""
        if link.kind in ("nvlink_tx", "nvlink_rx"):
            return self.cluster.node.nvlink.usable_bytes_per_s
        if link.kind in ("nic_tx", "nic_rx"):
            return self.cluster.nic_rate_bytes_per_s
        if link.kind in ("leaf_up", "leaf_down"):
            return self.shape.leaf_trunk_bytes_per_s
        return self.shape.spine_trunk_bytes_per_s(link.owner)

    def can_bind(self, link: Link) -> bool:
        """Whether what feeds a link, or drains it, could together exceed its capacity."""
        if link not in self._binds:
            self._binds[link] = self._can_bind(link)
        return self._binds[link]

    def _can_bind(self, link: Link) -> bool:
        if link.kind in ("leaf_up", "leaf_down"):
            feed, needs_tiers = self._leaf_feed(link.owner), 2
        elif link.kind in ("spine_up", "spine_down"):
            feed, needs_tiers = self._spine_feed(link.owner), 3
        else:
            return True
        return self.shape.tiers >= needs_tiers and feed > self.capacity(link) * (1 + 1e-9)

    def _leaf_feed(self, unit: int) -> float:
        """What the NICs under one leaf send at most."""
        first = unit * self._nodes_per_unit
        nodes = min(self._nodes_per_unit, self.cluster.num_nodes - first)
        nics_per_leaf = self._nics // self.shape.leaves_per_unit
        return nodes * nics_per_leaf * self.cluster.nic_rate_bytes_per_s

    def _spine_feed(self, pod: int) -> float:
        """What the leaves of one spine group send up at most; the last unit may be part full."""
        first = pod * self.shape.units_per_pod
        last = min(first + self.shape.units_per_pod, self.shape.num_units) - 1
        trunk = self.shape.leaf_trunk_bytes_per_s
        feed = (last - first) * min(self._leaf_feed(first), trunk)
        leaves = self.shape.leaves_per_unit // self.shape.spine_groups_per_pod
        return leaves * (feed + min(self._leaf_feed(last), trunk))

    @cached_property
    def trunks_can_bind(self) -> bool:
        """Whether any trunk can. Full units and pods, the first of each, load their trunks most."""
        return self.can_bind(Link("leaf_up", 0, 0)) or self.can_bind(Link("spine_up", 0, 0))

    def collective_links(self, members: Sequence[int]) -> dict[Link, float]:
        """Load of a hierarchical ring: bytes over each link that can bind per byte that a member
        sends (the bus bytes of nccl-tests).

        Members form rings that visit their nodes in order; k members of a node drive k rings over
        their NICs, each with 1/k of the bytes, and all bytes pass each member's NVLink port (in
        and out, the hop to the ring's NIC included). Nodes may hold unlike numbers of members.
        """
        by_node: dict[int, list[int]] = {}
        for gpu in members:
            by_node.setdefault(gpu // self._gpus, []).append(gpu)
        load: dict[Link, float] = {}
        for node, gpus in by_node.items():
            if len(gpus) > 1:
                for gpu in gpus:
                    load[Link("nvlink_tx", node, gpu % self._gpus)] = 1.0
                    load[Link("nvlink_rx", node, gpu % self._gpus)] = 1.0
        if len(by_node) == 1:
            return load
        for node, gpus in by_node.items():
            for gpu in gpus:
                nic = self.nic_of(gpu)
                for link in (Link("nic_tx", node, nic), Link("nic_rx", node, nic)):
                    load[link] = load.get(link, 0.0) + 1.0 / len(gpus)
        if self.trunks_can_bind:
            for link, share in self._ring_trunks(list(by_node.items())):
                load[link] = load.get(link, 0.0) + share
        return load

    def ring_links(self, members: Sequence[int]) -> dict[Link, float]:
        """Load of one ring in the order of `members`: bytes over each link that can bind per byte
        that a member sends to the next one."""
        load: dict[Link, float] = {}
        for i, src in enumerate(members):
            dst = members[(i + 1) % len(members)]
            for link in self.path(src, dst).links:
                load[link] = load.get(link, 0.0) + 1.0
        return load

    def all_to_all_links(self, members: Sequence[int]) -> dict[Link, float]:
        """Load of an all-to-all: bytes over each link that can bind per byte that a member sends,
        equal parts to each of the others.

        Between nodes bytes leave by the sender's NIC; where a fabric has rails, by the NIC on the
        receiver's rail, which the sender's NVLink reaches (NCCL's PXN, NCCL_PXN_DISABLE=0: the
        default since 2.12; DeepEP does the same), so that they stay under one leaf.
        """
        by_node: dict[int, list[int]] = {}
        for gpu in members:
            by_node.setdefault(gpu // self._gpus, []).append(gpu)
        load: dict[Link, float] = {}
        if len(members) < 2:
            return load

        def add(link: Link, share: float) -> None:
            load[link] = load.get(link, 0.0) + share

        part = 1.0 / (len(members) - 1)
        for node, gpus in by_node.items():
            for gpu in gpus if len(gpus) > 1 else ():
                share = (len(gpus) - 1) * part
                add(Link("nvlink_tx", node, gpu % self._gpus), share)
                add(Link("nvlink_rx", node, gpu % self._gpus), share)
        for src, src_gpus in by_node.items():
            for dst, dst_gpus in by_node.items():
                if src != dst:
                    for nics, pairs in self._nic_pairs(src_gpus, dst_gpus).items():
                        add(Link("nic_tx", src, nics[0]), pairs * part)
                        add(Link("nic_rx", dst, nics[1]), pairs * part)
                        if self.trunks_can_bind:
                            for link in self._trunks(src, nics[0], dst, nics[1])[0]:
                                if self.can_bind(link):
                                    add(link, pairs * part)
        return load

    def _nic_pairs(self, senders: list[int], receivers: list[int]) -> dict[tuple[int, int], int]:
        """(NIC out, NIC in) -> pairs of a sender and a receiver whose bytes go that way."""
        pairs: dict[tuple[int, int], int] = {}
        for sender in senders:
            for receiver in receivers:
                into = self.nic_of(receiver)
                nics = (into if self._by_rail else self.nic_of(sender), into)
                pairs[nics] = pairs.get(nics, 0) + 1
        return pairs

    def _ring_trunks(self, nodes: list[tuple[int, list[int]]]) -> Iterator[tuple[Link, float]]:
        """Trunk links of every hop of every ring, each with its share of the bytes."""
        for (src, src_gpus), (dst, dst_gpus) in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            rings = max(len(src_gpus), len(dst_gpus))
            for ring in range(rings):
                src_nic = self.nic_of(src_gpus[ring % len(src_gpus)])
                dst_nic = self.nic_of(dst_gpus[ring % len(dst_gpus)])
                for link in self._trunks(src, src_nic, dst, dst_nic)[0]:
                    if self.can_bind(link):
                        yield link, 1.0 / rings

    def graph(self) -> "nx.DiGraph":
        """Draw the cluster as a networkx graph; see `hardware.topology_graph`."""
        from hardware.topology_graph import build_graph

        return build_graph(self)
