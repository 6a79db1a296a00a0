"""Which transformer layers, embedding and loss each model chunk of each pipeline stage holds.

As Megatron-LM divides them (core/transformer/transformer_block.py, get_num_layers_to_build):
evenly; with the embedding or the loss counted as a layer; with first and last stage given; or as
an explicit layout says. `partition_problems` are Megatron's own rules for what cannot be divided.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from workloads.layout_string import EMBEDDING, LAYER, LOSS, chunks_of_layout
from workloads.passes import Route
from workloads.spec import ModelSpec, ParallelismSpec

Problem = tuple[str, str]
"""(dotted key path, what is wrong and what would do)."""


@dataclass(frozen=True, slots=True)
class ChunkContents:
    """What one model chunk of one stage holds."""

    layers: range
    """Transformer layers, by their place in the model from 0."""
    embedding: bool
    """Before them."""
    loss: bool
    """Behind them: final norm, logits and cross entropy."""


Partition = dict[tuple[int, int], ChunkContents]
"""(stage, chunk) -> contents."""


@lru_cache
def partition(model: ModelSpec, parallelism: ParallelismSpec) -> Partition:
    """Contents of every chunk of a checked layout."""
    order = Route.of(parallelism).places
    counts = _layer_counts(model, parallelism)
    ends = list(accumulate(counts))
    return {
        place: ChunkContents(range(end - count, end), place == order[0], place == order[-1])
        for place, count, end in zip(order, counts, ends, strict=True)
    }


def stage_contents(
    model: ModelSpec, parallelism: ParallelismSpec, stage: int
) -> tuple[ChunkContents, ...]:
    """Contents of a stage's chunks, first to last."""
    held = partition(model, parallelism)
    chunks = parallelism.virtual_pipeline_model_parallel_size
    return tuple(held[stage, chunk] for chunk in range(chunks))


def shares_embedding(model: ModelSpec, parallelism: ParallelismSpec) -> bool:
    """Whether input embedding and logits are one matrix on one stage (tied, and held together)."""
    if model.untie_embeddings_and_output_weights:
        return False
    held = partition(model, parallelism)
    ends = {stage for (stage, _), chunk in held.items() if chunk.embedding or chunk.loss}
    return len(ends) == 1


def _layer_counts(model: ModelSpec, parallelism: ParallelismSpec) -> list[int]:
    """Transformer layers of each chunk, in model order."""
    stages = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    if parallelism.pipeline_model_parallel_layout is not None:
        letters = chunks_of_layout(parallelism.pipeline_model_parallel_layout)
        return [chunk.count(LAYER) for chunk in letters]
    if _ends_given(parallelism):
        per_stage = _stage_counts(model, parallelism)
        return [per_stage[stage] // chunks for stage, _ in Route.of(parallelism).places]
    embedding = parallelism.account_for_embedding_in_pipeline_split
    loss = parallelism.account_for_loss_in_pipeline_split
    counts = [(model.num_layers + embedding + loss) // (stages * chunks)] * (stages * chunks)
    counts[0] -= embedding
    counts[-1] -= loss
    return counts


def _ends_given(parallelism: ParallelismSpec) -> bool:
    return (
        parallelism.num_layers_in_first_pipeline_stage is not None
        or parallelism.num_layers_in_last_pipeline_stage is not None
    )


def _stage_counts(model: ModelSpec, parallelism: ParallelismSpec) -> list[int]:
    """Layers per stage where first or last stage are given; the rest is divided evenly."""
    first = parallelism.num_layers_in_first_pipeline_stage
    last = parallelism.num_layers_in_last_pipeline_stage
    middle = parallelism.pipeline_model_parallel_size - (first is not None) - (last is not None)
    each = (model.num_layers - (first or 0) - (last or 0)) // max(1, middle)
    return [
        *([] if first is None else [first]), *[each] * middle, *([] if last is None else [last])
    ]  # fmt: skip


# what cannot be divided


def partition_problems(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    """Why the layers cannot be divided as the layout asks, in Megatron's terms."""
    if parallelism.pipeline_model_parallel_layout is not None:
        yield from _layout_problems(model, parallelism)
    elif _ends_given(parallelism):
        yield from _ends_problems(model, parallelism)
    else:
        yield from _even_problems(model, parallelism)


def _even_problems(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    stages = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    embedding = parallelism.account_for_embedding_in_pipeline_split
    loss = parallelism.account_for_loss_in_pipeline_split
    counted = model.num_layers + embedding + loss
    if counted % (stages * chunks):
        what = f"num_layers ({model.num_layers})"
        if embedding or loss:
            ends = " and ".join(["embedding"] * embedding + ["loss"] * loss)
            what += f" plus {ends} ({counted})"
        name = "pipeline" if chunks == 1 else "virtual_pipeline"
        yield (
            f"parallelism.{name}_model_parallel_size",
            f"{stages} stages of {chunks} chunks do not divide {what} evenly; uneven: "
            "num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage, "
            "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split or "
            "pipeline_model_parallel_layout",
        )


def _ends_problems(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    stages = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    given = {
        f"parallelism.num_layers_in_{end}_pipeline_stage": layers
        for end, layers in (
            ("first", parallelism.num_layers_in_first_pipeline_stage),
            ("last", parallelism.num_layers_in_last_pipeline_stage),
        )
        if layers is not None
    }
    key = next(iter(given))
    for flag in ("account_for_embedding", "account_for_loss"):
        if getattr(parallelism, f"{flag}_in_pipeline_split"):
            yield key, f"cannot be given together with {flag}_in_pipeline_split"
    if stages < 2:
        yield key, "needs pipeline_model_parallel_size above 1"
        return
    for path, layers in given.items():
        if layers % chunks:
            yield (
                path,
                f"{layers} layers are not divisible by virtual_pipeline_model_parallel_size "
                f"({chunks})",
            )
    left, middle = model.num_layers - sum(given.values()), stages - len(given)
    if left < 0 or (middle == 0 and left):
        yield key, f"{sum(given.values())} layers at the ends of num_layers ({model.num_layers})"
    elif middle and left % (middle * chunks):
        yield (
            key,
            f"leaves {left} layers, which {middle} stages of {chunks} chunks do not divide",
        )


def _layout_problems(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    key = "parallelism.pipeline_model_parallel_layout"
    text = parallelism.pipeline_model_parallel_layout
    assert text is not None
    for name in (
        "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
        "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
    ):  # fmt: skip
        if getattr(parallelism, name):
            yield key, f"cannot be given together with {name}"
    letters = chunks_of_layout(text)
    stages = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    if len(letters) != stages * chunks:
        yield key, f"has {len(letters)} chunks, not {stages} stages x {chunks} = {stages * chunks}"
    flat = "".join(letters)
    if not letters[0].startswith(EMBEDDING) or flat.count(EMBEDDING) != 1:
        yield key, "must begin with E, the embedding, and name it once"
    if not letters[-1].endswith(LOSS) or flat.count(LOSS) != 1:
        yield key, "must end with L, the loss, and name it once"
    if flat.count(LAYER) != model.num_layers:
        yield key, f"has {flat.count(LAYER)} layers (t), not num_layers ({model.num_layers})"
