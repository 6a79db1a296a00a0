"""Whole steps against what can be worked out by hand."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_runs import TREE, small_cluster, small_model, small_run

from hardware.kernels import kernel_model
from hardware.spec import ClusterSpec
from simulator.breakdown import Breakdown
from simulator.engine import Exchange, Rank
from simulator.simulate import Result, simulate
from workloads.operations import Attention, Gemm, Operation

ROOT = Path(__file__).parents[3]


def kernel_s(cluster: ClusterSpec, op: Operation) -> float:
    kernels = kernel_model(cluster.node.gpu)
    if isinstance(op, Gemm):
        return kernels.gemm(
            op.m, op.n, op.k, op.kind, op.dtype, op.batch, op.accumulate_fp32
        ).seconds
    if isinstance(op, Attention):
        return kernels.attention(
            op.direction, op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_kv, op.head_dim,
            op.causal, op.dtype,
        ).seconds  # fmt: skip
    return kernels.memory_bound(op.kernel, op.num_bytes).seconds  # type: ignore[union-attr]


def exchanges(result: Result, title: str) -> Iterator[Exchange]:
    for rank in result.program.ranks:
        for tasks in rank.streams.values():
            for task in tasks:
                if task.exchange is not None and task.name.startswith(title):
                    yield task.exchange


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_one_gpu_runs_its_operations_one_after_the_other(recompute: str) -> None:
    """All kernels of all microbatches, the optimizer, and the host between steps."""
    cluster = small_cluster(1, 1)
    result = simulate(
        small_run(cluster, num_microbatches=3, training={"recompute_granularity": recompute})
    )
    stage = result.work.stages[0]
    per_microbatch = [
        op
        for layer in stage.chunks[0]
        for op in (*layer.forward, *layer.recompute, *layer.backward)
    ]
    one_s = sum(kernel_s(cluster, op) for op in per_microbatch)
    after = [op for op in stage.finish if op.name != "gradient norm" or hasattr(op, "kernel")]
    finish_s = sum(kernel_s(cluster, op) for op in after)
    expected_s = 3 * one_s + finish_s + cluster.profile.step_overhead_s
    assert result.metrics["step_time_s"] == pytest.approx(expected_s, rel=1e-12)
    assert result.metrics["bubble_fraction"] == pytest.approx(0.0, abs=1e-12)


def gradients_s(nic_bytes_per_s: float) -> tuple[float, Exchange, float]:
    """Exposed time, exchange and bytes of an all-reduce between two nodes of one GPU."""
    cluster = small_cluster(2, 1, node_nic_bandwidth_bytes_per_s=nic_bytes_per_s)
    result = simulate(small_run(cluster, optimizer={"clip_grad": 0.0}))
    (reduce,) = set(exchanges(result, "reduce gradients"))
    exposed_s = result.metrics["communication"]["dp"]["exposed_s"]
    return exposed_s, reduce, 4.0 * result.work.stages[0].parameters


def test_a_gradient_reduction_is_bound_by_the_nic() -> None:
    """Two GPUs, one NIC each: 2 (n - 1) / n = 1 time the gradients at 96 % of the line rate; half
    the rate takes twice as long, latency apart."""
    fast_s, fast, num_bytes = gradients_s(50e9)
    slow_s, slow, _ = gradients_s(25e9)
    assert fast_s - fast.latency_s == pytest.approx(num_bytes / (0.96 * 50e9))
    assert slow_s - slow.latency_s == pytest.approx(num_bytes / (0.96 * 25e9))
    assert slow_s - slow.latency_s == pytest.approx(2 * (fast_s - fast.latency_s))
    assert 0.0 < fast.latency_s < 200e-6


def moving_s(result: Result, title: str) -> set[float]:
    """Seconds that exchanges of a title take beyond their latency."""
    times = {e.end_s - e.start_s - e.latency_s for e in exchanges(result, title)}
    return {float(f"{seconds:.6g}") for seconds in times}


def test_an_oversubscribed_spine_slows_only_what_crosses_it() -> None:
    """4 nodes of a GPU, 2 under each leaf; pp 2, dp 2: each stage's data group is under one leaf,
    and both its ranks send over the trunk at once, 2 NICs' worth over 2 / 4."""

    def step(oversubscription: float) -> Result:
        cluster = small_cluster(
            4, 1, fabric=TREE, fabric_nodes_per_unit=2, fabric_oversubscription=oversubscription
        )
        return simulate(small_run(cluster, pp=2))

    full, quarter = step(1.0), step(4.0)
    (alone_s,), (crossing_s,) = (moving_s(r, "send") for r in (full, quarter))
    assert alone_s == pytest.approx(512 * 512 * 2 / (0.96 * 50e9), rel=1e-5)
    assert crossing_s == pytest.approx(4 * alone_s, rel=1e-5)
    assert moving_s(quarter, "reduce gradients") == moving_s(full, "reduce gradients")


