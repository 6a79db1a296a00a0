"""Hugging Face's families of models: what each key of their config.json means here.

After the configuration classes of the `transformers` library (`models/*/configuration_*.py`): names
of keys, and what holds where a key is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

SIZES: Mapping[str, str] = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_query_groups",
    "intermediate_size": "ffn_hidden_size",
    "head_dim": "kv_channels",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
    "attention_dropout": "attention_dropout",
}
"""Key of config.json -> field of the model, as most families have them."""

EXPERTS: Mapping[str, str] = {
    "num_local_experts": "num_experts",
    "num_experts": "num_experts",
    "n_routed_experts": "num_experts",
    "num_experts_per_tok": "moe_router_topk",
    "experts_per_token": "moe_router_topk",
    "moe_intermediate_size": "moe_ffn_hidden_size",
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
}
"""The same of mixtures of experts."""

LATENT: Mapping[str, str] = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
}
"""The same of multi-latent attention."""

_LLAMA: Mapping[str, object] = {
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "activation_function": "silu",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "hidden_dropout": "0.0",
    "attention_dropout": "0.0",
}
_GEMMA = {**_LLAMA, "activation_function": "gelu"}
_LATENT = {**_LLAMA, "multi_latent_attention": True}


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`."""

    sizes: Mapping[str, str]
    """Key of config.json -> field of the model."""
    fixed: Mapping[str, object]
    """Field -> what holds for the whole family, unless a key of the file says otherwise."""
    tied: bool = False
    """Whether one table serves as embedding and output where `tie_word_embeddings` is absent."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Field that the family has by nature -> what it is, in words."""


_QK_NORM = {"qk_layernorm": "a norm of queries and keys"}
_QKV_BIAS = {"add_qkv_bias": "biases of queries, keys and values"}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(SIZES, _LLAMA),
    "mistral": Family(SIZES, _LLAMA),
    "phi3": Family(SIZES, _LLAMA),
    "mixtral": Family({**SIZES, **EXPERTS}, _LLAMA),
    "qwen2": Family(SIZES, _LLAMA, lacks=_QKV_BIAS),
    "qwen2_moe": Family({**SIZES, **EXPERTS}, _LLAMA, lacks=_QKV_BIAS),
    "qwen3": Family(SIZES, _LLAMA, lacks=_QK_NORM),
    "qwen3_moe": Family({**SIZES, **EXPERTS}, _LLAMA, lacks=_QK_NORM),
    "deepseek_v2": Family({**SIZES, **EXPERTS, **LATENT}, _LATENT),
    "deepseek_v3": Family({**SIZES, **EXPERTS, **LATENT}, _LATENT),
    "gpt_oss": Family({**SIZES, **EXPERTS}, _LLAMA, lacks={"biases": "biases of linear layers"}),
    "gemma": Family(SIZES, _GEMMA, tied=True),
    "gemma2": Family(SIZES, _GEMMA, tied=True, lacks={"post_norms": "norms after each block"}),
    "gemma3_text": Family(
        SIZES, _GEMMA, tied=True, lacks={"post_norms": "norms after each block", **_QK_NORM}
    ),
    "nemotron": Family(
        SIZES,
        {**_LLAMA, "normalization": "LayerNorm", "gated_linear_unit": False,
         "activation_function": "squared_relu"},
    ),
    "gpt2": Family(
        {
            "n_embd": "hidden_size", "n_layer": "num_layers", "n_head": "num_attention_heads",
            "n_inner": "ffn_hidden_size", "n_positions": "max_position_embeddings",
            "vocab_size": "vocab_size", "resid_pdrop": "hidden_dropout",
            "attn_pdrop": "attention_dropout",
        },
        {},
        tied=True,
    ),
    "gpt_neox": Family(
        {**SIZES, "hidden_dropout": "hidden_dropout"},
        {"position_embedding_type": "rope", "hidden_dropout": "0.0", "attention_dropout": "0.0"},
    ),
}  # fmt: skip
"""`model_type` of a config.json -> its family."""

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu2": "squared_relu",
}
"""Hugging Face's activations -> ours."""

KINDS: Mapping[str, str] = {
    "num_experts": "a mixture of experts",
    "moe_router_topk": "a mixture of experts",
    "moe_ffn_hidden_size": "a mixture of experts",
    "moe_shared_expert_intermediate_size": "a mixture of experts",
    "moe_layer_freq": "a mixture of experts",
    "multi_latent_attention": "multi-latent attention",
    "q_lora_rank": "multi-latent attention",
    "kv_lora_rank": "multi-latent attention",
    "qk_head_dim": "multi-latent attention",
    "qk_pos_emb_head_dim": "multi-latent attention",
    "v_head_dim": "multi-latent attention",
}
"""Field -> what a model without it would lack so much that it would be another one."""

IGNORED: Mapping[str, str] = {
    "how it is trained, run or stored, without a change of its size": """
        _name_or_path architectures model_type torch_dtype dtype transformers_version use_cache
        *_token_id auto_map pretraining_tp tokenizer_class task_specific_params summary_* id2label
        label2id problem_type output_* return_dict* gradient_checkpointing quantization_config
        initializer_range embedding_initializer_range use_cache cache_implementation unsloth_version
        router_aux_loss_coef aux_loss_alpha seq_aux output_router_logits router_jitter_noise
        swiglu_limit embd_pdrop""",
    "details that change no size": """
        rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps rope_* rotary_* original_max_*
        partial_rotary_factor norm_topk_prob routed_scaling_factor scoring_func topk_method
        topk_group n_group query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping
        use_bidirectional_attention scale_attn* reorder_and_upcast_attn initial_context_length
        hidden_dim n_ctx moe_layer_freq max_window_layers ep_size use_qk_norm
        attention_multiplier""",
}
"""Why -> keys that are left out on purpose; `*` stands for any ending."""

NOT_MODELLED: Mapping[str, str] = {
    "attention that sees a window of the sequence only": "sliding_window* layer_types",
    "layers without experts": "first_k_dense_replace decoder_sparse_step mlp_only_layers",
    "blocks of attention and MLP beside each other": "use_parallel_residual",
    "layers that predict further tokens": "num_nextn_predict_layers",
    "biases of queries, keys and values": "attention_bias",
}
"""What it concerns -> keys that change the step and are not modelled."""
