"""Where nothing is shared and nothing slows, a step is the longest path through its dependencies.

The graph is built here from the schedule's orders and the neighbourhood of virtual stages, priced
kernel by kernel; networkx finds the path; the loop must take exactly as long.
"""

from collections.abc import Iterator

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import small_cluster, small_model, small_run

from hardware.collectives import GroupShape, collective_cost, point_to_point
from hardware.kernels import kernel_model
from hardware.topology import Topology
from simulator.costs import Costs
from simulator.engine import Engine
from simulator.placement import FoldedRanks
from simulator.profile import QUIET, Slowdown
from simulator.program import build_program
from simulator.runspec import RunSpec
from workloads.graph import StepWork, build_work
from workloads.layout import RankGrid
from workloads.operations import Attention, Collective, Gemm, MemoryBound, Operation
from workloads.pipeline import SCHEDULES, Pass


class QuietCosts(Costs):
    """Transfers that slow nothing beside them."""

    def transfer_slowdown(self, cost: object) -> Slowdown:
        return QUIET


def loop_s(run: RunSpec, work: StepWork) -> float:
    """The step as the loop has it, on links without limit: flows keep their own rate."""
    wraps = run.parallelism.wraps
    grid = RankGrid.of(run.parallelism, run.cluster.num_gpus)
    folded = FoldedRanks(run.cluster, grid, wraps=wraps)
    program = build_program(work, folded, QuietCosts(run.cluster))
    endless = [float("inf")] * len(program.capacity_bytes_per_s)
    return Engine(program.ranks, endless).run().end_s


