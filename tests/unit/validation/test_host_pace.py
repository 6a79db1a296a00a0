"""Passes whose kernels are shorter than the host needs to issue them."""

from dataclasses import replace

import pytest
from small_runs import small_cluster, small_model, small_run

from hardware.collectives import GroupShape
from hardware.host import collective_check_s
from hardware.presets import load_fabric, load_node
from hardware.spec import ClusterSpec, ProfileSpec
from simulator.costs import Costs
from simulator.placement import RankPlace
from simulator.simulate import simulate
from workloads.graph import build_work
from workloads.operations import LayerWork, MemoryBound
from workloads.spec import OptimizerSpec, ParallelismSpec, TrainingSpec

SMALL = LayerWork("small", (MemoryBound("copy", "elementwise", 1e3),) * 3, ())
LARGE = LayerWork("large", (MemoryBound("copy", "elementwise", 1e9),), ())


def seconds(
    layers: tuple[LayerWork, ...], pace_s: float, blocking: bool = False
) -> tuple[float, float]:
    """Duration of a pass, and what of it waits for the host."""
    cluster = ClusterSpec(
        node=load_node("dgx-a100"), num_nodes=1, fabric=load_fabric("hdr-rail-optimized"),
        profile=ProfileSpec(host_operation_s=pace_s, launch_blocking=blocking),
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


def test_blocking_launches_add_up() -> None:
    """Three issues of a millisecond and the kernels, however long they take."""
    for layer in (SMALL, LARGE):
        busy_s, _ = seconds((layer,), 0.0)
        issues = len(layer.forward)
        assert seconds((layer,), 1e-3, blocking=True) == (
            pytest.approx(busy_s + issues * 1e-3), pytest.approx(issues * 1e-3),
        )  # fmt: skip


def test_a_graph_of_a_layer_is_one_launch() -> None:
    """Two layers of three kernels: six issues, two of which one layer is a graph's single one and
    the other's three; none when all are replayed."""
    graph, all_ = replace(SMALL, host_launches=1), replace(SMALL, host_launches=0)
    busy_s, _ = seconds((SMALL, SMALL), 0.0)
    assert seconds((graph, graph), 1e-3)[0] == pytest.approx(2 * 1e-3)
    assert seconds((graph, SMALL), 1e-3)[0] == pytest.approx(4 * 1e-3)
    assert seconds((all_, all_), 1e-3) == (pytest.approx(busy_s), 0.0)


def test_graphs_take_the_hosts_time_out_of_a_step() -> None:
    """Small layers on a slow host: no graph, then the layers', then all of it, as fast as a host
    that takes no time."""

    def step_s(cuda_graph: str, pace_s: float = 1e-4) -> float:
        profile = ProfileSpec(host_operation_s=pace_s, gpu_speed_deviation=0.0)
        run = small_run(
            small_cluster(1, 1, profile=profile), training={"cuda_graph": cuda_graph},
            model=small_model(num_layers=8),
        )  # fmt: skip
        return float(simulate(run).metrics["step_time_s"])

    assert step_s("none") > 1.5 * step_s("per_layer") > step_s("full_iteration")
    assert step_s("full_iteration") == pytest.approx(step_s("none", 0.0))


def test_check_of_a_collective() -> None:
    """8 ranks of a node at 1 ms each, 8 on two nodes at 2 ms, none of a group of one."""
    profile = ProfileSpec(collective_check_s=1e-3, network_collective_check_s=2e-3)
    assert collective_check_s(GroupShape(8, 1, 8), profile) == 8e-3
    assert collective_check_s(GroupShape(8, 2, 8), profile) == 16e-3
    assert collective_check_s(GroupShape(1, 1, 1), profile) == 0.0
    assert collective_check_s(GroupShape(8, 2, 8), ProfileSpec()) == 0.0


def paced_step_s(tp: int, pp: int, num_microbatches: int, **profile: float) -> float:
    """A step of four layers in one node, with these host times."""
    run = small_run(
        small_cluster(
            1, tp * pp, profile=ProfileSpec.model_validate({"gpu_speed_deviation": 0.0} | profile)
        ),
        tp=tp, pp=pp, num_microbatches=num_microbatches, model=small_model(num_layers=4),
    )  # fmt: skip
    return float(simulate(run).metrics["step_time_s"])


def test_checks_bound_tensor_parallel_passes() -> None:
    """With checks far longer than kernels, a microbatch takes those of its collectives: two
    all-reduces of each layer forward and two backward, the embedding's, the loss's three and that
    of the logits' backward; each for two ranks."""
    each_s = 0.1
    more_s, less_s = (paced_step_s(2, 1, m, collective_check_s=each_s) for m in (4, 2))
    assert (more_s - less_s) / 2 == pytest.approx((4 * 4 + 1 + 3 + 1) * 2 * each_s)
    assert paced_step_s(1, 1, 2, collective_check_s=each_s) == paced_step_s(1, 1, 2)


def test_host_time_at_transfers() -> None:
    """Two stages: a microbatch more costs the first stage one send and one receive."""
    each_s = 0.5
    more_s = paced_step_s(1, 2, 6, host_transfer_s=each_s)
    less_s = paced_step_s(1, 2, 4, host_transfer_s=each_s)
    assert (more_s - less_s) / 2 == pytest.approx(2 * each_s, rel=0.1)
    assert paced_step_s(1, 1, 2, host_transfer_s=each_s) == paced_step_s(1, 1, 2)


def test_copies_of_sharded_weights() -> None:
    """Two replicas, ZeRO-1: every weight is copied for two ranks at the reduce-scatter and at the
    all-gather; all-reduced gradients lie in one buffer and are not."""
    each_s = 1e-3

    def step_s(sharded: bool, copy_s: float) -> float:
        profile = ProfileSpec(gpu_speed_deviation=0.0, host_copy_s=copy_s)
        run = small_run(
            small_cluster(1, 2, profile=profile), model=small_model(num_layers=4),
            optimizer={"use_distributed_optimizer": sharded},
        )  # fmt: skip
        return float(simulate(run).metrics["step_time_s"])

    work = build_work(
        small_model(num_layers=4),
        TrainingSpec(seq_length=512, micro_batch_size=1, global_batch_size=8), ParallelismSpec(),
        OptimizerSpec(use_distributed_optimizer=True), 2,
    )  # fmt: skip
    weights = sum(map(sum, work.stages[0].bucket_weights))
    assert weights > 4 * 4
    added_s = step_s(True, each_s) - step_s(True, 0.0)
    assert added_s == pytest.approx(2 * 2 * weights * each_s)
    assert step_s(False, each_s) == step_s(False, 0.0)
