"""Published runs of models with experts."""

import pytest

from simulator.simulate import simulate
from validation.measured import run_specs

GROK = {
    "id": "grok1", "model": "grok1-314b", "hidden_size": "6144", "ffn_hidden_size": "32768",
    "num_attention_heads": "48", "num_query_groups": "8", "kv_channels": "128",
    "vocab_size": "128256", "seq_length": "4096", "gated_linear_unit": "1", "num_experts": "8",
    "moe_router_topk": "2", "moe_ffn_hidden_size": "32768", "moe_layers_note": "all layers MoE",
    "gpu": "h100-sxm-80g", "precision": "bf16", "tensor_model_parallel_size": "4",
    "pipeline_model_parallel_size": "1", "virtual_pipeline_model_parallel_size": "1",
    "sequence_parallel": "1", "micro_batch_size": "1", "global_batch_size": "1024",
    "recompute_granularity": "none", "data_parallel_sharding": "dist-opt",
    "overlap_grad_reduce": "1", "overlap_param_gather": "1", "tp_comm_overlap": "0",
    "moe_dispatcher": "alltoall, grouped_gemm=false",
    "load_balance": "token drop: capacity factor 1.0 padded",
    "framework": "v24.11.1 recipe (NeMo 24.09)",
}  # fmt: skip
"""Grok-1 with fewer layers: NVIDIA/dgxc-benchmarking v24.11.1, grok1/README.md and recipe."""


@pytest.mark.parametrize(
    ("layers", "gpus", "experts_over", "measured_s"),
    [("2", "8", "2", 24.03), ("4", "16", "4", 21.52), ("4", "32", "8", 10.64)],
)
def test_grok_on_few_gpus(layers: str, gpus: str, experts_over: str, measured_s: float) -> None:
    row = {
        **GROK, "num_layers": layers, "num_gpus": gpus,
        "expert_model_parallel_size": experts_over, "step_time_s": str(measured_s),
    }  # fmt: skip
    (run,) = run_specs(row)
    assert simulate(run).metrics["step_time_s"] == pytest.approx(measured_s, rel=0.08)
