"""Models that ship: all load, and each says where it comes from."""

import pytest

from workloads.presets import load_model, preset_names, preset_path, read_preset


@pytest.mark.parametrize("name", preset_names())
def test_every_file_is_a_model_with_a_source(name: str) -> None:
    model = load_model(name)
    assert len(model.source) > 30
    own_width = "kv_channels" in read_preset(name)
    assert own_width or model.head_dim * model.num_attention_heads == model.hidden_size
    assert preset_path(name).stem == name


def test_names() -> None:
    names = preset_names()
    assert list(names) == sorted(names)
    assert len(names) >= 20
    assert len({load_model(name).name for name in names}) == len(names)


@pytest.mark.parametrize("name", ["gpt-5", "", "../catalog/gpt-16b", "gpt-16b.yaml"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(KeyError):
        preset_path(name)


def test_llama_3_70b_as_published() -> None:
    """Grattafiori 2024 (arXiv 2407.21783), table 3."""
    preset = read_preset("llama3-70b")
    assert (preset["num_layers"], preset["hidden_size"], preset["ffn_hidden_size"]) == (
        80, 8192, 28672,
    )  # fmt: skip
    assert (preset["num_attention_heads"], preset["num_query_groups"]) == (64, 8)
