"""The bubble comes out of the loop: equal stages and free communication give the known fractions.

(p - 1) / (m + p - 1) for GPipe (Huang 2019) and 1F1B, (p - 1) / (v m + p - 1) interleaved
(Narayanan 2021, section 2.2), whatever forward and backward take.
"""

from itertools import product
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_cluster

from simulator.breakdown import Breakdown
from simulator.costs import Costs
from simulator.engine import Engine
from simulator.placement import FoldedRanks
from simulator.profile import QUIET, Profile, Segment
from simulator.program import build_program
from simulator.trace import Piece
from workloads.graph import StageWork, StepWork
from workloads.layout import RankGrid
from workloads.operations import LayerWork
from workloads.pipeline import SCHEDULES
from workloads.spec import OptimizerSpec, ParallelismSpec


class EqualPasses:
    """Stands in for `Costs`: every forward takes as long as any other, and so every backward."""

    def __init__(self, forward_s: float, backward_s: float) -> None:
        self._seconds = {"forward": forward_s, "backward": backward_s}

    def pass_profile(self, layers: Any, direction: str, place: Any) -> Profile:
        seconds = self._seconds[direction]
        piece = Piece("pass", cast(Any, direction), "gemm", seconds)
        return Profile([Segment((piece,), seconds, seconds)])

    def transfer_slowdown(self, cost: Any) -> Any:
        return QUIET

    def host_segments(self) -> tuple[Segment, ...]:
        return ()


def bubble_fraction(
    schedule: str, p: int, m: int, v: int, forward_s: float = 1.0, backward_s: float = 2.0
) -> float:
    """Mean over stages, through the program and the loop that real runs take."""
    parallelism = ParallelismSpec.model_validate({
        "pipeline_model_parallel_size": p,
        "virtual_pipeline_model_parallel_size": v,
        "pipeline_schedule": schedule,
    })  # fmt: skip
    chunks = tuple((LayerWork("layer", (), ()),) for _ in range(v))
    stages = tuple(
        StageWork(chunks, SCHEDULES[schedule](s, p, m, v), ((),) * v, ()) for s in range(p)
    )
    work = StepWork(stages, parallelism, OptimizerSpec(), m, 0.0, 4, 2)
    folded = FoldedRanks(small_cluster(1, p), RankGrid.of(parallelism, p), wraps=v > 1)
    costs = cast(Costs, EqualPasses(forward_s, backward_s))
    program = build_program(work, folded, costs)
    step_s = Engine(program.ranks, program.capacity_bytes_per_s).run().end_s
    breakdown = Breakdown(step_s)
    return sum(breakdown.terms_s(rank)["bubble"] for rank in program.ranks) / p / step_s


PLAIN = [(p, m) for p in range(1, 9) for m in (1, 2, 3, 5, 8, 13)]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_one_chunk(schedule: str) -> None:
    for p, m in PLAIN:
        assert bubble_fraction(schedule, p, m, 1) == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)


@pytest.mark.parametrize("v", [2, 3, 4, 5, 6])
def test_interleaved(v: int) -> None:
    for p, groups in product(range(2, 9), (1, 3)):
        m = groups * p
        expected = (p - 1) / (v * m + p - 1)
        assert bubble_fraction("interleaved_1f1b", p, m, v) == pytest.approx(expected, rel=1e-12)


def test_the_headline_pipeline() -> None:
    """16 stages of 7 chunks, 64 microbatches: 15 / (7 * 64 + 15)."""
    fraction = bubble_fraction("interleaved_1f1b", 16, 64, 7)
    assert fraction == pytest.approx(15 / (7 * 64 + 15), rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    p=st.integers(2, 6), groups=st.integers(1, 4), v=st.integers(1, 4),
    forward_s=st.floats(0.1, 10.0), backward_s=st.floats(0.1, 10.0),
)  # fmt: skip
def test_whatever_the_passes_take(
    p: int, groups: int, v: int, forward_s: float, backward_s: float
) -> None:
    schedule = "1f1b" if v == 1 else "interleaved_1f1b"
    fraction = bubble_fraction(schedule, p, groups * p, v, forward_s, backward_s)
    assert fraction == pytest.approx((p - 1) / (v * groups * p + p - 1), rel=1e-9)
