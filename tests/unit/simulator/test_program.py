"""Streams of tasks: what runs in which order, what waits for what, who meets whom."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from simulator import program as program_module
from simulator.costs import Costs
from simulator.engine import Rank, Task
from simulator.errors import SimulationError
from simulator.placement import FoldedRanks
from simulator.program import Program, build_program
from simulator.runspec import RunSpec
from workloads.graph import StepWork, build_work
from workloads.layout import RankGrid
from workloads.pipeline import Pass


def work_of(run: RunSpec) -> StepWork:
    return build_work(
        run.model, run.training, run.parallelism, run.optimizer, run.data_parallel_size
    )


def program_of(run: RunSpec, folded: bool = True) -> Program:
    grid = RankGrid.of(run.parallelism, run.cluster.num_gpus)
    wraps = run.parallelism.wraps
    ranks = FoldedRanks(run.cluster, grid, wraps=wraps, folded=folded)
    return build_program(work_of(run), ranks, Costs(run.cluster))


def passes(rank: Rank) -> list[Pass]:
    """Of the compute stream, each once however often it is cut."""
    seen = [
        Pass(task.category, task.microbatch, task.chunk)  # type: ignore[arg-type]
        for task in rank.streams["compute"]
        if task.category in ("forward", "backward")
    ]
    return list(dict.fromkeys(seen))


def names(tasks: list[Task]) -> list[str]:
    return [task.name for task in tasks]


@pytest.mark.parametrize(
    "layout",
    [
        {"pp": 2, "parallelism": {"pipeline_schedule": "gpipe"}},
        {"pp": 4},
        {"pp": 2, "vpp": 3, "num_microbatches": 4},
    ],
)
def test_passes_run_in_the_order_of_the_schedule(layout: dict[str, Any]) -> None:
    run = small_run(small_cluster(1), **layout)
    for rank, stage in zip(program_of(run).ranks, work_of(run).stages, strict=True):
        assert passes(rank) == list(stage.order)


def test_a_pass_is_computed_whole() -> None:
    """Its parts lie end to end from 0 to the end of its profile, cut or not."""
    run = small_run(
        small_cluster(1), tp=2, pp=2, vpp=2,
        optimizer={"use_distributed_optimizer": True, "overlap_grad_reduce": True,
                   "overlap_param_gather": True, "ddp_bucket_size": 500_000},
        model=small_model(num_layers=8),
    )  # fmt: skip
    parts: dict[tuple[int, str], list[Task]] = {}
    for rank in program_of(run, folded=False).ranks:
        for task in rank.streams["compute"]:
            if task.profile is not None and task.category in ("forward", "backward"):
                parts.setdefault((rank.rank, task.name), []).append(task)
    cut = 0
    for tasks in parts.values():
        profile = tasks[0].profile
        assert profile is not None
        assert [t.from_s for t in tasks] == [0.0, *(t.to_s for t in tasks[:-1])]
        assert tasks[-1].to_s == profile.duration_s
        cut += len(tasks) > 1
    assert cut


def test_sends_block_unless_they_overlap() -> None:
    blocking, beside = (
        program_of(
            small_run(small_cluster(1), pp=2, parallelism={"overlap_p2p_communication": overlap})
        ).ranks[0]
        for overlap in (False, True)
    )
    assert set(blocking.streams) == {"compute"}
    assert names(blocking.streams["compute"])[:2] == ["forward 0.0", "send forward 0.0"]
    assert names(beside.streams["pp_next"]) == [f"send forward {i}.0" for i in range(4)]
    assert [t.needs[0].name for t in beside.streams["pp_next"]] == [
        f"forward {i}.0" for i in range(4)
    ]


def test_forward_and_backward_go_out_on_streams_of_their_own() -> None:
    run = small_run(small_cluster(1), pp=4, parallelism={"overlap_p2p_communication": True})
    sends = [
        {stream: {task.name.split()[1] for task in tasks}
         for stream, tasks in rank.streams.items() if stream.startswith("pp")}
        for rank in program_of(run).ranks
    ]  # fmt: skip
    both = {"pp_next": {"forward"}, "pp_prev": {"backward"}}
    assert sends == [{"pp_next": {"forward"}}, both, both, {"pp_prev": {"backward"}}]


def test_a_pass_waits_for_the_transfer_that_feeds_it() -> None:
    run = small_run(small_cluster(1), pp=2, num_microbatches=2)
    first, second = program_of(run).ranks
    forward = next(t for t in second.streams["compute"] if t.name == "forward 1.0")
    assert [need.name for need in forward.needs] == ["send forward 1.0"]
    assert forward.needs[0] in first.streams["compute"]
    backward = next(t for t in first.streams["compute"] if t.name == "backward 0.0")
    assert backward.needs[0] in second.streams["compute"]
    assert backward.needs[0].exchange is not None
    assert backward.needs[0].exchange.receivers == [first]


def test_every_chunk_but_the_ends_is_fed_by_another_stage() -> None:
    """2 stages of 3 chunks: the first stage's first chunk forward and the last one's last chunk
    backward need nothing; all other 2 * 2 * 3 - 2 passes of a microbatch do."""
    run = small_run(small_cluster(1), pp=2, vpp=3, num_microbatches=2)
    fed = [
        task.needs[0]
        for rank in program_of(run).ranks
        for task in rank.streams["compute"]
        if task.category in ("forward", "backward") and task.needs
    ]
    assert len(fed) == len(set(map(id, fed))) == 2 * (2 * 2 * 3 - 2)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_gradients_are_reduced_once_all_microbatches_are_done(schedule: str) -> None:
    """In the order in which the last backward fills them; GPipe's is that of microbatch 0."""
    run = small_run(
        small_cluster(1), pp=2, model=small_model(num_layers=4),
        optimizer={"overlap_grad_reduce": True, "ddp_bucket_size": 1_000_000},
        parallelism={"pipeline_schedule": schedule},
    )  # fmt: skip
    for rank, stage in zip(program_of(run).ranks, work_of(run).stages, strict=True):
        buckets = len(stage.buckets[0])
        assert (buckets > 1) == (rank.stage == 0)  # Megatron-LM cuts the first stage's only
        assert names(rank.streams["dp"]) == [f"reduce gradients 0.{i}" for i in range(buckets)]
        last = 0 if schedule == "gpipe" else 3
        feeders = [task.needs[0] for task in rank.streams["dp"]]
        assert {t.name for t in feeders} == {f"backward {last}.0"}
        ends = [t.to_s for t in feeders]
        assert ends == sorted(ends)
        assert (ends[0] < ends[-1]) == (buckets > 1)
        assert sum(t.exchange.num_bytes for t in rank.streams["dp"] if t.exchange) == (
            pytest.approx(stage.parameters * 4 * 2 * 3 / 4)
        )


