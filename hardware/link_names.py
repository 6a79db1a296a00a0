"""Parts of the network by name: `leaf-3/spine-1`, `spine-0/core-2`, `node-4/nic-0`, `node-4/gpu-1`,
`spine-1`, `core-2`.

Everything counts from 0. Switches count over the whole fabric: leaves unit by unit and rail by
rail, spines pod by pod and group by group; beside its leaf a spine may also be counted from the
first that the leaf is wired to.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Literal, NamedTuple, TypeAlias, cast

from hardware.fabric_shape import FabricShape
from hardware.spec import ClusterSpec

Part: TypeAlias = Literal["node", "nic", "gpu", "leaf", "spine", "core"]
PAIRS: tuple[tuple[Part, Part], ...] = (
    ("leaf", "spine"), ("spine", "core"), ("node", "nic"), ("node", "gpu"),
)  # fmt: skip
WHOLE: tuple[Part, ...] = ("spine", "core")
"""Switches that a name may stand for without a second part."""

_NAME = re.compile(r"^([a-z]+)-?(\d+)(?:/([a-z]+)-?(\d+))?$")


class LinkName(NamedTuple):
    """All cables between two parts, or, with only one, all of a switch."""

    kinds: tuple[Part, ...]
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        parts = zip(self.kinds, self.numbers, strict=True)
        return "/".join(f"{kind}-{number}" for kind, number in parts)


def parse_link(name: str, cluster: ClusterSpec, shape: FabricShape) -> LinkName:
    """Find a link of a cluster. Raises `ValueError` with the nearest that there is."""
    match = _NAME.match(name.strip().lower())
    words = [w for w in match.groups()[::2] if w] if match else []
    kinds = tuple(_nearest_part(word) for word in words)
    if match is None or not _makes_sense(kinds):
        raise ValueError(
            f"{name!r} is no name of a link; write leaf-0/spine-1, spine-0/core-1, node-0/nic-1, "
            "node-0/gpu-1, or spine-0 or core-0 for a whole switch"
        )
    numbers = tuple(int(n) for n in match.groups()[1::2] if n is not None)
    if kinds[::-1] in PAIRS:
        kinds, words, numbers = kinds[::-1], words[::-1], numbers[::-1]
    asked = LinkName(cast("tuple[Part, ...]", kinds), numbers)
    asked = _over_the_fabric(asked, shape)
    near, allowed = _nearest(asked, cluster, shape)
    if near is None:
        raise ValueError(f"there is no link {name!r}: {allowed}")
    if near != asked or list(kinds) != words:
        raise ValueError(f"there is no link {name!r}; the nearest is {near}: {allowed}")
    return asked


def _over_the_fabric(asked: LinkName, shape: FabricShape) -> LinkName:
    """A leaf's spine that is counted from the first it is wired to, by its own number. Where the
    two differ, a leaf is wired to no spine of such a low number."""
    if asked.kinds != ("leaf", "spine") or not 0 <= asked.numbers[0] < shape.num_leaves:
        return asked
    leaf, spine = asked.numbers
    spines = shape.spines_of(leaf)
    return asked._replace(numbers=(leaf, spines[spine])) if spine < len(spines) else asked


def _nearest_part(word: str) -> str:
    near = get_close_matches(word, ("node", "nic", "gpu", "leaf", "spine", "core"), 1, 0.5)
    return near[0] if near else word


def _makes_sense(kinds: tuple[str, ...]) -> bool:
    return kinds in PAIRS or kinds[::-1] in PAIRS or (len(kinds) == 1 and kinds[0] in WHOLE)


def _nearest(
    asked: LinkName, cluster: ClusterSpec, shape: FabricShape
) -> tuple[LinkName | None, str]:
    """The link that is closest in number, and what there is, in words."""
    node = cluster.node
    counts = {
        "node": cluster.fabric_nodes, "leaf": shape.num_leaves, "spine": shape.num_spines,
        "core": shape.num_cores,
    }  # fmt: skip
    first, number = asked.kinds[0], asked.numbers[0]
    for kind in asked.kinds:
        if counts.get(kind) == 0:
            return None, f"{cluster.fabric_nodes} nodes need no {kind} switches on this fabric"
    number = min(number, counts[first] - 1)
    last = f"{first}-0 to {first}-{counts[first] - 1}"
    if len(asked.kinds) == 1:
        return LinkName(asked.kinds, (number,)), f"there are {last}"
    second: dict[tuple[Part, ...], Callable[[], Sequence[int]]] = {
        ("leaf", "spine"): lambda: shape.spines_of(number),
        ("spine", "core"): lambda: shape.cores_of(number),
        ("node", "nic"): lambda: range(node.nics_per_node),
        ("node", "gpu"): lambda: range(node.gpus_per_node),
    }
    there = second[asked.kinds]()
    near = min(there, key=lambda n: abs(n - asked.numbers[1]))
    other = asked.kinds[1]
    has = f"{other}-{there[0]} to {other}-{there[-1]}"
    if len(there) > 1 and there[1] - there[0] > 1:
        has += f" in steps of {there[1] - there[0]}"
    words = f"there are {last}, and {first}-{number} has {has}"
    return LinkName(asked.kinds, (number, near)), words
