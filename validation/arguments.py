"""Megatron-LM arguments quoted in the notes of a runs table, as a mapping.

Our own runs and Megatron-LM's CI jobs carry their whole command line; what it says wins over any
column or default.
"""

import re
import shlex
from collections.abc import Mapping

MARK = "arguments:"


def quoted_arguments(notes: str) -> dict[str, str]:
    """Option (without its dashes) -> value, "" for a flag.

    >>> quoted_arguments("max 3 MiB; arguments: --swiglu --num-layers 8")
    {'swiglu': '', 'num-layers': '8'}
    """
    _, mark, text = notes.partition(MARK)
    if not mark:
        return {}
    found: dict[str, str] = {}
    option = ""
    for word in _words(text):
        if word.startswith("--"):
            option = word[2:]
            found[option] = ""
        elif option:
            found[option] = f"{found[option]} {word}".strip()
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return text.split()


def layers_of_interleaving(arguments: Mapping[str, str]) -> int | None:
    """`--num-layers-per-virtual-pipeline-stage`, if given."""
    value = arguments.get("num-layers-per-virtual-pipeline-stage", "")
    return int(value) if re.fullmatch(r"\d+", value) else None
