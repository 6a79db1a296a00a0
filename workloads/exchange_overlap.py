"""Exchanges of tokens beside another microbatch's compute (Megatron-LM, pipeline_parallel/
combined_1f1b.py: the forward of one microbatch and the backward of another go layer by layer).

A forward's exchanges hide behind the backward's compute and the other way round. Both directions
exchange as many bytes, so each is priced beside compute of its own direction, which gives the same
sum: dispatch beside the attention part, combine beside the experts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from workloads.operations import (
    Collective,
    Compute,
    LayerWork,
    Operation,
    Overlapped,
    Ring,
)
from workloads.passes import Pass


def with_hidden_exchanges(layer: LayerWork) -> LayerWork:
    """The layer as passes run it that go together with another microbatch's."""
    if not layer.expert_parameters:
        return layer
    backward = tuple(reversed(_beside(tuple(reversed(layer.backward)))))
    return replace(layer, forward=_beside(layer.forward), backward=backward)


def alone(order: Sequence[Pass]) -> frozenset[Pass]:
    """Passes without a partner: forwards before the first backward, backwards after the last
    forward."""
    forwards = [i for i, step in enumerate(order) if step.direction == "forward"]
    backwards = [i for i, step in enumerate(order) if step.direction != "forward"]
    first, last = min(backwards), max(forwards)
    early = (order[i] for i in forwards if i < first)
    late = (order[i] for i in backwards if i > last)
    return frozenset((*early, *late))


def _beside(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Each exchange beside the compute in front of it, back to the exchange before."""
    found: list[Operation] = []
    waiting: list[Compute] = []
    for op in operations:
        if isinstance(op, Collective) and op.axis == "ep" and waiting:
            found.append(Overlapped(op.name, tuple(waiting), op, "concurrent"))
            waiting = []
        elif isinstance(op, Collective | Overlapped | Ring):
            found.append(op)
        else:
            waiting.append(op)
    return (*found, *waiting)
