"""`--set PATH=VALUE`, and settings laid over a preset: trees of located values in and out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.errors import ConfigError, Place, Problem
from simulator.yaml_lines import MAX_DEPTH, Located, parse_yaml

PRESET = "preset"
"""The key of a mapping that names what the mapping's other keys override."""

Path = tuple[str, ...]
Kind = Literal["gpus", "nvlinks", "nodes", "fabrics", "profiles", "models"]
"""Of presets; a folder of the catalog each."""

PRESET_KINDS: Mapping[Path, Kind] = {
    ("model",): "models",
    ("cluster", "node"): "nodes",
    ("cluster", "fabric"): "fabrics",
    ("cluster", "node", "gpu"): "gpus",
    ("cluster", "node", "nvlink"): "nvlinks",
    ("cluster", "profile"): "profiles",
}
"""Where a run file may name a preset, and of which kind. Outer paths come first."""


@dataclass(frozen=True, slots=True)
class Override:
    """One `--set`: the value that stands at `keys` afterwards."""

    keys: Path
    value: Located

    @property
    def place(self) -> Place:
        return self.value.place


def parse_override(text: str, problems: list[Problem]) -> Override:
    """Read `a.b.c=VALUE`, VALUE as YAML.

    Raises `ConfigError` where there is no `=`, a part of the path is empty or VALUE is no YAML.

    >>> parse_override("model.num_layers=40", []).keys
    ('model', 'num_layers')
    """
    dotted, equals, value = text.partition("=")
    place = Place(f"--set {text}")
    keys = tuple(key.strip() for key in dotted.split("."))
    if not equals or not all(keys):
        message = "must read PATH=VALUE, such as parallelism.tensor_model_parallel_size=4"
        raise ConfigError(Problem(message, place=place))
    if len(keys) > MAX_DEPTH:
        raise ConfigError(Problem(f"has more than {MAX_DEPTH} levels", place=place))
    return Override(keys, parse_yaml(value, lambda line: place, problems, keys))


def apply_override(tree: Located, override: Override) -> Located:
    """Put the value at its path; a preset named by the way keeps its other keys.

    >>> from simulator.yaml_lines import locate
    >>> run = locate({"cluster": {"fabric": "ndr", "num_nodes": 2}}, Place("run.yaml"))
    >>> apply_override(run, parse_override("cluster.fabric.tiers=3", [])).plain()
    {'cluster': {'fabric': {'preset': 'ndr', 'tiers': '3'}, 'num_nodes': 2}}
    """
    return _put(tree, override, 0)


def _put(node: Located, override: Override, depth: int) -> Located:
    if depth == len(override.keys):
        return override.value
    key = override.keys[depth]
    entries = dict(_entries(node, override.keys[:depth]))
    place = node.place if entries else override.place
    below = entries.get(key, Located(None, override.place))
    entries[key] = _put(below, override, depth + 1)
    return Located(entries, place)


def _entries(node: Located, path: Path) -> dict[str, Located]:
    """The keys below `path`; the plain name of a preset is `{preset: name}`."""
    if node.mapping is not None:
        return node.mapping
    if path in PRESET_KINDS and node.value is not None and not isinstance(node.value, list):
        return {PRESET: node}
    return {}


def overlay(preset: Located, over: Located, path: Path) -> Located:
    """Lay the keys of `over` on those of a preset; what `over` does not name stays.

    A mapping that names a preset of its own takes the place of what was there.
    """
    if over.mapping is None or (path in PRESET_KINDS and PRESET in over.mapping):
        return over
    entries = dict(_entries(preset, path))
    for key, child in over.mapping.items():
        entries[key] = overlay(entries[key], child, (*path, key)) if key in entries else child
    return Located(entries, over.place)
