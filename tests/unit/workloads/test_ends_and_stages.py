"""Embedding, logits and loss, and where the layers of each stage lie."""

import pytest
from small_models import collectives, gpt, kinds, layout, llama
from small_models import training as train

from workloads.ends import embedding_layer, output_head
from workloads.operations import Gemm, MemoryBound, Operation, Overlapped
from workloads.spec import ModelSpec, ParallelismSpec
from workloads.stages import boundary_bytes, recomputed_layers, stage_chunks

STREAM = 64 * 64 * 2.0
"""T h in two bytes: 2 x 32 tokens, h = 64."""
REDUCE, GATHER, SCATTER = "all_reduce", "all_gather", "reduce_scatter"
PLAIN, PARALLEL = layout(2), layout(2, sequence_parallel=True)


def sizes(operations: tuple[Operation, ...]) -> dict[str, float]:
    return {op.name: op.num_bytes for op in operations if isinstance(op, MemoryBound)}


@pytest.mark.parametrize(
    ("model", "parallelism", "forward", "backward"),
    [
        (gpt(), layout(), [], []),
        (gpt(), PLAIN, [(REDUCE, STREAM)], []),
        (llama(), PLAIN, [(REDUCE, STREAM)], []),
        (gpt(), PARALLEL, [(REDUCE, STREAM)], [(GATHER, STREAM)]),
        (llama(), PARALLEL, [(SCATTER, STREAM)], [(GATHER, STREAM)]),
    ],
    ids=["one rank", "gpt tp", "llama tp", "gpt sp", "llama sp"],
)
def test_embedding_collectives(
    model: ModelSpec,
    parallelism: ParallelismSpec,
    forward: list[tuple[str, float]],
    backward: list[tuple[str, float]],
) -> None:
    """Words are scattered to sequence-parallel ranks only where no learned positions are to be
    added (Megatron-LM, language_model_embedding.py)."""
    work = embedding_layer(model, train(), parallelism)
    assert (kinds(work.forward), kinds(work.backward)) == (forward, backward)


def test_embedding_bytes_by_hand() -> None:
    """On 2 ranks: 512 of the 1,024 padded words. Dropout alone sees this rank's tokens only."""
    work = embedding_layer(gpt(), train(), PARALLEL)
    table = 512 * 64
    assert sizes(work.forward) == {
        "word embedding": 2 * STREAM, "position embedding": 3 * STREAM,
        "embedding dropout": 2 * STREAM / 2 + 32 * 64,
    }  # fmt: skip
    # the gradient of the whole table is written in two bytes, then added to fp32 main gradients
    last = [op.num_bytes for op in work.backward if isinstance(op, MemoryBound)][-2:]
    assert last == [STREAM + 2 * table, (2 + 4 + 4) * table]
    half = embedding_layer(gpt(), train(accumulate_allreduce_grads_in_fp32=False), PARALLEL)
    assert half.backward[-1].num_bytes == (2 + 2 + 2) * table  # type: ignore[union-attr]


def test_position_table_rows() -> None:
    for model, rows in ((gpt(), 32), (gpt(max_position_embeddings=100), 100), (llama(), 0)):
        held = embedding_layer(model, train(), PLAIN).parameters
        assert held == (512 + rows) * 64


def test_head_collectives() -> None:
    """Three fp32 per token for the loss: maximum, target logit, sum of exponentials (Megatron-LM,
    tensor_parallel/cross_entropy.py)."""
    loss = [(REDUCE, 4.0 * 64)] * 3
    for parallelism, forward, backward in (
        (layout(), [], []),
        (PLAIN, loss, [(REDUCE, STREAM)]),
        (PARALLEL, [(GATHER, STREAM), *loss], [(GATHER, STREAM), (SCATTER, STREAM)]),
    ):
        work = output_head(gpt(), train(), parallelism)
        assert (kinds(work.forward), kinds(work.backward)) == (forward, backward)


def test_logits_never_use_userbuffers() -> None:
    overlap = layout(2, sequence_parallel=True, tp_comm_overlap=True)
    work = output_head(gpt(), train(), overlap)
    assert not any(isinstance(op, Overlapped) for op in work.forward)
    assert {op.style for op in work.backward if isinstance(op, Overlapped)} == {"concurrent"}


def test_head_products_by_hand() -> None:
    work = output_head(gpt(), train(), layout())
    shapes = {op.name: (op.m, op.n, op.k) for op in work.forward + work.backward
              if isinstance(op, Gemm)}  # fmt: skip
    assert shapes == {
        "logits": (64, 1024, 64), "logits dgrad": (64, 64, 1024), "logits wgrad": (1024, 64, 64),
    }  # fmt: skip
    assert "residual gradient" not in sizes(work.backward)


