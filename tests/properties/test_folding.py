"""Folded equals unfolded: one rank per class tells the times of all ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import RAIL, TREE, small_cluster, small_model, small_run

from hardware.degradation import degradation_problems
from hardware.fabric_shape import fabric_shape
from hardware.presets import load_fabric
from hardware.spec import BackgroundJob, ClusterSpec, DegradedLink, ProfileSpec
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
    copies = run.optimizer.num_distributed_optimizer_instances
    grid = RankGrid.of(run.parallelism, run.cluster.num_gpus, copies)
    wraps = run.parallelism.wraps
    partition = FoldedRanks(run.cluster, grid, wraps=wraps)._partition
    return [partition.representatives[c] for c in partition.class_of]


def last_ends(rank: Rank) -> dict[str, float]:
    """When each pass and exchange ended; a pass may be cut into several tasks."""
    return {
        f"{stream}: {task.name}": task.end_s
        for stream, tasks in rank.streams.items()
        for task in tasks
        if " barrier " not in task.name
    }


def check_folding(run: RunSpec) -> tuple[int, int]:
    """Compare all that is timed; return the number of classes and of ranks."""
    problems = check_layout(
        run.model, run.parallelism, run.training, run.optimizer, run.cluster.num_gpus
    )
    assert not problems, problems
    folded, whole = simulate(run), simulate(run, fold=False)
    step_s = whole.metrics["step_time_s"]
    assert folded.metrics["step_time_s"] == pytest.approx(step_s, rel=TOLERANCE)
    bubble = whole.metrics["bubble_fraction"]
    assert folded.metrics["bubble_fraction"] == pytest.approx(bubble, abs=TOLERANCE)
    twins = {rank.rank: rank for rank in folded.program.ranks}
    assert sum(rank.num_ranks for rank in twins.values()) == len(whole.program.ranks)
    breakdown, twin_of = Breakdown(step_s), classes(run)
    for rank in whole.program.ranks:
        twin = twins[twin_of[rank.rank]]
        nearly(last_ends(twin), last_ends(rank), step_s)
        nearly(breakdown.terms_s(twin), breakdown.terms_s(rank), step_s)
    return len(twins), len(whole.program.ranks)


def nearly(folded: dict[str, float], whole: dict[str, float], step_s: float) -> None:
    """Equal keys, and values within 1e-9 of the step."""
    assert folded.keys() == whole.keys()
    off = {k: (folded[k], s) for k, s in whole.items() if abs(folded[k] - s) > TOLERANCE * step_s}
    assert not off


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
    profile = ProfileSpec(gpu_speed_deviation=draw(st.sampled_from([0.0, 0.012])))
    healthy = small_cluster(
        num_nodes, gpus_per_node, node_nics_per_node=nics, slow_gpus=slow, fabric=fabric,
        profile=profile,
    )  # fmt: skip
    return draw(changed_networks(healthy)) if draw(st.booleans()) else healthy


@st.composite
def changed_networks(draw: st.DrawFn, cluster: ClusterSpec) -> ClusterSpec:
    """The same nodes elsewhere, in another order, beside other jobs, with parts of the network
    damaged and flows hashed onto cables."""
    spare = draw(st.integers(0, 4))
    nodes = draw(st.permutations(range(cluster.num_nodes + spare)))
    hosts, others = tuple(nodes[: cluster.num_nodes]), tuple(nodes[cluster.num_nodes :])
    background = [
        BackgroundJob(hosts=others, traffic=draw(st.sampled_from(["ring", "all_to_all"])),
                      rate=draw(st.sampled_from([5e9, 50e9])))
    ] if len(others) > 1 else []  # fmt: skip
    fabric = cluster.fabric.model_copy(update={
        "num_nodes": len(nodes), "routing": draw(st.sampled_from(["adaptive", "ecmp"])),
        "queue_pairs": draw(st.sampled_from([1, 4])),
    })  # fmt: skip
    cluster = cluster.model_copy(update={
        "hosts": hosts, "placement": draw(st.sampled_from(["packed", "striped"])),
        "background": tuple(background), "fabric": fabric,
    })  # fmt: skip
    shape = fabric_shape(cluster)
    names = [f"node-{draw(st.sampled_from(hosts))}/gpu-0", f"node-{hosts[-1]}/nic-0"]
    names += ["leaf-0/spine-0"] if shape.tiers > 1 else []
    names += ["spine-0/core-0"] if shape.tiers > 2 else []
    damaged = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0.0, 0.5])))
    degraded = tuple(DegradedLink(link=name, factor=factor) for name, factor in damaged.items())
    degraded = tuple(d for d in degraded if "gpu" not in d.link or d.factor > 0)
    update = {"degraded": degraded}
    damaged_cluster = cluster.model_copy(update={"fabric": fabric.model_copy(update=update)})
    return cluster if degradation_problems(damaged_cluster) else damaged_cluster


ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-tp-dp-ep-cp")


@st.composite
def runs(draw: st.DrawFn, max_gpus: int = 64) -> RunSpec:
    tp = draw(st.sampled_from([1, 2, 4, 8]))
    pp = draw(st.sampled_from([1, 2, 4]))
    vpp = draw(st.sampled_from([1, 2, 3])) if pp > 1 else 1
    cp = draw(st.sampled_from([c for c in (1, 2, 4) if tp * pp * c <= max_gpus]))
    kinds = [k for k in ("p2p", "all_gather", "a2a", "a2a+p2p") if "a2a" not in k or tp * cp <= 8]
    kind = draw(st.sampled_from(kinds)) if cp > 1 else "p2p"
    dp = draw(st.sampled_from([d for d in (1, 2, 4, 8) if tp * cp * pp * d <= max_gpus]))
    num_gpus = tp * cp * pp * dp
    per_node = draw(st.sampled_from([g for g in (1, 2, 4, 8) if g <= num_gpus and
                                     num_gpus // g <= 8]))  # fmt: skip
    cluster = draw(clusters(num_gpus // per_node, per_node))
    sequence = tp > 1 and draw(st.booleans())
    overlap = sequence and draw(st.booleans())
    schedule = "interleaved_1f1b" if vpp > 1 else draw(st.sampled_from(["1f1b", "gpipe"]))
    p2p = draw(st.sampled_from([None, True, False]))
    plain = vpp == 1
    sharding = draw(st.sampled_from(["none", "zero1", "zero2", *(["zero3"] if plain else [])]))
    distributed = sharding != "none"
    copies = draw(st.sampled_from([n for n in (1, 2) if distributed and dp * cp % n == 0] or [1]))
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
                     "rank_order": draw(st.sampled_from(ORDERS)),
                     "pipeline_schedule": schedule, "overlap_p2p_communication": p2p,
                     "context_parallel_size": cp, "cp_comm_type": kind,
                     "hierarchical_context_parallel_sizes":
                         (2, cp // 2) if kind == "a2a+p2p" else None},
        optimizer={"data_parallel_sharding": sharding, "overlap_grad_reduce": overlap_reduce,
                   "num_distributed_optimizer_instances": copies,
                   "overlap_param_gather": overlap_gather,
                   "ddp_bucket_size": draw(st.sampled_from([None, 300_000, 2_000_000]))},
    )  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(runs())
def test_folded_equals_unfolded(run: RunSpec) -> None:
    check_folding(run)


EVERYTHING = {
    "use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    "ddp_bucket_size": 500_000,
}  # fmt: skip


@pytest.mark.parametrize("slow_gpus", [{}, {5: 0.8, 40: 0.6}])
@pytest.mark.parametrize("fabric", sorted(FABRICS))
def test_64_gpus_with_all_that_overlaps(fabric: str, slow_gpus: dict[int, float]) -> None:
    """8 nodes of 8 GPUs and 4 NICs, tp 4, pp 4, 2 chunks, dp 4."""
    cluster = small_cluster(
        8, fabric=FABRICS[fabric], node_nics_per_node=4, slow_gpus=slow_gpus
    )  # fmt: skip
    run = small_run(
        cluster, tp=4, pp=4, vpp=2, model=small_model(num_layers=8), optimizer=EVERYTHING,
        parallelism={"sequence_parallel": True, "tp_comm_overlap": True},
    )  # fmt: skip
    few, all_ranks = check_folding(run)
    assert few < all_ranks


@pytest.mark.parametrize(("num_nodes", "gpus", "nics"), [(3, 4, 4), (2, 6, 4), (4, 3, 2)])
@pytest.mark.parametrize("fabric", ["oversubscribed tree", "rail"])
@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (2, 1), (2, 2), (4, 1)])
def test_groups_that_lie_unevenly_on_nodes(
    num_nodes: int, gpus: int, nics: int, fabric: str, tp: int, pp: int
) -> None:
    """Groups cut by node boundaries: members of one group carry unlike shares over their NICs."""
    cluster = small_cluster(num_nodes, gpus, node_nics_per_node=nics, fabric=FABRICS[fabric])
    run = small_run(
        cluster, tp=tp, pp=pp, model=small_model(num_layers=pp), num_microbatches=2,
        parallelism={"sequence_parallel": tp > 1},
    )  # fmt: skip
    check_folding(run)


@pytest.mark.parametrize(
    ("num_nodes", "gpus", "per_unit", "tp", "kinds"),
    [
        (2, 3, 32, 1, 2),  # stages of 2 GPUs: 0 -> 2 inside node 0, 1 -> 3 between nodes
        (6, 2, 3, 2, 1),  # stages of 2 nodes: 0 -> 2 under one leaf, 1 -> 3 by way of a spine
    ],
)
def test_neighbours_that_are_near_and_far(
    num_nodes: int, gpus: int, per_unit: int, tp: int, kinds: int
) -> None:
    """Ranks of one stage whose next stage is not equally far; switches on the way do not count."""
    cluster = small_cluster(num_nodes, gpus, fabric=TREE, fabric_nodes_per_unit=per_unit)
    few, _ = check_folding(small_run(cluster, tp=tp, pp=3))
    assert few == kinds * 3


@pytest.mark.parametrize("slow_gpus", [{}, {21: 0.7}])
@pytest.mark.parametrize("kind", ["p2p", "a2a+p2p"])
def test_sequences_shared_between_nodes(kind: str, slow_gpus: dict[int, float]) -> None:
    """4 nodes of 8 behind an oversubscribed tree; CP 4 of TP 2 on half a node, or of TP 4 on two
    nodes, with a slow GPU that its ring waits for."""
    levels = (2, 2) if kind == "a2a+p2p" else None
    cluster = small_cluster(
        4, fabric=FABRICS["oversubscribed tree"], node_nics_per_node=4, slow_gpus=slow_gpus
    )
    for tp in (2, 4):
        run = small_run(
            cluster, tp=tp, cp=4, pp=2, num_microbatches=3,
            model=small_model(num_layers=2, num_attention_heads=16),
            parallelism={"sequence_parallel": True, "cp_comm_type": kind,
                         "hierarchical_context_parallel_sizes": levels},
        )  # fmt: skip
        check_folding(run)


def test_healthy_gpus_fold_to_one_rank_per_stage() -> None:
    assert check_folding(small_run(small_cluster(8), tp=8, pp=4)) == (4, 64)


def test_one_slow_gpu_unfolds_only_who_can_tell() -> None:
    """Per stage: its place in the grid, that place's tensor group, its data group, the rest."""
    run = small_run(small_cluster(8, slow_gpus={17: 0.8}), tp=4, pp=4)
    assert check_folding(run) == (4 * 4, 64)


