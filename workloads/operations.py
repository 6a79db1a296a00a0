"""The operations a rank executes: shapes, bytes and counts, no seconds.

Compute operations (`Gemm`, `Attention`, `MemoryBound`) run on one GPU; a `Collective` runs among
the ranks of one axis of the layout; `Overlapped` is compute pipelined with one collective.
A layer is a `LayerWork`: what its forward, its recomputation and its backward execute, in order.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Axis = Literal[
    "tp",
    "cp",
    "cp_a2a",
    "cp_ring",
    "dp",
    "dp_shard",
    "dp_replica",
    "etp",
    "ep",
    "edp",
    "embedding",
    "world",
]
"""Process groups as `workloads.layout.RankGrid` names them; `world` is all ranks."""
CollectiveKind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_hop", "token_exchange"
]


AttentionKernel = Literal["fused", "flash", "flash1"]
"""cuDNN's, FlashAttention 2, or FlashAttention as it was before."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """C[m, n] = A[m, k] @ B[k, n], `batch` times (batch > 1: one strided-batched kernel).

    `kind` says which of a linear layer's three products it is, which sets the operands' layout:
    `fwd` (TN), `dgrad` (NN), `wgrad` (NT). m, n, k are those of the product itself.
    """

    name: str
    m: int
    n: int
    k: int
    kind: Literal["fwd", "dgrad", "wgrad"]
    dtype: str = "bf16"
    batch: int = 1
    accumulate_fp32: bool = False
    """wgrad added into fp32 main gradients in place."""
    parameters: int = 0
    """Weights read (fwd) or whose gradient is complete when it ends (wgrad)."""

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """One product for each expert that a rank holds, over its own tokens: in one grouped kernel
    launch, or one after the other (`sequential`).

    `m`, `n`, `k` are those of a `Gemm` over the tokens of all `groups` together: `m` counts the
    tokens in `fwd` and `dgrad`, `k` does in `wgrad`.
    """

    name: str
    groups: int
    m: int
    n: int
    k: int
    kind: Literal["fwd", "dgrad", "wgrad"]
    dtype: str = "bf16"
    accumulate_fp32: bool = False
    sequential: bool = False
    launches: int = 1
    """Operations that the host issues for it."""
    expert_parameters: int = 0
    """Weights of experts read (fwd) or whose gradient is complete when it ends (wgrad)."""

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def parameters(self) -> int:
        """Experts are reduced apart from the other weights."""
        return 0


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention core without scores in memory, softmax(Q K^T) V, over local heads."""

    name: str
    direction: Literal["fwd", "bwd"]
    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_kv: int
    head_dim: int
    causal: bool = True
    dtype: str = "bf16"
    kernel: AttentionKernel = "fused"

    @property
    def flops(self) -> float:
        """Executed FLOPs: causal does half the square; backward is 2.5 times forward (five
        products instead of two; Dao 2022, arXiv 2205.14135)."""
        forward = 4.0 * self.batch * self.heads * self.seq_q * self.seq_kv * self.head_dim
        return forward * (0.5 if self.causal else 1.0) * (2.5 if self.direction == "bwd" else 1.0)

    @property
    def parameters(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A kernel that reads and writes `num_bytes` and computes next to nothing.

    `kernel` names its class for the kernel model, see `MEMORY_BOUND_KERNELS`.
    """

    name: str
    kernel: str
    num_bytes: float
    """Ideal traffic: each input read once, each output written once."""
    parameters: int = 0
    weight_gradient: bool = False
    """Part of the gradient of weights: what comes before it in the model does not wait for it."""
    launches: int = 1
    """Operations that the host issues for it, where it stands for several."""

    @property
    def flops(self) -> float:
        return 0.0


MEMORY_BOUND_KERNELS = (
    "layernorm_fwd", "layernorm_bwd", "rmsnorm_fwd", "rmsnorm_bwd",
    "bias_gelu_fwd", "bias_gelu_bwd",  # bias + GeLU or squared ReLU: one fused kernel
    "swiglu_fwd", "swiglu_bwd",
    "bias_dropout_add",  # fused bias, dropout, residual add; also its backward
    "elementwise",  # plain copies, adds, casts, scalings
    "bias_grad",  # column sums for bias gradients
    "rotary", "softmax_fwd", "softmax_bwd", "dropout",  # dropout: a kernel of its own
    "embedding_fwd", "embedding_bwd", "cross_entropy",
    "adam", "grad_norm", "fill",
    "router",  # scores to probabilities and the experts of each token; bytes of fp32 scores
    "permute", "unpermute",  # tokens in the order of their experts, and back: fused, or
    "permute_select", "unpermute_scatter_add", "permute_index_add",  # PyTorch's kernels
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective among the ranks of `axis`; `num_bytes` is the whole buffer as nccl-tests
    counts it (all_gather: what each rank ends up with; reduce_scatter and all_to_all: what each
    starts with). `ring_hop`: every rank sends `num_bytes` to the next one of its ring.
    `token_exchange`: each of a rank's tokens, `num_bytes` of all, goes to the ranks of `choices`
    experts, once to each rank and over the network once to each node."""

    name: str
    kind: CollectiveKind
    axis: Axis
    num_bytes: float
    choices: int = 0

    @property
    def flops(self) -> float:
        return 0.0

    @property
    def parameters(self) -> int:
        return 0


Compute: TypeAlias = Gemm | GroupedGemm | Attention | MemoryBound


@dataclass(frozen=True, slots=True)
class Overlapped:
    """`compute` run beside `collective`.

    `pipelined`: in chunks, each chunk of compute needs or feeds one chunk of the collective
    (userbuffers): an all-gather goes ahead of the compute, a reduce-scatter comes behind it.
    `concurrent`: independent of each other, joined at the end (asynchronous all-gather beside
    dgrad, reduce-scatter or all-reduce beside wgrad).
    """

    name: str
    compute: tuple[Compute, ...]
    collective: Collective
    style: Literal["pipelined", "concurrent"]

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.compute)

    @property
    def parameters(self) -> int:
        return sum(op.parameters for op in self.compute)


