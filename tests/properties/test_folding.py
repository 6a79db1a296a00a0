"""Folded equals unfolded: one rank per class tells the times of all ranks."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import RAIL, TREE, small_cluster, small_model, small_run

from hardware.presets import load_fabric
from hardware.spec import ClusterSpec
from simulator.breakdown import Breakdown
from simulator.engine import Rank
from simulator.placement import FoldedRanks
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from workloads.layout import RankGrid
from workloads.layout_checks import check_layout

TOLERANCE = 1e-9


def classes(run: RunSpec) -> list[int]:
    """The lowest rank of each rank's class."""
    grid = RankGrid.of(run.parallelism, run.cluster.num_gpus)
    wraps = run.parallelism.virtual_pipeline_model_parallel_size > 1
    partition = FoldedRanks(run.cluster, grid, wraps=wraps)._partition
    return [partition.representatives[c] for c in partition.class_of]


def same(a: Any, b: Any) -> Any:
    return pytest.approx(b, rel=TOLERANCE, abs=1e-15) == a


def end_times(rank: Rank) -> dict[str, list[tuple[str, float]]]:
    return {name: [(t.name, t.end_s) for t in tasks if "barrier" not in t.name]
            for name, tasks in rank.streams.items()}  # fmt: skip


def last_ends(rank: Rank) -> dict[tuple[str, str], float]:
    """When each pass and exchange ended; a pass may be cut into several tasks."""
    ends: dict[tuple[str, str], float] = {}
    for stream, tasks in rank.streams.items():
        for task in tasks:
            if not task.name.startswith("tp barrier"):
                ends[stream, task.name] = task.end_s
    return ends


def check_folding(run: RunSpec) -> tuple[int, int]:
    """Compare all that is timed; return the number of classes and of ranks."""
    problems = check_layout(
        run.model, run.parallelism, run.training, run.optimizer, run.cluster.num_gpus
    )
    assert not problems, problems
    folded, whole = simulate(run), simulate(run, fold=False)
    step_s = whole.metrics["step_time_s"]
    assert folded.metrics["step_time_s"] == pytest.approx(step_s, rel=TOLERANCE)
    assert folded.metrics["bubble_fraction"] == pytest.approx(
        whole.metrics["bubble_fraction"], rel=TOLERANCE, abs=TOLERANCE
    )
    twin_of = classes(run)
    twins = {rank.rank: rank for rank in folded.program.ranks}
    assert sum(rank.num_ranks for rank in twins.values()) == len(whole.program.ranks)
    breakdown = Breakdown(step_s)
    expected_terms = {r: breakdown.terms_s(rank) for r, rank in twins.items()}
    expected_ends = {r: last_ends(rank) for r, rank in twins.items()}
    for rank in whole.program.ranks:
        twin = twin_of[rank.rank]
        ends = last_ends(rank)
        assert ends.keys() == expected_ends[twin].keys()
        for key, end_s in ends.items():
            assert abs(end_s - expected_ends[twin][key]) <= TOLERANCE * step_s, (rank.rank, twin, key)
        for term, seconds in breakdown.terms_s(rank).items():
            assert abs(seconds - expected_terms[twin][term]) <= TOLERANCE * step_s, (
                rank.rank, twin, term, seconds, expected_terms[twin][term])
    return len(twins), len(whole.program.ranks)


FABRICS = {
    "rail": RAIL,
    "few nodes per rail unit": RAIL.model_copy(
        update={"nodes_per_unit": 2, "oversubscription": 2.0}
    ),
    "oversubscribed tree": TREE.model_copy(
        update={"nodes_per_unit": 1, "units_per_pod": 8, "oversubscription": 4.0}
    ),
    "tree of three tiers": TREE.model_copy(
        update={"nodes_per_unit": 1, "units_per_pod": 2, "core_oversubscription": 4.0}
    ),
    "single switch": load_fabric("single-switch"),
}


@st.composite
def clusters(draw: st.DrawFn, num_nodes: int, gpus_per_node: int) -> ClusterSpec:
    nics = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= gpus_per_node]))
    num_gpus = num_nodes * gpus_per_node
    slow = draw(st.dictionaries(st.integers(0, num_gpus - 1), st.sampled_from([0.5, 0.8]),
                                max_size=2))  # fmt: skip
    fabric = FABRICS[draw(st.sampled_from(sorted(FABRICS)))]
    return small_cluster(
        num_nodes, gpus_per_node, node_nics_per_node=nics, slow_gpus=slow, fabric=fabric
    )


@st.composite
def runs(draw: st.DrawFn, max_gpus: int = 64) -> RunSpec:
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    dp = draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp * pp * d <= max_gpus]))
    num_gpus = tp * pp * dp
    per_node = draw(st.sampled_from([g for g in (1, 2, 4, 8) if g <= num_gpus and
                                     num_gpus // g <= 8]))  # fmt: skip
    cluster = draw(clusters(num_gpus // per_node, per_node))
    sequence = tp > 1 and draw(st.booleans())
    overlap = sequence and draw(st.booleans())
    schedule = "interleaved_1f1b" if vpp > 1 else draw(st.sampled_from(["1f1b", "gpipe"]))
    p2p = draw(st.sampled_from([None, True, False]))
    distributed = draw(st.booleans())
    overlap_reduce = draw(st.booleans())
    overlap_gather = distributed and overlap_reduce and draw(st.booleans())
    return small_run(
        cluster, tp=tp, pp=pp, vpp=vpp,
        num_microbatches=pp * draw(st.integers(1, 2)) if vpp > 1 else draw(st.integers(1, 5)),
        model=small_model(
            num_layers=pp * vpp, hidden_size=draw(st.sampled_from([256, 1024])), vocab_size=4096,
            untie_embeddings_and_output_weights=draw(st.booleans()),
        ),
        training={"recompute_granularity": draw(st.sampled_from(["none", "selective", "full"])),
                  "seq_length": draw(st.sampled_from([128, 1024]))},
        parallelism={"sequence_parallel": sequence, "tp_comm_overlap": overlap,
                     "pipeline_schedule": schedule, "overlap_p2p_communication": p2p},
        optimizer={"use_distributed_optimizer": distributed, "overlap_grad_reduce": overlap_reduce,
                   "overlap_param_gather": overlap_gather,
                   "ddp_bucket_size": draw(st.sampled_from([None, 300_000, 2_000_000]))},
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(runs())
def test_folded_equals_unfolded(run: RunSpec) -> None:
    check_folding(run)
