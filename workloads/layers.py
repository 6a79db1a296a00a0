"""The parts of a transformer layer as operations of one tensor-parallel rank for one microbatch.

Shape letters: s sequence, b microbatch, T = s b / c tokens of the rank (c context-parallel size),
h hidden, a heads, g query groups, d head
width, f MLP width, t tensor-parallel size. Under sequence parallelism norms, dropout and residuals
see T / t tokens ("n tokens" below).

Bytes are the ideal traffic of the fused kernels that Megatron-LM uses: two bytes per element, one
per dropout mask entry, each input read and each output written once.
"""

from dataclasses import dataclass
from functools import cached_property

from workloads.operations import Collective, Gemm, MemoryBound, Operation, Overlapped
from workloads.quantization import operand_bytes, quantized, quantized_norm
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec

ELEMENT_BYTES = 2
MASK_BYTES = 1
TRANSFORMER_LAYER = "transformer layer"


@dataclass(frozen=True)
class Shapes:
    """Sizes of one microbatch on one tensor-parallel rank."""

    model: ModelSpec
    training: TrainingSpec
    parallelism: ParallelismSpec

    @property
    def t(self) -> int:
        return self.parallelism.tensor_model_parallel_size

    @property
    def h(self) -> int:
        return self.model.hidden_size

    @cached_property
    def tokens(self) -> int:
        """T."""
        tokens = self.training.seq_length * self.training.micro_batch_size
        return tokens // self.parallelism.context_parallel_size

    @cached_property
    def norm_tokens(self) -> int:
        """n: tokens that norms, dropout and residual adds see."""
        return self.tokens // self.t if self.parallelism.sequence_parallel else self.tokens

    @cached_property
    def heads(self) -> int:
        return self.model.num_attention_heads // self.t

    @cached_property
    def kv_heads(self) -> int:
        """Query groups on this rank; groups are copied when there are fewer than ranks.
        Multi-latent attention has as many as heads."""
        return max(1, self.model.query_groups // self.t)

    @cached_property
    def qkv_width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.model.head_dim

    @cached_property
    def core_width(self) -> int:
        """Output of the attention core."""
        latent = self.model.multi_latent_attention
        return self.heads * (self.model.v_head_dim if latent else self.model.head_dim)

    @property
    def core_head_dim(self) -> int:
        """Width of a head as the core's products see it: mean of its key's and its value's."""
        model = self.model
        if not model.multi_latent_attention:
            return model.head_dim
        return (model.qk_head_dim + model.qk_pos_emb_head_dim + model.v_head_dim) // 2

    @cached_property
    def ffn(self) -> int:
        return self.model.ffn_size // self.t

    @cached_property
    def fc1_width(self) -> int:
        """Output of the first MLP product: gate and value side by side when gated."""
        return self.ffn * (2 if self.model.gated_linear_unit else 1)

    @property
    def norm_parameters(self) -> int:
        return self.h * (2 if self.model.normalization == "LayerNorm" else 1)

    @property
    def stream_bytes(self) -> float:
        """The residual stream of one microbatch, whole: T h."""
        return float(self.tokens * self.h * ELEMENT_BYTES)

    @property
    def norm_bytes(self) -> float:
        """The part of it that this rank's norms see: n h."""
        return float(self.norm_tokens * self.h * ELEMENT_BYTES)


# linear layers


def column_forward(
    x: Shapes,
    name: str,
    width: int,
    *,
    overlap: bool | None = None,
    bias: bool | None = None,
    counted: bool = True,
    in_layer: bool = True,
) -> tuple[Operation, ...]:
    """Column-parallel product [T, h] x [h, width]: gathers its input under sequence parallelism.

    `counted`: the weights are this layer's own and not another's. `in_layer`: behind a norm of a
    transformer layer, quantized in low precision; logits are not.
    """
    weights = (x.h * width + width * _has_bias(x, bias)) * counted
    gemm = Gemm(name, x.tokens, width, x.h, "fwd", _dtype(x, in_layer), parameters=weights)
    scaled = quantized_norm(x, f"{name} input", x.norm_tokens * x.h) if in_layer else ()
    if not x.parallelism.sequence_parallel:
        return *scaled, gemm
    gather = Collective(f"{name} input", "all_gather", "tp", _gathered_bytes(x, in_layer))
    if x.parallelism.tp_comm_overlap if overlap is None else overlap:
        return *scaled, Overlapped(name, (gemm,), gather, "pipelined")
    return *scaled, gather, gemm


def column_backward(
    x: Shapes,
    name: str,
    width: int,
    *,
    bias: bool | None = None,
    counted: bool = True,
    in_layer: bool = True,
) -> tuple[Operation, ...]:
    """dgrad [T, width] x [width, h] and wgrad [width, T] x [T, h] of a column-parallel product.

    Megatron's tensor_parallel/layers.py: under sequence parallelism the input is gathered again
    beside dgrad, and dgrad is reduce-scattered beside wgrad; without it dgrad is all-reduced
    beside wgrad. Userbuffers do the same in bulk.
    """
    weights = (x.h * width + width * _has_bias(x, bias)) * counted
    dgrad = Gemm(f"{name} dgrad", x.tokens, x.h, width, "dgrad", _dtype(x, in_layer))
    wgrad = wgrad_products(x, name, width, x.h, weights, in_layer)
    scaled = quantized(x, f"{name} output gradient", x.tokens * width) if in_layer else ()
    if x.t == 1:
        return *scaled, dgrad, *wgrad
    if not x.parallelism.sequence_parallel:
        reduce = Collective(f"{name} dgrad", "all_reduce", "tp", x.stream_bytes)
        if not x.parallelism.async_tensor_model_parallel_allreduce:
            return *scaled, dgrad, *wgrad, reduce
        return *scaled, dgrad, Overlapped(f"{name} wgrad", wgrad, reduce, "concurrent")
    gather = Collective(f"{name} input again", "all_gather", "tp", _gathered_bytes(x, in_layer))
    scatter = Collective(f"{name} dgrad", "reduce_scatter", "tp", x.stream_bytes)
    return (
        *scaled,
        Overlapped(f"{name} dgrad", (dgrad,), gather, "concurrent"),
        Overlapped(f"{name} wgrad", wgrad, scatter, "concurrent"),
    )


def row_forward(x: Shapes, name: str, width: int) -> tuple[Operation, ...]:
    """Row-parallel product [T, width] x [width, h], whose parts are summed over the group."""
    weights = x.h * width + x.h * _has_bias(x, None)
    gemm = Gemm(name, x.tokens, x.h, width, "fwd", _dtype(x), parameters=weights)
    scaled = quantized(x, f"{name} input", x.tokens * width)
    if x.t == 1:
        return *scaled, gemm
    if not x.parallelism.sequence_parallel:
        return *scaled, gemm, Collective(f"{name} output", "all_reduce", "tp", x.stream_bytes)
    scatter = Collective(f"{name} output", "reduce_scatter", "tp", x.stream_bytes)
    if x.parallelism.tp_comm_overlap:
        return *scaled, Overlapped(name, (gemm,), scatter, "pipelined")
    return *scaled, gemm, scatter


def row_backward(x: Shapes, name: str, width: int) -> tuple[Operation, ...]:
    """dgrad [T, h] x [h, width] and wgrad [h, T] x [T, width]; the output's gradient is gathered
    first under sequence parallelism."""
    weights = x.h * width + x.h * _has_bias(x, None)
    dgrad = Gemm(f"{name} dgrad", x.tokens, width, x.h, "dgrad", _dtype(x))
    wgrad = wgrad_products(x, name, x.h, width, weights)
    scaled = quantized(x, f"{name} output gradient", x.norm_tokens * x.h)
    if not x.parallelism.sequence_parallel:
        return *scaled, dgrad, *wgrad
    gather = Collective(f"{name} output gradient", "all_gather", "tp", _gathered_bytes(x))
    if x.parallelism.tp_comm_overlap:
        return *scaled, Overlapped(f"{name} dgrad", (dgrad,), gather, "pipelined"), *wgrad
    return *scaled, gather, dgrad, *wgrad


def _dtype(x: Shapes, in_layer: bool = True) -> str:
    return x.training.linear_dtype if in_layer else x.training.dtype


def _gathered_bytes(x: Shapes, in_layer: bool = True) -> float:
    """T h elements as a linear layer takes them in."""
    each = operand_bytes(x.training) if in_layer else ELEMENT_BYTES
    return float(x.tokens * x.h * each)


def wgrad_products(
    x: Shapes,
    name: str,
    rows: int,
    columns: int,
    weights: int,
    in_layer: bool = True,
    tokens: int | None = None,
) -> tuple[Gemm | MemoryBound, ...]:
    """[rows, T] x [T, columns], added into the main gradient: by the GEMM itself, or by a kernel
    that reads the 2-byte product and reads and writes the main gradient."""
    in_fp32 = x.training.accumulate_allreduce_grads_in_fp32
    fused = x.training.gradient_accumulation_fusion
    gemm = Gemm(
        f"{name} wgrad", rows, columns, tokens or x.tokens, "wgrad", _dtype(x, in_layer),
        accumulate_fp32=in_fp32 and fused, parameters=weights if fused else 0,
    )  # fmt: skip
    if fused:
        return (gemm,)
    per_weight = ELEMENT_BYTES + 2 * (4 if in_fp32 else ELEMENT_BYTES)
    added = float(per_weight * rows * columns)
    return gemm, MemoryBound(f"{name} wgrad add", "elementwise", added, weights, True)


def _has_bias(x: Shapes, bias: bool | None) -> int:
    return int(x.model.add_bias_linear if bias is None else bias)


# memory-bound kernels


def norm_kernel(x: Shapes, direction: str) -> str:
    """Class of the model's norms."""
    return f"{x.model.normalization.lower()}_{direction}"


def norm_forward(x: Shapes, name: str) -> tuple[Operation, ...]:
    """LayerNorm or RMSNorm: reads and writes n h."""
    kernel = norm_kernel(x, "fwd")
    return (MemoryBound(name, kernel, 2 * x.norm_bytes, x.norm_parameters),)


def norm_backward(x: Shapes, name: str, *, residual: bool = True) -> tuple[Operation, ...]:
    """Reads input and gradient, writes gradient; then the residual's gradient is added, where
    there is one."""
    kernel = norm_kernel(x, "bwd")
    norm = MemoryBound(name, kernel, 3 * x.norm_bytes, x.norm_parameters)
    if not residual:
        return (norm,)
    return norm, MemoryBound("residual gradient", "elementwise", 3 * x.norm_bytes)


def dropout_add(x: Shapes, name: str) -> tuple[Operation, ...]:
    """Bias, dropout and residual add in one kernel: two reads and a write of n h, and the mask."""
    mask = x.norm_tokens * x.h * MASK_BYTES if x.model.hidden_dropout else 0
    return (MemoryBound(f"{name} add", "bias_dropout_add", 3 * x.norm_bytes + mask),)


def dropout_add_backward(x: Shapes, name: str) -> tuple[Operation, ...]:
    """Dropout's backward (nothing to do without dropout) and the bias gradient's column sums."""
    parts: list[Operation] = []
    if x.model.hidden_dropout:
        mask = x.norm_tokens * x.h * MASK_BYTES
        parts.append(MemoryBound(f"{name} dropout", "bias_dropout_add", 2 * x.norm_bytes + mask))
    return (*parts, *bias_gradient(x, name, x.norm_tokens * x.h))


def bias_gradient(x: Shapes, name: str, num_elements: int) -> tuple[Operation, ...]:
    """Column sums of an output's gradient, where there is a bias."""
    if not x.model.add_bias_linear:
        return ()
    return (MemoryBound(f"{name} bias", "bias_grad", float(num_elements * ELEMENT_BYTES)),)


def activation(x: Shapes, direction: str, tokens: int, width: int) -> tuple[MemoryBound, ...]:
    """Bias + GeLU, squared ReLU, or SwiGLU of `tokens` x `width`: reads fc1's output (and the
    gradient), writes fc2's input (or fc1's gradient); one kernel when fused.

    Unfused SwiGLU: SiLU of the gate, then the product with the value; backward, the product's two
    gradients, SiLU's, and both put side by side.
    """
    gated = x.model.gated_linear_unit
    kernel = "swiglu" if gated else "bias_gelu"
    narrow = tokens * width
    wide = narrow * (2 if gated else 1)
    if gated and not x.training.bias_activation_fusion:
        each = (2, 3) if direction == "fwd" else (5, 3, 4)
        steps = ("silu", "product") if direction == "fwd" else ("product", "silu", "join")
        return tuple(
            MemoryBound(f"activation {step}", "elementwise", float(n * narrow * ELEMENT_BYTES))
            for step, n in zip(steps, each, strict=True)
        )
    elements = wide + narrow if direction == "fwd" else 2 * wide + narrow
    return (MemoryBound("activation", f"{kernel}_{direction}", float(elements * ELEMENT_BYTES)),)


def qkv_copies(x: Shapes) -> tuple[Operation, ...]:
    """Query, key and value are copied out of the joint product (seen in our H200 traces)."""
    return (
        MemoryBound("qkv split", "elementwise", float(2 * x.tokens * x.qkv_width * ELEMENT_BYTES)),
    )


def qk_norm(x: Shapes, direction: str) -> tuple[Operation, ...]:
    """Queries and keys normalized head by head, with weights that heads share."""
    if not x.model.qk_layernorm:
        return ()
    kernel = norm_kernel(x, direction)
    each = 2 if direction == "fwd" else 3
    weights = x.model.head_dim * (2 if x.model.normalization == "LayerNorm" else 1)
    parts = (("query norm", x.heads), ("key norm", x.kv_heads))
    return tuple(
        MemoryBound(
            name, kernel, float(each * x.tokens * heads * x.model.head_dim * ELEMENT_BYTES), weights
        )
        for name, heads in parts
    )


def joined_keys_values(x: Shapes, steps: tuple[str, ...]) -> tuple[Operation, ...]:
    """Keys and values read and written once more by each step: joined and laid out side by side
    forward; backward only their gradients are joined, the rest is views."""
    if not x.training.joined_keys_values:
        return ()
    num_bytes = float(2 * x.tokens * 2 * x.kv_heads * x.model.head_dim * ELEMENT_BYTES)
    return tuple(MemoryBound(f"keys and values {s}", "elementwise", num_bytes) for s in steps)


def rotary(x: Shapes) -> tuple[Operation, ...]:
    """Rotates queries and keys: read and written once."""
    if x.model.position_embedding_type != "rope":
        return ()
    width = (x.heads + x.kv_heads) * x.model.head_dim
    return (MemoryBound("rotary", "rotary", float(2 * x.tokens * width * ELEMENT_BYTES)),)
