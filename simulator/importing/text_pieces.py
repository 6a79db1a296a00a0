"""Text of a shell script whose parts know the line they come from and whether they are known.

`"--save $OUT --num-layers 4"` is three pieces, the middle one unknown where nothing sets OUT. A
variable keeps its pieces, so that splitting it into words later still tells lines and unknowns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text."""

    text: str
    """Its value, or how it is written where that is not known."""
    line: int
    """From 1, in the script."""
    known: bool = True
    quoted: bool = False
    """Not split at blanks."""
    breaks: bool = False
    """A border between two words, as between the elements of an array."""


Text: TypeAlias = tuple[Piece, ...]


def plain(text: Iterable[Piece]) -> str:
    """The text as one string, unknown parts as they are written."""
    return "".join(" " if piece.breaks else piece.text for piece in text)


def is_known(text: Text) -> bool:
    """Whether every part of it is."""
    return all(piece.known for piece in text)


def unknown_parts(text: Text) -> tuple[str, ...]:
    """What is not known of it, as written, each once."""
    return tuple(dict.fromkeys(piece.text for piece in text if not piece.known))


def quote(text: Text, line: int) -> Text:
    """The same text inside double quotes: not split again, and a word even if empty."""
    kept = tuple(piece if piece.breaks else replace(piece, quoted=True) for piece in text)
    return kept or (Piece("", line, quoted=True),)


def as_value(text: Text) -> Text:
    """What a variable holds after `NAME=text`: quotes gone, words joined by blanks."""
    return tuple(
        Piece(" ", piece.line) if piece.breaks else replace(piece, quoted=False) for piece in text
    )


def literal(text: str, line: int, quoted: bool = False) -> Text:
    """A text as it stands, which begins on `line`: a piece per line of it."""
    rows = text.splitlines(keepends=True) or [""]
    return tuple(Piece(row, line + i, quoted=quoted) for i, row in enumerate(rows))


def split_words(text: Text) -> list[Text]:
    """Words as the shell splits them: at blanks that no quotes cover, and between elements."""
    words: list[list[Piece]] = []
    inside = False
    for piece in text:
        if piece.breaks:
            inside = False
            continue
        if piece.quoted or not piece.known:
            inside = _add(words, piece, inside)
            continue
        position = 0
        for part in piece.text.split():
            start = piece.text.index(part, position)
            inside = _add(words, replace(piece, text=part), inside and start == position)
            position = start + len(part)
        inside = inside and position == len(piece.text)
    return [tuple(word) for word in words]


def _add(words: list[list[Piece]], piece: Piece, joins: bool) -> bool:
    if joins:
        words[-1].append(piece)
    else:
        words.append([piece])
    return True
