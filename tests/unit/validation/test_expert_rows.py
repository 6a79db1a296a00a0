"""What rows of runs tables say of experts."""

import pytest

from validation.experts import (
    attention_fields,
    expert_fields,
    expert_layout,
    expert_training,
    layers_with_experts,
)

ROW = {
    "framework": "Megatron-Bridge 2026", "num_layers": "4", "num_experts": "64",
    "moe_router_topk": "6", "moe_ffn_hidden_size": "1408", "expert_model_parallel_size": "8",
    "moe_shared_expert_intermediate_size": "2816", "moe_layers_note": "first layer dense",
}  # fmt: skip


def test_a_dense_row_says_nothing() -> None:
    dense = {"framework": "NeMo 25.09", "num_layers": "4", "num_experts": "0"}
    assert expert_fields(dense) == expert_training(dense, {}) == expert_layout(dense, {}) == {}


def test_columns_are_read() -> None:
    fields = expert_fields(ROW)
    assert (fields["num_experts"], fields["moe_router_topk"]) == (64, 6)
    assert fields["moe_layer_freq"] == (0, 1, 1, 1)
    layout = expert_layout(ROW, {})
    assert layout["expert_model_parallel_size"] == 8
    assert layout["expert_tensor_parallel_size"] == 1  # Megatron-Bridge's default


@pytest.mark.parametrize(
    ("note", "expected"),
    [("all layers MoE", 1), ("first 3 layers dense (ffn 18432), 58 MoE", (0, 0, 0, 1)),
     ("every other layer MoE ([0,1]*24)", (0, 1, 0, 1))],
)  # fmt: skip
def test_notes_on_layers(note: str, expected: object) -> None:
    assert layers_with_experts({**ROW, "moe_layers_note": note}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("DeepEP", "flex"), ("HybridEP 32 SMs", "flex"), ("alltoall, grouped_gemm=false", "alltoall"),
     ("allgather", "allgather"), ("", "alltoall")],
)  # fmt: skip
def test_dispatchers(text: str, expected: str) -> None:
    layout = expert_layout({**ROW, "moe_dispatcher": text}, {})
    assert layout["moe_token_dispatcher_type"] == expected


def test_arguments_win_over_the_framework() -> None:
    assert expert_layout(ROW, {"swiglu": ""})["moe_token_dispatcher_type"] == "allgather"
    told = expert_training(ROW, {"moe-grouped-gemm": ""})
    assert (told["moe_grouped_gemm"], told["moe_permute_fusion"]) == (True, False)


def test_token_drop_and_natural_routing() -> None:
    drop = expert_training({**ROW, "load_balance": "token drop: capacity factor 1.0 padded"}, {})
    assert drop["moe_expert_capacity_factor"] == 1.0
    assert drop["moe_pad_expert_input_to_capacity"]
    natural = expert_training({**ROW, "load_balance": "natural routing"}, {})
    assert natural["moe_routing"] == "zipf"


def test_latent_attention_comes_from_the_preset() -> None:
    row = {**ROW, "model": "DeepSeek V2 Lite cut to 4 layers", "multi_latent_attention": "1"}
    fields = attention_fields(row)
    assert (fields["kv_lora_rank"], fields["q_lora_rank"]) == (512, None)
    with pytest.raises(ValueError, match="ranks of latent attention"):
        attention_fields({**row, "model": "mystery"})
