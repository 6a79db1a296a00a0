"""A layer's experts: router, exchange of tokens, grouped products, and the way back.

Shape letters as in `workloads.layers`; n tokens that a rank routes, k experts of each, E experts
of width f, e expert-parallel and u expert-tensor-parallel ranks. Follows Megatron-LM,
core/transformer/moe (router.py, token_dispatcher.py, experts.py, shared_experts.py). All counts
are those of the fullest rank (`workloads.routing`).
"""

from dataclasses import dataclass
from functools import cached_property

from workloads.blocks import Block
from workloads.layers import (
    ELEMENT_BYTES,
    Shapes,
    activation,
    column_backward,
    column_forward,
    row_backward,
    row_forward,
)
from workloads.operations import (
    Collective,
    Compute,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operation,
    Overlapped,
)
from workloads.quantization import operand_bytes, quantized
from workloads.routing import busiest_rank, kept_share
from workloads.spec import RecomputeModule

SCORE_BYTES = 4
"""Router scores and probabilities are fp32."""

ROUTER_LAUNCHES = 23
"""Operations of the host for router and balance, each way; and
FUSED_PERMUTE_LAUNCHES, PERMUTE_LAUNCHES for each change of order, and
GROUPED_LAUNCHES, SEQUENTIAL_LAUNCHES for each expert of a product. From the host-bound runs on our
H200 (Megatron-LM core_v0.15.3, 2,048 wide, a host that takes 125 us an operation, 5 ms a dense
layer, both ways): a layer of 8 experts takes 14.2 ms fused, 17.8 ms with unfused permutation and
5.4 ms more with experts in sequence; one of 64 experts 40 ms."""
FUSED_PERMUTE_LAUNCHES, PERMUTE_LAUNCHES = 2, 9
GROUPED_LAUNCHES, SEQUENTIAL_LAUNCHES = 0.53, 1.43


@dataclass(frozen=True)
class Experts:
    """Sizes of one layer's experts on one rank, for one microbatch."""

    x: Shapes

    @property
    def n(self) -> int:
        return self.x.norm_tokens

    @cached_property
    def sent(self) -> int:
        """Copies of tokens that this rank sends, one for each expert of each token."""
        return round(self.n * self.x.model.moe_router_topk * self._kept)

    @cached_property
    def received(self) -> int:
        """Copies that the fullest rank receives for its experts."""
        busiest = busiest_rank(self.x.model, self.x.training, self.x.parallelism)
        return max(1, round(self.n * self.x.model.moe_router_topk * busiest))

    @cached_property
    def _kept(self) -> float:
        return kept_share(self.x.model, self.x.training)

    @property
    def ranks(self) -> int:
        """e."""
        return self.x.parallelism.expert_model_parallel_size

    @property
    def shards(self) -> int:
        """u."""
        return self.x.parallelism.expert_tensor_size

    @property
    def rows(self) -> int:
        """Tokens that this rank's experts work on: those of all its expert-tensor ranks."""
        return self.received * self.shards

    @property
    def local(self) -> int:
        """Experts of a rank."""
        return self.x.model.expert_count // self.ranks

    @property
    def width(self) -> int:
        """f / u."""
        return self.x.model.expert_ffn_size // self.shards

    @property
    def fc1_width(self) -> int:
        return self.width * (2 if self.x.model.gated_linear_unit else 1)

    def bytes_of(self, rows: int, width: int | None = None) -> float:
        return float(rows * (self.x.h if width is None else width) * ELEMENT_BYTES)

    @property
    def router_parameters(self) -> int:
        return self.x.h * self.x.model.expert_count

    @property
    def parameters(self) -> int:
        """Weights of this rank's experts."""
        return self.local * self.x.h * (self.fc1_width + self.width)


def expert_block(x: Shapes) -> Block:
    """Router, experts and, where the model has one, the shared expert."""
    e = Experts(x)
    shared = _shared_forward(x)
    act = activation(x, "fwd", e.rows, e.width)
    dispatch, combine = _dispatch(e), _combine(e)
    products = (
        *_sort(e),
        *quantized(x, "expert fc1 input", e.rows * x.h),
        _product(e, "expert fc1", e.rows, e.fc1_width, x.h, "fwd", e.fc1_width * x.h),
        *act,
        *quantized(x, "expert fc2 input", e.rows * e.width),
        _product(e, "expert fc2", e.rows, x.h, e.width, "fwd", e.width * x.h),
        *_sort(e),
    )
    if x.parallelism.moe_shared_expert_overlap:
        routed = (*_router(e), *_beside(dispatch, shared), *products, *combine)
    else:
        routed = (*_router(e), *dispatch, *products, *combine)
        routed = (*routed, *shared)
    total = _added(x, "shared expert add")
    forward = (*routed, *total)
    backward = _backward(e)
    modules: dict[RecomputeModule, tuple[Operation, ...]] = {
        "moe": forward, "moe_act": tuple(act), "shared_experts": shared,
    }  # fmt: skip
    return Block(forward, backward, modules)


