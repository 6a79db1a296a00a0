"""Models, layouts and sums that the tests of this folder share."""

from collections.abc import Iterable
from itertools import chain

from workloads.operations import Collective, Operation, Overlapped
from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec
from workloads.stages import stage_chunks

SEQUENCE, MICRO_BATCH, BATCH = 32, 2, 16


def gpt(**changes: object) -> ModelSpec:
    """A GPT: LayerNorm, biases, 4h MLP, learned positions, tied embeddings, dropout."""
    fields = {"num_layers": 8, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 1000}
    return ModelSpec.model_validate({**fields, **changes})


def llama(**changes: object) -> ModelSpec:
    """A Llama: RMSNorm, no biases, gated MLP, grouped queries, rotary, untied, no dropout."""
    fields = {
        "num_layers": 8, "hidden_size": 64, "num_attention_heads": 8, "num_query_groups": 4,
        "ffn_hidden_size": 176, "vocab_size": 1000, "position_embedding_type": "rope",
        "normalization": "RMSNorm", "gated_linear_unit": True, "activation_function": "silu",
        "add_bias_linear": False, "untie_embeddings_and_output_weights": True,
        "hidden_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    return ModelSpec.model_validate({**fields, **changes})


def training(**changes: object) -> TrainingSpec:
    fields = {
        "seq_length": SEQUENCE, "micro_batch_size": MICRO_BATCH, "global_batch_size": BATCH,
    }  # fmt: skip
    return TrainingSpec.model_validate({**fields, **changes})


def layout(
    tensor: int = 1,
    pipeline: int = 1,
    chunks: int = 1,
    sequence_parallel: bool = False,
    tp_comm_overlap: bool = False,
) -> ParallelismSpec:
    return ParallelismSpec(
        tensor_model_parallel_size=tensor,
        pipeline_model_parallel_size=pipeline,
        virtual_pipeline_model_parallel_size=chunks,
        sequence_parallel=sequence_parallel,
        tp_comm_overlap=tp_comm_overlap,
    )


LAYOUTS = [
    layout(),
    layout(2),
    layout(2, sequence_parallel=True),
    layout(4, 2, sequence_parallel=True, tp_comm_overlap=True),
    layout(2, 4),
    layout(4, 2, 2, sequence_parallel=True),
    layout(8, 8, sequence_parallel=True),
]


def all_layers(
    model: ModelSpec, train: TrainingSpec, parallelism: ParallelismSpec
) -> list[tuple[tuple[Operation, ...], tuple[Operation, ...], tuple[Operation, ...], int]]:
    """(forward, backward, recompute, parameters) of every layer of every stage, one rank each."""
    held = stage_chunks(model, train, parallelism).values()
    return [
        (layer.forward, layer.backward, layer.recompute, layer.parameters)
        for layer in chain.from_iterable(held)
    ]


def flops(operations: Iterable[Operation]) -> float:
    return sum(op.flops for op in operations)


def collectives(operations: Iterable[Operation]) -> list[Collective]:
    """Those on their own and those that overlap with compute, in order."""
    found: list[Collective] = []
    for op in operations:
        if isinstance(op, Collective):
            found.append(op)
        elif isinstance(op, Overlapped):
            found.append(op.collective)
    return found


def kinds(operations: Iterable[Operation]) -> list[tuple[str, float]]:
    """(kind, bytes) of each collective, in order."""
    return [(op.kind, op.num_bytes) for op in collectives(operations)]
