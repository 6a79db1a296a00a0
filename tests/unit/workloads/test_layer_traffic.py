"""Bytes of the small kernels of a layer, by hand: T = 64 tokens, h = 64, 8 heads of 8, f = 256."""

import pytest
from small_models import gpt, layout, llama
from small_models import training as train

from workloads.attention import attention_core
from workloads.layers import Shapes
from workloads.layout_checks import check_layout
from workloads.memory import stage_memory
from workloads.operations import Gemm, MemoryBound, Operation
from workloads.passes import Pass
from workloads.spec import OptimizerSpec, ParallelismSpec
from workloads.transformer import transformer_layer

PLAIN, PARALLEL = layout(2), layout(2, sequence_parallel=True)


def traffic(operations: tuple[Operation, ...], name: str) -> set[float]:
    """Bytes of the memory-bound kernels of that name."""
    return {op.num_bytes for op in operations if isinstance(op, MemoryBound) and op.name == name}


@pytest.mark.parametrize(("parallelism", "tokens"), [(PLAIN, 64), (PARALLEL, 32)])
def test_column_sums_of_biases(parallelism: ParallelismSpec, tokens: int) -> None:
    """Each gradient read once in two bytes: after the reduction this rank's tokens and all of h,
    before it all tokens and half the width (3 h and f)."""
    backward = transformer_layer(gpt(), train(), parallelism, recomputed=False).backward
    assert traffic(backward, "mlp bias") == traffic(backward, "attention bias") == {2 * tokens * 64}
    assert traffic(backward, "fc1 bias") == {2 * 64 * 256 / 2}
    assert traffic(backward, "qkv bias") == {2 * 64 * 3 * 64 / 2}


@pytest.mark.parametrize(("parallelism", "tokens"), [(PLAIN, 64), (PARALLEL, 32)])
def test_residual_gradients(parallelism: ParallelismSpec, tokens: int) -> None:
    """Two gradients read, their sum written, once for each of the two blocks."""
    backward = transformer_layer(gpt(), train(), parallelism, recomputed=False).backward
    assert traffic(backward, "residual gradient") == {3 * 2 * tokens * 64}
    assert [op.name for op in backward].count("residual gradient") == 2


def test_queries_keys_and_values_are_copied_apart() -> None:
    """Read and written in two bytes, both ways: 8 + 2 x 8 heads of 8 for GPT, 8 + 2 x 4 for Llama,
    half of them on each of 2 ranks."""
    for model, heads in ((gpt(), 24), (llama(), 16)):
        work = transformer_layer(model, train(), PLAIN, recomputed=False)
        for operations in (work.forward, work.backward):
            assert traffic(operations, "qkv split") == {2 * 2 * 64 * heads * 8 / 2}


def test_products_of_unfused_attention() -> None:
    """Scores and their gradient are s x s over d; what leads to or from heads is s x d over s."""
    x = Shapes(gpt(), train(attention_backend="unfused"), PLAIN)
    wide, narrow = (32, 32, 8), (32, 8, 32)
    forward, backward = (
        {op.name: (op.m, op.n, op.k) for op in part if isinstance(op, Gemm)}
        for part in attention_core(x)
    )
    assert forward == {"scores": wide, "context": narrow}
    assert backward == {
        "context dgrad": wide, "value gradient": narrow, "query gradient": narrow,
        "key gradient": narrow,
    }  # fmt: skip


def test_the_embedding_keeps_its_mask_for_this_ranks_tokens() -> None:
    """Stage 0 of 2, 4 layers each: what it keeps beyond equal layers is one byte per element."""
    for tokens, sequence_parallel in ((64, False), (32, True)):
        shape = layout(2, 2, sequence_parallel=sequence_parallel)
        first, none = (
            stage_memory(
                model, train(), shape, OptimizerSpec(), 1, 0, (Pass("forward", 0),)
            ).activations
            for model in (gpt(), gpt(hidden_dropout=0.0))
        )
        assert first - none == (4 * 2 + 1) * tokens * 64  # two masks a layer, one in front


def test_every_layer_of_a_chunk_may_be_recomputed_in_one_group() -> None:
    """8 layers on 2 stages: groups of 4 are the largest."""
    for layers, problems in ((4, 0), (5, 1)):
        again = train(recompute_granularity="full", recompute_num_layers=layers)
        assert len(check_layout(gpt(), layout(1, 2), again, OptimizerSpec(), 2)) == problems
