"""What each term of the waterfall is, in a sentence, and which settings of the run file change it.

A setting is named only where the run leaves it open: not `tp_comm_overlap` where that is on, not
more chunks where each holds one layer. That a setting exists does not mean that the step gets
shorter: what one term loses another may gain, which only a simulation tells.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.runspec import RunSpec

LARGE_POINTS = 0.01
"""Terms from one point of MFU on are explained."""


@dataclass(frozen=True, slots=True)
class _Knob:
    """A change of one setting, and whether a run leaves room for it."""

    change: str
    is_open: Callable[["RunSpec"], bool]


def _tensor_parallel(run: "RunSpec") -> bool:
    return run.parallelism.tensor_model_parallel_size > 1


def _pipelined(run: "RunSpec") -> bool:
    return run.parallelism.pipeline_model_parallel_size > 1


def _data_parallel(run: "RunSpec") -> bool:
    return run.data_parallel_size > 1


def _across_nodes(run: "RunSpec") -> bool:
    return run.cluster.num_nodes > 1


def _splittable(run: "RunSpec") -> bool:
    parallel = run.parallelism
    chunks = parallel.pipeline_model_parallel_size * parallel.virtual_pipeline_model_parallel_size
    return _pipelined(run) and run.model.num_layers >= 2 * chunks


def _waits_for_others(run: "RunSpec") -> bool:
    """Whether stages that end early wait for the others' gradient norm."""
    optimizer = run.optimizer
    early = run.parallelism.pipeline_schedule in ("zb_h2", "zb_v")
    free = optimizer.enable_optimizer_post_validation or optimizer.overlap_param_gather
    return early and not free


def _gathers(run: "RunSpec") -> bool:
    """Whether parameters could be gathered beside compute, which both settings are needed for."""
    return run.optimizer.use_distributed_optimizer and run.optimizer.overlap_grad_reduce


def _unfused(run: "RunSpec") -> bool:
    return run.training.attention_backend == "unfused"


_LARGER_BATCH = _Knob("a larger training.global_batch_size", lambda run: True)
_FUSED = _Knob("training.attention_backend=fused", _unfused)
_LESS_TENSOR = _Knob("a smaller parallelism.tensor_model_parallel_size", _tensor_parallel)
_FEWER_STAGES = _Knob("a smaller parallelism.pipeline_model_parallel_size", _pipelined)
_FASTER_FABRIC = _Knob("a faster cluster.fabric.link_bandwidth", _across_nodes)

