"""The event loop: streams of tasks on ranks, exchanges between them. Knows no transformers.

A stream walks its tasks in order, so it cannot overlap itself. A task starts when the stream is
free and everything it needs has ended. An exchange (collective, transfer, barrier) starts when its
last member arrives and ends for all at once; the network decides when. While it runs it may slow
its ranks' compute.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import simpy

from simulator.errors import SimulationError
from simulator.network import Network, Weights
from simulator.profile import QUIET, Profile, Slowdown
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
    """What its ranks' compute suffers while it runs."""
    arrived: int = 0
    start_s: float = _NEVER
    end_s: float = _NEVER
    waiter: Any = None


@dataclass(slots=True, eq=False)
class Task:
    """One entry of a stream: a part of a profile to compute, or an exchange to join."""

    name: str
    category: Category
    needs: tuple["Task", ...] = ()
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
    running: list[Exchange] = field(default_factory=list)
    """Exchanges that slow this rank now."""
    slowdown: Slowdown = QUIET
    process: Any = None
    computing: bool = False


_Steps: TypeAlias = Generator[simpy.Event, Any, None]


@dataclass(frozen=True, slots=True)
class Executed:
    """What the loop did: times stand in the tasks and exchanges themselves."""

    end_s: float
    num_tasks: int
    num_events: int


class Engine:
    """Executes one program, once."""

    def __init__(self, ranks: Sequence[Rank], capacity_bytes_per_s: Sequence[float]) -> None:
        self._env = simpy.Environment()
        self._network = Network(self._env, capacity_bytes_per_s)
        self._ranks = ranks
        self._members: dict[Exchange, list[Rank]] = {}
        for rank in ranks:
            for tasks in rank.streams.values():
                for task in tasks:
                    if task.exchange is not None and task.exchange.slowdown != QUIET:
                        self._members.setdefault(task.exchange, []).append(rank)

    def run(self) -> Executed:
        """Run to the end.

        Raises `SimulationError` naming who waits for whom when no stream can go on.
        """
        for rank in self._ranks:
            for name, tasks in rank.streams.items():
                process = self._env.process(self._stream(rank, tasks))
                if name == "compute":
                    rank.process = process
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

    def _compute(self, rank: Rank, profile: Profile, position_s: float, end_s: float) -> _Steps:
        env = self._env
        rank.computing = True
        while True:
            began_s, slowdown = env.now, rank.slowdown
            try:
                yield env.timeout(profile.time_s(position_s, end_s, slowdown))
                break
            except simpy.Interrupt:  # communication beside it started or stopped
                position_s = profile.advance_s(position_s, env.now - began_s, slowdown)
                position_s = min(position_s, end_s)
        rank.computing = False

    def _join(self, exchange: Exchange) -> _Steps:
        env = self._env
        exchange.arrived += 1
        if exchange.arrived < exchange.num_members:
            if exchange.waiter is None:
                exchange.waiter = env.event()
            yield exchange.waiter
            return
        exchange.start_s = env.now
        members = self._members.get(exchange, ())
        for rank in members:
            rank.running.append(exchange)
            self._slow(rank)
        if exchange.latency_s > 0:
            yield env.timeout(exchange.latency_s)
        if exchange.num_bytes > 0:
            yield self._network.start(
                exchange.num_bytes, exchange.links, exchange.limit_bytes_per_s
            )
        for rank in members:
            rank.running.remove(exchange)
            self._slow(rank)
        exchange.end_s = env.now
        if exchange.waiter is not None:
            exchange.waiter.succeed()

    def _slow(self, rank: Rank) -> None:
        """Apply what runs beside a rank's compute; the strongest neighbour decides."""
        slowdown = Slowdown(
            max((e.slowdown.compute for e in rank.running), default=0.0),
            max((e.slowdown.link for e in rank.running), default=0.0),
        )
        if slowdown != rank.slowdown:
            rank.slowdown = slowdown
            if rank.computing:
                rank.process.interrupt()

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


def _waiting(rank: Rank, stream: str, task: Task) -> str:
    who = f"rank {rank.rank} ({stream}) cannot finish {task.name!r}"
    missing = [need.name for need in task.needs if need.end_s < 0]
    if missing:
        return f"{who}: it needs {', '.join(map(repr, missing))}"
    exchange = task.exchange
    if exchange is not None:
        return f"{who}: {exchange.arrived} of {exchange.num_members} members have arrived"
    return who