@dataclass(frozen=True, slots=True)
class Ring:
    """Blocks of compute one after the other, each beside a hop that brings what a later one needs
    (ring attention): block i and hop i start together, and the next ones when both have ended.

    There are as many hops as blocks, or one fewer.
    """

    name: str
    blocks: tuple[tuple[Compute, ...], ...]
    hops: tuple[Collective, ...]

    @property
    def compute(self) -> tuple[Compute, ...]:
        return tuple(op for block in self.blocks for op in block)

    @property
    def flops(self) -> float:
        return sum(op.flops for op in self.compute)

    @property
    def parameters(self) -> int:
        return 0


Operation: TypeAlias = Compute | Collective | Overlapped | Ring


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer (or embedding, or head) on one rank, for one microbatch.

    `parameters` counts the weights this rank holds of it; the `parameters` of the operations of
    `backward` sum to it (so that gradient buckets close where the last of theirs is produced), and
    so do those of `forward` (so that parameter gathers are awaited where first read).
    """

    name: str
    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    recompute: tuple[Operation, ...] = field(default=())
    """Forward operations executed again just before `backward`."""
    parameters: int = 0
    expert_parameters: int = 0
    """Weights of experts, apart from `parameters`; the `expert_parameters` of grouped products sum
    to it likewise."""
    host_launches: int | None = None
    """What the host issues for it per pass, where CUDA graphs replay its operations; None: each of
    them."""


def expert_parameters(op: Operation) -> int:
    """Weights of experts that an operation reads or completes the gradient of."""
    if isinstance(op, GroupedGemm):
        return op.expert_parameters
    if isinstance(op, Overlapped):
        return sum(map(expert_parameters, op.compute))
    return 0
