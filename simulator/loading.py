"""From a run file to a checked `RunSpec`, and back.

Every problem of a file is found in one go and reported as `file:line: key.path: what is wrong and
what is allowed`. Numbers take Python's spellings (`4096`, `4_096`, `1e9`, `3e-6`; whole numbers no
exponent), truth values `true/false`, `yes/no`, `on/off`, and quantities may have a unit
(`400Gb/s`).
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import yaml

from simulator.checking import check_keys, check_run
from simulator.errors import ConfigError, Problem
from simulator.overrides import Path as KeyPath
from simulator.overrides import apply_override, parse_override
from simulator.preset_loading import resolve_presets
from simulator.runspec import RunSpec
from simulator.yaml_lines import Located, read_yaml

_Check: TypeAlias = Callable[[Located, Sequence[KeyPath], list[Problem]], RunSpec | None]


def load_run(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunSpec:
    """Read, complete and check a run file.

    Parameters
    ----------
    path: of the YAML file.
    overrides: `PATH=VALUE` settings laid over it in order, VALUE read as YAML.

    Raises `ConfigError` with all that is wrong, sorted by file and line.
    """
    return _load(path, overrides, check_run)


def load_unchecked(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunSpec:
    """Read and complete a run file; each key is checked by itself, not what must hold between
    them: for what asks after single values of a run that is still to be changed."""
    return _load(path, overrides, check_keys)


def check_readable(path: str | os.PathLike[str]) -> None:
    """Raise `ConfigError` where a run file cannot be read, whatever its keys are."""
    problems: list[Problem] = []
    _read_run(Path(path), problems)
    if problems:
        raise ConfigError(problems)


def _load(path: str | os.PathLike[str], overrides: Sequence[str], check: _Check) -> RunSpec:
    problems: list[Problem] = []
    try:
        tree = _read_run(Path(path), problems)
        tree = _override(tree, overrides, problems)
        tree, failed = resolve_presets(tree, Path(path).parent, problems)
        run = check(tree, failed, problems)
    except ConfigError as error:
        raise ConfigError(_ordered([*problems, *error.problems], str(path))) from None
    if problems or run is None:
        raise ConfigError(_ordered(problems, str(path)))
    return run


def dump_run(run: RunSpec) -> str:
    """Write a run as the text of a run file, presets written out, that loads to an equal run."""
    values = run.model_dump(mode="json", exclude_none=True)
    values["cluster"]["slow_gpus"] = dict(run.cluster.slow_gpus)
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100))


def _read_run(path: Path, problems: list[Problem]) -> Located:
    tree = read_yaml(path, problems)
    keys = "model, training, parallelism and cluster"
    if tree.value is None:
        raise ConfigError(Problem(f"is empty; a run file has the keys {keys}", place=tree.place))
    if tree.mapping is None:
        message = f"must be a mapping with the keys {keys}"
        raise ConfigError(Problem(message, place=tree.place))
    name = Located(path.stem, tree.place)
    return Located({"name": name, **tree.mapping}, tree.place)


def _override(tree: Located, overrides: Sequence[str], problems: list[Problem]) -> Located:
    for text in overrides:
        try:
            tree = apply_override(tree, parse_override(text, problems))
        except ConfigError as error:
            problems.extend(error.problems)
    return tree


def _ordered(problems: Sequence[Problem], run_file: str) -> list[Problem]:
    """By line within a file; the run file first, options last, each problem once."""

    def key(problem: Problem) -> tuple[int, str, int]:
        place = problem.place
        if place is None:
            return (0, "", 0)
        group = 0 if place.source == run_file else 2 if place.source.startswith("--set ") else 1
        return (group, place.source if group == 1 else "", place.line)

    return sorted(dict.fromkeys(problems), key=key)
