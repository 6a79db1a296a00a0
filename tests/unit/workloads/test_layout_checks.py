"""Contradictions between the keys of a run: each rule alone, all at once, and none missed."""

from collections import Counter
from itertools import chain
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_models import gpt, layout, llama
from small_models import training as train

from workloads.graph import build_work
from workloads.layout import RankGrid
from workloads.layout_checks import MAX_PASSES, Problem, check_layout
from workloads.memory import stage_memory
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec

TENSOR = "parallelism.tensor_model_parallel_size"
PIPELINE = "parallelism.pipeline_model_parallel_size"
CHUNKS = "parallelism.virtual_pipeline_model_parallel_size"
SCHEDULE = "parallelism.pipeline_schedule"
BATCH = "training.global_batch_size"


def problems(
    model: ModelSpec | None = None,
    parallelism: ParallelismSpec | None = None,
    training: TrainingSpec | None = None,
    optimizer: OptimizerSpec | None = None,
    num_gpus: int = 16,
) -> list[Problem]:
    return check_layout(
        model or gpt(), parallelism or layout(), training or train(global_batch_size=32),
        optimizer or OptimizerSpec(), num_gpus,
    )  # fmt: skip


def parallel(**changes: Any) -> ParallelismSpec:
    names = {
        "tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size",
        "vpp": "virtual_pipeline_model_parallel_size", "schedule": "pipeline_schedule",
    }  # fmt: skip
    return ParallelismSpec.model_validate({names.get(k, k): v for k, v in changes.items()})


ON_HOST: dict[str, Any] = {"global_batch_size": 32, "cpu_offloading": True}

