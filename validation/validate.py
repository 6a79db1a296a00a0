"""Predict every row of runs tables, several at a time, and put the measured values beside."""

import gc
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from simulator.errors import SimulationError
from simulator.metrics import memory_needed
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from validation.measured import (
    MeasuredRun,
    NotModelledError,
    Row,
    read_runs,
    reserved_over_needed,
    run_specs,
)
from validation.profiles import with_profile
from validation.score import Scored, by_source
from workloads.graph import build_work

SHIPPED = Path(__file__).parent / "runs"
"""Curated tables of well-documented runs, scored when no file is named."""

NO_CHANGES: Mapping[str, float] = {}
FEW_ROWS = 8
"""Not worth a second process."""
ROWS_PER_TASK = 4

Progress = Callable[[int, int], None]
"""Called with rows done and rows in all."""


def shipped_tables() -> tuple[Path, ...]:
    """The tables that ship, in alphabetical order."""
    return tuple(sorted(SHIPPED.glob("*.csv")))


def validate_tables(
    paths: Sequence[Path],
    progress: Progress | None = None,
    processes: int | None = None,
    changes: Mapping[str, float] = NO_CHANGES,
) -> tuple[Scored, ...]:
    """Score every row of the tables at `paths`, or of the shipped ones if there are none, with
    `changes` laid over each row's profile.

    Raises `ConfigError` for a file that is no runs table.
    """
    runs = [run for path in paths or shipped_tables() for run in read_runs(path)]
    return score_runs(runs, progress, processes, changes)


def score_runs(
    runs: Sequence[MeasuredRun],
    progress: Progress | None = None,
    processes: int | None = None,
    changes: Mapping[str, float] = NO_CHANGES,
) -> tuple[Scored, ...]:
    """`score_run` of each, in order, in as many processes as there are cores."""
    count = min(processes or os.cpu_count() or 1, math.ceil(len(runs) / FEW_ROWS))
    if count <= 1:
        scored = (score_run(run, changes) for run in runs)
        return tuple(_watched(scored, len(runs), progress))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_prepare_worker) as pool:
        score = partial(_score_and_clean, changes=changes)
        done = pool.map(score, runs, chunksize=ROWS_PER_TASK)
        return tuple(_watched(done, len(runs), progress))


def report_json(scored: Sequence[Scored]) -> dict[str, Any]:
    """All rows and the score of each source, as plain data."""
    return {"runs": [row.to_json() for row in scored], "by_source": by_source(scored)}


def score_run(measured: MeasuredRun, changes: Mapping[str, float] = NO_CHANGES) -> Scored:
    """Simulate one row; of several specs for unpublished settings, the best that fits counts."""
    blank = Scored(
        id=measured.id, source_key=measured.source_key,
        measured_step_time_s=measured.step_time_s,
        measured_peak_memory_bytes=measured.peak_memory_bytes, measured_oom=measured.oom,
    )  # fmt: skip
    if measured.step_time_s is None and measured.peak_memory_bytes is None and not measured.oom:
        return replace(blank, skipped=True, reason="nothing was measured")
    try:
        specs = [with_profile(spec, changes) for spec in run_specs(measured.row)]
        run, notes = _best(specs)
        return _predicted(blank, measured, run, notes)
    except (NotModelledError, SimulationError) as error:
        return replace(blank, skipped=True, reason=str(error))


def best_spec(row: Row) -> RunSpec:
    """What to simulate for a row; of several specs for unpublished settings, the fastest that fits.

    Raises `NotModelledError` and `SimulationError` as `score_run` catches them.
    """
    return _best(run_specs(row))[0]


