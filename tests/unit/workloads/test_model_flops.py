"""FLOPs: what the operations execute, against the model's own count and the published formula."""

import pytest
from small_models import (
    BATCH,
    LAYOUTS,
    MICRO_BATCH,
    SEQUENCE,
    all_layers,
    flops,
    gpt,
    layout,
    llama,
)
from small_models import training as train

from workloads.attention import attention_core
from workloads.flops import hardware_flops, layer_forward_flops_per_token, model_flops
from workloads.layers import Shapes
from workloads.presets import load_model
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec

TOKENS = BATCH * SEQUENCE
MODELS = [gpt(), llama(), gpt(num_query_groups=2), llama(num_query_groups=1, kv_channels=16)]
NAMES = ["gpt", "llama", "gpt-2-groups", "llama-1-group"]


def executed(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """FLOPs of a step over all ranks, recomputation left out."""
    layers = all_layers(model, training, parallelism)
    one_rank_of_each_stage = sum(flops(f) + flops(b) for f, b, _, _ in layers)
    ranks = parallelism.tensor_model_parallel_size
    return one_rank_of_each_stage * ranks * (BATCH // MICRO_BATCH)


def recomputed(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    again = sum(flops(r) for _, _, r, _ in all_layers(model, training, parallelism))
    return again * parallelism.tensor_model_parallel_size * (BATCH // MICRO_BATCH)


def padding(model: ModelSpec, parallelism: ParallelismSpec) -> float:
    """Three products of [T, h] by the words that pad the vocabulary, and by the copies of key and
    value heads where there are fewer groups than tensor-parallel ranks."""
    tp = parallelism.tensor_model_parallel_size
    words = model.padded_vocab_size(tp) - model.vocab_size
    copies = max(0, tp - model.query_groups) * 2 * model.head_dim
    return 3 * 2.0 * TOKENS * model.hidden_size * (words + model.num_layers * copies)


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_unfused_operations_execute_what_the_model_counts(
    model: ModelSpec, parallelism: ParallelismSpec
) -> None:
    unfused = train(attention_backend="unfused")
    expected = model_flops(model, unfused) + padding(model, parallelism)
    assert executed(model, unfused, parallelism) == expected


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_flash_attention_executes_7_twelfths_of_the_core(
    model: ModelSpec, parallelism: ParallelismSpec
) -> None:
    """Full square, forward and backward: 4 + 8 s a d per token. Causal flash: half of 4 forward
    and 2.5 times that backward: 2 + 5."""
    flash = train(attention_backend="flash")
    core = SEQUENCE * model.num_attention_heads * model.head_dim * model.num_layers * TOKENS
    expected = model_flops(model, flash) + padding(model, parallelism) - (12 - 7) * core
    assert executed(model, flash, parallelism) == expected


def test_backends_of_the_core_alone() -> None:
    """Per microbatch with b = 2, a = 8, s = 32, d = 8."""
    square = 2 * 8 * 32 * 32 * 8
    for backend, forward, backward in (("unfused", 4, 8), ("flash", 2, 5)):
        ops = attention_core(Shapes(gpt(), train(attention_backend=backend), layout()))
        assert (flops(ops[0]), flops(ops[1])) == (forward * square, backward * square)


@pytest.mark.parametrize(
    ("name", "batch"), [("korthikanti-22b", 4), ("korthikanti-175b", 64), ("korthikanti-1t", 512)]
)
def test_published_formula(name: str, batch: int) -> None:
    """72 B l s h^2 (1 + s / 6h + V / 12 l h): Korthikanti 2022 (arXiv 2205.05198), equation 7."""
    model = load_model(name)
    l, h, v, s = model.num_layers, model.hidden_size, model.vocab_size, 2048  # noqa: E741
    training = train(seq_length=s, micro_batch_size=1, global_batch_size=batch)
    formula = 72 * batch * l * s * h**2 * (1 + s / (6 * h) + v / (12 * l * h))
    assert model_flops(model, training) == pytest.approx(formula, rel=1e-12)


def test_recomputation_by_hand() -> None:
    """What runs again, over 72 B l s h^2: all layers' forward, a third of theirs; or the two
    products of the core, 4 s^2 h B l, which is s / 18h. (The paper's equation 8 charges s / 6h for
    the latter, so its HFU of selective runs is higher than ours.)"""
    model = load_model("korthikanti-175b")
    l, h, v, s, b = model.num_layers, model.hidden_size, model.vocab_size, 2048, 64  # noqa: E741
    unit, logits = 72 * b * l * s * h**2, v / (12 * l * h)
    for granularity, formula in (
        ("none", unit * (1 + s / (6 * h) + logits)),
        ("full", unit * (4 / 3 * (1 + s / (6 * h)) + logits)),
        ("selective", unit * (1 + s / (6 * h) + s / (18 * h) + logits)),
    ):
        training = train(seq_length=s, global_batch_size=b, recompute_granularity=granularity)
        assert hardware_flops(model, training, layout(8, 8, 3)) == pytest.approx(formula, rel=1e-12)


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize(
    "changes",
    [
        {"recompute_granularity": "none"},
        {"recompute_granularity": "selective"},
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "block"},
    ],
    ids=lambda c: "-".join(c.values()),
)
def test_hardware_flops_are_those_that_run_again(
    parallelism: ParallelismSpec, changes: dict[str, str]
) -> None:
    training = train(attention_backend="unfused", **changes)
    extra = hardware_flops(gpt(), training, parallelism) - model_flops(gpt(), training)
    assert extra == recomputed(gpt(), training, parallelism)


def test_causal_convention_halves_the_core_only() -> None:
    full, causal = train(), train(flops_convention="causal")
    core = 3 * 4 * SEQUENCE * 64 * 8 * TOKENS
    assert model_flops(gpt(), full) - model_flops(gpt(), causal) == core / 2


def test_layer_by_hand() -> None:
    """Llama layer, h = 64, 8 heads and 4 groups of 8, MLP 176 gated, s = 32, per token forward:
    qkv 2 * 64 * (64 + 2 * 32), output 2 * 64 * 64, core 4 * 32 * 64, MLP 2 * 64 * 3 * 176."""
    by_hand = 2 * 64 * (64 + 64) + 2 * 64 * 64 + 4 * 32 * 64 + 2 * 64 * 3 * 176
    assert layer_forward_flops_per_token(llama(), train()) == by_hand
