"""One transformer layer: collectives of each tensor-parallel mode, products, kernels, bytes."""

from typing import Any

import pytest
from small_models import MICRO_BATCH, SEQUENCE, collectives, gpt, kinds, layout, llama
from small_models import training as train

from workloads.attention import attention_core
from workloads.layers import Shapes
from workloads.operations import (
    MEMORY_BOUND_KERNELS,
    Attention,
    Collective,
    Compute,
    Gemm,
    LayerWork,
    MemoryBound,
    Operation,
    Overlapped,
)
from workloads.spec import ModelSpec, ParallelismSpec
from workloads.transformer import transformer_layer

STREAM = SEQUENCE * MICRO_BATCH * 64 * 2.0
"""Bytes of the residual stream: T h in two bytes."""
PLAIN, PARALLEL = layout(2), layout(2, sequence_parallel=True)
OVERLAP = layout(2, sequence_parallel=True, tp_comm_overlap=True)
REDUCE, GATHER, SCATTER = "all_reduce", "all_gather", "reduce_scatter"


def layer(
    parallelism: ParallelismSpec,
    model: ModelSpec | None = None,
    recomputed: bool = False,
    **changes: object,
) -> LayerWork:
    return transformer_layer(model or gpt(), train(**changes), parallelism, recomputed)


def names(operations: tuple[Operation, ...]) -> list[str]:
    return [op.name for op in operations]


def styles(operations: tuple[Operation, ...]) -> list[str]:
    return [op.style for op in operations if isinstance(op, Overlapped)]


def kernels(operations: tuple[Operation, ...]) -> list[Compute]:
    found: list[Compute] = []
    for op in operations:
        if not isinstance(op, Collective):
            found += op.compute if isinstance(op, Overlapped) else (op,)
    return found


def memory_bound(operations: tuple[Operation, ...], name: str) -> list[MemoryBound]:
    return [op for op in kernels(operations) if isinstance(op, MemoryBound) and op.name == name]


def of_kernel(operations: tuple[Operation, ...], kernel: str) -> list[MemoryBound]:
    return [op for op in kernels(operations) if isinstance(op, MemoryBound) and op.kernel == kernel]


# collectives (Korthikanti 2022, figures 4 and 5; Megatron-LM, tensor_parallel/layers.py)


def test_one_rank_communicates_nothing() -> None:
    work = layer(layout(), recomputed=True)
    assert collectives((*work.forward, *work.recompute, *work.backward)) == []


@pytest.mark.parametrize("model", [gpt(), llama()], ids=["gpt", "llama"])
def test_tensor_parallel_all_reduces_twice_each_way(model: ModelSpec) -> None:
    work = layer(PLAIN, model)
    assert kinds(work.forward) == kinds(work.backward) == [(REDUCE, STREAM)] * 2
    assert styles(work.forward) == []
    assert styles(work.backward) == ["concurrent"] * 2


@pytest.mark.parametrize("model", [gpt(), llama()], ids=["gpt", "llama"])
@pytest.mark.parametrize("parallelism", [PARALLEL, OVERLAP], ids=["blocking", "userbuffers"])
def test_sequence_parallel_gathers_and_scatters(
    model: ModelSpec, parallelism: ParallelismSpec
) -> None:
    """Backward gathers each block's output gradient, then its input again, then scatters."""
    work = layer(parallelism, model)
    assert kinds(work.forward) == [(GATHER, STREAM), (SCATTER, STREAM)] * 2
    assert kinds(work.backward) == [(GATHER, STREAM), (GATHER, STREAM), (SCATTER, STREAM)] * 2


def test_userbuffers_pipeline_all_but_the_bulk_exchanges() -> None:
    blocking, pipelined = layer(PARALLEL), layer(OVERLAP)
    assert styles(blocking.forward) == []
    assert styles(pipelined.forward) == ["pipelined"] * 4
    assert styles(blocking.backward) == ["concurrent"] * 4
    assert styles(pipelined.backward) == ["pipelined", "concurrent", "concurrent"] * 2


