"""YAML read as a tree of text with line numbers, without YAML's own conversions.

PyYAML turns `1e9` into a string, `010` into 8, `12:30` into 750 and `no` into False before a spec
sees them, and keeps the last of two equal keys. Here every scalar stays the text that was written,
for the specs' types to convert; only an empty value, `null` and `~` become None. Equal keys are
refused. Anchors, aliases and merge keys (`<<`) work. Size, depth and the nodes that aliases unfold
to are limited, so that no input can hang or exhaust the reader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from simulator.errors import ConfigError, Place, Problem

Scalar: TypeAlias = str | int | float | bool | None

MAX_FILE_BYTES = 256 * 1024
MAX_SCALAR_CHARACTERS = 10_000
MAX_DEPTH = 32
MAX_NODES = 20_000

_TAG = "tag:yaml.org,2002:"
_TAGS = ("null", "bool", "int", "float", "str", "timestamp", "value", "merge", "map", "seq")


@dataclass(frozen=True, slots=True)
class Located:
    """A value and where it was written; mappings and lists hold located values."""

    value: "Scalar | dict[str, Located] | list[Located]"
    place: Place
    """Of a mapping's entry: the line of its key."""

    @property
    def mapping(self) -> "dict[str, Located] | None":
        """The entries, if this is a mapping."""
        return self.value if isinstance(self.value, dict) else None

    def child(self, key: str) -> "Located | None":
        """The entry of a mapping, or of a list by its number."""
        if isinstance(self.value, dict):
            return self.value.get(key)
        if isinstance(self.value, list) and key.isdigit() and int(key) < len(self.value):
            return self.value[int(key)]
        return None

    def plain(self) -> object:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value


def locate(value: object, place: Place) -> Located:
    """Give every part of an ordinary value (of a catalog file) one and the same place."""
    if isinstance(value, dict):
        return Located({str(key): locate(child, place) for key, child in value.items()}, place)
    if isinstance(value, list | tuple):
        return Located([locate(child, place) for child in value], place)
    known = value is None or isinstance(value, str | int | float | bool)
    return Located(value if known else str(value), place)  # type: ignore[arg-type]


