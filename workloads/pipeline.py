"""The order in which a pipeline stage runs its passes.

A schedule is a function from (stage, num_stages, num_microbatches, num_chunks) to the order of
that stage's forward and backward passes; `SCHEDULES` names them as the run file does. Orders only:
when a pass can start is decided by what it needs (`pass_input`), and the bubble by the event loop.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias

Direction: TypeAlias = Literal["forward", "backward"]


class Pass(NamedTuple):
    """One microbatch through one model chunk of a stage, one way."""

    direction: Direction
    microbatch: int
    chunk: int = 0


Order: TypeAlias = tuple[Pass, ...]
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
    stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1
) -> Order:
    """1F1B over `num_chunks` model chunks per stage, microbatches in groups of `num_stages`
    (Narayanan 2021, section 2.2). Needs num_microbatches divisible by num_stages."""
    total = num_microbatches * num_chunks
    warmup = min(2 * (num_stages - stage - 1) + (num_chunks - 1) * num_stages, total)
    forwards = [Pass("forward", *_virtual(i, num_stages, num_chunks)) for i in range(total)]
    backwards = [
        Pass("backward", microbatch, num_chunks - 1 - chunk)
        for microbatch, chunk in (_virtual(i, num_stages, num_chunks) for i in range(total))
    ]
    return _one_by_one(forwards, backwards, warmup)


def _virtual(index: int, num_stages: int, num_chunks: int) -> tuple[int, int]:
    """(microbatch, chunk) of the index-th forward of a stage."""
    group, within = divmod(index, num_stages * num_chunks)
    chunk, offset = divmod(within, num_stages)
    return group * num_stages + offset, chunk


def _one_by_one(forwards: list[Pass], backwards: list[Pass], warmup: int) -> Order:
    order = forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        order += [forward, backward]
    return tuple(order + backwards[len(forwards) - warmup :])


SCHEDULES: dict[str, Schedule] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved_1f1b,
}


class PassInput(NamedTuple):
    """Where a pass's input comes from: the same pass of another stage."""

    stage: int
    source: Pass


def pass_input(step: Pass, stage: int, num_stages: int, num_chunks: int) -> PassInput | None:
    """The pass whose output this one takes in, or None at the ends of the model.

    Chunk c of the last stage feeds chunk c + 1 of the first one. The backward of the very last
    chunk starts from its own forward, which the order puts before it.
    """
    last = num_stages - 1
    if step.direction == "forward":
        if stage > 0:
            return PassInput(stage - 1, step)
        return PassInput(last, step._replace(chunk=step.chunk - 1)) if step.chunk > 0 else None
    if stage < last:
        return PassInput(stage + 1, step)
    final = step.chunk == num_chunks - 1
    return None if final else PassInput(0, step._replace(chunk=step.chunk + 1))


def peak_in_flight(order: Iterable[Pass]) -> dict[int, int]:
    """Chunk -> microbatches whose activations are held, when most are held at once.

    A forward's activations live until its backward ends.
    """
    live: Counter[int] = Counter()
    peak: dict[int, int] = {}
    for step in order:
        if step.direction == "forward":
            live[step.chunk] += 1
            if live.total() > sum(peak.values()):
                peak = dict(live)
        else:
            live[step.chunk] -= 1
    return peak
