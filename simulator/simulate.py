"""One step of one run: from checked spec to result."""

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

from simulator.costs import Costs
from simulator.engine import Engine, Executed
from simulator.metrics import summarize
from simulator.placement import FoldedRanks
from simulator.program import Program, build_program
from simulator.runspec import RunSpec
from simulator.trace import Trace
from simulator.tracing import build_trace
from workloads.graph import StepWork, build_work
from workloads.layout import RankGrid


@dataclass(frozen=True)
class Result:
    """A simulated step. `metrics` holds the contract's keys."""

    run: RunSpec
    work: StepWork
    program: Program
    executed: Executed
    metrics: dict[str, Any]

    @cached_property
    def trace(self) -> Trace:
        """What happened when, for charts and exports."""
        v_shaped = self.run.parallelism.v_shaped
        stride = RankGrid.of(self.run.parallelism, self.run.cluster.num_gpus).stage_stride
        return build_trace(self.run.name, self.program, self.executed, stride, v_shaped)

    def to_json(self) -> dict[str, Any]:
        """The result as plain data: SI units, floats."""
        return self.metrics


def simulate(run: RunSpec, fold: bool = True) -> Result:
    """Predict one training step; `fold=False` simulates every rank.

    Raises `SimulationError` when ranks wait for each other for ever.
    """
    began_s = perf_counter()
    work = build_work(
        run.model, run.training, run.parallelism, run.optimizer, run.data_parallel_size
    )
    grid = RankGrid.of(
        run.parallelism, run.cluster.num_gpus, run.optimizer.num_distributed_optimizer_instances
    )
    wraps = run.parallelism.wraps
    cluster = run.cluster.calibrated()
    folded = FoldedRanks(cluster, grid, wraps=wraps, folded=fold)
    costs = Costs(cluster)
    program = build_program(work, folded, costs)
    executed = Engine(program.ranks, program.capacity_bytes_per_s, program.standing).run()
    metrics = summarize(run, work, program, executed, costs.guessed)
    metrics["simulation"]["wall_time_s"] = perf_counter() - began_s
    return Result(run, work, program, executed, metrics)
