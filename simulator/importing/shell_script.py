"""Reads a shell script as text: which commands it would run, with which words. Never runs it.

tree-sitter's grammar of bash gives the syntax tree; this module walks its statements in order.
Branches are followed where their condition is evident from the script; where it is not, the
condition counts as false (or the branch that leaves the script is passed over), and a note says so.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from simulator.importing.shell_tests import holds
from simulator.importing.shell_values import Shell, Variable
from simulator.importing.text_pieces import (
    Piece,
    Text,
    as_value,
    is_known,
    literal,
    plain,
    split_words,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 20
"""Of functions, `eval` and `bash -c` in each other."""
MAX_TURNS = 256
"""Of a `for` loop over a list."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command the script would run, its words expanded."""

    words: tuple[Text, ...]
    line: int
    around: tuple[Text, ...] = ()
    """Words of the command that starts it: `srun -N 4 bash -c "..."`."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something assumed or passed over."""

    message: str
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """What was read of a script."""

    commands: tuple[Command, ...]
    variables: Mapping[str, Variable]
    """As they stand at its end."""
    notes: tuple[Note, ...]


def read_script(text: str, source: str, environment: Mapping[str, str] | None = None) -> Script:
    """Walk a script; `environment` sets variables (and `1`, `2`, ... for its arguments) before it.

    Raises `ConfigError` where it is too large or too deep to be read.
    """
    shell = Shell(source)
    for name, value in (environment or {}).items():
        shell.assign(name, literal(value, 0))
    reader = _Reader(shell)
    try:
        reader.run_text(literal(text, 1))
    except RecursionError:
        raise shell.refuse("is nested too deeply to be read", 1) from None
    return Script(tuple(reader.commands), dict(shell.variables), tuple(reader.notes))