def _best(specs: Sequence[RunSpec]) -> tuple[RunSpec, tuple[str, ...]]:
    """The fastest that fits, and the band from which it is taken."""
    if len(specs) == 1:
        return specs[0], ()
    fitting = _least_recomputed([s for s in specs if memory_needed(s, _work(s))["fits"]])
    fitting = fitting or list(specs)
    times = [simulate(s).metrics["step_time_s"] for s in fitting]
    best_s, run = min(zip(times, fitting, strict=True), key=lambda pair: pair[0])
    chosen = (
        f"not published: micro-batch {run.training.micro_batch_size}, "
        f"{run.parallelism.virtual_pipeline_model_parallel_size} chunks per stage, recomputation "
        f"{run.training.recompute_granularity} is the fastest of {len(fitting)} that fit "
        f"({best_s:.4g} to {max(times):.4g} s)"
    )
    return run, (chosen,)


def _least_recomputed(specs: Iterable[RunSpec]) -> list[RunSpec]:
    """One spec per micro-batch and interleaving: who can do without recomputing does."""
    order = {"none": 0, "selective": 1, "full": 2}
    kept: dict[tuple[int, int], RunSpec] = {}
    for spec in sorted(specs, key=lambda s: order[s.training.recompute_granularity]):
        chunks = spec.parallelism.virtual_pipeline_model_parallel_size
        kept.setdefault((spec.training.micro_batch_size, chunks), spec)
    return list(kept.values())


def _predicted(
    blank: Scored, measured: MeasuredRun, run: RunSpec, notes: tuple[str, ...]
) -> Scored:
    if measured.step_time_s is None:  # an OOM, say: no need to execute it
        metrics: dict[str, Any] = {"memory": memory_needed(run, _work(run))}
    else:
        metrics = simulate(run).metrics
    memory = metrics["memory"]
    outside = memory["framework"] if measured.memory_is_allocated else 0.0
    needed = (memory["peak_bytes"] - outside) * reserved_over_needed(measured.row)
    return replace(
        blank,
        predicted_step_time_s=metrics.get("step_time_s"),
        predicted_peak_memory_bytes=needed,
        predicted_fits=needed + outside <= memory["capacity_bytes"],
        layout_group=_layout_group(run),
        settings=_settings(run),
        breakdown_s=metrics.get("breakdown_s", {}),
        notes=notes,
    )


def _work(run: RunSpec) -> Any:
    return build_work(
        run.model, run.training, run.parallelism, run.optimizer, run.data_parallel_size
    )


def _layout_group(run: RunSpec) -> str:
    model, training, cluster = run.model, run.training, run.cluster
    return (
        f"{model.num_layers} layers of {model.hidden_size}, batch {training.global_batch_size} x "
        f"{training.seq_length}, {training.precision}, {cluster.num_gpus} "
        f"{cluster.node.gpu.name}"
    )


def _settings(run: RunSpec) -> dict[str, Any]:
    parallel, training, optimizer = run.parallelism, run.training, run.optimizer
    return {
        "gpu": run.cluster.node.gpu.name,
        "num_gpus": run.cluster.num_gpus,
        "num_layers": run.model.num_layers,
        "hidden_size": run.model.hidden_size,
        "seq_length": training.seq_length,
        "micro_batch_size": training.micro_batch_size,
        "num_microbatches": run.num_microbatches,
        "tensor_model_parallel_size": parallel.tensor_model_parallel_size,
        "pipeline_model_parallel_size": parallel.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": parallel.virtual_pipeline_model_parallel_size,
        "data_parallel_size": run.data_parallel_size,
        "sequence_parallel": parallel.sequence_parallel,
        "tp_comm_overlap": parallel.tp_comm_overlap,
        "recompute_granularity": training.recompute_granularity,
        "attention_backend": training.attention_backend,
        "use_distributed_optimizer": optimizer.use_distributed_optimizer,
    }


def _watched(rows: Iterable[Scored], total: int, progress: Progress | None) -> Iterator[Scored]:
    for done, row in enumerate(rows, 1):
        if progress is not None:
            progress(done, total)
        yield row


def _prepare_worker() -> None:
    """Keep the garbage collector out of simulations, and out of what is loaded for good."""
    gc.freeze()
    gc.disable()


def _score_and_clean(measured: MeasuredRun, changes: Mapping[str, float]) -> Scored:
    scored = score_run(measured, changes)
    gc.collect()
    return scored
