"""Faster hardware never slows a step when nothing contends.

With contention it may (anomalies of list schedules, more channels beside compute), so these runs
overlap nothing between streams and no two flows meet on a link.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import H100_NODE, small_cluster, small_model, small_run

from hardware.presets import load_fabric
from hardware.spec import ClusterSpec
from simulator.runspec import RunSpec
from simulator.simulate import simulate

SWITCH = load_fabric("single-switch")


def faster(cluster: ClusterSpec, part: str, factor: float) -> ClusterSpec:
    """A copy with one part sped up."""
    node, fabric = cluster.node, cluster.fabric
    if part == "nvlink":
        link = node.nvlink
        changes = {
            "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s * factor,
            "usable_bytes_per_s": link.usable_bytes_per_s * factor,
        }
        node = node.model_copy(update={"nvlink": link.model_copy(update=changes)})
    elif part == "network":
        rate = node.nic_bandwidth_bytes_per_s * factor
        node = node.model_copy(update={"nic_bandwidth_bytes_per_s": rate})
        fabric = fabric.model_copy(update={"link_bandwidth": fabric.link_bandwidth * factor})
    else:
        gpu = node.gpu
        gpu_changes: dict[str, Any] = {
            "memory_bandwidth_bytes_per_s": gpu.memory_bandwidth_bytes_per_s * factor
        }
        if part == "peak":
            peak = gpu.peak_flops_per_s
            rates = {"bf16": peak.bf16 * factor, "fp16": peak.fp16 * factor}
            gpu_changes = {"peak_flops_per_s": peak.model_copy(update=rates)}
        node = node.model_copy(update={"gpu": gpu.model_copy(update=gpu_changes)})
    return cluster.model_copy(update={"node": node, "fabric": fabric})


@st.composite
def quiet_runs(draw: st.DrawFn) -> RunSpec:
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2]))
    dp = draw(st.sampled_from([1, 2, 4, 8]))
    per_node = max(tp, draw(st.sampled_from([1, 4, 8])))
    num_gpus = tp * pp * dp
    per_node = min(per_node, num_gpus)
    sequence = tp > 1 and draw(st.booleans())
    return small_run(
        small_cluster(num_gpus // per_node, per_node, fabric=SWITCH), tp=tp, pp=pp,
        num_microbatches=draw(st.integers(1, 4)),
        model=small_model(num_layers=pp, hidden_size=draw(st.sampled_from([256, 1024, 4096]))),
        training={"seq_length": draw(st.sampled_from([128, 2048]))},
        parallelism={"sequence_parallel": sequence, "overlap_p2p_communication": False,
                     "tp_comm_overlap": sequence and draw(st.booleans())},
        optimizer={"use_distributed_optimizer": draw(st.booleans())},
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(
    run=quiet_runs(), part=st.sampled_from(["nvlink", "network", "memory", "peak"]),
    factor=st.floats(1.0, 8.0),
)  # fmt: skip
def test_a_faster_part_never_slows_a_step(run: RunSpec, part: str, factor: float) -> None:
    better = run.model_copy(update={"cluster": faster(run.cluster, part, factor)})
    before_s, after_s = (simulate(r).metrics["step_time_s"] for r in (run, better))
    assert after_s <= before_s * (1 + 1e-12)


@pytest.mark.parametrize(
    ("part", "layout"),
    [
        ("nvlink", {"tp": 4}),
        ("network", {}),
        ("memory", {"tp": 4}),
        ("peak", {"tp": 4}),
    ],
)
def test_a_part_in_use_does_speed_a_step(part: str, layout: dict[str, Any]) -> None:
    """So that the property above is not about parts that do not matter."""
    cluster = small_cluster(2, 4, fabric=SWITCH)
    model = small_model(hidden_size=4096, num_attention_heads=32)
    run = small_run(cluster, model=model, training={"seq_length": 2048}, **layout)
    better = run.model_copy(update={"cluster": faster(cluster, part, 2.0)})
    assert simulate(better).metrics["step_time_s"] < 0.99 * simulate(run).metrics["step_time_s"]


@settings(max_examples=15, deadline=None)
@given(run=quiet_runs(), speed=st.floats(0.3, 1.0), data=st.data())
def test_a_slow_gpu_never_speeds_a_step(run: RunSpec, speed: float, data: st.DataObject) -> None:
    """And costs at most its own slowness."""
    rank = data.draw(st.integers(0, run.cluster.num_gpus - 1))
    slow = run.cluster.model_copy(update={"slow_gpus": {rank: speed}})
    before_s = simulate(run).metrics["step_time_s"]
    after_s = simulate(run.model_copy(update={"cluster": slow})).metrics["step_time_s"]
    assert before_s * (1 - 1e-12) <= after_s <= before_s / speed * (1 + 1e-12)


def test_rates_are_those_of_the_catalog() -> None:
    assert faster(small_cluster(), "nvlink", 1.0).node.nvlink == H100_NODE.nvlink
