"""Values of a shell script, worked out from its syntax tree: expansions, arithmetic, patterns.

Nothing is run. What a script cannot tell by itself (a command's output, an unset variable) stays
unknown and keeps its written form.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from simulator.errors import ConfigError, Place, Problem
from simulator.importing.shell_arithmetic import calculate, changed, whole
from simulator.importing.text_pieces import (
    Piece,
    Text,
    as_value,
    is_known,
    literal,
    plain,
    quote,
    split_words,
)

if TYPE_CHECKING:
    from tree_sitter import Node

Variable = Mapping[str, Text]
"""Index -> value; a plain variable has the index "0"."""

MAX_VALUE_CHARACTERS = 200_000
MAX_STEPS = 200_000


@dataclass
class Shell:
    """A script's variables while it is read, and what had to be assumed."""

    source: str
    """Path of the script, for messages."""
    variables: dict[str, Variable] = field(default_factory=dict)
    unset_is_empty: bool = False
    """Inside a test, a variable that nothing sets counts as empty."""
    assumed_unset: list[str] = field(default_factory=list)
    line_of: Callable[[int], int] = lambda offset: 0
    """Line of a byte of the text that is being read; it may be a string of the script."""
    steps: int = 0

    def step(self, line: int) -> None:
        """Count the work done. Raises `ConfigError` where a script would keep us for ever."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise self.refuse("unfolds to too many commands to be read", line)

    def refuse(self, message: str, line: int) -> ConfigError:
        """The error that something on a line cannot be read."""
        return ConfigError(Problem(message, place=Place(self.source, line)))

    def line(self, node: "Node") -> int:
        """The script's line on which a node begins."""
        return self.line_of(_start(node))

    def assign(self, name: str, value: Text, *, append: bool = False, index: str = "0") -> None:
        """Set a variable, or one element of it."""
        old = self.variables.get(name, {})
        value = as_value(value)
        if append:
            value = (*old.get(index, ()), *value)
        if sum(len(piece.text) for piece in value) > MAX_VALUE_CHARACTERS:
            raise self.refuse(f"{name} grows too large to be read", value[-1].line)
        self.variables[name] = {**old, index: value}

    def assign_array(self, name: str, items: list[tuple[str, Text]], *, append: bool) -> None:
        """Set an array from (index or "", value) in order."""
        kept = dict(self.variables.get(name, {})) if append else {}
        for index, value in items:
            kept[index or str(len(kept))] = as_value(value)
        self.variables[name] = kept

    def text(self, node: "Node") -> Text:
        """The value of a word, string, expansion or concatenation, not yet split into words."""
        kind, line = node.type, self.line(node)
        self.step(line)
        if kind == "string":
            value = self._inside(node, node.start_byte + 1, node.end_byte - 1, True)
            return () if not value and _is_list(node) else quote(value, line)
        if kind in ("raw_string", "ansi_c_string"):
            start = 1 if kind == "raw_string" else 2
            return literal(_source(node)[start:-1], line, quoted=True)
        if kind in ("simple_expansion", "expansion"):
            return self._expansion(node)
        if kind == "arithmetic_expansion":
            number = self.number_inside(node)
            return self._unknown(node) if number is None else (Piece(str(number), line),)
        if kind == "command_substitution":
            return self._substitution(node)
        if kind == "process_substitution":
            return self._unknown(node)
        if kind in ("command_name", "concatenation") or node.named_child_count:
            return self._inside(node, node.start_byte, node.end_byte, False)
        return self._unescaped(_source(node), node.start_byte, False)

    def words(self, node: "Node") -> list[Text]:
        """The words a node stands for on a command line or in an array."""
        return split_words(self.text(node))

    def _unknown(self, node: "Node") -> Text:
        return (Piece(_source(node).lstrip(), self.line(node), known=False),)

    def _inside(self, node: "Node", start: int, end: int, in_quotes: bool) -> Text:
        """Children in order, with the text between them, which the grammar does not always name."""
        whole = node.text or b""
        parts: list[Piece] = []
        at = start
        for child in node.named_children:
            if child.type == "string_content":
                continue
            between = whole[at - node.start_byte : _start(child) - node.start_byte]
            parts.extend(self._unescaped(between.decode(), at, in_quotes))
            parts.extend(self.text(child))
            at = child.end_byte
        rest = whole[at - node.start_byte : end - node.start_byte]
        return (*parts, *self._unescaped(rest.decode(), at, in_quotes))

    def _unescaped(self, text: str, start: int, in_quotes: bool) -> Text:
        """A bare text with its backslashes taken out; line by line, for lines to be told."""
        pieces: list[Piece] = []
        at = start
        for row in text.splitlines(keepends=True):
            line = self.line_of(at)
            at += len(row.encode())
            pattern = r'\\(\n|[$`"\\])' if in_quotes else r"\\(\n|.)"
            value = re.sub(pattern, lambda found: found[1].strip("\n"), row)
            if value:
                pieces.append(Piece(value, line))
        return tuple(pieces)

    # Expansions

    def _expansion(self, node: "Node") -> Text:
        names = [c for c in node.children if c.type in _NAMES]
        operators = [c for c in node.children if not c.is_named and c.type not in _BRACKETS]
        if not names:
            return self._unknown(node)
        named, first = names[0], node.children[1] if node.child_count > 1 else None
        if first is not None and first.type in ("#", "!") and first.start_byte < named.start_byte:
            return self._prefixed(node, first.type, named)
        value = self._value(named)
        operator = next((o for o in operators if o.start_byte >= named.end_byte), None)
        if operator is None:
            if value is None and named.type == "special_variable_name":
                return () if _source(named) in "@*" else self._unknown(node)
            return self._unset(node, named) if value is None else value
        rest_start = operator.end_byte
        return self._operated(node, named, operator.type, rest_start, value)

    def _unset(self, node: "Node", named: "Node") -> Text:
        if self.unset_is_empty and named.type == "variable_name":
            self.assumed_unset.append(_source(named))
            return ()
        return self._unknown(node)

    def _value(self, named: "Node") -> Text | None:
        """Value of a variable, of one element, or of all of an array with borders between."""
        if named.type != "subscript":
            held = self.variables.get(_source(named))
            return None if held is None else held.get("0", next(iter(held.values()), ()))
        name = named.child_by_field_name("name")
        index = named.child_by_field_name("index")
        if name is None or index is None:
            return None
        held = self.variables.get(_source(name))
        key = plain(self.text(index))
        if key in ("@", "*"):
            return () if held is None else _joined(list(held.values()))
        if held is None:
            return None
        if key not in held and (number := self.number(index)) is not None:
            key = str(number)
        return held.get(key, ())

    def _prefixed(self, node: "Node", operator: str, named: "Node") -> Text:
        line = self.line(node)
        value = self._value(named)
        if operator == "#":
            whole = named.type == "subscript" and _source(named)[-2:-1] in ("@", "*")
            if value is None or not (whole or is_known(value)):
                return self._unknown(node)
            borders = sum(piece.breaks for piece in value)
            size = (borders + 1 if value else 0) if whole else len(plain(value))
            return (Piece(str(size), line),)
        if value is None or not is_known(value):
            return self._unknown(node)
        held = self.variables.get(plain(value))
        return self._unknown(node) if held is None else held.get("0", ())

    def _operated(
        self, node: "Node", named: "Node", operator: str, start: int, value: Text | None
    ) -> Text:
        """`${NAME operator rest}`, the rest read only where it is used."""

        def rest() -> Text:
            inside = [c for c in node.named_children if c.start_byte >= start]
            if len(inside) == 1 and inside[0].start_byte == start:
                whole = inside[0].end_byte == node.end_byte - 1
                if whole:
                    return self.text(inside[0])
            return self._rest(node, inside, start)

        if operator in (":-", "-", ":=", "="):
            lacking = value is None or (operator[0] == ":" and not value)
            if not lacking:
                return value or ()
            chosen = rest()
            if operator.endswith("=") and named.type == "variable_name":
                self.assign(_source(named), chosen)
            return chosen
        if operator in (":+", "+"):
            return rest() if value else ()
        if operator in (":?", "?"):
            return self._unknown(node) if value is None else value
        if value is None or not is_known(value):
            return self._unset(node, named) if value is None else self._unknown(node)
        new = changed(plain(value), operator, plain(rest()))
        return self._unknown(node) if new is None else (Piece(new, self.line(node)),)

    def _rest(self, node: "Node", inside: "list[Node]", start: int) -> Text:
        whole, parts, at = node.text or b"", list[Piece](), start
        for child in inside:
            between = whole[at - node.start_byte : _start(child) - node.start_byte]
            parts.extend(self._unescaped(between.decode(), at, True))
            parts.extend(self.text(child))
            at = child.end_byte
        last = whole[at - node.start_byte : -1]
        return (*parts, *self._unescaped(last.decode(), at, True))

    def _substitution(self, node: "Node") -> Text:
        """The output of `echo WORDS` and `expr A op B`; of any other command it is unknown."""
        inside = node.named_children
        if len(inside) == 1 and inside[0].type == "command":
            words = [word for child in inside[0].named_children for word in self.words(child)]
            if words and all(is_known(word) for word in words):
                told = [plain(word) for word in words]
                if told[0] == "echo" and "-" not in told[-1][:1]:
                    return (Piece(" ".join(told[1:]), self.line(node)),)
                if told[0] == "expr" and len(told) == 4:
                    numbers = whole(told[1]), whole(told[3])
                    result = calculate(numbers[0], told[2], numbers[1])
                    if result is not None:
                        return (Piece(str(result), self.line(node)),)
        return self._unknown(node)

    # Arithmetic

    def number_inside(self, node: "Node") -> int | None:
        """Value of `$(( ))` or `(( ))`; None where it is not known."""
        inside = [child for child in node.named_children if child.type != "comment"]
        return self.number(inside[-1]) if inside else None

    def number(self, node: "Node") -> int | None:
        """Value of an arithmetic expression, whole numbers as the shell has them."""
        self.step(self.line(node))
        kind = node.type
        if kind == "parenthesized_expression":
            return self.number_inside(node)
        if kind == "binary_expression":
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            operator = node.child_by_field_name("operator")
            if left is None or right is None or operator is None:
                return None
            return calculate(self.number(left), _source(operator), self.number(right))
        if kind == "ternary_expression":
            parts = [node.child_by_field_name(n) for n in _TERNARY]
            if any(part is None for part in parts):
                return None
            condition, yes, no = (part for part in parts if part is not None)
            chosen = self.number(condition)
            return None if chosen is None else self.number(yes if chosen else no)
        if kind == "unary_expression" and node.named_children:
            inner = self.number(node.named_children[-1])
            sign = _source(node)[0]
            if inner is None:
                return None
            return {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}.get(sign)
        if kind in ("variable_name", "word") and not _source(node)[:1].isdigit():
            held = self.variables.get(_source(node))
            return None if held is None else self._as_number(held.get("0", ()))
        return self._as_number(self.text(node))

    def _as_number(self, text: Text) -> int | None:
        return whole(plain(text)) if is_known(text) else None


_NAMES = ("variable_name", "special_variable_name", "subscript")
_BRACKETS = ("$", "${", "}", '"')
_TERNARY = ("condition", "consequence", "alternative")


def _start(node: "Node") -> int:
    """First byte of a node. The grammar counts blanks before `$` inside quotes to an expansion."""
    text = node.text or b""
    blanks = len(text) - len(text.lstrip()) if b"$" in text[:200] or b"`" in text[:200] else 0
    return node.start_byte + blanks


def _source(node: "Node") -> str:
    return (node.text or b"").decode("utf-8", "replace")


def _is_list(string: "Node") -> bool:
    """Whether a string is `"$@"` or `"${NAME[@]}"`, which may be no word at all."""
    return _source(string) in ('"$@"', '"${@}"') or _source(string).endswith('[@]}"')


def _joined(items: list[Text]) -> Text:
    """Array elements in order, with borders that keep them apart."""
    return tuple(_with_borders(items))


def _with_borders(items: list[Text]) -> Iterator[Piece]:
    for i, item in enumerate(items):
        if i:
            yield Piece("", item[0].line if item else 0, breaks=True)
        yield from item
