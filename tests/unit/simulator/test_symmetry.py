"""Colour refinement: nothing merged that can be told apart, nothing split that cannot."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.symmetry import Hubs, Incidence, fold, partition_of, unfolded


def families(pp: int, dp: int, tp: int) -> list[Hubs]:
    grid = np.arange(pp * dp * tp).reshape(pp, dp, tp)

    def alike(members: np.ndarray) -> Hubs:
        return Hubs(members, np.zeros(members.shape[1], int), np.zeros(len(members), int))

    pairs = np.stack([grid.ravel(), np.roll(grid, -1, 0).ravel()], axis=1)
    return [
        alike(grid.reshape(-1, tp)),
        alike(np.moveaxis(grid, 1, 2).reshape(-1, dp)),
        Hubs(pairs, np.array([0, 1]), np.zeros(len(pairs), int)),
    ]


def stages(pp: int, dp: int, tp: int) -> np.ndarray:
    return np.repeat(np.arange(pp), dp * tp)


def test_a_healthy_cluster_has_one_class_per_stage() -> None:
    """16 stages of 384 ranks: the headline's 6,144."""
    partition, _ = fold(stages(16, 48, 8), families(16, 48, 8))
    assert partition.counts == (384,) * 16
    assert partition.representatives == tuple(384 * s for s in range(16))


def test_one_slow_rank_splits_what_can_tell() -> None:
    """In each stage: itself (or its counterpart), its tensor group, its data group, the rest."""
    colors = stages(2, 4, 2)
    colors[5] = 9  # stage 0, dp 2, tp 1
    partition, _ = fold(colors, families(2, 4, 2))
    assert sorted(partition.counts) == [1, 1, 1, 1, 3, 3, 3, 3]
    assert partition.class_of[5] not in np.delete(partition.class_of, 5)


def test_a_link_that_looks_different_splits_its_users() -> None:
    """Four ranks alone; a link touched by ranks 0 and 1 differs from one touched by 2 and 3."""
    touch = Incidence(np.arange(4), np.array([0, 0, 1, 1]), np.zeros(4, int), np.array([0, 1]))
    assert fold(np.zeros(4, int), [touch])[0].counts == (2, 2)
    alike = Incidence(touch.ranks, touch.hubs, touch.codes, np.zeros(2, int))
    assert fold(np.zeros(4, int), [alike])[0].counts == (4,)


def test_roles_tell_sender_from_receiver() -> None:
    """In a chain 0 -> 1 -> 2, ends differ from each other and from the middle."""
    pairs = Hubs(np.array([[0, 1], [1, 2]]), np.array([0, 1]), np.zeros(2, int))
    assert fold(np.zeros(3, int), [pairs])[0].counts == (1, 1, 1)
    same = Hubs(pairs.members, np.zeros(2, int), pairs.colors)
    assert fold(np.zeros(3, int), [same])[0].counts == (2, 1)


def test_unfolded() -> None:
    assert unfolded(5).counts == (1,) * 5


@settings(max_examples=30, deadline=None)
@given(pp=st.integers(1, 3), dp=st.integers(1, 4), tp=st.integers(1, 3), data=st.data())
def test_the_partition_is_equitable(pp: int, dp: int, tp: int, data: st.DataObject) -> None:
    """Ranks of one class see the same multiset of classes through every family."""
    colors = stages(pp, dp, tp)
    for rank in data.draw(st.sets(st.integers(0, pp * dp * tp - 1), max_size=2)):
        colors[rank] += 100
    groups = families(pp, dp, tp)
    partition, _ = fold(colors, groups)
    seen: dict[int, object] = {}
    for rank in range(len(colors)):
        view = [int(colors[rank])]
        for family in groups:
            for column, role in enumerate(family.roles):
                rows = family.members[family.members[:, column] == rank]
                classes = [zip(partition.class_of[row], family.roles, strict=True) for row in rows]
                others = sorted(tuple(sorted(pairs)) for pairs in classes)
                view.append((int(role), str(others)))
        merged = str(sorted(map(str, view)))
        assert seen.setdefault(int(partition.class_of[rank]), merged) == merged


def test_numbering_follows_the_lowest_rank() -> None:
    partition = partition_of(np.array([7, 3, 7, 1]))
    assert partition.representatives == (0, 1, 3)
    assert list(partition.class_of) == [0, 1, 0, 2]
