"""The run files of `examples/` load as they say, and the small one runs through every output."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.loading import load_run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.mark.parametrize(
    ("name", "num_gpus", "data_parallel_size", "num_microbatches"),
    [
        ("gpt-462b-6144xh100", 768 * 8, 6144 // (8 * 16), 3072 // 48),
        ("gpt3-175b-1024xa100", 128 * 8, 1024 // (8 * 16), 1536 // 8),
        ("llama3-70b-64xh100", 8 * 8, 64 // (4 * 2 * 4), 128 // 2),
        ("h200-llama-70b-width", 1, 1, 4),
        ("h200-llama-7b-width", 1, 1, 8),
        ("zero-bubble-6b-8xa100", 8, 1, 72 // 3),
        ("llama3-8b-8xh100", 8, 8 // 2, 128 // 4),
        ("llama3-70b-16xh200", 16, 16 // (4 * 2), 64 // 2),
        ("llama2-7b-8xa100-40g", 8, 8 // 2, 128 // 4),
        ("mixtral-8x7b-64xh100", 64, 64 // 4, 256 // 16),
        ("deepseek-v3-1024xh100", 1024, 1024 // (2 * 16), 8192 // 32),
        ("toy-2-nodes", 2 * 8, 16 // (2 * 2), 32 // 4),
    ],
)
def test_sizes(name: str, num_gpus: int, data_parallel_size: int, num_microbatches: int) -> None:
    run = load_run(EXAMPLES / f"{name}.yaml")
    assert run.cluster.num_gpus == num_gpus
    assert run.data_parallel_size == data_parallel_size
    assert run.num_microbatches == num_microbatches


def test_each_is_listed() -> None:
    assert len(list(EXAMPLES.glob("*.yaml"))) == 12


def test_the_headline_is_the_published_model() -> None:
    run = load_run(EXAMPLES / "gpt-462b-6144xh100.yaml")
    model = run.model
    assert (model.num_layers, model.hidden_size, model.num_attention_heads) == (112, 18432, 144)
    assert (model.vocab_size, run.training.seq_length) == (131072, 4096)


def test_the_toy_with_every_output(tmp_path: Path) -> None:
    outputs = {"--gantt": "g.png", "--trace": "t.json", "--report": "r.html", "--json": "o.json"}
    options = [part for option, name in outputs.items() for part in (option, str(tmp_path / name))]
    done = subprocess.run(
        [sys.executable, "-m", "simulator", "simulate", "examples/toy-2-nodes.yaml", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(outputs.values())
    result = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))
    assert result["step_time_s"] > 0
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]


@pytest.mark.parametrize("command", ["explain", "memory"])
def test_the_toy_explained(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulator", command, "examples/toy-2-nodes.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
