"""Arguments of a training program: `--name value`, `--name=value`, flags, and mappings of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from simulator.errors import Place
from simulator.importing.shell_script import Note
from simulator.importing.text_pieces import Piece, Text, is_known, literal, plain
from simulator.yaml_lines import Located


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument as it was given."""

    name: str
    """With underscores, without dashes in front."""
    spelled: str
    """As written: `--num-layers`, or a key of a mapping."""
    values: tuple[Text, ...]
    place: Place

    @property
    def text(self) -> str:
        """The values as written, joined by blanks."""
        return " ".join(plain(value) for value in self.values)

    @property
    def is_known(self) -> bool:
        """Whether every value is."""
        return all(is_known(value) for value in self.values)

    @property
    def denied(self) -> bool:
        """A flag of a mapping that is switched off, or an option that holds nothing."""
        return len(self.values) == 1 and self.text.lower() in ("false", "null", "none", "~", "")


def read_arguments(words: Iterable[Text], source: str) -> tuple[list[Argument], list[Note]]:
    """Options with the words that follow them, in order; and notes on what is left over."""
    found: list[tuple[Text, str, list[Text]]] = []
    notes: list[Note] = []
    for word in _separated(words, notes):
        text = plain(word)
        if re.match(r"--[A-Za-z]", text):
            spelled, equals, _ = text.partition("=")
            values = [_after(word, len(spelled) + 1)] if equals else []
            found.append((word, spelled, values))
        elif found and found[-1][2] and _is_unset(word):
            notes.append(Note(f"taken as nothing, since nothing sets it: {text}", word[0].line))
        elif found:
            found[-1][2].append(word)
        else:
            notes.append(Note(f"passed over: {text}", word[0].line))
    return [
        Argument(_name(spelled), spelled, tuple(values), Place(source, word[0].line))
        for word, spelled, values in found
    ], notes


def _is_unset(word: Text) -> bool:
    """Whether a word is a variable alone that the script does not set."""
    return not is_known(word) and re.fullmatch(r"\$\{?\w+\}?", plain(word)) is not None


def _separated(words: Iterable[Text], notes: list[Note]) -> Iterator[Text]:
    """`"--name value"` in one word, as quoted array elements have it, taken as two."""
    for word in words:
        text = plain(word)
        if re.match(r"--[A-Za-z][\w-]*\s+\S", text) and len(word) >= 1:
            notes.append(Note(f"one word, taken as several: {text}", word[0].line))
            name = text.split()[0]
            yield (Piece(name, word[0].line),)
            for value in text.split()[1:]:
                known = is_known(word) or "$" not in value
                yield (Piece(value.strip("'\""), word[0].line, known=known),)
        else:
            yield word


def _after(word: Text, skip: int) -> Text:
    """What is left of a word after its first characters."""
    kept: list[Piece] = []
    for piece in word:
        if skip < len(piece.text):
            kept.append(Piece(piece.text[skip:], piece.line, known=piece.known))
        skip = max(0, skip - len(piece.text))
    return tuple(kept) or (Piece("", word[0].line),)


def _name(spelled: str) -> str:
    return spelled.lstrip("-").replace("-", "_")


def mapped_arguments(tree: Located, environment: Mapping[str, str]) -> list[Argument]:
    """Arguments of a YAML or JSON file: the leaves of its mappings, whatever their sections.

    `--flag: true` is a flag, `false` leaves it out. `${NAME}` takes a value of `environment`.
    """
    return list(_leaves(tree, environment))


def _leaves(tree: Located, environment: Mapping[str, str]) -> Iterator[Argument]:
    for key, child in (tree.mapping or {}).items():
        if child.mapping is not None:
            yield from _leaves(child, environment)
            continue
        items = child.value if isinstance(child.value, list) else [child]
        texts = ["null" if item.value is None else str(item.plain()) for item in items]
        values = tuple(filled(text, child.place.line, environment) for text in texts)
        flag = len(texts) == 1 and texts[0].lower() == "true"
        yield Argument(_name(key), key, () if flag else values, child.place)


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")


def filled(text: str, line: int, environment: Mapping[str, str]) -> Text:
    """A text with its `$NAME`, `${NAME}` and `${NAME:-default}` replaced by what is told."""
    pieces: list[Piece] = []
    at = 0
    for found in _VARIABLE.finditer(text):
        pieces.extend(literal(text[at : found.start()], line))
        value = environment.get(found[1] or found[3], found[2])
        written = found[0] if value is None else value
        pieces.append(Piece(written, line, known=value is not None))
        at = found.end()
    pieces.extend(literal(text[at:], line))
    return tuple(piece for piece in pieces if piece.text) or literal("", line)
