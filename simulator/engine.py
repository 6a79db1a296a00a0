"""The event loop: streams of tasks on ranks, exchanges between them. Knows no transformers.

A stream walks its tasks in order, so it cannot overlap itself. A task starts when the stream is
free and everything it needs has ended. An exchange (collective, transfer, barrier) starts when its
last member arrives and ends for all at once; the network decides when. While it runs it may slow
its ranks' compute.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from operator import ge
from typing import Any, TypeAlias

import simpy

from hardware.links import Standing
from simulator.errors import SimulationError
from simulator.network import Network, Weights, postponed
from simulator.profile import QUIET, Clock, Profile, Slowdown, read_clock
from simulator.trace import Category

_NEVER = -1.0


@dataclass(slots=True, eq=False)
class Exchange:
    """Something that `num_members` streams do together."""

    name: str
    num_members: int
    latency_s: float = 0.0
    num_bytes: float = 0.0
    links: Weights = ()
    limit_bytes_per_s: float = float("inf")
    slowdown: Slowdown = QUIET
    """What compute suffers while it runs, of its members and of `receivers`."""
    receivers: list["Rank"] = field(default_factory=list, repr=False)
    """Ranks that take part without joining: those whose receive was posted ahead."""
    arrived: int = 0
    start_s: float = _NEVER
    end_s: float = _NEVER
    waiter: Any = None


@dataclass(slots=True, eq=False)
class Task:
    """One entry of a stream: a part of a profile to compute, or an exchange to join."""

    name: str
    category: Category
    needs: tuple["Task", ...] = field(default=(), repr=False)
    profile: Profile | None = None
    from_s: float = 0.0
    to_s: float = 0.0
    exchange: Exchange | None = None
    microbatch: int = -1
    chunk: int = -1
    start_s: float = _NEVER
    end_s: float = _NEVER
    waiter: Any = None


@dataclass(slots=True, eq=False)
class Rank:
    """One simulated rank: its streams by name, in order."""

    rank: int
    stage: int
    num_ranks: int
    streams: dict[str, list[Task]] = field(default_factory=dict)
    speed: float = 1.0
    """Of its compute, as a fraction of a typical GPU's; the profiles have it in them."""
    running: list[Exchange] = field(default_factory=list)
    """Exchanges that slow this rank now."""
    slowdown: Slowdown = QUIET
    profile: Profile | None = None
    """What it computes now, to position `to_s`."""
    to_s: float = 0.0
    clock: Clock = ()
    """Of that profile at `slowdown`; it stood at
    clock_s at time `since_s`."""
    clock_s: float = 0.0
    since_s: float = 0.0
    timer: Any = None
    timed: Slowdown = QUIET
    """The slow-down for which the timer was set."""
    rings_early: bool = False
    """Whether the timer rings before the end, since more slows the rank than when it was set."""


_Steps: TypeAlias = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Executed:
    """What the loop did: times stand in the tasks and exchanges themselves."""

    end_s: float
    num_tasks: int
    num_events: int


