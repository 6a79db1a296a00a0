"""The numbers of a step, as pure functions of what was executed."""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from hardware.power import node_power_w
from hardware.scaled_gemm import matrix_peak_flops_per_s
from simulator.breakdown import Breakdown
from simulator.engine import Executed, Rank, Task
from simulator.program import Program
from simulator.runspec import RunSpec
from simulator.trace import communication_kind
from workloads.flops import hardware_flops, model_flops
from workloads.graph import StepWork
from workloads.memory import StageMemory, stage_memory

SECONDS_PER_HOUR = 3600.0
TRILLION = 1e12
KINDS = ("tp", "cp", "ep", "pp", "dp", "offload")
"""Kinds of communication."""
_COMPUTE = (
    "gemm", "attention", "memory_bound", "recompute", "optimizer", "interference", "gpu_variation",
)  # fmt: skip


def summarize(
    run: RunSpec,
    work: StepWork,
    program: Program,
    executed: Executed,
    guessed: Mapping[str, Set[str]],
) -> dict[str, Any]:
    """All of a result's keys but the wall time."""
    begins_s = _begins_s(run, program.ranks)
    step_s = max(_end_s(rank) - begins_s[rank.rank] for rank in program.ranks)
    breakdown = Breakdown(step_s)
    terms = {r.rank: breakdown.terms_s(r, begins_s[r.rank]) for r in program.ranks}
    critical = max(program.ranks, key=lambda r: _busy_s(terms[r.rank]))
    memory = memory_needed(run, work)
    gpus = run.cluster.num_gpus
    peak = matrix_peak_flops_per_s(run.cluster.node.gpu, run.training.linear_dtype)
    assert peak is not None, "checked with the run file"
    flops = model_flops(run.model, run.training)
    tokens = run.training.global_batch_size * run.training.seq_length
    result: dict[str, Any] = {
        "name": run.name,
        "layout": _layout(run),
        "step_time_s": step_s,
        "tokens_per_s_per_gpu": tokens / step_s / gpus,
        "model_tflops_per_gpu": flops / step_s / gpus / 1e12,
        "mfu": flops / step_s / gpus / peak,
        "hfu": hardware_flops(run.model, run.training, run.parallelism) / step_s / gpus / peak,
        "bubble_fraction": _bubble_fraction(program.ranks, terms, step_s),
        "critical_stage": critical.stage,
        "breakdown_s": terms[critical.rank],
        "explain": _explain(terms[critical.rank], flops / gpus / peak, step_s),
        "communication": _communication(critical, terms[critical.rank]),
        "memory": memory,
        "cost": _cost(run, program.ranks, terms, step_s, tokens),
        "simulation": {
            "num_gpus": gpus,
            "rank_classes": len(program.ranks),
            "operations": executed.num_tasks,
            "events": executed.num_events,
        },
        "warnings": _warnings(guessed, memory),
    }
    return result


def _begins_s(run: RunSpec, ranks: Sequence[Rank]) -> dict[int, float]:
    """When each rank's step begins: for all together, unless they step without waiting for each
    other. Then a later stage begins with its first pass, and every step after is as skewed."""
    if not run.optimizer.enable_optimizer_post_validation:
        return dict.fromkeys((rank.rank for rank in ranks), 0.0)
    return {rank.rank: rank.streams["compute"][0].start_s for rank in ranks}


def _end_s(rank: Rank) -> float:
    return max(tasks[-1].end_s for tasks in rank.streams.values())


def _busy_s(terms: Mapping[str, float]) -> float:
    return sum(terms[term] for term in _COMPUTE)


def _layout(run: RunSpec) -> dict[str, Any]:
    parallel = run.parallelism
    cp = parallel.context_parallel_size
    return {
        "num_gpus": run.cluster.num_gpus,
        "gpu": run.cluster.node.gpu.name,
        "tp": parallel.tensor_model_parallel_size,
        **({"cp": cp} if cp > 1 else {}),
        "pp": parallel.pipeline_model_parallel_size,
        "vpp": parallel.virtual_pipeline_model_parallel_size,
        "dp": run.data_parallel_size,
        "micro_batch_size": run.training.micro_batch_size,
        "num_microbatches": run.num_microbatches,
    }


def _bubble_fraction(
    ranks: Sequence[Rank], terms: Mapping[int, Mapping[str, float]], step_s: float
) -> float:
    total = sum(r.num_ranks for r in ranks)
    return sum(r.num_ranks * terms[r.rank]["bubble"] for r in ranks) / total / step_s


