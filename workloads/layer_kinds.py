"""Which kinds of transformer layers a model has, and where."""

from typing import NamedTuple

from workloads.spec import ModelSpec


class LayerKind(NamedTuple):
    """What tells layers of one model apart."""

    experts: bool = False
    window: int | None = None
    """Keys that a query sees; None for all before it."""


DENSE = LayerKind()


def layer_kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """Kind of each transformer layer, first to last."""
    return tuple(
        LayerKind(_has_experts(model, i), model.window_size if _has_window(model, i) else None)
        for i in range(model.num_layers)
    )


def last_kind(model: ModelSpec) -> LayerKind:
    """Kind of the last layer, which layers of multi-token prediction repeat (Megatron-LM,
    gpt_layer_specs.py, get_gpt_mtp_block_spec)."""
    return layer_kinds(model)[-1]


def _has_experts(model: ModelSpec, layer: int) -> bool:
    """Megatron-LM, transformer_config.py, moe_layer_freq."""
    if not model.num_experts:
        return False
    if isinstance(model.moe_layer_freq, int):
        return layer % model.moe_layer_freq == 0
    return model.moe_layer_freq[layer] == 1


def _has_window(model: ModelSpec, layer: int) -> bool:
    """Megatron-LM, transformer/utils.py, is_layer_window_attention."""
    skip = model.window_attn_skip_freq
    if model.window_size is None:
        return False
    if skip is None:
        return True
    if isinstance(skip, int):
        return (layer + 1) % skip != 0
    return skip[layer] == 1
