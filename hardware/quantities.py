"""Quantities with units, parsed once at the edge.

`400Gb/s`, `50GB/s`, `80GiB`, `1.5us` become floats in SI base units: bytes, bytes/s, seconds,
FLOP/s, hertz, watts. Prefixes are decimal; `Ki`, `Mi`, `Gi`, `Ti` are powers of 1024. `b` is a bit
and `B` a byte. A plain number is taken as already in base units.
"""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_PREFIX = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9,
    "T": 1e12, "P": 1e15, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_NUMBER = re.compile(r"^\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$")


def parse_quantity(text: str, units: dict[str, float]) -> float:
    """Read a number with an optional prefix and one of `units` (unit name -> factor to base).

    Raises `ValueError` naming what was found and an example of what is allowed.

    >>> parse_quantity("400Gb/s", {"B/s": 1.0, "b/s": 0.125})
    50000000000.0
    """
    match = _NUMBER.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a quantity; write a number or, say, {_example(units)}")
    number, suffix = float(match.group(1).replace("_", "")), match.group(2)
    if not suffix:
        return number
    for unit in sorted(units, key=len, reverse=True):
        if suffix.endswith(unit) and suffix[: len(suffix) - len(unit)] in _PREFIX:
            return number * _PREFIX[suffix[: len(suffix) - len(unit)]] * units[unit]
    raise ValueError(f"{text!r} has an unknown unit {suffix!r}; write, say, {_example(units)}")


def _example(units: dict[str, float]) -> str:
    return {"B/s": "50GB/s or 400Gb/s", "B": "80GiB", "s": "1.5us", "FLOP/s": "989TFLOP/s",
            "Hz": "1.98GHz", "W": "700W"}[next(iter(units))]  # fmt: skip


def _reader(units: dict[str, float]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if isinstance(value, str):
            value = parse_quantity(value, units)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("must be finite")
        return value

    return BeforeValidator(read)


# the limit first: pydantic then checks it on the number that the reader returns, and knows it as
# part of the number's schema
BytesPerSecond = Annotated[
    float, Field(gt=0), _reader({"B/s": 1.0, "b/s": 0.125, "Bps": 1.0, "bps": 0.125})
]
Bytes = Annotated[float, Field(gt=0), _reader({"B": 1.0, "b": 0.125})]
Seconds = Annotated[float, Field(ge=0), _reader({"s": 1.0})]
FlopsPerSecond = Annotated[float, Field(gt=0), _reader({"FLOP/s": 1.0, "FLOPS": 1.0, "FLOPs": 1.0})]
Hertz = Annotated[float, Field(gt=0), _reader({"Hz": 1.0})]
Watts = Annotated[float, Field(gt=0), _reader({"W": 1.0})]


MAX_NODES = 100_000
_NODES = re.compile(r"^(?:[A-Za-z][\w.-]*?)?\[?\s*(\d[\d,\s-]*)\]?$")


def parse_nodes(text: str) -> tuple[int, ...]:
    """Read numbers of nodes as schedulers write them.

    Raises `ValueError` with an example of what is allowed.

    >>> parse_nodes("node[0-2,8]")
    (0, 1, 2, 8)
    """
    match = _NODES.match(text.strip())
    nodes: list[int] = []
    for part in match.group(1).split(",") if match else ():
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            match = None
            break
        end = int(last if dash else first)
        if end >= MAX_NODES:
            raise ValueError(f"{text!r} goes beyond the {MAX_NODES} nodes that a fabric may have")
        nodes += range(int(first), end + 1)
    if match is None or not nodes:
        raise ValueError(f"{text!r} is no list of nodes; write, say, 0-3,8 or node[0-3,8]")
    return tuple(nodes)


def _read_nodes(value: Any) -> Any:
    return parse_nodes(value) if isinstance(value, str) else value


_NODE_NUMBER = {"type": "integer", "minimum": 0, "exclusiveMaximum": MAX_NODES}
_NODE_TEXT = {"type": "string", "pattern": _NODES.pattern}

NodeList = Annotated[
    tuple[Annotated[int, Field(ge=0, lt=MAX_NODES)], ...],
    BeforeValidator(_read_nodes),
    WithJsonSchema({"anyOf": [{"type": "array", "items": _NODE_NUMBER}, _NODE_TEXT]}),
]
"""Nodes of a fabric, in order: a list, or text as `0-3,8` or `node[0-3,8]`."""
