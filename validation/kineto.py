"""Seconds per class of kernel, and idle time, from a PyTorch profiler (Kineto) trace of one rank.

Reads the JSON that `torch.profiler` exports, plain or gzipped, event by event; or a table (CSV) of
kernels with the columns name, cat, start_us, dur_us, stream. Steps are those that the profiler
marks (`ProfilerStep#N`); without marks the whole trace is one.
"""

import csv
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TextIO

from validation.json_stream import ArrayReader, BrokenJsonError
from validation.kernel_names import COMMUNICATION, KernelClass, group_axis, kernel_class
from validation.log_text import opened, wrong

MICROSECOND = 1e-6
ON_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
"""Categories of events that occupy the GPU; capitals: PyTorch 1.8."""
ON_HOST = frozenset({"cpu_op", "cuda_runtime", "cuda_driver", "python_function", "ac2g", "fwdbwd"})
"""Categories that are passed over unread."""
TABLE_COLUMNS = frozenset({"name", "cat", "start_us", "dur_us"})
_MARK = "ProfilerStep#"
_HEAVIEST = 12
"""Kernels kept by name."""
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d+)')
_DEVICE = re.compile(r'"deviceProperties"\s*:\s*\[\s*\{[^{}]*?"name"\s*:\s*"([^"]*)"')


class HeavyKernel(NamedTuple):
    """One of the kernels that take most time: seconds and calls per step."""

    name: str
    kernel_class: KernelClass
    seconds: float
    calls: float


@dataclass(frozen=True)
class KernelTrace:
    """A trace, read. All seconds and counts are per step and GPU."""

    path: Path
    num_steps: int
    step_time_s: float
    """Median of the marked steps; without marks, from the first kernel to the end of the last."""
    seconds: Mapping[KernelClass, float]
    """Sum of durations by class; kernels that run side by side count both."""
    calls: Mapping[KernelClass, float]
    busy_s: float
    """Some kernel runs."""
    compute_busy_s: float
    """Some kernel that is no communication runs."""
    axis_seconds: Mapping[str, float] = field(default_factory=dict)
    """Communication by the axis of its group, where the trace names it."""
    heaviest: tuple[HeavyKernel, ...] = ()
    peak_allocated_bytes: float | None = None
    """If memory was profiled."""
    device: str = ""
    rank: int | None = None
    """Global rank, where the profiler wrote it down."""
    notes: tuple[str, ...] = ()

    @property
    def idle_s(self) -> float:
        """No kernel runs."""
        return max(0.0, self.step_time_s - self.busy_s)

    @property
    def communication_s(self) -> float:
        """Sum over NCCL's and other communication kernels; they also wait for their peers."""
        return sum(self.seconds.get(kind, 0.0) for kind in COMMUNICATION)

    @property
    def exposed_communication_s(self) -> float:
        """Communication while no compute runs."""
        return max(0.0, self.busy_s - self.compute_busy_s)


class _Event(NamedTuple):
    """An event that counts, times in microseconds."""

    name: str
    category: str
    start: float
    duration: float
    args: Mapping[str, Any]


def read_kineto(path: Path) -> KernelTrace:
    """Read a trace (.json, .json.gz) or a table of kernels (.csv, .csv.gz).

    Raises `ConfigError` for a file that is neither, is cut off or broken, or holds no kernels.
    """
    collected = _Collected()
    with opened(path) as text:
        if _is_table(path):
            for event in _table_events(path, text):
                collected.take(event)
        else:
            _take_json(path, text, collected)
    if not collected.num_kernels:
        raise wrong(path, collected.nothing_found())
    return collected.trace(path)


def looks_like_trace(path: Path) -> bool:
    """Whether a file is JSON or a table of kernels, and not a log. Raises as `read_kineto` does."""
    with opened(path) as text:
        start = text.read(4096)
    return bool(re.match(r"\s*(?:\{|\[\s*(?:\{|\]))", start)) or _has_table_head(start)


def _is_table(path: Path) -> bool:
    with opened(path) as text:
        return _has_table_head(text.read(4096))


def _has_table_head(start: str) -> bool:
    return set(start.partition("\n")[0].strip().split(",")) >= TABLE_COLUMNS


