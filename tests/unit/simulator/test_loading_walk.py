"""From one good run file, every key dropped, misspelt, of a wrong type, negative, huge, repeated:
each gives a `ConfigError` that names the path, or is valid; nothing else ever."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from simulator import preset_loading
from simulator.errors import ConfigError
from simulator.loading import load_run

TEXT = (Path(__file__).parent / "good_run.yaml").read_text(encoding="utf-8")
GOOD = yaml.safe_load(TEXT)
PRESETS = {
    "models": GOOD["model"],
    "nodes": GOOD["cluster"]["node"],
    "fabrics": GOOD["cluster"]["fabric"],
}
CLUSTER = TEXT[TEXT.index("cluster:\n") :]
# one half at a time, the other from presets: half the YAML to read
HALVES = [
    TEXT.replace(CLUSTER, "cluster: {node: good, num_nodes: 2, fabric: good}\n").splitlines(),
    (
        "model: good\nparallelism: {}\ntraining: "
        "{seq_length: 2048, micro_batch_size: 1, global_batch_size: 32}\n" + CLUSTER
    ).splitlines(),
]


@pytest.fixture(autouse=True)
def _presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preset_loading, "preset_names", lambda kind: ["good"])
    monkeypatch.setattr(preset_loading, "read_preset", lambda kind, name: PRESETS[kind])


def _keys(lines: list[str]) -> list[tuple[int, int, str]]:
    """First line, line after the last, and dotted path of every key."""
    found: list[tuple[int, int, str]] = []
    path: list[str] = []
    for start, line in enumerate(lines):
        match = re.match(r"( *)(\w+):", line)
        assert match
        depth = len(match[1]) // 2
        path[depth:] = [match[2]]
        below = (
            number
            for number in range(start + 1, len(lines))
            if len(lines[number]) - len(lines[number].lstrip()) <= 2 * depth
        )
        found.append((start, next(below, len(lines)), ".".join(path)))
    return found


CASES = [(lines, *key) for lines in HALVES for key in _keys(lines)]


def _with_value(value: str) -> Callable[[list[str]], list[str]]:
    return lambda block: [block[0].partition(":")[0] + ": " + value]


def _misspelt(block: list[str]) -> list[str]:
    key, _, rest = block[0].partition(":")
    return [f"{key}x:{rest}", *block[1:]]


HUGE = "1" + "0" * 30
MUTATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "dropped": lambda block: [],
    "misspelt": _misspelt,
    "repeated": lambda block: block + block,
    "mapping": _with_value("{a: 1}"),
    "words": _with_value("some words"),
    "negative": _with_value("-1"),
    "zero": _with_value("0"),
    "huge": _with_value(HUGE),
}
MUST_FAIL = {"misspelt", "repeated", "mapping"}


def test_both_halves_are_good(tmp_path: Path) -> None:
    for lines in HALVES:
        (tmp_path / "run.yaml").write_text("\n".join(lines), encoding="utf-8")
        load_run(tmp_path / "run.yaml")
    assert len(CASES) > 80


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_key(mutation: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    valid = []
    for good, start, end, key in CASES:
        lines = good[:start] + MUTATIONS[mutation](good[start:end]) + good[end:]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        try:
            load_run(path)
        except ConfigError as error:
            _check_named(error, key, start, mutation, path)
        else:
            valid.append(key)
    if mutation in MUST_FAIL:
        assert valid == []
    assert len(valid) < len(CASES) * 0.75


def _check_named(error: ConfigError, key: str, start: int, mutation: str, path: Path) -> None:
    """Every problem has a place, and one of them names the key."""
    for problem in error.problems:
        assert problem.place is not None
        assert problem.place.source == str(path)
        assert problem.place.line >= 1
    name = key + "x" if mutation == "misspelt" else key
    leaf = key.rpartition(".")[2]
    named = [
        problem
        for problem in error.problems
        # what must hold between keys may be told of the other key, with this one in the message
        if problem.path == name
        or problem.path.startswith(key + ".")
        or leaf in problem.message
        or (mutation == "huge" and HUGE[1:] in problem.message)
    ]
    assert named, f"{mutation} {key}: {error}"
    if mutation in ("misspelt", "mapping", "words"):
        assert any(problem.place and problem.place.line == start + 1 for problem in named)
