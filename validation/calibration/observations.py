"""What a profile is fitted to: measured seconds, each with a prediction for any profile."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hardware.spec import ProfileSpec
from simulator.errors import ConfigError, SimulationError
from simulator.loading import load_run
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from validation.compare_terms import kernel_terms
from validation.kineto import KernelTrace, looks_like_trace, read_kineto
from validation.measured import MeasuredRun, NotModelledError, read_runs
from validation.megatron_log import read_megatron_log
from validation.points import (
    NoPredictionError,
    Row,
    collective_rows,
    collective_seconds,
    kernel_class,
    kernel_rows,
    kernel_seconds,
)
from validation.profiles import with_profile
from validation.validate import best_spec

Changes = Mapping[str, float]
"""Fields of `ProfileSpec` and their values."""

ENOUGH_ROWS = 50
"""A table counts as so many rows at most, so that thousands of kernels do not outweigh a few
runs."""
SEEN_IN_STEP = 0.02
"""Classes of kernels below this share of a traced step say nothing."""


class Observation(Protocol):
    """One or a few measured times that stand or fall together."""

    @property
    def source(self) -> str:
        """The file it is from."""

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each time."""

    @property
    def measured_s(self) -> tuple[float, ...]: ...

    def predicted_s(self, changes: Changes) -> tuple[float, ...]:
        """As many, for a profile with these fields changed."""


@dataclass(frozen=True)
class MeasuredStep:
    """The step time of one run."""

    source: str
    label: str
    run: RunSpec
    step_time_s: float

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,)

    @property
    def measured_s(self) -> tuple[float, ...]:
        return (self.step_time_s,)

    def predicted_s(self, changes: Changes) -> tuple[float, ...]:
        return (float(simulate(with_profile(self.run, changes)).metrics["step_time_s"]),)


@dataclass(frozen=True)
class TracedStep:
    """A profiled step: its time, and that of each class of kernels that matters."""

    source: str
    run: RunSpec
    trace: KernelTrace
    classes: tuple[str, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return ("step", *self.classes)

    @property
    def measured_s(self) -> tuple[float, ...]:
        terms = self._terms({})
        return (self.trace.step_time_s, *(terms[name][0] for name in self.classes))

    def predicted_s(self, changes: Changes) -> tuple[float, ...]:
        terms = self._terms(changes)
        return (terms["step"][1], *(terms[name][1] for name in self.classes))

    def _terms(self, changes: Changes) -> dict[str, tuple[float, float]]:
        result = simulate(with_profile(self.run, changes))
        found = {t.name: (t.measured_s, t.predicted_s) for t in kernel_terms(result, self.trace)}
        return {"step": (self.trace.step_time_s, result.metrics["step_time_s"]), **found}


@dataclass(frozen=True)
class MeasuredPoint:
    """A collective or a kernel by itself. `seconds` predicts it for a profile."""

    source: str
    label: str
    row: Row
    time_s: float
    seconds: Callable[[Row, ProfileSpec], float]

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,)

    @property
    def measured_s(self) -> tuple[float, ...]:
        return (self.time_s,)

    def predicted_s(self, changes: Changes) -> tuple[float, ...]:
        return (self.seconds(self.row, ProfileSpec().model_copy(update=dict(changes))),)


@dataclass(frozen=True)
class Observations:
    """All that is fitted to, and what was left out and why."""

    used: tuple[Observation, ...]
    left_out: Mapping[str, int]
    """Reason -> rows."""

    def weights(self) -> tuple[float, ...]:
        """One for each observation: what keeps a long table from outvoting the rest."""
        count: dict[str, int] = {}
        for observation in self.used:
            count[observation.source] = count.get(observation.source, 0) + 1
        each = {s: min(1.0, ENOUGH_ROWS / n) ** 0.5 for s, n in count.items()}
        return tuple(each[observation.source] for observation in self.used)


def read_observations(
    tables: Sequence[Path] = (),
    logs: Sequence[tuple[Path, Path]] = (),
    collectives: Sequence[Path] = (),
    kernels: Sequence[Path] = (),
) -> Observations:
    """Read runs tables, (run file, log or trace) pairs, tables of collectives and of kernels.

    Raises `ConfigError` for files that cannot be read, and where nothing can be used.
    """
    used: list[Observation] = []
    left_out: dict[str, int] = {}

    def leave(reason: str) -> None:
        left_out[reason] = left_out.get(reason, 0) + 1

    for path in tables:
        for measured in read_runs(path):
            try:
                used.append(_step(path, measured))
            except (NotModelledError, SimulationError) as error:
                leave(str(error))
    used += [_logged(run_file, log) for run_file, log in logs]
    for path in collectives:
        used += _points(path, collective_rows(path), collective_seconds, "collective", leave)
    for path in kernels:
        used += _points(path, kernel_rows(path), kernel_seconds, "kernel", leave)
    if not used:
        why = "; ".join(left_out) or "no input"
        raise ConfigError(f"nothing to fit to: {why}")
    return Observations(tuple(used), left_out)


def _step(path: Path, measured: MeasuredRun) -> MeasuredStep:
    if measured.step_time_s is None:
        raise NotModelledError("no step time was measured")
    return MeasuredStep(str(path), measured.id, best_spec(measured.row), measured.step_time_s)


def _logged(run_file: Path, log: Path) -> Observation:
    run = load_run(run_file)
    if not looks_like_trace(log):
        return MeasuredStep(str(log), run.name, run, read_megatron_log(log).step_time_s)
    trace = read_kineto(log)
    terms = kernel_terms(simulate(run), trace)
    names = ("gemm", "attention", "memory_bound")
    seen = {
        t.name
        for t in terms
        if t.predicted_s > 0 and t.measured_s > SEEN_IN_STEP * trace.step_time_s
    }
    return TracedStep(str(log), run, trace, tuple(name for name in names if name in seen))


def _points(
    path: Path,
    rows: Iterable[tuple[str, Row, float | None]],
    seconds: Callable[[Row, ProfileSpec], float],
    what: str,
    leave: Callable[[str], None],
) -> list[Observation]:
    points: list[Observation] = []
    for label, row, measured_s in rows:
        if measured_s is None:
            leave("no time was measured")
            continue
        try:
            seconds(row, ProfileSpec())
        except NoPredictionError as error:
            leave(str(error))
            continue
        group = label if what == "collective" else f"{kernel_class(row)}: {label}"
        points.append(MeasuredPoint(str(path), group, row, measured_s, seconds))
    return points
