"""Selective recomputation module by module: what runs again, and what is not kept."""

import pytest
from small_models import flops, gpt, layout, llama
from small_models import training as train

from workloads.flops import hardware_flops, model_flops
from workloads.memory import layer_activation_bytes
from workloads.spec import ModelSpec, TrainingSpec
from workloads.transformer import transformer_layer

T, H = 64, 64
"""Tokens and hidden size of the small models, on one rank."""


def selective(*modules: str) -> TrainingSpec:
    return train(recompute_granularity="selective", recompute_modules=modules)


def again(*modules: str, model: ModelSpec | None = None) -> list[str]:
    layer = transformer_layer(model or llama(), selective(*modules), layout(), recomputed=False)
    return [op.name for op in layer.recompute]


def kept(training: TrainingSpec, model: ModelSpec) -> float:
    return layer_activation_bytes(model, training, layout(), recomputed=False)


def test_what_runs_again() -> None:
    assert again("core_attn") == ["attention"]
    assert again("mlp") == ["fc1", "activation", "fc2"]
    assert again("layernorm") == ["input norm", "mlp norm"]
    assert again("mlp", "layernorm", "mlp") == [*again("layernorm"), *again("mlp")]


def test_modules_mean_nothing_unless_selected() -> None:
    layer = transformer_layer(llama(), train(recompute_modules=["mlp"]), layout(), recomputed=False)
    assert layer.recompute == ()
    assert train(recompute_modules=["mlp"]).selected_modules == frozenset()
    assert train(recompute_granularity="selective").selected_modules == {"core_attn"}


@pytest.mark.parametrize("model", [gpt(), llama()])
def test_what_is_not_kept_by_hand(model: ModelSpec) -> None:
    """The MLP's two inner tensors: 8 h for a GPT (4 h each), 3 x 176 for the Llama; the outputs of
    both norms: 2 h. Two bytes each, T tokens."""
    whole = kept(train(), model)
    inner = 8 * H if not model.gated_linear_unit else 3 * 176
    assert whole - kept(selective("mlp"), model) == 2 * T * inner
    assert whole - kept(selective("layernorm"), model) == 2 * T * 2 * H
    both = kept(selective("mlp", "layernorm"), model)
    assert whole - both == 2 * T * (inner + 2 * H)


def test_executed_flops_by_hand() -> None:
    """The MLP's products again: 2 x 2 x h x 4 h per token and layer; norms have none."""
    model, tokens = gpt(), 16 * 32
    needed = model_flops(model, train())
    assert hardware_flops(model, selective("layernorm"), layout()) == needed
    mlp = hardware_flops(model, selective("mlp"), layout()) - needed
    assert mlp == pytest.approx(tokens * 8 * 2 * 2 * H * 4 * H)
    layer = transformer_layer(model, selective("mlp"), layout(), recomputed=False)
    assert mlp == pytest.approx(16 / 2 * 8 * flops(layer.recompute))