def _backward(e: Experts) -> tuple[Operation, ...]:
    x = e.x
    shared = _shared_backward(x)
    there = _reversed_combine(e)
    products = (
        *_sort(e),
        *quantized(x, "expert fc2 output gradient", e.rows * x.h),
        _product(e, "expert fc2 dgrad", e.rows, e.width, x.h, "dgrad"),
        *_wgrad(e, "expert fc2", x.h, e.width),
        *activation(x, "bwd", e.rows, e.width),
        MemoryBound(
            "probability gradient", "elementwise", e.bytes_of(e.rows, e.fc1_width + e.width)
        ),
        *quantized(x, "expert fc1 output gradient", e.rows * e.fc1_width),
        _product(e, "expert fc1 dgrad", e.rows, x.h, e.fc1_width, "dgrad"),
        *_wgrad(e, "expert fc1", e.fc1_width, x.h),
        *_sort(e),
    )
    overlaps = x.parallelism.moe_shared_expert_overlap
    first = _beside(there, shared) if overlaps else (*shared, *there)
    return (*first, *products, *_reversed_dispatch(e), *_router_backward(e))


# router


def _router(e: Experts) -> tuple[Operation, ...]:
    """Scores of all experts, the k best of each token, and the loss that keeps them even."""
    x, experts = e.x, e.x.model.expert_count
    scores = float(e.n * experts * SCORE_BYTES)
    parts: list[Operation] = [
        Gemm(
            "router", e.n, experts, x.h, "fwd", x.training.dtype,
            parameters=e.router_parameters,
        ),
        MemoryBound("top k", "router", scores, launches=ROUTER_LAUNCHES),
    ]  # fmt: skip
    if x.training.moe_router_load_balancing_type != "none":
        parts.append(MemoryBound("load balance", "elementwise", 2 * scores))
    return tuple(parts)


def _router_backward(e: Experts) -> tuple[Operation, ...]:
    x, experts = e.x, e.x.model.expert_count
    scores = float(e.n * experts * SCORE_BYTES)
    dtype = x.training.dtype
    in_fp32 = x.training.accumulate_allreduce_grads_in_fp32
    return (
        MemoryBound("top k gradient", "router", scores, launches=ROUTER_LAUNCHES),
        Gemm("router dgrad", e.n, x.h, experts, "dgrad", dtype),
        Gemm(
            "router wgrad", experts, x.h, e.n, "wgrad", dtype,
            accumulate_fp32=in_fp32, parameters=e.router_parameters,
        ),
        MemoryBound("router input gradient", "elementwise", 3 * x.norm_bytes),
    )  # fmt: skip


# exchange of tokens


def _order(e: Experts, name: str, rows: int, tokens: int) -> tuple[Operation, ...]:
    """Tokens copied into the order of their experts: each read once, each copy written."""
    kernel = "permute" if e.x.training.moe_permute_fusion else "permute_select"
    num_bytes = e.bytes_of(rows + min(rows, tokens))
    return (MemoryBound(name, kernel, num_bytes, launches=_order_launches(e)),)


def _order_launches(e: Experts) -> int:
    return FUSED_PERMUTE_LAUNCHES if e.x.training.moe_permute_fusion else PERMUTE_LAUNCHES


def _sum_up(e: Experts, name: str, rows: int, tokens: int, gradient: bool) -> tuple[Operation, ...]:
    """Copies of each token added up; without fusion by atomic adds, slower of index_add (which
    autograd takes) than of scatter_add."""
    if e.x.training.moe_permute_fusion:
        num_bytes = e.bytes_of(rows + tokens)
        return (MemoryBound(name, "unpermute", num_bytes, launches=_order_launches(e)),)
    kernel = "permute_index_add" if gradient else "unpermute_scatter_add"
    num_bytes = e.bytes_of(rows + 2 * tokens)
    return (MemoryBound(name, kernel, num_bytes, launches=_order_launches(e)),)


def _exchange(e: Experts, name: str) -> tuple[Operation, ...]:
    """Tokens to the ranks of their experts, or back: as many bytes either way."""
    if e.ranks == 1:
        return ()
    if e.x.parallelism.moe_token_dispatcher_type == "flex":
        return (
            Collective(
                name, "token_exchange", "ep", e.bytes_of(round(e.n * e.received / e.sent)),
                e.x.model.moe_router_topk,
            ),
        )  # fmt: skip
    return (Collective(name, "all_to_all", "ep", e.bytes_of(max(e.sent, e.received))),)


