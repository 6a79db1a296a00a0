"""What degraded and dead links leave of ports and trunks, from their names.

A trunk is all cables up of one leaf, or of one spine group, and fluid: adaptive routing gives each
cable what it can carry, so that what is left is the sum. Under ECMP flows keep off dead cables
only, and the slowest of those that live sets the pace of all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hardware.fabric_shape import FabricShape, fabric_shape
from hardware.link_names import LinkName, parse_link
from hardware.links import Link
from hardware.spec import ClusterSpec

Place = tuple[int, int]
"""Node, and port or GPU in it."""


@dataclass(frozen=True)
class Trunk:
    """Bundles of cables of one trunk, each to another switch."""

    num_bundles: int
    factors: Mapping[tuple[int, ...], float]
    """Of the bundles that are not whole."""

    @property
    def sum_share(self) -> float:
        """Capacity left, all bundles together."""
        return 1.0 - sum(1.0 - f for f in self.factors.values()) / self.num_bundles

    @property
    def alive_share(self) -> float:
        """Bundles that carry anything."""
        return 1.0 - sum(f == 0.0 for f in self.factors.values()) / self.num_bundles

    @property
    def slowest(self) -> float:
        """What is left of the worst bundle that lives."""
        return min((f for f in self.factors.values() if f > 0.0), default=1.0)


@dataclass
class Degradation:
    """Everything that is not whole, by where it is; what is not named is."""

    ports: dict[Place, float] = field(default_factory=dict)
    nvlinks: dict[Place, float] = field(default_factory=dict)
    trunks: dict[Link, Trunk] = field(default_factory=dict)
    """By the link up."""


def degradation(cluster: ClusterSpec, shape: FabricShape) -> Degradation:
    """Read `cluster.fabric.degraded`.

    Raises `ValueError` for a name that the cluster does not have.
    """
    found = Degradation()
    node = cluster.node
    nics: dict[tuple[int, int], float] = {}
    bundles: dict[Link, dict[tuple[int, ...], float]] = {}
    for entry in cluster.fabric.degraded:
        name = parse_link(entry.link, cluster, shape)
        if name.kinds == ("node", "gpu"):
            place = name.numbers[0], name.numbers[1]
            found.nvlinks[place] = found.nvlinks.get(place, 1.0) * entry.factor
        elif name.kinds == ("node", "nic"):
            place = name.numbers[0], name.numbers[1]
            nics[place] = nics.get(place, 1.0) * entry.factor
        else:
            for trunk, bundle in _bundles(name, shape):
                factors = bundles.setdefault(trunk, {})
                factors[bundle] = factors.get(bundle, 1.0) * entry.factor
    for (host, nic), factor in nics.items():
        port = host, nic * node.ports_per_node // node.nics_per_node
        found.ports[port] = found.ports.get(port, 1.0) - (1.0 - factor) / node.nics_per_port
    for trunk, factors in bundles.items():
        found.trunks[trunk] = Trunk(_num_bundles(trunk, shape), factors)
    return found


def degradation_problems(cluster: ClusterSpec) -> list[tuple[int, str]]:
    """What is wrong with each entry of `cluster.fabric.degraded`: index, and why in words."""
    shape = fabric_shape(cluster)
    problems: list[tuple[int, str]] = []
    for i, entry in enumerate(cluster.fabric.degraded):
        try:
            name = parse_link(entry.link, cluster, shape)
        except ValueError as error:
            problems.append((i, str(error)))
            continue
        if name.kinds == ("node", "gpu") and entry.factor == 0.0:
            problems.append((i, "a GPU takes no part in a run without NVLink; leave it something"))
    if not problems:
        last = len(cluster.fabric.degraded) - 1
        left = degradation(cluster, shape)
        problems += [(last, message) for message in _cut_off(left, cluster, shape)]
    return problems


def _cut_off(left: Degradation, cluster: ClusterSpec, shape: FabricShape) -> Iterator[str]:
    """Parts of the network that nothing leads to any more."""
    for trunk, state in left.trunks.items():
        if state.alive_share <= 0.0:
            at = trunk.owner, trunk.port
            if trunk.kind == "leaf_up":
                yield f"no cable up is left of leaf-{at[0] * shape.leaves_per_unit + at[1]}"
            else:
                yield f"no cable to a core is left of spine group {at[1]} of pod {at[0]}"
    ports = range(cluster.node.ports_per_node)
    for host in sorted({host for host, _ in left.ports}):
        if all(left.ports.get((host, port), 1.0) <= 0.0 for port in ports):
            yield f"no NIC is left of node-{host}"


def _bundles(name: LinkName, shape: FabricShape) -> Iterator[tuple[Link, tuple[int, ...]]]:
    """Trunks that hold a named link's cables, and which of their bundles it is."""
    if name.kinds == ("leaf", "spine"):
        leaf, spine = name.numbers
        yield _leaf_trunk(leaf, shape), (spine,)
    elif name.kinds == ("spine", "core"):
        yield _spine_trunk(name.numbers[0], shape), name.numbers
    elif name.kinds == ("spine",):
        spine = name.numbers[0]
        for leaf in shape.leaves_of(spine):
            yield _leaf_trunk(leaf, shape), (spine,)
        for core in shape.cores_of(spine):
            yield _spine_trunk(spine, shape), (spine, core)
    else:
        core = name.numbers[0]
        for spine in range(shape.num_spines):
            if core in shape.cores_of(spine):
                yield _spine_trunk(spine, shape), (spine, core)


def _leaf_trunk(leaf: int, shape: FabricShape) -> Link:
    return Link("leaf_up", *divmod(leaf, shape.leaves_per_unit))


def _spine_trunk(spine: int, shape: FabricShape) -> Link:
    group = spine // shape.spines_per_group
    return Link("spine_up", *divmod(group, shape.spine_groups_per_pod))


def _num_bundles(trunk: Link, shape: FabricShape) -> int:
    if trunk.kind == "leaf_up":
        return shape.spines_per_group
    return shape.spines_per_group * shape.cores_per_spine