class PathGraph:
    """Events of a step; an edge is as long as what ends at its head."""

    def __init__(self, run: RunSpec, work: StepWork) -> None:
        self.run, self.work = run, work
        self.p = run.parallelism.pipeline_model_parallel_size
        self.v = run.parallelism.virtual_pipeline_model_parallel_size
        self.graph = nx.DiGraph()
        for stage in range(self.p):
            self.add_stage(stage)

    def length_s(self) -> float:
        return float(nx.dag_longest_path_length(self.graph, weight="seconds"))

    def add(self, node: object, seconds: float, *before: object) -> None:
        for other in before:
            self.graph.add_edge(other, node, seconds=seconds)

    def add_stage(self, stage: int) -> None:
        schedule = SCHEDULES[self.run.parallelism.pipeline_schedule or ""]
        order = schedule(stage, self.p, self.run.num_microbatches, self.v)
        free: object = "start"
        wire: dict[str, object] = {"forward": "start", "backward": "start"}
        for step in order:
            node = (stage, step)
            self.add(node, self.pass_s(stage, step), free, *self.input_of(stage, step))
            free = node
            receiver = self.receiver(stage, step)
            if receiver is None:
                continue
            sent = ("sent", stage, step)
            if self.run.parallelism.overlap_p2p_communication:
                self.add(sent, self.send_s(stage, receiver), node, wire[step.direction])
                wire[step.direction] = sent
            else:
                self.add(sent, self.send_s(stage, receiver), node)
                free = sent
        self.add_finish(stage, free)

    def position(self, stage: int, step: Pass) -> int:
        """Along the model: chunk c of stage s is the (c p + s)-th part of it."""
        return step.chunk * self.p + stage

    def input_of(self, stage: int, step: Pass) -> Iterator[object]:
        source = self.position(stage, step) + (-1 if step.direction == "forward" else 1)
        if 0 <= source < self.p * self.v:
            yield "sent", source % self.p, step._replace(chunk=source // self.p)

    def receiver(self, stage: int, step: Pass) -> int | None:
        target = self.position(stage, step) + (1 if step.direction == "forward" else -1)
        return target % self.p if 0 <= target < self.p * self.v else None

    def send_s(self, sender: int, receiver: int) -> float:
        cluster, topology = self.run.cluster, Topology(self.run.cluster)
        near = topology.node_of(sender) == topology.node_of(receiver)
        path = topology.path(sender, receiver)
        num_bytes = 2.0 * self.run.training.seq_length * self.run.model.hidden_size
        rate = cluster.nic_rate_bytes_per_s
        return point_to_point(num_bytes, near, cluster.node, rate, path.latency_s).time_s

    def pass_s(self, stage: int, step: Pass) -> float:
        layers = self.work.stages[stage].chunks[step.chunk]
        if step.direction == "forward":
            return sum(self.kernel_s(op) for layer in layers for op in layer.forward)
        return sum(self.kernel_s(op) for x in layers for op in (*x.recompute, *x.backward))

    def kernel_s(self, op: Operation) -> float:
        model = kernel_model(self.run.cluster.node.gpu)
        if isinstance(op, Gemm):
            return model.gemm(
                op.m, op.n, op.k, op.kind, op.dtype, op.batch, op.accumulate_fp32
            ).seconds
        if isinstance(op, Attention):
            return model.attention(
                op.direction, op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_kv, op.head_dim,
                op.causal, op.dtype,
            ).seconds  # fmt: skip
        assert isinstance(op, MemoryBound)
        return model.memory_bound(op.kernel, op.num_bytes).seconds

    def add_finish(self, stage: int, free: object) -> None:
        for i, op in enumerate(self.work.stages[stage].finish):
            if isinstance(op, Collective):
                node: object = (op.axis, op.name)
                self.add(node, self.collective_s(op), free)
            else:
                node = ("finish", stage, i)
                self.add(node, self.kernel_s(op), free)
            free = node
        self.add(("end", stage), self.run.cluster.profile.step_overhead_s, free)

    def collective_s(self, op: Collective) -> float:
        cluster = self.run.cluster
        ranks = [0, self.p - 1] if op.axis == "embedding" else list(range(self.p))
        nodes = {rank // cluster.node.gpus_per_node for rank in ranks}
        nics = cluster.node.nics_per_node if op.axis == "world" else len(ranks) // len(nodes)
        shape = GroupShape(len(ranks), len(nodes), nics)
        rate = cluster.nic_rate_bytes_per_s
        return collective_cost(op.kind, op.num_bytes, shape, cluster.node, rate).time_s


@st.composite
def pipelines(draw: st.DrawFn) -> RunSpec:
    p = draw(st.sampled_from([2, 3, 4, 8]))
    v = draw(st.integers(1, 3))
    per_node = draw(st.sampled_from([n for n in (1, 2, p) if p % n == 0]))
    nic = draw(st.sampled_from([1e9, 50e9]))  # the slow one makes transfers longer than passes
    m = draw(st.integers(1, 3)) * p if v > 1 else draw(st.integers(1, 9))
    schedule = "interleaved_1f1b" if v > 1 else draw(st.sampled_from(["1f1b", "gpipe"]))
    return small_run(
        small_cluster(p // per_node, per_node, node_nic_bandwidth_bytes_per_s=nic),
        pp=p, vpp=v, num_microbatches=m,
        model=small_model(
            num_layers=p * v * draw(st.integers(1, 2)),
            untie_embeddings_and_output_weights=draw(st.booleans()),
            vocab_size=draw(st.sampled_from([512, 65536])),
        ),
        training={"recompute_granularity": draw(st.sampled_from(["none", "selective", "full"]))},
        parallelism={"pipeline_schedule": schedule,
                     "overlap_p2p_communication": draw(st.booleans())},
        optimizer={"clip_grad": draw(st.sampled_from([0.0, 1.0]))},
    )  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(pipelines())
def test_the_loop_takes_the_longest_path(run: RunSpec) -> None:
    work = build_work(run.model, run.training, run.parallelism, run.optimizer, 1)
    assert loop_s(run, work) == pytest.approx(PathGraph(run, work).length_s(), rel=1e-12)
