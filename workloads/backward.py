"""The backward of a layer in two parts: the gradient of its input, and that of its weights.

The weights' part is the wgrad products (with what adds them to the main gradients), and nothing
before the optimizer waits for it (Qi 2023, arXiv 2401.10241, section 2.1). Bias gradients, norms
and attention stay with the input's part, as autograd has them.
"""

from dataclasses import replace

from workloads.operations import (
    Collective,
    Compute,
    Gemm,
    GroupedGemm,
    LayerWork,
    MemoryBound,
    Operation,
    Overlapped,
    Ring,
)
from workloads.passes import Direction


def pass_operations(layer: LayerWork, direction: Direction) -> tuple[Operation, ...]:
    """What a pass executes of a layer, recomputation included."""
    if direction == "forward":
        return layer.forward
    if direction == "backward_weight":
        return weight_part(layer)
    rest = layer.backward if direction == "backward" else input_part(layer)
    return (*layer.recompute, *rest)


def input_part(layer: LayerWork) -> tuple[Operation, ...]:
    """Backward without the weights' part; it completes no gradient. A collective that ran beside a
    wgrad runs alone, and the gather of an input again, which only wgrad needs, goes with that."""
    parts: list[Operation] = []
    for op in layer.backward:
        if isinstance(op, Overlapped):
            compute = tuple(_completing(c, 0) for c in op.compute if not _is_weights(c))
            if not compute:
                parts.append(op.collective)
            elif _gather_for_weights(op) is not None:
                parts += compute
            else:
                parts.append(replace(op, compute=compute))
        elif isinstance(op, Collective | Ring):
            parts.append(op)
        elif not _is_weights(op):
            parts.append(_completing(op, 0))
    return tuple(parts)


def weight_part(layer: LayerWork) -> tuple[Operation, ...]:
    """The wgrad products; one whose input must be gathered again has that beside it (prefetched
    under the one before, in truth).

    What else completes gradients (norms, biases) did so in the input's part; it is counted with
    the last product, so that the parts of a layer sum to its parameters.
    """
    found: list[tuple[Compute, Collective | None]] = []
    gather: Collective | None = None
    for op in layer.backward:
        for step in op.compute if isinstance(op, Overlapped) else (op,):
            if not isinstance(step, Collective | Ring | Overlapped) and _is_weights(step):
                found.append((step, gather))
                gather = None
        gather = _gather_for_weights(op) or gather
    if found:
        last, beside = found[-1]
        missing = layer.parameters - sum(step.parameters for step, _ in found)
        found[-1] = (_completing(last, last.parameters + missing), beside)
    return tuple(
        step if beside is None else Overlapped(step.name, (step,), beside, "concurrent")
        for step, beside in found
    )


def _gather_for_weights(op: Operation) -> Collective | None:
    """An all-gather beside a dgrad, independent of it, brings the input of the wgrad behind."""
    if not isinstance(op, Overlapped) or any(map(_is_weights, op.compute)):
        return None
    brings = op.style == "concurrent" and op.collective.kind == "all_gather"
    return op.collective if brings else None


def _is_weights(op: Operation) -> bool:
    if isinstance(op, Gemm | GroupedGemm):
        return op.kind == "wgrad"
    return isinstance(op, MemoryBound) and op.weight_gradient


def _completing(op: Compute, parameters: int) -> Compute:
    """The same operation, completing the gradients of so many weights."""
    return replace(op, parameters=parameters) if isinstance(op, Gemm | MemoryBound) else op
