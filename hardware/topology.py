"""Where bytes flow: GPUs, NVSwitches, NICs and switches of a cluster, by arithmetic.

Answers what a path between two GPUs crosses, which links a collective loads and by how much, and
what each link carries. Nothing is built per node, so that a query on 100,000 GPUs costs
microseconds; `hardware.topology_graph` draws the same links as a networkx graph.

All equal-cost cables up from one leaf count as one fluid trunk, and so do those up from one group
of spines. Adaptive routing fills it; ECMP, dead and degraded cables leave less of it
(`hardware.routing`, `hardware.degradation`). Traffic between NICs of unlike rails crosses the
spines (NCCL's PXN detour through NVLink is modelled for all-to-alls only).
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from hardware.background import rate_beside, standing_flows
from hardware.degradation import degradation
from hardware.fabric_shape import fabric_shape
from hardware.links import Link, Path, Standing
from hardware.routing import hashing_share
from hardware.spec import ClusterSpec

if TYPE_CHECKING:
    import networkx as nx


class Topology:
    """The links of one cluster. GPUs are numbered node by node over the whole fabric."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.shape = fabric_shape(cluster)
        self._num_nodes = cluster.fabric_nodes
        self._gpus = cluster.node.gpus_per_node
        self._ports = cluster.node.ports_per_node
        single = cluster.fabric.kind == "single_switch"
        self._nodes_per_unit = self._num_nodes if single else cluster.fabric.nodes_per_unit
        self._by_rail = cluster.fabric.kind == "rail_optimized"
        self._binds: dict[Link, bool] = {}
        self._damage = degradation(cluster, self.shape)
        self._standing = standing_flows(
            cluster.background, self._ports, cluster.node.nics_per_port,
            cluster.nic_rate_bytes_per_s, self._nodes_per_unit,
            lambda port, src, dst: self._trunks(src, port, dst, port)[0],
        )  # fmt: skip

    @property
    def num_gpus(self) -> int:
        """On the whole fabric."""
        return self._num_nodes * self._gpus

    @property
    def is_degraded(self) -> bool:
        return bool(self.cluster.fabric.degraded)

    def node_of(self, gpu: int) -> int:
        """Node that holds a GPU."""
        return gpu // self._gpus

    def nic_of(self, gpu: int) -> int:
        """Port in its node that a GPU uses: its own, or the next one that lives."""
        return self._living(gpu // self._gpus, gpu % self._gpus * self._ports // self._gpus)

    def _living(self, node: int, port: int) -> int:
        ports = self._damage.ports
        if not ports:
            return port
        for step in range(self._ports):
            other = (port + step) % self._ports
            if ports.get((node, other), 1.0) > 0.0:
                return other
        raise ValueError(f"no NIC is left of node-{node}")

    def users(self, node: int, port: int) -> tuple[int, ...]:
        """GPUs that use a port of a node."""
        first = node * self._gpus
        return tuple(g for g in range(first, first + self._gpus) if self.nic_of(g) == port)

    def is_private(self, link: Link) -> bool:
        """Whether one GPU alone puts bytes on a link, and the link is like all of its kind."""
        at = link.owner, link.port
        if link.kind in ("nic_tx", "nic_rx"):
            if self._damage.ports.get(at, 1.0) < 1.0 or self._ports < self._gpus:
                return False
            return not self._damage.ports or len(self.users(*at)) == 1
        if link.kind in ("nvlink_tx", "nvlink_rx"):
            return self._damage.nvlinks.get(at, 1.0) == 1.0
        return False

    @property
    def links_are_private(self) -> bool:
        """Whether all links that can bind are."""
        damaged = self._damage.ports or self._damage.nvlinks
        return self._ports == self._gpus and not damaged and not self.trunks_can_bind

    def nvlink_share(self, gpu: int) -> float:
        """What is left of a GPU's NVLink port."""
        return self._damage.nvlinks.get((gpu // self._gpus, gpu % self._gpus), 1.0)

    def path(self, src_gpu: int, dst_gpu: int) -> Path:
        """Follow the shortest way from one GPU to another. Raises `ValueError` off the cluster."""
        for gpu in (src_gpu, dst_gpu):
            if not 0 <= gpu < self.num_gpus:
                raise ValueError(f"GPU {gpu} is not one of {self.num_gpus}")
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
        return Path(
            (Link("nic_tx", src, src_nic), *binding, Link("nic_rx", dst, dst_nic)),
            self._latency_s(num_switches),
            num_switches,
        )

    def _latency_s(self, num_switches: int) -> float:
        """Of NICs and switches: a leaf, or leaf, spine, leaf, or a core between two of each."""
        leaf, spine, core = self.cluster.fabric.tier_latencies_s
        switches = {1: leaf, 3: 2 * leaf + spine, 5: 2 * leaf + 2 * spine + core}[num_switches]
        return self.cluster.fabric.nic_latency_s + switches

    def leaf_of(self, node: int, nic: int) -> tuple[int, int]:
        """Unit, and leaf in the unit, that a NIC is cabled to."""
        return node // self._nodes_per_unit, nic if self._by_rail else 0

    def _trunks(self, src: int, src_nic: int, dst: int, dst_nic: int) -> tuple[list[Link], int]:
        """Trunks between two NICs' leaves, and the number of switches on the way."""
        up, down = self.leaf_of(src, src_nic), self.leaf_of(dst, dst_nic)
        if up == down:
            return [], 1
        spine_up, spine_down = map(self.shape.spine_group_of, *zip(up, down, strict=True))
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
        at = link.owner, link.port
        if link.kind in ("nvlink_tx", "nvlink_rx"):
            return self.cluster.node.nvlink.usable_bytes_per_s * self._damage.nvlinks.get(at, 1.0)
        if link.kind in ("nic_tx", "nic_rx"):
            return self.cluster.nic_rate_bytes_per_s * self._damage.ports.get(at, 1.0)
        if link.kind in ("leaf_up", "leaf_down"):
            share = self._trunk_share(Link("leaf_up", *at), self._leaf_nics(link.owner))
            return self.shape.leaf_trunk_bytes_per_s * share
        share = self._trunk_share(Link("spine_up", *at), self._pod_nics(link.owner))
        return self.shape.spine_trunk_bytes_per_s(link.owner) * share

    def _trunk_share(self, up: Link, num_nics: int) -> float:
        """What is left of a trunk: of its cables, and of their even use."""
        trunk = self._damage.trunks.get(up)
        fabric = self.cluster.fabric
        if fabric.routing == "adaptive":
            return trunk.sum_share if trunk else 1.0
        cables = self.shape.cables_per_leaf
        if up.kind == "spine_up":
            ratio = self.shape.core_trunk_bytes_per_s / fabric.cable_bytes_per_s[2]
            cables = max(1, round(self.shape.leaves_per_group(up.owner) * ratio))
        alive = trunk.alive_share if trunk else 1.0
        hashed = hashing_share(num_nics * fabric.queue_pairs, max(1, round(alive * cables)))
        return alive * (trunk.slowest if trunk else 1.0) * hashed

    def bundle_share(self, up: Link, bundle: tuple[int, ...]) -> float:
        """What is left of the cables of one trunk to one switch."""
        trunk = self._damage.trunks.get(up)
        return trunk.factors.get(bundle, 1.0) if trunk else 1.0

    def standing(self, link: Link) -> tuple[Standing, ...]:
        """Flows of other jobs that are always on a link."""
        return self._standing.get(link, ())

    def capacity_beside_others(self, link: Link) -> tuple[float, tuple[Standing, ...]]:
        """All that tells one link of a kind from another."""
        return self.capacity(link), self.standing(link)

    def rate_beside_others(self, link: Link, weight: float) -> float:
        """What other jobs leave a flow that puts `weight` bytes on a link per byte of its own."""
        return rate_beside(self.standing(link), self.capacity(link), weight)

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

    def _unit_nodes(self, unit: int) -> int:
        """The last unit may be part full."""
        return min(self._nodes_per_unit, self._num_nodes - unit * self._nodes_per_unit)

    def _leaf_nics(self, unit: int) -> int:
        nics = self.cluster.node.nics_per_node // self.shape.leaves_per_unit
        return self._unit_nodes(unit) * nics

    def _pod_nics(self, pod: int) -> int:
        """Under one spine group."""
        units = range(pod * self.shape.units_per_pod, self.shape.num_units)
        leaves = self.shape.leaves_per_unit // self.shape.spine_groups_per_pod
        return leaves * sum(map(self._leaf_nics, units[: self.shape.units_per_pod]))

    def _leaf_feed(self, unit: int) -> float:
        """What the NICs under one leaf send at most."""
        ports_per_leaf = self._ports // self.shape.leaves_per_unit
        return self._unit_nodes(unit) * ports_per_leaf * self.cluster.nic_rate_bytes_per_s

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
        """Whether any trunk can. Full units and pods, the first of each, load their trunks most;
        but for those that are damaged, trunks are alike."""
        likely = [Link("leaf_up", 0, 0), Link("spine_up", 0, 0)]
        return any(map(self.can_bind, [*likely, *self._damage.trunks]))

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
                into, out = self.nic_of(receiver), self.nic_of(sender)
                if self._by_rail:
                    out = self._living(sender // self._gpus, into)
                nics = out, into
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