RULES: dict[str, tuple[dict[str, Any], str, list[str]]] = {
    "as many layers on the host as there are": (
        {"training": train(**ON_HOST, cpu_offloading_num_layers=8)},
        "training.cpu_offloading_num_layers", ["8", "below num_layers (8)"],
    ),
    "layers on the host of a pipeline": (
        {"training": train(**ON_HOST, cpu_offloading_num_layers=1),
         "parallelism": parallel(pp=2)},
        "training.cpu_offloading", ["pipeline_model_parallel_size 1"],
    ),
    "layers on the host and run again": (
        {"training": train(
            recompute_granularity="full", **ON_HOST, cpu_offloading_num_layers=1)},
        "training.cpu_offloading", ["recompute_granularity: none"],
    ),
    "layers on the host in a graph": (
        {"training": train(
            cuda_graph="full_iteration", **ON_HOST, cpu_offloading_num_layers=1)},
        "training.cpu_offloading", ["cuda_graph: none"],
    ),
    "an offload of what is not sharded": (
        {"optimizer": OptimizerSpec(optimizer_cpu_offload=True)},
        "optimizer.optimizer_cpu_offload", ["use_distributed_optimizer"],
    ),
    "a V of one chunk": (
        {"parallelism": parallel(pp=4, vpp=1, schedule="zb_v")}, CHUNKS, ["zb_v", "two chunks"],
    ),
    "one chunk only": (
        {"parallelism": parallel(pp=4, vpp=2, schedule="zb_h1")}, SCHEDULE, ["zb_h1", "not 2"],
    ),
    "a short DualPipeV": (
        {"parallelism": parallel(pp=4, vpp=2, schedule="dualpipe_v"),
         "training": train(global_batch_size=28, micro_batch_size=1), "num_gpus": 16},
        BATCH, ["7 microbatches", "twice"],
    ),
    "recomputed experts of a dense model": (
        {"training": train(global_batch_size=32, recompute_granularity="selective",
                           recompute_modules=["mlp", "moe_act"])},
        "training.recompute_modules", ["moe_act", "no experts"],
    ),
    "a graph of recomputed layers": (
        {"training": train(
            global_batch_size=32, recompute_granularity="full", cuda_graph="per_layer")},
        "training.cuda_graph", ["full_iteration"],
    ),
    "a group smaller than the pipeline": (
        {"parallelism": parallel(pp=4, vpp=2, microbatch_group_size_per_vp_stage=3)},
        "parallelism.microbatch_group_size_per_vp_stage", ["3", "4 stages"],
    ),
    "a last group smaller than the pipeline": (
        {"parallelism": parallel(pp=4, vpp=2, microbatch_group_size_per_vp_stage=5),
         "training": train(global_batch_size=32, micro_batch_size=1)},
        "parallelism.microbatch_group_size_per_vp_stage", ["leaves 3 of 8", "4 stages"],
    ),
    "groups without chunks": (
        {"parallelism": parallel(pp=4, microbatch_group_size_per_vp_stage=4)},
        "parallelism.microbatch_group_size_per_vp_stage", ["interleaved_1f1b"],
    ),
    "deferral on one stage": (
        {"parallelism": parallel(defer_embedding_wgrad_compute=True)},
        "parallelism.defer_embedding_wgrad_compute", ["above 1"],
    ),
    "deferral without fusion": (
        {"parallelism": parallel(pp=4, defer_embedding_wgrad_compute=True),
         "training": train(global_batch_size=32, gradient_accumulation_fusion=False)},
        "parallelism.defer_embedding_wgrad_compute", ["gradient_accumulation_fusion"],
    ),
    "deferral twice": (
        {"parallelism": parallel(pp=4, schedule="zb_h1", defer_embedding_wgrad_compute=True)},
        "parallelism.defer_embedding_wgrad_compute", ["zb_h1"],
    ),
    "a limit of nothing": (
        {"parallelism": parallel(pp=4, wgrad_deferral_limit=2)},
        "parallelism.wgrad_deferral_limit", ["defer_embedding_wgrad_compute"],
    ),
    "post-validation of one stage": (
        {"optimizer": OptimizerSpec(enable_optimizer_post_validation=True)},
        "optimizer.enable_optimizer_post_validation", ["pipeline_model_parallel_size above 1"],
    ),
    "post-validation and early gathers": (
        {"parallelism": parallel(pp=4),
         "optimizer": OptimizerSpec(
             enable_optimizer_post_validation=True, use_distributed_optimizer=True,
             overlap_grad_reduce=True, overlap_param_gather=True)},
        "optimizer.enable_optimizer_post_validation", ["overlap_param_gather"],
    ),
    "heads by tensor ranks": (
        {"model": gpt(num_attention_heads=4), "parallelism": parallel(tp=8)},
        TENSOR, ["8", "num_attention_heads (4)"],
    ),
    "MLP by tensor ranks": (
        {"model": gpt(ffn_hidden_size=100), "parallelism": parallel(tp=8)},
        TENSOR, ["8", "ffn_hidden_size (100)"],
    ),
    "groups by tensor ranks": (
        {"model": gpt(num_attention_heads=24, num_query_groups=12, hidden_size=96),
         "parallelism": parallel(tp=8)},
        TENSOR, ["8", "num_query_groups (12)"],
    ),
    "heads by groups": (
        {"model": gpt(num_query_groups=3)}, "model.num_query_groups", ["3", "heads (8)"],
    ),
    "hidden size by heads": (
        {"model": gpt(num_attention_heads=12)},
        "model.num_attention_heads", ["12", "hidden_size (64)", "kv_channels"],
    ),
    "sequence parallel alone": (
        {"parallelism": parallel(sequence_parallel=True)},
        "parallelism.sequence_parallel", ["tensor_model_parallel_size above 1"],
    ),
    "sequence by tensor ranks": (
        {"parallelism": parallel(tp=4, sequence_parallel=True),
         "training": train(seq_length=30, global_batch_size=32)},
        "training.seq_length", ["30", "(4)", "sequence_parallel"],
    ),
    "sequence by positions": (
        {"model": gpt(max_position_embeddings=31)},
        "training.seq_length", ["32", "max_position_embeddings (31)", "rope"],
    ),
    "userbuffers without sequence parallel": (
        {"parallelism": parallel(tp=4, tp_comm_overlap=True)},
        "parallelism.tp_comm_overlap", ["sequence_parallel: true"],
    ),
    "layers by stages": (
        {"parallelism": parallel(pp=16)}, PIPELINE, ["16 stages", "num_layers (8)"],
    ),
    "layers by chunks": (
        {"parallelism": parallel(pp=2, vpp=3)}, CHUNKS, ["2 stages of 3 chunks", "(8)"],
    ),
    "chunks on one stage": (
        {"parallelism": parallel(vpp=2)}, CHUNKS, ["2 chunks", "pipeline_model_parallel_size"],
    ),
    "chunks in a plain schedule": (
        {"parallelism": parallel(pp=2, vpp=2, schedule="1f1b")},
        SCHEDULE, ["'1f1b'", "one chunk per stage, not 2", "interleaved_1f1b"],
    ),
    "interleaving without chunks": (
        {"parallelism": parallel(pp=2, schedule="interleaved_1f1b")},
        SCHEDULE, ["virtual_pipeline_model_parallel_size above 1", "1f1b"],
    ),
    "ranks by cluster": (
        {"parallelism": parallel(tp=4, pp=2), "num_gpus": 12},
        TENSOR, ["tensor x pipeline = 8", "12 GPUs"],
    ),
    "too few GPUs": (
        {"parallelism": parallel(tp=4, pp=2), "num_gpus": 4}, TENSOR, ["= 8", "4 GPUs"],
    ),
    "batch by replicas": (
        {"training": train(global_batch_size=48)}, BATCH, ["48", "2 x 16 = 32"],
    ),
    "microbatches by stages": (
        {"parallelism": parallel(pp=4, vpp=2), "training": train(global_batch_size=48)},
        BATCH, ["6 microbatches", "(4)"],
    ),
    "absurd batch": (
        {"training": train(global_batch_size=32 * (MAX_PASSES // 2 + 1))},
        BATCH, ["passes", f"{MAX_PASSES:,}"],
    ),
    "recomputed layers by chunk": (
        {"parallelism": parallel(pp=4), "training": train(
            global_batch_size=32, recompute_granularity="full", recompute_num_layers=3)},
        "training.recompute_num_layers", ["3", "2 layers"],
    ),
    "gather without sharding": (
        {"optimizer": OptimizerSpec(overlap_param_gather=True, overlap_grad_reduce=True)},
        "optimizer.overlap_param_gather", ["use_distributed_optimizer: true"],
    ),
    "gather without reduction": (
        {"optimizer": OptimizerSpec(overlap_param_gather=True, use_distributed_optimizer=True)},
        "optimizer.overlap_param_gather", ["overlap_grad_reduce: true"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_each_rule_alone(name: str) -> None:
    settings_, key, words = RULES[name]
    ((found_key, message),) = problems(**settings_)
    assert found_key == key
    assert all(word in message for word in words)


def test_what_is_allowed() -> None:
    """Near misses of the rules above."""
    for settings_ in (
        {},
        {"model": gpt(num_query_groups=2), "parallelism": parallel(tp=8)},  # groups are copied
        {"model": gpt(num_attention_heads=12, kv_channels=8, ffn_hidden_size=48)},
        {"model": gpt(max_position_embeddings=32)},
        {"model": llama(max_position_embeddings=16)},  # rotary: no table to run out of
        {"parallelism": parallel(tp=2, sequence_parallel=True, tp_comm_overlap=True)},
        {"parallelism": parallel(pp=4, vpp=2)},
        {"parallelism": parallel(pp=8, schedule="gpipe")},
        {"training": train(global_batch_size=32, recompute_num_layers=99)},  # nothing is recomputed
        {"parallelism": parallel(pp=4), "training": train(
            global_batch_size=32, recompute_granularity="full", recompute_num_layers=2)},
        {"optimizer": OptimizerSpec(use_distributed_optimizer=True, overlap_grad_reduce=True,
                                    overlap_param_gather=True)},
    ):  # fmt: skip
        assert problems(**settings_) == []


def test_all_problems_at_once() -> None:
    found = problems(
        model=gpt(num_attention_heads=6, num_query_groups=4, max_position_embeddings=8),
        parallelism=parallel(tp=4, pp=3, vpp=2, schedule="gpipe", tp_comm_overlap=True),
        training=train(global_batch_size=7),
        optimizer=OptimizerSpec(overlap_param_gather=True),
        num_gpus=24,
    )
    assert {key for key, _ in found} == {
        TENSOR, "model.num_query_groups", "model.num_attention_heads", "training.seq_length",
        "parallelism.tp_comm_overlap", CHUNKS, SCHEDULE, BATCH, "optimizer.overlap_param_gather",
    }  # fmt: skip
    assert len(found) == len(set(found)) == 10  # the optimizer lacks two things


def maybe(draw: st.DrawFn) -> bool:
    return draw(st.booleans())


def one_of(draw: st.DrawFn, *choices: Any) -> Any:
    return draw(st.sampled_from(choices))


@st.composite
def runs(draw: st.DrawFn) -> tuple[ModelSpec, ParallelismSpec, TrainingSpec, OptimizerSpec, int]:
    """Small runs; about half contradict themselves somewhere."""
    tp, pp, dp, micro = (one_of(draw, 1, 2, 4) for _ in range(4))
    vpp = one_of(draw, 1, 2) if pp > 1 else 1
    split = tp > 1 and maybe(draw)
    model = one_of(draw, gpt, llama)(
        num_layers=one_of(draw, 8, 16, 24), num_attention_heads=one_of(draw, 4, 8, 8, 12),
        num_query_groups=one_of(draw, 1, 2, 4, None), hidden_size=one_of(draw, 64, 96),
        max_position_embeddings=one_of(draw, None, None, 16, 64),
    )  # fmt: skip
    parallelism = parallel(
        tp=tp, pp=pp, vpp=vpp, schedule=one_of(draw, None, "gpipe") if vpp == 1 else None,
        sequence_parallel=split, tp_comm_overlap=split and maybe(draw),
        async_tensor_model_parallel_allreduce=maybe(draw),
    )  # fmt: skip
    training = train(
        seq_length=one_of(draw, 30, 32, 32), micro_batch_size=micro,
        global_batch_size=micro * dp * one_of(draw, 1, 2, 4, 8),
        recompute_granularity=one_of(draw, "none", "selective", "full"),
        recompute_method=one_of(draw, "uniform", "block"), recompute_num_layers=one_of(draw, 1, 3),
        attention_backend=one_of(draw, "flash", "unfused"), precision=one_of(draw, "bf16", "fp16"),
        gradient_accumulation_fusion=maybe(draw),
    )  # fmt: skip
    sharded, overlap = maybe(draw), maybe(draw)
    optimizer = OptimizerSpec(
        use_distributed_optimizer=sharded, overlap_grad_reduce=overlap,
        overlap_param_gather=sharded and overlap and maybe(draw),
        ddp_bucket_size=one_of(draw, None, 1, 5000),
    )  # fmt: skip
    return model, parallelism, training, optimizer, tp * pp * dp


@given(runs())
@settings(max_examples=100, deadline=None)
def test_what_passes_can_be_laid_out(
    run: tuple[ModelSpec, ParallelismSpec, TrainingSpec, OptimizerSpec, int],
) -> None:
    """And nothing is lost: layers, passes, weights in buckets; memory is positive."""
    model, parallelism, training, optimizer, num_gpus = run
    assume(not check_layout(model, parallelism, training, optimizer, num_gpus))
    grid = RankGrid.of(parallelism, num_gpus)
    work = build_work(model, training, parallelism, optimizer, grid.dp)
    assert work.num_microbatches * training.micro_batch_size * grid.dp == training.global_batch_size
    layers = [x for stage in work.stages for x in chain.from_iterable(stage.chunks)]
    names = Counter(layer.name for layer in layers)
    assert names["transformer layer"] == model.num_layers
    assert names["embedding"] == names["output"] == 1
    for stage, held in enumerate(work.stages):
        assert sum(map(sum, held.buckets)) == held.parameters > 0
        finished = [step for step in held.order if step.completes_gradients]
        assert len(finished) == work.num_microbatches * len(held.chunks)
        needed = stage_memory(model, training, parallelism, optimizer, grid.dp, stage, held.order)
        assert min(needed.terms().values()) >= 0
        assert needed.activations > 0
