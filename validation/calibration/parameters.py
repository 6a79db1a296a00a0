"""What can be fitted: a few physical parameters of a profile, with bounds and what is likely.

A fit works on `z`, a parameter's distance from its likely value in units of how far it is likely to
be off; z = 0 is the profile as shipped.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from hardware.spec import ProfileSpec
from simulator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of `ProfileSpec`. A `ratio` is likely off by a factor exp(spread), another quantity
    by `spread` in its own unit."""

    name: str
    low: float
    high: float
    spread: float
    ratio: bool
    why: str

    @property
    def likely(self) -> float:
        """The value that ships."""
        return float(getattr(ProfileSpec(), self.name))

    def value(self, z: float) -> float:
        """From distance to value."""
        if self.ratio:
            return self.likely * math.exp(self.spread * z)
        return self.likely + self.spread * z

    def distance(self, value: float) -> float:
        """From value to distance."""
        if self.ratio:
            return math.log(value / self.likely) / self.spread
        return (value - self.likely) / self.spread


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("gemm_efficiency", 0.5, 1.3, 0.1, True, "library and sustained clock"),
    Parameter("attention_efficiency", 0.4, 1.5, 0.15, True, "attention kernel and its release"),
    Parameter("memory_bound_efficiency", 0.4, 1.4, 0.15, True, "fusion, memory clock"),
    Parameter("nvlink_efficiency", 0.4, 1.3, 0.1, True, "collectives inside a node"),
    Parameter("network_efficiency", 0.2, 1.2, 0.2, True, "fabric: congestion, routing, rails"),
    Parameter("host_operation_s", 0.0, 500e-6, 60e-6, False, "Python and launch rate of the host"),
    Parameter("step_overhead_s", 0.0, 2.0, 0.05, False, "data, logging, Python between steps"),
    Parameter("gpu_speed_deviation", 0.0, 0.1, 0.01, False, "skew: GPUs of one kind differ"),
)
"""Spreads are judged: how far two clusters of one kind were seen apart."""


def chosen_parameters(names: Sequence[str]) -> tuple[Parameter, ...]:
    """The parameters of these names, all if there are none. Raises `ConfigError` for an unknown or
    repeated name."""
    known = {parameter.name: parameter for parameter in PARAMETERS}
    for i, name in enumerate(names):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}"
            raise ConfigError(f"--fit: unknown parameter {name!r}; {hint}")
        if name in names[:i]:
            raise ConfigError(f"--fit: {name} twice")
    return tuple(known[name] for name in names) if names else PARAMETERS


def profile_changes(parameters: Sequence[Parameter], z: Sequence[float]) -> Mapping[str, float]:
    """Fields of the profile at distances `z`."""
    return {p.name: p.value(float(at)) for p, at in zip(parameters, z, strict=True)}
