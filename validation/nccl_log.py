"""Measured collectives from what nccl-tests prints (`all_reduce_perf` and its siblings).

Reads tables by the names in their head, so that old and new layouts (with or without redop and
root, `error` or `#wrong`, `bytes` for `size`) are one. Ranks and nodes come from the list of
devices above the table. Source of the layouts: NVIDIA nccl-tests, src/common.cu and src/*.cu of
releases 2017 to 2026. Its GB are 10^9.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from validation.log_text import Line, cleaned_lines, wrong

GB = 1e9
_PROGRAM = re.compile(
    r"(?<![a-z_])(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|"
    r"scatter|hypercube)(?:_perf|_bench)\b"
)
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_RANK = re.compile(
    r"^\s*#?\s*Rank\s+(\d{1,9})\b.*?\bon\s+(\S+)\s+device\s+\d+(?:\s+\[\w+\]\s*(.*\S))?"
)
_STARTS = re.compile(r"nThread\s+(\d{1,9})\s+nGpus\s+(\d{1,9})")
_HEAD = re.compile(r"^\s*#?\s*(?:size|bytes)\s.*\balgbw\s+busbw\b")
_UNITS = re.compile(r"^\s*#?\s*\(B\).*?\((us|ms|s)\)")
_NUMBER = re.compile(r"\d{1,18}(?:\.\d*)?(?:[eE][-+]?\d{1,2})?")
_INTEGER = re.compile(r"\d{1,18}")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIDE = ("time", "algbw", "busbw")
_BUS_FACTORS = {"all_reduce": 2.0}
"""busbw over algbw is this times (n - 1) / n (nccl-tests, doc/PERFORMANCE.md); 1 for the rest of
the collectives among all ranks."""
_RATIO_TOLERANCE = 0.02  # of printed, rounded bandwidths


@dataclass(frozen=True, slots=True)
class NcclPoint:
    """One message size, out of or in place; bandwidths in bytes/s as nccl-tests counts them."""

    collective: str
    """all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast, ..."""
    num_bytes: int
    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    ranks: int
    nodes: int
    in_place: bool
    line: int
    gpu: str = ""
    """As the driver names it; empty where the list of devices is missing."""
    num_wrong: int | None = None
    """Elements that came out wrong; None if that was not checked."""


@dataclass(frozen=True)
class NcclLog:
    """All points of a file, in its order."""

    path: Path
    points: tuple[NcclPoint, ...]
    notes: tuple[str, ...] = ()


def read_nccl_log(path: Path, collective: str | None = None) -> NcclLog:
    """Read the output of one or more tests.

    `collective` names it where the text does not (only the program's name, such as
    `all_reduce_perf`, tells; an all_reduce is known by its bandwidths too).

    Raises `ConfigError` for a file that is no such output, a row that is cut off, and where the
    collective or the number of ranks cannot be told.
    """
    reader = _Reader(path, collective)
    for line in cleaned_lines(path):
        reader.take(line)
    if not reader.points:
        raise wrong(path, reader.nothing_found())
    return NcclLog(path, tuple(reader.points), tuple(reader.notes()))


@dataclass
class _Test:
    """What stands above a table."""

    collective: str = ""
    ranks: dict[int, str] = field(default_factory=dict)
    """Rank -> host."""
    gpu: str = ""
    gpus_told: int = 0
    columns: tuple[str, ...] = ()
    seconds: float = 0.0
    """Of the unit of time; 0 where no line of units told."""


class _Reader:
    def __init__(self, path: Path, collective: str | None) -> None:
        self.points: list[NcclPoint] = []
        self._path = path
        self._given = _NAMES.get(collective or "", collective or "")
        named = _PROGRAM.search(path.name)
        self._test = _Test(_canonical(named[1]) if named else "")
        self._lines = 0
        self._heads = 0

    def take(self, line: Line) -> None:
        """Look at one line."""
        text, test = line.text, self._test
        self._lines += 1
        words = text.split()
        if program := _PROGRAM.search(text):
            test.collective = _canonical(program[1])
        if starts := _STARTS.search(text):
            self._test = _Test(test.collective, gpus_told=int(starts[1]) * int(starts[2]))
        elif rank := _RANK.match(text):
            test.ranks[int(rank[1])] = rank[2]
            test.gpu = test.gpu or rank[3] or ""
        elif _HEAD.match(text):
            test.columns = tuple(word for word in words if word != "#")
            test.seconds = 0.0
            self._heads += 1
        elif units := _UNITS.match(text):
            test.seconds = _SECONDS[units[1]]
        elif test.columns and len(words) > 2 and all(map(_INTEGER.fullmatch, words[:2])):
            self.points += self._row(words, line.number)

    def _row(self, words: Sequence[str], number: int) -> Iterator[NcclPoint]:
        """The points of a row, out of place first."""
        columns = self._test.columns
        if len(words) < len(columns):
            raise wrong(
                self._path,
                f"row is cut off: {len(words)} of {len(columns)} columns ({' '.join(columns)})",
                number,
            )
        size = int(words[0])
        for side, at in enumerate(i for i, name in enumerate(columns) if name == "time"):
            values = dict(zip(columns[at : at + 4], words[at:], strict=False))
            # N/A where a test has no such variant
            if size > 0 and all(_NUMBER.fullmatch(values.get(n, "")) for n in _SIDE):
                yield self._point(size, values, bool(side), number)

    def _point(
        self, size: int, values: Mapping[str, str], in_place: bool, number: int
    ) -> NcclPoint:
        test = self._test
        time, algbw, busbw = (float(values[name]) for name in _SIDE)
        wrongs = values.get("#wrong", values.get("wrong", "N/A"))
        ranks = self._ranks(algbw, busbw, number)
        return NcclPoint(
            self._collective(algbw, busbw, ranks, number), size,
            time * (test.seconds or _guessed_unit(size, time, algbw)), algbw * GB, busbw * GB,
            ranks, len(set(test.ranks.values())) or 1, in_place, number, test.gpu,
            int(wrongs) if _INTEGER.fullmatch(wrongs) else None,
        )  # fmt: skip

    def _collective(self, algbw: float, busbw: float, ranks: int, number: int) -> str:
        told = self._given or self._test.collective
        if told:
            return told
        expected = 2.0 * (ranks - 1) / ranks
        # 2 (n - 1) / n is 1 for two ranks, as is a broadcast's
        if ranks > 2 and algbw > 0 and abs(busbw / algbw / expected - 1) < _RATIO_TOLERANCE:
            return "all_reduce"
        raise wrong(
            self._path,
            "does not tell which collective it is of; looked for the program's name, such as "
            "all_gather_perf, in its lines and in the file's name",
            number,
        )

    def _ranks(self, algbw: float, busbw: float, number: int) -> int:
        test = self._test
        if test.ranks:
            return max(test.ranks) + 1
        if test.gpus_told > 1:
            return test.gpus_told
        raise wrong(
            self._path,
            "does not tell the number of ranks; looked for the list of devices ('# Rank 0 Pid ... "
            "on HOST device 0') above the table",
            number,
        )

    def nothing_found(self) -> str:
        """Why there are no points."""
        looked = "a head '# size count type ... time algbw busbw' with rows below"
        if self._heads:
            return f"has the head of a table but no row; was the test cut off? Looked for {looked}"
        return f"is no output of nccl-tests: looked for {looked}, in {self._lines} lines"

    def notes(self) -> Iterator[str]:
        """What to know of the points."""
        bad = sum(1 for point in self.points if point.num_wrong)
        if bad:
            yield f"{bad} points computed wrong results (#wrong)"


def _canonical(program: str) -> str:
    return _NAMES.get(program, program)


def _guessed_unit(size: int, time: float, algbw: float) -> float:
    """Seconds of the unit in which size / time gives the printed bandwidth."""
    if time <= 0 or algbw <= 0:
        return _SECONDS["us"]
    actual_s = size / (algbw * GB)
    return min(_SECONDS.values(), key=lambda unit: abs(actual_s / (time * unit) - 1))