def _explain(
    terms: Mapping[str, float], ideal_s: float, step_s: float
) -> list[dict[str, float | str]]:
    """From peak to achieved: what each term takes away, in seconds and points of MFU."""
    losses = {"kernel_efficiency": terms["gemm"] + terms["attention"] - ideal_s}
    losses |= {k: v for k, v in terms.items() if k not in ("gemm", "attention")}
    return [
        {"term": term, "seconds": seconds, "mfu_points": seconds / step_s}
        for term, seconds in losses.items()
    ]


def _communication(rank: Rank, terms: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Bytes that one rank of the critical stage sends, per kind; the time it sends and (of
    transfers between stages) receives; what of that compute does not cover."""
    moved = {kind: [0.0, 0.0] for kind in KINDS}
    received_s = 0.0
    for tasks in rank.streams.values():
        for task in tasks:
            for kind, num_bytes, busy_s in _moved(task):
                moved[kind][0] += num_bytes
                moved[kind][1] += busy_s
            for need in task.needs:
                if _is_received(need, task):
                    received_s += sum(busy_s for _, _, busy_s in _moved(need))
    return {
        kind: {
            "bytes": num_bytes,
            "busy_s": sent_s + (received_s if kind == "pp" else 0.0),
            "exposed_s": terms.get(f"{kind}_exposed", 0.0),
            "busbw": num_bytes / sent_s if sent_s > 0 else 0.0,
        }
        for kind, (num_bytes, sent_s) in moved.items()
    }


def _is_received(need: Task, task: Task) -> bool:
    """Whether a task waits for a transfer from another stage."""
    return need.category == "pp" and task.category in ("forward", "backward", "tp", "cp", "ep")


def _moved(task: Task) -> list[tuple[str, float, float]]:
    """Kind, bytes and seconds of what a task communicates."""
    if task.exchange is not None:
        seconds = task.exchange.end_s - task.exchange.start_s
        return [(task.category, task.exchange.num_bytes, seconds)]
    assert task.profile is not None
    traffic = task.profile.traffic(task.from_s, task.to_s)
    return [(communication_kind(axis), *moved) for axis, moved in traffic.items()]


def memory_needed(run: RunSpec, work: StepWork) -> dict[str, Any]:
    """The `memory` part of a result, which needs no execution."""
    per_stage: list[StageMemory] = [
        stage_memory(
            run.model, run.training, run.parallelism, run.optimizer, run.data_parallel_size,
            stage, stage_work.order,
        )
        for stage, stage_work in enumerate(work.stages)
    ]  # fmt: skip
    fullest = max(per_stage, key=lambda m: m.total_bytes)
    capacity = run.cluster.node.gpu.memory_bytes
    return {
        "peak_bytes": fullest.total_bytes,
        "capacity_bytes": capacity,
        "fits": fullest.total_bytes <= capacity,
        **fullest.terms(),
        "per_stage": [
            {"stage": stage, **m.terms(), "total_bytes": m.total_bytes}
            for stage, m in enumerate(per_stage)
        ],
    }


def _cost(
    run: RunSpec,
    ranks: Sequence[Rank],
    terms: Mapping[int, Mapping[str, float]],
    step_s: float,
    tokens: int,
) -> dict[str, float | None]:
    """GPU-hours, joules and (where a price is known) dollars, per step and trillion tokens."""
    gpus, node = run.cluster.num_gpus, run.cluster.node
    busy = sum(r.num_ranks * _busy_s(terms[r.rank]) for r in ranks) / gpus / step_s
    hours = gpus * step_s / SECONDS_PER_HOUR
    energy_j = run.cluster.num_nodes * node_power_w(node, min(busy, 1.0)) * step_s
    price = node.gpu.price_usd_per_hour
    per_trillion = TRILLION / tokens
    return {
        "gpu_hours_per_step": hours,
        "energy_j_per_step": energy_j,
        "usd_per_step": None if price is None else hours * price,
        "gpu_hours_per_trillion_tokens": hours * per_trillion,
        "energy_j_per_trillion_tokens": energy_j * per_trillion,
        "usd_per_trillion_tokens": None if price is None else hours * price * per_trillion,
    }


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


def _warnings(guessed: Mapping[str, Set[str]], memory: Mapping[str, Any]) -> list[str]:
    how = {
        "roofline": "no measured table for this GPU: times of {} come from a roofline",
        "extrapolated": "outside the measured tables, extrapolated: {}",
    }
    said = [how[k].format(_some(sorted(names))) for k, names in sorted(guessed.items())]
    if not memory["fits"]:
        said.append(
            f"does not fit: {memory['peak_bytes'] / 2**30:.1f} GiB needed, "
            f"{memory['capacity_bytes'] / 2**30:.1f} GiB there"
        )
    return said
