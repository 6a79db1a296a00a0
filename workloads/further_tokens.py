"""Multi-token prediction: layers behind the last one that predict tokens further ahead.

Each joins the stream with the embedding of the next token (both normalized, [T, 2h] x [2h, h]),
runs a transformer layer like the model's last and predicts with the model's own output matrix
(DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron-LM, core/transformer/
multi_token_prediction.py). All are on the last stage, which holds a copy of the embedding unless
the first one is the same.
"""

from workloads.ends import output_head, vocabulary_parameters
from workloads.layer_kinds import last_kind
from workloads.layers import ELEMENT_BYTES, Shapes, norm_backward, norm_forward, wgrad_products
from workloads.operations import Collective, Gemm, LayerWork, MemoryBound, Operation
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.transformer import transformer_layer


def further_layers(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> tuple[LayerWork, ...]:
    """What stands between the last layer and the output; nothing for a model without."""
    if not model.mtp_num_layers:
        return ()
    kind = last_kind(model)
    layer = transformer_layer(model, training, parallelism, False, kind)
    head = output_head(model, training, parallelism, repeated=True)
    joins = (_join(model, training, parallelism, i == 0) for i in range(model.mtp_num_layers))
    return tuple(part for join in joins for part in (join, layer, head))


def _join(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec, first: bool
) -> LayerWork:
    """Embedding, both norms, and the product that halves the width."""
    x = Shapes(model, training, parallelism)
    holds = first and parallelism.pipeline_model_parallel_size > 1
    words = vocabulary_parameters(x) if holds else 0
    width, dtype = x.h // x.t, x.training.dtype
    weights = 2 * x.h * width
    both = 2 * x.stream_bytes
    side_by_side = MemoryBound("stream and embedding", "elementwise", 4 * x.norm_bytes)
    forward: tuple[Operation, ...] = (
        MemoryBound("next word embedding", "embedding_fwd", 2 * x.stream_bytes, words),
        *norm_forward(x, "embedding norm"),
        *norm_forward(x, "stream norm"),
        side_by_side,
        *_tensor(x, "joined input", "all_gather", both),
        Gemm("join", x.tokens, width, 2 * x.h, "fwd", dtype, parameters=weights),
        *_tensor(x, "joined output", "all_gather", x.stream_bytes),
    )
    table = float((2 * ELEMENT_BYTES + ELEMENT_BYTES) * words)
    backward: tuple[Operation, ...] = (
        *_tensor(x, "joined output gradient", "all_gather", x.stream_bytes),
        Gemm("join dgrad", x.tokens, 2 * x.h, width, "dgrad", dtype),
        *_tensor(x, "joined input gradient", "reduce_scatter", both),
        *wgrad_products(x, "join", width, 2 * x.h, weights, False),
        side_by_side,
        *norm_backward(x, "stream norm", residual=False),
        *norm_backward(x, "embedding norm", residual=False),
        MemoryBound("next word gradient", "embedding_bwd", x.stream_bytes + table, words),
    )
    return LayerWork("join", forward, backward, (), sum(op.parameters for op in forward))


def _tensor(x: Shapes, name: str, kind: str, num_bytes: float) -> tuple[Operation, ...]:
    if x.t == 1:
        return ()
    return (Collective(name, kind, "tp", num_bytes),)  # type: ignore[arg-type]
