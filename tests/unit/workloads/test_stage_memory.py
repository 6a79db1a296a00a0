"""Bytes of each stage: activations against Korthikanti's equations, weights and optimizer."""

from collections.abc import Mapping
from itertools import chain

import pytest
from small_models import BATCH, gpt, layout, llama
from small_models import training as train

from workloads.memory import (
    CONTEXT_BYTES,
    NCCL_BYTES_PER_GROUP,
    StageMemory,
    layer_activation_bytes,
    stage_memory,
)
from workloads.pipeline import SCHEDULES, peak_in_flight
from workloads.presets import load_model
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec
from workloads.stages import stage_chunks

# activations of a layer: Korthikanti 2022 (arXiv 2205.05198), table 2, s = 2048, b = 1, t = 8


def layer_bytes(
    name: str, parallelism: ParallelismSpec, granularity: str, backend: str = "unfused"
) -> float:
    training = train(
        seq_length=2048, micro_batch_size=1, attention_backend=backend,
        recompute_granularity=granularity,
    )  # fmt: skip
    full = granularity == "full"
    return layer_activation_bytes(load_model(name), training, parallelism, recomputed=full)


@pytest.mark.parametrize("name", ["korthikanti-22b", "korthikanti-175b", "korthikanti-530b"])
def test_activations_of_a_layer_as_published(name: str) -> None:
    model = load_model(name)
    s, h, a, t = 2048, model.hidden_size, model.num_attention_heads, 8
    tensor, sequence = layout(t), layout(t, sequence_parallel=True)
    for parallelism, granularity, expected in (
        (layout(), "none", 34 * s * h + 5 * a * s**2),  # s h (34 + 5 a s / h)
        (tensor, "none", 10 * s * h + 24 * s * h / t + 5 * a * s**2 / t),
        (sequence, "none", (34 * s * h + 5 * a * s**2) / t),
        (tensor, "selective", s * h * (10 + 24 / t)),
        (sequence, "selective", s * h * 34 / t),
        (tensor, "full", 2 * s * h),
        (sequence, "full", 2 * s * h / t),
    ):
        assert layer_bytes(name, parallelism, granularity) == expected


def test_flash_keeps_one_fp32_per_row_of_scores() -> None:
    """Instead of 5 a s^2 b: the softmax's statistics (Dao 2022, arXiv 2205.14135, section 3.1)."""
    kept = layer_bytes("korthikanti-175b", layout(), "none", "flash")
    assert kept == 2048 * 12288 * 34 + 4 * 2048 * 96
    assert layer_bytes("korthikanti-175b", layout(), "selective", "flash") == 2048 * 12288 * 34


def test_llama_layer_by_hand() -> None:
    """T = 64, h = 64: inputs of norms and blocks 4 h, qkv 64 + 2 * 32, context 64, MLP 3 * 176,
    two bytes each; statistics 4 bytes per head. No dropout, so no masks."""
    expected = 64 * (2 * (4 * 64 + 128 + 64 + 3 * 176) + 4 * 8)
    assert layer_activation_bytes(llama(), train(), layout(), recomputed=False) == expected


def test_no_attention_dropout_keeps_the_softmax_only() -> None:
    unfused, scores = train(attention_backend="unfused"), 2 * 8 * 32 * 32
    with_dropout, without = (
        layer_activation_bytes(gpt(attention_dropout=p), unfused, layout(), recomputed=False)
        for p in (0.1, 0.0)
    )
    assert with_dropout - without == 3 * scores


# a stage


def memory(
    stage: int = 0,
    parallelism: ParallelismSpec | None = None,
    model: ModelSpec | None = None,
    training: TrainingSpec | None = None,
    data_parallel_size: int = 1,
    sharded: bool = False,
    in_flight: Mapping[int, int] | None = None,
) -> StageMemory:
    return stage_memory(
        model or gpt(), training or train(), parallelism or layout(),
        OptimizerSpec(use_distributed_optimizer=sharded), data_parallel_size, stage,
        in_flight or {0: 1},
    )  # fmt: skip


def weights(parallelism: ParallelismSpec, stage: int, model: ModelSpec | None = None) -> int:
    held = stage_chunks(model or gpt(), train(), parallelism)
    layers = chain.from_iterable(x for (s, _), x in held.items() if s == stage)
    return sum(layer.parameters for layer in layers)


@pytest.mark.parametrize("dp", [1, 4, 48])
@pytest.mark.parametrize(
    ("fp32", "plain", "whole"), [(True, 18, 6), (False, 16, 4)], ids=["fp32", "2-byte"]
)
def test_bytes_per_parameter(dp: int, fp32: bool, plain: int, whole: int) -> None:
    """Weight 2, gradient 4 (or 2), master weight and two moments 12: 18 (16), of which the
    distributed optimizer shards the 12 (Megatron-LM, docs/source/api-guide/dist_optimizer)."""
    training = train(accumulate_allreduce_grads_in_fp32=fp32)
    for sharded, per_parameter in ((False, float(plain)), (True, whole + 12 / dp)):
        used = memory(training=training, data_parallel_size=dp, sharded=sharded)
        total = used.weights + used.gradients + used.optimizer
        assert total == pytest.approx(per_parameter * weights(layout(), 0), rel=1e-12)


