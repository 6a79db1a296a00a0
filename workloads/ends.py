"""Both ends of the model: embedding on the first stage, norm, logits and loss on the last.

Shape letters as in `workloads.layers`; V is the padded vocabulary.
"""

from workloads.layers import (
    ELEMENT_BYTES,
    MASK_BYTES,
    Shapes,
    column_backward,
    column_forward,
    norm_backward,
    norm_forward,
)
from workloads.operations import Collective, CollectiveKind, LayerWork, MemoryBound, Operation
from workloads.partition import shares_embedding
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec

EMBEDDING, OUTPUT, FURTHER_OUTPUT = "embedding", "output", "further output"
"""Names of the two ends, and of the output of a token further ahead."""
LOSS_FORWARD_BYTES, LOSS_BACKWARD_BYTES = 38, 14
"""Bytes per logit that Megatron's cross entropy moves when each of its steps is a kernel of its
own: cast to fp32, maximum, subtraction, exponential, sum, division; then the gradient. Counted on
the kernels of our H200 traces."""
FUSED_FORWARD_BYTES, FUSED_BACKWARD_BYTES = 14, 8
"""The same with cross_entropy_loss_fusion: fp32 logits written and read once, exponentials kept;
gradient read and written. Counted, not measured."""


def embedding_layer(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> LayerWork:
    """Vocabulary-parallel lookup, summed over the tensor-parallel group, plus positions.

    Under sequence parallelism the sum leaves each rank its own tokens, unless learned positions
    are still to be added: then the whole is summed first and split afterwards (Megatron-LM,
    language_model_embedding.py).
    """
    x = Shapes(model, training, parallelism)
    words = vocabulary_parameters(x)
    positions = position_parameters(x)
    forward: list[Operation] = [
        MemoryBound("word embedding", "embedding_fwd", 2 * x.stream_bytes, words)
    ]
    scattered = x.parallelism.sequence_parallel
    if x.t > 1:
        kind: CollectiveKind = "reduce_scatter" if scattered and not positions else "all_reduce"
        forward.append(Collective("word embedding", kind, "tp", x.stream_bytes))
    if positions:
        forward.append(
            MemoryBound("position embedding", "elementwise", 3 * x.stream_bytes, positions)
        )
    backward: list[Operation] = []
    if model.hidden_dropout:
        mask = x.norm_tokens * x.h * MASK_BYTES
        dropout = MemoryBound("embedding dropout", "bias_dropout_add", 2 * x.norm_bytes + mask)
        forward.append(dropout)
        backward.append(dropout)
    if x.t > 1 and scattered:
        backward.append(Collective("word embedding gradient", "all_gather", "tp", x.stream_bytes))
    if positions:
        backward.append(
            MemoryBound(
                "position embedding gradient", "elementwise", x.stream_bytes, positions, True
            )
        )
    table_bytes = words * ELEMENT_BYTES
    main_bytes = 4 if training.accumulate_allreduce_grads_in_fp32 else 2
    backward += [
        MemoryBound(
            "word embedding gradient", "embedding_bwd", x.stream_bytes + table_bytes, 0, True
        ),
        MemoryBound(
            "word embedding gradient", "elementwise", float(table_bytes + 2 * main_bytes * words),
            words, True,
        ),
    ]  # fmt: skip
    return LayerWork(EMBEDDING, tuple(forward), tuple(backward), (), words + positions)


def output_head(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    *,
    repeated: bool = False,
) -> LayerWork:
    """Final norm, logits over V / t of the vocabulary, vocabulary-parallel cross entropy.

    With tied embeddings on a single stage the weights are the embedding's and counted there; on
    more stages the last one holds a copy. `repeated`: the output matrix is counted elsewhere.
    """
    x = Shapes(model, training, parallelism)
    width = model.padded_vocab_size(x.t) // x.t
    logits = float(x.tokens * width)
    fused = training.cross_entropy_loss_fusion
    first = FUSED_FORWARD_BYTES if fused else LOSS_FORWARD_BYTES
    second = FUSED_BACKWARD_BYTES if fused else LOSS_BACKWARD_BYTES
    shares = repeated or shares_embedding(model, parallelism)
    forward = (
        *norm_forward(x, "final norm"),
        *column_forward(
            x, "logits", width, overlap=False, bias=False, counted=not shares, in_layer=False
        ),
        MemoryBound("cross entropy", "cross_entropy", first * logits),
        *_loss_reductions(x),
        *_loss_mean(x),
    )
    backward = (
        MemoryBound("cross entropy backward", "cross_entropy", second * logits),
        *column_backward(x, "logits", width, bias=False, counted=not shares, in_layer=False),
        *norm_backward(x, "final norm", residual=False),
    )
    name = FURTHER_OUTPUT if repeated else OUTPUT
    return LayerWork(name, forward, backward, (), sum(op.parameters for op in forward))


def vocabulary_parameters(x: Shapes) -> int:
    """Words of the (padded) vocabulary that this rank holds, times h."""
    return x.model.padded_vocab_size(x.t) // x.t * x.h


def position_parameters(x: Shapes) -> int:
    """A learned position table, on every tensor-parallel rank in full."""
    if x.model.position_embedding_type != "learned_absolute":
        return 0
    return (x.model.max_position_embeddings or x.training.seq_length) * x.h


def _loss_mean(x: Shapes) -> tuple[Operation, ...]:
    """Loss and number of tokens, summed over the ranks that share the sequence."""
    if x.parallelism.context_parallel_size == 1:
        return ()
    return (Collective("loss over the sequence", "all_reduce", "cp", 8.0),)


def _loss_reductions(x: Shapes) -> tuple[Operation, ...]:
    """Maximum, target logit and sum of exponentials, one fp32 per token each (Megatron-LM,
    tensor_parallel/cross_entropy.py)."""
    if x.t == 1:
        return ()
    names = ("loss maximum", "loss target", "loss sum")
    return tuple(Collective(name, "all_reduce", "tp", 4.0 * x.tokens) for name in names)
