"""The JSON Schema that editors use accepts what loads and refuses what does not."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from simulator.cli import app

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
GOOD = ROOT / "tests/unit/simulator/good_run.yaml"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    result = CliRunner().invoke(app, ["schema"])
    assert result.exit_code == 0
    schema = json.loads(result.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def read(path: Path) -> Any:
    """As JSON has it: keys are text."""
    return json.loads(json.dumps(yaml.safe_load(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", [*EXAMPLES, GOOD], ids=lambda path: path.name)
def test_run_files_are_valid(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(read(path))] == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", "gpt-462"),
        ("model.num_layers", 0),
        ("model.num_layrs", 8),
        ("training.seq_length", "long"),
        ("training.precision", "int4"),
        ("parallelism.pipeline_schedule", "zb-h1"),
        ("parallelism.expert_model_parallel_size", 0),
        ("parallelism.sequence_parallel", "perhaps"),
        ("cluster.node.gpu.tdp_w", -5),
        ("cluster.node.gpu", "h1000"),
        ("cluster.fabric.link_bandwidth", [400]),
        ("cluster.fabric", {"kind": "fat_tree"}),
        ("cluster.slow_gpus", {"3": 2}),
        ("optimizer.clip_grad", -1),
    ],
)
def test_faults_are_seen(
    path: str, value: object, validator: jsonschema.Draft202012Validator
) -> None:
    run = read(GOOD)
    *above, last = path.split(".")
    node = run
    for key in above:
        node = node[key]
    node[last] = value
    assert not validator.is_valid(run)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model", "gpt-462b"),
        ("model", "models/mine.yaml"),
        ("model", {"preset": "gpt-462b", "num_layers": 4}),
        ("cluster.node", "dgx-h100"),
        ("cluster.node", {"preset": "dgx-h100", "gpu": {"tdp_w": "500W"}}),
        ("cluster.node", {"preset": "dgx-h100", "nvlink": {"latency_s": 1e-6}}),
        ("cluster.node.gpu", "./gpu.yml"),
        ("cluster.fabric", {"preset": "ndr-rail-optimized", "link_bandwidth": "200 Gb/s"}),
        ("cluster.fabric.nic_latency_s", "1.5us"),
        ("model.ffn_hidden_size", None),
    ],
)
def test_what_loading_allows_is_valid(
    path: str, value: object, validator: jsonschema.Draft202012Validator
) -> None:
    run = read(GOOD)
    *above, last = path.split(".")
    node = run
    for key in above:
        node = node[key]
    node[last] = value
    assert [error.message for error in validator.iter_errors(run)] == []


def test_keys_are_described(validator: jsonschema.Draft202012Validator) -> None:
    definitions = validator.schema["$defs"]
    described = definitions["ParallelismSpec"]["properties"]
    assert "chunks per stage" in described["virtual_pipeline_model_parallel_size"]["description"]
    gpu = definitions["GpuSpec"]["properties"]
    assert "bytes" in gpu["memory_bytes"]["description"]
