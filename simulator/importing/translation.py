"""Arguments being turned into settings of a run file, with a record of what became of each."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from simulator.errors import Place, Problem
from simulator.importing.arguments import Argument
from simulator.importing.layer_pattern import layer_pattern
from simulator.importing.text_pieces import is_known, plain, unknown_parts
from simulator.spec_errors import nearest
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, Spec, TrainingSpec

Path = tuple[str, ...]

SECTIONS: Mapping[str, type[Spec]] = {
    "model": ModelSpec,
    "training": TrainingSpec,
    "parallelism": ParallelismSpec,
    "optimizer": OptimizerSpec,
}
_NOT_ARGUMENTS = ("name", "source", "precision", "flops_convention")
"""Fields that are no arguments of Megatron-LM, or whose values it spells otherwise."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of the run file and where it comes from."""

    value: object
    """Text, a truth value or number, a list or mapping of these."""
    origin: str
    """For a comment of the run file."""
    place: Place


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of an argument."""

    argument: Argument
    words: str


@cache
def fields() -> Mapping[str, tuple[str, FieldInfo]]:
    """Name of a field -> its section and itself, for all that can come from arguments."""
    return {
        name: (section, info)
        for section, spec in SECTIONS.items()
        for name, info in spec.model_fields.items()
        if name not in _NOT_ARGUMENTS
    }


def has_field(name: str) -> bool:
    """Whether the run file can say this."""
    return name in fields()


def path_of(name: str) -> Path:
    """Where in the run file a field stands."""
    return (fields()[name][0], name)


def choices(name: str) -> tuple[str, ...]:
    """Values that a field of fixed choices takes."""
    return tuple(_choices(fields()[name][1].annotation))


def _choices(annotation: object) -> Iterable[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for inner in get_args(annotation):
            yield from _choices(inner)


def _takes(name: str, kind: type) -> bool:
    return _has_part(fields()[name][1].annotation, kind)


def _has_part(annotation: object, kind: type) -> bool:
    if annotation is kind or get_origin(annotation) is kind:
        return True
    if get_origin(annotation) is tuple:
        return False
    return any(_has_part(part, kind) for part in get_args(annotation))


def _items(name: str, told: str) -> object:
    """A list written with blanks, commas or as a pattern of layers; a number where one may be."""
    pattern = layer_pattern(told)
    if pattern is not None:
        return [str(value) for value in pattern]
    if _takes(name, int) and told.isdecimal():
        return told
    return re.sub(r"[\[\](),]", " ", told).split()


@dataclass
class Translation:
    """Arguments not yet dealt with, settings found, and the record."""

    arguments: dict[str, Argument]
    source: Place
    settings: dict[Path, Setting] = field(default_factory=dict)
    understood: list[Fate] = field(default_factory=list)
    ignored: list[Fate] = field(default_factory=list)
    not_modelled: list[Fate] = field(default_factory=list)
    unknown: list[Fate] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def take(self, *names: str) -> Argument | None:
        """Remove and return the first of these arguments that is given; its others go with it."""
        found = [self.arguments.pop(name) for name in names if name in self.arguments]
        kept = [argument for argument in found if not argument.denied]
        return kept[0] if kept else None

    def peek(self, name: str) -> str | None:
        """Value of an argument that stays to be dealt with; None if it is not given."""
        argument = self.arguments.get(name)
        return None if argument is None or argument.denied else argument.text

    def value(self, argument: Argument) -> str | None:
        """Its one known value; a problem is noted if it has none, several, or an unknown one."""
        if not argument.is_known:
            parts = [part for value in argument.values for part in unknown_parts(value)]
            names = sorted({part.strip("${}") for part in parts})
            give = f"--env {names[0]}=VALUE" if names[0].isidentifier() else "another value"
            if names[0].isdigit():
                give = f"--env {names[0]}=VALUE for the script's argument"
            message = f"{argument.text} is not known from the script; give {give}"
            self.problem(argument, message)
            return None
        if len(argument.values) != 1:
            found = argument.text or "nothing"
            self.problem(argument, f"takes one value, found {found}")
            return None
        return plain(argument.values[0])

    def number(self, argument: Argument) -> int | None:
        """Its value as a whole number above zero."""
        text = self.value(argument)
        if text is not None and not text.replace("_", "").isdecimal():
            self.problem(argument, f"{text!r} is not a whole number")
            return None
        return None if text is None else int(text)

    def problem(self, argument: Argument, message: str) -> None:
        """Note what is wrong with an argument."""
        self.problems.append(Problem(message, argument.spelled, argument.place))

    def put(self, path: Path, value: object, argument: Argument) -> None:
        """Set a key of the run file from an argument."""
        shown = f"{argument.spelled} {argument.text}".strip()
        self.settings[path] = Setting(value, shown, argument.place)
        self.understood.append(Fate(argument, f"{'.'.join(path)} = {_shown(value)}"))

    def also(self, argument: Argument, words: str) -> None:
        """Record an argument that is understood and leads to no key of its own."""
        self.understood.append(Fate(argument, words))

    def assume(self, path: Path, value: object, why: str) -> None:
        """Set a key that no argument sets, and say so."""
        self.settings[path] = Setting(value, f"assumed: {why}", self.source)
        self.assumed.append(f"{'.'.join(path)} = {_shown(value)}: {why}")

    def default(self, path: Path, value: object, why: str = "Megatron-LM's default") -> None:
        """Set a key to what Megatron-LM does when no argument says otherwise."""
        self.settings.setdefault(path, Setting(value, why, self.source))

    def get(self, section: str, name: str) -> str | None:
        """A setting's value as text, None if it is not set."""
        setting = self.settings.get((section, name))
        return None if setting is None else str(setting.value)

    def whole(self, section: str, name: str, otherwise: int = 1) -> int:
        """A setting as a whole number; `otherwise` if it is absent or no such number."""
        text = (self.get(section, name) or "").replace("_", "")
        return int(text) if text.isdecimal() and int(text) > 0 else otherwise

    def take_fields(self) -> None:
        """Set every key that has an argument of the same name, or of `no_` and that name."""
        for name in list(self.arguments):
            if has_field(name):
                self._take_field(name, self.arguments.pop(name))
            elif name.startswith("no_") and has_field(name[3:]) and _takes(name[3:], bool):
                self._deny_field(name[3:], self.arguments.pop(name))

    def _deny_field(self, name: str, argument: Argument) -> None:
        if not argument.denied:
            self.put(path_of(name), False, argument)

    def _take_field(self, name: str, argument: Argument) -> None:
        if argument.denied and not _takes(name, bool):
            return
        if _takes(name, bool) and not any(map(is_known, argument.values)):
            for value in argument.values:
                self.assumed.append(f"nothing sets {plain(value)}: taken as nothing")
            self.put(path_of(name), True, replace(argument, values=()))
        elif _takes(name, tuple) and argument.is_known:
            told = " ".join(plain(value) for value in argument.values)
            self.put(path_of(name), _items(name, told), argument)
        elif (text := self.value(argument)) is not None:
            known = choices(name)
            same = next((choice for choice in known if choice.lower() == text.lower()), None)
            truth = text.lower() if _takes(name, bool) else text
            self.put(path_of(name), same or truth, argument)

    def sort_rest(
        self,
        ignored: Mapping[str, str],
        not_modelled: Mapping[str, str],
        all_names: Sequence[str],
    ) -> None:
        """Divide what is left: ignored on purpose, known but not modelled, unknown."""
        from simulator.importing.megatron_names import reason

        used = {fate.argument for fate in self.understood}
        for name, argument in list(self.arguments.items()):
            del self.arguments[name]
            if argument in used:
                continue
            if (why := reason(ignored, name)) is not None:
                self.ignored.append(Fate(argument, why))
            elif argument.denied:
                self.ignored.append(Fate(argument, "switched off or empty"))
            elif (why := reason(not_modelled, name)) is not None:
                self.not_modelled.append(Fate(argument, why))
            else:
                near = nearest(name, all_names)
                spelled = f"--{near.replace('_', '-')}" if near else ""
                hint = f"did you mean {spelled}?" if near else ""
                self.unknown.append(Fate(argument, hint))


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