@pytest.mark.parametrize("slow_gpus", [{}, {13: 0.7}])
@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather", "flex"])
@pytest.mark.parametrize(("tp", "ep", "etp"), [(1, 8, 1), (2, 4, 1), (2, 2, 2), (1, 2, 2)])
def test_experts_on_a_grid_of_their_own(
    tp: int, ep: int, etp: int, dispatcher: str, slow_gpus: dict[int, float]
) -> None:
    """4 nodes of 4 GPUs behind an oversubscribed tree, two stages, uneven loads."""
    cluster = small_cluster(
        4, 4, fabric=FABRICS["oversubscribed tree"], node_nics_per_node=2, slow_gpus=slow_gpus
    )
    run = small_run(
        cluster, tp=tp, pp=2, vpp=2, num_microbatches=4,
        model=small_model(
            num_layers=4, num_experts=8, moe_ffn_hidden_size=256, moe_layer_freq=(0, 1, 1, 0),
            moe_shared_expert_intermediate_size=128, add_bias_linear=False,
        ),
        training={"moe_routing": "zipf", "moe_zipf_exponent": 0.5},
        parallelism={
            "expert_model_parallel_size": ep, "expert_tensor_parallel_size": etp,
            "moe_token_dispatcher_type": dispatcher, "sequence_parallel": tp > 1,
            "moe_shared_expert_overlap": dispatcher == "alltoall",
            "overlap_moe_expert_parallel_comm": dispatcher == "flex",
        },
        optimizer=EVERYTHING,
    )  # fmt: skip
    check_folding(run)


@pytest.mark.parametrize(
    "damage",
    [{"node-1/nic-2": 0.0}, {"node-1/nic-2": 0.5, "leaf-0/spine-0": 0.5}, {"node-0/gpu-1": 0.5}],
    ids=["dead NIC", "half a NIC and a cable", "weak NVLink port"],
)
def test_experts_on_a_damaged_network(damage: dict[str, float]) -> None:
    """4 nodes of 4 in 2 units at 4 : 1; experts on 2 nodes, so that their exchange crosses."""
    degraded = tuple(DegradedLink(link=name, factor=factor) for name, factor in damage.items())
    cluster = small_cluster(
        4, 4, fabric_nodes_per_unit=2, fabric_oversubscription=4.0, fabric_degraded=degraded
    )
    experts = small_model(
        num_experts=8, moe_ffn_hidden_size=256, moe_router_topk=2, add_bias_linear=False
    )
    run = small_run(
        cluster, pp=2, num_microbatches=2, model=experts,
        parallelism={"expert_model_parallel_size": 8},
    )  # fmt: skip
    few, all_ranks = check_folding(run)
    assert few < all_ranks