def test_transfers_both_ways_share_a_nic_port_with_nobody() -> None:
    """Links are full duplex: two stages exchange at full rate each way."""
    result = simulate(
        small_run(small_cluster(2, 1), pp=2, parallelism={"overlap_p2p_communication": True})
    )
    assert moving_s(result, "send") == {float(f"{512 * 512 * 2 / (0.96 * 50e9):.6g}")}


def pass_durations(rank: Rank) -> dict[tuple[str, int], float]:
    """From the start of a pass's first part to the end of its last."""
    spans: dict[tuple[str, int], tuple[float, float]] = {}
    for task in rank.streams["compute"]:
        if task.category in ("forward", "backward"):
            key = task.category, task.microbatch
            first_s, _ = spans.get(key, (task.start_s, 0.0))
            spans[key] = (first_s, task.end_s)
    return {key: end_s - start_s for key, (start_s, end_s) in spans.items()}


def test_a_slow_gpu_holds_up_its_tensor_group() -> None:
    """At 0.8 of the speed compute takes 1 / 0.8, communication as long as before: its passes take
    something between. Its group waits inside passes; others next to nothing (stage 1 for what the
    slow one sends a little late)."""
    cluster = small_cluster(2)
    slow = cluster.model_copy(update={"slow_gpus": {1: 0.8}})
    before, after = (simulate(small_run(c, tp=4, pp=2), fold=False) for c in (cluster, slow))
    breakdown, waited_s = Breakdown(after.metrics["step_time_s"]), dict[int, float]()
    for was, rank in zip(before.program.ranks, after.program.ranks, strict=True):
        waited_s[rank.rank] = breakdown.terms_s(rank)["straggler_wait"]
        ratios = [s / pass_durations(was)[key] for key, s in pass_durations(rank).items()]
        if rank.rank == 1:
            assert all(1.02 < ratio <= 1 / 0.8 * (1 + 1e-9) for ratio in ratios)
        elif rank.rank >= 4:
            assert ratios == pytest.approx([1.0] * len(ratios))
    neighbours = [waited_s.pop(rank) for rank in (0, 2, 3)]
    assert min(neighbours) > 20 * max(waited_s.values())
    slower = after.metrics["step_time_s"] / before.metrics["step_time_s"]
    assert 1.0 < slower <= 1 / 0.8


@pytest.mark.parametrize("overlap", [False, True])
def test_reductions_slow_only_the_compute_beside_them(overlap: bool) -> None:
    optimizer = {"overlap_grad_reduce": overlap, "ddp_bucket_size": 1_000_000}
    result = simulate(small_run(small_cluster(1), optimizer=optimizer))
    assert (result.metrics["breakdown_s"]["interference"] > 1e-6) == overlap


