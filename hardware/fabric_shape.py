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
from math import ceil, gcd

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
    leaf_trunk_bytes_per_s: float
    """All cables up of one leaf."""
    core_oversubscription: float

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
        return self.leaves_per_group(pod) * self.leaf_trunk_bytes_per_s / self.core_oversubscription


def fabric_shape(cluster: ClusterSpec) -> FabricShape:
    """Lay out the switches of a cluster's fabric."""
    fabric, node = cluster.fabric, cluster.node
    rails = node.nics_per_node if fabric.kind == "rail_optimized" else 1
    nodes_per_unit = cluster.num_nodes if fabric.kind == "single_switch" else fabric.nodes_per_unit
    cables_down = nodes_per_unit * node.nics_per_node // rails
    cables_up = max(1, round(cables_down / fabric.oversubscription))
    num_units = ceil(cluster.num_nodes / nodes_per_unit)
    tiers = _tiers(cluster, num_units, rails, 2 * cables_down)
    by_rail = rails if tiers == 3 else 1
    units_per_pod = min(num_units, fabric.units_per_pod) if tiers == 3 else num_units
    num_pods = ceil(num_units / units_per_pod)
    leaves_per_group = units_per_pod * rails // by_rail
    core_over = fabric.core_oversubscription
    ports_down = 2 * cables_down * (core_over / (1.0 + core_over) if tiers == 3 else 1.0)
    spines = _spines(leaves_per_group, cables_up, ports_down) if tiers > 1 else 0
    cores = 0
    if tiers == 3:
        cables = num_pods * by_rail * leaves_per_group * cables_up / core_over
        cores = ceil(cables / (2 * cables_down))
    trunk = cables_down * fabric.link_bandwidth * fabric.link_efficiency / fabric.oversubscription
    return FabricShape(
        tiers, rails, num_units, by_rail, num_pods, units_per_pod, spines, cores,
        gcd(spines, cores) or 1, trunk, core_over,
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
    for count in range(1, cables_up):
        if cables_up % count == 0 and count * ports_down >= leaves * cables_up:
            return count
    return cables_up