def _gather(e: Experts, name: str, num_bytes: float) -> tuple[Operation, ...]:
    return (Collective(name, "all_gather", "etp", num_bytes),) if e.shards > 1 else ()


def _scatter(e: Experts, name: str, num_bytes: float) -> tuple[Operation, ...]:
    return (Collective(name, "reduce_scatter", "etp", num_bytes),) if e.shards > 1 else ()


def _all_tokens(e: Experts) -> int:
    """What every rank sees of the allgather dispatcher."""
    return e.n * e.ranks * e.shards


def _everywhere(e: Experts, name: str) -> tuple[Operation, ...]:
    """All tokens to all ranks (allgather dispatcher)."""
    found = _gather(e, name, e.bytes_of(e.n * e.shards))
    if e.ranks > 1:
        found = (*found, Collective(name, "all_gather", "ep", e.bytes_of(_all_tokens(e))))
    return found


def _summed(e: Experts, name: str) -> tuple[Operation, ...]:
    """All tokens' sums back to the ranks that hold them (allgather dispatcher)."""
    found: tuple[Operation, ...] = ()
    if e.ranks > 1:
        found = (Collective(name, "reduce_scatter", "ep", e.bytes_of(_all_tokens(e))),)
    return (*found, *_scatter(e, name, e.bytes_of(e.n * e.shards)))


def _dispatch(e: Experts) -> tuple[Operation, ...]:
    if e.x.parallelism.moe_token_dispatcher_type == "allgather":
        return *_everywhere(e, "dispatch"), *_order(e, "permute", e.rows, _all_tokens(e))
    gather = _gather(e, "dispatch", e.bytes_of(e.rows))
    return *_order(e, "permute", e.sent, e.n), *_exchange(e, "dispatch"), *gather


def _combine(e: Experts) -> tuple[Operation, ...]:
    if e.x.parallelism.moe_token_dispatcher_type == "allgather":
        back = _sum_up(e, "unpermute", e.rows, _all_tokens(e), False)
        return *back, *_summed(e, "combine")
    scatter = _scatter(e, "combine", e.bytes_of(e.rows))
    back = _sum_up(e, "unpermute", e.sent, e.n, False)
    return *scatter, *_exchange(e, "combine"), *back


def _reversed_combine(e: Experts) -> tuple[Operation, ...]:
    if e.x.parallelism.moe_token_dispatcher_type == "allgather":
        order = _order(e, "unpermute gradient", e.rows, _all_tokens(e))
        return *_everywhere(e, "combine gradient"), *order
    gather = _gather(e, "combine gradient", e.bytes_of(e.rows))
    order = _order(e, "unpermute gradient", e.sent, e.n)
    return *order, *_exchange(e, "combine gradient"), *gather


def _reversed_dispatch(e: Experts) -> tuple[Operation, ...]:
    if e.x.parallelism.moe_token_dispatcher_type == "allgather":
        back = _sum_up(e, "permute gradient", e.rows, _all_tokens(e), True)
        return *back, *_summed(e, "dispatch gradient")
    scatter = _scatter(e, "dispatch gradient", e.bytes_of(e.rows))
    back = _sum_up(e, "permute gradient", e.sent, e.n, True)
    return *scatter, *_exchange(e, "dispatch gradient"), *back


def _sort(e: Experts) -> tuple[Operation, ...]:
    """What came from each rank, put in the order of the experts, or back; flex receives in order,
    the allgather dispatcher needs none."""
    if e.local == 1 or e.x.parallelism.moe_token_dispatcher_type != "alltoall":
        return ()
    return (MemoryBound("sort by expert", "elementwise", 2 * e.bytes_of(e.rows)),)


# experts


def _product(
    e: Experts, name: str, m: int, n: int, k: int, kind: str, weights_each: int = 0
) -> GroupedGemm:
    return GroupedGemm(
        name, e.local, m, n, k, kind, e.x.training.linear_dtype,  # type: ignore[arg-type]
        sequential=not e.x.training.moe_grouped_gemm, launches=_product_launches(e),
        expert_parameters=e.local * weights_each,
    )  # fmt: skip


def _product_launches(e: Experts) -> int:
    each = GROUPED_LAUNCHES if e.x.training.moe_grouped_gemm else SEQUENTIAL_LAUNCHES
    return 1 + round(each * e.local)


