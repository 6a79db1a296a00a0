"""The attention core, softmax(Q K^T / sqrt(d)) V: fused, or kernel by kernel as before 2023.

Shape letters as in `workloads.layers`; p = b a / t score matrices of s x s per microbatch and rank.
"""

from typing import TYPE_CHECKING

from workloads.operations import Attention, Compute, Gemm, MemoryBound

if TYPE_CHECKING:
    from workloads.layers import Shapes

Core = tuple[tuple[Compute, ...], tuple[Compute, ...]]


def attention_core(x: "Shapes") -> Core:
    """Forward and backward operations."""
    if x.training.attention_backend == "flash":
        return _flash(x)
    return _unfused(x)


def _flash(x: "Shapes") -> Core:
    s, b = x.training.seq_length, x.training.micro_batch_size
    sizes = (b, x.heads, x.kv_heads, s, s, x.model.head_dim, True, x.training.precision)
    return (
        (Attention("attention", "fwd", *sizes),),
        (Attention("attention backward", "bwd", *sizes),),
    )


def _unfused(x: "Shapes") -> Core:
    """Two batched products forward and four backward, each over the full square; Megatron's fused
    scale-mask-softmax reads the lower triangle only but writes the whole square
    (megatron/fused_kernels, scaled_upper_triang_masked_softmax)."""
    s, d = x.training.seq_length, x.model.head_dim
    p, dtype = x.training.micro_batch_size * x.heads, x.training.precision
    square = float(p * s * s)

    def product(name: str, n: int, k: int) -> Gemm:
        return Gemm(name, s, n, k, "fwd", dtype, batch=p)

    drop = bool(x.model.attention_dropout)
    forward: tuple[Compute, ...] = (
        product("scores", s, d),
        MemoryBound("softmax", "softmax_fwd", 3 * square),
        *((MemoryBound("attention dropout", "dropout", 5 * square),) if drop else ()),
        product("context", d, s),
    )
    backward: tuple[Compute, ...] = (
        product("context dgrad", s, d),
        product("value gradient", d, s),
        *((MemoryBound("attention dropout", "dropout", 5 * square),) if drop else ()),
        MemoryBound("softmax backward", "softmax_bwd", 4 * square),
        product("query gradient", d, s),
        product("key gradient", d, s),
    )
    return forward, backward
