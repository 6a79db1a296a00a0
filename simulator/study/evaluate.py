"""Simulating one point of a study: what a worker does, here or on another machine."""

from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal

from simulator.errors import SimulationError
from simulator.runspec import RunSpec
from simulator.simulate import simulate

Status = Literal["ok", "invalid", "impossible", "failed"]
"""`invalid`: the run file would be refused; `impossible`: the run cannot go on (a deadlock);
`failed`: a fault of a machine or of the program, tried again when the study is resumed."""


@dataclass(frozen=True, slots=True)
class Task:
    """One point to simulate; `number` counts the points of a study from 0."""

    number: int
    run: RunSpec
    fold: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a point: a result (the contract's keys), or a reason why there is none."""

    status: Status
    reason: str = ""
    result: dict[str, Any] | None = None
    wall_s: float = 0.0


def evaluate(task: Task) -> Outcome:
    """Simulate a point; whatever goes wrong is told in the outcome."""
    began_s = perf_counter()
    try:
        result = _simulated(task)
    except SimulationError as error:
        return Outcome("impossible", str(error), None, perf_counter() - began_s)
    except MemoryError:
        return Outcome("failed", "out of memory", None, perf_counter() - began_s)
    except Exception as error:  # one point must not end a study of thousands
        reason = f"internal error: {type(error).__name__}: {error}"
        return Outcome("failed", reason, None, perf_counter() - began_s)
    return Outcome("ok", "", result, perf_counter() - began_s)


def _simulated(task: Task) -> dict[str, Any]:
    """The result as plain data, the same whenever it is asked for."""
    simulated = simulate(task.run, fold=task.fold)
    for rank in simulated.program.ranks:
        rank.streams.clear()  # opens the cycle rank - task - exchange - rank: all is freed at once
    result = simulated.to_json()
    del result["simulation"]["wall_time_s"]
    return result
