"""What an import understood, left out and assumed: for people, and as plain data."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

from simulator.importing.huggingface_import import ImportedModel
from simulator.importing.megatron_import import Imported
from simulator.importing.translation import Fate


def import_json(imported: Imported | ImportedModel) -> dict[str, Any]:
    """The account as plain data, with the content of the run or model file."""

    def rows(fates: Iterable[Fate], key: str) -> list[dict[str, Any]]:
        return [
            {
                "argument": fate.argument.spelled,
                "value": fate.argument.text,
                "line": fate.argument.place.line,
                key: fate.words,
            }
            for fate in fates
        ]

    account: dict[str, Any] = {"source": imported.source}
    if isinstance(imported, Imported):
        account["run"] = imported.run.model_dump(mode="json")
        account["notes"] = [{"line": note.line, "note": note.message} for note in imported.notes]
    else:
        account["model"] = imported.model.model_dump(mode="json")
        account["num_parameters"] = imported.num_parameters
    return {
        **account,
        "understood": rows(imported.understood, "as"),
        "ignored": rows(imported.ignored, "because"),
        "not_modelled": rows(imported.not_modelled, "concerns"),
        "unknown": rows(imported.unknown, "hint"),
        "assumed": list(imported.assumed),
    }


def print_import(imported: Imported | ImportedModel, console: Console) -> None:
    """Print the account, what needs a look last."""
    _heading(console, f"understood ({len(imported.understood)})")
    for fate in imported.understood:
        _row(console, fate, fate.words)
    if isinstance(imported, ImportedModel):
        _line(console, f"  in all {imported.num_parameters / 1e9:.3f}e9 parameters")
    _heading(console, f"ignored on purpose ({len(imported.ignored)})")
    for why in dict.fromkeys(fate.words for fate in imported.ignored):
        names = [fate.argument.spelled for fate in imported.ignored if fate.words == why]
        _line(console, f"  {why}: {' '.join(names)}")
    notes = imported.notes if isinstance(imported, Imported) else ()
    if imported.assumed or notes:
        _heading(console, "assumed")
    for words in imported.assumed:
        _line(console, f"  {words}")
    for note in notes:
        _line(console, f"  line {note.line}: {note.message}")
    if imported.not_modelled:
        _heading(console, "known, not modelled: the prediction lacks it")
        for fate in imported.not_modelled:
            _row(console, fate, fate.words)
    if imported.unknown:
        _heading(console, "unknown")
        for fate in imported.unknown:
            _row(console, fate, fate.words)


def _heading(console: Console, words: str) -> None:
    console.print(Text(words, style="bold"))


def _row(console: Console, fate: Fate, words: str) -> None:
    argument = fate.argument
    shown = f"{argument.spelled} {argument.text}".strip()
    line = f"line {argument.place.line}"
    _line(console, f"  {line:<9} {shown:<44} {words}".rstrip())


def _line(console: Console, words: str) -> None:
    """One line however long: the terminal breaks it, a pipe keeps it whole."""
    console.print(Text(words), soft_wrap=True)