def test_before_2022_the_all_reduce_waited_for_both_products() -> None:
    """Megatron-LM v2: mpu/mappings.py's backward, after mpu/layers.py's autograd products."""
    blocking = PLAIN.model_copy(update={"async_tensor_model_parallel_allreduce": False})
    work = layer(blocking)
    assert styles(work.backward) == []
    assert kinds(work.backward) == [(REDUCE, STREAM)] * 2
    for name in ("qkv wgrad", "fc1 wgrad"):
        assert isinstance(work.backward[names(work.backward).index(name) + 1], Collective)
    assert layer(PARALLEL.model_copy(update={"async_tensor_model_parallel_allreduce": False})) == (
        layer(PARALLEL)
    )


def test_an_overlapped_collective_goes_with_the_right_product() -> None:
    """The input is gathered again beside dgrad; dgrad is then reduced beside wgrad."""
    for parallelism, expected in (
        (PLAIN, {"qkv wgrad": REDUCE, "fc1 wgrad": REDUCE}),
        (
            PARALLEL,
            {
                "qkv dgrad": GATHER, "qkv wgrad": SCATTER,
                "fc1 dgrad": GATHER, "fc1 wgrad": SCATTER,
            },
        ),
    ):  # fmt: skip
        beside = {
            op.name: op.collective.kind
            for op in layer(parallelism).backward
            if isinstance(op, Overlapped)
        }
        assert beside == expected
        assert names(layer(parallelism).backward).index("fc1 wgrad") > names(
            layer(parallelism).backward
        ).index("fc1 dgrad")


@pytest.mark.parametrize("parallelism", [PLAIN, PARALLEL, OVERLAP])
def test_full_recomputation_repeats_the_forward_with_its_collectives(
    parallelism: ParallelismSpec,
) -> None:
    work = layer(parallelism, recomputed=True, recompute_granularity="full")
    assert work.recompute == work.forward
    assert len(collectives(work.recompute)) == (2 if parallelism is PLAIN else 4)


@pytest.mark.parametrize("backend", ["flash", "unfused"])
def test_selective_recomputation_repeats_the_core_without_collectives(backend: str) -> None:
    work = layer(PARALLEL, recompute_granularity="selective", attention_backend=backend)
    x = Shapes(gpt(), train(attention_backend=backend), PARALLEL)
    assert work.recompute == attention_core(x)[0]
    assert collectives(work.recompute) == []
    assert layer(PARALLEL).recompute == ()


# products


def test_products_by_hand() -> None:
    """Llama on 2 ranks, T = 64, h = 64: 4 heads and 2 groups of 8, so qkv is 64 wide; MLP 88."""
    found = {
        op.name: (op.m, op.n, op.k, op.kind)
        for op in kernels((*layer(PLAIN, llama()).forward, *layer(PLAIN, llama()).backward))
        if isinstance(op, Gemm)
    }
    assert found == {
        "qkv": (64, 64, 64, "fwd"), "proj": (64, 64, 32, "fwd"),
        "fc1": (64, 176, 64, "fwd"), "fc2": (64, 64, 88, "fwd"),
        "qkv dgrad": (64, 64, 64, "dgrad"), "qkv wgrad": (64, 64, 64, "wgrad"),
        "proj dgrad": (64, 32, 64, "dgrad"), "proj wgrad": (64, 32, 64, "wgrad"),
        "fc1 dgrad": (64, 64, 176, "dgrad"), "fc1 wgrad": (176, 64, 64, "wgrad"),
        "fc2 dgrad": (64, 88, 64, "dgrad"), "fc2 wgrad": (64, 88, 64, "wgrad"),
    }  # fmt: skip


@pytest.mark.parametrize("fp32", [True, False])
def test_gradients_accumulate_in_the_precision_asked_for(fp32: bool) -> None:
    work = layer(PLAIN, accumulate_allreduce_grads_in_fp32=fp32, precision="fp16")
    products = [op for op in kernels(work.backward) if isinstance(op, Gemm)]
    assert {op.accumulate_fp32 for op in products if op.kind == "wgrad"} == {fp32}
    assert {op.accumulate_fp32 for op in products if op.kind == "dgrad"} == {False}
    assert {op.dtype for op in products} == {"fp16"}


