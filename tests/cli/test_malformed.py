"""Malformed run files, made from the JSON Schema that `clustersim schema` prints: each exits with
2, names the key, and shows no traceback."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from simulator.cli import app
from simulator.spec_errors import run_schema, schema_at

GOOD = yaml.safe_load(
    (Path(__file__).parents[1] / "unit/simulator/good_run.yaml").read_text(encoding="utf-8")
)
RUNNER = CliRunner()


def _leaves(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Key paths of all values that are not mappings of known keys."""
    for key in schema["properties"]:
        below = schema_at((*path, key))
        if "properties" in below:
            yield from _leaves(dict(below), (*path, key))
        else:
            yield (*path, key)


def _bad_value(path: tuple[str, ...]) -> Any:
    schema = schema_at(path)
    if "exclusiveMinimum" in schema or "minimum" in schema:
        return -1
    return {"boolean": "perhaps", "string": ["a", "list"]}.get(schema["type"], "wrong")


def _cases() -> list[tuple[str, dict[str, Any]]]:
    cases = []
    for path in _leaves(dict(run_schema())):
        bad = copy.deepcopy(GOOD)
        node = bad
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = _bad_value(path)
        cases.append((".".join(path), bad))
    return cases


CASES = _cases()


def test_there_are_fifty() -> None:
    assert len(CASES) >= 50


@pytest.mark.parametrize(("key", "content"), CASES, ids=[key for key, _ in CASES])
def test_a_bad_value_exits_with_two_and_names_its_key(
    key: str, content: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    result = RUNNER.invoke(app, ["simulate", str(path), "--json", "-"])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert f": {key}: " in result.stderr
    assert result.stderr.startswith(f"{path}:")
    assert "Traceback" not in result.stderr


def test_every_key_of_a_run_is_in_the_schema() -> None:
    schema = json.dumps(run_schema())
    assert all(f'"{key}"' in schema for key in ("seed", "tdp_w", "fp4", "slow_gpus", "clip_grad"))
