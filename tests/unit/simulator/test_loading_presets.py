"""Presets by name and by path, and keys laid over them. The catalog here is made of two files."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator import preset_loading
from simulator.errors import ConfigError
from simulator.loading import load_run

GOOD: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "good_run.yaml").read_text(encoding="utf-8")
)
CATALOG: dict[str, dict[str, Any]] = {
    "models": {"tiny": GOOD["model"]},
    "gpus": {
        "chip": GOOD["cluster"]["node"]["gpu"],
        "chip-2": {**GOOD["cluster"]["node"]["gpu"], "num_sms": 200},
    },
    "nodes": {"box": {**GOOD["cluster"]["node"], "gpu": "chip"}},
    "fabrics": {"net": GOOD["cluster"]["fabric"], "net-broken": {"name": "x", "tiers": 9}},
}
RUN = """\
model: tiny
training: {seq_length: 2048, micro_batch_size: 1, global_batch_size: 32}
parallelism: {tensor_model_parallel_size: 2}
cluster:
  node: box
  num_nodes: 2
  fabric: net
"""


@pytest.fixture(autouse=True)
def _catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preset_loading, "preset_names", lambda kind: list(CATALOG[kind]))
    monkeypatch.setattr(preset_loading, "read_preset", lambda kind, name: CATALOG[kind][name])


def run_file(directory: Path, text: str = RUN) -> Path:
    path = directory / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_run(path, overrides)
    return [line.replace(f"{path.parent}/", "") for line in str(caught.value).splitlines()]


def test_names_stand_for_the_whole_preset(tmp_path: Path) -> None:
    run = load_run(run_file(tmp_path))
    assert run.model.num_layers == GOOD["model"]["num_layers"]
    assert run.cluster.node.gpu.name == "accelerator"
    assert run.cluster.fabric.tiers == 2


def test_keys_override_those_of_the_preset_also_deeply(tmp_path: Path) -> None:
    text = RUN.replace("node: box", "node: {preset: box, nvlink: {latency_s: 2us}}").replace(
        "fabric: net", "fabric: {preset: net, link_bandwidth: 200Gb/s}"
    )
    run = load_run(run_file(tmp_path, text))
    assert run.cluster.node.nvlink.latency_s == 2e-6
    assert run.cluster.node.nvlink.bandwidth_bytes_per_s == 450e9
    assert run.cluster.fabric.link_bandwidth == 200e9 / 8
    assert run.cluster.fabric.tiers == 2


def test_the_gpu_inside_a_node_preset(tmp_path: Path) -> None:
    one_key = RUN.replace("node: box", "node: {preset: box, gpu: {tdp_w: 500}}")
    run = load_run(run_file(tmp_path, one_key))
    assert (run.cluster.node.gpu.tdp_w, run.cluster.node.gpu.num_sms) == (500, 132)
    another = RUN.replace("node: box", "node: {preset: box, gpu: chip-2}")
    assert load_run(run_file(tmp_path, another)).cluster.node.gpu.num_sms == 200
    both = RUN.replace("node: box", "node: {preset: box, gpu: {preset: chip-2, tdp_w: 1}}")
    run = load_run(run_file(tmp_path, both))
    assert (run.cluster.node.gpu.tdp_w, run.cluster.node.gpu.num_sms) == (1, 200)


def test_set_reaches_into_presets(tmp_path: Path) -> None:
    run = load_run(
        run_file(tmp_path),
        [
            "cluster.fabric.link_bandwidth=200Gb/s",
            "model.num_layers=40",
            "cluster.node.gpu.tdp_w=500W",
            "cluster.slow_gpus.15=0.5",
            "optimizer.use_distributed_optimizer=yes",
        ],
    )
    assert run.cluster.fabric.link_bandwidth == 200e9 / 8
    assert run.cluster.fabric.oversubscription == 1
    assert (run.model.num_layers, run.model.hidden_size) == (40, 1024)
    assert (run.cluster.node.gpu.tdp_w, run.cluster.node.gpu.num_sms) == (500, 132)
    assert run.cluster.slow_gpus == {15: 0.5}
    assert run.optimizer.use_distributed_optimizer is True


def test_set_changes_the_preset_and_keeps_what_overrides_it(tmp_path: Path) -> None:
    path = run_file(tmp_path, RUN.replace("node: box", "node: {preset: box, nics_per_node: 4}"))
    run = load_run(path, ["cluster.node.gpu=chip-2", "cluster.node.preset=box"])
    assert (run.cluster.node.gpu.num_sms, run.cluster.node.nics_per_node) == (200, 4)
    run = load_run(path, ["cluster.node=box"])
    assert run.cluster.node.nics_per_node == 8


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "node.yaml").write_text(
        "preset: box\ngpu: gpu.yaml\nnics_per_node: 2\n", encoding="utf-8"
    )
    (tmp_path / "parts" / "gpu.yaml").write_text("preset: chip\nnum_sms: 7\n", encoding="utf-8")
    path = run_file(tmp_path, RUN.replace("node: box", "node: parts/node.yaml"))
    run = load_run(path)
    assert (run.cluster.node.gpu.num_sms, run.cluster.node.nics_per_node) == (7, 2)
    run = load_run(run_file(tmp_path), ["cluster.node=parts/node.yaml"])
    assert run.cluster.node.nics_per_node == 2


def test_unknown_names_and_the_nearest(tmp_path: Path) -> None:
    text = RUN.replace("model: tiny", "model: tinny").replace("fabric: net", "fabric: token-ring")
    assert refusal(run_file(tmp_path, text), "cluster.node.gpu=chop") == [
        "run.yaml:1: model: unknown model 'tinny'; did you mean 'tiny'?",
        "run.yaml:7: cluster.fabric: unknown fabric 'token-ring'; choose net, net-broken, or a "
        "path that ends in .yaml",
        "--set cluster.node.gpu=chop: unknown gpu 'chop'; did you mean 'chip' or 'chip-2'?",
    ]


def test_a_fault_in_a_file_names_that_file_and_line(tmp_path: Path) -> None:
    model = "name: mine\nnum_layers: 4\nhiden_size: 512\nnum_attention_heads: -8\nvocab_size: 9\n"
    (tmp_path / "model.yaml").write_text(model, encoding="utf-8")
    path = run_file(tmp_path, RUN.replace("model: tiny", "model: model.yaml"))
    assert refusal(path) == [
        "model.yaml:1: model.hidden_size: missing key; it takes a whole number above 0",
        "model.yaml:3: model.hiden_size: unknown key; did you mean 'hidden_size'?",
        "model.yaml:4: model.num_attention_heads: '-8' is not a whole number above 0",
    ]


def test_a_fault_in_the_catalog_names_the_preset(tmp_path: Path) -> None:
    lines = refusal(run_file(tmp_path, RUN.replace("fabric: net", "fabric: net-broken")))
    assert "preset net-broken: cluster.fabric.tiers: '9' is not a whole number" in "\n".join(lines)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "model.yaml cannot be read: No such file or directory"),
        ({"model.yaml": "a: ["}, "model.yaml:1: is not valid YAML"),
        ({"model.yaml": "model.yaml"}, "model.yaml refers to itself"),
        ({"model.yaml": "preset: b.yaml", "b.yaml": "preset: model.yaml"}, "refers to itself"),
        ({"model.yaml": ""}, "nothing where the name of a preset or a path is expected"),
        ({"model.yaml": "[a]"}, "a collection where the name of a preset or a path is expected"),
        ({"model.yaml": "preset: {a: 1}"}, "a collection where the name"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    lines = refusal(run_file(tmp_path, RUN.replace("model: tiny", "model: model.yaml")))
    assert len(lines) == 1
    assert expected in lines[0]


def test_a_preset_that_cannot_be_read_hides_nothing_else(tmp_path: Path) -> None:
    text = RUN.replace("model: tiny", "model: tinny").replace("num_nodes: 2", "num_nodes: two")
    assert [line.split(": ")[1] for line in refusal(run_file(tmp_path, text))] == [
        "model",
        "cluster.num_nodes",
    ]
