"""Parameters and floating-point operations of a model, by named conventions."""

from workloads.partition import partition
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.stages import recomputed_layers


def parameter_count(model: ModelSpec, seq_length: int = 0) -> int:
    """Weights of the whole model with its vocabulary as given, tied embeddings once.

    `seq_length` gives the rows of a learned position table that the model leaves open.
    """
    h = model.hidden_size
    norm = h * (2 if model.normalization == "LayerNorm" else 1)
    words = model.vocab_size * h * (2 if model.untie_embeddings_and_output_weights else 1)
    learned = model.position_embedding_type == "learned_absolute"
    positions = (model.max_position_embeddings or seq_length) * h if learned else 0
    return model.num_layers * _layer_parameters(model) + norm + words + positions


def _layer_parameters(model: ModelSpec) -> int:
    h, core = model.hidden_size, model.num_attention_heads * model.head_dim
    qkv = core + 2 * model.query_groups * model.head_dim
    fc1 = model.ffn_size * (2 if model.gated_linear_unit else 1)
    biases = (qkv + h + fc1 + h) * model.add_bias_linear
    norms = 2 * h * (2 if model.normalization == "LayerNorm" else 1)
    return h * (qkv + core + fc1 + model.ffn_size) + biases + norms


def layer_forward_flops_per_token(model: ModelSpec, training: TrainingSpec) -> float:
    """Matrix products of one layer, forward: projections, scores and context, MLP."""
    h, core = model.hidden_size, model.num_attention_heads * model.head_dim
    qkv = core + 2 * model.query_groups * model.head_dim
    attention = 2.0 * h * (qkv + core) + _core_flops_per_token(model, training)
    return attention + _mlp_flops_per_token(model)


def _mlp_flops_per_token(model: ModelSpec) -> float:
    products = 3 if model.gated_linear_unit else 2
    return 2.0 * model.hidden_size * model.ffn_size * products


def _core_flops_per_token(model: ModelSpec, training: TrainingSpec) -> float:
    """Two products of s x d per head; half of that where causal attention counts the triangle."""
    core = model.num_attention_heads * model.head_dim
    half = 0.5 if training.flops_convention == "causal" else 1.0
    return 4.0 * training.seq_length * core * half


def model_flops(model: ModelSpec, training: TrainingSpec) -> float:
    """FLOPs of one step that the model needs, whoever computes it: three times its forward.

    As Megatron-LM counts them since 2022 (Korthikanti 2022, arXiv 2205.05198, appendix A):
    72 B l s h^2 (1 + s / 6h + V / 12 l h) for a GPT of 4 h. V is the vocabulary as given;
    Megatron-LM counts it padded for the tensor-parallel size, which changes its logits' part only.
    """
    logits = 2.0 * model.hidden_size * model.vocab_size
    per_token = model.num_layers * layer_forward_flops_per_token(model, training) + logits
    return 3.0 * per_token * training.global_batch_size * training.seq_length


def hardware_flops(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """FLOPs of one step that are executed: recomputation included."""
    tokens = training.global_batch_size * training.seq_length
    chunks = partition(model, parallelism).values()
    again = sum(recomputed_layers(training, len(chunk.layers)) for chunk in chunks)
    extra = again * layer_forward_flops_per_token(model, training)
    if "core_attn" in training.selected_modules:
        extra += model.num_layers * _core_flops_per_token(model, training)
    if "mlp" in training.selected_modules:
        extra += model.num_layers * _mlp_flops_per_token(model)
    return model_flops(model, training) + extra * tokens
