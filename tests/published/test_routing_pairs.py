"""What natural routing costs: Qwen3-235B on 256 H100 (Megatron-MoE-ModelZoo, long-context table).

The pairs' layouts are not published in full; TP 2, PP 8, 4 chunks and EP 32 are assumed, with as
much context parallelism as fits.
"""

import pytest

from hardware.presets import load_fabric, load_node
from hardware.spec import ClusterSpec
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from validation.experts import NATURAL_EXPONENT
from workloads.presets import load_model
from workloads.spec import OptimizerSpec, ParallelismSpec, TrainingSpec


def step_s(seq_length: int, context: int, exponent: float) -> float:
    run = RunSpec(
        model=load_model("qwen3-235b-a22b"),
        training=TrainingSpec(
            seq_length=seq_length, micro_batch_size=1, global_batch_size=256,
            moe_grouped_gemm=True, moe_permute_fusion=True,
            moe_routing="zipf", moe_zipf_exponent=exponent,
        ),
        parallelism=ParallelismSpec(
            tensor_model_parallel_size=2, sequence_parallel=True, context_parallel_size=context,
            pipeline_model_parallel_size=8, virtual_pipeline_model_parallel_size=4,
            account_for_embedding_in_pipeline_split=True,
            account_for_loss_in_pipeline_split=True,
            expert_model_parallel_size=32, expert_tensor_parallel_size=1,
            moe_token_dispatcher_type="flex",
        ),
        optimizer=OptimizerSpec(
            use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True
        ),
        cluster=ClusterSpec(
            node=load_node("dgx-h100"), num_nodes=32, fabric=load_fabric("ndr-rail-optimized")
        ),
    )  # fmt: skip
    seconds: float = simulate(run).metrics["step_time_s"]
    return seconds


@pytest.mark.parametrize(
    ("seq_length", "context", "balanced", "natural"),
    [(16384, 2, 295, 237), (131072, 16, 389, 357)],
)
def test_natural_routing_is_slower(
    seq_length: int, context: int, balanced: float, natural: float
) -> None:
    """Within 5 points of the published loss of TFLOP/s."""
    kept = step_s(seq_length, context, 0.0) / step_s(seq_length, context, NATURAL_EXPONENT)
    assert kept == pytest.approx(natural / balanced, abs=0.05)