def _take_json(path: Path, text: TextIO, collected: "_Collected") -> None:
    reader = ArrayReader(text, "traceEvents")
    try:
        for item in reader.items():
            category = item.get("cat") if isinstance(item, dict) else None
            if isinstance(category, str) and category in ON_HOST:
                collected.skip(category)  # most of a trace
            elif event := _event(item):
                collected.take(event)
    except BrokenJsonError as error:
        raise wrong(
            path, f"is no whole PyTorch profiler trace (JSON with traceEvents): {error}"
        ) from None
    if found := _DEVICE.search(reader.head):
        collected.device = found[1]
    if found := _RANK.search(reader.head):
        collected.rank = int(found[1])


def _event(item: Any) -> _Event | None:
    """The parts of a complete event that are used; None for others."""
    if not isinstance(item, dict) or item.get("ph") not in ("X", "i"):
        return None
    name, category = item.get("name"), item.get("cat", "")
    args = item.get("args")
    try:
        start, duration = float(item.get("ts", 0.0)), float(item.get("dur", 0.0))
    except (TypeError, ValueError, OverflowError):
        return None
    if not (isfinite(start) and isfinite(duration) and duration >= 0):
        return None
    if not isinstance(name, str) or not isinstance(category, str):
        return None
    return _Event(name, category, start, duration, args if isinstance(args, dict) else {})


def _table_events(path: Path, text: TextIO) -> Iterator[_Event]:
    rows = csv.DictReader(text)
    try:
        for row in rows:
            try:
                start, duration = float(row["start_us"]), float(row["dur_us"])
            except (TypeError, ValueError):
                raise wrong(path, "start_us and dur_us must be numbers", rows.line_num) from None
            if not (isfinite(start) and isfinite(duration) and duration >= 0):
                raise wrong(path, "start_us and dur_us must be finite", rows.line_num)
            yield _Event(row["name"] or "", row["cat"] or "", start, duration, {})
    except csv.Error as error:
        raise wrong(path, f"is no table: {error}", rows.line_num) from None


class _Kernel(NamedTuple):
    """What tells one sort of kernel from another."""

    name: str
    kernel_class: KernelClass
    axis: str