@pytest.mark.parametrize(("fp32", "per_weight"), [(True, 2 + 4 + 4), (False, 2 + 2 + 2)])
@pytest.mark.parametrize("parallelism", [layout(), PLAIN, PARALLEL])
def test_unfused_accumulation_adds_each_product(
    parallelism: ParallelismSpec, fp32: bool, per_weight: int
) -> None:
    """Per weight the 2-byte product and the main gradient read, and the latter written; the
    gradient is complete, and its bucket may close, only then."""
    changes: dict[str, Any] = {
        "gradient_accumulation_fusion": False,
        "accumulate_allreduce_grads_in_fp32": fp32,
    }
    fused, unfused = layer(parallelism), layer(parallelism, **changes)
    products = [op for op in kernels(fused.backward) if isinstance(op, Gemm) and op.kind == "wgrad"]
    adds = [
        op for op in of_kernel(unfused.backward, "elementwise") if op.name.endswith("wgrad add")
    ]
    assert [op.num_bytes for op in adds] == [per_weight * op.m * op.n for op in products]
    assert [op.parameters for op in adds] == [op.parameters for op in products]
    for op in kernels(unfused.backward):
        if isinstance(op, Gemm):
            assert (op.parameters, op.accumulate_fp32) == (0, False)
    assert sum(op.parameters for op in unfused.backward) == unfused.parameters == fused.parameters


def test_flash_core_has_local_heads() -> None:
    for tensor, heads, groups in ((1, 8, 4), (2, 4, 2), (8, 1, 1)):
        attention = [
            op
            for op in kernels(layer(layout(tensor), llama()).forward)
            if isinstance(op, Attention)
        ]
        assert [(op.heads, op.kv_heads, op.batch, op.causal) for op in attention] == [
            (heads, groups, MICRO_BATCH, True)
        ]


def test_unfused_core_by_hand() -> None:
    """p = b a / t = 8 squares of 32 x 32 in two bytes. Softmax reads the lower half of the scores
    and writes all; its backward reads both halves, writes all; dropout reads, writes and masks."""
    x = Shapes(gpt(), train(attention_backend="unfused"), PLAIN)
    forward, backward = attention_core(x)
    square = 8 * 32 * 32
    bytes_of = {
        op.name: op.num_bytes for op in (*forward, *backward) if isinstance(op, MemoryBound)
    }
    assert bytes_of == {
        "softmax": (1 + 2) * square, "attention dropout": (2 + 2 + 1) * square,
        "softmax backward": (1 + 1 + 2) * square,
    }  # fmt: skip
    assert all(op.batch == 8 for op in (*forward, *backward) if isinstance(op, Gemm))
    no_dropout = Shapes(gpt(attention_dropout=0.0), train(attention_backend="unfused"), PLAIN)
    assert "attention dropout" not in names((*attention_core(no_dropout)[0],))


# memory-bound kernels


@pytest.mark.parametrize("model", [gpt(), llama(), gpt(activation_function="squared_relu")])
@pytest.mark.parametrize("backend", ["flash", "unfused"])
def test_kernels_are_known(model: ModelSpec, backend: str) -> None:
    work = layer(PARALLEL, model, attention_backend=backend)
    used = {
        op.kernel for op in kernels(work.forward + work.backward) if isinstance(op, MemoryBound)
    }
    assert used <= set(MEMORY_BOUND_KERNELS)


def test_hardware_prices_every_kernel_that_workloads_name() -> None:
    from hardware.memory_bound import NAMES

    assert set(MEMORY_BOUND_KERNELS) <= set(NAMES)


