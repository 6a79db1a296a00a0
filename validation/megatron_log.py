"""What a Megatron-LM training log says: step times, TFLOP/s, memory, parameters, timers, arguments.

Reads the wordings of Megatron-LM from 2019 to 2026 and of its relatives (Megatron-DeepSpeed,
Megatron Bridge, NeMo, Primus): what stands between bars is `name: value`, `name=value` or
`name value`. Sources of the wordings: Megatron-LM, megatron/training/training.py, utils.py,
theoretical_memory_usage.py and megatron/core/timers.py of several releases; Megatron-DeepSpeed,
megatron/training.py; Megatron Bridge, training/utils/train_utils.py.

Megatron's MB are 2^20 bytes; Megatron Bridge's GB are 10^9.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from validation.log_text import Line, cleaned_lines, wrong
from validation.megatron_arguments import Argument, ArgumentReader
from validation.megatron_timers import Timer, TimerReader

WARM_UP = 2
"""Iterations dropped after each start: they compile, tune and allocate."""
MIB = 2.0**20
_UNITS = {"B": 1.0, "KB": 2.0**10, "MB": MIB, "GB": 2.0**30}
_DECIMAL = {"bytes": 1.0, "megabytes": 1e6, "gigabytes": 1e9}
_NUMBER = r"(\d{1,18}(?:\.\d*)?(?:[eE][-+]?\d{1,2})?)"

_ITERATION = re.compile(r"\biteration\s*=?\s*(\d{1,18})\s*/\s*\d+")
_TIME = re.compile(
    r"(?:elapsed[ _])?time[ _]per[ _]iteration[ _]*\(?(ms|s)\)?\s*[:=]?\s*" + _NUMBER, re.IGNORECASE
)
_NEMO_TIME = re.compile(r"train_step_timing in \(?s\)?\s*:\s*" + _NUMBER)
_TFLOPS = re.compile(
    r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPS_per_GPU|\[LM\]-?TFLOPs|(?<![\]\w-])TFLOPs)"
    r"\s*[:=]\s*" + _NUMBER
)
_STEP_TIME = re.compile(r"Step Time\s*:\s*[\d.]+\s*s.*?" + _NUMBER + r"\s*MODEL_TFLOP/s/GPU")
_BATCH = re.compile(r"\bglobal[ _]batch[ _]size\s*[:=]\s*(\d{1,18})")
_SKIPPED = re.compile(r"number[ _]of[ _]skipped[ _]iterations\s*[:=]\s*(\d{1,18})")

_MEMORY = re.compile(
    r"(?:\[Rank (\d{1,9})\] *)?\(?after (\d{1,18}) iterations\)? memory \((\w+)\)\s*\|(.*)"
)
_MEMORY_FIELD = re.compile(r"([A-Za-z][\w -]*?)\s*(?:\((\w+)\))?\s*:\s*" + _NUMBER)
_NEMO_MEMORY = re.compile(r"\bpeak_memory_usage\s*:\s*" + _NUMBER)
_PEAK = re.compile(rf"\ballocated_peak_MB\s+{_NUMBER}(?:\s+reserved_peak_MB\s+{_NUMBER})?")
_THEORETICAL = re.compile(
    rf"Theoretical memory footprints: weight and optimizer={_NUMBER} MB"
    rf"(?:, activation={_NUMBER} MB, total={_NUMBER} MB)?"
)
_PARAMETERS = re.compile(
    r"number of parameters on .*?rank \(?((?:\d{1,9}[, ]*)+)\)?\s*:\s*(\d{1,18})"
)
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory", re.IGNORECASE)
_START = re.compile(r"^\s*(?:training \.\.\.|done with setup)")


@dataclass(frozen=True, slots=True)
class Iteration:
    """One line of progress; times are means over the iterations since the last one."""

    number: int
    seconds: float
    line: int
    attempt: int = 0
    """Counts the starts of training in the file."""
    tflops: float | None = None
    """Per GPU, as the trainer counts them, in 1e12 FLOP/s."""
    global_batch_size: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """What PyTorch's allocator says on one rank, bytes; None where the line does not tell."""

    rank: int
    after_iterations: int | None
    line: int
    max_allocated_bytes: float | None = None
    max_reserved_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class TheoreticalMemory:
    """Megatron's own estimate: it leaves out recomputation and unfused attention's scores."""

    weights_and_optimizer_bytes: float
    activation_bytes: float | None
    total_bytes: float | None
    line: int


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Weights of one model-parallel rank; `rank` is (tensor, pipeline), older logs: (tensor,)."""

    rank: tuple[int, ...]
    parameters: int
    line: int


@dataclass(frozen=True)
class MegatronLog:
    """A log, read. `iterations` are all of them; the properties leave the warm-up out."""

    path: Path
    iterations: tuple[Iteration, ...]
    memory: tuple[MemoryReport, ...] = ()
    theoretical: TheoreticalMemory | None = None
    parameters: tuple[ParameterCount, ...] = ()
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    timers: Mapping[str, Timer] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def steady(self) -> tuple[Iteration, ...]:
        """The iterations that count."""
        return steady_iterations(self.iterations)

    @property
    def step_time_s(self) -> float:
        """Median over the iterations that count; a single slow one does not move it."""
        return median(i.seconds for i in self.steady)

    @property
    def tflops_per_gpu(self) -> float | None:
        """Median as logged, None where the log has none."""
        logged = [i.tflops for i in self.steady if i.tflops is not None]
        return median(logged) if logged else None

    @property
    def max_allocated_bytes(self) -> float | None:
        """Of the fullest rank that reports."""
        return _most(report.max_allocated_bytes for report in self.memory)

    @property
    def max_reserved_bytes(self) -> float | None:
        """Of the rank that reserves most."""
        return _most(report.max_reserved_bytes for report in self.memory)


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def steady_iterations(iterations: Sequence[Iteration]) -> tuple[Iteration, ...]:
    """Without warm-up, and of the global batch size that most of the rest have.

    A line that averages many iterations is one line of warm-up. Where nothing would be left, the
    last line is.
    """
    attempts = sorted({i.attempt for i in iterations})
    kept = [i for attempt in attempts for i in _after_warm_up(iterations, attempt)]
    if not kept:
        return tuple(iterations[-1:])
    sizes = Counter(i.global_batch_size for i in kept)
    most = max(sizes, key=lambda size: (sizes[size], size or 0))
    return tuple(i for i in kept if i.global_batch_size == most)


def _after_warm_up(iterations: Sequence[Iteration], attempt: int) -> Sequence[Iteration]:
    own = [i for i in iterations if i.attempt == attempt]
    every = own[1].number - own[0].number if len(own) > 1 else 1
    return own[WARM_UP if every <= 1 else 1 :]


def read_megatron_log(path: Path) -> MegatronLog:
    """Read a training log, plain or gzipped.

    Raises `ConfigError` for a file that is no text, or has no iteration with a time: it says what
    was looked for and what was found.
    """
    reader = _Reader()
    last = ""
    for line in cleaned_lines(path):
        reader.take(line)
        last = line.text.strip() or last
    if not reader.iterations:
        raise wrong(path, reader.nothing_found(last), reader.untimed_line)
    return reader.log(path)


class _Reader:
    """Collects facts line by line."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []
        self.untimed_line = 0
        self._untimed = 0
        self._memory: list[MemoryReport] = []
        self._theoretical: TheoreticalMemory | None = None
        self._parameters: dict[tuple[int, ...], ParameterCount] = {}
        self._arguments = ArgumentReader()
        self._timers = TimerReader()
        self._attempt = 0
        self._started = False
        self._tflops_before: float | None = None
        self._skipped = 0
        self._out_of_memory_line = 0
        self._foreign = ""

    def take(self, line: Line) -> None:
        """Look at one line."""
        text = line.text
        if (found := _ITERATION.search(text)) and "|" in text:
            self._take_iteration(line, int(found[1]))
        elif "memory" in text or "_peak_MB" in text:
            self._take_memory(line)
        elif found := _PARAMETERS.search(text):
            rank = tuple(int(word) for word in found[1].split(",") if word.strip())
            self._parameters[rank] = ParameterCount(rank, int(found[2]), line.number)
        elif found := _STEP_TIME.search(text):
            self._tflops_before = float(found[1])
        elif _START.match(text):
            self._started = True
        if _OUT_OF_MEMORY.search(text) and not self._out_of_memory_line:
            self._out_of_memory_line = line.number
        self._foreign = self._foreign or _foreign(text)
        self._arguments.take(line)
        self._timers.take(line, iteration_index=len(self.iterations) - 1)

    def _take_iteration(self, line: Line, number: int) -> None:
        seconds = _seconds(line.text)
        if seconds is None:
            self._untimed += 1
            self.untimed_line = self.untimed_line or line.number
            return
        before = self.iterations[-1] if self.iterations else None
        if before and before.number == number and before.seconds == seconds:
            return  # several ranks' output in one file
        if before and (number <= before.number or self._started):
            self._attempt += 1
        self._started = False
        tflops, batch = _TFLOPS.search(line.text), _BATCH.search(line.text)
        self.iterations.append(
            Iteration(
                number, seconds, line.number, self._attempt,
                float(tflops[1]) if tflops else self._tflops_before,
                int(batch[1]) if batch else None,
            )
        )  # fmt: skip
        self._tflops_before = None
        if skipped := _SKIPPED.search(line.text):
            self._skipped += int(skipped[1])
        if nemo := _NEMO_MEMORY.search(line.text):
            self._memory.append(MemoryReport(0, number, line.number, float(nemo[1])))

    def _take_memory(self, line: Line) -> None:
        if found := _MEMORY.search(line.text):
            self._memory.append(_memory_report(found, line.number))
        elif found := _PEAK.search(line.text):
            # what the script behind our H200 logs prints after the last iteration
            reserved = float(found[2]) * MIB if found[2] else None
            self._memory.append(MemoryReport(0, None, line.number, float(found[1]) * MIB, reserved))
        elif found := _THEORETICAL.search(line.text):
            parts = [None if part is None else float(part) * MIB for part in found.groups()]
            assert parts[0] is not None
            self._theoretical = TheoreticalMemory(parts[0], parts[1], parts[2], line.number)

    def nothing_found(self, last: str) -> str:
        """Why this is no log that can be used."""
        looked = "'iteration N/ M | ... | elapsed time per iteration (ms): T |'"
        if self._untimed:
            return (
                f"no iteration has a time: {self._untimed} iteration lines, this the first, are "
                f"cut off or lack it; looked for {looked}"
            )
        if self._out_of_memory_line:
            return (
                f"the run ended out of memory (line {self._out_of_memory_line}) before an "
                f"iteration was logged; looked for {looked}"
            )
        if self._foreign:
            return f"is {self._foreign}, no training log; looked for {looked}"
        arguments = len(self._arguments.found)
        held = f"{arguments} arguments, but no iteration" if arguments else "no iteration"
        ends = f"; it ends with {last[:80]!r}" if last else ""
        return f"has {held}; looked for {looked}{ends}"

    def log(self, path: Path) -> MegatronLog:
        """All that was found."""
        return MegatronLog(
            path, tuple(self.iterations), tuple(self._memory), self._theoretical,
            tuple(self._parameters[rank] for rank in sorted(self._parameters)),
            self._arguments.found, self._timers.medians(self._steady_indices()),
            tuple(self._notes()),
        )  # fmt: skip

    def _steady_indices(self) -> frozenset[int]:
        steady = set(steady_iterations(self.iterations))
        return frozenset(i for i, one in enumerate(self.iterations) if one in steady)

    def _notes(self) -> Iterable[str]:
        steady = steady_iterations(self.iterations)
        warm = sum(len(self._of(a)) - len(_after_warm_up(self.iterations, a)) for a in self._all())
        if warm < len(self.iterations):
            yield f"median of {len(steady)} iterations; the first {warm} are warm-up"
        else:
            yield f"only {len(self.iterations)} iterations logged: the last one, warm-up included"
        if len(sizes := {i.global_batch_size for i in self.iterations}) > 1:
            yield f"{len(sizes)} global batch sizes logged: used is {steady[0].global_batch_size}"
        if self._attempt:
            yield f"training starts {self._attempt + 1} times in this log"
        if self._untimed:
            yield f"{self._untimed} iteration lines without a time left out (cut off?)"
        if self._skipped:
            yield f"{self._skipped} iterations skipped the optimizer (loss scale)"
        if self._out_of_memory_line:
            yield f"the run ended out of memory (line {self._out_of_memory_line})"
        reports = [r.after_iterations for r in self._memory if r.max_allocated_bytes is not None]
        if reports and all(after == 1 for after in reports):
            yield (
                "memory is reported after the first iteration only, whose passes ran before the "
                "optimizer's state was allocated: later ones may have needed more"
            )

    def _all(self) -> range:
        return range(self._attempt + 1)

    def _of(self, attempt: int) -> list[Iteration]:
        return [i for i in self.iterations if i.attempt == attempt]


