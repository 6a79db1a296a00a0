"""Prices of operations against kernel and collective models asked directly."""

import pytest
from small_runs import H100_NODE, small_cluster, small_model, small_run

from hardware.collectives import GroupShape, collective_cost, point_to_point
from hardware.contention import MEMORY_BOUND_SHARE, gemm_slowdown
from hardware.kernels import kernel_model
from simulator.costs import Costs
from simulator.overlap import concurrent_s
from simulator.placement import GroupPlace, RankPlace
from workloads.operations import (
    Attention,
    Collective,
    Gemm,
    LayerWork,
    MemoryBound,
    Operation,
    Overlapped,
    Ring,
)
from workloads.spec import ParallelismSpec, TrainingSpec
from workloads.transformer import transformer_layer

CLUSTER = small_cluster(2)
KERNELS = kernel_model(H100_NODE.gpu)
ALONE, PAIR = GroupShape(1, 1, 1), GroupShape(2, 1, 2)

GEMM = Gemm("g", 1024, 2048, 512, "fwd", parameters=512 * 2048)
WGRAD = Gemm("w", 2048, 512, 1024, "wgrad", accumulate_fp32=True)
FLASH = Attention("a", "bwd", 1, 8, 8, 1024, 1024, 64)
NORM = MemoryBound("n", "layernorm_fwd", 1e6)
REDUCE = Collective("r", "all_reduce", "tp", 4e6)
GATHER = Collective("ag", "all_gather", "tp", 4e6)
SCATTER = Collective("rs", "reduce_scatter", "tp", 4e6)


def alone_s(op: Collective, shape: GroupShape = PAIR) -> float:
    return collective_cost(
        op.kind, op.num_bytes, shape, CLUSTER.node, CLUSTER.nic_rate_bytes_per_s
    ).time_s


def at(tp: GroupShape, speed: float = 1.0) -> RankPlace:
    return RankPlace((("tp", GroupPlace(tp)),), speed)


def priced(op: Operation, tp: GroupShape = PAIR, speed: float = 1.0):  # type: ignore[no-untyped-def]
    (segment,) = Costs(CLUSTER).segments((op,), "forward", at(tp, speed))
    return segment


def test_kernels_cost_what_the_kernel_model_says() -> None:
    assert priced(GEMM).duration_s == KERNELS.gemm(1024, 2048, 512, "fwd").seconds
    fp32 = KERNELS.gemm(2048, 512, 1024, "wgrad", accumulate_fp32=True)
    assert priced(WGRAD).duration_s == fp32.seconds
    flash = KERNELS.attention("bwd", 1, 8, 8, 1024, 1024, 64, True)
    assert priced(FLASH).duration_s == flash.seconds
    assert priced(NORM).duration_s == KERNELS.memory_bound("layernorm_fwd", 1e6).seconds


def test_what_neighbours_slow_of_a_kernel() -> None:
    for op, share in ((GEMM, 1.0), (FLASH, 1.0), (NORM, MEMORY_BOUND_SHARE)):
        segment = priced(op)
        assert segment.compute_s == pytest.approx(share * segment.duration_s)
        assert segment.link_s == 0.0
        assert not segment.synchronizes


def test_parameters_stay_with_their_operation() -> None:
    assert [priced(op).parameters for op in (GEMM, NORM)] == [512 * 2048, 0]


def test_a_slow_gpu_computes_slower_and_communicates_as_fast() -> None:
    for op in (GEMM, FLASH, NORM):
        assert priced(op, speed=0.8).duration_s == pytest.approx(priced(op).duration_s / 0.8)
    assert priced(REDUCE, speed=0.8) == priced(REDUCE)


def test_a_collective_of_the_tensor_group() -> None:
    """All-reduce of 4 MB by two: 2 * 1/2 of it on the wire; latency cannot be slowed."""
    segment = priced(REDUCE)
    assert segment.duration_s == segment.traffic_s == pytest.approx(alone_s(REDUCE))
    assert segment.traffic_bytes == 4e6
    assert segment.compute_s == 0.0
    assert 0.0 < segment.link_s < segment.duration_s
    assert segment.synchronizes


def test_a_collective_of_one_is_nothing() -> None:
    segment = priced(REDUCE, ALONE)
    assert (segment.duration_s, segment.traffic_bytes) == (0.0, 0.0)


