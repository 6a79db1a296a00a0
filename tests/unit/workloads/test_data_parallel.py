"""Gradient buckets, and what the optimizer runs on each stage."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import gpt, layout, llama
from small_models import training as train

from workloads.data_parallel import (
    default_bucket_size,
    gradient_buckets,
    gradient_bytes_per_parameter,
    is_bucketed,
    optimizer_operations,
    parameter_bytes_per_parameter,
)
from workloads.graph import build_work
from workloads.operations import Collective, LayerWork, MemoryBound, Operation
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec


def layer_of(*sizes: int) -> LayerWork:
    """A layer whose backward completes gradients of these sizes, in this order."""
    operations = tuple(MemoryBound(f"w{i}", "fill", 0.0, size) for i, size in enumerate(sizes))
    return LayerWork("layer", operations[::-1], operations, (), sum(sizes))


def test_buckets_count_their_weights() -> None:
    """Filled to 3: weights of 1 and 2, then 3, then the 1 that is left."""
    found = gradient_buckets([layer_of(1, 2, 3, 1)], 3)
    assert [(b.parameters, b.num_weights) for b in found] == [(3, 2), (3, 1), (1, 1)]


def sizes(layers: list[LayerWork], bucket_size: int | None) -> list[int]:
    return [bucket.parameters for bucket in gradient_buckets(layers, bucket_size)]


@pytest.mark.parametrize(
    ("bucket_size", "expected"),
    [
        (None, [36]),
        (1, [1, 2, 3, 4, 5, 6, 7, 8]),
        (3, [3, 3, 4, 5, 6, 7, 8]),
        (10, [10, 11, 15]),
        (11, [15, 13, 8]),
        (36, [36]),
        (1000, [36]),
    ],
)
def test_a_bucket_closes_with_the_weight_that_fills_it(
    bucket_size: int | None, expected: list[int]
) -> None:
    """Weights of 1, 2, ... 8 (Megatron-LM, param_and_grad_buffer.py: closes at >= the size)."""
    assert sizes([layer_of(1, 2, 3), layer_of(4, 5), layer_of(6, 7, 8)], bucket_size) == expected


def test_operations_without_weights_make_no_bucket() -> None:
    assert sizes([layer_of(0, 5, 0), layer_of(0)], 1) == [5]
    assert sizes([layer_of(0)], None) == sizes([], 10) == []


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=6), st.integers(1, 120))
def test_buckets_hold_every_weight_once(shapes: list[list[int]], bucket_size: int) -> None:
    layers = [layer_of(*shape) for shape in shapes]
    found, weights = sizes(layers, bucket_size), [x for x in chain.from_iterable(shapes) if x]
    assert sum(found) == sum(weights)
    assert all(size >= bucket_size for size in found[:-1])
    for size in found:  # each is a run of weights, and would not be full without its last
        run = [weights.pop(0)]
        while sum(run) < size:
            run.append(weights.pop(0))
        assert sum(run) == size
        assert sum(run[:-1]) < bucket_size


def test_default_size() -> None:
    """max(40e6, 1e6 dp) (Megatron-LM, distributed_data_parallel.py)."""
    assert [default_bucket_size(dp) for dp in (1, 40, 41, 768)] == [
        40_000_000, 40_000_000, 41_000_000, 768_000_000,
    ]  # fmt: skip


def buckets(
    parallelism: ParallelismSpec, bucket_size: int | None, overlap: bool = True
) -> dict[tuple[int, int], tuple[int, ...]]:
    optimizer = OptimizerSpec(overlap_grad_reduce=overlap, ddp_bucket_size=bucket_size)
    work = build_work(gpt(), train(), parallelism, optimizer, 1)
    return {
        (s, c): held for s, stage in enumerate(work.stages) for c, held in enumerate(stage.buckets)
    }


def test_only_the_first_chunk_of_the_first_stage_is_cut() -> None:
    """Megatron-LM, distributed_data_parallel.py (pp_rank > 0) and training.py (model_chunk_idx > 0)
    keep one bucket elsewhere."""
    found = buckets(layout(1, 2, 2), 20_000)
    assert {key for key, held in found.items() if len(held) > 1} == {(0, 0)}
    assert all(len(held) == 1 for held in buckets(layout(1, 2, 2), 20_000, overlap=False).values())
    overlap, plain = OptimizerSpec(overlap_grad_reduce=True), OptimizerSpec()
    assert [is_bucketed(overlap, *at) for at in ((0, 0), (0, 1), (1, 0))] == [True, False, False]
    assert not is_bucketed(plain, 0, 0)


def test_buckets_of_a_model_by_hand() -> None:
    """One stage, backward order; h = 64: a layer's fc2 16,448, fc1 16,640, norm 128, proj 4,160,
    qkv 12,480, norm 128; 2,048 in positions, 65,536 in 1,024 padded words, 128 in the last norm.

    At 20,000: head's norm, fc2, fc1 = 33,216; then norm, proj, qkv, norm and the next layer's fc2
    = 33,344; then its fc1, norm, proj = 20,928; qkv, norm, fc2 = 29,056; fc1, norm, proj = 20,928;
    and so on; at last qkv, norm, positions, words = 80,192."""
    (held,) = buckets(layout(), 20_000).values()
    assert held == (33_216, 33_344, *(20_928, 29_056) * 6, 20_928, 80_192)
    layer = 16_448 + 16_640 + 128 + 4_160 + 12_480 + 128
    assert sum(held) == 8 * layer + 128 + 2_048 + 65_536


@pytest.mark.parametrize("parallelism", [layout(2), layout(2, 4), layout(2, 2, 2)])
@pytest.mark.parametrize("bucket_size", [None, 10_000])
def test_buckets_hold_what_a_stage_holds(
    parallelism: ParallelismSpec, bucket_size: int | None
) -> None:
    optimizer = OptimizerSpec(overlap_grad_reduce=True, ddp_bucket_size=bucket_size)
    for stage in build_work(gpt(), train(), parallelism, optimizer, 2).stages:
        for held, layers in zip(stage.buckets, stage.chunks, strict=True):
            assert sum(held) == sum(layer.parameters for layer in layers)
        assert sum(map(sum, stage.buckets)) == stage.parameters


# optimizer; 1,001 weights

WEIGHTS = 1001


def finish(
    model: ModelSpec | None = None,
    parallelism: ParallelismSpec | None = None,
    training: TrainingSpec | None = None,
    dp: int = 1,
    stage: int = 0,
    sharded: bool = False,
    clip_grad: float = 1.0,
) -> tuple[Operation, ...]:
    optimizer = OptimizerSpec(use_distributed_optimizer=sharded, clip_grad=clip_grad)
    return optimizer_operations(
        model or gpt(), training or train(), parallelism or layout(), optimizer, dp, stage, WEIGHTS
    )


def bytes_of(operations: tuple[Operation, ...]) -> dict[str, float]:
    return {op.name: op.num_bytes for op in operations if isinstance(op, MemoryBound | Collective)}


@pytest.mark.parametrize(("sharded", "shard"), [(False, 1001), (True, 251)])
@pytest.mark.parametrize("fp32", [True, False], ids=["fp32 gradients", "2-byte gradients"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_optimizer_bytes(sharded: bool, shard: int, fp32: bool, precision: str) -> None:
    """Four replicas: ceil(1001 / 4) = 251. Adam: fp32 gradient, weight and two moments read, the
    last three written: 28; then 4 read and 2 written for the copy. 2-byte gradients are first
    copied to fp32, 2 + 4."""
    gradient = 4 if fp32 else 2
    training = train(precision=precision, accumulate_allreduce_grads_in_fp32=fp32)
    expected = {
        "clear gradients": gradient * WEIGHTS,
        "scale gradients": 2 * gradient * WEIGHTS,
        "gradient norm": 4,  # the collective, which follows the kernel of 4 bytes per weight
        "clip gradients": 2 * 4 * shard,
        "adam": 28 * shard,
        "weights from master": 6 * shard,
    }
    if not fp32:
        expected["gradients to fp32"] = 6 * shard
    if precision == "fp16":
        expected |= {"unscale and check gradients": 2 * 4 * shard, "gradient overflow": 4}
    operations = finish(training=training, dp=4, sharded=sharded)
    assert bytes_of(operations) == expected
    norm = [op.num_bytes for op in operations if isinstance(op, MemoryBound)
            and op.kernel == "grad_norm"]  # fmt: skip
    assert norm == [4 * shard]


def test_order_of_the_step() -> None:
    names = [op.name for op in finish(training=train(precision="fp16"), dp=2)]
    assert names == [
        "clear gradients", "scale gradients", "unscale and check gradients", "gradient overflow",
        "gradient norm", "gradient norm", "clip gradients", "adam", "weights from master",
    ]  # fmt: skip


def test_one_replica_scales_nothing_and_shards_nothing() -> None:
    assert "scale gradients" not in bytes_of(finish())
    assert bytes_of(finish(sharded=True)) == bytes_of(finish(sharded=False))


def test_no_clipping_no_norm() -> None:
    found = bytes_of(finish(clip_grad=0.0))
    assert set(found) == {"clear gradients", "adam", "weights from master"}


@pytest.mark.parametrize(("untied", "stages"), [(False, {0, 3}), (True, set())])
def test_tied_embeddings_meet_on_first_and_last_stage(untied: bool, stages: set[int]) -> None:
    """512 of 1,024 words of h = 64 on each of 2 ranks, in fp32."""
    model = gpt(untie_embeddings_and_output_weights=untied)
    for stage in range(4):
        shared = [op for op in finish(model, layout(2, 4), stage=stage)
                  if isinstance(op, Collective) and op.axis == "embedding"]  # fmt: skip
        assert [op.num_bytes for op in shared] == [4 * 512 * 64] * (stage in stages)
    assert "embedding gradients" not in bytes_of(finish(model, layout(2, 1)))


@pytest.mark.parametrize(
    ("model", "per_layer", "norm"),
    [(gpt(), 2 * 2 * 64 + 2 * 64, 2 * 64), (llama(), 2 * 64, 64)],
    ids=["gpt", "llama"],
)
def test_weights_that_see_a_part_of_the_sequence(
    model: ModelSpec, per_layer: int, norm: int
) -> None:
    """Norms, and biases after the reduction, are whole on each rank and see its tokens only
    (Megatron-LM, finalize_model_grads.py): 4 layers a stage, the final norm on the last."""
    parallel = layout(2, 2, sequence_parallel=True)
    for stage, expected in ((0, 4 * per_layer), (1, 4 * per_layer + norm)):
        assert bytes_of(finish(model, parallel, stage=stage))["norm gradients"] == 4 * expected
        assert "norm gradients" not in bytes_of(finish(model, layout(2, 2), stage=stage))


def test_world_collectives_are_alike_on_all_stages() -> None:
    """Or the ranks would wait for each other for ever."""
    training, parallel = train(precision="fp16"), layout(2, 4, sequence_parallel=True)
    found = [
        [op for op in finish(training=training, parallelism=parallel, stage=stage)
         if isinstance(op, Collective) and op.axis == "world"]
        for stage in range(4)
    ]  # fmt: skip
    assert found[0]
    assert all(other == found[0] for other in found)


def test_bytes_per_parameter() -> None:
    assert gradient_bytes_per_parameter(train()) == 4
    assert gradient_bytes_per_parameter(train(accumulate_allreduce_grads_in_fp32=False)) == 2
    assert parameter_bytes_per_parameter(train(), 0.9) == 2