def test_stages_are_unequal() -> None:
    """4 stages: the first holds words and positions, the last words and the final norm."""
    four = layout(2, 4)
    first, second, third, last = (memory(stage, four).weights for stage in range(4))
    assert second == third
    assert first - second == 2 * (512 + 32) * 64
    assert last - second == 2 * (512 + 2) * 64
    untied = gpt(untie_embeddings_and_output_weights=True)
    assert memory(3, four, untied).weights == last


def test_activations_of_a_pipeline_by_hand() -> None:
    """1F1B on 4 stages of 2 layers: stage s holds 4 - s microbatches. The first keeps the mask of
    the embedding's dropout; the last inputs of the final norm and of the logits, and the softmax
    over the padded vocabulary in fp32."""
    four, t, h, vocabulary = layout(1, 4), 64, 64, 1024
    one = layer_activation_bytes(gpt(), train(), four, recomputed=False)
    for stage in range(4):
        flight = peak_in_flight(SCHEDULES["1f1b"](stage, 4, BATCH, 1))
        expected = (4 - stage) * 2 * one
        expected += {0: 4 * t * h, 3: t * h * 4 + t * vocabulary * 4}.get(stage, 0)
        assert memory(stage, four, in_flight=flight).activations == expected


def test_interleaving_counts_chunks() -> None:
    two = layout(1, 2, 2)
    one = layer_activation_bytes(llama(), train(), two, recomputed=False)
    used = memory(0, two, llama(), in_flight={0: 3, 1: 2})
    assert used.activations == (3 + 2) * 2 * one


def test_all_forwards_first_keep_every_softmax() -> None:
    one, eight = (memory(1, layout(1, 2), in_flight={0: n}) for n in (1, 8))
    assert eight.activations == 8 * one.activations
    assert eight.buffers == one.buffers


@pytest.mark.parametrize(
    ("method", "every", "inputs", "kept"),
    [
        ("uniform", 1, 8, 0), ("uniform", 3, 3, 0), ("uniform", 8, 1, 0),
        ("block", 1, 1, 7), ("block", 5, 5, 3),
    ],
)  # fmt: skip
def test_recomputation_keeps_inputs_and_one_working_set(
    method: str, every: int, inputs: int, kept: int
) -> None:
    """8 layers: `uniform` keeps the input of each group and rebuilds one group, `block` keeps that
    of each of the first layers and rebuilds one."""
    training = train(
        recompute_granularity="full", recompute_method=method, recompute_num_layers=every
    )
    model = llama()
    whole = layer_activation_bytes(model, train(), layout(1, 1), recomputed=False)
    working = (every if method == "uniform" else 1) * whole
    used = memory(0, layout(1, 1), model, training, in_flight={0: 1})
    ends = 64 * 64 * 4 + 64 * 1024 * 4
    assert used.activations == inputs * 64 * 64 * 2 + kept * whole + working + ends


def test_logits_only_on_the_last_stage() -> None:
    """As computed (2 bytes) and in fp32 (4) over this rank's half of the vocabulary; sends of both
    directions elsewhere too; the gathered input under sequence parallelism."""
    stream, logits = 64 * 64 * 2, 64 * 512 * (2 + 4)
    plain, sequence = layout(2, 2), layout(2, 2, sequence_parallel=True)
    assert [memory(s, plain).buffers for s in (0, 1)] == [stream, stream + logits]
    assert [memory(s, sequence).buffers for s in (0, 1)] == [2 * stream, 2 * stream + logits]
    assert memory(0, layout()).buffers == 64 * 1024 * (2 + 4)


def test_framework_counts_communicators() -> None:
    """One of all ranks, and one for each axis of more than one rank."""
    for parallelism, dp, groups in ((layout(), 1, 1), (layout(), 8, 2), (layout(2, 2), 8, 4)):
        used = memory(parallelism=parallelism, data_parallel_size=dp)
        assert used.framework == CONTEXT_BYTES + groups * NCCL_BYTES_PER_GROUP


def test_terms_sum_to_the_total() -> None:
    used = memory(1, layout(2, 2), sharded=True, data_parallel_size=3)
    assert used.total_bytes == sum(used.terms().values())
    assert list(used.terms()) == [
        "weights", "gradients", "optimizer", "activations", "buffers", "framework",
    ]  # fmt: skip
    assert min(used.terms().values()) > 0