def _seconds(text: str) -> float | None:
    if found := _TIME.search(text):
        value = float(found[2]) * (1e-3 if found[1].lower() == "ms" else 1.0)
    elif found := _NEMO_TIME.search(text):
        value = float(found[1])
    else:
        return None
    return value if value > 0 else None


def _memory_report(found: re.Match[str], line: int) -> MemoryReport:
    """`allocated`, `reserved` (until 2020 `cached`), their `max`, in the unit of the line's head
    or of the field's own name (Megatron Bridge: `mem-max-allocated-gigabytes`)."""
    values: dict[str, float] = {}
    for name, own_unit, number in _MEMORY_FIELD.findall(found[4]):
        words = name.lower().replace("-", " ").split()
        scale = _UNITS.get(own_unit or found[3], MIB)
        scale = next((_DECIMAL[word] for word in words if word in _DECIMAL), scale)
        if "max" in words:
            kind = "reserved" if {"reserved", "cached"} & set(words) else ""
            kind = "allocated" if "allocated" in words else kind
            values.setdefault(kind, float(number) * scale)
    return MemoryReport(
        int(found[1] or 0), int(found[2]), line, values.get("allocated"), values.get("reserved")
    )


def _foreign(text: str) -> str:
    """What else this line would be of."""
    if "out-of-place" in text and "in-place" in text:
        return "output of nccl-tests"
    if text.lstrip().startswith('{"schemaVersion"') or '"traceEvents"' in text:
        return "a profiler trace"
    return ""
