"""Errors of predictions by source: what `clustersim validate` reports, as pure functions."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

NUM_WORST = 5
MIN_LAYOUTS = 3
"""Fewer layouts of one model say nothing about their order."""


@dataclass(frozen=True)
class Scored:
    """One row, predicted and measured."""

    id: str
    source_key: str
    predicted_step_time_s: float | None = None
    measured_step_time_s: float | None = None
    predicted_peak_memory_bytes: float | None = None
    measured_peak_memory_bytes: float | None = None
    predicted_fits: bool | None = None
    measured_oom: bool = False
    skipped: bool = False
    reason: str = ""
    layout_group: str = ""
    """What layouts are compared within: model, batch, GPU and their number."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the spec that was simulated, for analysis."""
    breakdown_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, minus 1."""
        return relative_error(self.predicted_step_time_s, self.measured_step_time_s)

    @property
    def memory_error(self) -> float | None:
        return relative_error(self.predicted_peak_memory_bytes, self.measured_peak_memory_bytes)

    def to_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "id": self.id,
            "source_key": self.source_key,
            "predicted_step_time_s": self.predicted_step_time_s,
            "measured_step_time_s": self.measured_step_time_s,
            "error": self.error,
            "predicted_peak_memory_bytes": self.predicted_peak_memory_bytes,
            "measured_peak_memory_bytes": self.measured_peak_memory_bytes,
            "memory_error": self.memory_error,
            "predicted_fits": self.predicted_fits,
            "measured_oom": self.measured_oom,
            "skipped": self.skipped,
            "reason": self.reason,
            "layout_group": self.layout_group,
            "settings": dict(self.settings),
            "breakdown_s": dict(self.breakdown_s),
            "notes": list(self.notes),
        }


def relative_error(predicted: float | None, measured: float | None) -> float | None:
    """Predicted over measured, minus 1; None where either is missing."""
    if predicted is None or not measured:
        return None
    return predicted / measured - 1.0


def by_source(rows: Iterable[Scored]) -> dict[str, dict[str, Any]]:
    """`source_score` of each source, in the order in which the sources appear."""
    groups: dict[str, list[Scored]] = {}
    for row in rows:
        groups.setdefault(row.source_key, []).append(row)
    return {key: source_score(group) for key, group in groups.items()}


def source_score(rows: Sequence[Scored]) -> dict[str, Any]:
    """Counts, errors of time and memory, order of layouts, and fits against OOM."""
    timed = [r for r in rows if r.error is not None]
    return {
        "rows": len(rows),
        "scored": len(timed),
        "skipped": sum(r.skipped for r in rows),
        "skip_reasons": _reasons(rows),
        **error_summary([r.error for r in timed if r.error is not None]),
        "worst": _worst(timed),
        "layouts": layout_order(timed),
        "memory": error_summary([r.memory_error for r in rows if r.memory_error is not None]),
        "oom": oom_confusion(rows),
    }


def error_summary(errors: Sequence[float]) -> dict[str, Any]:
    """Mean and median of absolute errors, bias (mean of signed errors), 90th percentile and the
    share predicted too fast; None where there are none."""
    if not errors:
        keys = ("mean_absolute_error", "median_absolute_error", "p90_absolute_error", "bias",
                "share_too_fast")  # fmt: skip
        return {"count": 0, **dict.fromkeys(keys)}
    size = sorted(map(abs, errors))
    return {
        "count": len(errors),
        "mean_absolute_error": statistics.fmean(size),
        "median_absolute_error": statistics.median(size),
        "p90_absolute_error": size[min(len(size) - 1, int(0.9 * len(size)))],
        "bias": statistics.fmean(errors),
        "share_too_fast": sum(e < 0 for e in errors) / len(errors),
    }


def _worst(rows: Sequence[Scored]) -> list[dict[str, Any]]:
    ranked = sorted(rows, key=lambda r: -abs(r.error or 0.0))
    return [{"id": r.id, "error": r.error} for r in ranked[:NUM_WORST]]


def _reasons(rows: Iterable[Scored]) -> dict[str, int]:
    count: dict[str, int] = {}
    for row in rows:
        if row.skipped:
            count[row.reason] = count.get(row.reason, 0) + 1
    return dict(sorted(count.items(), key=lambda item: -item[1]))


def layout_order(rows: Iterable[Scored]) -> dict[str, Any]:
    """Kendall's tau of the order of layouts, within each model, batch and number of GPUs.

    `kendall_tau` pools the pairs of all groups; None without a group of `MIN_LAYOUTS`.
    """
    groups: dict[str, list[Scored]] = {}
    for row in rows:
        groups.setdefault(row.layout_group, []).append(row)
    found = []
    agreed = total = 0.0
    for name, members in groups.items():
        pairs = [
            (r.predicted_step_time_s, r.measured_step_time_s)
            for r in members
            if r.predicted_step_time_s is not None and r.measured_step_time_s is not None
        ]
        if len(pairs) < MIN_LAYOUTS:
            continue
        score, count = concordance(pairs)
        if count:
            found.append({"group": name, "layouts": len(pairs), "kendall_tau": score / count})
            agreed, total = agreed + score, total + count
    return {"kendall_tau": agreed / total if total else None, "groups": found}


def concordance(pairs: Sequence[tuple[float, float]]) -> tuple[float, int]:
    """Concordant less discordant pairs, and the number of pairs whose measured order is clear.

    Their quotient is Kendall's tau; a predicted tie counts as neither.
    """
    score, count = 0.0, 0
    for (predicted, measured), (predicted_too, measured_too) in combinations(pairs, 2):
        if measured == measured_too:
            continue
        count += 1
        order = (predicted - predicted_too) * (measured - measured_too)
        score += (order > 0) - (order < 0)
    return score, count


def oom_confusion(rows: Iterable[Scored]) -> dict[str, Any] | None:
    """Predicted fit against measured: rows that ran and rows that ran out of memory.

    None where the source marks no row as out of memory.
    """
    known = [r for r in rows if r.predicted_fits is not None]
    if not any(r.measured_oom for r in known):
        return None
    counts = {"fits_and_ran": 0, "fits_but_oom": 0, "too_big_but_ran": 0, "too_big_and_oom": 0}
    for r in known:
        said = "fits" if r.predicted_fits else "too_big"
        joint = "and" if bool(r.predicted_fits) != r.measured_oom else "but"
        counts[f"{said}_{joint}_{'oom' if r.measured_oom else 'ran'}"] += 1
    right = counts["fits_and_ran"] + counts["too_big_and_oom"]
    return {**counts, "accuracy": right / len(known)}