def _wgrad(e: Experts, name: str, rows: int, columns: int) -> tuple[Compute, ...]:
    """Of each expert [rows, tokens] x [tokens, columns], added into the main gradients."""
    training = e.x.training
    in_fp32, fused = (
        training.accumulate_allreduce_grads_in_fp32,
        training.gradient_accumulation_fusion,
    )
    weights = e.local * rows * columns
    product = GroupedGemm(
        f"{name} wgrad", e.local, rows, columns, e.rows, "wgrad", training.linear_dtype,
        accumulate_fp32=in_fp32 and fused, sequential=not training.moe_grouped_gemm,
        launches=_product_launches(e),
        expert_parameters=weights,
    )  # fmt: skip
    if fused:
        return (product,)
    per_weight = ELEMENT_BYTES + 2 * (4 if in_fp32 else ELEMENT_BYTES)
    added = float(per_weight * weights)
    return product, MemoryBound(f"{name} wgrad add", "elementwise", added, 0, True)


# shared expert


def shared_width(x: Shapes) -> int:
    """Of the shared expert on one tensor-parallel rank."""
    return x.model.moe_shared_expert_intermediate_size // x.t


def _shared_forward(x: Shapes) -> tuple[Operation, ...]:
    width = shared_width(x)
    if not width:
        return ()
    wide = width * (2 if x.model.gated_linear_unit else 1)
    return (
        *column_forward(x, "shared fc1", wide),
        *activation(x, "fwd", x.tokens, width),
        *row_forward(x, "shared fc2", width),
    )


def _shared_backward(x: Shapes) -> tuple[Operation, ...]:
    width = shared_width(x)
    if not width:
        return ()
    wide = width * (2 if x.model.gated_linear_unit else 1)
    return (
        *row_backward(x, "shared fc2", width),
        *activation(x, "bwd", x.tokens, width),
        *column_backward(x, "shared fc1", wide),
    )


def _added(x: Shapes, name: str) -> tuple[Operation, ...]:
    """Shared and routed experts' outputs summed."""
    if not shared_width(x):
        return ()
    return (MemoryBound(name, "elementwise", 3 * x.norm_bytes),)


def _beside(
    exchange: tuple[Operation, ...], shared: tuple[Operation, ...]
) -> tuple[Operation, ...]:
    """The shared expert's kernels run beside the exchange of tokens; its own collectives, of tensor
    parallelism, before and behind."""
    kernels = tuple(op for op in shared if not isinstance(op, Collective | Overlapped))
    found: list[Operation] = [op for op in shared if isinstance(op, Collective | Overlapped)]
    for op in exchange:
        if isinstance(op, Collective) and op.axis == "ep" and kernels:
            found.append(Overlapped(f"shared expert beside {op.name}", kernels, op, "concurrent"))  # type: ignore[arg-type]
            kernels = ()
        else:
            found.append(op)
    return (*found, *kernels)


# memory


def expert_activation_bytes(x: Shapes) -> float:
    """What the experts keep of one microbatch for their backward: router probabilities, the tokens
    in order, the first product's output and the activation's, and what is summed up; of the shared
    expert likewise."""
    e = Experts(x)
    probabilities = 2.0 * e.n * x.model.expert_count * SCORE_BYTES
    routed = e.bytes_of(e.rows, e.fc1_width)
    routed += e.rows * (x.h + e.width) * operand_bytes(x.training)
    gated = 2 if x.model.gated_linear_unit else 1
    shared = x.tokens * shared_width(x) * (gated + 1) * ELEMENT_BYTES
    return probabilities + routed + shared


def rebuilt_expert_bytes(x: Shapes) -> float:
    """What selective recomputation does not keep of a layer's experts."""
    e, chosen = Experts(x), x.training.selected_modules
    gated = 2 if x.model.gated_linear_unit else 1
    shared = float(x.tokens * shared_width(x) * (gated + 1) * ELEMENT_BYTES)
    if "moe" in chosen:
        return e.bytes_of(e.rows, x.h + e.fc1_width + e.width) + shared
    rebuilt = e.bytes_of(e.rows, e.width) if "moe_act" in chosen else 0.0
    return rebuilt + (shared if "shared_experts" in chosen else 0.0)


def expert_working_bytes(x: Shapes) -> float:
    """Gradients of the first product's output and the activation's, at once."""
    e = Experts(x)
    return e.bytes_of(e.rows, e.fc1_width + e.width)


def expert_weight_shapes(x: Shapes) -> set[tuple[int, int]]:
    """Rows and columns of one expert's and the shared expert's weights on this rank."""
    e, gated = Experts(x), 2 if x.model.gated_linear_unit else 1
    shapes = {(e.fc1_width, x.h), (x.h, e.width)}
    if shared := shared_width(x):
        shapes |= {(gated * shared, x.h), (x.h, shared)}
    return shapes
