"""Orders of passes: complete, feasible, and with the in-flight peaks that theory gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.pipeline import SCHEDULES, Pass, PassInput, pass_input, peak_in_flight

SHAPES = [(1, 3, 1), (2, 2, 1), (4, 8, 1), (4, 2, 1), (2, 4, 3), (4, 8, 2), (4, 4, 7), (16, 64, 7)]


def orders(name: str, stages: int, microbatches: int, chunks: int) -> list[tuple[Pass, ...]]:
    return [SCHEDULES[name](s, stages, microbatches, chunks) for s in range(stages)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches", "chunks"), SHAPES)
def test_every_pass_once_and_forward_before_backward(
    name: str, stages: int, microbatches: int, chunks: int
) -> None:
    if chunks > 1 and name != "interleaved_1f1b":
        pytest.skip("one chunk only")
    for order in orders(name, stages, microbatches, chunks):
        assert len(order) == len(set(order)) == 2 * microbatches * chunks
        for step in order:
            if step.direction == "backward":
                forward = step._replace(direction="forward")
                assert order.index(forward) < order.index(step)


@given(stages=st.integers(1, 6), groups=st.integers(1, 4), chunks=st.integers(1, 4), data=st.data())
def test_no_order_waits_for_itself(
    stages: int, groups: int, chunks: int, data: st.DataObject
) -> None:
    """Running every stage as far as its inputs allow gets every stage to its end."""
    name = data.draw(st.sampled_from(sorted(SCHEDULES))) if chunks == 1 else "interleaved_1f1b"
    todo = [list(order) for order in orders(name, stages, groups * stages, chunks)]
    done: set[tuple[int, Pass]] = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(todo):
            while order:
                source = pass_input(order[0], stage, stages, chunks)
                if source is not None and (source.stage, source.source) not in done:
                    break
                done.add((stage, order.pop(0)))
                moved = True
    assert not any(todo)


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
    assert pass_input(Pass("forward", 0, 0), 0, 4, 2) is None
    assert pass_input(Pass("forward", 0, 1), 0, 4, 2) == PassInput(3, Pass("forward", 0, 0))
    assert pass_input(Pass("backward", 0, 1), 3, 4, 2) is None
    assert pass_input(Pass("backward", 0, 0), 3, 4, 2) == PassInput(0, Pass("backward", 0, 1))


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (4, 2), (1, 5), (8, 32)])
def test_peaks_in_flight(stages: int, microbatches: int) -> None:
    """gpipe holds all m; 1F1B holds min(p - s, m) (Narayanan 2021, section 2.2)."""
    for stage in range(stages):
        held = peak_in_flight(SCHEDULES["gpipe"](stage, stages, microbatches, 1))
        assert held == {0: microbatches}
        held = peak_in_flight(SCHEDULES["1f1b"](stage, stages, microbatches, 1))
        assert held == {0: min(stages - stage, microbatches)}


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(4, 8, 2), (16, 64, 7)])
def test_interleaving_holds_more(stages: int, microbatches: int, chunks: int) -> None:
    """Stage 0 holds p v + p - 1 chunk-microbatches: 1 + (p - 1)/(p v) of 1F1B's (Korthikanti 2022,
    section 4.2.3)."""
    held = peak_in_flight(SCHEDULES["interleaved_1f1b"](0, stages, microbatches, chunks))
    assert sum(held.values()) == stages * chunks + stages - 1