@dataclass
class _Reader:
    shell: Shell
    commands: list[Command] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    functions: dict[str, "Node"] = field(default_factory=dict)
    around: tuple[Text, ...] = ()
    depth: int = 0

    def run_text(self, text: Text) -> None:
        """Read a whole script, or a string that the script runs."""
        import tree_sitter_bash
        from tree_sitter import Language, Parser

        if self.depth >= MAX_DEPTH:
            self.note("runs strings or functions in each other too deeply", text)
            return
        parser = Parser(Language(tree_sitter_bash.language()))
        root = parser.parse(plain(text).encode()).root_node
        outer, self.shell.line_of = self.shell.line_of, _lines(text)
        self.depth += 1
        if root.has_error:
            self._note_errors(root)
        self.run(root)
        self.depth -= 1
        self.shell.line_of = outer

    def note(self, message: str, at: "Node | Text") -> None:
        """Remember something assumed, once."""
        line = (at[0].line if at else 0) if isinstance(at, tuple) else self.shell.line(at)
        note = Note(message, line)
        if note not in self.notes:
            self.notes.append(note)

    def _note_errors(self, root: "Node") -> None:
        bad = next((node for node in _walk(root) if node.type == "ERROR" or node.is_missing), root)
        self.note("is not quite shell; read as far as it can be understood", bad)

    def run(self, node: "Node") -> bool | None:
        """Follow a statement; whether it succeeds, None where that is not known."""
        self.shell.step(self.shell.line(node))
        follow = getattr(self, f"_run_{node.type}", None)
        if follow is not None:
            result: bool | None = follow(node)
            return result
        return self._run_all(node.named_children)

    def _run_all(self, nodes: "list[Node]") -> bool | None:
        result: bool | None = True
        for node in nodes:
            result = self.run(node)
        return result

    # Statements, by the names of the grammar

    def _run_comment(self, node: "Node") -> bool | None:
        return True

    _run_heredoc_redirect = _run_herestring_redirect = _run_file_redirect = _run_comment

    def _run_variable_assignment(self, node: "Node") -> bool | None:
        named = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        if named is None:
            return True
        append = any(child.type == "+=" for child in node.children)
        name, index = (named.text or b"").decode(), "0"
        if named.type == "subscript":
            base, key = named.child_by_field_name("name"), named.child_by_field_name("index")
            name = (base.text or b"").decode() if base else name
            index = plain(self.shell.text(key)) if key else "0"
        if value is not None and value.type == "array":
            self.shell.assign_array(name, list(self._elements(value)), append=append)
            return True
        text = () if value is None else self.shell.text(value)
        self.shell.assign(name, text, append=append, index=index)
        return None if value is not None and value.type == "command_substitution" else True

    def _elements(self, array: "Node") -> "Iterator[tuple[str, Text]]":
        for child in array.named_children:
            if child.type == "comment":
                continue
            written = (child.text or b"").decode()
            key, equals, _ = written.partition("]=")
            for word in self.shell.words(child):
                if equals and written.startswith("["):
                    inner = plain(word).partition("]=")[2]
                    yield key[1:].strip("\"'"), literal(inner, self.shell.line(child))
                else:
                    yield "", word

    def _run_declaration_command(self, node: "Node") -> bool | None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.run(child)
        return True

    def _run_unset_command(self, node: "Node") -> bool | None:
        for child in node.named_children:
            self.shell.variables.pop((child.text or b"").decode(), None)
        return True

    def _run_test_command(self, node: "Node") -> bool | None:
        return self._test(node)

    def _run_compound_statement(self, node: "Node") -> bool | None:
        if node.children and node.children[0].type == "((":
            return self._test(node)
        return self._run_all(node.named_children)

    def _test(self, node: "Node") -> bool | None:
        self.shell.assumed_unset.clear()
        result = holds(self.shell, node) if node.type == "test_command" else self._number(node)
        for name in dict.fromkeys(self.shell.assumed_unset):
            self.note(f"taken as not set: {name}", node)
        return result

    def _number(self, node: "Node") -> bool | None:
        number = self.shell.number_inside(node)
        return None if number is None else number != 0

    def _run_negated_command(self, node: "Node") -> bool | None:
        result = self._run_all(node.named_children)
        return None if result is None else not result

    def _run_list(self, node: "Node") -> bool | None:
        """`A && B`, `A || B`: a command is taken to succeed, a test not known to fail."""
        left, right = node.named_children[0], node.named_children[-1]
        result = self.run(left)
        if result is None and left.type in ("test_command", "compound_statement"):
            self._assumed_false(left)
            result = False
        followed = any(child.type == "&&" for child in node.children)
        if followed == (result is not False):
            return self.run(right)
        return result

    def _run_redirected_statement(self, node: "Node") -> bool | None:
        body = node.child_by_field_name("body")
        return True if body is None else self.run(body)

    def _run_function_definition(self, node: "Node") -> bool | None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[(name.text or b"").decode()] = body
        return True

    def _run_if_statement(self, node: "Node") -> bool | None:
        branches = list(_branches(node))
        for i, (condition, body) in enumerate(branches):
            result = True if condition is None else self._run_all(condition)
            if result is None and condition is not None:
                others = branches[i + 1 :]
                only_way = bool(others) and others[-1][0] is None and _leaves(others[-1][1])
                result = only_way and not _leaves(body)
                if not _leaves(body):
                    self._assumed(result, condition[0])
            if result:
                return self._run_all(body)
        return True

    def _assumed_false(self, condition: "Node") -> None:
        self._assumed(False, condition)

    def _assumed(self, result: bool, condition: "Node") -> None:
        written = " ".join((condition.text or b"").decode().split())
        self.note(f"not known, taken as {str(result).lower()}: {written}", condition)

    def _run_case_statement(self, node: "Node") -> bool | None:
        subject = node.child_by_field_name("value")
        value = () if subject is None else self.shell.text(subject)
        for item in (child for child in node.named_children if child.type == "case_item"):
            patterns = item.children_by_field_name("value")
            told = [plain(self.shell.text(pattern)) for pattern in patterns]
            default = told == ["*"]
            if default and not is_known(value):
                self.note(f"not known, its default taken: case {plain(value)}", node)
            if default or (is_known(value) and any(fnmatchcase(plain(value), p) for p in told)):
                inside = [child for child in item.named_children if child not in patterns]
                return self._run_all(inside)
        return True

    def _run_for_statement(self, node: "Node") -> bool | None:
        variable = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if variable is None or body is None:
            return True
        values = node.children_by_field_name("value")
        words = [word for value in values for word in self.shell.words(value)]
        name = (variable.text or b"").decode()
        if len(words) > MAX_TURNS:
            self.note(f"only the first {MAX_TURNS} turns of the loop followed", node)
        for word in words[:MAX_TURNS]:
            self.shell.assign(name, word)
            self.run(body)
        return True

    def _run_while_statement(self, node: "Node") -> bool | None:
        self.note("a loop, not followed", node)
        return True

    _run_c_style_for_statement = _run_while_statement

    def _run_pipeline(self, node: "Node") -> bool | None:
        self._run_all(node.named_children)
        return None

    def _run_command(self, node: "Node") -> bool | None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self.run(child)
        words = [
            word
            for child in node.named_children
            if child.type not in ("variable_assignment", "file_redirect", "herestring_redirect")
            for word in self.shell.words(child)
        ]
        return self._run_words(words, self.shell.line(node))

    def _run_words(self, words: list[Text], line: int) -> bool | None:
        if not words:
            return True
        name = plain(words[0])
        if name in self.functions and self.depth < MAX_DEPTH:
            return self._call(name, words)
        if name in ("true", ":", "echo"):
            return True
        if name == "false":
            return False
        if name in ("source", ".") and len(words) > 1:
            at = Piece("", line)
            self.note(f"not read: {plain(words[1])}; what it sets is unknown", (at,))
        if name == "let" and len(words) > 1:
            return self._let(words[1:])
        if name == "set" and len(words) > 1 and plain(words[1]) == "--":
            self._set_arguments(words[2:])
        self.commands.append(Command(tuple(words), line, self.around))
        inner = _inner_script(words)
        if inner is not None:
            outer, self.around = self.around, (*self.around, *words[: words.index(inner[0])])
            self.run_text(_joined_words(inner))
            self.around = outer
        return None

    def _let(self, words: list[Text]) -> bool | None:
        for word in words:
            name, equals, value = plain(word).partition("=")
            if equals:
                self.run_text(literal(f"{name.strip()}=$(({value}))", word[0].line))
        return True

    def _call(self, name: str, words: list[Text]) -> bool | None:
        before = dict(self.shell.variables)
        self._set_arguments(words[1:])
        self.depth += 1
        result = self.run(self.functions[name])
        self.depth -= 1
        for key in [key for key in self.shell.variables if _is_argument(key)]:
            del self.shell.variables[key]
        kept = {key: value for key, value in before.items() if _is_argument(key)}
        self.shell.variables.update(kept)
        return result

    def _set_arguments(self, words: list[Text]) -> None:
        for i, word in enumerate(words, start=1):
            self.shell.variables[str(i)] = {"0": as_value(word)}
        self.shell.variables["@"] = {str(i): as_value(word) for i, word in enumerate(words)}


