"""The points of a study: settings laid over a run file, loaded and checked.

Values are set first, in the order of their options, and factors then multiply what stands there:
so a factor on a fabric's link holds for whichever fabric the point has.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from pydantic import BaseModel

from simulator.errors import ConfigError, Problem
from simulator.loading import load_run, load_unchecked
from simulator.runspec import RunSpec
from simulator.study.varied import Setting, Varied

Scalar = str | float | int | bool | None


@dataclass(frozen=True)
class Point:
    """One variant of the run; without `run` it is invalid, for `reason`."""

    settings: tuple[Setting, ...]
    values: tuple[Scalar, ...]
    """What each setting came to, in SI units; its text where it is no number or cannot be read."""
    run: RunSpec | None
    reason: str = ""

    @cached_property
    def digest(self) -> str:
        """Tells this run, presets written out, from any other."""
        content = self.reason if self.run is None else self.run.model_dump_json()
        return hashlib.sha256(content.encode()).hexdigest()


def load_point(run_file: str, overrides: Sequence[str], settings: Sequence[Setting]) -> Point:
    """Load the run with `overrides` and then `settings` laid over it.

    A combination that cannot be is a point with a reason. Raises `ConfigError` only where the run
    file itself cannot be read.
    """
    asked = tuple(settings)
    laid = [*overrides, *(f"{s.path}={s.text}" for s in asked if s.factor is None)]
    values: tuple[Scalar, ...] = tuple(s.text for s in asked)
    try:
        if len(laid) < len(overrides) + len(asked):
            base = load_unchecked(run_file, laid)
            laid += [f"{s.path}={_scaled(base, s)}" for s in asked if s.factor is not None]
        run = load_run(run_file, laid)
        return Point(asked, _values(run, asked), run)
    except ConfigError as error:
        with suppress(ConfigError):  # each key may be right, only not with the others
            values = _values(load_unchecked(run_file, laid), asked)
        return Point(asked, values, None, "; ".join(map(_reason, error.problems)))


def own_values(
    run_file: str, overrides: Sequence[str], varied: Sequence[Varied]
) -> tuple[Scalar, ...]:
    """What a run has at each varied path before it is varied; None where nothing can be read."""
    try:
        run = load_unchecked(run_file, overrides)
    except ConfigError:
        return (None,) * len(varied)
    found = [_at(run, v.path) for v in varied]
    return tuple(v if isinstance(v, str | int | float) else _name(v) for v in found)


def _name(value: object) -> str | None:
    """Of a preset: what a user would have written there."""
    name = getattr(value, "name", None)
    return name if isinstance(name, str) else None


def _reason(problem: Problem) -> str:
    """The problem; of an overridden key without its place, which stands in the settings."""
    source = problem.place.source if problem.place else ""
    return str(replace(problem, place=None) if source.startswith("--set ") else problem)


def _scaled(run: RunSpec, setting: Setting) -> str:
    """The number at the setting's path times its factor, as text for a run file."""
    base, factor = _at(run, setting.path), setting.factor
    assert factor is not None
    if isinstance(base, bool) or not isinstance(base, int | float):
        raise ConfigError(f"{setting.path}: no number stands there to multiply by {factor:g}")
    scaled = base * factor
    if isinstance(base, float):
        return repr(scaled)
    if abs(scaled - round(scaled)) > 1e-9 * abs(scaled):
        raise ConfigError(f"{setting.path}: {factor:g} times {base} is no whole number")
    return str(round(scaled))


def _values(run: RunSpec, settings: Sequence[Setting]) -> tuple[Scalar, ...]:
    found = [_at(run, setting.path) for setting in settings]
    return tuple(
        value if isinstance(value, int | float) else setting.text
        for value, setting in zip(found, settings, strict=True)
    )


def _at(run: RunSpec, path: str) -> object:
    """What stands at a dotted path of a checked run, None where nothing does."""
    node: object = run
    for key in path.split("."):
        if isinstance(node, BaseModel):
            node = getattr(node, key) if key in type(node).model_fields else None
        elif isinstance(node, dict):
            node = {str(name): value for name, value in node.items()}.get(key)
        elif isinstance(node, list | tuple):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
        else:
            return None
    return node
