"""What is trained and how it is split: model, training, parallel layout, optimizer.

Keys that exist as Megatron-LM arguments carry Megatron's name. Frozen and checked; what must hold
between keys is checked by `check_layout`.
"""

from typing import Annotated, Literal, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from workloads.layer_pattern import LayerPattern
from workloads.layout_string import chunks_of_layout

Count = Annotated[int, Field(gt=0)]

RecomputeModule = Literal[
    "core_attn", "mlp", "moe", "moe_act", "layernorm", "mla_up_proj", "shared_experts"
]
"""Megatron-LM, transformer_config.py, recompute_modules."""


class Spec(BaseModel):
    """Base of all specs of this folder: frozen, no unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class ModelSpec(Spec):
    """A GPT- or Llama-like decoder: dense, or with experts in some or all of its layers."""

    name: str = "custom"
    num_layers: Annotated[int, Field(gt=0, le=10_000)]
    hidden_size: Count
    num_attention_heads: Count
    ffn_hidden_size: Count | None = None
    """Width of the MLP; 4 * hidden_size when left out."""
    num_query_groups: Count | None = None
    """Key/value heads (GQA); num_attention_heads when left out."""
    kv_channels: Count | None = None
    """Width of one head; hidden_size / num_attention_heads when left out."""
    vocab_size: Count
    make_vocab_size_divisible_by: Count = 128
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""
    max_position_embeddings: Count | None = None
    """Rows of a learned position table; the sequence length when left out."""
    position_embedding_type: Literal["learned_absolute", "rope", "none"] = "learned_absolute"
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    gated_linear_unit: bool = False
    activation_function: Literal["gelu", "silu", "squared_relu"] = "gelu"
    add_bias_linear: bool = True
    untie_embeddings_and_output_weights: bool = False
    hidden_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    attention_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    qk_layernorm: bool = False
    """Normalize queries and keys, head by head, before they are rotated."""
    window_size: Count | None = None
    """Keys that a query sees in layers with a sliding window; all before it when left out."""
    window_attn_skip_freq: LayerPattern | None = None
    """Which layers have the window: every layer but each n-th, or 1 (window) and 0 (all keys) for
    each layer; all of them when left out."""
    multi_latent_attention: bool = False
    """Queries, keys and values through low-rank projections (DeepSeek-V2, arXiv 2405.04434)."""
    q_lora_rank: Count | None = None
    """Width that queries are compressed to; not compressed when left out."""
    kv_lora_rank: Count = 512
    """Width that keys and values are compressed to."""
    qk_head_dim: Count = 128
    """Of multi-latent attention: width of a head's query and key without position, and
    qk_pos_emb_head_dim of the part that is rotated, which heads share in the key."""
    qk_pos_emb_head_dim: Count = 64
    v_head_dim: Count = 128
    """Of multi-latent attention: width of a head's value."""
    num_experts: Count | None = None
    """Experts of a layer that has them; a dense model when left out."""
    moe_router_topk: Count = 2
    """Experts that each token goes to."""
    moe_ffn_hidden_size: Count | None = None
    """Width of one expert; ffn_hidden_size when left out."""
    moe_shared_expert_intermediate_size: Annotated[int, Field(ge=0)] = 0
    """Width of the expert that every token goes to, all of them together; 0 for none."""
    moe_layer_freq: LayerPattern = 1
    """Which layers have experts: each n-th from the first, or 1 (experts) and 0 (dense) for each
    layer."""
    mtp_num_layers: Annotated[int, Field(ge=0)] = 0
    """Layers behind the last that predict tokens further ahead (DeepSeek-V3, arXiv 2412.19437,
    section 2.2), each with a loss of its own."""
    source: str = ""

    @model_validator(mode="after")
    def _fill(self) -> Self:
        fill: dict[str, int] = {}
        if self.ffn_hidden_size is None:
            fill["ffn_hidden_size"] = 4 * self.hidden_size
        if self.num_query_groups is None:
            fill["num_query_groups"] = self.num_attention_heads
        if self.kv_channels is None:
            fill["kv_channels"] = max(1, self.hidden_size // self.num_attention_heads)
        if self.moe_ffn_hidden_size is None and self.num_experts is not None:
            fill["moe_ffn_hidden_size"] = self.ffn_hidden_size or 4 * self.hidden_size
        for key, value in fill.items():
            object.__setattr__(self, key, value)
        return self

    @property
    def ffn_size(self) -> int:
        assert self.ffn_hidden_size is not None
        return self.ffn_hidden_size

    @property
    def query_groups(self) -> int:
        assert self.num_query_groups is not None
        return self.num_query_groups

    @property
    def head_dim(self) -> int:
        assert self.kv_channels is not None
        return self.kv_channels

    @property
    def expert_ffn_size(self) -> int:
        """Width of one expert, of a model that has them."""
        assert self.moe_ffn_hidden_size is not None
        return self.moe_ffn_hidden_size

    @property
    def expert_count(self) -> int:
        """Experts of a layer that has them; 0 for a dense model."""
        return self.num_experts or 0

    def padded_vocab_size(self, tensor_model_parallel_size: int) -> int:
        """Vocabulary rounded up so that every tensor rank holds an equal, aligned part."""
        multiple = self.make_vocab_size_divisible_by * tensor_model_parallel_size
        return -(-self.vocab_size // multiple) * multiple


class LowPrecision(Spec):
    """Linear layers in 8 or 4 bits, as Transformer Engine runs them. Attention, embedding, logits,
    norms and activation functions stay in bf16."""

    format: Literal["hybrid", "e4m3", "e2m1"] = "hybrid"
    """`hybrid`: e4m3 forward, e5m2 for gradients. `e2m1`: 4 bits, of recipe nvfp4."""
    recipe: Literal["delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"] = "delayed"
    """Scales: per tensor from past maxima (`delayed`) or from its own (`tensorwise`), per block of
    128 x 128 or 1 x 128 (`blockwise`), per 32 (`mxfp8`, Blackwell) or per 16 (`nvfp4`)."""
    amax_history_len: Count = 1024
    """Of `delayed`: maxima that a scale is taken from."""
    amax_compute_algo: Literal["max", "most_recent"] = "max"
    param_gather: bool = False
    """Keep and gather weights in 8 bits only (Megatron-LM's fp8_param_gather)."""


def _spelling(value: object) -> str:
    """How a precision is written: as a name or as a mapping."""
    return "[name]" if isinstance(value, str) else "[mapping]"


Precision: TypeAlias = Annotated[
    Annotated[Literal["bf16", "fp16", "fp8", "nvfp4"], Tag("[name]")]
    | Annotated[LowPrecision, Tag("[mapping]")],
    Discriminator(_spelling),
]


class TrainingSpec(Spec):
    """One step: what goes in, in which precision, what is recomputed."""

    seq_length: Count
    micro_batch_size: Count
    global_batch_size: Count
    precision: Precision = "bf16"
    """bf16, fp16, fp8 (recipe delayed), nvfp4, or a mapping: {recipe, param_gather, ...}."""
    recompute_granularity: Literal["none", "selective", "full"] = "none"
    recompute_method: Literal["uniform", "block"] = "uniform"
    """Of full recomputation: `uniform` checkpoints groups of recompute_num_layers layers,
    `block` recomputes the first recompute_num_layers layers of each chunk."""
    recompute_num_layers: Count = 1
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """Of selective recomputation: what runs again in the backward of every layer. `core_attn`: the
    attention core; `mlp`: the dense MLP; `layernorm`: both norms, whose outputs are thrown away;
    the others belong to experts and to multi-latent attention."""
    cpu_offloading: bool = False
    """Copy the activations of the first cpu_offloading_num_layers layers to the host in the
    forward, and back in the backward. On one pipeline stage, without recomputation."""
    cpu_offloading_num_layers: Annotated[int, Field(ge=0)] = 0
    attention_backend: Literal["fused", "flash", "flash1", "unfused"] = "fused"
    """`fused`: cuDNN's kernel, which Transformer Engine takes on Hopper. `flash`: FlashAttention 2,
    half as fast there and as fast on Ampere. `flash1`: FlashAttention before July 2023. `unfused`:
    bmm, masked softmax, dropout, bmm (before 2023)."""
    flops_convention: Literal["full", "causal"] = "full"
    """How model FLOPs count causal attention: the whole square, or half of it."""
    accumulate_allreduce_grads_in_fp32: bool = True
    """Main gradients (and what is reduced) in 4 bytes instead of 2."""
    gradient_accumulation_fusion: bool = True
    """Weight gradients are added to the main gradients by the GEMM itself; otherwise (before 2022,
    or without APEX) by a kernel of its own after each."""
    cross_entropy_loss_fusion: bool = False
    cuda_graph: Literal["none", "per_layer", "full_iteration"] = "none"
    """Replayed instead of launched by the host: `per_layer`, forward and backward of each
    transformer layer as one graph; `full_iteration`, all forwards and backwards of a step. Matters
    where cluster.profile.host_operation_s is set; the memory of graphs is not modelled."""
    joined_keys_values: bool = False
    """Keys and values are joined, and laid out side by side, by kernels of their own before they
    are rotated (nanotron); otherwise attention takes them as they come."""
    bias_activation_fusion: bool = True
    """A gated activation is one kernel; otherwise SiLU and product are kernels of their own."""
    moe_grouped_gemm: bool = False
    """All experts of a rank in one grouped product; otherwise one after the other."""
    moe_permute_fusion: bool = False
    """Tokens are put in the order of their experts by one kernel; otherwise by several."""
    moe_expert_capacity_factor: Annotated[float, Field(gt=0)] | None = None
    """Each expert takes at most this many times its even share of tokens, the rest is dropped; no
    limit when left out."""
    moe_pad_expert_input_to_capacity: bool = False
    """Fill each expert's input up to its capacity."""
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"] = (
        "aux_loss"
    )
    """What keeps experts evenly loaded; what it costs, not how well it works: see moe_routing."""
    moe_routing: Literal["balanced", "zipf", "histogram"] = "balanced"
    """How tokens spread over experts: evenly; by a power law, see moe_zipf_exponent; or as
    measured, see moe_expert_loads. The fullest rank sets pace and memory."""
    moe_zipf_exponent: Annotated[float, Field(ge=0, le=5)] = 0.0
    """Of zipf: the i-th expert takes tokens in proportion to i to the minus this."""
    moe_expert_loads: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Of histogram: tokens of each expert, in any unit, in the order in which ranks hold them."""

    @property
    def selected_modules(self) -> frozenset[RecomputeModule]:
        """What selective recomputation runs again; nothing unless it is asked for."""
        chosen = self.recompute_granularity == "selective"
        return frozenset(self.recompute_modules if chosen else ())

    @property
    def offloaded_layers(self) -> int:
        """Layers whose activations spend the time until their backward on the host."""
        return self.cpu_offloading_num_layers if self.cpu_offloading else 0

    @property
    def low_precision(self) -> LowPrecision | None:
        """How linear layers are quantized, if they are."""
        if isinstance(self.precision, LowPrecision):
            return self.precision
        named = {"fp8": LowPrecision(), "nvfp4": LowPrecision(format="e2m1", recipe="nvfp4")}
        return named.get(self.precision)

    @property
    def dtype(self) -> str:
        """Of all that is not quantized."""
        return "fp16" if self.precision == "fp16" else "bf16"

    @property
    def linear_dtype(self) -> str:
        """Of the operands of linear layers, as kernels know them."""
        low = self.low_precision
        return self.dtype if low is None else _KERNEL_TYPES[low.recipe]


_KERNEL_TYPES = {
    "delayed": "fp8", "tensorwise": "fp8", "blockwise": "fp8_blockwise", "mxfp8": "mxfp8",
    "nvfp4": "nvfp4",
}  # fmt: skip


class ParallelismSpec(Spec):
    """How ranks are laid out: tensor, pipeline and, for what is left, data parallel."""

    tensor_model_parallel_size: Count = 1
    pipeline_model_parallel_size: Count = 1
    virtual_pipeline_model_parallel_size: Count = 1
    """Model chunks per stage; what pipeline_model_parallel_layout makes of it, when left out."""
    num_layers_in_first_pipeline_stage: Count | None = None
    """Transformer layers of the first stage; the other stages share the rest evenly."""
    num_layers_in_last_pipeline_stage: Count | None = None
    account_for_embedding_in_pipeline_split: bool = False
    """Count the embedding as a layer when layers are divided: one fewer in the first chunk."""
    account_for_loss_in_pipeline_split: bool = False
    """Count the loss as a layer: one fewer in the last chunk."""
    pipeline_model_parallel_layout: str | None = None
    """What each chunk holds: E embedding, t layer, L loss, | between chunks, (...)*n repeats, such
    as `Ett|(ttt|)*6tL`."""
    context_parallel_size: Count = 1
    """Ranks that share each sequence; every rank holds two of 2 x this many equal parts, one from
    either end, so that causal attention is the same work for all."""
    cp_comm_type: Literal["p2p", "a2a", "all_gather", "a2a+p2p"] = "p2p"
    """How attention sees the whole sequence. `p2p`: keys and values go round a ring beside the
    blocks of attention. `a2a`: ranks swap tokens for heads and back (Ulysses). `all_gather`: keys
    and values are gathered before it. `a2a+p2p`: a2a inside, ring between, see
    hierarchical_context_parallel_sizes."""
    hierarchical_context_parallel_sizes: tuple[Count, Count] | None = None
    """Of `a2a+p2p`: neighbouring ranks that swap heads, and ranks of each ring."""
    expert_model_parallel_size: Count = 1
    """Ranks that share the experts of a layer, on a grid of their own (parallel folding)."""
    expert_tensor_parallel_size: Count | None = None
    """Ranks that share each expert; tensor_model_parallel_size when left out."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall", "flex"] = "allgather"
    """How tokens reach their experts: all tokens to all ranks; each to the ranks of its experts,
    once for every expert; or once for every rank, copied there (DeepEP, HybridEP)."""
    moe_shared_expert_overlap: bool = False
    """Run the shared expert beside the exchange of tokens; needs alltoall."""
    overlap_moe_expert_parallel_comm: bool = False
    """Exchange one microbatch's tokens beside the compute of another's."""
    delay_wgrad_compute: bool = False
    """Of overlap_moe_expert_parallel_comm: run weight gradients beside the exchange too."""
    rank_order: str = "tp-cp-ep-dp-pp"
    """Axes from neighbouring ranks to distant ones. Megatron-LM's default; with
    --use-tp-pp-dp-mapping it is tp-cp-ep-pp-dp. Its tp and dp are the experts' where these lie
    otherwise."""
    sequence_parallel: bool = False
    pipeline_schedule: (
        Literal["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v", "dualpipe_v"] | None
    ) = None
    """interleaved_1f1b when there is more than one chunk per stage, else 1f1b, when left out.
    zb_v and dualpipe_v run two chunks per stage, down the stages and back up."""
    microbatch_group_size_per_vp_stage: Count | None = None
    """Of interleaved_1f1b: microbatches that run through one chunk before the next takes over; the
    number of stages, when left out."""
    defer_embedding_wgrad_compute: bool = False
    """The last stage leaves the weight gradients of its logits to the end, when it would wait for
    the stages before it. Keeps the logits' gradients of all those microbatches."""
    wgrad_deferral_limit: Annotated[int, Field(ge=0)] = 0
    """Microbatches, the first, for which it does; 0 for all."""
    overlap_p2p_communication: bool | None = None
    """Send and receive beside compute; off for gpipe and 1f1b, else on, when left out."""
    scatter_gather_tensors_in_pipeline: bool = True
    """Tensor-parallel ranks without sequence parallelism each send their part of a microbatch to
    the next stage, which gathers it; otherwise each sends the whole."""
    tp_comm_overlap: bool = False
    """Pipeline GEMMs with their all-gather or reduce-scatter (userbuffers); needs
    sequence_parallel."""
    async_tensor_model_parallel_allreduce: bool = True
    """Without sequence_parallel: all-reduce an input gradient beside its weight's; off, as before
    2022, after both."""

    @field_validator("rank_order")
    @classmethod
    def _is_order(cls, text: str) -> str:
        if sorted(text.split("-")) != ["cp", "dp", "ep", "pp", "tp"]:
            raise ValueError(f"{text!r} is no order of all axes, such as tp-cp-ep-dp-pp")
        return text

    @field_validator("pipeline_model_parallel_layout")
    @classmethod
    def _is_layout(cls, text: str | None) -> str | None:
        if text is not None:
            chunks_of_layout(text)
        return text

    @model_validator(mode="after")
    def _fill(self) -> Self:
        layout = self.pipeline_model_parallel_layout
        if layout and "virtual_pipeline_model_parallel_size" not in self.model_fields_set:
            chunks = len(chunks_of_layout(layout)) // self.pipeline_model_parallel_size
            object.__setattr__(self, "virtual_pipeline_model_parallel_size", max(1, chunks))
        if self.v_shaped and "virtual_pipeline_model_parallel_size" not in self.model_fields_set:
            object.__setattr__(self, "virtual_pipeline_model_parallel_size", 2)
        if self.pipeline_schedule is None:
            many = self.virtual_pipeline_model_parallel_size > 1
            object.__setattr__(self, "pipeline_schedule", "interleaved_1f1b" if many else "1f1b")
        if self.overlap_p2p_communication is None:
            overlaps = self.pipeline_schedule not in ("gpipe", "1f1b")
            object.__setattr__(self, "overlap_p2p_communication", overlaps)
        return self

    @property
    def v_shaped(self) -> bool:
        """Whether the second chunk of each stage goes back from the last stage to the first."""
        return self.pipeline_schedule in ("zb_v", "dualpipe_v")

    @property
    def wraps(self) -> bool:
        """Whether the last stage feeds the first one."""
        return self.virtual_pipeline_model_parallel_size > 1 and not self.v_shaped

    @property
    def num_model_parallel(self) -> int:
        """GPUs that work on one replica's batch together: tensor x context x pipeline."""
        sizes = self.tensor_model_parallel_size * self.pipeline_model_parallel_size
        return sizes * self.context_parallel_size

    @property
    def context_swap_size(self) -> int:
        """Ranks of a context-parallel group that swap tokens for heads; the others of it are
        ring-wise."""
        if self.cp_comm_type == "a2a+p2p" and self.hierarchical_context_parallel_sizes:
            return self.hierarchical_context_parallel_sizes[0]
        return self.context_parallel_size if self.cp_comm_type == "a2a" else 1

    @property
    def expert_tensor_size(self) -> int:
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    def expert_copies(self, data_parallel_size: int) -> int:
        """Ranks of a stage that hold the same experts."""
        ranks = data_parallel_size * self.context_parallel_size * self.tensor_model_parallel_size
        return ranks // (self.expert_tensor_size * self.expert_model_parallel_size)

    def data_parallel_size(self, num_gpus: int) -> int:
        """Replicas of the batch on `num_gpus`."""
        return num_gpus // self.num_model_parallel