@pytest.mark.parametrize("overlap", [False, True])
def test_transfers_slow_both_ends(overlap: bool) -> None:
    """While GPipe goes forward, the first of two stages only sends and the second only receives."""
    layout = {"pipeline_schedule": "gpipe", "overlap_p2p_communication": overlap}
    result = simulate(small_run(small_cluster(2, 1), pp=2, parallelism=layout))
    for rank in result.program.ranks:
        forwards = [task for task in rank.streams["compute"] if task.category == "forward"]
        lost_s = [(t.end_s - t.start_s) - (t.to_s - t.from_s) for t in forwards]
        assert (max(lost_s) > 1e-6) == overlap


def test_a_slow_gpu_alone_is_slower_by_its_speed() -> None:
    fast, slow = (
        simulate(small_run(small_cluster(1, 1, slow_gpus=who))).metrics for who in ({}, {0: 0.8})
    )
    host_s = fast["breakdown_s"]["overhead"]
    compute_s = fast["step_time_s"] - host_s
    assert slow["step_time_s"] == pytest.approx(compute_s / 0.8 + host_s)


def test_twice_the_microbatches_take_twice_the_compute() -> None:
    """Of one stage, without communication: the rest of the step stays."""
    two, four, eight = (
        simulate(small_run(small_cluster(1, 1), num_microbatches=m)).metrics["step_time_s"]
        for m in (2, 4, 8)
    )
    assert eight - four == pytest.approx(2 * (four - two))


def test_a_result_is_plain_data() -> None:
    result = simulate(small_run(small_cluster(1), model=small_model()))
    assert json.loads(json.dumps(result.to_json())) == result.to_json()
    assert result.metrics["simulation"]["wall_time_s"] > 0.0


def cli_json(seed: str) -> dict[str, Any]:
    settings = {
        "cluster.num_nodes": "4",
        "cluster.node.nics_per_node": "4",
        "cluster.fabric.oversubscription": "4",
        "cluster.fabric.nodes_per_unit": "1",
        "cluster.slow_gpus": "{3: 0.8, 21: 0.9}",
        "parallelism.virtual_pipeline_model_parallel_size": "2",
        "optimizer.overlap_grad_reduce": "true",
    }
    command = [sys.executable, "-m", "simulator", "simulate", "examples/toy-2-nodes.yaml"]
    options = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*command, *options, "--json", "-", "--quiet"], check=True, capture_output=True, cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
    )  # fmt: skip
    plain: dict[str, Any] = json.loads(done.stdout)
    del plain["simulation"]["wall_time_s"]
    return plain


def test_the_same_bytes_whatever_the_hash_seed() -> None:
    first, second = cli_json("1"), cli_json("271828")
    assert first == second
    assert list(first) == list(second)
    assert first["simulation"]["rank_classes"] > 4


def test_layers_moved_to_a_late_stage_make_that_stage_the_slow_one() -> None:
    """Even is fastest; what a stage holds more than its share, every microbatch waits for."""

    def step_s(layout: str) -> float:
        parallelism = {"pipeline_model_parallel_layout": layout}
        run = small_run(
            small_cluster(1, 4), pp=4, num_microbatches=8, parallelism=parallelism,
            model=small_model(num_layers=8, vocab_size=128),
        )  # fmt: skip
        return float(simulate(run).metrics["step_time_s"])

    even = step_s("Ett|tt|tt|ttL")
    assert even < step_s("Et|tt|ttt|ttL") < step_s("E|tt|tttt|ttL")


def test_a_stage_without_layers_passes_its_input_on() -> None:
    parallelism = {"pipeline_model_parallel_layout": "Ett||tt|L"}
    run = small_run(
        small_cluster(1, 4), pp=4, parallelism=parallelism, model=small_model(num_layers=4)
    )
    result = simulate(run)
    assert result.metrics["breakdown_s"]["bubble"] >= 0
    assert simulate(run, fold=False).metrics["step_time_s"] == pytest.approx(
        result.metrics["step_time_s"], rel=1e-9
    )
