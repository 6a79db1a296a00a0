"""Which layers each model chunk of each pipeline stage holds."""

from dataclasses import replace

from workloads.ends import embedding_layer, output_head
from workloads.further_tokens import further_layers
from workloads.layer_kinds import layer_kinds
from workloads.layers import Shapes
from workloads.operations import Collective, LayerWork
from workloads.partition import partition
from workloads.quantization import scale_updates
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.transformer import transformer_layer

Chunks = dict[tuple[int, int], tuple[LayerWork, ...]]


def recomputed_layers(training: TrainingSpec, num_layers: int) -> int:
    """Of a chunk's layers, those that run again: all (`uniform`), or the first
    recompute_num_layers (`block`)."""
    if training.recompute_granularity != "full":
        return 0
    if training.recompute_method == "uniform":
        return num_layers
    return min(num_layers, training.recompute_num_layers)


def stage_chunks(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> Chunks:
    """(stage, chunk) -> its layers, first to last. Equal layers are one object."""
    launches, end = _host_launches(training)
    kinds = layer_kinds(model)
    of_kind = {
        (kind, recomputed): replace(
            transformer_layer(model, training, parallelism, recomputed, kind),
            host_launches=launches,
        )
        for kind in dict.fromkeys(kinds)
        for recomputed in (False, True)
    }
    embedding = replace(embedding_layer(model, training, parallelism), host_launches=end)
    further = tuple(
        replace(layer, host_launches=end) for layer in further_layers(model, training, parallelism)
    )
    head = replace(output_head(model, training, parallelism), host_launches=end)
    from_before, from_behind = _regather(model, training, parallelism)
    held: Chunks = {}
    x = Shapes(model, training, parallelism)
    for place, contents in partition(model, parallelism).items():
        num_layers = len(contents.layers)
        num_again = recomputed_layers(training, num_layers)
        before = (embedding,) if contents.embedding else from_before
        behind = (*further, head) if contents.loss else from_behind
        body = tuple(
            of_kind[kinds[layer], i < num_again] for i, layer in enumerate(contents.layers)
        )
        held[place] = (*before, *body, *scale_updates(x, num_layers), *behind)
    return held


def _host_launches(training: TrainingSpec) -> tuple[int | None, int | None]:
    """Of a transformer layer, and of the ends of the model, where they are in CUDA graphs."""
    return {"none": (None, None), "per_layer": (1, None), "full_iteration": (0, 0)}[
        training.cuda_graph
    ]


def boundary_bytes(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """Bytes that one rank sends to the next stage per microbatch.

    With sequence parallelism its own tokens; with tensor parallelism alone 1/t of the activations,
    which the receiving group gathers again (scatter-gather, Narayanan 2021, section 4.1), or all of
    them.
    """
    whole = Shapes(model, training, parallelism).stream_bytes
    return whole / parallelism.tensor_model_parallel_size if _shares(parallelism) else whole


def _shares(parallelism: ParallelismSpec) -> bool:
    """Whether tensor-parallel ranks send a part of the activations each."""
    return parallelism.sequence_parallel or parallelism.scatter_gather_tensors_in_pipeline


def _regather(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> tuple[tuple[LayerWork, ...], tuple[LayerWork, ...]]:
    """What undoes the scatter on the receiving side: of activations and of gradients."""
    tp = parallelism.tensor_model_parallel_size
    if tp == 1 or parallelism.sequence_parallel or parallelism.pipeline_model_parallel_size == 1:
        return (), ()
    if not _shares(parallelism):
        return (), ()
    whole = boundary_bytes(model, training, parallelism) * tp
    gather = Collective("stage input", "all_gather", "tp", whole)
    return (LayerWork("receive", (gather,), ()),), (LayerWork("receive", (), (gather,)),)