@pytest.mark.parametrize(("fused", "forward", "backward"), [(False, 38, 14), (True, 14, 8)])
def test_cross_entropy_bytes_per_logit(fused: bool, forward: int, backward: int) -> None:
    work = output_head(gpt(), train(cross_entropy_loss_fusion=fused), PLAIN)
    logits = 64 * 512
    assert sizes(work.forward)["cross entropy"] == forward * logits
    assert sizes(work.backward)["cross entropy backward"] == backward * logits


@pytest.mark.parametrize(
    ("untied", "pipeline", "words"),
    [(False, 1, 0), (False, 2, 512), (True, 1, 512), (True, 2, 512)],
)
def test_who_owns_the_output_weights(untied: bool, pipeline: int, words: int) -> None:
    model = gpt(untie_embeddings_and_output_weights=untied)
    head = output_head(model, train(), layout(2, pipeline))
    assert head.parameters == (words + 2) * 64  # and the final norm


# stages


def names(parallelism: ParallelismSpec, **changes: object) -> dict[tuple[int, int], list[str]]:
    held = stage_chunks(gpt(), train(**changes), parallelism)
    return {key: [layer.name for layer in layers] for key, layers in held.items()}


def test_where_the_ends_are() -> None:
    middle = ["transformer layer"] * 2
    assert names(layout(1, 2, 2)) == {
        (0, 0): ["embedding", *middle], (0, 1): middle, (1, 0): middle, (1, 1): [*middle, "output"],
    }  # fmt: skip
    assert names(layout()) == {(0, 0): ["embedding", *["transformer layer"] * 8, "output"]}


def test_scatter_gather_regathers_where_a_stage_receives() -> None:
    """Narayanan 2021 (arXiv 2104.04473), section 4.1: activations into every chunk but the first,
    gradients into every chunk but the last; sequence parallelism needs none."""
    model, training = gpt(), train()
    held = stage_chunks(model, training, layout(2, 2, 2))
    for (stage, chunk), layers in held.items():
        into = [kinds(x.forward) for x in layers if x.name == "receive" and x.forward]
        back = [kinds(x.backward) for x in layers if x.name == "receive" and x.backward]
        assert into == ([] if (stage, chunk) == (0, 0) else [[(GATHER, STREAM)]])
        assert back == ([] if (stage, chunk) == (1, 1) else [[(GATHER, STREAM)]])
        assert layers[0].name == ("embedding" if (stage, chunk) == (0, 0) else "receive")
    for parallelism in (layout(1, 2), layout(2, 2, sequence_parallel=True), layout(2)):
        flat = [x.name for x in sum(stage_chunks(model, training, parallelism).values(), ())]
        assert "receive" not in flat


def test_each_rank_may_send_all() -> None:
    """Then nothing is gathered again; under sequence parallelism they have but their shares."""
    whole = {"scatter_gather_tensors_in_pipeline": False}
    parallelism = layout(2, 2).model_copy(update=whole)
    assert boundary_bytes(gpt(), train(), parallelism) == STREAM
    flat = [x.name for x in sum(stage_chunks(gpt(), train(), parallelism).values(), ())]
    assert "receive" not in flat
    assert boundary_bytes(gpt(), train(), PARALLEL.model_copy(update=whole)) == STREAM / 2


def test_each_rank_sends_its_share() -> None:
    for parallelism, share in ((layout(1, 2), 1), (layout(4, 2), 4), (PARALLEL, 2)):
        assert boundary_bytes(gpt(), train(), parallelism) == STREAM / share


@pytest.mark.parametrize(
    ("method", "layers", "again"), [("uniform", 1, 4), ("uniform", 3, 4), ("block", 3, 3)]
)
def test_which_layers_run_again(method: str, layers: int, again: int) -> None:
    """8 layers on 2 stages."""
    changes = {
        "recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": layers,
    }  # fmt: skip
    training = train(**changes)
    assert recomputed_layers(training, 4) == again
    for layers_held in stage_chunks(gpt(), training, layout(1, 2)).values():
        body = [bool(x.recompute) for x in layers_held if x.name == "transformer layer"]
        assert body == [True] * again + [False] * (4 - again)
        assert all(x.recompute == () for x in layers_held if x.name in ("embedding", "output"))


@pytest.mark.parametrize("granularity", ["none", "selective"])
def test_no_layer_runs_again_whole_unless_asked(granularity: str) -> None:
    assert recomputed_layers(train(recompute_granularity=granularity), 8) == 0


def test_total_traffic_of_a_step_by_hand() -> None:
    """Sequence parallelism, 8 layers on one stage: per layer 4 forward and 6 backward; embedding
    1 and 1; head 4 and 2."""
    layers = stage_chunks(gpt(), train(), PARALLEL)[0, 0]
    forward = sum(len(collectives(x.forward)) for x in layers)
    backward = sum(len(collectives(x.backward)) for x in layers)
    assert (forward, backward) == (8 * 4 + 1 + 4, 8 * 6 + 1 + 2)
