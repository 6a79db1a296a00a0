"""How many switches a fabric has for a number of nodes, and what the cables between them carry.

Counts follow the SuperPOD reference architectures: leaves come with their nodes; spines are as few
as their ports allow, such that every leaf has the same whole number of cables to each; cores
likewise. `FabricSpec.tiers` is the most that a fabric may have: a cluster that fits under fewer
has fewer.

A switch has twice as many ports as a leaf has cables down. Of a `rail_optimized` fabric, all rails
share the spines as long as one set of them has a port for every leaf (two tiers: 8 units of 8
leaves on 64 ports). Beyond that each rail has spines of its own, one set per pod, and cores join
rails and pods. Of a `fat_tree`, the leaves of a pod share spines and cores join the pods.
"""

from dataclasses import dataclass
from math import ceil, gcd, isqrt

from hardware.spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class FabricShape:
    """Switches of one cluster's fabric. A spine group is the set of spines that a leaf is wired to.

    Capacities are in bytes/s, per direction.
    """

    tiers: int
    leaves_per_unit: int
    num_units: int
    spine_groups_per_pod: int
    num_pods: int
    units_per_pod: int
    spines_per_group: int
    num_cores: int
    num_core_planes: int
    """Spine s of any group is wired to the cores c with c = s modulo this."""
    cables_per_leaf: int
    """Up, from one leaf to its spines."""
    leaf_trunk_bytes_per_s: float
    """All of them."""
    core_trunk_bytes_per_s: float
    """Cables from a spine group to the cores, per leaf of the group."""

    @property
    def num_leaves(self) -> int:
        return self.num_units * self.leaves_per_unit

    @property
    def num_spines(self) -> int:
        return self.num_pods * self.spine_groups_per_pod * self.spines_per_group

    def leaves_per_group(self, pod: int) -> int:
        """Leaves wired to each spine group of `pod`; the last pod may hold fewer units."""
        units = min(self.units_per_pod, self.num_units - pod * self.units_per_pod)
        return units * self.leaves_per_unit // self.spine_groups_per_pod

    def spine_trunk_bytes_per_s(self, pod: int) -> float:
        """All cables up of one spine group of `pod`."""
        return self.leaves_per_group(pod) * self.core_trunk_bytes_per_s

    @property
    def cores_per_spine(self) -> int:
        return self.num_cores // self.num_core_planes

    def spine_group_of(self, unit: int, leaf: int) -> tuple[int, int]:
        """Pod, and spine group in the pod, that a leaf of a unit is cabled to."""
        return unit // self.units_per_pod, leaf if self.spine_groups_per_pod > 1 else 0

    def spines_of(self, leaf: int) -> range:
        """Spines that a leaf is cabled to, both counted over the whole fabric."""
        pod, group = self.spine_group_of(*divmod(leaf, self.leaves_per_unit))
        first = (pod * self.spine_groups_per_pod + group) * self.spines_per_group
        return range(first, first + self.spines_per_group)

    def leaves_of(self, spine: int) -> list[int]:
        """Leaves cabled to a spine."""
        return [leaf for leaf in range(self.num_leaves) if spine in self.spines_of(leaf)]

    def cores_of(self, spine: int) -> range:
        """Cores that a spine is cabled to."""
        first = spine % self.spines_per_group % self.num_core_planes
        return range(first, self.num_cores, self.num_core_planes)


def fabric_shape(cluster: ClusterSpec) -> FabricShape:
    """Lay out the switches of a cluster's fabric.

    Raises `ValueError` when `num_spines` cannot be wired.
    """
    fabric, node, num_nodes = cluster.fabric, cluster.node, cluster.fabric_nodes
    rails = node.ports_per_node if fabric.kind == "rail_optimized" else 1
    nodes_per_unit = num_nodes if fabric.kind == "single_switch" else fabric.nodes_per_unit
    cables_down = nodes_per_unit * node.nics_per_node // rails
    cables_up = max(1, round(cables_down / fabric.oversubscription))
    num_units = ceil(num_nodes / nodes_per_unit)
    tiers = _tiers(cluster, num_units, rails, 2 * cables_down)
    by_rail = rails if tiers == 3 else 1
    units_per_pod = min(num_units, fabric.units_per_pod) if tiers == 3 else num_units
    num_pods = ceil(num_units / units_per_pod)
    leaves_per_group = units_per_pod * rails // by_rail
    core_over = fabric.core_oversubscription
    ports_down = 2 * cables_down * (core_over / (1.0 + core_over) if tiers == 3 else 1.0)
    spines = _spines(leaves_per_group, cables_up, ports_down) if tiers > 1 else 0
    uplinks = cables_down / fabric.oversubscription
    if tiers > 1 and fabric.num_spines is not None:
        spines = fabric.num_spines
        cables_up = spines * _cables_to_each(spines, leaves_per_group, cables_up, ports_down)
        uplinks = min(uplinks, cables_up)
    cores = 0
    if tiers == 3:
        cables = num_pods * by_rail * leaves_per_group * cables_up / core_over
        cores = ceil(cables / (2 * cables_down))
    _, to_spine, to_core = fabric.cable_bytes_per_s
    return FabricShape(
        tiers, rails, num_units, by_rail, num_pods, units_per_pod, spines, cores,
        gcd(spines, cores) or 1, cables_up, uplinks * to_spine, uplinks * to_core / core_over,
    )  # fmt: skip


def _tiers(cluster: ClusterSpec, num_units: int, rails: int, ports: int) -> int:
    fabric = cluster.fabric
    if fabric.kind == "single_switch" or num_units * rails == 1:
        return 1
    two_suffice = (
        num_units * rails <= ports
        if fabric.kind == "rail_optimized"
        else num_units <= fabric.units_per_pod
    )
    return 2 if two_suffice else max(2, fabric.tiers)


def _spines(leaves: int, cables_up: int, ports_down: float) -> int:
    """Fewest spines with ports for all cables, evenly cabled; at most one for each cable."""
    small = [count for count in range(1, isqrt(cables_up) + 1) if cables_up % count == 0]
    divisors = [*small, *(cables_up // count for count in reversed(small))]
    enough = (count for count in divisors if count * ports_down >= leaves * cables_up)
    return next(enough, cables_up)


def _cables_to_each(spines: int, leaves: int, cables_up: int, ports_down: float) -> int:
    """From each leaf to each of a given number of spines."""
    if spines > cables_up:
        why = f"by nodes_per_unit and oversubscription a leaf has {cables_up} cables up"
        raise ValueError(f"{why}, too few for {spines} spines")
    if leaves > ports_down:
        why = f"by nodes_per_unit a spine has {int(ports_down)} ports down"
        raise ValueError(f"{why}, too few for {leaves} leaves")
    return min(cables_up // spines, int(ports_down // leaves))
