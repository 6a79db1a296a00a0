"""A result small enough to work out by hand, for tests of what is printed and drawn."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from synthetic_trace import synthetic_trace

from simulator.loading import load_run
from simulator.runspec import RunSpec
from simulator.trace import Trace

GB = 1e9
TOY = load_run(Path(__file__).parents[3] / "examples" / "toy-2-nodes.yaml")


def stage(number: int, activations: float) -> dict[str, float]:
    terms = {"weights": 8 * GB, "gradients": 16 * GB, "optimizer": 1 * GB,
             "activations": activations, "buffers": 0.2 * GB, "framework": 1.6 * GB}  # fmt: skip
    return {"stage": number, **terms, "total_bytes": sum(terms.values())}


RESULT: dict[str, Any] = {
    "name": "a [bold]run[/bold] <b>& more</b>",
    "layout": {"num_gpus": 6144, "gpu": "h100", "tp": 8, "pp": 16, "vpp": 7, "dp": 48,
               "micro_batch_size": 1, "num_microbatches": 64},
    "step_time_s": 10.0,
    "tokens_per_s_per_gpu": 204.8,
    "model_tflops_per_gpu": 450.25,
    "mfu": 0.455,
    "hfu": 0.46,
    "bubble_fraction": 0.04,
    "critical_stage": 3,
    "breakdown_s": {"gemm": 6.5, "attention": 1.0, "recompute": 0.0, "tp_exposed": 1.5,
                    "novel_term": 0.6, "bubble": 0.4},
    "explain": [
        {"term": "kernel_efficiency", "seconds": 2.95, "mfu_points": 0.295},
        {"term": "recompute", "seconds": 0.0, "mfu_points": 0.0},
        {"term": "tp_exposed", "seconds": 1.5, "mfu_points": 0.15},
        {"term": "novel_term", "seconds": 0.6, "mfu_points": 0.06},
        {"term": "bubble", "seconds": 0.4, "mfu_points": 0.04},
    ],
    "communication": {
        "tp": {"bytes": 6e11, "busy_s": 2.0, "exposed_s": 1.5, "busbw": 3e11},
        "pp": {"bytes": 0.0, "busy_s": 0.0, "exposed_s": 0.0, "busbw": 0.0},
    },
    "memory": {"peak_bytes": 66.8 * GB, "capacity_bytes": 80 * 2.0**30, "fits": True,
               "per_stage": [stage(0, 40 * GB), stage(1, 30 * GB)]},
    "cost": {"gpu_hours_per_step": 17.066, "energy_j_per_step": 7.2e7, "usd_per_step": None,
             "gpu_hours_per_trillion_tokens": 1.356e6},
    "simulation": {"num_gpus": 6144, "rank_classes": 16, "operations": 30371, "events": 132847,
                   "wall_time_s": 1.25},
    "warnings": ["outside the measured tables, extrapolated: " + ", ".join(["fc2 wgrad"] * 12)],
}  # fmt: skip


@dataclass(frozen=True)
class StandIn:
    """A result of a run that was never simulated."""

    metrics: dict[str, Any]
    trace: Trace = field(default_factory=lambda: synthetic_trace(stages=2, microbatches=2))
    run: RunSpec = TOY

    def to_json(self) -> dict[str, Any]:
        return self.metrics
