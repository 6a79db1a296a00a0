"""Bytes that one rank of a pipeline stage needs at its fullest moment.

Activations follow Korthikanti 2022 (arXiv 2205.05198, equations 1 to 6), written out per saved
tensor so that grouped queries, gated MLPs and fused attention come out too. Shape letters as in
`workloads.layers`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from workloads.activation_offload import most_held
from workloads.attention import kv_bytes
from workloads.data_parallel import (
    default_bucket_size,
    gradient_bytes_per_parameter,
    num_shards,
)
from workloads.ends import EMBEDDING, OUTPUT
from workloads.latent_attention import latent_activation_bytes
from workloads.layer_kinds import DENSE, LayerKind, last_kind, layer_kinds
from workloads.layers import ELEMENT_BYTES, MASK_BYTES, Shapes
from workloads.moe import (
    expert_activation_bytes,
    expert_weight_shapes,
    expert_working_bytes,
    rebuilt_expert_bytes,
)
from workloads.operations import LayerWork
from workloads.partition import stage_contents
from workloads.passes import Order
from workloads.quantization import linear_parameters, operand_bytes, weight_bytes
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec
from workloads.stages import recomputed_layers, stage_chunks

OPTIMIZER_BYTES = 12
"""Per parameter: fp32 master weight and Adam's two fp32 moments."""
FP32_BYTES = 4
SOFTMAX_BYTES = FP32_BYTES
"""Per logit: what the cross entropy keeps for its backward. It is the fp32 copy of the logits,
turned into exponentials, softmax and gradient in place (Megatron-LM,
tensor_parallel/cross_entropy.py)."""
KEPT_WHOLE = (EMBEDDING, OUTPUT)
"""FSDP's root unit, which is gathered once for both ways (PyTorch, fully_sharded_data_parallel.py:
the root is not resharded after its forward)."""
CONTEXT_BYTES = 0.6e9
"""CUDA context, kernels and cuBLAS workspaces, outside PyTorch's allocator. A stated guess; 0.4 to
0.8 GB is seen with CUDA 12."""
NCCL_BYTES_PER_GROUP = 0.25e9
"""Channel buffers of one NCCL communicator. A stated guess: 16 to 32 channels of a few 4 MiB
buffers each."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak of one stage, bytes per rank, by what holds it."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Of all microbatches in flight, the loss's softmax included, and the working set of a
    recomputed layer."""
    buffers: float
    """Transient: gradients of the widest activations or of the logits, gathered activations, what
    is sent; and what Transformer Engine gives autograd in place of weight gradients."""
    framework: float
    """Outside the allocator: CUDA context, NCCL."""

    @property
    def total_bytes(self) -> float:
        return float(sum(asdict(self).values()))

    def terms(self) -> dict[str, float]:
        """The terms by name, in order."""
        return asdict(self)


def stage_memory(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    optimizer: OptimizerSpec,
    data_parallel_size: int,
    stage: int,
    order: Order,
) -> StageMemory:
    """Peak of a rank of `stage` that runs its passes in this order."""
    chunks = parallelism.virtual_pipeline_model_parallel_size
    held = stage_chunks(model, training, parallelism)
    layers = [layer for chunk in range(chunks) for layer in held[stage, chunk]]
    parameters = sum(layer.parameters for layer in layers)
    experts = sum(layer.expert_parameters for layer in layers)
    replicas = data_parallel_size * parallelism.context_parallel_size
    sharded = num_shards(optimizer, replicas)
    copies = num_shards(optimizer, parallelism.expert_copies(data_parallel_size))
    gradient = gradient_bytes_per_parameter(training)
    reduced = parameters / (sharded if optimizer.shards_gradients else 1) + experts
    stepped = (parameters / sharded + experts / copies) * (1.0 - optimizer.offloaded_fraction)
    return StageMemory(
        weights=float(ELEMENT_BYTES * (gathered_parameters(optimizer, layers) + experts))
        + _quantized_weight_bytes(training, optimizer, layers),
        gradients=gradient * reduced,
        optimizer=OPTIMIZER_BYTES * stepped,
        activations=_activations(model, training, parallelism, stage, order),
        buffers=_buffers(model, training, parallelism, stage)
        + gradient * scattered_parameters(optimizer, layers, replicas),
        framework=CONTEXT_BYTES + NCCL_BYTES_PER_GROUP * _groups(parallelism, replicas),
    )


