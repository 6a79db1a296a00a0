"""Linear layers in 8 or 4 bits: what is quantized when, and what travels and stays in fewer bits.

Transformer Engine quantizes the input of each linear layer for its forward and, the other way
round, for its weight gradient in one kernel; likewise the gradient of its output. Weights are
quantized once per step (is_first_microbatch). A delayed scale is known beforehand, so the norm
before a layer writes 8 bits itself. (pytorch/module/base.py, layernorm_linear.py, linear.py.)
"""

from typing import TYPE_CHECKING

from workloads.operations import Collective, Gemm, LayerWork, MemoryBound, Overlapped
from workloads.spec import TrainingSpec

if TYPE_CHECKING:
    from workloads.layers import Shapes

TRAFFIC_BYTES = 4.0
"""Per element quantized: two bytes read, one written each way."""
SCALE_BYTES = 4.0
"""Of a scale or a largest magnitude: one fp32."""
LINEARS_PER_LAYER = 4

_BITS = {"delayed": 8.0, "tensorwise": 8.0, "blockwise": 8.25, "mxfp8": 8.25, "nvfp4": 4.5}
"""Per element, block scales included: one fp32 per 128, one byte per 32 or per 16."""
_KERNELS = {
    "delayed": "quantize_delayed", "tensorwise": "quantize_tensorwise",
    "blockwise": "quantize_blockwise", "mxfp8": "quantize_delayed",
    "nvfp4": "quantize_delayed",
}  # fmt: skip
"""Blackwell's own formats were not measured: their kernels scale as they read, in one pass, as
delayed scaling does."""


def quantized(x: "Shapes", name: str, num_elements: float) -> tuple[MemoryBound, ...]:
    """The kernel that quantizes an operand; none where linear layers are not quantized."""
    low = x.training.low_precision
    if low is None:
        return ()
    kernel = _KERNELS[low.recipe]
    return (MemoryBound(f"{name} quantized", kernel, TRAFFIC_BYTES * num_elements),)


def quantized_norm(x: "Shapes", name: str, num_elements: float) -> tuple[MemoryBound, ...]:
    """The same of a norm's output, which a delayed scale lets the norm write itself."""
    low = x.training.low_precision
    if low is not None and low.recipe == "delayed":
        return ()
    return quantized(x, name, num_elements)


def operand_bytes(training: TrainingSpec) -> float:
    """Of an element of a linear layer's operand, as it is gathered and kept for the backward."""
    low = training.low_precision
    return 2.0 if low is None else _BITS[low.recipe] / 8.0


def linear_parameters(layer: LayerWork, training: TrainingSpec) -> int:
    """Weights of a layer's products, experts' included, whose operands are quantized."""
    steps = (
        step
        for op in layer.forward
        for step in (op.compute if isinstance(op, Overlapped) else (op,))
    )
    return (
        sum(
            step.n * step.k
            for step in steps
            if isinstance(step, Gemm) and step.parameters and step.dtype == training.linear_dtype
        )
        + layer.expert_parameters
    )


def quantize_weights(training: TrainingSpec, num_weights: int) -> tuple[MemoryBound, ...]:
    """Once per step, all weights of a rank's linear layers."""
    low = training.low_precision
    if low is None or num_weights == 0:
        return ()
    kernel = _KERNELS[low.recipe] + ("_weight" if low.recipe == "blockwise" else "")
    num_bytes = TRAFFIC_BYTES * num_weights
    return (MemoryBound("weights quantized", kernel, num_bytes),)


def weight_bytes(training: TrainingSpec) -> float:
    """Of a linear layer's weight in memory: bf16, and both orientations in fewer bits; without the
    bf16 one where weights are kept and gathered in 8 bits."""
    low = training.low_precision
    if low is None:
        return 2.0
    return (0.0 if low.param_gather else 2.0) + 2.0 * _BITS[low.recipe] / 8.0


def scale_updates(x: "Shapes", num_layers: int) -> tuple[LayerWork, ...]:
    """Delayed scaling: at the end of a pass the group agrees on the largest magnitudes (input,
    weight, gradient of each linear layer) and a kernel turns their history into scales."""
    low = x.training.low_precision
    if low is None or low.recipe != "delayed" or num_layers == 0:
        return ()
    largest = SCALE_BYTES * LINEARS_PER_LAYER * num_layers

    def update(operands: int) -> tuple[Collective | MemoryBound, ...]:
        history = MemoryBound(
            "scales from history", "elementwise", operands * largest * low.amax_history_len
        )
        if x.t == 1:
            return (history,)
        return Collective("largest magnitudes", "all_reduce", "tp", operands * largest), history

    return (LayerWork("scales", update(2), update(1)),)
