"""What a result holds, as named rows of text that the terminal and the web page both show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.summary_text import (
    GIB,
    count_text,
    gib_text,
    money_text,
    percent_text,
    scaled_text,
    seconds_text,
)

_LEAST_POINTS = 0.0005
"""What rounds to 0.0 % is not shown."""
_SECONDS_PER_HOUR = 3600.0
TERM_NAMES = {
    "kernel_efficiency": "GEMM, attention below peak",
    "gemm": "GEMM",
    "attention": "attention",
    "memory_bound": "memory-bound kernels",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "tp_exposed": "exposed tensor parallel",
    "cp_exposed": "exposed context parallel",
    "ep_exposed": "exposed expert parallel",
    "pp_exposed": "exposed pipeline parallel",
    "dp_exposed": "exposed data parallel",
    "offload_exposed": "waiting for the host",
    "interference": "slowed by communication",
    "gpu_variation": "pace of the slowest GPU",
    "straggler_wait": "waiting for slower ranks",
    "overhead": "host time",
    "bubble": "pipeline bubble",
}
KIND_NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "pp": "pipeline parallel",
    "dp": "data parallel",
    "offload": "host and back",
}
MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")


def term_name(term: str) -> str:
    """A term of the breakdown in words."""
    return TERM_NAMES.get(term, term.replace("_", " "))


def layout_parts(layout: Mapping[str, Any]) -> list[str]:
    """GPUs and parallel sizes in words, as far as they are known."""
    parts = []
    if layout.get("num_gpus"):
        gpu = layout.get("gpu") or "GPU"
        parts.append(f"{layout['num_gpus']:,} × {gpu}")
    parts += [f"{axis} {layout[axis]}" for axis in ("tp", "cp", "ep") if layout.get(axis)]
    if layout.get("pp"):
        chunks = layout.get("vpp") or 1
        parts.append(f"pp {layout['pp']}" + (f" × {chunks} chunks" if chunks > 1 else ""))
    if layout.get("dp"):
        parts.append(f"dp {layout['dp']}")
    if layout.get("num_microbatches"):
        size = layout.get("micro_batch_size")
        parts.append(f"{layout['num_microbatches']} microbatches" + (f" of {size}" if size else ""))
    return parts


def headline_cells(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of what is asked first."""
    cells = [("step time", seconds_text(result["step_time_s"]))]
    for key, name, show in (
        ("tokens_per_s_per_gpu", "tokens/s per GPU", count_text),
        ("mfu", "MFU", percent_text),
        ("model_tflops_per_gpu", "model TFLOP/s per GPU", count_text),
        ("hfu", "HFU", percent_text),
        ("bubble_fraction", "bubble, mean of stages", percent_text),
    ):
        if result.get(key) is not None:
            cells.append((name, show(result[key])))
    return cells


