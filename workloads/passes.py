"""Passes of microbatches through model chunks, and the route that they take over the stages."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from workloads.spec import ParallelismSpec

Direction: TypeAlias = Literal["forward", "backward", "backward_input", "backward_weight"]
"""`backward` is both parts in one; `backward_input` the gradient of the input, which the stage
before waits for; `backward_weight` the gradient of the weights, which nobody waits for before the
optimizer (Qi 2023, arXiv 2401.10241, section 2)."""


class Pass(NamedTuple):
    """One microbatch through one model chunk of a stage, one way."""

    direction: Direction
    microbatch: int
    chunk: int = 0

    @property
    def output(self) -> "Pass":
        """What the next stage receives, by the name that does not tell whether the weights' part
        was done too."""
        return self._replace(direction="backward") if self.direction == "backward_input" else self

    @property
    def completes_gradients(self) -> bool:
        """Whether it leaves the gradients of its weights behind."""
        return self.direction in ("backward", "backward_weight")


Order: TypeAlias = tuple[Pass, ...]

Place: TypeAlias = tuple[int, int]
"""(stage, chunk)."""


@dataclass(frozen=True)
class Route:
    """The model chunks in the order in which a microbatch's forward passes them.

    Stage by stage, chunk by chunk; `v_shaped`: odd chunks go back from the last stage to the first.
    """

    num_stages: int
    num_chunks: int = 1
    v_shaped: bool = False

    @classmethod
    def of(cls, parallelism: ParallelismSpec) -> "Route":
        """That of a layout's schedule."""
        return cls(
            parallelism.pipeline_model_parallel_size,
            parallelism.virtual_pipeline_model_parallel_size,
            parallelism.v_shaped,
        )

    @cached_property
    def places(self) -> tuple[Place, ...]:
        return tuple(
            (self.num_stages - 1 - i if self.goes_back(chunk) else i, chunk)
            for chunk in range(self.num_chunks)
            for i in range(self.num_stages)
        )

    @cached_property
    def _index(self) -> dict[Place, int]:
        return {place: i for i, place in enumerate(self.places)}

    def goes_back(self, chunk: int) -> bool:
        """Whether forward passes of this chunk go from later stages to earlier ones."""
        return self.v_shaped and chunk % 2 == 1

    def neighbour(self, place: Place, forward: bool) -> Place | None:
        """Where the output of a forward (or a backward) goes; None at the ends of the model."""
        i = self._index[place] + (1 if forward else -1)
        return self.places[i] if 0 <= i < len(self.places) else None


class PassInput(NamedTuple):
    """Where a pass's input comes from: the `output` of a pass of this or another stage."""

    stage: int
    source: Pass


def pass_input(step: Pass, stage: int, route: Route) -> PassInput | None:
    """The pass whose output this one takes in, or None at the ends of the model.

    A weight gradient needs its own stage's input gradient only, and the backward of the very last
    chunk its own forward; the order puts them before it.
    """
    if step.direction == "backward_weight":
        return None
    source = route.neighbour((stage, step.chunk), forward=step.direction != "forward")
    return None if source is None else PassInput(source[0], step.output._replace(chunk=source[1]))
