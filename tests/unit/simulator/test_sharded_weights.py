"""ZeRO-2 and ZeRO-3: what is gathered and scattered when, how often, among whom."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from simulator.engine import Rank, Task
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from workloads.graph import build_work
from workloads.layout_checks import check_layout
from workloads.memory import stage_memory
from workloads.spec import ModelSpec, OptimizerSpec

LAYERS = 3
UNTIED = small_model(num_layers=LAYERS, untie_embeddings_and_output_weights=True)


def sharded(kind: str = "zero3", **changes: Any) -> dict[str, Any]:
    return {
        "data_parallel_sharding": kind, "overlap_grad_reduce": True, "overlap_param_gather": True,
        **changes,
    }  # fmt: skip


def run_of(model: ModelSpec = UNTIED, num_nodes: int = 1, **optimizer: Any) -> RunSpec:
    return small_run(
        small_cluster(num_nodes), model=model, num_microbatches=2, optimizer=sharded(**optimizer)
    )


def rank_of(run: RunSpec) -> Rank:
    (rank,) = simulate(run).program.ranks
    return rank


def named(rank: Rank, word: str) -> list[Task]:
    return [task for task in rank.streams["dp"] if word in task.name]


def test_every_layer_is_gathered_twice_and_scattered_once_per_microbatch() -> None:
    """5 units (embedding, 3 layers, output): all forward; backward the layers only, as the ends
    stay. All scatter in every backward."""
    rank = rank_of(run_of())
    units = LAYERS + 2
    assert len(named(rank, "gather parameters")) == 2 * (units + LAYERS)
    assert len(named(rank, "reduce gradients")) == 2 * units


def test_weights_kept_after_forward_are_gathered_once() -> None:
    rank = rank_of(run_of(reshard_after_forward=False))
    assert len(named(rank, "gather parameters")) == 2 * (LAYERS + 2)


def test_bytes_by_hand() -> None:
    """Each gather moves a unit's 2-byte weights, each scatter its 4-byte gradients, 7/8 of them
    over the wire of 8 ranks."""
    run = run_of()
    held = build_work(run.model, run.training, run.parallelism, run.optimizer, 8).stages[0]
    assert held.buckets[0] == tuple(x.parameters for x in reversed(held.chunks[0]))
    rank = rank_of(run)
    scattered = sum(t.exchange.num_bytes for t in named(rank, "reduce") if t.exchange)
    assert scattered == pytest.approx(2 * 4 * held.parameters * 7 / 8)
    layers = sum(x.parameters for x in held.chunks[0][1:-1])
    gathered = sum(t.exchange.num_bytes for t in named(rank, "gather") if t.exchange)
    assert gathered == pytest.approx(2 * 2 * (held.parameters + layers) * 7 / 8)


def test_one_layer_is_gathered_ahead_and_no_more() -> None:
    """Layer i + 1 is gathered beside layer i, once layer i - 1 is done; without the overlap only
    when layer i is done."""
    for overlap, behind in ((True, 2), (False, 1)):
        rank = rank_of(run_of(overlap_param_gather=overlap))
        forwards = [t for t in rank.streams["compute"] if t.category == "forward"][: LAYERS + 2]
        gathers = named(rank, "gather")[: LAYERS + 2]
        for i, gather in enumerate(gathers):
            assert forwards[i].start_s >= gather.end_s
            if i >= behind:
                assert gather.start_s >= forwards[i - behind].end_s


def test_a_layer_waits_for_the_scatter_before_it_unless_overlapped() -> None:
    rank = rank_of(run_of(overlap_grad_reduce=False))
    backwards = [t for t in rank.streams["compute"] if t.category == "backward"][: LAYERS + 2]
    scatters = named(rank, "reduce")[: LAYERS + 2]
    for scatter, behind in zip(scatters, backwards[1:], strict=False):
        assert behind.start_s >= scatter.end_s
    assert simulate(run_of()).metrics["step_time_s"] <= rank_end(rank)


def rank_end(rank: Rank) -> float:
    return max(task.end_s for tasks in rank.streams.values() for task in tasks)


def test_sharded_gradients_are_given_up_in_every_microbatch() -> None:
    """ZeRO-2 scatters each microbatch's gradients in buckets and gathers weights once."""
    two = rank_of(run_of(kind="zero2", ddp_bucket_size=2_000_000))
    one = rank_of(run_of(kind="zero1", ddp_bucket_size=2_000_000))
    assert len(named(two, "reduce")) == 2 * len(named(one, "reduce")) > 2
    assert len(named(two, "gather")) == len(named(one, "gather"))


