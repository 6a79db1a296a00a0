"""Presets named in a run file, replaced by what they stand for.

`model`, `cluster.node`, `cluster.node.gpu`, `cluster.node.nvlink`, `cluster.fabric` and
`cluster.profile` take the name of a preset of the catalog, the path of a YAML file (relative to the
file that names it; in `--set`, to the run file), or a mapping, whose key `preset` names either and
whose other keys override it.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError, Place, Problem
from simulator.overrides import PRESET, PRESET_KINDS, Kind, overlay
from simulator.overrides import Path as KeyPath
from simulator.yaml_lines import Located, locate, read_yaml

KINDS: tuple[Kind, ...] = ("gpus", "nvlinks", "nodes", "fabrics", "profiles", "models")


def preset_names(kind: Kind) -> Sequence[str]:
    """Names the catalog holds of `kind`, one of `KINDS`."""
    if kind == "models":
        from workloads import presets as models

        return list(models.preset_names())
    from hardware import presets

    return list(presets.preset_names(kind))


def read_preset(kind: Kind, name: str) -> Mapping[str, Any]:
    """The file of one preset as it stands in the catalog."""
    if kind == "models":
        from workloads import presets as models

        return models.read_preset(name)
    from hardware import presets

    return presets.read_preset(kind, name)


def at(tree: Located, path: Sequence[str]) -> Located | None:
    """What stands at a key path, None where it is absent."""
    node: Located | None = tree
    for key in path:
        node = None if node is None or node.mapping is None else node.mapping.get(key)
    return node


def replace_at(tree: Located, path: Sequence[str], value: Located) -> Located:
    """The tree with another value at a key path that exists."""
    if not path:
        return value
    entries = dict(tree.mapping or {})
    entries[path[0]] = replace_at(entries[path[0]], path[1:], value)
    return Located(entries, tree.place)


def resolve_presets(
    tree: Located, directory: Path, problems: list[Problem]
) -> tuple[Located, list[KeyPath]]:
    """Put in place of every preset its contents, overridden as the run file says.

    Returns the tree and the paths at which that failed; why stands in `problems`.
    """
    failed: list[KeyPath] = []
    for path, kind in PRESET_KINDS.items():
        node = at(tree, path)
        if node is None or path[:-1] in failed:
            continue
        try:
            tree = replace_at(tree, path, _resolve(node, path, kind, directory, problems, ()))
        except ConfigError as error:
            problems.extend(error.problems)
            failed.append(path)
    return tree, failed


def _resolve(
    node: Located,
    path: KeyPath,
    kind: Kind,
    directory: Path,
    problems: list[Problem],
    seen: tuple[Path, ...],
) -> Located:
    """Follow names until a mapping without `preset` is left; `seen` are the files on the way."""
    if node.mapping is not None and PRESET not in node.mapping:
        return node
    own = node.mapping or {PRESET: node}
    base, seen = _load(own[PRESET], path, kind, directory, problems, seen)
    base = _resolve(base, path, kind, directory, problems, seen)
    rest = {key: child for key, child in own.items() if key != PRESET}
    return overlay(base, Located(rest, node.place), path) if rest else base


def _load(
    named: Located,
    path: KeyPath,
    kind: Kind,
    directory: Path,
    problems: list[Problem],
    seen: tuple[Path, ...],
) -> tuple[Located, tuple[Path, ...]]:
    dotted = ".".join(path)
    if named.value is None or isinstance(named.value, dict | list):
        found = "nothing" if named.value is None else "a collection"
        message = f"{found} where the name of a preset or a path is expected"
        raise ConfigError(Problem(message, dotted, named.place))
    name = str(named.value)
    names = preset_names(kind)
    if name in names:
        return locate(dict(read_preset(kind, name)), Place(f"preset {name}")), seen
    if not ("/" in name or name.lower().endswith((".yaml", ".yml", ".json"))):
        raise ConfigError(Problem(_unknown(name, kind, names), dotted, named.place))
    # a line means that a file names it, and its directory counts
    file = (Path(named.place.source).parent if named.place.line else directory) / name
    if file in seen:
        raise ConfigError(Problem(f"{name} refers to itself", dotted, named.place))
    try:
        return read_yaml(file, problems), (*seen, file)
    except ConfigError as error:
        if any(problem.place and problem.place.line for problem in error.problems):
            raise
        why = "; ".join(problem.message for problem in error.problems)
        raise ConfigError(Problem(f"{file} {why}", dotted, named.place)) from None


def _unknown(name: str, kind: Kind, names: Sequence[str]) -> str:
    one = kind.removesuffix("s")
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    if near:
        return f"unknown {one} {name!r}; did you mean {' or '.join(map(repr, near))}?"
    listed = ", ".join(names) if len(names) <= 12 else f"one of `clustersim catalog {kind}`"
    return f"unknown {one} {name!r}; choose {listed}, or a path that ends in .yaml"
