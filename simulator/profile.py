"""A run of operations with fixed durations, as one curve of time.

A pass executes the same operations for every microbatch; nothing outside changes their order. So
they are priced once, laid end to end, and executed as one event; when communication beside them
starts or stops, the position inside is found and the rest is stretched. This equals executing
them one by one, exactly.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from simulator.trace import Piece


class Slowdown(NamedTuple):
    """Extra time per second of undisturbed work, of compute, and of traffic inside passes over
    NVLink and over the network."""

    compute: float = 0.0
    link: float = 0.0
    network: float = 0.0


QUIET = Slowdown()


@dataclass(frozen=True, slots=True)
class Segment:
    """One operation: its undisturbed duration and the parts of it that neighbours slow down."""

    pieces: tuple[Piece, ...]
    duration_s: float
    compute_s: float = 0.0
    """Part of the duration spent on the SMs."""
    link_s: float = 0.0
    """Part bound by NVLink, of a group that communicates inside the pass; and
    network_s, by the network between nodes."""
    network_s: float = 0.0
    parameters: int = 0
    """Weights it reads first (forward) or completes the gradient of (backward)."""
    axis: str = ""
    """Axis of its collective, if it has one: that group then enters and leaves it together."""
    traffic_bytes: float = 0.0
    """Bytes that the collective sends."""
    traffic_s: float = 0.0
    """Seconds it runs, covered by compute or not."""
    expert_parameters: int = 0
    """As `parameters`, weights of experts."""
    launches: int = 1
    """Operations that the host issues for it."""

    @property
    def synchronizes(self) -> bool:
        return self.traffic_bytes > 0


Clock: TypeAlias = tuple[float, ...]
"""What a clock shows at each bound of a profile: undisturbed seconds, or those that it takes."""


class Profile:
    """Segments end to end. Positions are undisturbed seconds from the start."""

    __slots__ = (
        "_clocks", "_compute", "_link", "_network", "bounds_s", "expert_parameters", "marks",
        "parameters", "segments",
    )  # fmt: skip

    def __init__(self, segments: Sequence[Segment], marks: Sequence[int] = ()) -> None:
        """`marks`: indices of the segments with which layers begin."""
        self.segments = tuple(segments)
        self.marks = tuple(marks)
        self.bounds_s = _running(s.duration_s for s in segments)
        self._compute = _running(s.compute_s for s in segments)
        self._link = _running(s.link_s for s in segments)
        self._network = _running(s.network_s for s in segments)
        self._clocks: dict[Slowdown, tuple[float, ...]] = {}
        self.parameters = tuple(accumulate((s.parameters for s in segments), initial=0))
        self.expert_parameters = tuple(
            accumulate((s.expert_parameters for s in segments), initial=0)
        )

    @property
    def duration_s(self) -> float:
        return self.bounds_s[-1]

    def clock(self, slowdown: Slowdown) -> "Clock":
        """Time at each bound when all is slowed, kept for the next to ask."""
        if slowdown is QUIET:
            return self.bounds_s
        clock = self._clocks.get(slowdown)
        if clock is None:
            clock = self._clocks[slowdown] = tuple(
                b + slowdown.compute * c + slowdown.link * n + slowdown.network * w
                for b, c, n, w in zip(
                    self.bounds_s, self._compute, self._link, self._network, strict=True
                )
            )
        return clock

    def traffic(self, start_s: float, end_s: float) -> dict[str, tuple[float, float]]:
        """Axis -> bytes sent and seconds spent by collectives between two segment bounds."""
        total: dict[str, tuple[float, float]] = {}
        for s in self._between(start_s, end_s):
            if s.synchronizes:
                num_bytes, seconds = total.get(s.axis, (0.0, 0.0))
                total[s.axis] = num_bytes + s.traffic_bytes, seconds + s.traffic_s
        return total

    def pieces(self, start_s: float, end_s: float) -> tuple[Piece, ...]:
        """The operations between two positions that fall on segment bounds."""
        return tuple(p for s in self._between(start_s, end_s) for p in s.pieces)

    def _between(self, start_s: float, end_s: float) -> tuple[Segment, ...]:
        first, last = bisect_left(self.bounds_s, start_s), bisect_left(self.bounds_s, end_s)
        return self.segments[first:last]


def read_clock(clock: Clock, from_: Clock, value_s: float) -> float:
    """The reading of a clock when another of the same profile shows `value_s`: the hands stand at
    the same place between the same marks. Before the start is the start, beyond the end the end."""
    if clock is from_:
        return value_s if value_s < clock[-1] else clock[-1]
    i = bisect_right(from_, value_s)
    if i == 0:
        return clock[0]
    if i == len(from_):
        return clock[-1]
    before_s, mark_s = from_[i - 1], clock[i - 1]
    return mark_s + (value_s - before_s) / (from_[i] - before_s) * (clock[i] - mark_s)


def _running(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0.0))