def test_concurrent_overlap() -> None:
    """By the recurrence, from the parts; what the compute does not cover is exposed."""
    op = Overlapped("o", (WGRAD,), SCATTER, "concurrent")
    segment = priced(op)
    channels = collective_cost(
        "reduce_scatter", 4e6, PAIR, CLUSTER.node, CLUSTER.nic_rate_bytes_per_s
    ).num_channels
    compute_s, slowdown = priced(WGRAD).duration_s, gemm_slowdown(H100_NODE.gpu, channels)
    expected_s = concurrent_s(compute_s, alone_s(SCATTER), slowdown)
    assert segment.duration_s == pytest.approx(expected_s)
    assert [p.kind for p in segment.pieces] == ["gemm", "tp"]
    assert segment.pieces[1].duration_s == pytest.approx(expected_s - compute_s)
    assert segment.traffic_bytes == 4e6 / 2


@pytest.mark.parametrize("collective", [GATHER, SCATTER])
@pytest.mark.parametrize("style", ["pipelined", "concurrent"])
@pytest.mark.parametrize("rows", [256, 1024, 8192, 65536])
def test_overlap_helps_and_hides_at_most_everything(
    collective: Collective, style: str, rows: int
) -> None:
    """Between compute alone and, for long compute, compute and collective one after the other."""
    tp = GroupShape(8, 1, 8)
    gemm = Gemm("g", rows, 4096, 4096, "fwd")
    op = Overlapped("o", (gemm,), collective, style)  # type: ignore[arg-type]
    segment, compute_s = priced(op, tp), priced(gemm, tp).duration_s
    assert segment.duration_s >= compute_s
    assert sum(p.duration_s for p in segment.pieces) == pytest.approx(segment.duration_s)
    if rows >= 8192:
        assert segment.duration_s < compute_s * 1.3 + alone_s(collective, tp)


def test_overlap_needs_a_group() -> None:
    with pytest.raises(ValueError, match="nothing to overlap with"):
        priced(Overlapped("o", (GEMM,), GATHER, "pipelined"), ALONE)


def test_a_pass_is_its_layers_end_to_end() -> None:
    """Backward runs layers last to first, each after its own recomputation."""
    first = LayerWork("first", (GEMM,), (WGRAD,), (GEMM,))
    second = LayerWork("second", (NORM,), (FLASH,))
    costs = Costs(CLUSTER)
    forward = costs.pass_profile((first, second), "forward", at(ALONE))
    backward = costs.pass_profile((first, second), "backward", at(ALONE))
    assert [s.pieces[0].name for s in forward.segments] == ["g", "n"]
    assert [(s.pieces[0].name, s.pieces[0].category) for s in backward.segments] == [
        ("a", "backward"), ("g", "recompute"), ("w", "backward"),
    ]  # fmt: skip
    seconds = [priced(op).duration_s for op in (FLASH, GEMM, WGRAD)]
    assert backward.duration_s == pytest.approx(sum(seconds))


def layer(tp: int, **parallelism: bool) -> LayerWork:
    layout = {"tensor_model_parallel_size": tp, **parallelism}
    training = TrainingSpec(seq_length=512, micro_batch_size=2, global_batch_size=2)
    return transformer_layer(
        small_model(), training, ParallelismSpec.model_validate(layout), recomputed=False
    )


def sent_bytes(work: LayerWork, direction: str, tp: int) -> float:
    profile = Costs(CLUSTER).pass_profile((work,), direction, at(GroupShape(tp, 1, tp)))  # type: ignore[arg-type]
    return profile.traffic(0.0, profile.duration_s).get("tp", (0.0, 0.0))[0]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallel_traffic_of_a_layer(tp: int) -> None:
    """Activations are 512 * 2 tokens of 512 two-byte numbers. Without sequence parallelism two
    all-reduces each way, 2 (t - 1) / t of them each; with it four collectives forward, and two
    more backward (inputs gathered again for wgrad), (t - 1) / t each (Korthikanti 2022)."""
    activations, once = 512 * 2 * 512 * 2, (tp - 1) / tp
    plain = layer(tp)
    assert sent_bytes(plain, "forward", tp) == pytest.approx(2 * 2 * once * activations)
    assert sent_bytes(plain, "backward", tp) == pytest.approx(2 * 2 * once * activations)
    for overlap in (False, True):
        sequence = layer(tp, sequence_parallel=True, tp_comm_overlap=overlap)
        assert sent_bytes(sequence, "forward", tp) == pytest.approx(4 * once * activations)
        assert sent_bytes(sequence, "backward", tp) == pytest.approx(6 * once * activations)


