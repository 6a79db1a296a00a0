"""Zero-bubble schedules through whole steps."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from simulator.simulate import Result, simulate


def step(schedule: str, *, fold: bool = True, tp: int = 1, **optimizer: Any) -> Result:
    """12 layers of which one is the embedding's place and one the loss's, 12 microbatches."""
    parallelism = {
        "pipeline_schedule": schedule, "account_for_embedding_in_pipeline_split": True,
        "account_for_loss_in_pipeline_split": True, "sequence_parallel": tp > 1,
    }  # fmt: skip
    chunks = 2 if schedule in ("zb_v", "dualpipe_v") else 1
    run = small_run(
        small_cluster(1), tp=tp, pp=4, vpp=chunks, num_microbatches=12,
        model=small_model(num_layers=14, hidden_size=1024, vocab_size=2048),
        parallelism=parallelism, optimizer=optimizer, training={"seq_length": 2048},
    )  # fmt: skip
    return simulate(run, fold=fold)


def seconds(schedule: str, **optimizer: Any) -> float:
    return float(step(schedule, **optimizer).metrics["step_time_s"])


def test_the_order_of_the_paper() -> None:
    """Qi 2023, section 5: 1F1B, then ZB-H1, then ZB-H2 and ZB-V; stages that need not wait for
    each other's norm are faster still."""
    free: dict[str, Any] = {"enable_optimizer_post_validation": True}
    assert seconds("1f1b") > seconds("zb_h1") > seconds("zb_v", **free)
    assert seconds("zb_h1") > seconds("zb_h2", **free)
    assert seconds("zb_h2") > seconds("zb_h2", **free)
    assert seconds("1f1b") > seconds("dualpipe_v")


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h2", "zb_v", "dualpipe_v"])
@pytest.mark.parametrize("tp", [1, 2])
def test_folded_and_unfolded_agree(schedule: str, tp: int) -> None:
    optimizer = {"use_distributed_optimizer": True, "overlap_grad_reduce": True}
    folded = step(schedule, tp=tp, **optimizer).metrics
    unfolded = step(schedule, tp=tp, fold=False, **optimizer).metrics
    assert unfolded["step_time_s"] == pytest.approx(folded["step_time_s"], rel=1e-9)
    assert folded["simulation"]["rank_classes"] == 4


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v", "dualpipe_v"])
@pytest.mark.parametrize("free", [False, True])
def test_terms_sum_to_the_step(schedule: str, free: bool) -> None:
    metrics = step(schedule, enable_optimizer_post_validation=free).metrics
    assert sum(metrics["breakdown_s"].values()) == pytest.approx(metrics["step_time_s"])
    assert metrics["breakdown_s"]["bubble"] >= -1e-12


def test_splitting_the_backward_takes_no_more_compute() -> None:
    """Without tensor parallelism both parts are the same kernels."""
    whole, split = (step(s).metrics["breakdown_s"] for s in ("1f1b", "zb_h1"))
    for term in ("gemm", "attention", "memory_bound"):
        assert split[term] == pytest.approx(whole[term], rel=1e-9)


def test_a_v_turns_without_a_transfer() -> None:
    """Three boundaries down and three up, forward and back, each a transfer per microbatch."""
    sends = [
        span.name
        for rank in step("zb_v").trace.ranks
        for span in rank.spans
        if span.category == "pp" and span.microbatch == 0
    ]
    assert len(sends) == 2 * 2 * 3