def read_yaml(path: Path, problems: list[Problem]) -> Located:
    """Read a file. Raises `ConfigError` where that is impossible; `problems` gets lesser faults."""
    whole = Place(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except IsADirectoryError:
        raise ConfigError(Problem("is a directory, not a YAML file", place=whole)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(Problem(f"cannot be read: {reason}", place=whole)) from None
    if len(raw) > MAX_FILE_BYTES:
        message = f"is larger than {MAX_FILE_BYTES // 1024} KiB, too large for a run file"
        raise ConfigError(Problem(message, place=whole))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        message = f"is not UTF-8 text: byte 0x{raw[error.start]:02x}"
        raise ConfigError(Problem(message, place=Place(str(path), line))) from None
    return parse_yaml(text, lambda line: Place(str(path), line), problems)


def parse_yaml(
    text: str,
    place_of: Callable[[int], Place],
    problems: list[Problem],
    path: tuple[str, ...] = (),
) -> Located:
    """Read YAML text into a tree; `place_of` gives the place of a line (from 1), `path` is where
    in a run file the value stands.

    Raises `ConfigError` for text that is no YAML or breaks a limit. Equal keys are added to
    `problems` and the first of them is kept, so that the rest can still be checked.
    """
    try:
        root = yaml.compose(text, Loader=_ShallowLoader)
    except _TooDeepError as error:
        place = place_of(error.line)
        raise ConfigError(Problem(_TOO_DEEP, path[0] if path else "", place)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = place_of(mark.line + 1 if mark else 1)
        raise ConfigError(Problem(f"is not valid YAML: {_reason(error)}", place=place)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"is not valid YAML: the character {chr(error.character)!a} is not allowed"
        raise ConfigError(Problem(message, place=place_of(line))) from None
    except (
        ValueError,
        OverflowError,
    ) as error:  # an escape such as "\UFFFFFFFF", which PyYAML passes to chr()
        raise ConfigError(Problem(f"is not valid YAML: {error}", place=place_of(1))) from None
    if root is None:
        return Located(None, place_of(1))
    place = place_of(root.start_mark.line + 1)
    return _Unfolding(place_of, problems).node(root, place, path)


_TOO_DEEP = f"is nested too deeply; at most {MAX_DEPTH} levels are read"


class _TooDeepError(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class _ShallowLoader(yaml.SafeLoader):
    """Composes nodes, and stops at a depth that no run file has, long before Python would."""

    depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        if self.depth > MAX_DEPTH:
            raise _TooDeepError(self.line + 1)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _reason(error: yaml.MarkedYAMLError) -> str:
    if error.problem and "'\\t'" in error.problem:
        return "a tab; indent with spaces"
    if error.problem and "<stream end>" in error.problem:
        return f"it ends {error.context or 'too early'}"
    context = f" {error.context}" if error.context else ""
    start, end = error.context_mark, error.problem_mark
    if context and start and end and start.line != end.line:
        context += f" that starts on line {start.line + 1}"
    return f"{error.problem or 'it ends too early'}{context}"


class _Unfolding:
    """Turns composed nodes into `Located`, with aliases unfolded and merge keys merged."""

    def __init__(self, place_of: Callable[[int], Place], problems: list[Problem]) -> None:
        self._place_of = place_of
        self._problems = problems
        self._count = 0

    def node(self, node: Node, place: Place, path: tuple[str, ...]) -> Located:
        self._count += 1
        if self._count > MAX_NODES:
            message = f"unfolds to more than {MAX_NODES:,} values, too many for a run file"
            raise ConfigError(Problem(message, path[0] if path else "", place))
        if len(path) > MAX_DEPTH:  # also reached by an alias that contains itself
            raise ConfigError(Problem(_TOO_DEEP, path[0], place))
        if node.tag.removeprefix(_TAG) not in _TAGS:
            self._report(f"the tag {node.tag} is not allowed", path, place)
        if isinstance(node, MappingNode):
            return Located(self._entries(node, path), place)
        if isinstance(node, SequenceNode):
            items = enumerate(node.value)
            return Located(
                [self.node(item, self._place(item), (*path, str(i))) for i, item in items], place
            )
        return Located(self._scalar(node, place), place)

    def _scalar(self, node: Node, place: Place) -> str | None:
        text = str(node.value)
        if len(text) > MAX_SCALAR_CHARACTERS:
            message = f"a value of more than {MAX_SCALAR_CHARACTERS:,} characters"
            raise ConfigError(Problem(message, place=place))
        return None if node.tag == _TAG + "null" else text

    def _report(self, message: str, path: tuple[str, ...], place: Place) -> None:
        self._problems.append(Problem(message, ".".join(path), place))

    def _place(self, node: Node) -> Place:
        return self._place_of(node.start_mark.line + 1)

    def _entries(self, node: MappingNode, path: tuple[str, ...]) -> dict[str, Located]:
        merged: dict[str, Located] = {}
        written: dict[str, Located] = {}
        for key, value in node.value:
            place = self._place(key)
            if key.tag == _TAG + "merge":
                for name, child in self._merge(value, place, path).items():
                    merged.setdefault(name, child)
            elif not isinstance(key, ScalarNode):
                self._report("a key must be text, not a collection", path, place)
            elif key.value in written:
                first = written[key.value].place
                where = f"; it is already set on line {first.line}" if first.line else ""
                self._report(f"repeated key{where}", (*path, str(key.value)), place)
            else:
                written[str(key.value)] = self.node(value, place, (*path, str(key.value)))
        return {**merged, **written}

    def _merge(self, node: Node, place: Place, path: tuple[str, ...]) -> dict[str, Located]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        entries: dict[str, Located] = {}
        for source in sources:
            located = self.node(source, place, (*path, "<<"))
            if located.mapping is None:
                self._report("<< must name a mapping to merge", path, place)
            for name, child in (located.mapping or {}).items():
                entries.setdefault(name, child)
        return entries
