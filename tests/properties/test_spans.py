"""A pass is priced once and executed as one event: the same as its operations one by one.

The second way is built here: every task that computes is cut into one task per operation, so that
the loop starts and ends each of them and applies what slows it there.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_cluster, small_run

from simulator.costs import Costs
from simulator.engine import Engine, Exchange, Rank, Task
from simulator.placement import FoldedRanks
from simulator.profile import Profile, Segment, Slowdown
from simulator.program import Program, build_program
from simulator.runspec import RunSpec
from workloads.graph import build_work
from workloads.layout import RankGrid


def program_of(run: RunSpec) -> Program:
    work = build_work(
        run.model, run.training, run.parallelism, run.optimizer, run.data_parallel_size
    )
    grid = RankGrid.of(run.parallelism, run.cluster.num_gpus)
    folded = FoldedRanks(run.cluster, grid, wraps=run.parallelism.wraps)
    return build_program(work, folded, Costs(run.cluster))


def one_by_one(program: Program) -> list[Rank]:
    """The same ranks, each operation a task."""
    last_part: dict[Task, Task] = {}
    ranks = []
    for rank in program.ranks:
        streams = {name: [] for name in rank.streams}
        for name, tasks in rank.streams.items():
            for task in tasks:
                parts = split(task)
                last_part[task] = parts[-1]
                streams[name] += parts
        ranks.append(replace(rank, streams=streams))
    same = dict(zip(map(id, program.ranks), ranks, strict=True))
    for rank in ranks:
        for tasks in rank.streams.values():
            for task in tasks:
                task.needs = tuple(last_part[need] for need in task.needs)
                if task.exchange is not None:
                    receivers = task.exchange.receivers
                    receivers[:] = [same.get(id(r), r) for r in receivers]
    return ranks


def split(task: Task) -> list[Task]:
    if task.profile is None:
        return [task]
    bounds = [b for b in task.profile.bounds_s if task.from_s <= b <= task.to_s]
    spans = list(pairwise(bounds)) or [(task.from_s, task.to_s)]
    parts = [replace(task, from_s=low, to_s=high, needs=()) for low, high in spans]
    parts[0].needs = task.needs
    return parts


layouts = st.tuples(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]),
    st.integers(1, 6), st.booleans(), st.booleans(),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(layouts, st.floats(1e8, 1e11))
def test_steps_are_equal(layout: Any, rate: float) -> None:
    tp, pp, vpp, batches, overlap, sharded = layout
    interleaved = vpp > 1 and pp > 1
    run = small_run(
        small_cluster(2, fabric_link_bandwidth=rate), tp=tp, pp=pp,
        vpp=vpp if interleaved else 1, num_microbatches=batches * pp,
        parallelism={
            "sequence_parallel": tp > 1,
            "pipeline_schedule": "interleaved_1f1b" if interleaved else "1f1b",
        },
        optimizer={
            "overlap_grad_reduce": overlap, "use_distributed_optimizer": sharded,
            "overlap_param_gather": overlap and sharded,
        },
    )  # fmt: skip
    at_once = program_of(run)
    whole = Engine(at_once.ranks, at_once.capacity_bytes_per_s).run()
    other = program_of(run)
    parts = Engine(one_by_one(other), other.capacity_bytes_per_s).run()
    assert parts.num_tasks > whole.num_tasks
    assert parts.end_s == pytest.approx(whole.end_s, rel=1e-9)


pieces = st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 1.0)), min_size=1, max_size=5)
neighbours = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.floats(0.01, 2.0), st.floats(0.0, 2.0)), max_size=4
)


@given(pieces, st.tuples(neighbours, neighbours))
def test_whatever_starts_and_stops_beside_it(
    parts: list[tuple[float, float]], beside: tuple[list[tuple[float, float, float]], ...]
) -> None:
    """One rank computes while two other streams run exchanges, each after a wait."""
    profile = Profile([Segment((), d, share * d) for d, share in parts])

    def ends_s(cuts: list[Task]) -> float:
        streams = {"compute": cuts}
        for i, exchanges in enumerate(beside):
            streams[f"s{i}"] = [
                task
                for wait_s, long_s, compute in exchanges
                for task in (
                    Task("wait", "dp", exchange=Exchange("wait", 1, wait_s)),
                    Task("slow", "dp", exchange=Exchange("x", 1, long_s,
                                                         slowdown=Slowdown(compute))),
                )
            ]  # fmt: skip
        Engine([Rank(0, 0, 1, streams)], ()).run()
        return cuts[-1].end_s

    whole = Task("all", "forward", profile=profile, to_s=profile.duration_s)
    assert ends_s([whole]) == pytest.approx(ends_s(split(whole)), rel=1e-9, abs=1e-12)
