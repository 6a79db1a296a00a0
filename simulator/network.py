"""Flows on shared links: max-min fair rates, as events of the caller's loop.

Rates change only when a flow starts or ends, and only among flows that share a link, directly or
through others; nothing else is computed. A flow may stand for many alike: its weight on a link is
the bytes that all of them put there per byte of one of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from hardware.links import Standing

INFINITE = float("inf")

Weights = tuple[tuple[int, float], ...]
"""(link index, bytes over the link per byte of the flow)."""


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way. `limit_bytes_per_s` bounds the rate whatever the links allow."""

    links: Weights
    limit_bytes_per_s: float
    remaining_bytes: float
    rate_bytes_per_s: float = 0.0
    since_s: float = 0.0
    end: Any = None
    """The event of its last byte."""


def max_min_rates(flows: Sequence[Flow], capacity: Sequence[float]) -> list[float]:
    """Rates such that none can grow without lowering a smaller one (progressive filling).

    All rates rise together; a flow stops at its own limit or when one of its links is full.
    Bertsekas and Gallager, Data Networks, section 6.5.2, with weights on links.
    """
    rates = [0.0] * len(flows)
    rising = list(range(len(flows)))
    used: dict[int, float] = {}
    while rising:
        weight: dict[int, float] = {}
        for i in rising:
            for link, w in flows[i].links:
                weight[link] = weight.get(link, 0.0) + w
        level = min(flows[i].limit_bytes_per_s for i in rising)
        level_of = {k: (capacity[k] - used.get(k, 0.0)) / w for k, w in weight.items() if w > 0}
        level = min([level, *level_of.values()])
        full = {k for k, v in level_of.items() if v <= level * (1 + 1e-12)}
        stopped = [
            i
            for i in rising
            if flows[i].limit_bytes_per_s <= level * (1 + 1e-12)
            or any(link in full for link, _ in flows[i].links)
        ]
        for i in stopped:
            rates[i] = level
            for link, w in flows[i].links:
                used[link] = used.get(link, 0.0) + w * level
        gone = set(stopped)
        rising = [i for i in rising if i not in gone]
    return rates


def postponed(env: simpy.Environment, timer: simpy.Event, delay_s: float) -> simpy.Event:
    """A timer in place of another, sooner or later: who waits for that one waits for this one."""
    later = env.timeout(delay_s, timer.value)
    later.callbacks, timer.callbacks = timer.callbacks, []
    return later


class Network:
    """The links of one run and the flows on them."""

    def __init__(
        self,
        env: simpy.Environment,
        capacity_bytes_per_s: Sequence[float],
        standing: Sequence[Sequence[Standing]] = (),
    ) -> None:
        """`standing`: flows that are on each link all the time, so many alike."""
        self._env = env
        self._capacity = capacity_bytes_per_s
        self._on_link: list[dict[Flow, None]] = [{} for _ in capacity_bytes_per_s]
        for link, others in enumerate(standing):
            for one in others:
                flow = Flow(((link, one.num_flows),), one.limit_bytes_per_s, INFINITE)
                self._on_link[link][flow] = None
        self.num_flows = 0

    def start(self, num_bytes: float, links: Weights, limit_bytes_per_s: float) -> simpy.Event:
        """Send `num_bytes`; the returned event fires when the last of them has arrived."""
        flow = Flow(links, limit_bytes_per_s, num_bytes, 0.0, self._env.now)
        self.num_flows += 1
        shared = False
        for link, _ in links:
            flows = self._on_link[link]
            if flows:
                shared = True
            flows[flow] = None
        if shared:
            self._share(self._connected(flow))
        else:
            self._set_rate(flow, self._lone_rate(flow))
        return flow.end  # type: ignore[no-any-return]

    def _lone_rate(self, flow: Flow) -> float:
        """The rate of a flow that is alone on its links."""
        rate = flow.limit_bytes_per_s
        for link, weight in flow.links:
            bound = self._capacity[link] / weight
            if bound < rate:
                rate = bound
        return rate

    def _connected(self, flow: Flow) -> list[Flow]:
        """Flows reachable from `flow` through links in use, in a fixed order."""
        seen = {flow: None}
        todo = [flow]
        while todo:
            for link, _ in todo.pop().links:
                for other in self._on_link[link]:
                    if other not in seen:
                        seen[other] = None
                        todo.append(other)
        return list(seen)

    def _share(self, flows: Sequence[Flow]) -> None:
        if len(flows) == 1:
            rates = [self._lone_rate(flows[0])]
        else:
            rates = max_min_rates(flows, self._capacity)
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate_bytes_per_s:
                self._set_rate(flow, rate)

    def _set_rate(self, flow: Flow, rate: float) -> None:
        now = self._env.now
        flow.remaining_bytes -= flow.rate_bytes_per_s * (now - flow.since_s)
        flow.since_s, flow.rate_bytes_per_s = now, rate
        if flow.remaining_bytes == INFINITE:
            return
        left_s = max(0.0, flow.remaining_bytes) / rate
        if flow.end is None:
            flow.end = self._env.timeout(left_s, flow)
            flow.end.callbacks.append(self._ended)
        else:
            flow.end = postponed(self._env, flow.end, left_s)

    def _ended(self, event: Any) -> None:
        """Give the rate of a flow that has ended to those that shared a link with it."""
        flow: Flow = event.value
        flow.end = None  # leaves no cycle for the garbage collector
        shared = False
        for link, _ in flow.links:
            flows = self._on_link[link]
            del flows[flow]
            if flows:
                shared = True
        if shared:
            self._share_again(flow.links)

    def _share_again(self, links: Weights) -> None:
        """Give what is free on `links` to the flows there, and to those that share with them."""
        left = self._neighbours(links)
        while left:
            group = self._connected(left[0])
            self._share(group)
            done = set(group)
            left = [other for other in left if other not in done]

    def _neighbours(self, links: Iterable[tuple[int, float]]) -> list[Flow]:
        return list(dict.fromkeys(f for link, _ in links for f in self._on_link[link]))
