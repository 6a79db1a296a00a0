"""Explanations: every term has one, settings are real, open, and change what they are named for."""

import re
from pathlib import Path
from typing import Any

import pytest

from simulator.breakdown import TERMS
from simulator.explanations import explanation, large_terms
from simulator.loading import load_run
from simulator.runspec import RunSpec
from simulator.simulate import simulate
from simulator.summary_rows import TERM_NAMES

TOY = Path(__file__).parents[3] / "examples" / "toy-2-nodes.yaml"
P, T, O, F = "parallelism.", "training.", "optimizer.", "cluster.fabric."  # noqa: E741


def toy(*overrides: str) -> RunSpec:
    return load_run(TOY, overrides)


def test_every_term_of_a_result_has_a_name_and_a_sentence() -> None:
    terms = {t["term"] for t in simulate(toy()).to_json()["explain"]}
    assert terms == {"kernel_efficiency", *TERMS} - {"gemm", "attention"}
    for term in terms:
        assert term in TERM_NAMES
        assert re.fullmatch(r"[A-Z].*\.", explanation(term, toy()))
    assert explanation("novel_term", toy()) == ""


def settings(term: str, run: RunSpec) -> list[str]:
    return re.findall(r"\w+(?:\.\w+)+", explanation(term, run))


def test_every_setting_is_a_key_of_the_run_file() -> None:
    runs = [
        toy(), toy("cluster.slow_gpus={1: 0.5}", T + "recompute_granularity=full"),
        toy(T + "recompute_granularity=selective", T + "attention_backend=unfused"),
        toy(P + "sequence_parallel=true", O + "use_distributed_optimizer=true",
            O + "overlap_grad_reduce=true"),
    ]  # fmt: skip
    named = {key for run in runs for term in TERM_NAMES for key in settings(term, run)}
    assert len(named) == 19
    for key in named:
        value: Any = runs[0]
        for name in key.split("."):
            assert name in type(value).model_fields, key
            value = getattr(value, name)


@pytest.mark.parametrize(
    ("term", "setting", "before", "after"),
    [
        ("kernel_efficiency", T + "micro_batch_size", [], ["4"]),
        ("kernel_efficiency", P + "tensor_model_parallel_size", [], ["1"]),
        ("memory_bound", P + "sequence_parallel", [], ["true"]),
        ("memory_bound", T + "attention_backend", [T + "attention_backend=unfused"], ["flash"]),
        ("memory_bound", T + "cross_entropy_loss_fusion", [], ["true"]),
        ("recompute", T + "recompute_granularity", [T + "recompute_granularity=full"],
         ["selective"]),
        ("recompute", T + "recompute_granularity", [T + "recompute_granularity=selective"],
         ["none"]),
        ("optimizer", O + "use_distributed_optimizer", [], ["true"]),
        ("optimizer", T + "global_batch_size", [], ["64"]),
        ("tp_exposed", P + "tp_comm_overlap", [P + "sequence_parallel=true"], ["true"]),
        ("tp_exposed", P + "tensor_model_parallel_size", [], ["1"]),
        ("pp_exposed", P + "overlap_p2p_communication", [], ["true"]),
        ("pp_exposed", P + "pipeline_model_parallel_size", [], ["1"]),
        ("pp_exposed", F + "link_bandwidth", [], ["400Gb/s"]),
        ("dp_exposed", O + "overlap_grad_reduce", [], ["true"]),
        ("dp_exposed", O + "overlap_param_gather",
         [O + "use_distributed_optimizer=true", O + "overlap_grad_reduce=true"], ["true"]),
        ("dp_exposed", T + "global_batch_size", [], ["64"]),
        ("dp_exposed", F + "link_bandwidth", [], ["400Gb/s"]),
        ("interference", T + "global_batch_size", [O + "overlap_grad_reduce=true"], ["64"]),
        ("overhead", T + "global_batch_size", [], ["64"]),
        ("bubble", T + "global_batch_size", [], ["64"]),
        ("bubble", P + "virtual_pipeline_model_parallel_size", [], ["2"]),
        ("bubble", P + "pipeline_model_parallel_size", [], ["1"]),
        ("bubble", P + "pipeline_schedule", [], ["zb_h1"]),
        ("bubble", O + "enable_optimizer_post_validation", [P + "pipeline_schedule=zb_v"],
         ["true"]),
        ("overhead", T + "cuda_graph", ["cluster.profile.host_operation_s=1ms"],
         ["full_iteration"]),
        ("offload_exposed", O + "overlap_cpu_optimizer_d2h_h2d",
         [O + "use_distributed_optimizer=true", O + "optimizer_cpu_offload=true"], ["true"]),
        ("offload_exposed", O + "optimizer_offload_fraction",
         [O + "use_distributed_optimizer=true", O + "optimizer_cpu_offload=true"], ["0.5"]),
    ],
)  # fmt: skip
def test_settings_shrink_the_term_they_are_named_for(
    term: str, setting: str, before: list[str], after: list[str]
) -> None:
    assert setting in settings(term, toy(*before))
    changed = [*before, f"{setting}={after[0]}"]
    assert share(term, changed) < share(term, before)


def share(term: str, overrides: list[str]) -> float:
    terms = simulate(toy(*overrides)).to_json()["explain"]
    return float(next(t["mfu_points"] for t in terms if t["term"] == term))


@pytest.mark.parametrize(
    ("term", "setting", "overrides"),
    [
        ("tp_exposed", P + "tp_comm_overlap",
         [P + "sequence_parallel=true", P + "tp_comm_overlap=true"]),
        ("tp_exposed", P + "tp_comm_overlap", []),  # it needs sequence_parallel
        ("tp_exposed", P + "tensor_model_parallel_size", [P + "tensor_model_parallel_size=1"]),
        ("dp_exposed", O + "overlap_grad_reduce", [O + "overlap_grad_reduce=true"]),
        ("dp_exposed", O + "overlap_param_gather", [O + "use_distributed_optimizer=true"]),
        ("bubble", P + "virtual_pipeline_model_parallel_size",  # 8 layers, 2 stages: 4 at most
         [P + "virtual_pipeline_model_parallel_size=4"]),
        ("bubble", P + "pipeline_model_parallel_size", [P + "pipeline_model_parallel_size=1"]),
        ("memory_bound", T + "attention_backend", []),
        ("recompute", T + "recompute_granularity", []),
        ("gpu_variation", "cluster.slow_gpus", []),
    ],
)  # fmt: skip
def test_settings_without_room_are_not_named(term: str, setting: str, overrides: list[str]) -> None:
    assert setting not in settings(term, toy(*overrides))


def test_large_terms_are_a_point_or_more_and_in_order() -> None:
    points = {"bubble": 0.01, "recompute": 0.3, "overhead": 0.0099, "optimizer": -0.2}
    terms = [{"term": term, "seconds": 1.0, "mfu_points": p} for term, p in points.items()]
    assert large_terms({"explain": terms}) == [("recompute", 0.3), ("bubble", 0.01)]
    assert large_terms({}) == []
