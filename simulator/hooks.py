"""What happens at bounds inside a pass: what it waits for before one, what is queued after one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

from simulator.engine import Task

Before: TypeAlias = Mapping[int, Callable[[], tuple[Task, ...]]]
"""Bound of a profile -> called when a pass gets there; returns what it then waits for."""
After: TypeAlias = Mapping[int, Callable[[], None]]
"""Bound of a profile -> called when a pass has got there, to queue what begins then."""


def joined_before(one: Before, other: Before) -> Before:
    """Both; where they share a bound, the pass waits for what either says."""

    def waits(bound: int) -> tuple[Task, ...]:
        return tuple(task for hooks in (one, other) if bound in hooks for task in hooks[bound]())

    return {bound: partial(waits, bound) for bound in (*one, *other)}


def joined_after(one: After, other: After) -> After:
    """Both, one after the other where they share a bound."""

    def queue(bound: int) -> None:
        for hooks in (one, other):
            if bound in hooks:
                hooks[bound]()

    return {bound: partial(queue, bound) for bound in (*one, *other)}
