"""Orders of passes: complete, feasible, and with the in-flight peaks that theory gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.memory import peak_held
from workloads.passes import Pass, PassInput, Route, pass_input
from workloads.pipeline import SCHEDULES, stage_order
from workloads.spec import ParallelismSpec

V_SHAPED = ("zb_v", "dualpipe_v")
SHAPES = [(1, 3, 1), (2, 2, 1), (4, 8, 1), (4, 2, 1), (2, 4, 3), (4, 8, 2), (4, 4, 7), (16, 64, 7)]


def orders(name: str, stages: int, microbatches: int, chunks: int) -> list[tuple[Pass, ...]]:
    return [SCHEDULES[name](s, stages, microbatches, chunks) for s in range(stages)]


def runs(name: str, stages: int, microbatches: int, chunks: int) -> bool:
    """Whether a schedule takes this shape."""
    if name in V_SHAPED:
        return chunks == 2 and (name == "zb_v" or microbatches >= 2 * stages)
    return chunks == 1 or (name == "interleaved_1f1b" and microbatches % stages == 0)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches", "chunks"), SHAPES)
def test_every_pass_once_and_in_its_place(
    name: str, stages: int, microbatches: int, chunks: int
) -> None:
    """Forward, then backward, or its input's part and later its weights'."""
    if not runs(name, stages, microbatches, chunks):
        pytest.skip("not a shape of this schedule")
    for order in orders(name, stages, microbatches, chunks):
        place = {step: i for i, step in enumerate(order)}
        assert len(place) == len(order)
        finished = [step for step in order if step.completes_gradients]
        assert len({(s.microbatch, s.chunk) for s in finished}) == len(finished)
        assert len(finished) == microbatches * chunks
        for step in finished:
            forward = place[step._replace(direction="forward")]
            if step.direction == "backward":
                assert forward < place[step]
            else:
                assert forward < place[step._replace(direction="backward_input")] < place[step]


@given(
    name=st.sampled_from(sorted(SCHEDULES)), stages=st.integers(1, 6), groups=st.integers(1, 4),
    chunks=st.integers(1, 4), extra=st.integers(0, 5),
)  # fmt: skip
def test_no_order_waits_for_itself(
    name: str, stages: int, groups: int, chunks: int, extra: int
) -> None:
    """Running every stage as far as its inputs allow gets every stage to its end."""
    chunks = {"interleaved_1f1b": chunks, "zb_v": 2, "dualpipe_v": 2}.get(name, 1)
    microbatches = groups * stages + (extra if name != "interleaved_1f1b" else 0)
    if not runs(name, stages, microbatches, chunks):
        return
    held = orders(name, stages, microbatches, chunks)
    assert not any(left_over(held, Route(stages, chunks, name in V_SHAPED)))


def left_over(held: list[tuple[Pass, ...]], route: Route) -> list[list[Pass]]:
    """What cannot run when every stage goes as far as its inputs allow."""
    todo = [list(order) for order in held]
    done: set[tuple[int, Pass]] = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(todo):
            while order:
                source = pass_input(order[0], stage, route)
                if source is not None and (source.stage, source.source) not in done:
                    break
                done.add((stage, order.pop(0).output))
                moved = True
    return todo


def test_1f1b_by_hand() -> None:
    """Stage 1 of 3 with 4 microbatches: one warm-up forward, then F and B in turn."""
    order = SCHEDULES["1f1b"](1, 3, 4, 1)
    assert "".join(f"{s.direction[0]}{s.microbatch}" for s in order) == "f0f1b0f2b1f3b2b3"


def test_interleaved_by_hand() -> None:
    """Last of 2 stages, 2 microbatches, 2 chunks: warm-up of (v - 1) p = 2 forwards."""
    order = SCHEDULES["interleaved_1f1b"](1, 2, 2, 2)
    text = " ".join(f"{s.direction[0]}{s.microbatch}.{s.chunk}" for s in order)
    assert text == "f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 b0.0 b1.0"


def test_inputs_at_the_ends_of_the_model() -> None:
    route = Route(4, 2)
    assert pass_input(Pass("forward", 0, 0), 0, route) is None
    assert pass_input(Pass("forward", 0, 1), 0, route) == PassInput(3, Pass("forward", 0, 0))
    assert pass_input(Pass("backward", 0, 1), 3, route) is None
    assert pass_input(Pass("backward", 0, 0), 3, route) == PassInput(0, Pass("backward", 0, 1))


def test_inputs_in_a_v() -> None:
    """The last stage turns; the second chunk comes back to the first stage, whose loss it is."""
    route = Route(4, 2, v_shaped=True)
    assert route.places[3:5] == ((3, 0), (3, 1))
    assert pass_input(Pass("forward", 0, 1), 3, route) == PassInput(3, Pass("forward", 0, 0))
    assert pass_input(Pass("forward", 0, 1), 2, route) == PassInput(3, Pass("forward", 0, 1))
    assert pass_input(Pass("backward_input", 0, 1), 0, route) is None
    assert pass_input(Pass("backward_input", 5, 0), 1, route) == PassInput(
        2, Pass("backward", 5, 0)
    )
    assert pass_input(Pass("backward_weight", 5, 0), 1, route) is None


def peak(name: str, stage: int, stages: int, microbatches: int, chunks: int = 1) -> float:
    """Microbatches whose activations are held at once, in chunks; a waiting weight gradient counts
    as a whole one, as the papers count."""
    order = SCHEDULES[name](stage, stages, microbatches, chunks)
    return peak_held(order, [1.0] * chunks, [1.0] * chunks)


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (4, 2), (1, 5), (8, 32)])
def test_peaks_in_flight(stages: int, microbatches: int) -> None:
    """gpipe holds all m; 1F1B holds min(p - s, m) (Narayanan 2021, section 2.2)."""
    for stage in range(stages):
        assert peak("gpipe", stage, stages, microbatches) == microbatches
        assert peak("1f1b", stage, stages, microbatches) == min(stages - stage, microbatches)


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(4, 8, 2), (16, 64, 7)])
def test_interleaving_holds_more(stages: int, microbatches: int, chunks: int) -> None:
    """Stage 0 holds p v + p - 1 chunk-microbatches: 1 + (p - 1)/(p v) of 1F1B's (Korthikanti 2022,
    section 4.2.3)."""
    held = peak("interleaved_1f1b", 0, stages, microbatches, chunks)
    assert held == stages * chunks + stages - 1


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 4), (4, 8), (8, 16), (8, 40)])
def test_published_peaks_of_zero_bubble(stages: int, microbatches: int) -> None:
    """On every stage p microbatches for ZB-H1, 2 p - 1 for ZB-H2 (Qi 2023, table 2), p for ZB-V
    (section 6), 2 p chunks; 2 p + 1 chunks for DualPipeV (its README: PP + 1)."""
    for stage in range(stages):
        assert peak("zb_h1", stage, stages, microbatches) == stages
        assert peak("zb_h2", stage, stages, microbatches) == 2 * stages - 1
        assert peak("zb_v", stage, stages, microbatches, 2) == 2 * stages
        assert peak("dualpipe_v", stage, stages, microbatches, 2) == 2 * stages + 1


def test_zb_h1_by_hand() -> None:
    """Stage 1 of 3 with 4 microbatches: one weight gradient waits behind."""
    order = SCHEDULES["zb_h1"](1, 3, 4, 1)
    names = {"forward": "f", "backward_input": "b", "backward_weight": "w"}
    text = " ".join(f"{names[s.direction]}{s.microbatch}" for s in order)
    assert text == "f0 f1 b0 f2 b1 w0 f3 b2 w1 b3 w2 w3"


def test_interleaving_in_larger_groups_by_hand() -> None:
    """Last of 2 stages, 5 microbatches in groups of 3 and 2, 2 chunks: warm-up of 3 forwards."""
    parallelism = ParallelismSpec(
        pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2,
        microbatch_group_size_per_vp_stage=3,
    )  # fmt: skip
    order = stage_order(parallelism, 1, 5)
    forwards = [step for step in order if step.direction == "forward"]
    text = " ".join(f"f{step.microbatch}.{step.chunk}" for step in forwards)
    assert text == "f0.0 f1.0 f2.0 f0.1 f1.1 f2.1 f3.0 f4.0 f3.1 f4.1"
    assert [s.direction[0] for s in order[:5]] == ["f", "f", "f", "f", "b"]


@given(stages=st.integers(2, 5), chunks=st.integers(2, 4), extra=st.integers(0, 4), data=st.data())
def test_no_group_size_that_megatron_allows_waits_for_itself(
    stages: int, chunks: int, extra: int, data: st.DataObject
) -> None:
    size = stages + extra
    microbatches = size * data.draw(st.integers(1, 3)) + data.draw(
        st.sampled_from([0, *range(stages, size)])
    )
    parallelism = ParallelismSpec(
        pipeline_model_parallel_size=stages, virtual_pipeline_model_parallel_size=chunks,
        microbatch_group_size_per_vp_stage=size,
    )  # fmt: skip
    held = [stage_order(parallelism, s, microbatches) for s in range(stages)]
    assert all(len(set(order)) == 2 * microbatches * chunks for order in held)
    assert not any(left_over(held, Route(stages, chunks)))
