"""Pure parts of a shell's expansions: whole numbers, and changes of a known text."""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase


def whole(text: str) -> int | None:
    """A number as the shell writes it, None if it is none."""
    text = text.strip()
    if re.fullmatch(r"[+-]?\d{1,18}", text):
        return int(text)
    return int(text, 16) if re.fullmatch(r"0[xX][0-9a-fA-F]{1,15}", text) else None


def calculate(left: int | None, operator: str, right: int | None) -> int | None:
    """One operation on whole numbers, division towards zero; None if unknown or undefined."""
    if left is None or right is None:
        return None
    if operator in ("/", "%"):
        if right == 0:
            return None
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    if operator in ("**", "<<") and not 0 <= right < 64:
        return None
    operation = _OPERATIONS.get(operator)
    return None if operation is None else int(operation(left, right))


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "**": lambda a, b: int(a**b) if abs(a) < 2**16 else 0,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> min(max(b, 0), 63),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}


def changed(value: str, operator: str, rest: str) -> str | None:
    """`${NAME%suffix}` and its kin on a known value; None for those not read."""
    if operator in ("%", "%%"):
        cuts = range(len(value), -1, -1) if operator == "%" else range(len(value) + 1)
        return next((value[:cut] for cut in cuts if fnmatchcase(value[cut:], rest)), value)
    if operator in ("#", "##"):
        cuts = range(len(value) + 1) if operator == "#" else range(len(value), -1, -1)
        return next((value[cut:] for cut in cuts if fnmatchcase(value[:cut], rest)), value)
    if operator in ("/", "//"):
        old, _, new = rest.partition("/")
        if not old or any(sign in old for sign in "*?["):
            return None
        return value.replace(old, new, 1 if operator == "/" else -1)
    if operator in ("^^", ",,"):
        return value.upper() if operator == "^^" else value.lower()
    return None
