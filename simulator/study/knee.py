"""Where a curve bends: the value up to which a setting pays, and beyond which it hardly does.

The knee is the point farthest from the chord between the curve's ends, both axes scaled to [0, 1]:
the offline form of Kneedle (Satopaa, Albrecht, Irwin and Raghavan, "Finding a Kneedle in a
Haystack", ICDCS workshops 2011, section III), without smoothing, since a simulator has no noise.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

LEAST_CHANGE = 0.02
"""Of the largest value: a curve that changes less has nothing to tell. A guess of what matters."""
LEAST_BEND = 0.1
"""Distance from the chord, of the curve's height: a straighter one has no knee. A guess:
1/x for x = 1, 2, 4 reaches 0.17 on a logarithmic axis."""
_WIDE = 4.0  # the largest over the smallest value, from which an axis is logarithmic


def is_logarithmic(x: Sequence[float]) -> bool:
    """Whether values spread so far that factors rather than differences tell them apart."""
    return min(x) > 0 and max(x) / min(x) >= _WIDE


def find_knee(x: Sequence[float], y: Sequence[float]) -> int | None:
    """Index of the knee of a curve that only rises or only falls; None where it has none.

    `x` must rise. Three points are needed.

    >>> find_knee([1.0, 2.0, 3.0, 4.0], [8.0, 2.0, 1.0, 0.5])
    1
    """
    if len(x) < 3 or not _is_monotone(y):
        return None
    low, high = min(y), max(y)
    if high - low < LEAST_CHANGE * max(abs(low), abs(high)):
        return None
    scaled_x = [math.log(v) for v in x] if is_logarithmic(x) else list(x)
    u = [(v - scaled_x[0]) / (scaled_x[-1] - scaled_x[0]) for v in scaled_x]
    v = [(value - y[0]) / (y[-1] - y[0]) for value in y]
    bends = [abs(b - a) for a, b in zip(u, v, strict=True)]
    best = max(range(len(x)), key=lambda i: (round(bends[i], 9), i))  # of equals the last
    return best if bends[best] >= LEAST_BEND else None


def _is_monotone(y: Sequence[float]) -> bool:
    """Up to rounding of sums of seconds."""
    slack = 1e-9 * max(map(abs, y))
    steps = [b - a for a, b in pairwise(y)]
    return all(s >= -slack for s in steps) or all(s <= slack for s in steps)
