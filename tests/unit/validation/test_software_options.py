"""What older software does differently in a layer, counted by hand."""

from typing import Any

from workloads.operations import Collective, Gemm, MemoryBound, Overlapped
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.transformer import transformer_layer

S, B, H, T = 1024, 2, 2048, 4
MODEL = ModelSpec(num_layers=4, hidden_size=H, num_attention_heads=16, vocab_size=51200)
GATED = MODEL.model_copy(update={"gated_linear_unit": True})


def training(**more: Any) -> TrainingSpec:
    return TrainingSpec(
        seq_length=S, micro_batch_size=B, global_batch_size=8, precision="fp16",
        attention_backend="unfused", **more,
    )  # fmt: skip


def backward(**more: Any) -> tuple[Any, ...]:
    tensor = ParallelismSpec(
        tensor_model_parallel_size=T,
        async_tensor_model_parallel_allreduce=more.pop("asynchronous", True),
    )
    return transformer_layer(MODEL, training(**more), tensor, False).backward


def test_fused_accumulation_is_part_of_the_product() -> None:
    operations = backward(asynchronous=False)
    products = [op for op in operations if isinstance(op, Gemm) and op.kind == "wgrad"]
    assert len(products) == 4
    assert all(op.accumulate_fp32 for op in products)
    assert not [op for op in operations if op.name.endswith("wgrad add")]


def test_unfused_accumulation_reads_and_writes_each_weight() -> None:
    """2 bytes of the product read; the main gradient, in 2 or 4 bytes, read and written."""
    for in_fp32, per_weight in ((False, 2 + 2 * 2), (True, 2 + 2 * 4)):
        operations = backward(
            asynchronous=False, gradient_accumulation_fusion=False,
            accumulate_allreduce_grads_in_fp32=in_fp32,
        )  # fmt: skip
        added = [op for op in operations if op.name.endswith("wgrad add")]
        assert len(added) == 4
        weights = (3 + 1 + 4 + 4) * H * H / T
        assert sum(op.num_bytes for op in added) == per_weight * weights
        products = [op for op in operations if isinstance(op, Gemm) and op.kind == "wgrad"]
        assert not any(op.accumulate_fp32 for op in products)


def test_parameters_are_counted_once_either_way() -> None:
    fused = sum(op.parameters for op in backward())
    assert sum(op.parameters for op in backward(gradient_accumulation_fusion=False)) == fused


def test_synchronous_all_reduce_comes_after_both_products() -> None:
    """Before 2022; the two column-parallel products of a layer (qkv, fc1) have one each."""
    beside = [op for op in backward() if isinstance(op, Overlapped)]
    assert len(beside) == 2
    operations = backward(asynchronous=False)
    alone = [i for i, op in enumerate(operations) if isinstance(op, Collective)]
    assert len(alone) == 2
    for i in alone:
        assert operations[i].kind == "all_reduce"
        assert operations[i].num_bytes == 2 * S * B * H
        assert operations[i - 1].kind == "wgrad"


def test_unfused_gated_activation_moves_more() -> None:
    """Forward SiLU reads and writes f, the product reads 2 f and writes f; backward 5 + 3 + 4."""
    f = S * B * GATED.ffn_size * 2
    for fused, forward_bytes, backward_bytes in ((True, 3 * f, 5 * f), (False, 5 * f, 12 * f)):
        layer = transformer_layer(
            GATED, training(bias_activation_fusion=fused), ParallelismSpec(), False
        )
        for operations, expected in (
            (layer.forward, forward_bytes),
            (layer.backward, backward_bytes),
        ):
            moved = [
                op.num_bytes
                for op in operations
                if isinstance(op, MemoryBound) and op.name.startswith("activation")
            ]
            assert sum(moved) == expected