def gathered_parameters(optimizer: OptimizerSpec, layers: Sequence[LayerWork]) -> int:
    """Weights that stand whole in memory at once: all; or under ZeRO-3 the embedding and the
    output, which stay, and of the layers between the two largest, one running and the next one
    gathered (all of them, where they are kept for the backward)."""
    if not optimizer.shards_weights:
        return sum(layer.parameters for layer in layers)
    between = sorted(x.parameters for x in layers if x.name not in KEPT_WHOLE)
    ends = sum(layer.parameters for layer in layers if layer.name in KEPT_WHOLE)
    return ends + sum(between[-2:] if optimizer.reshard_after_forward else between)


def _quantized_weight_bytes(
    training: TrainingSpec, optimizer: OptimizerSpec, layers: Sequence[LayerWork]
) -> float:
    """What low precision adds to 2-byte weights: copies in fewer bits, or less than nothing where
    they take the place of those."""
    if training.low_precision is None:
        return 0.0
    linear = sorted(linear_parameters(layer, training) for layer in layers)
    if optimizer.shards_weights and optimizer.reshard_after_forward:
        linear = linear[-2:]
    return (weight_bytes(training) - ELEMENT_BYTES) * sum(linear)


def scattered_parameters(
    optimizer: OptimizerSpec, layers: Sequence[LayerWork], num_replicas: int
) -> int:
    """Weights whose gradients stand whole beside the shards: two layers' under ZeRO-3, one on its
    way while the next one's fill; a bucket's under ZeRO-2."""
    if optimizer.shards_weights:
        return sum(sorted(layer.parameters for layer in layers)[-2:])
    if optimizer.shards_gradients:
        size = optimizer.ddp_bucket_size or default_bucket_size(num_replicas)
        return min(size, sum(layer.parameters for layer in layers))
    return 0


def layer_activation_bytes(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    recomputed: bool,
    kind: LayerKind = DENSE,
) -> float:
    """What one transformer layer keeps of one microbatch for its backward; `recomputed`: its input
    only."""
    x = Shapes(model, training, parallelism)
    if recomputed:
        return x.norm_bytes
    mask = x.norm_tokens * x.h * MASK_BYTES if model.hidden_dropout else 0
    outside = 2 * x.norm_bytes + _norm_output_bytes(x) + 2 * mask  # norms' inputs; two dropouts
    context = float(x.tokens * x.core_width * ELEMENT_BYTES)
    if x.training.low_precision is not None:  # attention keeps its output, the product a copy
        context += x.tokens * x.core_width * operand_bytes(x.training)
    mlp = expert_activation_bytes(x) if kind.experts else _mlp_bytes(x)
    return outside + _qkv_bytes(x) + mlp + context + _core_bytes(x) - rebuilt_bytes(x, kind)


def _qkv_bytes(x: Shapes) -> float:
    """Queries, keys and values as attention takes them; before their norms too, where there are."""
    if x.model.multi_latent_attention:
        return latent_activation_bytes(x)
    normed = x.model.head_dim * (x.heads + x.kv_heads) * x.model.qk_layernorm
    return float(x.tokens * (x.qkv_width + normed) * ELEMENT_BYTES)


def _norm_output_bytes(x: Shapes) -> float:
    """Inputs of the attention block's and the MLP's first product."""
    return 2 * x.norm_tokens * x.h * operand_bytes(x.training)


def _mlp_bytes(x: Shapes) -> float:
    """Outputs of the first product and of the activation."""
    kept = x.fc1_width * ELEMENT_BYTES + x.ffn * operand_bytes(x.training)
    return float(x.tokens * kept)


