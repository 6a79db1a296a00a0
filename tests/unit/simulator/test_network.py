"""Max-min fair sharing, by hand and against a linear programme."""

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from hardware.background import rate_beside
from hardware.links import Standing
from simulator.network import Flow, Network, max_min_rates

INF = float("inf")


def flow(*links: tuple[int, float], limit: float = INF) -> Flow:
    return Flow(tuple(links), limit, 1.0)


def test_one_link_is_shared_evenly() -> None:
    assert max_min_rates([flow((0, 1.0)), flow((0, 1.0))], [10.0]) == [5.0, 5.0]


def test_what_one_cannot_use_the_others_get() -> None:
    """Limit 2 leaves 10 - 2 for the other."""
    assert max_min_rates([flow((0, 1.0), limit=2.0), flow((0, 1.0))], [10.0]) == [2.0, 8.0]


def test_weights_count_bytes_per_byte() -> None:
    """A flow that puts 3 bytes on the link per byte of its own: r + 3 r = 12."""
    assert max_min_rates([flow((0, 1.0)), flow((0, 3.0))], [12.0]) == [3.0, 3.0]


def test_two_bottlenecks() -> None:
    """Link 0 (6) holds a and b: 3 each; c gets the rest of link 1: 10 - 3."""
    rates = max_min_rates([flow((0, 1.0)), flow((0, 1.0), (1, 1.0)), flow((1, 1.0))], [6.0, 10.0])
    assert rates == [3.0, 3.0, 7.0]


def lexicographic(flows: list[Flow], capacity: list[float]) -> list[float]:
    """Max-min rates by repeated linear programmes: raise the smallest, fix what cannot rise."""
    n = len(flows)
    use = np.zeros((len(capacity), n))
    for j, f in enumerate(flows):
        for link, weight in f.links:
            use[link, j] += weight
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        bounds = [(fixed.get(j, 0.0), fixed.get(j, min(f.limit_bytes_per_s, 1e6)))
                  for j, f in enumerate(flows)]  # fmt: skip
        free = [j for j in range(n) if j not in fixed]
        rows = np.hstack([use, np.zeros((len(capacity), 1))])
        least = np.zeros((len(free), n + 1))
        for i, j in enumerate(free):
            least[i, j], least[i, n] = -1.0, 1.0
        a, b = np.vstack([rows, least]), [*capacity, *([0.0] * len(free))]
        level = -linprog([0.0] * n + [-1.0], A_ub=a, b_ub=b, bounds=[*bounds, (0, None)]).fun
        for j in free:
            floor = [(max(low, level - 1e-9) if i in free else low, high)
                     for i, (low, high) in enumerate(bounds)]  # fmt: skip
            cost = [0.0] * n
            cost[j] = -1.0
            best = -linprog(cost, A_ub=use, b_ub=capacity, bounds=floor).fun
            if best <= level + 1e-6:
                fixed[j] = level
    return [fixed[j] for j in range(n)]


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[Flow], list[float]]:
    capacity = draw(st.lists(st.integers(1, 20).map(float), min_size=1, max_size=4))
    link = st.integers(0, len(capacity) - 1)
    weights = st.dictionaries(link, st.sampled_from([0.5, 1.0, 2.0]), min_size=1)
    limits = st.sampled_from([0.7, 3.0, 50.0])
    flows = draw(st.lists(st.builds(lambda w, x: flow(*w.items(), limit=x), weights, limits),
                          min_size=1, max_size=5))  # fmt: skip
    return flows, capacity


@settings(max_examples=40, deadline=None)
@given(networks())
def test_equals_an_independent_solver(network: tuple[list[Flow], list[float]]) -> None:
    flows, capacity = network
    assert max_min_rates(flows, capacity) == pytest.approx(lexicographic(flows, capacity), rel=1e-4)


def test_rates_change_when_flows_come_and_go() -> None:
    """Link of 10 B/s. A (100 B) alone for 4 s sends 40; B (30 B) joins, 5 B/s each: B ends at
    4 + 6 = 10 s; A has 60 - 30 = 30 left, alone again: 13 s."""
    env = simpy.Environment()
    network = Network(env, [10.0])
    ends: dict[str, float] = {}

    def send(name: str, start_s: float, num_bytes: float):  # type: ignore[no-untyped-def]
        yield env.timeout(start_s)
        yield network.start(num_bytes, ((0, 1.0),), INF)
        ends[name] = env.now

    env.process(send("A", 0.0, 100.0))
    env.process(send("B", 4.0, 30.0))
    env.run()
    assert ends == pytest.approx({"B": 10.0, "A": 13.0})


def test_standing_flows_share_a_link_but_never_end() -> None:
    """Link of 10 B/s with two standing flows of at most 2 B/s: 30 B go at 6. Beside a second flow
    of 30 B all would have 10 / 4 = 2.5: the standing ones keep 2, the two have 3 each: 10 s."""
    for flows, end_s in ((1, 5.0), (2, 10.0)):
        env = simpy.Environment()
        network = Network(env, [10.0], [[Standing(2.0, 2.0)]])
        ends = [network.start(30.0, ((0, 1.0),), INF) for _ in range(flows)]
        env.run(env.all_of(ends))
        assert env.now == pytest.approx(end_s)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.builds(Standing, st.integers(1, 4).map(float), st.sampled_from([0.5, 2.0, 9.0])),
             max_size=3),
    st.integers(4, 20).map(float),
    st.sampled_from([0.5, 1.0, 2.0]),
)  # fmt: skip
def test_a_standing_flow_stands_for_many(
    standing: list[Standing], capacity: float, weight: float
) -> None:
    """As many flows as it stands for, one by one, leave the same to another; and so says the closed
    form that prices collectives inside passes."""
    one_by_one = [
        flow((0, 1.0), limit=s.limit_bytes_per_s) for s in standing for _ in range(int(s.num_flows))
    ]
    mine = max_min_rates([flow((0, weight)), *one_by_one], [capacity])[0]
    together = [flow((0, s.num_flows), limit=s.limit_bytes_per_s) for s in standing]
    assert max_min_rates([flow((0, weight)), *together], [capacity])[0] == pytest.approx(mine)
    assert rate_beside(standing, capacity, weight) == pytest.approx(mine)
