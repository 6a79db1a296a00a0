"""Conditions of a shell script: true, false, or not to be told from the script alone."""

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simulator.importing.shell_values import Shell
from simulator.importing.text_pieces import is_known, plain

if TYPE_CHECKING:
    from tree_sitter import Node

_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
}


def holds(shell: Shell, node: "Node") -> bool | None:
    """Whether `[ ... ]`, `[[ ... ]]` or `(( ... ))` holds; None where the script does not say.

    A variable that nothing sets counts as empty, and is noted in `shell.assumed_unset`.
    """
    shell.unset_is_empty = True
    try:
        return _holds(shell, node)
    finally:
        shell.unset_is_empty = False


def _holds(shell: Shell, node: "Node") -> bool | None:
    if node.type in ("test_command", "parenthesized_expression"):
        if node.children and node.children[0].type == "((":
            number = shell.number_inside(node)
            return None if number is None else number != 0
        inside = node.named_children
        return _holds(shell, inside[0]) if len(inside) == 1 else None
    if node.type == "unary_expression":
        return _unary(shell, node)
    if node.type == "binary_expression":
        return _binary(shell, node)
    if node.type in ("negated_command", "negation_expression"):
        return _not(_holds(shell, node.named_children[-1]))
    if node.type == "ERROR":
        return None
    value = shell.text(node)
    return bool(plain(value)) if is_known(value) else None


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _unary(shell: Shell, node: "Node") -> bool | None:
    operator = node.children[0].type
    written = (node.children[0].text or b"").decode()
    operand = node.named_children[-1]
    if operator == "!":
        return _not(_holds(shell, operand))
    if written not in ("-z", "-n"):
        return None
    value = shell.text(operand)
    if not is_known(value):
        return None
    return bool(plain(value)) == (written == "-n")


def _binary(shell: Shell, node: "Node") -> bool | None:
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    middle = node.child_by_field_name("operator")
    if left is None or right is None or middle is None:
        return None
    operator = (middle.text or b"").decode()
    if operator in ("&&", "-a", "||", "-o"):
        both = operator in ("&&", "-a")
        found = _holds(shell, left), _holds(shell, right)
        if (not both) in found:
            return not both
        return None if None in found else both
    if operator in _COMPARE:
        numbers = shell.number(left), shell.number(right)
        if numbers[0] is None or numbers[1] is None:
            return None
        return _COMPARE[operator](numbers[0], numbers[1])
    one, other = shell.text(left), shell.text(right)
    if not is_known(one) or not is_known(other):
        return None
    return _compare_text(plain(one), operator, plain(other))


def _compare_text(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "==", "!="):
        same = left == right or fnmatchcase(left, right)
        return same == (operator != "!=")
    if operator == "=~" and re.fullmatch(r"[\w^$.|() -]*", right):
        return re.search(right, left) is not None
    return None
