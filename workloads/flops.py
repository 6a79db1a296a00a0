"""Parameters and floating-point operations of a model, by named conventions."""

from workloads.layer_kinds import DENSE, LayerKind, last_kind, layer_kinds
from workloads.partition import partition
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.stages import recomputed_layers


def parameter_count(model: ModelSpec, seq_length: int = 0) -> int:
    """Weights of the whole model with its vocabulary as given, tied embeddings once, without what
    predicts tokens further ahead (as models are published).

    `seq_length` gives the rows of a learned position table that the model leaves open.
    """
    return _parameters(model, seq_length, model.expert_count)


def active_parameter_count(model: ModelSpec, seq_length: int = 0) -> int:
    """Weights that one token meets: of a layer's experts, the ones that it is sent to."""
    return _parameters(model, seq_length, min(model.moe_router_topk, model.expert_count))


def _parameters(model: ModelSpec, seq_length: int, experts: int) -> int:
    h = model.hidden_size
    words = model.vocab_size * h * (2 if model.untie_embeddings_and_output_weights else 1)
    learned = model.position_embedding_type == "learned_absolute"
    positions = (model.max_position_embeddings or seq_length) * h if learned else 0
    layers = sum(
        _attention_parameters(model) + 2 * _norm(model, h) + _mlp_parameters(model, kind, experts)
        for kind in layer_kinds(model)
    )
    return layers + _norm(model, h) + words + positions


def _norm(model: ModelSpec, width: int) -> int:
    return width * (2 if model.normalization == "LayerNorm" else 1)


def _attention_parameters(model: ModelSpec) -> int:
    h, heads = model.hidden_size, model.num_attention_heads
    if model.multi_latent_attention:
        ranks = model.kv_lora_rank + (model.q_lora_rank or 0)
        return _latent_weights(model) + heads * model.v_head_dim * h + _norm(model, ranks)
    core = heads * model.head_dim
    qkv = core + 2 * model.query_groups * model.head_dim
    biases = (qkv + h) * model.add_bias_linear
    norms = 2 * _norm(model, model.head_dim) * model.qk_layernorm
    return h * (qkv + core) + biases + norms


def _latent_weights(model: ModelSpec) -> int:
    """Down and up projections of multi-latent attention."""
    h, heads, rotated = model.hidden_size, model.num_attention_heads, model.qk_pos_emb_head_dim
    query = heads * (model.qk_head_dim + rotated)
    rank = model.q_lora_rank
    queries = h * query if rank is None else rank * (h + query)
    kv_up = model.kv_lora_rank * heads * (model.qk_head_dim + model.v_head_dim)
    return queries + h * (model.kv_lora_rank + rotated) + kv_up


def _mlp_parameters(model: ModelSpec, kind: LayerKind, experts: int) -> int:
    h, products = model.hidden_size, 3 if model.gated_linear_unit else 2
    if not kind.experts:
        fc1 = model.ffn_size * (products - 1)
        return h * (fc1 + model.ffn_size) + (fc1 + h) * model.add_bias_linear
    width = experts * model.expert_ffn_size + model.moe_shared_expert_intermediate_size
    return h * (products * width + model.expert_count)


def layer_forward_flops_per_token(
    model: ModelSpec, training: TrainingSpec, kind: LayerKind = DENSE
) -> float:
    """Matrix products of one layer, forward: projections, scores and context, MLP."""
    attention = _projection_flops_per_token(model) + _core_flops_per_token(model, training, kind)
    return attention + _mlp_flops_per_token(model, kind)


def _projection_flops_per_token(model: ModelSpec) -> float:
    h, heads = model.hidden_size, model.num_attention_heads
    if model.multi_latent_attention:
        return 2.0 * (_latent_weights(model) + heads * model.v_head_dim * h)
    core = heads * model.head_dim
    return 2.0 * h * (2 * core + 2 * model.query_groups * model.head_dim)


def _mlp_flops_per_token(model: ModelSpec, kind: LayerKind = DENSE) -> float:
    """Dense MLP; or router, the experts that a token is sent to, and the shared one."""
    products = 3 if model.gated_linear_unit else 2
    if not kind.experts:
        return 2.0 * model.hidden_size * model.ffn_size * products
    routed = model.moe_router_topk * model.expert_ffn_size
    width = products * (routed + model.moe_shared_expert_intermediate_size)
    return 2.0 * model.hidden_size * (width + model.expert_count)


def _core_flops_per_token(
    model: ModelSpec, training: TrainingSpec, kind: LayerKind = DENSE
) -> float:
    """Two products of s x d per head; half of that where causal attention counts the triangle, and
    where a window is shorter than that, as many as it is long."""
    widths = 2 * model.head_dim
    if model.multi_latent_attention:
        widths = model.qk_head_dim + model.qk_pos_emb_head_dim + model.v_head_dim
    keys = training.seq_length * (0.5 if training.flops_convention == "causal" else 1.0)
    if kind.window is not None:
        keys = min(keys, kind.window)
    return 2.0 * keys * model.num_attention_heads * widths


def model_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs of one step that the model needs, whoever computes it: three times its forward.

    As Megatron-LM counts them since 2022 (Korthikanti 2022, arXiv 2205.05198, appendix A):
    72 B l s h^2 (1 + s / 6h + V / 12 l h) for a GPT of 4 h. V is the vocabulary as given;
    Megatron-LM counts it padded for the tensor-parallel size, which changes its logits' part only.
    """
    logits = 2.0 * model.hidden_size * model.vocab_size
    kinds = layer_kinds(model)
    per_token = logits + sum(layer_forward_flops_per_token(model, training, k) for k in kinds)
    if model.mtp_num_layers:
        ahead = layer_forward_flops_per_token(model, training, last_kind(model))
        joined = 2.0 * model.hidden_size * 2 * model.hidden_size
        per_token += model.mtp_num_layers * (joined + ahead + logits)
    return 3.0 * per_token * training.global_batch_size * training.seq_length


def hardware_flops(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """FLOPs of one step that are executed: recomputation included."""
    tokens = training.global_batch_size * training.seq_length
    kinds = layer_kinds(model)
    extra = 0.0
    for chunk in partition(model, parallelism).values():
        again = chunk.layers[: recomputed_layers(training, len(chunk.layers))]
        extra += sum(layer_forward_flops_per_token(model, training, kinds[i]) for i in again)
    chosen = training.selected_modules
    for kind in kinds:
        if "core_attn" in chosen:
            extra += _core_flops_per_token(model, training, kind)
        if ("moe" if kind.experts else "mlp") in chosen:
            extra += _mlp_flops_per_token(model, kind)
    return model_flops(model, training) + extra * tokens
