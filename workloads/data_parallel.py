"""Gradients and the optimizer: buckets that are reduced together, and the end of the step."""

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.operations import (
    Axis,
    Collective,
    LayerWork,
    MemoryBound,
    Operation,
    expert_parameters,
)
from workloads.partition import shares_embedding, stage_contents
from workloads.quantization import operand_bytes, quantize_weights
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec

ADAM_BYTES = 28
"""Per parameter: fp32 gradient, master weight and two moments read, the last three written."""
MODEL_COPY_BYTES = 6
"""Per parameter: fp32 master weight read, 2-byte weight written."""
GRADIENT_COPY_BYTES = 6
"""Per parameter, where main gradients have 2 bytes: read, and written in fp32 for the optimizer."""
MASTER_BYTES = 4
"""Of a gradient as the optimizer sees it: fp32 always (Megatron-LM, distrib_optimizer.py)."""
WEIGHT_BYTES = 2
"""Of a weight as the layers read it."""
SCALAR_BYTES = 4
"""What a rank contributes to the gradient norm, or to the search for infinities: one fp32."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together."""

    parameters: int
    num_weights: int


@dataclass(frozen=True, slots=True)
class Held:
    """Weights of experts on one rank."""

    parameters: int
    num_copies: int
    """Ranks that hold the same ones."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """The part of the optimizer step that the host does (Megatron-LM,
    optimizer/cpu_offloading/hybrid_optimizer.py)."""

    parameters: float
    """Of one rank."""
    pieces: int
    """Equal parts that are copied, stepped and copied back one after the other."""

    @property
    def down_bytes(self) -> float:
        """Gradients, as the fp32 Adam takes them."""
        return MASTER_BYTES * self.parameters

    @property
    def up_bytes(self) -> float:
        """Weights, as the layers read them."""
        return WEIGHT_BYTES * self.parameters


def host_step(
    optimizer: OptimizerSpec, data_parallel_size: int, parameters: int, num_layers: int
) -> HostStep | None:
    """What the host steps for a rank that holds `parameters` weights in `num_layers` layers."""
    if not optimizer.offloaded_fraction:
        return None
    shard = parameters / (data_parallel_size if optimizer.use_distributed_optimizer else 1)
    pieces = num_layers if optimizer.overlap_cpu_optimizer_d2h_h2d else 1
    return HostStep(shard * optimizer.offloaded_fraction, max(1, pieces))


def default_bucket_size(num_replicas: int) -> int:
    """Parameters per bucket when ddp_bucket_size is left out (Megatron-LM,
    distributed_data_parallel.py)."""
    return max(40_000_000, 1_000_000 * num_replicas)


def is_bucketed(optimizer: OptimizerSpec, stage: int, chunk: int) -> bool:
    """Whether a chunk's gradients are cut into buckets, and not reduced as one.

    Megatron-LM cuts only the first chunk of the first stage, whose backward ends the step, and
    nothing at all unless reductions overlap (distributed_data_parallel.py; training.py). Sharded
    gradients (ZeRO-2) are given up bucket by bucket, whatever overlaps.
    """
    if optimizer.shards_gradients:
        return True
    return optimizer.overlap_grad_reduce and stage == 0 and chunk == 0


def gradient_buckets(
    backward_order: Sequence[LayerWork], bucket_size: int | None, *, experts: bool = False
) -> tuple[Bucket, ...]:
    """Fill buckets with weights in the order in which backward completes their gradients: those of
    experts, or all others.

    A bucket closes with the weight that fills it (Megatron-LM, param_and_grad_buffer.py); None puts
    all into one.
    """
    count = expert_parameters if experts else _other_parameters
    sizes = [count(op) for layer in backward_order for op in layer.backward]
    buckets, filled, held = [], 0, 0
    for size in filter(None, sizes):
        filled += size
        held += 1
        if bucket_size is not None and filled >= bucket_size:
            buckets.append(Bucket(filled, held))
            filled = held = 0
    if filled:
        buckets.append(Bucket(filled, held))
    return tuple(buckets)


def _other_parameters(op: Operation) -> int:
    return op.parameters


def layer_buckets(backward_order: Sequence[LayerWork]) -> tuple[Bucket, ...]:
    """One bucket for each layer that holds weights: what FSDP gathers and scatters as one."""
    return tuple(
        Bucket(layer.parameters, sum(op.parameters > 0 for op in layer.backward))
        for layer in backward_order
        if layer.parameters
    )


def gradient_bytes_per_parameter(training: TrainingSpec) -> int:
    """Of a main gradient, which is what the data-parallel group reduces."""
    return 4 if training.accumulate_allreduce_grads_in_fp32 else 2


def parameter_bytes_per_parameter(training: TrainingSpec, linear_share: float) -> float:
    """Of a weight as it is gathered, on average: 2, or fewer for those of linear layers, which make
    up `linear_share` of all, where low precision gathers them so."""
    low = training.low_precision
    if low is None or not low.param_gather:
        return 2.0
    return 2.0 + linear_share * (operand_bytes(training) - 2.0)


def num_shards(optimizer: OptimizerSpec, num_replicas: int) -> int:
    """Parts into which optimizer state (and, by data_parallel_sharding, more) is cut."""
    if not optimizer.use_distributed_optimizer:
        return 1
    return num_replicas // optimizer.num_distributed_optimizer_instances


def optimizer_operations(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    optimizer: OptimizerSpec,
    num_replicas: int,
    stage: int,
    parameters: int,
    experts: Held | None = None,
    linear_weights: int = 0,
) -> tuple[Operation, ...]:
    """What a rank of `stage`, holding `parameters` weights, runs between backward and the next
    forward, once its gradients are reduced over the `num_replicas` data- and context-parallel ranks
    that hold the same weights (Megatron-LM, finalize_model_grads.py, optimizer.py). `experts`: the
    weights of experts that it holds besides; `linear_weights`: those of both that are quantized.

    Clearing main gradients and scaling them by the number of replicas touch all weights (of sharded
    gradients, the local shard); the copy of 2-byte gradients to fp32, undoing the loss scale
    (fp16), norm, clipping, Adam and the copy to 2-byte weights the local shard only. Clipping is
    taken to happen in every step.
    """
    gradient = gradient_bytes_per_parameter(training)
    shard: float = -(-parameters // num_shards(optimizer, num_replicas))
    held = shard if optimizer.shards_gradients else parameters
    if experts is not None:
        shard += -(-experts.parameters // num_shards(optimizer, experts.num_copies))
        held += experts.parameters
    operations: list[Operation] = [MemoryBound("clear gradients", "fill", float(gradient * held))]
    if num_replicas > 1:
        operations.append(MemoryBound("scale gradients", "elementwise", 2.0 * gradient * held))
    operations += quantize_weights(training, linear_weights)
    operations += _shared_gradients(model, training, parallelism, stage)
    if gradient != MASTER_BYTES:
        operations.append(
            MemoryBound("gradients to fp32", "elementwise", float(GRADIENT_COPY_BYTES * shard))
        )
    if training.dtype == "fp16":
        operations += [
            MemoryBound("unscale and check gradients", "elementwise", 2.0 * MASTER_BYTES * shard),
            *_agree("gradient overflow", optimizer),
        ]
    if optimizer.clip_grad > 0:
        operations += [
            MemoryBound("gradient norm", "grad_norm", float(MASTER_BYTES * shard)),
            *_agree("gradient norm", optimizer),
            MemoryBound("clip gradients", "elementwise", 2.0 * MASTER_BYTES * shard),
        ]
    shard *= 1.0 - optimizer.offloaded_fraction
    if shard == 0:
        return tuple(operations)
    return (
        *operations,
        MemoryBound("adam", "adam", float(ADAM_BYTES * shard)),
        MemoryBound("weights from master", "elementwise", float(MODEL_COPY_BYTES * shard)),
    )


def _agree(name: str, optimizer: OptimizerSpec) -> tuple[Collective, ...]:
    """One number of all ranks; with post-validation of those of this stage only: what other stages
    say is checked later, from what comes with their activations."""
    axes: tuple[Axis, ...] = ("world",)
    if optimizer.enable_optimizer_post_validation:
        axes = ("tp", "dp")
    return tuple(Collective(name, "all_reduce", axis, float(SCALAR_BYTES)) for axis in axes)


def _shared_gradients(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec, stage: int
) -> list[Operation]:
    """Gradients of weights that several ranks hold and see different tokens through: norms and
    row-parallel biases under sequence parallelism, and tied embeddings on first and last stage."""
    gradient = gradient_bytes_per_parameter(training)
    tp = parallelism.tensor_model_parallel_size
    held = stage_contents(model, parallelism, stage)
    num_layers = sum(len(chunk.layers) for chunk in held)
    has_loss = any(chunk.loss for chunk in held)
    operations: list[Operation] = []
    if parallelism.sequence_parallel and tp > 1:
        norm = model.hidden_size * (2 if model.normalization == "LayerNorm" else 1)
        biases = 2 * model.hidden_size * model.add_bias_linear
        shared = num_layers * (2 * norm + biases) + norm * has_loss
        operations.append(
            Collective("norm gradients", "all_reduce", "tp", float(gradient * shared))
        )
    tied = not model.untie_embeddings_and_output_weights or model.mtp_num_layers > 0
    at_an_end = has_loss or any(chunk.embedding for chunk in held)
    if tied and at_an_end and not shares_embedding(model, parallelism):
        words = model.padded_vocab_size(tp) // tp * model.hidden_size
        operations.append(
            Collective("embedding gradients", "all_reduce", "embedding", float(gradient * words))
        )
    return operations
