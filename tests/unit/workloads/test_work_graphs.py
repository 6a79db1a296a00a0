"""The work of a step and its graphs, checked with networkx against values worked by hand."""

from typing import Any

import networkx as nx
import pytest
from small_models import BATCH, MICRO_BATCH, flops, gpt, layout, llama
from small_models import training as train

from workloads.graph import StepWork, build_work, operation_graph, pass_graph
from workloads.operations import Collective
from workloads.pipeline import Pass
from workloads.spec import OptimizerSpec, ParallelismSpec
from workloads.transformer import transformer_layer

M = BATCH // MICRO_BATCH
"""Microbatches of a step without data parallelism: 8."""


def work(parallelism: ParallelismSpec, **changes: object) -> StepWork:
    return build_work(gpt(), train(**changes), parallelism, OptimizerSpec(), 1)


def gpipe(stages: int) -> ParallelismSpec:
    return ParallelismSpec(pipeline_model_parallel_size=stages, pipeline_schedule="gpipe")


def longest(step: StepWork, forward: float, backward: float) -> float:
    """Cost of the costliest path, passes of one chunk costing the same everywhere."""
    costs = {"forward": forward, "backward": backward}
    graph = nx.DiGraph()
    for node in pass_graph(step):
        graph.add_edge(node, "end", cost=costs[node[1].direction])
    for before, after in pass_graph(step).edges:
        graph.add_edge(before, after, cost=costs[before[1].direction])
    return float(nx.dag_longest_path_length(graph, weight="cost"))


SHAPES = [(1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (2, 4), (4, 2)]


@pytest.mark.parametrize(("stages", "chunks"), SHAPES)
def test_pass_graph_counts(stages: int, chunks: int) -> None:
    """2 m v passes a stage in a row; between stages every pass but those at the model's ends."""
    graph = pass_graph(work(layout(1, stages, chunks)))
    assert nx.is_directed_acyclic_graph(graph)
    assert len(graph) == stages * 2 * M * chunks
    kinds = [kind for *_, kind in graph.edges(data="kind")]
    assert kinds.count("data") == 2 * M * (stages * chunks - 1)
    assert kinds.count("order") == stages * (2 * M * chunks - 1)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2)])
def test_longest_path_of_1f1b_and_gpipe(stages: int, forward: float, backward: float) -> None:
    """(m + p - 1)(f + b): Huang 2019 (arXiv 1811.06965); Narayanan 2021 (arXiv 2104.04473), 2.2."""
    expected = (M + stages - 1) * (forward + backward)
    assert longest(work(layout(1, stages)), forward, backward) == expected
    assert longest(work(gpipe(stages)), forward, backward) == expected


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (2, 4), (4, 2)])
def test_longest_path_of_interleaving(stages: int, chunks: int) -> None:
    """Passes of 1 / v: (m v + p - 1)(f + b) / v, the same paper, section 2.2.2."""
    expected = (M * chunks + stages - 1) * (1 + 2)
    assert longest(work(layout(1, stages, chunks)), 1, 2) == expected


def test_pass_graph_carries_flops_and_bytes() -> None:
    step = work(layout(2, 2), recompute_granularity="full")
    graph: Any = pass_graph(step)
    layers = step.stages[1].chunks[0]
    assert graph.nodes[1, Pass("forward", 3)]["flops"] == sum(flops(x.forward) for x in layers)
    assert graph.nodes[1, Pass("backward", 3)]["flops"] == sum(
        flops(x.recompute) + flops(x.backward) for x in layers
    )
    edge = graph.edges[(0, Pass("forward", 3)), (1, Pass("forward", 3))]
    assert edge == {"kind": "data", "bytes": 64 * 64 * 2 / 2}


@pytest.mark.parametrize("recomputed", [False, True])
def test_operation_graph_is_a_chain(recomputed: bool) -> None:
    layer = transformer_layer(llama(), train(), layout(2), recomputed)
    graph: Any = operation_graph(layer)
    phases = ((n, len(ops)) for n, ops in (
        ("forward", layer.forward), ("recompute", layer.recompute), ("backward", layer.backward)
    ))  # fmt: skip
    assert list(nx.topological_sort(graph)) == [(n, i) for n, size in phases for i in range(size)]
    assert graph.number_of_edges() == len(graph) - 1
    assert graph.nodes["forward", 0]["operation"] is layer.forward[0]
    total = flops(layer.forward) + flops(layer.recompute) + flops(layer.backward)
    assert sum(value for _, value in graph.nodes(data="flops")) == total
    again = layer.parameters if recomputed else 0
    assert sum(v for _, v in graph.nodes(data="parameters")) == 2 * layer.parameters + again


def test_work_of_a_step() -> None:
    """4 replicas: 8 / 4 = 2 microbatches; sends of this rank's half; fp32 gradients reduced."""
    step = build_work(gpt(), train(), layout(2, 2), OptimizerSpec(), 4)
    assert step.num_microbatches == 2
    assert (step.gradient_bytes, step.parameter_bytes) == (4, 2)
    assert step.boundary_bytes == 64 * 64 * 2 / 2
    assert [stage.parameters for stage in step.stages] == [
        sum(x.parameters for chunk in stage.chunks for x in chunk) for stage in step.stages
    ]
    assert [op.name for op in step.stages[1].finish if isinstance(op, Collective)] == [
        "embedding gradients", "gradient norm",
    ]  # fmt: skip


def test_equal_layers_are_one_object() -> None:
    """So that a 112-layer model is priced once."""
    step = work(layout(1, 4))
    bodies = {id(x) for s in step.stages for c in s.chunks for x in c
              if x.name == "transformer layer"}  # fmt: skip
    assert len(bodies) == 1
