"""`--vary PATH=V1,V2,...`: what a study changes, and the combinations it tries.

A value is YAML, as in `--set`; `x0.5` is a factor on what the run would have there otherwise.
Quotes and brackets keep commas together; a quoted 'x2' is a text, not a factor.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from simulator.errors import ConfigError, Place, Problem
from simulator.overrides import parse_override

MAX_POINTS = 100_000
_FACTOR = re.compile(r"x(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)")
_OPEN, _CLOSE = "[{", "]}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value at one key path, as the user wrote it."""

    path: str
    text: str

    @property
    def factor(self) -> float | None:
        """What to multiply by, None where the text is a value."""
        match = _FACTOR.fullmatch(self.text)
        return float(match.group(1)) if match else None


@dataclass(frozen=True, slots=True)
class Varied:
    """A key path and the values to try there."""

    path: str
    texts: tuple[str, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(Setting(self.path, text) for text in self.texts)


def parse_varied(text: str) -> Varied:
    """Read `PATH=V1,V2,...`.

    Raises `ConfigError` where there is no path or value, or a value stands there twice.

    >>> parse_varied("cluster.num_nodes=2,x4").texts
    ('2', 'x4')
    """
    place = Place(f"--vary {text}")
    dotted, _, listed = text.partition("=")
    values = [value.strip() for value in _split(listed)]
    if not all(values) or not all(key.strip() for key in dotted.split(".")):
        message = "must read PATH=V1,V2,..., such as cluster.fabric.link_bandwidth=100Gb/s,x0.5"
        raise ConfigError(Problem(message, place=place))
    path = ".".join(key.strip() for key in dotted.split("."))
    twice = next((value for i, value in enumerate(values) if value in values[:i]), None)
    if twice is not None:
        raise ConfigError(Problem(f"the value {twice} stands there twice", place=place))
    for value in values:
        _check_value(path, value, place)
    return Varied(path, tuple(values))


def _check_value(path: str, value: str, place: Place) -> None:
    try:
        parse_override(f"{path}={value}", [])
    except ConfigError as error:
        message = "; ".join(problem.message for problem in error.problems)
        raise ConfigError(Problem(f"the value {value} {message}", place=place)) from None


def _split(text: str) -> list[str]:
    """At commas outside of quotes and brackets."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        if char == "," and depth <= 0 and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def combine(varied: Sequence[Varied], zipped: bool) -> tuple[tuple[Setting, ...], ...]:
    """The points of a study: every combination, the last setting fastest; or, zipped, the first
    values together, the second values together, and so on.

    Raises `ConfigError` for nothing to vary, a path varied twice, lists of unequal length to zip,
    and too many points.
    """
    _check(varied, zipped)
    columns = [v.settings for v in varied]
    return tuple(zip(*columns, strict=True)) if zipped else tuple(product(*columns))


def _check(varied: Sequence[Varied], zipped: bool) -> None:
    if not varied:
        raise ConfigError("nothing to vary: give --vary PATH=V1,V2,...")
    paths = [v.path for v in varied]
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise ConfigError(f"--vary {path}: is varied twice; list all its values in one option")
    sizes = [len(v.texts) for v in varied]
    if zipped and len(set(sizes)) > 1:
        counts = ", ".join(f"{v.path} {len(v.texts)}" for v in varied)
        raise ConfigError(f"--zip: needs as many values of each setting; there are {counts}")
    if not zipped and math.prod(sizes) > MAX_POINTS:
        raise ConfigError(
            f"{math.prod(sizes):,} combinations are more than the {MAX_POINTS:,} a study may have"
        )
