"""The bubble comes out of the loop: equal stages and free communication give the known fractions.

(p - 1) / (m + p - 1) for GPipe (Huang 2019) and 1F1B, (p - 1) / (v m + p - 1) interleaved
(Narayanan 2021, section 2.2), whatever forward and backward take; and the bubbles that the authors
of zero-bubble schedules and of DualPipeV print.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_cluster

from hardware.spec import ClusterSpec
from simulator.breakdown import Breakdown
from simulator.costs import Costs
from simulator.engine import Engine, Rank
from simulator.placement import FoldedRanks
from simulator.profile import QUIET, Profile, Segment
from simulator.program import build_program
from simulator.trace import Piece
from workloads.graph import StageWork, StepWork
from workloads.layout import RankGrid
from workloads.operations import LayerWork
from workloads.pipeline import SCHEDULES, joined_forwards
from workloads.spec import OptimizerSpec, ParallelismSpec


class EqualPasses(Costs):
    """Every forward takes as long as any other, and so every backward, and each of its parts."""

    def __init__(
        self, cluster: ClusterSpec, forward_s: float, input_s: float, weight_s: float
    ) -> None:
        super().__init__(cluster)
        self._seconds = {
            "forward": forward_s, "backward": input_s + weight_s, "backward_input": input_s,
            "backward_weight": weight_s,
        }  # fmt: skip

    def pass_profile(self, layers: Any, direction: str, place: Any) -> Profile:
        seconds = self._seconds[direction]
        piece = Piece("pass", cast(Any, direction), "gemm", seconds)
        return Profile([Segment((piece,), seconds, seconds)])

    def transfer_slowdown(self, cost: Any) -> Any:
        return QUIET

    def host_segments(self) -> tuple[Segment, ...]:
        return ()


def executed(
    schedule: str, p: int, m: int, v: int, forward_s: float, input_s: float, weight_s: float
) -> tuple[Sequence[Rank], float]:
    """Ranks and the end of the step, through the program and the loop that real runs take."""
    parallelism = ParallelismSpec.model_validate({
        "pipeline_model_parallel_size": p,
        "virtual_pipeline_model_parallel_size": v,
        "pipeline_schedule": schedule,
    })  # fmt: skip
    chunks = tuple((LayerWork("layer", (), ()),) for _ in range(v))
    orders = [SCHEDULES[schedule](s, p, m, v) for s in range(p)]
    stages = tuple(
        StageWork(
            chunks,
            order,
            buckets=((),) * v,
            bucket_weights=((),) * v,
            finish=(),
            joined=joined_forwards(schedule, order, s, p),
        )
        for s, order in enumerate(orders)
    )
    work = StepWork(stages, parallelism, OptimizerSpec(), m, 0.0, 4, 2)
    cluster = small_cluster(1, p)
    folded = FoldedRanks(cluster, RankGrid.of(parallelism, p), wraps=parallelism.wraps)
    costs = EqualPasses(cluster, forward_s, input_s, weight_s)
    program = build_program(work, folded, costs)
    return program.ranks, Engine(program.ranks, program.capacity_bytes_per_s).run().end_s


def bubble_fraction(
    schedule: str, p: int, m: int, v: int, forward_s: float = 1.0, backward_s: float = 2.0
) -> float:
    """Mean over stages."""
    ranks, step_s = executed(schedule, p, m, v, forward_s, backward_s / 2, backward_s / 2)
    breakdown = Breakdown(step_s)
    return sum(breakdown.terms_s(rank)["bubble"] for rank in ranks) / p / step_s


def bubbles_s(
    schedule: str, p: int, m: int, v: int, times: tuple[float, float, float]
) -> tuple[float, float]:
    """Idle seconds of a step, whose stages begin and end together, and of the fullest stage from
    its own begin to its own end. `times`: forward, input and weight gradient of a chunk."""
    ranks, step_s = executed(schedule, p, m, v, *times)
    spans = [[t for t in rank.streams["compute"] if t.profile] for rank in ranks]
    own_s = max(tasks[-1].end_s - tasks[0].start_s for tasks in spans)
    busy_s = m * v * sum(times)
    return step_s - busy_s, own_s - busy_s


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


ZERO_BUBBLE = [(2, 4), (2, 9), (4, 8), (4, 20), (8, 16), (8, 40)]


@pytest.mark.parametrize(("p", "m"), ZERO_BUBBLE)
def test_zero_bubble_with_equal_passes(p: int, m: int) -> None:
    """Qi 2023 (arXiv 2401.10241, table 2) with F = B = W = 1: 1F1B idles 3 (p - 1), ZB-H1 a third
    of that, ZB-H2 and ZB-V (section 6) nothing once stages need not begin and end together."""
    equal, half = (1.0, 1.0, 1.0), (0.5, 0.5, 0.5)
    assert bubbles_s("1f1b", p, m, 1, equal)[0] == pytest.approx(3 * (p - 1))
    assert bubbles_s("zb_h1", p, m, 1, equal) == pytest.approx((p - 1, p - 1))
    assert bubbles_s("zb_h2", p, m, 1, equal) == pytest.approx((p - 1, 0.0))
    assert bubbles_s("zb_v", p, m, 2, half) == pytest.approx(((p - 1) / 2, 0.0))


@settings(max_examples=40, deadline=None)
@given(
    p=st.integers(2, 6), extra=st.integers(0, 9), forward_s=st.floats(0.5, 2.0),
    input_share=st.floats(0.0, 1.0), weight_share=st.floats(0.1, 1.0),
)  # fmt: skip
def test_zb_h1_whatever_the_passes_take(
    p: int, extra: int, forward_s: float, input_share: float, weight_share: float
) -> None:
    """(p - 1)(F + B - W) (Qi 2023, table 2) where a weight gradient is no longer than the others
    (W <= F <= B)."""
    times = (forward_s, forward_s * (1.0 + input_share), forward_s * weight_share)
    idle_s, _ = bubbles_s("zb_h1", p, 2 * p + extra, 1, times)
    assert idle_s == pytest.approx((p - 1) * (times[0] + times[1] - times[2]), rel=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 7), (4, 8), (4, 13), (8, 24)])
def test_dualpipe_v_as_its_authors_table(p: int, m: int) -> None:
    """(PP / 2 - 1)(F&B + B - 3 W) for PP = 2 p chunks (deepseek-ai/DualPipe, README), where F = W,
    B = 2 W and F&B = F + B: nothing is won by running both at once."""
    forward_s = weight_s = input_s = 1.0
    backward_s = input_s + weight_s
    expected = (p - 1) * ((forward_s + backward_s) + backward_s - 3 * weight_s)
    idle_s, _ = bubbles_s("dualpipe_v", p, m, 2, (forward_s, input_s, weight_s))
    assert idle_s == pytest.approx(expected)
