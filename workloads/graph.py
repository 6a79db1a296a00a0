"""The work of one step: what each stage executes, in which order, with counts and no seconds.

`build_work` collects it from the layers, the schedule and the data-parallel plan; `pass_graph` and
`operation_graph` show it as networkx graphs, for inspection and for independent checks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from workloads.activation_offload import ActivationOffload
from workloads.backward import input_part, pass_operations, weight_part
from workloads.data_parallel import (
    Bucket,
    Held,
    HostStep,
    default_bucket_size,
    gradient_buckets,
    gradient_bytes_per_parameter,
    host_step,
    is_bucketed,
    layer_buckets,
    optimizer_operations,
    parameter_bytes_per_parameter,
)
from workloads.exchange_overlap import alone, with_hidden_exchanges
from workloads.memory import layer_activation_bytes
from workloads.operations import LayerWork, Operation
from workloads.passes import Order, Pass, PassInput, Route, pass_input
from workloads.pipeline import joined_forwards, stage_order
from workloads.quantization import linear_parameters
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec
from workloads.stages import boundary_bytes, stage_chunks

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class DeferredHead:
    """Weight gradients of the logits that the last stage leaves to the end of its passes."""

    num_microbatches: int
    """The first ones; the others' are done with their backward."""
    head: LayerWork
    """The last layer as those run it: its backward without the weights' part."""
    operations: tuple[Operation, ...]
    """That part, of one microbatch."""


@dataclass(frozen=True)
class HiddenExchanges:
    """A stage whose passes go together with those of another microbatch."""

    chunks: tuple[tuple[LayerWork, ...], ...]
    """Layers as such passes run them."""
    alone: frozenset[Pass]
    """Passes that have no partner."""


@dataclass(frozen=True)
class StageWork:
    """What one rank of a stage does in a step."""

    chunks: tuple[tuple[LayerWork, ...], ...]
    """Layers of each model chunk, first to last."""
    order: Order
    """Passes, as the schedule has them."""
    buckets: tuple[tuple[int, ...], ...]
    """Per chunk: parameters of each gradient bucket, in the order in which backward fills them."""
    bucket_weights: tuple[tuple[int, ...], ...]
    """Per chunk: how many weights each of them holds."""
    finish: tuple[Operation, ...]
    """After the gradients are reduced: norm, clipping, optimizer."""
    joined: frozenset[Pass] = frozenset()
    """Forwards of `order` that run interleaved with the backward behind them."""
    deferred: DeferredHead | None = None
    """On the last stage, if it defers."""
    offload: ActivationOffload | None = None
    """Activations that wait for their backward on the host."""
    host_step: HostStep | None = None
    """What the host steps after `finish`."""
    expert_buckets: tuple[tuple[Bucket, ...], ...] = ()
    """Per chunk, of the experts' weights, whose copies lie on other ranks."""
    exchanges: HiddenExchanges | None = None
    """Where exchanges of tokens hide behind another microbatch's compute."""

    @property
    def parameters(self) -> int:
        """Weights that a rank of this stage holds, those of experts apart."""
        return sum(layer.parameters for chunk in self.chunks for layer in chunk)

    @property
    def expert_parameters(self) -> int:
        """Weights of experts that a rank of this stage holds."""
        return sum(layer.expert_parameters for chunk in self.chunks for layer in chunk)

    def defers(self, step: Pass) -> bool:
        """Whether a pass leaves the weight gradients of the logits for later."""
        if self.deferred is None or step.direction != "backward":
            return False
        last = step.chunk == len(self.chunks) - 1
        return last and step.microbatch < self.deferred.num_microbatches

    def pass_layers(self, step: Pass) -> tuple[LayerWork, ...]:
        """The layers of a pass, first to last."""
        layers = self.chunks[step.chunk]
        if self.exchanges is not None and step not in self.exchanges.alone:
            layers = self.exchanges.chunks[step.chunk]
        if self.deferred is None or not self.defers(step):
            return layers
        return (*layers[:-1], self.deferred.head)


@dataclass(frozen=True)
class StepWork:
    """One optimizer step of one run."""

    stages: tuple[StageWork, ...]
    parallelism: ParallelismSpec
    optimizer: OptimizerSpec
    num_microbatches: int
    boundary_bytes: float
    """Activations one rank sends to the next stage per microbatch; gradients back are as large."""
    gradient_bytes: int
    """Per parameter, as reduced."""
    parameter_bytes: float
    """Per parameter, as gathered."""