_TERMS: Mapping[str, tuple[str, Sequence[_Knob]]] = {
    "kernel_efficiency": (
        "GEMM and attention kernels run below the chip's peak, and the stage shown may have more "
        "than an even share of them",
        (
            _Knob("a larger training.micro_batch_size", lambda run: run.num_microbatches > 1),
            _LESS_TENSOR,
        ),
    ),
    "memory_bound": (
        "norms, activation functions, dropout, residuals and the loss move bytes and hardly "
        "compute",
        (
            _Knob(
                "parallelism.sequence_parallel=true",
                lambda run: _tensor_parallel(run) and not run.parallelism.sequence_parallel,
            ),
            _FUSED,
            _Knob(
                "training.cross_entropy_loss_fusion=true",
                lambda run: not run.training.cross_entropy_loss_fusion,
            ),
        ),
    ),
    "recompute": (
        "forward kernels run again in the backward pass, for want of memory",
        (
            _Knob(
                "training.recompute_granularity=selective",
                lambda run: run.training.recompute_granularity == "full",
            ),
            _Knob(
                "training.recompute_granularity=none",
                lambda run: run.training.recompute_granularity == "selective",
            ),
        ),
    ),
    "optimizer": (
        "gradient norm and Adam run once per step, on all parameters that a rank holds",
        (
            _Knob(
                "optimizer.use_distributed_optimizer=true",
                lambda run: _data_parallel(run) and not run.optimizer.use_distributed_optimizer,
            ),
            _LARGER_BATCH,
        ),
    ),
    "tp_exposed": (
        "kernels wait for tensor-parallel collectives, some in every layer",
        (
            _Knob(
                "parallelism.tp_comm_overlap=true",
                lambda run: (
                    run.parallelism.sequence_parallel and not run.parallelism.tp_comm_overlap
                ),
            ),
            _LESS_TENSOR,
        ),
    ),
    "cp_exposed": (
        "attention waits for keys and values of other context-parallel ranks",
        (
            _Knob(
                "a smaller parallelism.context_parallel_size",
                lambda run: run.parallelism.context_parallel_size > 1,
            ),
            _FASTER_FABRIC,
        ),
    ),
    "ep_exposed": (
        "tokens travel to the ranks that hold their experts, and back, in every expert layer",
        (
            _Knob(
                "a smaller parallelism.expert_model_parallel_size",
                lambda run: run.parallelism.expert_model_parallel_size > 1,
            ),
            _FASTER_FABRIC,
        ),
    ),
    "offload_exposed": (
        "copies to the host and back, and its Adam, take longer than what runs beside them",
        (
            _Knob(
                "optimizer.overlap_cpu_optimizer_d2h_h2d=true",
                lambda run: (
                    run.optimizer.optimizer_cpu_offload
                    and not run.optimizer.overlap_cpu_optimizer_d2h_h2d
                ),
            ),
            _Knob(
                "a smaller optimizer.optimizer_offload_fraction",
                lambda run: run.optimizer.offloaded_fraction > 0,
            ),
        ),
    ),
    "pp_exposed": (
        "a stage waits while activations or gradients are on their way from its neighbour",
        (
            _Knob(
                "parallelism.overlap_p2p_communication=true",
                lambda run: _pipelined(run) and not run.parallelism.overlap_p2p_communication,
            ),
            _FEWER_STAGES,
            _FASTER_FABRIC,
        ),
    ),
    "dp_exposed": (
        "gradients are reduced and parameters gathered while no compute is left to hide it",
        (
            _Knob(
                "optimizer.overlap_grad_reduce=true",
                lambda run: _data_parallel(run) and not run.optimizer.overlap_grad_reduce,
            ),
            _Knob(
                "optimizer.overlap_param_gather=true",
                lambda run: _gathers(run) and not run.optimizer.overlap_param_gather,
            ),
            _LARGER_BATCH,
            _FASTER_FABRIC,
        ),
    ),
    "interference": (
        "kernels are slower while communication runs beside them: the price of overlap",
        (_LESS_TENSOR, _LARGER_BATCH),
    ),
    "gpu_variation": (
        "GPUs of one kind differ, and a stage goes at the pace of its slowest",
        (
            _Knob("fewer cluster.slow_gpus", lambda run: bool(run.cluster.slow_gpus)),
            _Knob("a measured cluster.profile.gpu_speed_deviation", lambda run: True),
        ),
    ),
    "straggler_wait": (
        "a rank waits in a collective for a slower GPU of its group",
        (_Knob("fewer cluster.slow_gpus", lambda run: bool(run.cluster.slow_gpus)),),
    ),
    "overhead": (
        "the host works between steps while GPUs idle, the same for a short step and a long one",
        (
            _LARGER_BATCH,
            _Knob(
                "training.cuda_graph=full_iteration",
                lambda run: (
                    run.cluster.profile.host_operation_s > 0
                    and run.training.cuda_graph != "full_iteration"
                ),
            ),
            _Knob("a measured cluster.profile.step_overhead_s", lambda run: True),
        ),
    ),
    "bubble": (
        "a stage idles while the pipeline fills and drains, or waits for a slower stage",
        (
            _Knob("a larger training.global_batch_size", _pipelined),
            _Knob("a larger parallelism.virtual_pipeline_model_parallel_size", _splittable),
            _Knob(
                "parallelism.pipeline_schedule=zb_h1",
                lambda run: _pipelined(run) and run.parallelism.pipeline_schedule == "1f1b",
            ),
            _Knob("optimizer.enable_optimizer_post_validation=true", _waits_for_others),
            _FEWER_STAGES,
        ),
    ),
}


def explanation(term: str, run: "RunSpec") -> str:
    """What `term` is and which settings change it; empty for a term not known here."""
    if term not in _TERMS:
        return ""
    what, knobs = _TERMS[term]
    changes = [knob.change for knob in knobs if knob.is_open(run)]
    sentence = what[0].upper() + what[1:]
    return f"{sentence}; try {_either(changes)}." if changes else f"{sentence}."


def large_terms(metrics: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Terms that cost a point of MFU or more, with their points, the largest first."""
    terms = [(str(t["term"]), float(t["mfu_points"])) for t in metrics.get("explain") or ()]
    large = [(term, points) for term, points in terms if points >= LARGE_POINTS]
    return sorted(large, key=lambda term: -term[1])


def _either(changes: Sequence[str]) -> str:
    return " or ".join([", ".join(changes[:-1]), changes[-1]] if len(changes) > 1 else changes)
