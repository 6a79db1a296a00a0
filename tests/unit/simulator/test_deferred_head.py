"""Weight gradients of the logits left to the end (`defer_embedding_wgrad_compute`)."""

from typing import Any

import pytest
from small_runs import small_cluster, small_model, small_run

from simulator.simulate import Result, simulate

MICROBATCHES = 8


def step(vpp: int = 1, *, fold: bool = True, num_nodes: int = 1, **parallelism: Any) -> Result:
    """4 stages, and a vocabulary that makes the last the slowest."""
    run = small_run(
        small_cluster(num_nodes, 4), pp=4, vpp=vpp, num_microbatches=MICROBATCHES,
        model=small_model(num_layers=8, hidden_size=1024, vocab_size=32768),
        parallelism=parallelism, training={"seq_length": 2048},
        optimizer={"overlap_grad_reduce": True},
    )  # fmt: skip
    return simulate(run, fold=fold)


def named(result: Result, name: str) -> list[float]:
    return [
        piece.duration_s
        for rank in result.trace.ranks
        for span in rank.spans
        for piece in span.pieces
        if piece.name == name
    ]


@pytest.mark.parametrize("vpp", [1, 2])
def test_the_last_stage_does_them_while_it_would_wait(vpp: int) -> None:
    """The same products, after the last backward; the step is shorter by most of those of all
    microbatches but one, for each of which all stages waited."""
    usual, deferring = step(vpp), step(vpp, defer_embedding_wgrad_compute=True)
    assert named(deferring, "logits wgrad") == named(usual, "logits wgrad")
    won_s = usual.metrics["step_time_s"] - deferring.metrics["step_time_s"]
    assert won_s > 0.5 * sum(named(usual, "logits wgrad"))
    last = next(r for r in deferring.trace.ranks if r.stage == 3)
    spans = [s for s in last.spans if any(p.name == "logits wgrad" for p in s.pieces)]
    assert [s.microbatch for s in spans] == [-1]


def test_no_more_than_the_limit_is_left() -> None:
    result = step(defer_embedding_wgrad_compute=True, wgrad_deferral_limit=3)
    last = next(r for r in result.trace.ranks if r.stage == 3)
    counts = [
        (s.microbatch, n)
        for s in last.spans
        if (n := sum(p.name == "logits wgrad" for p in s.pieces))
    ]
    assert counts == [*((i, 1) for i in range(3, MICROBATCHES)), (-1, 3)]


def test_what_is_left_is_held() -> None:
    """Per microbatch 2,048 tokens of input (1,024) and of gradient (32,768), two bytes each."""
    usual, some, all_ = (
        step(**changes).metrics["memory"]["per_stage"]
        for changes in (
            {},
            {"defer_embedding_wgrad_compute": True, "wgrad_deferral_limit": 3},
            {"defer_embedding_wgrad_compute": True},
        )
    )
    each = 2048 * (1024 + 32768) * 2
    assert some[3]["activations"] - usual[3]["activations"] == 3 * each
    assert all_[3]["activations"] - usual[3]["activations"] == MICROBATCHES * each
    assert all_[0] == usual[0]


def test_gradients_are_reduced_after_them_folded_or_not() -> None:
    folded, unfolded = (
        step(num_nodes=2, fold=fold, defer_embedding_wgrad_compute=True) for fold in (True, False)
    )
    assert unfolded.metrics["step_time_s"] == pytest.approx(folded.metrics["step_time_s"], rel=1e-9)
    last = next(r for r in folded.trace.ranks if r.stage == 3)
    late = [s for s in last.spans if s.category == "backward_weight"]
    reduces = [s for s in last.spans if s.name.startswith("reduce gradients")]
    assert reduces
    assert min(s.start_s for s in reduces) >= late[-1].end_s