def build_work(
    model: ModelSpec,
    training: TrainingSpec,
    parallelism: ParallelismSpec,
    optimizer: OptimizerSpec,
    data_parallel_size: int,
) -> StepWork:
    """Lay out a step of a checked run."""
    num_stages = parallelism.pipeline_model_parallel_size
    num_chunks = parallelism.virtual_pipeline_model_parallel_size
    num_microbatches = training.global_batch_size // (
        training.micro_batch_size * data_parallel_size
    )
    name = parallelism.pipeline_schedule
    assert name is not None
    layers = stage_chunks(model, training, parallelism)
    replicas = data_parallel_size * parallelism.context_parallel_size
    size = optimizer.ddp_bucket_size or default_bucket_size(replicas)
    copies = parallelism.expert_copies(data_parallel_size)
    hidden = {id(layer): with_hidden_exchanges(layer) for held in layers.values() for layer in held}
    stages = []
    for stage in range(num_stages):
        chunks = tuple(layers[stage, chunk] for chunk in range(num_chunks))
        parameters = sum(layer.parameters for chunk in chunks for layer in chunk)
        experts = sum(layer.expert_parameters for chunk in chunks for layer in chunk)
        order = stage_order(parallelism, stage, num_microbatches)
        buckets = [_buckets(optimizer, held, size, stage, c) for c, held in enumerate(chunks)]
        stages.append(
            StageWork(
                chunks,
                order,
                tuple(tuple(b.parameters for b in held) for held in buckets),
                tuple(tuple(b.num_weights for b in held) for held in buckets),
                optimizer_operations(
                    model,
                    training,
                    parallelism,
                    optimizer,
                    replicas,
                    stage,
                    parameters,
                    Held(experts, copies) if experts else None,
                    _linear_weights(training, chunks),
                ),
                joined_forwards(name, order, stage, num_stages),
                _deferred_head(chunks[-1][-1], parallelism, num_microbatches)
                if parallelism.defer_embedding_wgrad_compute and stage == num_stages - 1
                else None,
                _activation_offload(model, training, parallelism),
                host_step(optimizer, replicas, parameters, sum(map(len, chunks))),
                tuple(
                    _expert_buckets(optimizer, held, size, stage, chunk)
                    for chunk, held in enumerate(chunks)
                ),
                HiddenExchanges(
                    tuple(tuple(hidden[id(layer)] for layer in chunk) for chunk in chunks),
                    alone(order),
                )
                if parallelism.overlap_moe_expert_parallel_comm
                else None,
            )
        )
    linear_share = _linear_share(training, stages)
    return StepWork(
        tuple(stages), parallelism, optimizer, num_microbatches,
        boundary_bytes(model, training, parallelism),
        gradient_bytes_per_parameter(training),
        parameter_bytes_per_parameter(training, linear_share),
    )  # fmt: skip


def _activation_offload(
    model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec
) -> ActivationOffload | None:
    if not training.offloaded_layers:
        return None
    kept = layer_activation_bytes(model, training, parallelism, recomputed=False)
    return ActivationOffload(model.num_layers, training.offloaded_layers, kept)


def _deferred_head(
    head: LayerWork, parallelism: ParallelismSpec, num_microbatches: int
) -> DeferredHead:
    limit = parallelism.wgrad_deferral_limit or num_microbatches
    return DeferredHead(
        min(limit, num_microbatches), replace(head, backward=input_part(head)), weight_part(head)
    )


def pass_graph(work: StepWork) -> "nx.DiGraph":
    """Passes of all stages as nodes (stage, pass) with `flops`; edges are `order` within a stage
    and `data` between stages."""
    import networkx as nx

    graph = nx.DiGraph()
    route = Route.of(work.parallelism)
    named = {
        PassInput(s, step.output): step
        for s, stage in enumerate(work.stages)
        for step in stage.order
    }
    for s, stage in enumerate(work.stages):
        for step in stage.order:
            graph.add_node((s, step), flops=_pass_flops(stage, step))
        for before, after in pairwise(stage.order):
            graph.add_edge((s, before), (s, after), kind="order")
        for step in stage.order:
            source = pass_input(step, s, route)
            if source is not None:
                graph.add_edge(
                    (source.stage, named[source]), (s, step), kind="data",
                    bytes=work.boundary_bytes if source.stage != s else 0.0,
                )  # fmt: skip
    return graph


def operation_graph(layer: LayerWork) -> "nx.DiGraph":
    """Operations of one layer, forward then recomputation and backward, as a chain of nodes
    ((phase, index)) with `operation`, `flops` and `parameters`."""
    import networkx as nx

    graph = nx.DiGraph(name=layer.name)
    phases = {
        "forward": layer.forward, "recompute": layer.recompute, "backward": layer.backward,
    }  # fmt: skip
    nodes = [(phase, i) for phase, ops in phases.items() for i in range(len(ops))]
    for phase, i in nodes:
        op = phases[phase][i]
        graph.add_node((phase, i), operation=op, flops=op.flops, parameters=op.parameters)
    graph.add_edges_from(pairwise(nodes))
    return graph


def _linear_weights(training: TrainingSpec, chunks: Sequence[Sequence[LayerWork]]) -> int:
    """Weights that are quantized, where products are."""
    if training.low_precision is None:
        return 0
    return sum(linear_parameters(layer, training) for chunk in chunks for layer in chunk)


def _linear_share(training: TrainingSpec, stages: Sequence[StageWork]) -> float:
    """Weights that are quantized over all weights."""
    linear = sum(_linear_weights(training, stage.chunks) for stage in stages)
    return linear / sum(stage.parameters + stage.expert_parameters for stage in stages)


def _buckets(
    optimizer: OptimizerSpec, layers: tuple[LayerWork, ...], size: int, stage: int, chunk: int
) -> tuple[Bucket, ...]:
    backward_order = tuple(reversed(layers))
    if optimizer.shards_weights:
        return layer_buckets(backward_order)
    limit = size if is_bucketed(optimizer, stage, chunk) else None
    return gradient_buckets(backward_order, limit)


def _expert_buckets(
    optimizer: OptimizerSpec, layers: tuple[LayerWork, ...], size: int, stage: int, chunk: int
) -> tuple[Bucket, ...]:
    """Experts' gradients have buffers of their own, cut like the others."""
    limit = size if is_bucketed(optimizer, stage, chunk) else None
    return gradient_buckets(tuple(reversed(layers)), limit, experts=True)


def _pass_flops(stage: StageWork, step: Pass) -> float:
    layers = stage.pass_layers(step)
    return sum(op.flops for layer in layers for op in pass_operations(layer, step.direction))