class Engine:
    """Executes one program, once."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        capacity_bytes_per_s: Sequence[float],
        standing: Sequence[Sequence[Standing]] = (),
    ) -> None:
        """Capacity of each link that exchanges load, and the flows of other jobs on it."""
        self._env = simpy.Environment()
        self._network = Network(self._env, capacity_bytes_per_s, standing)
        self._ranks = ranks
        self._slowed = _slowed_by_exchange(ranks)

    def run(self) -> Executed:
        """Run to the end.

        Raises `SimulationError` naming who waits for whom when no stream can go on.
        """
        for rank in self._ranks:
            for tasks in rank.streams.values():
                self._env.process(self._stream(rank, tasks))
        self._env.run()
        self._check_finished()
        tasks = [t for r in self._ranks for s in r.streams.values() for t in s]
        events = next(self._env._eid)
        return Executed(max((t.end_s for t in tasks), default=0.0), len(tasks), events)

    def _stream(self, rank: Rank, tasks: Sequence[Task]) -> _Steps:
        env = self._env
        for task in tasks:
            for need in task.needs:
                if need.end_s < 0:
                    if need.waiter is None:
                        need.waiter = env.event()
                    yield need.waiter
            task.start_s = env.now
            if task.profile is not None:
                if task.to_s > task.from_s:
                    yield from self._compute(rank, task.profile, task.from_s, task.to_s)
            elif task.exchange is not None:
                yield from self._join(task.exchange)
            task.end_s = env.now
            if task.waiter is not None:
                task.waiter.succeed()

    def _compute(self, rank: Rank, profile: Profile, from_s: float, to_s: float) -> _Steps:
        """Compute to the end, however often it is slowed on the way."""
        quiet, clock = profile.bounds_s, profile.clock(rank.slowdown)
        rank.profile, rank.to_s, rank.clock = profile, to_s, clock
        rank.clock_s, rank.since_s = read_clock(clock, quiet, from_s), self._env.now
        left_s = read_clock(clock, quiet, to_s) - rank.clock_s
        while left_s > 0.0:
            rank.timed, rank.rings_early = rank.slowdown, False
            rank.timer = self._env.timeout(left_s)
            yield rank.timer
            left_s = 0.0
            if rank.rings_early:
                passed_s = rank.clock_s + (self._env.now - rank.since_s)
                left_s = read_clock(rank.clock, quiet, to_s) - passed_s
        rank.profile = None

    def _join(self, exchange: Exchange) -> _Steps:
        env = self._env
        exchange.arrived += 1
        if exchange.arrived < exchange.num_members:
            if exchange.waiter is None:
                exchange.waiter = env.event()
            yield exchange.waiter
            return
        exchange.start_s = env.now
        slowed = self._slowed.get(exchange, ())
        for rank in slowed:
            rank.running.append(exchange)
            if exchange.slowdown != rank.slowdown:
                self._slow(rank, env.now)
        if exchange.latency_s > 0:
            yield env.timeout(exchange.latency_s)
        if exchange.num_bytes > 0:
            yield self._network.start(
                exchange.num_bytes, exchange.links, exchange.limit_bytes_per_s
            )
        for rank in slowed:
            rank.running.remove(exchange)
            if not rank.running or rank.running[0].slowdown != rank.slowdown:
                self._slow(rank, env.now)
        exchange.end_s = env.now
        if exchange.waiter is not None:
            exchange.waiter.succeed()

    def _slow(self, rank: Rank, now_s: float) -> None:
        """Apply what runs beside a rank's compute: from the same position on, another pace.

        A timer that was set for a pace no slower than the new one rings too early, at worst, and
        what is left is timed then; any other is set anew.
        """
        slowdown = _strongest(rank.running)
        if slowdown == rank.slowdown:
            return
        rank.slowdown = slowdown
        profile = rank.profile
        if profile is None:
            return
        clock = profile.clock(slowdown)
        rank.clock_s = read_clock(clock, rank.clock, rank.clock_s + (now_s - rank.since_s))
        rank.clock, rank.since_s, rank.rings_early = clock, now_s, True
        if rank.timed is QUIET or all(map(ge, slowdown, rank.timed)):
            return
        left_s = max(0.0, read_clock(clock, profile.bounds_s, rank.to_s) - rank.clock_s)
        rank.timer = postponed(self._env, rank.timer, left_s)
        rank.timed, rank.rings_early = slowdown, False

    def _check_finished(self) -> None:
        stuck = [
            _waiting(rank, name, task)
            for rank in self._ranks
            for name, tasks in rank.streams.items()
            for task in [next((t for t in tasks if t.end_s < 0), None)]
            if task is not None
        ]
        if stuck:
            raise SimulationError("deadlock: " + "; ".join(stuck[:8]))


def _strongest(running: Sequence[Exchange]) -> Slowdown:
    """The strongest slow-down of each kind among those of `running`."""
    if not running:
        return QUIET
    first = running[0].slowdown
    for exchange in running:
        if exchange.slowdown != first:
            every = zip(*(other.slowdown for other in running), strict=True)
            return Slowdown(*map(max, every))
    return first


def _slowed_by_exchange(ranks: Sequence[Rank]) -> dict[Exchange, list[Rank]]:
    """Ranks whose compute an exchange slows, of the exchanges that slow any."""
    slowed: dict[Exchange, list[Rank]] = {}
    for rank in ranks:
        for tasks in rank.streams.values():
            for task in tasks:
                exchange = task.exchange
                if exchange is not None and exchange.slowdown is not QUIET:
                    slowed.setdefault(exchange, list(exchange.receivers)).append(rank)
    return slowed


def _waiting(rank: Rank, stream: str, task: Task) -> str:
    who = f"rank {rank.rank} ({stream}) cannot finish {task.name!r}"
    missing = [need.name for need in task.needs if need.end_s < 0]
    if missing:
        return f"{who}: it needs {', '.join(map(repr, missing))}"
    exchange = task.exchange
    if exchange is not None:
        return f"{who}: {exchange.arrived} of {exchange.num_members} members have arrived"
    return who
