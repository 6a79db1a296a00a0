"""config.json of Hugging Face as models: parameter counts as published, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import ConfigError
from simulator.importing.huggingface_import import import_huggingface
from simulator.loading import load_run
from workloads.presets import load_model

FIXTURES = Path(__file__).parents[3] / "fixtures/huggingface"
TOY = Path(__file__).parents[4] / "examples/toy-2-nodes.yaml"

PARAMETERS = {
    "llama3-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "gpt2": 124_439_808,
    "gpt-neox-20b": 20_554_567_680,
    "gemma-7b": 8_537_680_896,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
    "deepseek-v3": 671_026_419_200,
}
"""Parameters of the weights on Hugging Face's model pages; DeepSeek-V3 without its extra head."""

LEFT_OUT = {
    "qwen2.5-7b": 28 * (3584 + 2 * 4 * 128),  # biases of q, k and v
    "deepseek-v3": 58 * 256,  # the router's corrections
    # biases of experts, router, q, k, v and projection; sinks
    "gpt-oss-20b": 24 * (32 * 3 * 2880 + 32 + 80 * 64 + 2880 + 64),
}
"""Weights of these that the model does not have."""


def changed(folder: Path, name: str, **values: Any) -> Path:
    """A fixture with other values; None takes a key out."""
    config = json.loads((FIXTURES / f"{name}.json").read_text()) | values
    path = folder / "config.json"
    kept = {key: value for key, value in config.items() if key not in values or value is not None}
    path.write_text(json.dumps(kept, indent=1))
    return path


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_as_published(name: str) -> None:
    found = import_huggingface(FIXTURES / f"{name}.json").num_parameters
    assert found == PARAMETERS[name] - LEFT_OUT.get(name, 0)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"])
def test_same_as_the_preset(name: str) -> None:
    preset, model = load_model(name), import_huggingface(FIXTURES / f"{name}.json").model
    skipped = {"name", "source", "max_position_embeddings"}
    assert model.model_dump(exclude=skipped) == preset.model_dump(exclude=skipped)


@pytest.mark.parametrize("name", PARAMETERS)
def test_model_file_loads_in_a_run(name: str, tmp_path: Path) -> None:
    imported = import_huggingface(FIXTURES / f"{name}.json")
    path = tmp_path / "model.yaml"
    path.write_text(imported.text)
    run = load_run(
        TOY,
        [f"model={path}", "parallelism.pipeline_model_parallel_size=1",
         "parallelism.virtual_pipeline_model_parallel_size=1",
         "parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false",
         "parallelism.tp_comm_overlap=false", "training.seq_length=1024"],
    )  # fmt: skip
    assert run.model == imported.model
    assert imported.unknown == ()


def test_layers_without_experts(tmp_path: Path) -> None:
    dense_first = import_huggingface(FIXTURES / "deepseek-v3.json").model
    assert dense_first.moe_layer_freq == (0, 0, 0, *(1,) * 58)
    path = changed(tmp_path, "qwen3-30b-a3b", num_hidden_layers=6, decoder_sparse_step=2,
                   mlp_only_layers=[3])  # fmt: skip
    assert import_huggingface(path).model.moe_layer_freq == (0, 1, 0, 0, 0, 1)
    assert import_huggingface(FIXTURES / "qwen3-30b-a3b.json").model.moe_layer_freq == 1


def test_name_of_the_model(tmp_path: Path) -> None:
    assert import_huggingface(FIXTURES / "gpt2.json").model.name == "gpt2"
    assert import_huggingface(FIXTURES / "gpt2.json", "mine").model.name == "mine"
    told = changed(tmp_path, "gpt2", _name_or_path="someone/tiny")
    assert import_huggingface(told).model.name == "tiny"
    assert import_huggingface(changed(tmp_path, "gpt2")).model.name == tmp_path.name


def test_sliding_window_is_taken_if_used(tmp_path: Path) -> None:
    used = import_huggingface(FIXTURES / "mistral-7b.json")
    assert (used.model.window_size, used.not_modelled) == (4096, ())
    unused = import_huggingface(FIXTURES / "qwen2.5-7b.json")
    assert (unused.model.window_size, unused.not_modelled) == (None, ())


def test_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    inner = json.loads((FIXTURES / "llama3-8b.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "text_config": inner, "vision_config": {}}))
    assert import_huggingface(path).num_parameters == PARAMETERS["llama3-8b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "lama"}, "'lama' is not a family that is known"),
        ({"model_type": None}, "model_type: missing key; it takes one of llama"),
        ({"hidden_act": "mish"}, "'mish' is not modelled; choose silu"),
        ({"num_hidden_layers": "many"}, "'many' is not a whole number"),
        ({"num_hidden_layers": None}, "num_layers: missing key"),
        ({"hidden_size": -1}, "'-1' is not a whole number above 0"),
        ({"model_type": "lama"}, "did you mean 'llama'?"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_huggingface(changed(tmp_path, "llama3-8b", **values))
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2]", "no json {", '{"a": 1, "a": 2}'])
def test_no_config(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        import_huggingface(path)
