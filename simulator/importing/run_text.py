"""Settings as the text of a run file, with a comment on each that says where it comes from."""

import re
from collections.abc import Iterable, Mapping, Sequence

import yaml

from simulator.errors import Place
from simulator.importing.translation import SECTIONS, Path, Setting
from simulator.yaml_lines import Located

_ORDER = ("name", "model", "training", "parallelism", "optimizer", "cluster")
_COMMENTS_AT = 48


def settings_tree(settings: Mapping[Path, Setting], source: Place) -> Located:
    """The settings as a located tree, so that what is wrong is told with the script's line."""
    entries: dict[str, Located] = {}
    for path, setting in settings.items():
        value = _located(setting.value, setting.place)
        if len(path) == 1:
            entries[path[0]] = value
        else:
            section = entries.setdefault(path[0], Located({}, source))
            assert section.mapping is not None
            section.mapping[path[1]] = value
    for section_name in ("model", "training", "parallelism", "cluster"):
        entries.setdefault(section_name, Located({}, source))
    return Located(entries, source)


def _located(value: object, place: Place) -> Located:
    if isinstance(value, Mapping):
        return Located({str(k): _located(v, place) for k, v in value.items()}, place)
    if isinstance(value, list | tuple):
        return Located([_located(item, place) for item in value], place)
    return Located(_scalar(value), place)


def run_text(tree: Located, settings: Mapping[Path, Setting], heading: Sequence[str]) -> str:
    """Write a tree, which may have more than the settings (of `--set`), as YAML."""
    lines = [f"# {line}".rstrip() for line in heading]
    entries = tree.mapping or {}
    for key in [*(k for k in _ORDER if k in entries), *(k for k in entries if k not in _ORDER)]:
        section = entries[key]
        if section.mapping is None or "preset" in section.mapping:
            lines.append(_line("", key, section, settings.get((key,))))
        elif section.mapping:
            lines.append(f"{key}:")
            for name in _in_order(key, section.mapping):
                child = section.mapping[name]
                lines.append(_line("  ", name, child, settings.get((key, name))))
    return "\n".join(lines) + "\n"


def _in_order(section: str, names: Iterable[str]) -> list[str]:
    """Keys as their spec has them, then those it lacks."""
    spec = SECTIONS.get(section)
    known = list(spec.model_fields) if spec else []
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def model_text(settings: Mapping[Path, Setting], heading: Sequence[str]) -> str:
    """Write the settings of a model alone, as a file that `model` may name."""
    lines = [f"# {line}".rstrip() for line in heading]
    named = {name: setting for (_, name), setting in settings.items()}
    for name in _in_order("model", named):
        setting = named[name]
        lines.append(_line("", name, _located(setting.value, setting.place), setting))
    return "\n".join(lines) + "\n"


def _line(indent: str, key: str, value: Located, setting: Setting | None) -> str:
    text = f"{indent}{key}: {_flow(value)}"
    origin = ""
    if setting is not None and setting.place == value.place:
        line = f", line {setting.place.line}" if setting.place.line else ""
        origin = " ".join(f"{setting.origin}{line}".split())
    elif value.place.source.startswith("--set "):
        origin = "--set"
    return f"{text:<{_COMMENTS_AT}}  # {origin}" if origin else text


def _flow(value: Located) -> str:
    if value.mapping is not None:
        return "{" + ", ".join(f"{k}: {_flow(v)}" for k, v in value.mapping.items()) + "}"
    if isinstance(value.value, list):
        return "[" + ", ".join(map(_flow, value.value)) + "]"
    text = _scalar(value.value)
    if re.fullmatch(r"[A-Za-z0-9_.+][\w.+-]*(?: [\w.+-]+)*", text) and text.lower() not in _WORDS:
        return text
    return str(yaml.safe_dump(text, width=10_000, allow_unicode=True, default_style='"')).strip()


_WORDS = ("null", "")


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
