"""The fit: robust least squares over a few parameters, and whether the data can tell them apart.

The residual of a time is the logarithm of predicted over measured, in units of `NOISE`; each
parameter adds its own distance from its likely value. Large residuals count less than squared
(soft L1), so that a row with a misprint does not turn the fit. Cross-validation refits without
each fold, on the linear model of the fit's own derivatives (a fold moves the parameters little),
and scores the fold by simulating it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simulator.errors import ConfigError
from validation.calibration.parameters import Parameter

Floats: TypeAlias = npt.NDArray[np.float64]
LogRatios: TypeAlias = Callable[[Sequence[Floats]], list[Floats]]
"""Predicts all times at each of several points z: logarithms of predicted over measured."""

NOISE = 0.05
"""A good model is off by so much from run to run."""
STEP = 0.25
"""Of the difference quotients, in spreads."""
TOLERANCE = 0.02
"""In spreads; a profile need not be known better."""
LEAST_INFORMATION = 1.0
"""Singular value, in spreads, from which the data say more of a direction than was known before."""
NAMED = 0.35
"""Share of a direction from which a parameter is named with it."""


@dataclass(frozen=True)
class Fit:
    """Fitted distances with their standard errors, and the residual logarithms there and before."""

    z: Floats
    deviation: Floats
    before: Floats
    after: Floats


@dataclass(frozen=True)
class Problem:
    """What is fitted: times in `groups` that are never split between fit and score."""

    parameters: Sequence[Parameter]
    log_ratios: LogRatios
    weights: Floats
    groups: npt.NDArray[np.int64]

    def bounds(self) -> tuple[Floats, Floats]:
        """Lowest and highest z."""
        low = [p.distance(p.low) for p in self.parameters]
        high = [p.distance(p.high) for p in self.parameters]
        return np.array(low), np.array(high)

    def derivatives(self, z: Floats) -> tuple[Floats, Floats]:
        """Logarithms at z, and how they change with each z (towards the side that has room)."""
        _, high = self.bounds()
        signs = np.where(z + STEP <= high, 1.0, -1.0)
        moved = [z + sign * STEP * unit for sign, unit in zip(signs, np.eye(len(z)), strict=True)]
        here, *there = self.log_ratios([z, *moved])
        columns = [(b - here) / (s * STEP) for b, s in zip(there, signs, strict=True)]
        return here, np.stack(columns, axis=1)


def fit(problem: Problem) -> Fit:
    """Fit all parameters. Raises `ConfigError` where the data cannot tell them apart."""
    start = np.zeros(len(problem.parameters))
    before, slopes = problem.derivatives(start)
    check_distinguishable(problem, slopes)
    z, here, jacobian = start, before, slopes
    for _ in range(12):
        moved = _minimum(problem, z, here, jacobian, np.ones(len(here), bool))
        step, z = float(np.abs(moved - z).max()), moved
        here, jacobian = problem.derivatives(z)
        if step < TOLERANCE:
            break
    scaled = jacobian * (problem.weights / NOISE)[:, None]
    covariance = np.linalg.inv(scaled.T @ scaled + np.eye(len(z)))
    return Fit(z, np.sqrt(np.diag(covariance)), before, here)


def check_distinguishable(problem: Problem, slopes: Floats) -> None:
    """Raise `ConfigError` naming the parameters that the data say too little of: alone, or because
    they move all times alike; and a choice that could be fitted."""
    names = [p.name for p in problem.parameters]
    scaled = slopes * (problem.weights / NOISE)[:, None]
    _, information, directions = np.linalg.svd(scaled, full_matrices=True)
    information = np.concatenate([information, np.zeros(len(names) - len(information))])
    blurred = [d for d, i in zip(directions, information, strict=True) if i < LEAST_INFORMATION]
    if not blurred:
        return
    alone = [n for n, c in zip(names, scaled.T, strict=True) if not _says(c[:, None])]
    together = [
        " from ".join(mixed)
        for direction in blurred
        for mixed in [[n for n, part in zip(names, direction, strict=True) if abs(part) > NAMED]]
        if len(mixed) > 1 and not set(mixed) & set(alone)
    ]
    reasons = [f"hardly react to {', '.join(alone)}"] * bool(alone)
    reasons += [f"cannot tell {words}" for words in together]
    could = " ".join(f"--fit {name}" for name in _distinct(names, scaled))
    advice = f"; these could be fitted: {could}" if could else ""
    raise ConfigError(f"calibrate: the data {'; they '.join(reasons)}{advice}")


def cross_validate(problem: Problem, fitted: Fit, folds: int, seed: int) -> Floats | None:
    """Logarithms of predicted over measured, each predicted by a fit that has not seen its fold.

    None with fewer than three groups.
    """
    groups = np.unique(problem.groups)
    if len(groups) < 3:
        return None
    shuffled = np.random.default_rng(seed).permutation(groups)
    parts = np.array_split(shuffled, min(folds, len(groups)))
    here, jacobian = problem.derivatives(fitted.z)
    held = [np.isin(problem.groups, part) for part in parts]
    points = [_minimum(problem, fitted.z, here, jacobian, ~out) for out in held]
    scored = np.empty_like(here)
    for out, values in zip(held, problem.log_ratios(points), strict=True):
        scored[out] = values[out]
    return scored


def _minimum(
    problem: Problem, z: Floats, here: Floats, jacobian: Floats, used: npt.NDArray[np.bool_]
) -> Floats:
    """Best z of the linear model around `z` for the times that are `used`."""
    from scipy.optimize import least_squares

    weights = (problem.weights / NOISE)[used]
    base, slopes = here[used] * weights, jacobian[used] * weights[:, None]
    low, high = problem.bounds()

    def residuals(point: Floats) -> Floats:
        off = base + slopes @ (point - z)
        robust = np.sign(off) * np.sqrt(2.0 * (np.sqrt(1.0 + off**2) - 1.0))
        return np.concatenate([robust, point])

    inside = np.clip(z, low + 1e-9, high - 1e-9)
    return np.asarray(least_squares(residuals, inside, bounds=(low, high)).x, dtype=float)


def _says(columns: Floats) -> bool:
    information = np.linalg.svd(columns, compute_uv=False)
    return len(information) == columns.shape[1] and bool(information[-1] >= LEAST_INFORMATION)


def _distinct(names: Sequence[str], scaled: Floats) -> list[str]:
    """Parameters that could be fitted together, those first that matter most."""
    kept: list[int] = []
    for i in np.argsort(-np.linalg.norm(scaled, axis=0)):
        if _says(scaled[:, [*kept, int(i)]]):
            kept.append(int(i))
    return [names[i] for i in sorted(kept)]
