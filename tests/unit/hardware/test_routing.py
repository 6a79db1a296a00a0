"""Flows hashed onto cables, against drawing them at random; other jobs' flows, by hand."""

import numpy as np
import pytest
from small_runs import TREE, small_cluster

from hardware.background import rate_beside
from hardware.links import Link, Standing
from hardware.routing import hashing_share
from hardware.spec import BackgroundJob
from hardware.topology import Topology


@pytest.mark.parametrize(
    ("flows", "cables", "within"),
    [(2, 2, 0.05), (8, 4, 0.08), (32, 32, 0.03), (128, 32, 0.02), (512, 32, 0.01)],
)
def test_the_fullest_cable_against_random_draws(flows: int, cables: int, within: float) -> None:
    generator = np.random.default_rng(0)
    draws = generator.integers(0, cables, (4000, flows))
    fullest = np.mean([np.bincount(draw, minlength=cables).max() for draw in draws])
    assert hashing_share(flows, cables) == pytest.approx(flows / cables / fullest, rel=within)


def test_limits_of_hashing() -> None:
    """One cable takes all; one flow is alone on its cable, 1/m of the trunk; many even out."""
    assert hashing_share(7, 1) == hashing_share(0, 8) == 1.0
    assert hashing_share(1, 8) == 1 / 8
    shares = [hashing_share(n, 32) for n in (32, 128, 512, 8192, 100_000)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.95


def test_what_standing_flows_leave() -> None:
    """A link of 12: two of at most 2 leave 8 to a third; of at most 5 they take a third each; a
    flow that puts 2 bytes there per byte of its own rises to 12 / 4; limits stop one by one."""
    assert rate_beside([Standing(2, 2.0)], 12.0, 1.0) == 8.0
    assert rate_beside([Standing(2, 5.0)], 12.0, 1.0) == 4.0
    assert rate_beside([Standing(2, 5.0)], 12.0, 2.0) == 3.0
    assert rate_beside([Standing(1, 9.0), Standing(1, 1.0)], 12.0, 1.0) == 5.5
    assert rate_beside([], 12.0, 3.0) == 4.0


def test_a_ring_of_another_job_crosses_the_trunks_between_units() -> None:
    """Units of 2 nodes; the ring 1 2 3 leaves unit 0 once and comes back once, 8 NICs each way."""
    job = BackgroundJob(hosts=(1, 2, 3), rate=5e9)
    topology = Topology(small_cluster(1, fabric=TREE, fabric_nodes_per_unit=2, background=(job,)))
    for kind in ("leaf_up", "leaf_down"):
        assert topology.standing(Link(kind, 0, 0)) == (Standing(8.0, 5e9),)  # type: ignore[arg-type]
        assert topology.standing(Link(kind, 1, 0)) == (Standing(8.0, 5e9),)  # type: ignore[arg-type]


def test_an_all_to_all_of_another_job() -> None:
    """Nodes 1, 2, 3: node 1 sends all over its trunk, 2 and 3 half of theirs: 8 NICs either way. A
    NIC sends no faster than it can: 48 GB/s."""
    job = BackgroundJob(hosts=(1, 2, 3), rate=90e9, traffic="all_to_all")
    topology = Topology(small_cluster(1, fabric=TREE, fabric_nodes_per_unit=2, background=(job,)))
    assert topology.standing(Link("leaf_up", 0, 0)) == (Standing(8.0, 48e9),)
    assert topology.standing(Link("leaf_up", 1, 0)) == (Standing(8.0, 48e9),)
