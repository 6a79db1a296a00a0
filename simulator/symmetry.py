"""Ranks that behave alike: the coarsest equitable partition.

Ranks meet in hubs: process groups, sender-receiver pairs, shared links. Two ranks stay in one
class as long as they look alike and meet alike hubs, and two hubs as long as they look alike and
hold alike ranks; refining colours until nothing splits gives the coarsest such partition (colour
refinement, Berkholz, Bonsma and Grohe 2017, arXiv 1509.08251). One rank per class then tells the
times of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]

_OWN = -1
"""Code of a vertex's own colour, so that it is never taken for a neighbour's."""


@dataclass(frozen=True)
class Hubs:
    """Hubs of one family: `members[i]` are the ranks that meet in hub i.

    `roles` tells apart the columns of `members` (sender and receiver); all zero where a group's
    members are interchangeable. `colors` tells hubs apart that look different.
    """

    members: Ints
    roles: Ints
    colors: Ints


@dataclass(frozen=True)
class Incidence:
    """Which rank touches which hub of a family with members of unequal number, and how."""

    ranks: Ints
    hubs: Ints
    codes: Ints
    colors: Ints


@dataclass(frozen=True)
class Partition:
    """Class of each rank; classes are numbered by their lowest rank."""

    class_of: Ints
    representatives: tuple[int, ...]
    """Lowest rank of each class."""
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.representatives)


def fold(colors: Ints, families: Sequence[Hubs | Incidence]) -> tuple[Partition, tuple[Ints, ...]]:
    """Refine `colors` (one per rank) until ranks and hubs of one colour cannot be told apart.

    Returns the classes of ranks, and for each family the class of each of its hubs.
    """
    incidences = [_incidence(f) if isinstance(f, Hubs) else f for f in families]
    rank_colors = _renumber(colors)
    hub_colors = [_renumber(f.colors) for f in incidences]
    while True:
        before = _count(rank_colors) + sum(map(_count, hub_colors))
        salts = range(1, len(incidences) + 1)
        hub_colors = [
            _renumber(_mix(c, _OWN) + _sums(_mix(rank_colors[f.ranks], f.codes), f.hubs, len(c)))
            for f, c in zip(incidences, hub_colors, strict=True)
        ]
        hashes = _mix(rank_colors, _OWN)
        for f, c, salt in zip(incidences, hub_colors, salts, strict=True):
            hashes = hashes + _sums(_mix(c[f.hubs], f.codes, salt), f.ranks, len(colors))
        rank_colors = _renumber(hashes)
        if _count(rank_colors) + sum(map(_count, hub_colors)) == before:
            return partition_of(rank_colors), tuple(hub_colors)


def partition_of(colors: Ints) -> Partition:
    """The partition into ranks of equal colour."""
    _, first, inverse, counts = np.unique(
        colors, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(first)
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return Partition(number[inverse], tuple(map(int, first[order])), tuple(map(int, counts[order])))


def unfolded(num_ranks: int) -> Partition:
    """Every rank a class of its own."""
    return partition_of(np.arange(num_ranks))


def _incidence(family: Hubs) -> Incidence:
    num_hubs, width = family.members.shape
    hubs = np.repeat(np.arange(num_hubs), width)
    return Incidence(family.members.ravel(), hubs, np.tile(family.roles, num_hubs), family.colors)


def _renumber(colors: npt.NDArray[Any]) -> Ints:
    return np.unique(colors, return_inverse=True)[1].astype(np.int64)


def _count(colors: Ints) -> int:
    return int(colors.max()) + 1 if len(colors) else 0


def _sums(values: Hashes, index: Ints, size: int) -> Hashes:
    total = np.zeros(size, np.uint64)
    np.add.at(total, index, values)
    return total


def _mix(colors: Ints, codes: Ints | int = 0, salt: int = 0) -> Hashes:
    """Scatter (colour, code, salt) over 64 bits, so that sums tell multisets apart.

    SplitMix64's finalizer (Steele, Lea and Flood 2014). Two of n multisets collide with a
    probability of about n^2 / 2^65: 3e-10 for 98,304 ranks.
    """
    x = np.asarray(colors, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x = x + np.asarray(codes, np.int64).astype(np.uint64) * np.uint64(0xD1B54A32D192ED03)
    x = x + np.uint64((salt + 1) * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), np.uint64)
