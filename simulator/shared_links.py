"""Links that several GPUs share and that can bind: who loads them, and which of them are alike."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from hardware.links import Link
from simulator.symmetry import Incidence, Ints

FlowKey: TypeAlias = tuple[str, int]
"""(axis or direction of a flow, class of its group or sender)."""


@dataclass(frozen=True, slots=True)
class ConcreteFlow:
    """One flow of one group or sender, before folding."""

    family: str
    """Axis of a group's collective, or direction of a stage's transfers."""
    owner: int
    """Index of the group along the axis, or the sending rank."""
    ranks: tuple[int, ...]
    loads: dict[Link, float]
    """Bytes over each shared link per byte of the flow."""


class SharedLinks:
    """The shared links that some flow loads."""

    def __init__(self, flows: Iterable[ConcreteFlow], look: Callable[[Link], Hashable]) -> None:
        """`look`: what tells links apart by themselves."""
        self._flows = [flow for flow in flows if flow.loads]
        links = list(dict.fromkeys(link for flow in self._flows for link in flow.loads))
        self._index = {link: i for i, link in enumerate(links)}
        self.incidence = self._incidence([look(link) for link in links])
        self._class: Ints = np.arange(len(links))
        self._load: dict[tuple[FlowKey, int], float] = {}
        self._family_load: dict[tuple[str, Link], float] = {}
        for flow in self._flows:
            for link, load in flow.loads.items():
                at = flow.family, link
                self._family_load[at] = self._family_load.get(at, 0.0) + load

    def _incidence(self, looks: Sequence[Hashable]) -> Incidence:
        """Ranks meet in the links that their flows load; the load tells how."""
        how: dict[tuple[str, float], int] = {}
        rows = [
            (rank, self._index[link], how.setdefault((flow.family, load), len(how)))
            for flow in self._flows
            for link, load in flow.loads.items()
            for rank in flow.ranks
        ]
        table = np.array(rows, np.int64).reshape(-1, 3)
        number = {look: i for i, look in enumerate(dict.fromkeys(looks))}
        colors = np.array([number[look] for look in looks], np.int64)
        return Incidence(table[:, 0], table[:, 1], table[:, 2], colors)

    def classify(self, classes: Ints, flow_class: Callable[[ConcreteFlow], FlowKey]) -> None:
        """Take in the classes of links; add up what each class of flows puts on one of them."""
        self._class = classes
        first = set(np.unique(classes, return_index=True)[1].tolist())
        self._load = {}
        for flow in self._flows:
            key = flow_class(flow)
            for link, load in flow.loads.items():
                index = self._index[link]
                if index in first:
                    at = (key, int(classes[index]))
                    self._load[at] = self._load.get(at, 0.0) + load

    def class_of(self, link: Link) -> int:
        """Class of a link."""
        return int(self._class[self._index[link]])

    def family_load(self, family: str, link: Link) -> float:
        """Bytes that all flows of a family put on a link per byte of one of them."""
        return self._family_load[family, link]

    def load(self, flow: FlowKey, link: Link) -> float:
        """Bytes that all flows of a class put on a link per byte of one of them."""
        return self._load[flow, self.class_of(link)]
