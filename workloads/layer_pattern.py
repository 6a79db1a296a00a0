"""Which layers of a model are special: each n-th one, or a 1 or 0 for every layer."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pydantic import PlainValidator, WithJsonSchema


def read_pattern(value: object) -> int | tuple[int, ...]:
    """A whole number above 0, or a list of 0 and 1, as numbers or as text.

    Raises `ValueError` for anything else.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        flags = tuple(flag for flag in map(_number, value) if flag in (0, 1))
        if flags and len(flags) == len(value):
            return flags
    elif (number := _number(value)) is not None and number > 0:
        return number
    raise ValueError(f"{value!r} is neither a whole number above 0 nor a list of 0 and 1")


def _number(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


LayerPattern: TypeAlias = Annotated[
    int | tuple[int, ...],
    PlainValidator(read_pattern),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0},
                {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1}},
            ]
        }
    ),
]
