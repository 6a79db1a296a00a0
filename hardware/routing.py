"""What hashing flows onto equal cables costs (ECMP), against spreading them evenly.

Each queue pair of each NIC is hashed to one of the cables of a trunk, and stays there. Flows on
the fullest cable are the slowest, and a collective ends with its slowest flow: a trunk carries no
more than if all its cables were as full as the fullest is expected to be.
"""

from functools import lru_cache
from math import exp, lgamma, log


@lru_cache(maxsize=256)
def hashing_share(num_flows: int, num_cables: int) -> float:
    """Mean load of a cable over the expected load of the fullest one, when every flow takes one of
    the cables at random: at most 1, and 1 for a single cable.

    The loads are taken as independent binomials, E[max] = sum over k of 1 - P(load <= k)^cables,
    but for the mean load, which the fullest never falls short of. The true maximum is a little
    larger, since one cable's flows are missing on the others: by 7 % for 8 flows on 4 cables, 2 %
    for 32 on 32, 1 % for 512 on 32 (drawn at random, tests).

    >>> hashing_share(2, 2) == 1 / (1 + 7 / 16)  # P(load <= 1) is 3/4
    True
    """
    if num_flows <= 0 or num_cables <= 1:
        return 1.0
    chance = 1.0 / num_cables
    fullest, below = 0.0, 0.0
    for k in range(num_flows):
        below = min(1.0, below + _binomial(num_flows, k, chance))
        beyond = 1.0 if k * num_cables < num_flows else 1.0 - below**num_cables
        fullest += beyond
        if k > num_flows * chance and beyond < 1e-12:
            break
    return num_flows * chance / fullest


def _binomial(n: int, k: int, p: float) -> float:
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(p) + (n - k) * log(1.0 - p))
