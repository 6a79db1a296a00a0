"""What PyTorch trainers call selective, in Megatron-LM's words."""

import pytest

from validation.recomputation import recompute_settings


def test_megatron_modules() -> None:
    row = {"recompute_modules": "moe_act layernorm"}
    assert recompute_settings(row, "selective", 8) == {
        "recompute_granularity": "selective", "recompute_modules": ("moe_act", "layernorm"),
    }  # fmt: skip
    assert recompute_settings({}, "selective", 8)["recompute_modules"] == ("core_attn",)


def test_every_second_layer() -> None:
    assert recompute_settings({"notes": "AC: selective layer; x"}, "selective", 33) == {
        "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 16,
    }  # fmt: skip


@pytest.mark.parametrize("notes", ["selective op AC", "a fraction (fraction not printed)"])
def test_what_has_no_counterpart(notes: str) -> None:
    with pytest.raises(ValueError, match="recomput"):
        recompute_settings({"notes": notes}, "selective", 8)
    assert recompute_settings({"notes": notes}, "full", 8)["recompute_granularity"] == "full"