class _Device:
    """The kernels of one GPU: start and end in microseconds, and which of the sorts each is."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.ends = array("d")
        self.sorts = array("l")

    def in_order(self) -> Iterator[tuple[float, float, int]]:
        """Start, end and sort of each kernel by its start."""
        for i in sorted(range(len(self.starts)), key=self.starts.__getitem__):
            yield self.starts[i], self.ends[i], self.sorts[i]


class _Collected:
    """Kernels by device, and the marks of steps; times in microseconds."""

    def __init__(self) -> None:
        self.num_kernels = 0
        self.device = ""
        self.rank: int | None = None
        self._sorts: list[_Kernel] = []
        self._known: dict[tuple[str, str, str], int] = {}
        self._devices: dict[object, _Device] = {}
        self._host_marks: dict[str, tuple[float, float]] = {}
        self._gpu_marks: dict[str, tuple[float, float]] = {}
        self._others: Counter[str] = Counter()
        self._peak_bytes: float | None = None

    def take(self, event: _Event) -> None:
        """Look at one event."""
        if event.category in ON_GPU:
            self._take_kernel(event)
        elif event.name.startswith(_MARK):
            marks = self._gpu_marks if event.category.startswith("gpu") else self._host_marks
            marks[event.name] = (event.start, event.start + event.duration)
        elif event.name == "[memory]" and event.args.get("Device Type") == 1:
            total = event.args.get("Total Allocated")
            if isinstance(total, int | float):
                self._peak_bytes = max(self._peak_bytes or 0.0, float(total))
        else:
            self._others[event.category or "other"] += 1

    def skip(self, category: str) -> None:
        """Count an event that is of no use."""
        self._others[category] += 1

    def _take_kernel(self, event: _Event) -> None:
        self.num_kernels += 1
        args = event.args
        collective = str(args.get("Collective name", ""))
        group = str(args.get("Process Group Description", ""))
        sort = self._known.get((event.name, collective, group))
        if sort is None:
            sort = self._known[event.name, collective, group] = len(self._sorts)
            kind = kernel_class(event.name, collective)
            axis = group_axis(group) if kind in COMMUNICATION else ""
            self._sorts.append(_Kernel(event.name, kind, axis))
        number = args.get("device", 0)
        number = number if isinstance(number, int) else 0
        device = self._devices.get(number)
        if device is None:
            device = self._devices[number] = _Device()
        device.starts.append(event.start)
        device.ends.append(event.start + event.duration)
        device.sorts.append(sort)

    def nothing_found(self) -> str:
        """Why there is nothing to tell."""
        found = ", ".join(f"{count} of {name}" for name, count in self._others.most_common(4))
        return (
            f"holds no GPU kernels (events of category kernel), but {found or 'no events'}; was "
            "the profiler told to record CUDA activities?"
        )

    def trace(self, path: Path) -> KernelTrace:
        """All that was found, per step and GPU."""
        bounds, lengths, notes = self._steps()
        totals = _Totals([sort.kernel_class in COMMUNICATION for sort in self._sorts])
        for device in self._devices.values():
            totals.add_device(device, bounds[0][0], bounds[-1][1])
        if not any(totals.calls):
            raise wrong(path, f"none of its {self.num_kernels} kernels lies in a marked step")
        num_gpus = len(self._devices)
        if num_gpus > 1:
            notes.append(f"kernels of {num_gpus} GPUs in one trace: mean of them")
        per_step = 1.0 / (num_gpus * len(bounds))
        seconds: defaultdict[KernelClass, float] = defaultdict(float)
        calls: defaultdict[KernelClass, float] = defaultdict(float)
        axes: defaultdict[str, float] = defaultdict(float)
        heaviest = []
        for sort, kernel in enumerate(self._sorts):
            name, kind, axis = kernel
            time_s = totals.durations[sort] * per_step * MICROSECOND
            seconds[kind] += time_s
            calls[kind] += totals.calls[sort] * per_step
            axes[axis] += time_s
            heaviest.append(HeavyKernel(name, kind, time_s, totals.calls[sort] * per_step))
        heaviest.sort(key=lambda k: -k.seconds)
        return KernelTrace(
            path, len(bounds), median(lengths) * MICROSECOND,
            dict(sorted(seconds.items(), key=lambda item: -item[1])), dict(calls),
            totals.busy * per_step * MICROSECOND,
            totals.compute_busy * per_step * MICROSECOND, {a: s for a, s in axes.items() if a},
            tuple(heaviest[:_HEAVIEST]), self._peak_bytes, self.device, self.rank, tuple(notes),
        )  # fmt: skip

    def _steps(self) -> tuple[list[tuple[float, float]], list[float], list[str]]:
        """Bounds of the steps on the GPU, how long each takes, and what to know of them."""
        # the GPU lags behind the host: kernels are told apart by its own marks, if it has any
        windows = _from_mark_to_mark(self._gpu_marks or self._host_marks)
        if windows:
            marks = _from_mark_to_mark(self._host_marks or self._gpu_marks)
            return windows, [end - start for start, end in marks], []
        first = min(min(device.starts) for device in self._devices.values())
        last = max(max(device.ends) for device in self._devices.values())
        note = "no ProfilerStep marks: the whole trace is taken as one step"
        return [(first, last)], [last - first], [note]


def _from_mark_to_mark(marks: Mapping[str, tuple[float, float]]) -> list[tuple[float, float]]:
    """Each step lasts until the next begins, the last one until its own end."""
    found = sorted(marks.values())
    return [(a[0], b[0]) for a, b in pairwise(found)] + found[-1:]


class _Totals:
    """Microseconds and calls of each sort of kernel, and the time in which any runs."""

    def __init__(self, is_communication: Sequence[bool]) -> None:
        self.durations = [0.0] * len(is_communication)
        self.calls = [0] * len(is_communication)
        self.busy = 0.0
        self.compute_busy = 0.0
        self._is_communication = is_communication

    def add_device(self, device: _Device, since: float, until: float) -> None:
        """Count the kernels of one GPU that start between two moments."""
        busy_until = compute_until = float("-inf")
        for start, end, sort in device.in_order():
            if not since <= start < until:
                continue
            self.durations[sort] += end - start
            self.calls[sort] += 1
            self.busy += max(0.0, end - max(start, busy_until))
            busy_until = max(busy_until, end)
            if not self._is_communication[sort]:
                self.compute_busy += max(0.0, end - max(start, compute_until))
                compute_until = max(compute_until, end)
