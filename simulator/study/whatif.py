"""A what-if study from end to end: points loaded, those not yet known simulated, all remembered.

Nothing is kept only in memory: each outcome is in the store before the next is drawn, so a study
that is killed goes on where it was.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from simulator.loading import check_readable
from simulator.study.evaluate import Outcome, Task
from simulator.study.fingerprint import program_fingerprint
from simulator.study.points import Point, Scalar, load_point, own_values
from simulator.study.processes import Done, num_cores, run_in_processes
from simulator.study.store import Key, Store, Stored
from simulator.study.varied import Setting, Varied, combine

Execute = Callable[[Iterable[Task]], Iterator[Done]]
"""Simulates tasks, in any order."""
Progress = Callable[[int, int], None]
"""Called with points done and points in all."""


@dataclass(frozen=True)
class Study:
    """What is asked: variants of one run file."""

    run_file: str
    overrides: tuple[str, ...]
    varied: tuple[Varied, ...]
    zipped: bool = False
    fold: bool = True

    @property
    def is_two_way(self) -> bool:
        """Whether its points fill a plane."""
        return len(self.varied) == 2 and not self.zipped


@dataclass(frozen=True)
class Row:
    """One point and what came of it."""

    number: int
    point: Point
    outcome: Outcome


@dataclass(frozen=True)
class Answer:
    """The rows of a study in the order of its points, and what there is to say of older ones."""

    study: Study
    rows: tuple[Row, ...]
    own_values: tuple[Scalar, ...]
    """What the run has at each varied path without the study, None where it has nothing."""
    num_reused: int
    notes: tuple[str, ...]


def run_study(
    study: Study, store: Store, execute: Execute | None = None, progress: Progress | None = None
) -> Answer:
    """Answer a study, simulating only what the store does not hold.

    Raises `ConfigError` where the run file or the settings to vary cannot be read at all.
    """
    settings = combine(study.varied, study.zipped)
    check_readable(study.run_file)
    if execute is None:
        execute = partial(run_in_processes, processes=num_cores())
    return _Running(study, settings, store, progress).run(execute)


class _Running:
    def __init__(
        self,
        study: Study,
        settings: Sequence[tuple[Setting, ...]],
        store: Store,
        progress: Progress | None,
    ) -> None:
        self._study, self._settings, self._store = study, settings, store
        self._progress = progress or (lambda done, total: None)
        self._known = store.read(os.path.realpath(study.run_file))
        self._program = program_fingerprint()
        self._points: dict[int, Point] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._other_run = self._other_program = self._reused = 0

    def run(self, execute: Execute) -> Answer:
        self._tell()
        for task, outcome in execute(self._tasks()):
            self._keep(task.number, outcome)
        rows = tuple(
            Row(number, self._points[number], self._outcomes[number])
            for number in range(len(self._settings))
        )
        own = own_values(self._study.run_file, self._study.overrides, self._study.varied)
        return Answer(self._study, rows, own, self._reused, tuple(self._notes()))

    def _tasks(self) -> Iterator[Task]:
        """Points that must be simulated; others get their outcome on the way."""
        for number, settings in enumerate(self._settings):
            point = load_point(self._study.run_file, self._study.overrides, settings)
            self._points[number] = point
            known = self._still_true(point)
            if known is not None:
                self._outcomes[number] = known
                self._reused += 1
                self._tell()
            elif point.run is None:
                self._keep(number, Outcome("invalid", point.reason))
            else:
                yield Task(number, point.run, self._study.fold)

    def _still_true(self, point: Point) -> Outcome | None:
        stored = self._known.get(self._key(point))
        if stored is None or stored.outcome.status == "failed":
            return None
        if stored.program != self._program:
            self._other_program += 1
        elif stored.digest != point.digest:
            self._other_run += 1
        else:
            return stored.outcome
        return None

    def _keep(self, number: int, outcome: Outcome) -> None:
        point = self._points[number]
        self._store.write(self._key(point), Stored(point.digest, self._program, outcome))
        self._outcomes[number] = outcome
        self._tell()

    def _key(self, point: Point) -> Key:
        laid = [*self._study.overrides, *(f"{s.path}={s.text}" for s in point.settings)]
        text = json.dumps(laid if self._study.fold else [*laid, "--no-fold"], ensure_ascii=False)
        return Key(os.path.realpath(self._study.run_file), text)

    def _tell(self) -> None:
        self._progress(len(self._outcomes), len(self._settings))

    def _notes(self) -> Iterator[str]:
        if self._other_run:
            yield (
                f"{self._study.run_file} (or a file it names) has changed: "
                f"{self._other_run} points in {self._store.path} were computed again"
            )
        if self._other_program:
            yield (
                f"clustersim has changed (now {self._program}): "
                f"{self._other_program} points in {self._store.path} were computed again"
            )