def breakdown_rows(result: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Name, seconds and share of the step of each term that is not next to nothing."""
    terms: Mapping[str, float] = result.get("breakdown_s") or {}
    step_s = result["step_time_s"]
    return [
        (term_name(term), seconds, percent_text(seconds / step_s))
        for term, seconds in terms.items()
        if step_s > 0 and seconds / step_s >= _LEAST_POINTS
    ]


def communication_rows(
    kinds: Mapping[str, Mapping[str, float]],
) -> list[tuple[str, str, str, str, str]]:
    """Kind, sent, busy, exposed, bus bandwidth of each kind of communication that took time."""
    return [
        (
            KIND_NAMES.get(kind, kind),
            scaled_text(sums.get("bytes", 0.0), "B"),
            seconds_text(sums["busy_s"]),
            seconds_text(sums.get("exposed_s", 0.0)),
            scaled_text(sums["busbw"], "B/s") if sums.get("busbw") else "-",
        )
        for kind, sums in kinds.items()
        if sums.get("busy_s")
    ]


def cost_rows(cost: Mapping[str, float | None]) -> list[tuple[str, str, str]]:
    """What, per step, per trillion tokens; without what has no number, such as a price."""
    rows = []
    for name, key, show in (
        ("GPU-hours", "gpu_hours", count_text),
        ("energy", "energy_j", _kwh_text),
        ("price (USD)", "usd", money_text),
    ):
        per_step, per_trillion = (cost.get(f"{key}_per_{w}") for w in ("step", "trillion_tokens"))
        if per_step is not None or per_trillion is not None:
            shown = ["-" if value is None else show(value) for value in (per_step, per_trillion)]
            rows.append((name, shown[0], shown[1]))
    return rows


def _kwh_text(energy_j: float) -> str:
    return f"{count_text(energy_j / _SECONDS_PER_HOUR / 1e3)} kWh"


def simulation_counts(simulation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and numbers of what was simulated."""
    return [
        (name, f"{simulation[key]:,}")
        for key, name in (
            ("num_gpus", "GPUs"),
            ("rank_classes", "classes of ranks"),
            ("operations", "operations"),
            ("events", "events"),
        )
        if simulation.get(key) is not None
    ]


def memory_terms(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Kinds of memory that any stage lists, the known ones first."""
    listed = {key for stage in stages for key in stage} - {"stage", "total_bytes"}
    return [t for t in MEMORY_TERMS if t in listed] + sorted(listed - set(MEMORY_TERMS))


def memory_verdict(memory: Mapping[str, Any]) -> str:
    """Peak against capacity in a sentence; empty where the peak is not known."""
    peak, capacity = memory.get("peak_bytes"), memory.get("capacity_bytes")
    if peak is None:
        return ""
    stages: Sequence[Mapping[str, Any]] = memory.get("per_stage") or ()
    fullest = max(stages, key=lambda stage: float(stage["total_bytes"]), default=None)
    said = "peak" if fullest is None else f"stage {fullest['stage']}, the fullest:"
    said += f" {gib_text(peak)}"
    if not capacity:
        return said
    said += f" of {gib_text(capacity)}, {percent_text(peak / capacity)}"
    if memory.get("fits", peak <= capacity):
        return f"{said}: fits, {gib_text(capacity - peak)} free"
    return f"{said}: DOES NOT FIT, {gib_text(peak - capacity)} too much"


def memory_parts(memory: Mapping[str, Any]) -> str:
    """What the fullest stage holds, kind by kind; empty where that is not told."""
    terms = [(t, memory[t]) for t in MEMORY_TERMS if memory.get(t)]
    return ", ".join(f"{term} {gib_text(num_bytes)}" for term, num_bytes in terms)


def stage_cells(
    stage: Mapping[str, Any], terms: Sequence[str], capacity: float | None
) -> list[str]:
    """GiB of each kind and in total, and the share of the GPU's memory."""
    total = stage["total_bytes"]
    sizes = [stage.get(term, 0.0) / GIB for term in terms] + [total / GIB]
    share = [percent_text(total / capacity, 0)] if capacity else []
    return [f"{size:.2f}" for size in sizes] + share


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """A bar from `low` to `high`, fractions of peak: a total from zero, or what a term takes."""

    name: str
    seconds: float | None
    low: float
    high: float
    is_total: bool = False
    is_gain: bool = False

    @property
    def points_text(self) -> str:
        """Percent of peak; with a minus what is lost."""
        sign = "" if self.is_total else "+" if self.is_gain else "−"
        return sign + percent_text(self.high - self.low)


def waterfall(result: Mapping[str, Any]) -> list[WaterfallStep]:
    """From peak, term by term, to the MFU. Terms below 0.05 points are one bar, "other"; so is
    what the terms leave open. Empty where the result explains nothing."""
    terms: Sequence[Mapping[str, Any]] = result.get("explain") or ()
    mfu = result.get("mfu")
    if not terms or mfu is None:
        return []
    steps = [WaterfallStep("peak", None, 0.0, 1.0, is_total=True)]
    level = 1.0
    for term in terms:
        points = float(term["mfu_points"])
        if abs(points) >= _LEAST_POINTS:
            seconds = term.get("seconds")
            steps.append(_step(term_name(str(term["term"])), seconds, level, level - points))
            level -= points
    if abs(level - mfu) >= _LEAST_POINTS:
        steps.append(_step("other", None, level, mfu))
    ideal_s = mfu * result["step_time_s"] if result.get("step_time_s") else None
    return [*steps, WaterfallStep("achieved MFU", ideal_s, 0.0, mfu, is_total=True)]


def _step(name: str, seconds: float | None, before: float, after: float) -> WaterfallStep:
    low, high = sorted((before, after))
    return WaterfallStep(name, seconds, low, high, is_gain=after > before)