def _is_argument(name: str) -> bool:
    return name.isdigit() or name == "@"


def _branches(node: "Node") -> "Iterator[tuple[list[Node] | None, list[Node]]]":
    """Condition and body of `if`, of every `elif`, and None and body of `else`, in order."""
    condition: list[Node] = []
    body: list[Node] = []
    clauses: list[Node] = []
    after_then = False
    for child in node.children:
        if child.type == "then":
            after_then = True
        elif child.type in ("elif_clause", "else_clause"):
            clauses.append(child)
        elif child.is_named and child.type != "comment":
            (body if after_then else condition).append(child)
    yield condition, body
    for clause in clauses:
        if clause.type == "else_clause":
            yield None, clause.named_children
        else:
            yield from _branches(clause)


def _leaves(body: "list[Node]") -> bool:
    """Whether a branch ends the script."""
    names = [node.child_by_field_name("name") for node in body if node.type == "command"]
    return any(name is not None and name.text in (b"exit", b"return") for name in names)


def _walk(node: "Node") -> "Iterator[Node]":
    waiting = [node]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def _inner_script(words: list[Text]) -> list[Text] | None:
    """The words that a command runs as a script: of `eval`, or of a shell's -c."""
    told = [plain(word) for word in words]
    if told[0] == "eval":
        return words[1:] or None
    for i in range(len(told) - 2):
        name = told[i].rpartition("/")[2]
        if name in ("bash", "sh") and told[i + 1].startswith("-") and "c" in told[i + 1]:
            return [words[i + 2]]
    return None


def _joined_words(words: list[Text]) -> Text:
    pieces: list[Piece] = []
    for word in words:
        pieces.extend([*word, Piece(" ", word[-1].line if word else 0)])
    return tuple(pieces)


def _lines(text: Text) -> Callable[[int], int]:
    """Byte of the text -> line of the script."""
    starts: list[int] = []
    at = 0
    for piece in text:
        starts.append(at)
        at += len(plain((piece,)).encode())

    def line_of(offset: int) -> int:
        return text[max(0, bisect_right(starts, offset) - 1)].line if text else 0

    return line_of


def words_of(variable: Variable) -> list[Text]:
    """All the words a variable holds, as it expands without quotes."""
    return [word for value in variable.values() for word in split_words(value)]
