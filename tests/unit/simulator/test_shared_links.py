"""Flows on shared links, added up by class, on a case small enough to count."""

import numpy as np

from hardware.links import Link
from simulator.shared_links import ConcreteFlow, SharedLinks

UP, DOWN = Link("leaf_up", 0, 0), Link("leaf_down", 1, 0)
OTHER = Link("leaf_up", 1, 0)

FLOWS = [
    ConcreteFlow("dp", 0, (0, 1), {UP: 0.5, DOWN: 1.0}),
    ConcreteFlow("dp", 1, (2, 3), {UP: 0.5, DOWN: 1.0}),
    ConcreteFlow("next", 0, (0,), {UP: 1.0}),
    ConcreteFlow("next", 3, (3,), {OTHER: 1.0}),
    ConcreteFlow("next", 1, (1,), {}),
]


def shared(capacity: float = 10.0) -> SharedLinks:
    return SharedLinks(FLOWS, lambda link: capacity if link is not OTHER else 20.0)


def test_ranks_meet_in_the_links_they_load() -> None:
    """Links number by first use: UP 0, DOWN 1, OTHER 2. Both members of a group touch its links."""
    incidence = shared().incidence
    touches = sorted(zip(incidence.ranks.tolist(), incidence.hubs.tolist(), strict=True))
    assert touches == [(0, 0), (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1),
                       (3, 2)]  # fmt: skip


def test_how_a_rank_loads_a_link_is_told_apart() -> None:
    """0.5 of a dp flow, 1.0 of a dp flow, 1.0 of a transfer: three codes."""
    incidence = shared().incidence
    codes: dict[tuple[int, int], set[int]] = {}
    rows = (incidence.ranks, incidence.hubs, incidence.codes)
    for rank, hub, code in zip(*map(np.ndarray.tolist, rows), strict=True):
        codes.setdefault((rank, hub), set()).add(code)
    assert codes[0, 0] == codes[1, 0] | codes[3, 2]
    assert codes[0, 1] == codes[3, 1]
    assert len(codes[0, 0] | codes[0, 1]) == 3


def test_unlike_capacities_look_different() -> None:
    colors = shared().incidence.colors
    assert colors[0] == colors[1] != colors[2]
    assert len(set(shared(20.0).incidence.colors.tolist())) == 1


def test_loads_add_up_by_class() -> None:
    """Both groups in one class put 0.5 + 0.5 on UP per byte of one of them."""
    links = shared()
    links.classify(np.array([0, 1, 2]), lambda flow: (flow.family, 0))
    assert links.load(("dp", 0), UP) == 0.5 + 0.5
    assert links.load(("dp", 0), DOWN) == 1.0 + 1.0
    assert links.load(("next", 0), UP) == 1.0


def test_loads_of_classes_apart() -> None:
    links = shared()
    links.classify(np.array([0, 1, 2]), lambda flow: (flow.family, flow.owner))
    assert links.load(("dp", 0), UP) == links.load(("dp", 1), UP) == 0.5


def test_a_class_of_links_answers_for_its_first() -> None:
    """UP and OTHER in one class: the load is what stands on UP, not the sum of both."""
    links = shared()
    links.classify(np.array([0, 1, 0]), lambda flow: (flow.family, 0))
    assert links.class_of(OTHER) == links.class_of(UP) == 0
    assert links.load(("next", 0), OTHER) == 1.0
