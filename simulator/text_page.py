"""Lines of plain text on a console: laid out here, never wrapped by it, the same in a pipe."""

import textwrap
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

WIDEST = 100
"""Columns used at most: longer lines are hard to follow from end to end."""
_NARROWEST_TEXT = 20
_FEWEST_BAR = 6
_ASCII = str.maketrans(
    {"·": "|", "µ": "u", "…": "~", "█": "#", "▌": "#", "−": "-", "×": "x", "\xa0": " "}
)

STRONG, DIM, BAD, GOOD, PLAIN_BAR = "bold", "dim", "red", "green", "cyan"


@dataclass(frozen=True)
class TextPage:
    """Lines cut at the console's width, in ASCII where it has nothing else."""

    console: Console

    @property
    def width(self) -> int:
        return min(self.console.width, WIDEST)

    def bar_width(self, used: int) -> int:
        """Columns left for bars, 0 where too few are."""
        left = self.width - used
        return left if left >= _FEWEST_BAR else 0

    def line(self, *parts: str | tuple[str, str], style: str = "") -> None:
        """One line of words, each with a style of its own or `style`."""
        text = Text()
        for part in parts:
            words, part_style = part if isinstance(part, tuple) else (part, style)
            text.append(words if self._unicode else _ascii(words), part_style)
        text.rstrip()
        self.console.print(
            text, no_wrap=True, overflow="ellipsis" if self._unicode else "crop", highlight=False
        )

    def paragraph(self, words: str, indent: str = "  ", hanging: str = "", style: str = "") -> None:
        """Prose, wrapped between words; lines after the first are indented by `hanging` more."""
        width = max(self.width, _NARROWEST_TEXT)
        for line in textwrap.wrap(
            words, width, initial_indent=indent, subsequent_indent=indent + hanging,
            break_on_hyphens=False,
        ):  # fmt: skip
            self.line(line, style=style)

    def section(self, title: str) -> None:
        """A title, apart from what came before."""
        self.line()
        self.line(title, style=STRONG)

    @property
    def _unicode(self) -> bool:
        return not self.console.options.ascii_only


def bar(low: float, high: float, width: int) -> str:
    """A bar from `low` to `high`, fractions of `width` columns; a sliver is never invisible."""
    if width <= 0:
        return ""
    start, end = (round(min(max(x, 0.0), 1.0) * width * 2) for x in (low, high))
    start = min(start, end, 2 * width - 1)
    if end == start and high > low:
        end = start + 1
    full, half = divmod(end, 2)
    blank = start // 2
    return " " * blank + "█" * (full - blank) + "▌" * half


def cut(text: str, width: int) -> str:
    """`text`, or as much of it as fits `width`."""
    return text if len(text) <= width else text[: width - 1] + "…"


def _ascii(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")