def test_what_was_not_measured_is_remembered() -> None:
    costs = Costs(small_cluster(1, node_gpu=H100_NODE.gpu.model_copy(
        update={"architecture": "ampere"})))  # fmt: skip
    costs.segments((GEMM, NORM), "forward", at(ALONE))
    assert costs.guessed["roofline"] == {"g", "n"}


def test_compute_beside_a_collective_of_other_links() -> None:
    """A data group of one GPU per node leaves NVLink alone; one inside the node takes at most half
    of what the tensor group's traffic has."""
    costs, gpu = Costs(CLUSTER), H100_NODE.gpu
    op = Collective("dp", "all_reduce", "dp", 1e9)
    across, inside = GroupShape(2, 2, 1), GroupShape(4, 1, 4)
    cost = costs.exchange(op, GroupPlace(across))
    outside = costs.slowdown(cost, across)
    assert outside[:2] == (gemm_slowdown(gpu, cost.num_channels), 0.0)
    assert 0.0 < outside.network <= 1.0
    within = costs.slowdown(costs.exchange(op, GroupPlace(inside)), inside)
    assert 0.0 < within.link <= 1.0
    assert within.network == 0.0


def ring_segment(group: GroupPlace, hop_bytes: float):  # type: ignore[no-untyped-def]
    """Three blocks of one kernel, two hops."""
    hop = Collective("hop", "ring_hop", "cp_ring", hop_bytes)
    place = RankPlace((("cp_ring", group),))
    ring = Ring("ring", ((FLASH,),) * 3, (hop, hop))
    (segment,) = Costs(CLUSTER).segments((ring,), "backward", place)
    return segment


def test_short_hops_hide_behind_blocks() -> None:
    """A block runs slower while its hop does, and the last runs alone."""
    inside = GroupPlace(GroupShape(3, 1, 3))
    segment, block_s = ring_segment(inside, 1e6), priced(FLASH).duration_s
    hop = point_to_point(1e6, True, CLUSTER.node, CLUSTER.nic_rate_bytes_per_s)
    beside_s = concurrent_s(block_s, hop.time_s, gemm_slowdown(H100_NODE.gpu, hop.num_channels))
    assert segment.duration_s == pytest.approx(2 * beside_s + block_s)
    assert (segment.axis, segment.traffic_bytes) == ("cp_ring", 2e6)
    assert segment.traffic_s == pytest.approx(2 * hop.time_s)
    assert sum(p.duration_s for p in segment.pieces) == pytest.approx(segment.duration_s)
    assert [p.kind for p in segment.pieces] == ["attention"] * 3 + ["cp"]


def test_long_hops_set_the_pace_of_a_ring() -> None:
    """Between nodes, half the NIC's rate and the wire's latency: two hops and the last block."""
    across = GroupPlace(GroupShape(3, 3, 1), 0.5, 3e-6)
    segment, block_s = ring_segment(across, 1e9), priced(FLASH).duration_s
    rate = CLUSTER.nic_rate_bytes_per_s / 2
    hop_s = point_to_point(1e9, False, CLUSTER.node, rate, 3e-6).time_s
    assert segment.duration_s == pytest.approx(2 * hop_s + block_s)
    assert segment.link_s == 0.0
    assert segment.network_s == pytest.approx(2 * (hop_s - block_s))


def test_host_time_comes_from_the_profile() -> None:
    slow = CLUSTER.profile.model_copy(update={"step_overhead_s": 0.25})
    (segment,) = Costs(CLUSTER.model_copy(update={"profile": slow})).host_segments()
    assert segment.duration_s == 0.25
    assert segment.pieces[0].category == "overhead"


def test_what_runs_again_completes_no_gradient() -> None:
    """Buckets close by the weights that backward has completed; recomputation reads them only."""
    model, training = small_model(), {"recompute_granularity": "full"}
    run = small_run(small_cluster(), model=model, training=training)
    layer = transformer_layer(model, run.training, run.parallelism, recomputed=True)
    profile = Costs(run.cluster).pass_profile((layer, layer), "backward", RankPlace())
    assert profile.parameters[-1] == 2 * layer.parameters
    forward, backward = len(layer.forward), len(layer.backward)
    assert set(profile.parameters[: forward + 1]) == {0}
    assert profile.parameters[forward + backward] == layer.parameters
