"""From observations to a calibrated profile and a report of what each parameter moved."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from validation.calibration.fit import Floats, LogRatios, Problem, cross_validate, fit
from validation.calibration.observations import Changes, Observation, Observations
from validation.calibration.parameters import Parameter, profile_changes
from validation.score import error_summary

Evaluate = Callable[[Sequence[Changes]], list[list[tuple[float, ...]]]]
"""Predicted seconds of every observation under each of several profiles."""


@dataclass(frozen=True)
class Moved:
    """One fitted parameter."""

    parameter: Parameter
    value: float
    deviation: float
    """Standard error, in the parameter's unit."""
    error_without: float
    """Mean absolute error with this parameter back where it was."""


@dataclass(frozen=True)
class Calibration:
    """A fitted profile and how good it is."""

    moved: tuple[Moved, ...]
    observations: Observations
    labels: tuple[tuple[str, str], ...]
    """Source and label of each time."""
    measured_s: tuple[float, ...]
    errors_before: tuple[float, ...]
    errors_after: tuple[float, ...]
    errors_held_out: tuple[float, ...] | None
    """Predicted over measured, minus 1, by fits that had not seen the time; None with too few."""
    folds: int
    seed: int

    def profile(self, name: str) -> dict[str, Any]:
        """The fields of a profile file."""
        after, held_out = error_summary(self.errors_after), self.errors_held_out
        sources = sorted({source for source, _ in self.labels})
        said = [
            f"fitted to {len(self.labels)} times of {', '.join(sources)}",
            f"mean absolute error {100 * after['mean_absolute_error']:.1f} %",
        ]
        if held_out is not None:
            mean = error_summary(held_out)["mean_absolute_error"]
            said.append(f"{100 * mean:.1f} % on times held out")
        values = {m.parameter.name: float(f"{m.value:.6g}") for m in self.moved}
        return {"name": name, **values, "source": ", ".join(said)}

    def to_json(self) -> dict[str, Any]:
        """Parameters, errors and every time, as plain data."""
        held_out = self.errors_held_out
        return {
            "parameters": [
                {
                    "name": m.parameter.name, "value": m.value, "standard_error": m.deviation,
                    "shipped": m.parameter.likely, "bounds": [m.parameter.low, m.parameter.high],
                    "mean_absolute_error_without": m.error_without,
                }
                for m in self.moved
            ],
            "before": error_summary(self.errors_before),
            "after": error_summary(self.errors_after),
            "cross_validated": None if held_out is None else error_summary(held_out),
            "folds": self.folds,
            "seed": self.seed,
            "times": [
                {
                    "source": source, "label": label, "measured_s": self.measured_s[i],
                    "error_before": self.errors_before[i], "error": self.errors_after[i],
                    "error_held_out": None if held_out is None else held_out[i],
                }
                for i, (source, label) in enumerate(self.labels)
            ],
            "left_out": dict(self.observations.left_out),
        }  # fmt: skip


def calibrate(
    observations: Observations,
    parameters: Sequence[Parameter],
    *,
    folds: int = 5,
    seed: int = 0,
    processes: int | None = None,
) -> Calibration:
    """Fit `parameters` to `observations`.

    Raises `ConfigError` where the data cannot tell them apart.
    """
    used = observations.used
    counts = [len(observation.labels) for observation in used]
    measured = [seconds for observation in used for seconds in observation.measured_s]
    with _evaluator(used, processes) as evaluate:
        problem = Problem(
            parameters,
            _log_ratios(parameters, np.log(measured), evaluate),
            np.repeat(observations.weights(), counts),
            np.repeat(np.arange(len(used)), counts),
        )
        fitted = fit(problem)
        without = _without_each(problem, fitted.z)
        held_out = cross_validate(problem, fitted, folds, seed)
    moved = tuple(
        Moved(p, p.value(z), abs(p.value(z + d) - p.value(z)), _mean_error(off))
        for p, z, d, off in zip(parameters, fitted.z, fitted.deviation, without, strict=True)
    )
    return Calibration(
        moved, observations,
        tuple((observation.source, label) for observation in used for label in observation.labels),
        tuple(measured), _errors(fitted.before), _errors(fitted.after),
        None if held_out is None else _errors(held_out), folds, seed,
    )  # fmt: skip


def _without_each(problem: Problem, z: Floats) -> list[Floats]:
    return problem.log_ratios([np.where(np.arange(len(z)) == i, 0.0, z) for i in range(len(z))])


def _errors(log_ratios: Floats) -> tuple[float, ...]:
    return tuple(float(x) for x in np.expm1(log_ratios))


def _mean_error(log_ratios: Floats) -> float:
    return float(np.abs(np.expm1(log_ratios)).mean())


def _log_ratios(
    parameters: Sequence[Parameter], log_measured: Floats, evaluate: Evaluate
) -> LogRatios:
    known: dict[tuple[float, ...], Floats] = {}

    def log_ratios(points: Sequence[Floats]) -> list[Floats]:
        keys = [tuple(float(x) for x in point) for point in points]
        new = list(dict.fromkeys(key for key in keys if key not in known))
        for key, found in zip(new, evaluate([profile_changes(parameters, k) for k in new]),
                              strict=True):  # fmt: skip
            flat = [seconds for times in found for seconds in times]
            known[key] = np.log(flat) - log_measured
        return [known[key] for key in keys]

    return log_ratios


# many simulations

_held: list[Observation] = []
"""Of a worker process: what it was started with."""


def _take(observations: Sequence[Observation]) -> None:
    _held[:] = observations


def _predict(task: tuple[int, Mapping[str, float]]) -> tuple[float, ...]:
    index, changes = task
    return _held[index].predicted_s(changes)


@contextmanager
def _evaluator(used: Sequence[Observation], processes: int | None) -> Iterator[Evaluate]:
    count = min(processes or os.cpu_count() or 1, len(used))

    def tasks(profiles: Sequence[Changes]) -> list[tuple[int, Mapping[str, float]]]:
        return [(i, changes) for changes in profiles for i in range(len(used))]

    def split(found: list[tuple[float, ...]]) -> list[list[tuple[float, ...]]]:
        return [found[i : i + len(used)] for i in range(0, len(found), len(used))]

    if count <= 1:
        yield lambda profiles: split([used[i].predicted_s(c) for i, c in tasks(profiles)])
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, context, _take, (tuple(used),)) as pool:
        yield lambda profiles: split(list(pool.map(_predict, tasks(profiles), chunksize=8)))
