"""Bytes of each stage: activations against Korthikanti's equations, weights and optimizer."""

from collections.abc import Mapping
from itertools import chain

import pytest
from small_models import BATCH, gpt, layout, llama
from small_models import training as train

from workloads.layers import Shapes
from workloads.memory import (
    CONTEXT_BYTES,
    NCCL_BYTES_PER_GROUP,
    StageMemory,
    layer_activation_bytes,
    peak_held,
    stage_memory,
    weight_gradient_bytes,
)
from workloads.passes import Direction, Order, Pass
from workloads.pipeline import SCHEDULES
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
    order: Order | None = None,
) -> StageMemory:
    return stage_memory(
        model or gpt(), training or train(), parallelism or layout(),
        OptimizerSpec(use_distributed_optimizer=sharded), data_parallel_size, stage,
        order or forwards({0: 1}),
    )  # fmt: skip


def forwards(in_flight: Mapping[int, int]) -> Order:
    """Forwards alone: so many microbatches of each chunk."""
    return tuple(Pass("forward", i, c) for c, n in in_flight.items() for i in range(n))


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
        order = SCHEDULES["1f1b"](stage, 4, BATCH, 1)
        expected = (4 - stage) * 2 * one
        expected += {0: 4 * t * h, 3: t * h * 4 + t * vocabulary * 4}.get(stage, 0)
        assert memory(stage, four, order=order).activations == expected


def test_interleaving_counts_chunks() -> None:
    two = layout(1, 2, 2)
    one = layer_activation_bytes(llama(), train(), two, recomputed=False)
    used = memory(0, two, llama(), order=forwards({0: 3, 1: 2}))
    assert used.activations == (3 + 2) * 2 * one


def test_all_forwards_first_keep_every_softmax() -> None:
    one, eight = (memory(1, layout(1, 2), order=forwards({0: n})) for n in (1, 8))
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
    used = memory(0, layout(1, 1), model, training, order=forwards({0: 1}))
    ends = 64 * 64 * 4 + 64 * 1024 * 4
    assert used.activations == inputs * 64 * 64 * 2 + kept * whole + working + ends


def test_buffers_by_hand() -> None:
    """T = 64, h = 64, f = 256 on 2 ranks of 2 stages. Sends of both directions; the gathered input
    under sequence parallelism; gradients of the MLP's two activations, or of the logits over half
    of 1,024 words where that is more once the fp32 softmax (4) is gone; a placeholder in the shape
    of each of the four weights."""
    stream, mlp, logits = 64 * 64 * 2, 2 * 64 * (128 + 128), 2 * 64 * 512
    placeholders = 2 * 64 * (3 * 32 + 32 + 128 + 128)
    plain, sequence = layout(2, 2), layout(2, 2, sequence_parallel=True)
    first, last = stream + mlp + placeholders, stream + logits + placeholders
    assert [memory(s, plain).buffers for s in (0, 1)] == [first, last]
    assert [memory(s, sequence).buffers for s in (0, 1)] == [stream + first, stream + last]


def test_a_wide_layer_outlives_the_softmax() -> None:
    """f = 4,096, 1,024 words, one rank: gradients of the layer once the softmax is freed."""
    wide = memory(model=gpt(ffn_hidden_size=4096))
    placeholders = 2 * 64 * (3 * 64 + 64 + 2 * 4096)
    assert wide.buffers == 64 * (2 * (4096 + 4096) - 4 * 1024) + placeholders


@pytest.mark.parametrize(
    "changes", [{"gradient_accumulation_fusion": False}, {"attention_backend": "unfused"}]
)
def test_placeholders_only_where_gemms_accumulate_in_transformer_engine(
    changes: dict[str, object],
) -> None:
    used = memory(training=train(**changes))
    assert memory().buffers - used.buffers == 2 * 12 * 64 * 64


def test_equal_shapes_share_a_placeholder() -> None:
    """One query group: qkv has 64 + 2 x 8 columns; f = 64: fc1 and fc2 have the shape of proj."""
    square = memory(model=gpt(num_query_groups=1, ffn_hidden_size=64))
    assert square.buffers == 2 * 64 * 1024 + 2 * 64 * (80 + 64)


