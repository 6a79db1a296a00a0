"""Passes whose kernels are shorter than the host needs to issue them."""

import pytest

from hardware.presets import load_fabric, load_node
from hardware.spec import ClusterSpec, ProfileSpec
from simulator.costs import Costs
from simulator.placement import RankPlace
from workloads.operations import LayerWork, MemoryBound

SMALL = LayerWork("small", (MemoryBound("copy", "elementwise", 1e3),) * 3, ())
LARGE = LayerWork("large", (MemoryBound("copy", "elementwise", 1e9),), ())


def seconds(layers: tuple[LayerWork, ...], pace_s: float) -> tuple[float, float]:
    """Duration of a pass, and what of it waits for the host."""
    cluster = ClusterSpec(
        node=load_node("dgx-a100"), num_nodes=1, fabric=load_fabric("hdr-rail-optimized"),
        profile=ProfileSpec(host_operation_s=pace_s),
    )  # fmt: skip
    profile = Costs(cluster).pass_profile(layers, "forward", RankPlace())
    pieces = [p for s in profile.segments for p in s.pieces]
    waits = sum(p.duration_s for p in pieces if p.name == "waiting for the host")
    return profile.duration_s, waits


def test_small_kernels_go_at_the_hosts_pace() -> None:
    busy_s, none_s = seconds((SMALL, SMALL), 0.0)
    assert none_s == 0.0
    total_s, waits_s = seconds((SMALL, SMALL), 1e-3)
    assert total_s == pytest.approx(6 * 1e-3)
    assert waits_s == pytest.approx(6 * 1e-3 - busy_s)


def test_a_busy_gpu_does_not_wait() -> None:
    busy_s, _ = seconds((LARGE,), 0.0)
    assert seconds((LARGE,), busy_s / 2) == (busy_s, 0.0)


def test_the_host_runs_ahead_beside_a_long_kernel() -> None:
    """Three issues fit into the long kernel's time: only what is left over is waited for."""
    long_s, _ = seconds((LARGE,), 0.0)
    short_s, _ = seconds((SMALL,), 0.0)
    total_s, _ = seconds((LARGE, SMALL), long_s / 2)
    assert total_s == pytest.approx(max(long_s + short_s, 4 * long_s / 2))