def rebuilt_bytes(x: Shapes, kind: LayerKind = DENSE) -> float:
    """What selective recomputation of the MLP and the norms does not keep of a layer, and has of
    one layer at a time."""
    chosen = x.training.selected_modules
    mlp = rebuilt_expert_bytes(x) if kind.experts else _mlp_bytes(x) * ("mlp" in chosen)
    return mlp + _norm_output_bytes(x) * ("layernorm" in chosen)


def _core_bytes(x: Shapes) -> float:
    """Inside the attention core: s^2 scores unless they are fused away or recomputed."""
    if "core_attn" in x.training.selected_modules:
        return 0.0
    if x.training.attention_backend != "unfused":
        return 4.0 * x.tokens * x.heads  # the softmax statistics, fp32
    s, drop = x.training.seq_length, bool(x.model.attention_dropout)
    scores = x.training.micro_batch_size * x.heads * s * s
    return float(scores * (ELEMENT_BYTES + drop * (MASK_BYTES + ELEMENT_BYTES)))


def weight_gradient_bytes(x: Shapes) -> float:
    """What one transformer layer keeps of one microbatch between the two parts of its backward:
    inputs and output gradients of its four products (Qi 2023, table 1: 32 s b h)."""
    column = x.tokens * (x.qkv_width + x.fc1_width) * ELEMENT_BYTES + 2 * x.norm_bytes
    row = x.tokens * (x.core_width + x.ffn) * ELEMENT_BYTES + 2 * x.norm_bytes
    return column + row


def peak_held(order: Order, kept: Sequence[float], waiting: Sequence[float]) -> float:
    """The most that is held at once over an order of passes.

    Of each chunk, `kept` per microbatch from its forward to its backward, `waiting` from its input
    gradient to its weight gradient.
    """
    now = peak = 0.0
    for step in order:
        if step.direction == "forward":
            now += kept[step.chunk]
        elif step.direction == "backward":
            now -= kept[step.chunk]
        elif step.direction == "backward_input":
            now += waiting[step.chunk] - kept[step.chunk]
        else:
            now -= waiting[step.chunk]
        peak = max(peak, now)
    return peak


