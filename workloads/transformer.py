"""A transformer layer as the operations one rank executes for one microbatch.

Attention and MLP, each behind a norm and before an add; the attention plain or multi-latent, the
MLP dense or experts, as the layer's kind and the model say.
"""

from workloads.attention import attention_core
from workloads.blocks import Block
from workloads.latent_attention import latent_attention
from workloads.layer_kinds import DENSE, LayerKind
from workloads.layers import (
    TRANSFORMER_LAYER,
    Shapes,
    activation,
    bias_gradient,
    column_backward,
    column_forward,
    dropout_add,
    dropout_add_backward,
    joined_keys_values,
    norm_backward,
    norm_forward,
    qk_norm,
    qkv_copies,
    rotary,
    row_backward,
    row_forward,
)
from workloads.moe import Experts, expert_block
from workloads.operations import LayerWork, Operation
from workloads.spec import ModelSpec, ParallelismSpec, RecomputeModule, TrainingSpec


def transformer_layer(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    recomputed: bool,
    kind: LayerKind = DENSE,
) -> LayerWork:
    """Attention and MLP block. `recomputed`: the whole layer is run again before its backward;
    otherwise only the modules that selective recomputation names are."""
    x = Shapes(model, training, parallelism)
    latent = model.multi_latent_attention
    attention = (latent_attention if latent else _attention_block)(x, kind.window)
    mlp = expert_block(x) if kind.experts else _mlp_block(x)
    norms = norm_forward(x, "input norm"), norm_forward(x, "mlp norm")
    forward = (
        *norms[0],
        *attention.forward,
        *dropout_add(x, "attention"),
        *norms[1],
        *mlp.forward,
        *dropout_add(x, "mlp"),
    )
    backward = (
        *dropout_add_backward(x, "mlp"),
        *mlp.backward,
        *norm_backward(x, "mlp norm"),
        *dropout_add_backward(x, "attention"),
        *attention.backward,
        *norm_backward(x, "input norm"),
    )
    modules: dict[RecomputeModule, tuple[Operation, ...]] = {
        "layernorm": (*norms[0], *norms[1]), **attention.modules, **mlp.modules,
    }  # fmt: skip
    again = forward if recomputed else _run_again(modules, training)
    experts = Experts(x).parameters if kind.experts else 0
    parameters = sum(op.parameters for op in forward)
    return LayerWork(TRANSFORMER_LAYER, forward, backward, again, parameters, experts)


def _run_again(
    modules: dict[RecomputeModule, tuple[Operation, ...]], training: TrainingSpec
) -> tuple[Operation, ...]:
    """Operations of the chosen modules; `moe` holds those of moe_act and shared_experts."""
    chosen = set(training.selected_modules)
    if "moe" in chosen and "moe" in modules:
        chosen -= {"moe_act", "shared_experts"}
    return tuple(op for module, ops in modules.items() if module in chosen for op in ops)


def _attention_block(x: Shapes, window: int | None) -> Block:
    core, core_backward = attention_core(x, window)
    forward = (
        *column_forward(x, "qkv", x.qkv_width),
        *qkv_copies(x),
        *qk_norm(x, "fwd"),
        *joined_keys_values(x, ("join", "layout")),
        *rotary(x),
        *core,
        *row_forward(x, "proj", x.core_width),
    )
    backward = (
        *row_backward(x, "proj", x.core_width),
        *core_backward,
        *rotary(x),
        *joined_keys_values(x, ("join",)),
        *qk_norm(x, "bwd"),
        *qkv_copies(x),
        *bias_gradient(x, "qkv", x.tokens * x.qkv_width),
        *column_backward(x, "qkv", x.qkv_width),
    )
    return Block(forward, backward, {"core_attn": tuple(core)})


def _mlp_block(x: Shapes) -> Block:
    forward = (
        *column_forward(x, "fc1", x.fc1_width),
        *activation(x, "fwd", x.tokens, x.ffn),
        *row_forward(x, "fc2", x.ffn),
    )
    backward = (
        *row_backward(x, "fc2", x.ffn),
        *activation(x, "bwd", x.tokens, x.ffn),
        *bias_gradient(x, "fc1", x.tokens * x.fc1_width),
        *column_backward(x, "fc1", x.fc1_width),
    )
    return Block(forward, backward, {"mlp": forward})
