"""Multi-latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries, keys and values
come from low-rank projections.

Shape letters as in `workloads.layers`; r_q and r_kv ranks of the projections, d_n, d_r and d_v
widths of a head's query and key without position, of its rotated part, and of its value. Follows
Megatron-LM, core/transformer/multi_latent_attention.py: the down projections are whole on every
tensor-parallel rank and see its own tokens; what they give is gathered for the up projections,
which are column-parallel.
"""

from workloads.attention import attention_core
from workloads.blocks import Block
from workloads.layers import (
    ELEMENT_BYTES,
    Shapes,
    column_backward,
    column_forward,
    norm_kernel,
    row_backward,
    row_forward,
    wgrad_products,
)
from workloads.operations import Collective, Gemm, MemoryBound, Operation
from workloads.quantization import quantized


def latent_attention(x: Shapes, window: int | None) -> Block:
    """Projections, attention core and output projection."""
    core, core_backward = attention_core(x, window)
    model = x.model
    kv_width = x.heads * (model.qk_head_dim + model.v_head_dim)
    up = (*_up(x, "kv", model.kv_lora_rank, kv_width), *_assemble(x))
    up_backward = (*_assemble(x), *_up_backward(x, "kv", model.kv_lora_rank, kv_width))
    down = _down(x, "kv", model.kv_lora_rank, model.qk_pos_emb_head_dim)
    down_backward = _down_backward(x, "kv", model.kv_lora_rank, model.qk_pos_emb_head_dim)
    if model.q_lora_rank is None:
        down = (*column_forward(x, "q", query_width(x)), *down)
        down_backward = (*down_backward, *column_backward(x, "q", query_width(x)))
    else:
        down = (*_down(x, "q", model.q_lora_rank, 0), *down)
        down_backward = (*down_backward, *_down_backward(x, "q", model.q_lora_rank, 0))
        up = (*_up(x, "q", model.q_lora_rank, query_width(x)), *up)
        up_backward = (*up_backward, *_up_backward(x, "q", model.q_lora_rank, query_width(x)))
    return Block(
        (*down, *up, *core, *row_forward(x, "proj", x.core_width)),
        (*row_backward(x, "proj", x.core_width), *core_backward, *up_backward, *down_backward),
        {"core_attn": tuple(core), "mla_up_proj": up},
    )


def query_width(x: Shapes) -> int:
    """Queries, and keys, of this rank's heads: a / t (d_n + d_r)."""
    return x.heads * (x.model.qk_head_dim + x.model.qk_pos_emb_head_dim)


def latent_activation_bytes(x: Shapes) -> float:
    """What the projections keep of one microbatch: compressed (before and behind their norms; the
    gathered input of the up projections is made again), and queries, keys and values as attention
    takes them."""
    model = x.model
    compressed = 2 * ((model.q_lora_rank or 0) + model.kv_lora_rank) + model.qk_pos_emb_head_dim
    heads = 2 * query_width(x) + x.heads * model.v_head_dim
    if "mla_up_proj" in x.training.selected_modules:
        heads = 0
    return float((x.norm_tokens * compressed + x.tokens * heads) * ELEMENT_BYTES)


def _down(x: Shapes, name: str, rank: int, rotated: int) -> tuple[Operation, ...]:
    """[n, h] x [h, r + d_r], and the norm of the compressed part."""
    n, width = x.norm_tokens, rank + rotated
    return (
        *quantized(x, f"{name} down input", n * x.h),
        Gemm(f"{name} down", n, width, x.h, "fwd", x.training.linear_dtype, parameters=x.h * width),
        MemoryBound(f"{name} norm", norm_kernel(x, "fwd"), 2.0 * n * rank * ELEMENT_BYTES, rank),
        *_gathered(x, f"{name} compressed", width, "all_gather"),
    )


def _down_backward(x: Shapes, name: str, rank: int, rotated: int) -> tuple[Operation, ...]:
    n, width = x.norm_tokens, rank + rotated
    return (
        *_gathered(x, f"{name} compressed gradient", width, "reduce_scatter"),
        MemoryBound(f"{name} norm", norm_kernel(x, "bwd"), 3.0 * n * rank * ELEMENT_BYTES, rank),
        *quantized(x, f"{name} down output gradient", n * width),
        Gemm(f"{name} down dgrad", n, x.h, width, "dgrad", x.training.linear_dtype),
        *wgrad_products(x, f"{name} down", width, x.h, x.h * width, tokens=n),
    )


def _gathered(x: Shapes, name: str, width: int, kind: str) -> tuple[Operation, ...]:
    """Under sequence parallelism: all tokens of what each rank has of its own."""
    if not x.parallelism.sequence_parallel:
        return ()
    num_bytes = float(x.tokens * width * ELEMENT_BYTES)
    return (Collective(name, kind, "tp", num_bytes),)  # type: ignore[arg-type]


def _up(x: Shapes, name: str, rank: int, width: int) -> tuple[Operation, ...]:
    """[T, r] x [r, width]."""
    dtype = x.training.linear_dtype
    return (
        *quantized(x, f"{name} up input", x.tokens * rank),
        Gemm(f"{name} up", x.tokens, width, rank, "fwd", dtype, parameters=rank * width),
    )


def _up_backward(x: Shapes, name: str, rank: int, width: int) -> tuple[Operation, ...]:
    return (
        *quantized(x, f"{name} up output gradient", x.tokens * width),
        Gemm(f"{name} up dgrad", x.tokens, rank, width, "dgrad", x.training.linear_dtype),
        *wgrad_products(x, f"{name} up", width, rank, rank * width),
    )


def _assemble(x: Shapes) -> tuple[Operation, ...]:
    """Positions turned, and each head's two parts put side by side: queries and keys read and
    written once, values copied out."""
    elements = 2 * query_width(x) + x.heads * x.model.v_head_dim
    num_bytes = float(2 * x.tokens * elements * ELEMENT_BYTES)
    return (MemoryBound("rotary and concatenation", "elementwise", num_bytes),)