def _activations(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    stage: int,
    order: Order,
) -> float:
    x = Shapes(model, training, parallelism)
    kinds = layer_kinds(model)
    layer_of = {
        kind: layer_activation_bytes(model, training, parallelism, False, kind)
        for kind in dict.fromkeys(kinds)
    }
    checkpoint = layer_activation_bytes(model, training, parallelism, recomputed=True)
    group = training.recompute_num_layers if training.recompute_method == "uniform" else 1
    kept, waiting, again_at_once = [], [], 0.0
    for contents in stage_contents(model, parallelism, stage):
        layers = len(contents.layers)
        again = recomputed_layers(training, layers)
        kept_layers = [layer_of[kinds[i]] for i in contents.layers]
        again_at_once = max(again_at_once, sum(sorted(kept_layers[:again])[-group:]))
        held = -(-again // group) * checkpoint + sum(kept_layers[again:])
        if training.offloaded_layers:
            held = most_held(layers, training.offloaded_layers) * kept_layers[0]
        left = layers * weight_gradient_bytes(x)
        if contents.embedding and model.hidden_dropout:
            held += x.norm_tokens * x.h * MASK_BYTES
        if contents.embedding:
            left += x.norm_bytes  # the gradient of what was looked up
        if contents.loss:
            held += _further_bytes(x)
            # final norm's and logits' inputs, and the loss; the input and gradient of the logits
            held += 2 * x.norm_bytes + SOFTMAX_BYTES * _logits(x)
            left += x.norm_bytes + ELEMENT_BYTES * _logits(x)
        kept.append(held)
        waiting.append(left)
    has_loss = any(c.loss for c in stage_contents(model, parallelism, stage))
    deferred = _deferred_bytes(x, order) if has_loss else 0.0
    working = again_at_once + max(rebuilt_bytes(x, kind) for kind in layer_of)
    if parallelism.overlap_moe_expert_parallel_comm:
        working += max(kept)  # a forward runs while its partner's activations are still held
    return peak_held(order, kept, waiting) + working + deferred


def _further_bytes(x: Shapes) -> float:
    """Layers that predict tokens further ahead: inputs of both norms and of their product, a layer,
    and a loss."""
    layer = layer_activation_bytes(x.model, x.training, x.parallelism, False, last_kind(x.model))
    join = 6 * x.norm_bytes
    loss = 2 * x.norm_bytes + SOFTMAX_BYTES * _logits(x)
    return x.model.mtp_num_layers * (join + layer + loss)


def _deferred_bytes(x: Shapes, order: Order) -> float:
    """Inputs and gradients of the logits that wait for the end of the last stage's passes."""
    if not x.parallelism.defer_embedding_wgrad_compute:
        return 0.0
    microbatches = len({step.microbatch for step in order})
    limit = x.parallelism.wgrad_deferral_limit or microbatches
    return min(limit, microbatches) * (x.norm_bytes + ELEMENT_BYTES * _logits(x))


def _logits(x: Shapes) -> int:
    """Logits of one microbatch on one rank."""
    return x.tokens * x.model.padded_vocab_size(x.t) // x.t


def _buffers(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec, stage: int
) -> float:
    x = Shapes(model, training, parallelism)
    gathered = x.stream_bytes if parallelism.sequence_parallel else 0.0
    sends = 2 * x.stream_bytes / x.t if parallelism.pipeline_model_parallel_size > 1 else 0.0
    working = float(ELEMENT_BYTES * x.tokens * (x.fc1_width + x.ffn))
    if any(kind.experts for kind in layer_kinds(model)):
        working = max(working, expert_working_bytes(x))
    if any(contents.loss for contents in stage_contents(model, parallelism, stage)):
        # backward of the loss, or that of the last layer, when the softmax is gone
        working = max(float(ELEMENT_BYTES * _logits(x)), working - SOFTMAX_BYTES * _logits(x))
    return gathered + sends + working + _context_bytes(x) + _placeholder_bytes(x)


def _context_bytes(x: Shapes) -> float:
    """Keys and values on their way between context-parallel ranks, in the backward, which needs
    most: two ring buffers of them and their gradients, or all gathered with all their gradients."""
    c = x.parallelism.context_parallel_size
    if c == 1:
        return 0.0
    if x.parallelism.cp_comm_type == "all_gather":
        return 2 * kv_bytes(x) * c
    return 4 * kv_bytes(x) if x.parallelism.context_swap_size < c else 0.0


def _placeholder_bytes(x: Shapes) -> float:
    """Where GEMMs add to the main gradients themselves, autograd is given an empty tensor in place
    of each weight's gradient, one per shape and never freed (Transformer Engine,
    pytorch/module/base.py); before it, and flash attention, there was none."""
    fused = x.training.gradient_accumulation_fusion
    if not fused or x.training.attention_backend == "unfused":
        return 0.0
    shapes = {(x.qkv_width, x.h), (x.h, x.core_width)}
    kinds = layer_kinds(x.model)
    if not all(kind.experts for kind in kinds):
        shapes |= {(x.fc1_width, x.h), (x.h, x.ffn)}
    if any(kind.experts for kind in kinds):
        shapes |= expert_weight_shapes(x)
    return float(ELEMENT_BYTES * sum(rows * columns for rows, columns in shapes))


def _groups(parallelism: ParallelismSpec, num_replicas: int) -> int:
    """Communicators that a rank takes part in, the one of all ranks included."""
    sizes = (
        parallelism.tensor_model_parallel_size,
        parallelism.pipeline_model_parallel_size,
        parallelism.context_parallel_size,
        num_replicas,
    )
    return 1 + sum(size > 1 for size in sizes)
