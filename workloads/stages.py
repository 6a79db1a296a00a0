"""Which layers each model chunk of each pipeline stage holds."""

from workloads.ends import embedding_layer, output_head
from workloads.layers import ELEMENT_BYTES, transformer_layer
from workloads.operations import Collective, LayerWork
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec

Chunks = dict[tuple[int, int], tuple[LayerWork, ...]]


def layers_per_chunk(model: ModelSpec, parallelism: ParallelismSpec) -> int:
    """Transformer layers of every chunk: Megatron divides them evenly."""
    chunks = (
        parallelism.pipeline_model_parallel_size * parallelism.virtual_pipeline_model_parallel_size
    )
    return model.num_layers // chunks


def recomputed_layers(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> int:
    """Layers of each chunk that run again: all (`uniform`), or the first recompute_num_layers of
    the stage's or chunk's layers (`block`)."""
    if training.recompute_granularity != "full":
        return 0
    layers = layers_per_chunk(model, parallelism)
    return (
        layers
        if training.recompute_method == "uniform"
        else min(layers, training.recompute_num_layers)
    )


def stage_chunks(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> Chunks:
    """(stage, chunk) -> its layers, first to last. Equal layers are one object.

    The embedding comes before the first stage's first chunk, the head after the last stage's last.
    """
    stages = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    kept = transformer_layer(model, training, parallelism, recomputed=False)
    again = transformer_layer(model, training, parallelism, recomputed=True)
    num_again = recomputed_layers(model, training, parallelism)
    body = (again,) * num_again + (kept,) * (layers_per_chunk(model, parallelism) - num_again)
    embedding = embedding_layer(model, training, parallelism)
    head = output_head(model, training, parallelism)
    from_before, from_behind = _regather(model, training, parallelism)
    held: Chunks = {}
    for stage in range(stages):
        for chunk in range(chunks):
            first = (stage, chunk) == (0, 0)
            last = (stage, chunk) == (stages - 1, chunks - 1)
            before = (embedding,) if first else from_before
            behind = (head,) if last else from_behind
            held[stage, chunk] = (*before, *body, *behind)
    return held


def boundary_bytes(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """Bytes that one rank sends to the next stage per microbatch.

    With sequence parallelism its own tokens; with tensor parallelism alone 1/t of the activations,
    which the receiving group gathers again (scatter-gather, Narayanan 2021, section 4.1).
    """
    tokens = training.seq_length * training.micro_batch_size
    whole = float(tokens * model.hidden_size * ELEMENT_BYTES)
    return whole / parallelism.tensor_model_parallel_size


def _regather(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> tuple[tuple[LayerWork, ...], tuple[LayerWork, ...]]:
    """What undoes the scatter on the receiving side: of activations and of gradients."""
    tp = parallelism.tensor_model_parallel_size
    if tp == 1 or parallelism.sequence_parallel or parallelism.pipeline_model_parallel_size == 1:
        return (), ()
    whole = boundary_bytes(model, training, parallelism) * tp
    gather = Collective("stage input", "all_gather", "tp", whole)
    return (LayerWork("receive", (gather,), ()),), (LayerWork("receive", (), (gather,)),)
