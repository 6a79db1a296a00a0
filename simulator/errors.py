"""The exceptions of the program: `ConfigError` for input, `SimulationError` for a run.

A `ConfigError` carries every problem found, each with the place it comes from, so that a user
mends a run file in one go.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: a line of a file, a `--set` option, a preset of the catalog."""

    source: str
    """As the user named it: a path, `--set PATH=VALUE`, `preset NAME`."""
    line: int = 0
    """From 1; 0 where lines have no meaning."""

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the input."""

    message: str
    path: str = ""
    """Dotted key path, such as `parallelism.pipeline_schedule`; empty for a whole file."""
    place: Place | None = None

    def __str__(self) -> str:
        # `--set a.b=1` already names the path a.b
        named = self.place is not None and self.place.source.startswith(f"--set {self.path}=")
        parts = ("" if self.place is None else str(self.place), "" if named else self.path)
        return ": ".join([*(part for part in parts if part), self.message])


class ConfigError(ValueError):
    """The input is wrong: one line per problem, in the order of the files.

    >>> print(ConfigError([Problem("missing key", "training.seq_length", Place("run.yaml", 3))]))
    run.yaml:3: training.seq_length: missing key
    """

    def __init__(self, problems: str | Problem | Iterable[Problem]) -> None:
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (
            (problems,) if isinstance(problems, Problem) else tuple(problems)
        )
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SimulationError(RuntimeError):
    """The input is right but the run cannot go on: ranks that wait for each other, say."""