def test_without_overlap_gradients_are_reduced_at_the_end() -> None:
    run = small_run(small_cluster(1), optimizer={"use_distributed_optimizer": True})
    (rank,) = program_of(run).ranks
    assert set(rank.streams) == {"compute"}
    order = names(rank.streams["compute"])
    assert order.index("backward 3.0") < order.index("reduce gradients 0.0") < order.index("adam")
    assert order[-2:] == ["host between steps", "gather parameters 0.0"]


def test_parameters_gather_in_the_order_of_their_use() -> None:
    """Buckets fill backwards, so the last of them is needed first: by the first forward, at its
    start; later ones inside it; passes of later microbatches wait for none."""
    run = small_run(
        small_cluster(1), model=small_model(num_layers=4),
        optimizer={"use_distributed_optimizer": True, "overlap_grad_reduce": True,
                   "overlap_param_gather": True, "ddp_bucket_size": 4_000_000},
    )  # fmt: skip
    (rank,) = program_of(run).ranks
    buckets = len(work_of(run).stages[0].buckets[0])
    assert buckets > 2
    gathers = rank.streams["dp"][:buckets]
    assert names(gathers) == [f"gather parameters 0.{i}" for i in reversed(range(buckets))]
    waiting = [t for t in rank.streams["compute"] if t.category == "forward" and t.needs]
    assert [need for t in waiting for need in t.needs] == gathers
    assert {t.microbatch for t in waiting} == {0}
    assert waiting[0].from_s == 0.0
    starts = [t.from_s for t in waiting]
    assert starts == sorted(set(starts))


def test_the_optimizer_waits_for_the_last_gradients() -> None:
    run = small_run(small_cluster(1), optimizer={"overlap_grad_reduce": True})
    (rank,) = program_of(run).ranks
    after = names(rank.streams["compute"]).index("backward 3.0") + 1
    first = next(t for t in rank.streams["compute"][after:] if t.category == "optimizer")
    assert [id(need) for need in first.needs] == [id(rank.streams["dp"][-1])]


def test_no_data_parallel_traffic_among_one() -> None:
    run = small_run(small_cluster(1), tp=8)
    (rank,) = program_of(run).ranks
    assert not [t for t in rank.streams["compute"] if "gradients 0" in t.name]


def test_ranks_that_differ_meet_around_each_tensor_collective() -> None:
    """Folded and alike they need not; unfolded each barrier has the whole group."""
    run = small_run(small_cluster(1), tp=4)
    alike, whole = program_of(run), program_of(run, folded=False)
    assert not [t for r in alike.ranks for t in r.streams["compute"] if "barrier" in t.name]
    barriers = [t for r in whole.ranks for t in r.streams["compute"] if "barrier" in t.name]
    assert {t.exchange.num_members for t in barriers if t.exchange} == {4}
    assert len(barriers) == 4 * len({id(t.exchange) for t in barriers})


def test_barriers_have_one_member_per_class() -> None:
    """The slow rank and its three neighbours are two classes; so are its data-parallel partner
    and that one's neighbours."""
    run = small_run(small_cluster(1, slow_gpus={1: 0.5}), tp=4)
    members = {
        rank.rank: {t.exchange.num_members for t in rank.streams["compute"]
                    if t.exchange and "barrier" in t.name}
        for rank in program_of(run).ranks
    }  # fmt: skip
    assert members == {0: {2}, 1: {2}, 4: {2}, 5: {2}}


def test_too_many_tasks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_module, "MAX_TASKS", 10)
    with pytest.raises(SimulationError, match="operations are more than the 10 that fit"):
        program_of(small_run(small_cluster(1)))