def test_copies_are_summed_between_nodes() -> None:
    """HSDP: 2 nodes of 8, one copy each: gathers and scatters stay on NVLink, and each rank sums
    its eighth with the other node's: 2 x 1/2 of it over its NIC."""
    run = run_of(num_nodes=2, num_distributed_optimizer_instances=2)
    rank = rank_of(run)
    held = build_work(run.model, run.training, run.parallelism, run.optimizer, 16).stages[0]
    copies = [t.exchange for t in named(rank, "sum copies") if t.exchange]
    assert sum(e.num_bytes for e in copies) == pytest.approx(2 * 4 * held.parameters / 8)
    assert len(copies) == len(named(rank, "reduce gradients"))
    memory = stage_memory(
        run.model, run.training, run.parallelism, run.optimizer, 16, 0, held.order
    )
    assert memory.optimizer == pytest.approx(12 * held.parameters / 8)


def test_what_each_kind_keeps() -> None:
    """Of P weights on 8 ranks: gradients 4 P, or 4 P / 8; weights 2 P, or the ends and two layers;
    state 12 P / 8."""
    run = run_of()
    held = build_work(run.model, run.training, run.parallelism, run.optimizer, 8).stages[0]
    total, layer = held.parameters, held.chunks[0][1].parameters

    def memory(kind: str, **changes: Any) -> Any:
        optimizer = OptimizerSpec(**sharded(kind, **changes))
        return stage_memory(run.model, run.training, run.parallelism, optimizer, 8, 0, held.order)

    one, two, three = (memory(kind) for kind in ("zero1", "zero2", "zero3"))
    assert one.optimizer == two.optimizer == three.optimizer == pytest.approx(12 * total / 8)
    assert one.gradients == 4 * total
    assert two.gradients == three.gradients == pytest.approx(4 * total / 8)
    assert one.weights == two.weights == 2 * total
    assert three.weights == 2 * (total - (LAYERS - 2) * layer)
    assert memory("zero3", reshard_after_forward=False).weights == 2 * total


RULES = [
    (
        {"data_parallel_sharding": "none", "use_distributed_optimizer": True},
        "data_parallel_sharding", "contradicts use_distributed_optimizer: true",
    ),
    (
        {"data_parallel_sharding": "zero3", "use_distributed_optimizer": False},
        "data_parallel_sharding", "contradicts use_distributed_optimizer: false",
    ),
    ({"num_distributed_optimizer_instances": 2}, "num_distributed_optimizer_instances", "needs"),
    (
        {"use_distributed_optimizer": True, "num_distributed_optimizer_instances": 3},
        "num_distributed_optimizer_instances", "3 does not divide the 8",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "key", "words"), RULES)
def test_rules(optimizer: dict[str, Any], key: str, words: str) -> None:
    run = run_of()
    ((path, message),) = check_layout(
        run.model, run.parallelism, run.training, OptimizerSpec(**optimizer), 8
    )
    assert path == f"optimizer.{key}"
    assert words in message


def test_sharded_weights_go_with_plain_schedules() -> None:
    run = small_run(
        small_cluster(1), pp=2, vpp=2, model=small_model(num_layers=4), optimizer=sharded()
    )
    problems = check_layout(run.model, run.parallelism, run.training, run.optimizer, 8)
    assert problems == [
        (
            "optimizer.data_parallel_sharding",
            "'zero3' goes with 1f1b or gpipe, not interleaved_1f1b",
        )
    ]


def test_the_names_of_sharding_agree() -> None:
    assert OptimizerSpec(use_distributed_optimizer=True).data_parallel_sharding == "zero1"
    assert OptimizerSpec().data_parallel_sharding == "none"
    assert OptimizerSpec(data_parallel_sharding="zero2").use_distributed_optimizer