MEASURED: list[tuple[str, dict[str, object], int, int, float]] = [
    # our H200, one GPU, Megatron-LM core 0.15.3 and Transformer Engine 2.10: max allocated
    ("1.3B", {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16}, 2048, 1, 27.961e9),
    ("1.3B", {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16}, 2048, 8, 54.993e9),
    ("2.7B", {"num_layers": 32, "hidden_size": 2560, "num_attention_heads": 20}, 2048, 2, 60.333e9),
    ("3 x 30B", {"num_layers": 3, "hidden_size": 7168, "num_attention_heads": 56}, 2048, 2,
     46.310e9),
    ("345M", {"num_layers": 24, "hidden_size": 1024, "num_attention_heads": 16}, 1024, 8,
     15.591e9),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "sequence", "batch", "measured"), MEASURED)
def test_peaks_that_we_measured(
    name: str, shape: dict[str, object], sequence: int, batch: int, measured: float
) -> None:
    """GPTs of 50,304 words without dropout, nothing recomputed or sharded."""
    model = gpt(**shape, vocab_size=50304, hidden_dropout=0.0, attention_dropout=0.0)
    training = train(seq_length=sequence, micro_batch_size=batch)
    used = memory(model=model, training=training)
    assert used.total_bytes - used.framework == pytest.approx(measured, rel=0.02)


CUT: dict[str, object] = {
    "num_layers": 12, "hidden_size": 8192, "ffn_hidden_size": 28672, "num_attention_heads": 64,
    "num_query_groups": 8, "vocab_size": 128256,
}  # fmt: skip
"""Llama 3 70B, 12 layers of it."""


@pytest.mark.parametrize(
    ("tensor", "pipeline", "data", "gib"), [(2, 1, 4, 60.68), (4, 1, 2, 39.07), (8, 1, 1, 28.29),
                                            (1, 2, 4, 66.55)],
)  # fmt: skip
def test_peaks_measured_on_eight_b200(tensor: int, pipeline: int, data: int, gib: float) -> None:
    """MooreThreads/SimuMax, docs/b200/b200_release_v1.2_summary.json: Llama 3 70B cut to 12 layers,
    Megatron-LM and Transformer Engine, sharded optimizer, sequence 4,096, microbatches of one."""
    parallel = layout(tensor, pipeline, sequence_parallel=tensor > 1)
    training = train(seq_length=4096, micro_batch_size=1, global_batch_size=8 * data)
    peaks = []
    for stage in range(pipeline):
        order = SCHEDULES["1f1b"](stage, pipeline, 8, 1)
        used = memory(stage, parallel, llama(**CUT), training, data, True, order)
        peaks.append(used.total_bytes - used.framework)
    assert max(peaks) == pytest.approx(gib * 2**30, rel=0.01)


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


def test_between_both_parts_of_backward_by_hand() -> None:
    """Qi 2023, table 1: 32 s b h, inputs (1 + 1 + 1 + 4) and output gradients (3 + 1 + 4 + 1) of
    the four products, two bytes each."""
    shapes = Shapes(gpt(), train(), layout())
    assert weight_gradient_bytes(shapes) == 32 * 64 * 64


def test_peak_held_by_hand() -> None:
    """F0 10, F1 20, B0 leaves 10 + 4, F2 24, B1 18, W0 14."""
    text = "f0 f1 b0 f2 b1 w0"
    names: dict[str, Direction] = {
        "f": "forward", "b": "backward_input", "w": "backward_weight",
    }  # fmt: skip
    order = tuple(Pass(names[word[0]], int(word[1])) for word in text.split())
    assert peak_held(order, [10.0], [4.0]) == 24.0
    assert peak_held(order[:3], [10.0], [4.0]) == 20.0
    assert peak_held(order, [10.0], [25.0]) == 60.0


@pytest.mark.parametrize(("name", "chunks"), [("zb_h1", 1), ("zb_v", 2)])
def test_zero_bubble_holds_about_what_1f1b_does(name: str, chunks: int) -> None:
    """Qi 2023, table 2: no more than the first stage of 1F1B, up to the embedding's gradient and
    the ends of the model."""
    parallelism = ParallelismSpec(
        pipeline_model_parallel_size=4, virtual_pipeline_model_parallel_size=chunks,
        pipeline_schedule=name,  # type: ignore[arg-type]
    )  # fmt: skip
    model = llama(num_layers=16, vocab_size=128)
    usual = memory(0, layout(1, 4), model, order=SCHEDULES["1f1b"](0, 4, 16, 1)).activations
    peaks = [
        memory(s, parallelism, model, order=SCHEDULES[name](s, 4, 16, chunks)).activations
        for s in range(4)
    ]
    assert max(peaks) == pytest.approx(usual, rel=0.05)
