"""Context parallelism: what each way of sharing a sequence computes, sends and keeps, by hand.

Sequence 32, micro-batch 2, Llama of 8 heads and 4 query groups of width 8.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_models import llama
from small_models import training as train

from workloads.attention import attention_core, kv_bytes
from workloads.data_parallel import optimizer_operations
from workloads.graph import build_work
from workloads.layers import Shapes
from workloads.layout_checks import check_layout
from workloads.memory import layer_activation_bytes, stage_memory
from workloads.operations import Attention, Collective, MemoryBound, Operation, Overlapped, Ring
from workloads.passes import Pass
from workloads.spec import OptimizerSpec, ParallelismSpec
from workloads.stages import boundary_bytes


def shared(cp: int, kind: str = "p2p", **changes: Any) -> ParallelismSpec:
    levels = {"hierarchical_context_parallel_sizes": (2, cp // 2)} if kind == "a2a+p2p" else {}
    return ParallelismSpec.model_validate(
        {"context_parallel_size": cp, "cp_comm_type": kind, **levels, **changes}
    )


def core(parallelism: ParallelismSpec, **model: Any) -> tuple[tuple[Operation, ...], ...]:
    return attention_core(Shapes(llama(**model), train(), parallelism))


def sent(operations: tuple[Operation, ...]) -> dict[str, float]:
    """Bytes per kind of collective; of a ring, those of every hop."""
    total: dict[str, float] = {}
    for op in operations:
        hops = op.hops if isinstance(op, Ring) else (op,)
        for hop in hops:
            if isinstance(hop, Collective):
                total[hop.kind] = total.get(hop.kind, 0.0) + hop.num_bytes
    return total


KINDS = [("p2p", 2), ("p2p", 8), ("all_gather", 4), ("a2a", 2), ("a2a", 4), ("a2a+p2p", 8)]


@pytest.mark.parametrize(("kind", "cp"), KINDS)
def test_all_ranks_together_do_what_one_would(kind: str, cp: int) -> None:
    """Equal shares of the causal square: 4 b a d s^2 / 2 forward, 2.5 times that backward."""
    forward, backward = core(shared(cp, kind))
    whole = 4 * 2 * 8 * 8 * 32 * 32 / 2
    assert sum(op.flops for op in forward) == whole / cp
    assert sum(op.flops for op in backward) == 2.5 * whole / cp


def test_ring_by_hand() -> None:
    """4 ranks of 8 positions: the own causal block, then three of 8 queries by 4 keys; 3 hops of
    keys and values (2 x 16 tokens x 4 heads x 8 x 2 bytes). Backward the own block comes last; hops
    carry keys and values, then both with their gradients, then the gradients home."""
    forward, backward = core(shared(4))
    kv = 2 * 16 * 4 * 8 * 2
    ring, ring_backward = forward[-1], backward[-1]
    assert isinstance(ring, Ring)
    assert isinstance(ring_backward, Ring)
    blocks = [block[0] for block in ring.blocks]
    assert [(b.seq_q, b.seq_kv, b.causal) for b in blocks if isinstance(b, Attention)] == [
        (8, 8, True), (8, 4, False), (8, 4, False), (8, 4, False),
    ]  # fmt: skip
    assert [hop.num_bytes for hop in ring.hops] == [kv, kv, kv]
    assert [hop.num_bytes for hop in ring_backward.hops] == [kv, 2 * kv, 2 * kv, kv]
    assert len(ring_backward.blocks) == 4
    last = ring_backward.blocks[-1][0]
    assert isinstance(last, Attention)
    assert last.causal


def test_swap_by_hand() -> None:
    """Ulysses over 4: the rank's 16 tokens of query (8 heads), key and value (4 heads), and back
    the context; attention over all 32 positions of 2 heads."""
    forward, backward = core(shared(4, "a2a"))
    query, key = 16 * 8 * 8 * 2, 16 * 4 * 8 * 2
    assert sent(forward) == sent(backward) == {"all_to_all": 2 * query + 2 * key}
    (attention,) = (op for op in forward if isinstance(op, Attention))
    sizes = attention.heads, attention.kv_heads, attention.seq_q, attention.seq_kv
    assert sizes == (2, 1, 32, 32)
    assert {op.axis for op in forward if isinstance(op, Collective)} == {"cp_a2a"}


def test_gather_by_hand() -> None:
    """Keys and values of all 64 tokens gathered forward and again backward, gradients scattered."""
    forward, backward = core(shared(4, "all_gather"))
    whole = 2 * 64 * 4 * 8 * 2
    assert sent(forward) == {"all_gather": whole}
    assert sent(backward) == {"all_gather": whole, "reduce_scatter": whole}


def test_two_levels() -> None:
    """Pairs swap heads, 4 such pairs form rings: a block has 8 positions of half the heads."""
    forward, _ = core(shared(8, "a2a+p2p"))
    ring = next(op for op in forward if isinstance(op, Ring))
    own = ring.blocks[0][0]
    assert isinstance(own, Attention)
    assert (own.seq_q, own.heads, len(ring.blocks)) == (8, 4, 4)
    assert {hop.axis for hop in ring.hops} == {"cp_ring"}
    assert "all_to_all" in sent(forward)


@given(st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 4]))
def test_fewer_key_heads_make_smaller_hops(cp: int, groups: int) -> None:
    """Grouped queries: hops shrink with the key and value heads."""
    full = Shapes(llama(num_query_groups=8), train(), shared(cp))
    grouped = Shapes(llama(num_query_groups=groups), train(), shared(cp))
    assert kv_bytes(grouped) * 8 == kv_bytes(full) * groups


@pytest.mark.parametrize(("kind", "cp"), KINDS)
def test_a_layer_keeps_its_share(kind: str, cp: int) -> None:
    """Every saved tensor is of this rank's tokens."""
    alone, mine = (
        layer_activation_bytes(llama(), train(), p, recomputed=False)
        for p in (ParallelismSpec(), shared(cp, kind))
    )
    assert mine == pytest.approx(alone / cp)