class OptimizerSpec(Spec):
    """Adam, its sharding and what hides behind compute."""

    use_distributed_optimizer: bool = False
    """ZeRO-1: optimizer state sharded over data-parallel ranks."""
    data_parallel_sharding: Literal["none", "zero1", "zero2", "zero3"] | None = None
    """What data-parallel ranks share out: optimizer state (`zero1`), gradients too (`zero2`),
    weights too (`zero3`, FSDP: gathered layer by layer, forward and backward). zero1 with
    use_distributed_optimizer and none without, when left out."""
    num_distributed_optimizer_instances: Count = 1
    """Groups of data-parallel ranks that each hold a whole copy of what is sharded (HSDP);
    neighbouring ranks form one."""
    reshard_after_forward: bool = True
    """Of zero3: drop a layer's weights after its forward and gather them again for its backward."""
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    """Needs use_distributed_optimizer. Of zero3: gather the next layer's weights beside compute."""
    ddp_bucket_size: Count | None = None
    """Parameters per gradient bucket; max(40e6, 1e6 * data-parallel size) when left out, as
    Megatron-LM does."""
    clip_grad: Annotated[float, Field(ge=0)] = 1.0
    """0 leaves out the gradient norm."""
    optimizer_cpu_offload: bool = False
    """Adam and its state on the host: gradients go there, weights come back. Needs
    use_distributed_optimizer."""
    optimizer_offload_fraction: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the parameters, of optimizer_cpu_offload."""
    overlap_cpu_optimizer_d2h_h2d: bool = False
    """Step on the host layer by layer, while others are copied; otherwise copies and step follow
    each other."""
    enable_optimizer_post_validation: bool = False
    """Stages step without waiting for the gradient norm (or for infinities) of the others, and undo
    the step if those say so (Qi 2023, arXiv 2401.10241, section 4): each begins its next step when
    its own ends. Steps that are undone are not modelled."""

    @model_validator(mode="after")
    def _fill(self) -> Self:
        if self.data_parallel_sharding is None:
            sharding = "zero1" if self.use_distributed_optimizer else "none"
            object.__setattr__(self, "data_parallel_sharding", sharding)
        elif self.data_parallel_sharding != "none" and not self._refuses_distribution:
            object.__setattr__(self, "use_distributed_optimizer", True)
        return self

    @property
    def _refuses_distribution(self) -> bool:
        written = "use_distributed_optimizer" in self.model_fields_set
        return written and not self.use_distributed_optimizer

    @property
    def shards_gradients(self) -> bool:
        return self.data_parallel_sharding in ("zero2", "zero3")

    @property
    def shards_weights(self) -> bool:
        return self.data_parallel_sharding == "zero3"

    @property
    def offloaded_fraction(self) -> float:
        """Of the parameters, those that are stepped on the host."""
        return self.optimizer_offload_fraction if self.optimizer_cpu_offload else 0.0
