"""The attention core, softmax(Q K^T / sqrt(d)) V: fused, or kernel by kernel as before 2023; alone
on its sequence, or shared by the ranks of a context-parallel group.

Shape letters as in `workloads.layers`; p = b a / t score matrices of s x s per microbatch and rank.
Under context parallelism u ranks swap tokens for heads (`cp_a2a`) and r = c / u form a ring
(`cp_ring`): a block of the ring has s / r queries of a / (t u) heads. Transformer Engine,
pytorch/attention/dot_product_attention/context_parallel.py, is followed.
"""

from typing import TYPE_CHECKING

from workloads.operations import (
    Attention,
    Axis,
    Collective,
    Compute,
    Gemm,
    MemoryBound,
    Operation,
    Ring,
)

if TYPE_CHECKING:
    from workloads.layers import Shapes

Core = tuple[tuple[Operation, ...], tuple[Operation, ...]]

ELEMENT_BYTES = 2
STATISTICS_BYTES = 8
"""Of a row's log-sum-exp, which the ring corrects in double precision."""


def attention_core(x: "Shapes", window: int | None = None) -> Core:
    """Forward and backward operations; `window`: keys that a query sees, of a sliding window."""
    if x.training.attention_backend == "unfused":
        return _unfused(x)
    if x.parallelism.context_parallel_size == 1:
        return _flash(x, window)
    if x.parallelism.cp_comm_type == "all_gather":
        return _gathered(x)
    return _swapped(x)


def _attention(
    x: "Shapes", queries: int, keys: int, heads_over: int, causal: bool
) -> tuple[Attention, Attention]:
    """Forward and backward of `queries` x `keys` positions of 1 / `heads_over` of the heads."""
    b, heads = x.training.micro_batch_size, x.heads // heads_over
    kv_heads = max(1, x.kv_heads // heads_over)
    sizes = (b, heads, kv_heads, queries, keys, x.core_head_dim, causal, x.training.dtype)
    kernel = x.training.attention_backend
    assert kernel != "unfused"
    return (
        Attention("attention", "fwd", *sizes, kernel),
        Attention("attention backward", "bwd", *sizes, kernel),
    )


def _flash(x: "Shapes", window: int | None) -> Core:
    """A window that is much shorter than the sequence is a strip of s queries by its keys."""
    s = x.training.seq_length
    if window is not None and 2 * window < s:
        forward, backward = _attention(x, s, window, 1, False)
    else:
        forward, backward = _attention(x, s, s, 1, True)
    return (forward,), (backward,)


# context parallel


def kv_bytes(x: "Shapes") -> float:
    """Keys and values of this rank's tokens."""
    return float(2 * x.tokens * x.kv_heads * x.model.head_dim * ELEMENT_BYTES)


def _gathered(x: "Shapes") -> Core:
    """Keys and values gathered, in the backward again, and their gradients scattered back. A rank's
    queries, two parts from either end, see half of the keys on average."""
    s, c = x.training.seq_length, x.parallelism.context_parallel_size
    whole = kv_bytes(x) * c
    forward, backward = _attention(x, s // c, s // 2, 1, False)
    gather = Collective("keys and values", "all_gather", "cp", whole)
    in_order = MemoryBound("keys and values in order", "elementwise", 2 * whole)
    scatter = Collective("key and value gradients", "reduce_scatter", "cp", whole)
    return (gather, in_order, forward), (gather, in_order, backward, in_order, scatter)


def _swapped(x: "Shapes") -> Core:
    """Ring attention, between swaps of tokens for heads where u > 1."""
    swaps = x.parallelism.context_swap_size
    forward, backward = _ring(x, swaps)
    if swaps == 1:
        return forward, backward
    query = float(x.tokens * x.core_width * ELEMENT_BYTES)
    half = kv_bytes(x) / 2
    inputs = (("query", query), ("key", half), ("value", half))
    return (
        (*_swap(inputs), *forward, *_swap((("context", query),))),
        (
            *_swap((("context gradient", query),)),
            *backward,
            *_swap(tuple((f"{name} gradient", size) for name, size in inputs)),
        ),
    )


def _swap(tensors: tuple[tuple[str, float], ...]) -> tuple[Operation, ...]:
    """An all-to-all of each, and the copy that puts the sequence's parts in order."""
    axis: Axis = "cp_a2a"
    return tuple(
        op
        for name, size in tensors
        for op in (
            Collective(f"{name} swap", "all_to_all", axis, size),
            MemoryBound(f"{name} in order", "elementwise", 2 * size),
        )
    )


def _ring(x: "Shapes", swaps: int) -> Core:
    """r blocks: the causal one of a rank's own keys first, then half blocks.

    A rank's two parts of the sequence meet either all queries with half of the received keys, or
    half of the queries with all of them: equal work. The ring goes at the pace of the rank that has
    the first kind throughout, whose corrections of output and statistics span all its queries.
    Forward, a hop brings the next keys and values; backward, their gradients so far too, and the
    last hop the gradients alone.
    """
    s, r = x.training.seq_length, x.parallelism.context_parallel_size // swaps
    if r == 1:
        own, own_backward = _attention(x, s, s, swaps, True)
        return (own,), (own_backward,)
    here = s // r
    own, own_backward = _attention(x, here, here, swaps, True)
    other, other_backward = _attention(x, here, here // 2, swaps, False)
    output = float(x.tokens * x.core_width * ELEMENT_BYTES)
    rows = float(x.tokens * x.heads * STATISTICS_BYTES)
    kv = kv_bytes(x)
    correct = MemoryBound("output correction", "elementwise", 3 * (output + rows))
    add = MemoryBound("query, key and value gradients", "elementwise", 3 * (output + kv))
    pack = MemoryBound("keys and values side by side", "elementwise", 2 * kv)

    def hop(name: str, num_bytes: float) -> Collective:
        return Collective(name, "ring_hop", "cp_ring", num_bytes)

    both = hop("keys, values and gradients", 2 * kv)
    return (
        (
            pack,
            Ring(
                "ring attention",
                ((own,), *(((other, correct),) * (r - 1))),
                (hop("keys and values", kv),) * (r - 1),
            ),
        ),
        (
            Ring(
                "ring attention backward",
                (*(((other_backward, add),) * (r - 1)), (own_backward, add)),
                (
                    hop("keys and values", kv),
                    *((both,) * (r - 2)),
                    hop("key and value gradients", kv),
                ),
            ),
        ),
    )


# kernel by kernel


def _unfused(x: "Shapes") -> Core:
    """Two batched products forward and four backward, each over the full square; Megatron's fused
    scale-mask-softmax reads the lower triangle only but writes the whole square
    (megatron/fused_kernels, scaled_upper_triang_masked_softmax)."""
    s, d = x.training.seq_length, x.model.head_dim
    p, dtype = x.training.micro_batch_size * x.heads, x.training.dtype
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
