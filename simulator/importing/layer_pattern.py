"""Megatron-LM's way to say a value for each layer: `([0]*3+[1]*58)`."""

import ast
import warnings

MAX_LAYERS = 10_000


def layer_pattern(text: str) -> list[int] | None:
    """The list such an expression stands for, None if the text is none.

    >>> layer_pattern("([0]*2+[1,0]*2)")
    [0, 0, 1, 0, 1, 0]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd numbers, which are no pattern anyhow
            return _list(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _list(node: ast.expr) -> list[int]:
    if isinstance(node, ast.List):
        return [_number(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _limited(_list(node.left) + _list(node.right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        one, times = _list(node.left), _number(node.right)
        if not 0 <= times * len(one) <= MAX_LAYERS:
            raise ValueError(times)
        return one * times
    raise ValueError(ast.dump(node))


def _limited(values: list[int]) -> list[int]:
    if len(values) > MAX_LAYERS:
        raise ValueError(len(values))
    return values


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    raise ValueError(ast.dump(node))
