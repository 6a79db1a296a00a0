"""Low precision: what is quantized, what travels in fewer bits, what memory holds, by hand.

T = 64 tokens, h = 64, 8 heads and 4 query groups of 8 (qkv 128 wide), MLP 176 wide, gated (352).
"""

from typing import Any

import pytest
from small_models import layout, llama
from small_models import training as train

from workloads.data_parallel import parameter_bytes_per_parameter
from workloads.graph import build_work
from workloads.memory import layer_activation_bytes, stage_memory
from workloads.operations import Collective, Gemm, LayerWork, MemoryBound, Operation, Overlapped
from workloads.quantization import linear_parameters
from workloads.spec import OptimizerSpec, ParallelismSpec, TrainingSpec
from workloads.transformer import transformer_layer

ALONE = layout()
PAIR = layout(2, sequence_parallel=True)


def fp8(recipe: str = "tensorwise", **changes: Any) -> TrainingSpec:
    return train(precision={"recipe": recipe, **changes})


def layer(training: TrainingSpec, parallelism: ParallelismSpec = ALONE) -> LayerWork:
    return transformer_layer(llama(), training, parallelism, recomputed=False)


def flat(operations: tuple[Operation, ...]) -> list[Operation]:
    inner = (op.compute if isinstance(op, Overlapped) else (op,) for op in operations)
    return [op for ops in inner for op in ops]


def quantized(operations: tuple[Operation, ...]) -> dict[str, float]:
    """Name -> elements."""
    return {
        op.name.removesuffix(" quantized"): op.num_bytes / 4
        for op in flat(operations)
        if isinstance(op, MemoryBound) and op.name.endswith("quantized")
    }


def types(operations: tuple[Operation, ...]) -> set[str]:
    return {op.dtype for op in flat(operations) if isinstance(op, Gemm)}


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [
        ("bf16", "bf16"), ("fp16", "fp16"), ("fp8", "fp8"), ("nvfp4", "nvfp4"),
        ({"recipe": "tensorwise"}, "fp8"), ({"recipe": "blockwise"}, "fp8_blockwise"),
        ({"recipe": "mxfp8"}, "mxfp8"),
    ],
)  # fmt: skip
def test_products_of_a_layer_and_of_the_head(precision: Any, dtype: str) -> None:
    training = train(precision=precision)
    work = layer(training)
    assert types(work.forward) == types(work.backward) == {dtype}
    head = build_work(llama(), training, ALONE, OptimizerSpec(), 1).stages[0].chunks[0][-1]
    assert types(head.forward) == {"fp16" if precision == "fp16" else "bf16"}


def test_operands_quantized_in_a_layer() -> None:
    """Inputs of four products, and the gradients of their outputs."""
    work = layer(fp8())
    t = 64
    assert quantized(work.forward) == {
        "qkv input": t * 64, "proj input": t * 64, "fc1 input": t * 64, "fc2 input": t * 176,
    }  # fmt: skip
    assert quantized(work.backward) == {
        "fc2 output gradient": t * 64, "fc1 output gradient": t * 352,
        "proj output gradient": t * 64, "qkv output gradient": t * 128,
    }  # fmt: skip


def test_a_delayed_scale_lets_the_norm_quantize() -> None:
    assert set(quantized(layer(fp8("delayed")).forward)) == {"proj input", "fc2 input"}


def test_sequence_parallel_ranks_quantize_their_tokens_and_gather_bytes() -> None:
    """The norm's output before its gather: 32 tokens; one byte an element is gathered, two are
    scattered."""
    work = layer(fp8(), PAIR)
    assert quantized(work.forward)["qkv input"] == 32 * 64
    assert quantized(work.forward)["fc2 input"] == 64 * 176 / 2
    gathers = [op for op in work.forward if isinstance(op, Collective)]
    assert {(op.kind, op.num_bytes) for op in gathers} == {
        ("all_gather", 64 * 64), ("reduce_scatter", 2 * 64 * 64),
    }  # fmt: skip


def test_weights_are_quantized_once_per_step() -> None:
    """h (qkv + core + fc1 + fc2 widths) per layer, by the block kernel of weights."""
    work = build_work(llama(), fp8("blockwise"), ALONE, OptimizerSpec(), 1)
    (op,) = (x for x in work.stages[0].finish if x.name == "weights quantized")
    assert isinstance(op, MemoryBound)
    assert op.num_bytes == 4 * 8 * 64 * (128 + 64 + 352 + 176)
    assert op.kernel == "quantize_blockwise_weight"
    plain = build_work(llama(), train(), ALONE, OptimizerSpec(), 1)
    assert not [x for x in plain.stages[0].finish if "quantized" in x.name]


def test_delayed_scales_are_agreed_on_in_the_tensor_group() -> None:
    """Per pass: largest of input and weight of 4 products in 8 layers, and of the gradients."""
    held = build_work(llama(), fp8("delayed"), PAIR, OptimizerSpec(), 1).stages[0].chunks[0]
    (scales,) = (x for x in held if x.name == "scales")
    forward, backward = scales.forward[0], scales.backward[0]
    assert isinstance(forward, Collective)
    assert isinstance(backward, Collective)
    assert (forward.axis, forward.num_bytes, backward.num_bytes) == ("tp", 2 * 4 * 4 * 8, 4 * 4 * 8)
    tensorwise = build_work(llama(), fp8(), PAIR, OptimizerSpec(), 1).stages[0].chunks[0]
    assert "scales" not in [x.name for x in tensorwise]


@pytest.mark.parametrize(
    ("low", "extra"),
    [
        ({"recipe": "tensorwise"}, 2.0), ({"recipe": "tensorwise", "param_gather": True}, 0.0),
        ({"recipe": "mxfp8"}, 2 * 8.25 / 8),
    ],
)  # fmt: skip
def test_weights_in_memory(low: dict[str, Any], extra: float) -> None:
    """bf16, and a byte each way; without the bf16 one where weights are kept in 8 bits."""
    order = build_work(llama(), train(), ALONE, OptimizerSpec(), 1).stages[0].order
    plain, quantized_ = (
        stage_memory(llama(), t, ALONE, OptimizerSpec(), 1, 0, order).weights
        for t in (train(), train(precision=low))
    )
    layer = transformer_layer(llama(), train(), ALONE, recomputed=False)
    linear = 8 * linear_parameters(layer, train())
    assert quantized_ - plain == pytest.approx(extra * linear)


def test_activations_in_memory() -> None:
    """Both norms' outputs and the activation in one byte, not two; the context in one more."""
    plain, low = (
        layer_activation_bytes(llama(), t, ALONE, recomputed=False) for t in (train(), fp8())
    )
    assert low - plain == 64 * (-2 * 64 - 176 + 64)


def test_weights_gathered_in_eight_bits() -> None:
    assert parameter_bytes_per_parameter(fp8(), 0.9) == 2.0
    assert parameter_bytes_per_parameter(fp8(param_gather=True), 0.75) == pytest.approx(1.25)