@pytest.mark.parametrize(("parallelism", "tokens"), [(PLAIN, 64), (PARALLEL, 32)])
def test_sequence_parallelism_splits_norms_and_dropout(
    parallelism: ParallelismSpec, tokens: int
) -> None:
    """n h in two bytes: a norm reads and writes it; add reads two, writes one, masks one byte."""
    work = layer(parallelism)
    assert [op.num_bytes for op in memory_bound(work.forward, "mlp norm")] == [2 * tokens * 128]
    assert [op.num_bytes for op in memory_bound(work.backward, "mlp norm")] == [3 * tokens * 128]
    assert [op.num_bytes for op in memory_bound(work.forward, "mlp add")] == [
        3 * tokens * 128 + tokens * 64
    ]
    assert [op.num_bytes for op in of_kernel(work.backward, "bias_dropout_add")] == [
        2 * tokens * 128 + tokens * 64
    ] * 2


def test_activation_by_hand() -> None:
    """T = 64 on 2 ranks. GPT: f = 128: 2 T f bytes twice, three times back. Llama: f = 88, reads
    2 f and writes f; back reads 2 f and f, writes 2 f."""
    for model, kernel, forward, backward in (
        (gpt(), "bias_gelu", 2 * 128, 3 * 128),
        (llama(), "swiglu", 3 * 88, 5 * 88),
    ):
        work = layer(PLAIN, model)
        (first,), (second,) = (
            memory_bound(work.forward, "activation"), memory_bound(work.backward, "activation"),
        )  # fmt: skip
        assert (first.kernel, first.num_bytes) == (f"{kernel}_fwd", 64 * forward * 2)
        assert (second.kernel, second.num_bytes) == (f"{kernel}_bwd", 64 * backward * 2)


def test_bias_gradients_by_hand() -> None:
    """Column sums, each gradient read once in two bytes: T = 64 tokens of local width where the
    bias is split, n = 32 of the whole width where it is not."""
    found = {op.name: op.num_bytes for op in of_kernel(layer(PARALLEL).backward, "bias_grad")}
    assert found == {
        "mlp bias": 32 * 64 * 2, "fc1 bias": 64 * 128 * 2,
        "attention bias": 32 * 64 * 2, "qkv bias": 64 * 96 * 2,
    }  # fmt: skip


def test_queries_keys_and_values_are_copied_apart() -> None:
    """Read and written: T = 64, 3 * 32 wide on 2 ranks."""
    for operations in (layer(PLAIN).forward, layer(PLAIN).backward):
        assert [op.num_bytes for op in memory_bound(operations, "qkv split")] == [2 * 64 * 96 * 2]


def test_what_only_some_models_have() -> None:
    plain, rotary = layer(PLAIN), layer(PLAIN, llama())
    assert "rotary" not in names(plain.forward)
    # 4 heads and 2 groups of 8 on this rank, T = 64: read and written in two bytes
    assert [op.num_bytes for op in memory_bound(rotary.forward, "rotary")] == [2 * 64 * 48 * 2]
    assert [op.num_bytes for op in memory_bound(rotary.backward, "rotary")] == [2 * 64 * 48 * 2]
    biases = {"mlp bias", "fc1 bias", "attention bias", "qkv bias"}
    assert biases <= set(names(plain.backward))
    assert not biases & set(names(rotary.backward))
    assert of_kernel(rotary.backward, "bias_dropout_add") == []


def test_backward_mirrors_forward() -> None:
    """Weights finish in the reverse of the order in which they are read."""
    work = layer(OVERLAP)
    read = [op.parameters for op in work.forward if op.parameters]
    finished = [op.parameters for op in work.backward if op.parameters]
    assert finished == read[::-1]


def test_joined_keys_and_values() -> None:
    """4 key-value heads of 8, half of them here: 32 elements a token, read and written in two bytes
    by each kernel; two forward, one backward, none unless asked for."""
    num_bytes = SEQUENCE * MICRO_BATCH * 32 * 2 * 2.0
    found = layer(PLAIN, llama(), joined_keys_values=True)
    for operations, steps in ((found.forward, ("join", "layout")), (found.backward, ("join",))):
        for step in steps:
            (op,) = memory_bound(operations, f"keys and values {step}")
            assert op.num_bytes == num_bytes
        assert len([n for n in names(operations) if n.startswith("keys")]) == len(steps)
    plain = layer(PLAIN, llama())
    assert not [n for n in names(plain.forward + plain.backward) if n.startswith("keys")]