def test_gradients_are_summed_over_the_sequence_too() -> None:
    """DP 2 x CP 4: the optimizer's state is sharded 8 ways, weights are not."""
    sharded = OptimizerSpec(use_distributed_optimizer=True)
    alone, mine = (
        stage_memory(llama(), train(), p, sharded, 2, 0, (Pass("forward", 0),))
        for p in (ParallelismSpec(), shared(4))
    )
    assert mine.weights == alone.weights
    assert mine.optimizer == pytest.approx(alone.optimizer / 4)
    work = build_work(llama(), train(global_batch_size=16), shared(4), sharded, 2)
    assert work.num_microbatches == 4
    (adam,) = (
        op for op in work.stages[0].finish if isinstance(op, MemoryBound) and op.name == "adam"
    )
    (expected,) = (
        op
        for op in optimizer_operations(
            llama(), train(), shared(4), sharded, 8, 0, work.stages[0].parameters
        )
        if isinstance(op, MemoryBound) and op.name == "adam"
    )
    assert adam.num_bytes == expected.num_bytes == 28 * -(-work.stages[0].parameters // 8)


def test_stages_send_their_tokens_only() -> None:
    alone, mine = (boundary_bytes(llama(), train(), p) for p in (ParallelismSpec(), shared(4)))
    assert mine == alone / 4


def test_the_loss_is_summed_over_the_sequence() -> None:
    stages = build_work(llama(), train(), shared(2), OptimizerSpec(), 1).stages
    head = stages[-1].chunks[-1][-1]
    reductions = [op for op in head.forward if isinstance(op, Collective) and op.axis == "cp"]
    assert [(op.kind, op.num_bytes) for op in reductions] == [("all_reduce", 8.0)]


def test_tensor_overlaps_stay() -> None:
    """The ring takes the attention core's place and nothing else's."""
    with_sequence = shared(2, tensor_model_parallel_size=2, sequence_parallel=True)
    work = build_work(llama(), train(), with_sequence, OptimizerSpec(), 1)
    layer = work.stages[0].chunks[0][1]
    assert sum(isinstance(op, Ring) for op in layer.forward) == 1
    assert any(isinstance(op, Overlapped) for op in layer.backward)


RULES = [
    (shared(3), "training.seq_length", "32 is not divisible by 2 x context_parallel_size (6)"),
    (
        shared(8, tensor_model_parallel_size=8, sequence_parallel=True),
        "training.seq_length",
        "tensor_model_parallel_size (8) x context_parallel_size (8)",
    ),
    (shared(8, "a2a"), "parallelism.cp_comm_type", "divide num_query_groups (4)"),
    (
        shared(8, hierarchical_context_parallel_sizes=(2, 4)),
        "parallelism.hierarchical_context_parallel_sizes",
        "a2a+p2p",
    ),
    (
        shared(8, "a2a+p2p", hierarchical_context_parallel_sizes=(2, 2)),
        "parallelism.hierarchical_context_parallel_sizes",
        "2 x 2 is not context_parallel_size (8)",
    ),
]


@pytest.mark.parametrize(("parallelism", "path", "words"), RULES)
def test_rules(parallelism: ParallelismSpec, path: str, words: str) -> None:
    found = check_layout(llama(), parallelism, train(global_batch_size=32), OptimizerSpec(), 192)
    assert any(p == path and words in message for p, message in found), found


def test_unfused_attention_cannot_be_shared() -> None:
    unfused = train(attention_backend="unfused", global_batch_size=32)
    ((path, message),) = check_layout(llama(), shared(2), unfused, OptimizerSpec(), 16)
    assert path == "training.attention_backend"
    assert "context_parallel_size" in message
