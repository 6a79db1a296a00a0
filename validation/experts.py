"""What a runs table says of experts and latent attention, as keys of the run file.

Columns come first, then Megatron-LM's arguments quoted in the notes, then what the framework of the
time does: NeMo and Megatron-Bridge dispatch by all-to-all, and group and fuse products and
permutation since 25.x (Megatron-Bridge, docs/performance-guide; DGX Cloud's 24.11 to 25.03 recipes
set grouped_gemm=false). Ranks of latent attention, which tables do not have, come from the preset
whose name the row's model begins with.
"""

import re
from collections.abc import Mapping
from typing import Any

from workloads.presets import load_model, preset_names

Row = Mapping[str, str]

LATENT = (
    "multi_latent_attention", "q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim",
    "v_head_dim",
)  # fmt: skip
_WINDOWS = ("window_size", "window_attn_skip_freq")

NATURAL_EXPONENT = 0.25
"""Of a power law of loads under natural routing: of 128 experts on 32 ranks the fullest rank then
gets 1.4 times its share. Judged from two published pairs, Qwen3-235B on 256 H100 with balanced and
natural routing (Megatron-MoE-ModelZoo): 295 and 237 TFLOP/s at 16K tokens, 389 and 357 at 128K."""


def attention_fields(row: Row) -> dict[str, Any]:
    """Fields of `ModelSpec` that tell latent attention, windows and norms of queries and keys."""
    preset = _preset(row)
    fields: dict[str, Any] = {}
    if row.get("multi_latent_attention", "") == "1":
        if preset is None or not preset.multi_latent_attention:
            raise ValueError("the source does not print the ranks of latent attention")
        fields |= {name: getattr(preset, name) for name in LATENT}
    if "sliding-window" in row.get("moe_layers_note", "") and preset is not None:
        fields |= {name: getattr(preset, name) for name in _WINDOWS}
    if "qk-layernorm" in row.get("moe_layers_note", ""):
        fields["qk_layernorm"] = True
    return fields


def expert_fields(row: Row) -> dict[str, Any]:
    """Fields of `ModelSpec` that describe the experts; none for a dense model."""
    experts = _count(row, "num_experts")
    if not experts:
        return {}
    return {
        "num_experts": experts,
        "moe_router_topk": _count(row, "moe_router_topk") or 2,
        "moe_ffn_hidden_size": _count(row, "moe_ffn_hidden_size") or None,
        "moe_shared_expert_intermediate_size": _count(row, "moe_shared_expert_intermediate_size"),
        "moe_layer_freq": layers_with_experts(row),
        "add_bias_linear": False,
        "mtp_num_layers": _further_layers(row),
    }


def layers_with_experts(row: Row) -> tuple[int, ...] | int:
    """Pattern that the note tells: `first 3 layers dense`, `every other layer MoE`, or all."""
    note, layers = row.get("moe_layers_note", ""), int(row["num_layers"])
    if "every other layer" in note:
        return tuple(i % 2 for i in range(layers))
    dense = re.search(r"first (\d+ )?layers? dense", note)
    if dense is None:
        return 1
    count = min(int(dense[1] or 1), layers - 1)
    return (0,) * count + (1,) * (layers - count)


def _further_layers(row: Row) -> int:
    """NeMo's DeepSeek-V3 recipes train one layer of multi-token prediction, but for those of 25.11,
    whose FLOPs per token count none."""
    told = "MTP layer" in row.get("moe_layers_note", "")
    recipes = re.search(r"NeMo|recipe|Bridge", row["framework"])
    return int(told and recipes is not None and "25.11" not in row["framework"])


def expert_training(row: Row, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Fields of `TrainingSpec`: products, permutation, capacity and routing."""
    if not _count(row, "num_experts"):
        return {}
    modern = not re.search(r"NeMo 24\.|\bv24\.", row["framework"])
    dispatcher = row.get("moe_dispatcher", "")
    grouped = "grouped_gemm=false" not in dispatcher and (modern or "NeMo" in row["framework"])
    fused = modern
    if arguments:
        grouped, fused = "moe-grouped-gemm" in arguments, "moe-permute-fusion" in arguments
    balance = row.get("load_balance", "")
    drops = "token drop" in balance
    natural = "natural" in balance or "unbalanced" in balance
    return {
        "moe_grouped_gemm": grouped,
        "moe_permute_fusion": fused,
        "moe_expert_capacity_factor": 1.0 if drops else None,
        "moe_pad_expert_input_to_capacity": drops,
        "moe_routing": "zipf" if natural else "balanced",
        "moe_zipf_exponent": NATURAL_EXPONENT if natural else 0.0,
    }


def expert_layout(row: Row, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Fields of `ParallelismSpec`: the experts' grid, and how tokens reach them."""
    if not _count(row, "num_experts"):
        return {}
    shards = _count(row, "expert_tensor_parallel_size") or None
    if shards is None and re.search(r"Bridge|mcore|^NeMo 2[5-9]", row["framework"]):
        shards = 1  # the default of Megatron-Bridge, which is NeMo since 25.09
    overlaps = row.get("moe_a2a_overlap", "") == "1"
    return {
        "expert_model_parallel_size": _count(row, "expert_model_parallel_size") or 1,
        "expert_tensor_parallel_size": shards,
        "moe_token_dispatcher_type": _dispatcher(row, arguments),
        "overlap_moe_expert_parallel_comm": overlaps,
        "delay_wgrad_compute": overlaps,
    }


def _dispatcher(row: Row, arguments: Mapping[str, str]) -> str:
    text = row.get("moe_dispatcher", "").lower()
    if re.search(r"deepep|hybridep|flex", text):
        return "flex"
    if "gather" in text:
        return "allgather"
    if arguments and not text:
        return arguments.get("moe-token-dispatcher-type", "allgather")
    return "alltoall"


def _preset(row: Row) -> Any:
    """The longest preset name that the model's begins with."""
    name = re.sub(r"[\s_]+", "-", row.get("model", "").lower())
    found = [preset for preset in preset_names() if name.startswith(preset)]
    return load_model(max(found, key=len)) if found else None


def _count(row: Row, key: str) -> int:
    text = row.get(key, "").strip()
    return int(float(text)) if text else 0
