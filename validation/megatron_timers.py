"""Megatron-LM's timers, in the layouts that its log options and releases give.

`(min, max) time across ranks (ms):`, `max time across ranks (ms):` and `times across ranks (ms):`
with a line for each timer (or rank) below, and until 2022 one line `time (ms) | name: value | ...`.
Values are per iteration. Source: Megatron-LM, megatron/core/timers.py and megatron/training.py.
"""

import re
from collections.abc import Set
from dataclasses import dataclass
from statistics import median

from validation.log_text import Line

_HEAD = re.compile(r"times? across ranks \(ms\):")
_ONE_LINE = re.compile(r"(?:^|\s)time \(ms\) \|(.*)")
_NUMBER = r"(\d{1,18}(?:\.\d*)?)"
_NAMED = re.compile(rf"^\s+([a-z][\w/-]*) \.*:\s*(?:\({_NUMBER}, {_NUMBER}\)|{_NUMBER})\s*$")
_GROUP = re.compile(r"^\s+([a-z][\w/-]*):\s*$")
_RANK = re.compile(rf"^\s+rank\s+\d+:\s*{_NUMBER}\s*$")
_BARRED = re.compile(rf"([a-z][\w/-]*):\s*{_NUMBER}")


@dataclass(frozen=True, slots=True)
class Timer:
    """Seconds per iteration of the fastest and the slowest rank."""

    min_s: float
    max_s: float


class TimerReader:
    """Collects timers, and after which iteration each was printed."""

    def __init__(self) -> None:
        self._values: dict[str, dict[int, list[float]]] = {}
        self._inside = False
        self._group = ""

    def take(self, line: Line, iteration_index: int) -> None:
        """Look at one line; `iteration_index` counts the iterations logged before, from 0."""
        if found := _ONE_LINE.search(line.text):
            for name, milliseconds in _BARRED.findall(found[1]):
                self._add(name, iteration_index, float(milliseconds))
        elif _HEAD.search(line.text):
            self._inside = True
            self._group = ""
        elif self._inside:
            self._inside = self._take_inside(line.text, iteration_index)

    def _take_inside(self, text: str, index: int) -> bool:
        """Whether the line belongs to the report."""
        if found := _NAMED.match(text):
            for value in found.groups()[1:]:
                if value is not None:
                    self._add(found[1], index, float(value))
        elif found := _GROUP.match(text):
            self._group = found[1]
        elif (found := _RANK.match(text)) and self._group:
            self._add(self._group, index, float(found[1]))
        else:
            return False
        return True

    def _add(self, name: str, index: int, milliseconds: float) -> None:
        self._values.setdefault(name, {}).setdefault(index, []).append(milliseconds * 1e-3)

    def medians(self, indices: Set[int]) -> dict[str, Timer]:
        """Timers that were printed after the iterations at `indices`, each its median."""
        timers = {}
        for name, reports in self._values.items():
            kept = [values for index, values in reports.items() if index in indices]
            if kept:
                timers[name] = Timer(median(map(min, kept)), median(map(max, kept)))
        return timers
