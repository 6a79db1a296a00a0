"""The order in which a pipeline stage runs its passes.

A schedule is a function from (stage, num_stages, num_microbatches, num_chunks) to the order of
that stage's passes; `SCHEDULES` names them as the run file does. Orders only: when a pass can start
is decided by what it needs (`passes.pass_input`), and the bubble by the event loop.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from workloads.passes import Order, Pass
from workloads.spec import ParallelismSpec
from workloads.zero_bubble import dualpipe_v, zb_h1, zb_h2, zb_v

Schedule: TypeAlias = Callable[[int, int, int, int], Order]


def gpipe(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Order:
    """All forwards, then all backwards, last microbatch first (Huang 2019, arXiv 1811.06965)."""
    forwards = [Pass("forward", i) for i in range(num_microbatches)]
    backwards = [Pass("backward", i) for i in reversed(range(num_microbatches))]
    return tuple(forwards + backwards)


def one_forward_one_backward(
    stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> Order:
    """PipeDream-flush: warm up, then one forward and one backward in turn (Narayanan 2021,
    arXiv 2104.04473, section 2.2)."""
    warmup = min(num_stages - stage - 1, num_microbatches)
    forwards = [Pass("forward", i) for i in range(num_microbatches)]
    backwards = [Pass("backward", i) for i in range(num_microbatches)]
    return _one_by_one(forwards, backwards, warmup)


def interleaved_1f1b(
    stage: int,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int = 1,
    group_size: int | None = None,
) -> Order:
    """1F1B over `num_chunks` model chunks per stage, microbatches in groups of `group_size`, or of
    num_stages (Narayanan 2021, section 2.2; Megatron-LM, pipeline_parallel/schedules.py,
    get_schedule_table). The last group may be smaller, but not than num_stages."""
    size = group_size or num_stages
    total = num_microbatches * num_chunks
    warmup = min(2 * (num_stages - stage - 1) + (num_chunks - 1) * size, total)
    table = [
        (microbatch, chunk)
        for first in range(0, num_microbatches, size)
        for chunk in range(num_chunks)
        for microbatch in range(first, min(first + size, num_microbatches))
    ]
    forwards = [Pass("forward", i, chunk) for i, chunk in table]
    backwards = [
        Pass("backward", microbatch, num_chunks - 1 - chunk) for microbatch, chunk in table
    ]
    return _one_by_one(forwards, backwards, warmup)


def _one_by_one(forwards: list[Pass], backwards: list[Pass], warmup: int) -> Order:
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return tuple(order + backwards[len(forwards) - warmup :])


SCHEDULES: dict[str, Schedule] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved_1f1b,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "zb_v": zb_v,
    "dualpipe_v": dualpipe_v,
}


def stage_order(parallelism: ParallelismSpec, stage: int, num_microbatches: int) -> Order:
    """The order of passes of one stage, by the layout's schedule."""
    assert parallelism.pipeline_schedule is not None
    schedule = SCHEDULES[parallelism.pipeline_schedule]
    group_size = parallelism.microbatch_group_size_per_vp_stage
    if group_size is not None:
        schedule = partial(interleaved_1f1b, group_size=group_size)
    return schedule(
        stage,
        parallelism.pipeline_model_parallel_size,
        num_microbatches,
        parallelism.virtual_pipeline_model_parallel_size,
    )


def joined_forwards(schedule: str, order: Order, stage: int, num_stages: int) -> frozenset[Pass]:
    """Forwards that run interleaved with the backward behind them: both begin when both inputs are
    there, both outputs leave at the end.

    DualPipeV's pairs; its last stage leaves the first one apart (dualpipe/dualpipev.py, step 4).
    """
    if schedule != "dualpipe_v":
        return frozenset()
    pairs = [
        step
        for step, behind in pairwise(order)
        if (step.direction, behind.direction) == ("forward", "backward")
    ]
    return frozenset(pairs[1:] if stage == num_stages - 1 else pairs)
