"""What must hold between the keys of a run, as Megatron-LM demands it."""

from collections.abc import Iterator

from workloads.expert_checks import attention_problems, expert_problems
from workloads.layout import RankGrid
from workloads.partition import Problem, partition, partition_problems
from workloads.spec import (
    ModelSpec,
    OptimizerSpec,
    ParallelismSpec,
    RecomputeModule,
    TrainingSpec,
)

MAX_PASSES = 5_000_000
"""Far beyond any real step; keeps a slip in the batch size from filling the memory."""


def check_layout(
    model: ModelSpec,
    parallelism: ParallelismSpec,
    training: TrainingSpec,
    optimizer: OptimizerSpec,
    num_gpus: int,
) -> list[Problem]:
    """All contradictions of a run, none if it can be laid out."""
    return [
        *_tensor(model, parallelism),
        *_pipeline(model, parallelism),
        *_sequence(model, parallelism, training),
        *_context(model, parallelism, training),
        *_batch(parallelism, training, num_gpus),
        *_rank_order(parallelism, num_gpus),
        *_deferral(parallelism, training),
        *_recompute(model, parallelism, training),
        *_cuda_graph(training),
        *_cpu_offloading(model, parallelism, training),
        *_precision(training),
        *_optimizer(optimizer),
        *_offload(optimizer),
        *_post_validation(optimizer, parallelism),
        *_sharding(parallelism, optimizer, num_gpus),
        *attention_problems(model, parallelism, training),
        *expert_problems(model, parallelism, training, optimizer, num_gpus),
    ]


def _tensor(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    tp = parallelism.tensor_model_parallel_size
    key = "parallelism.tensor_model_parallel_size"
    for name, value in (
        ("num_attention_heads", model.num_attention_heads),
        ("ffn_hidden_size", model.ffn_size),
    ):
        if value % tp:
            yield key, f"{tp} does not divide {name} ({value})"
    groups = model.query_groups
    if groups % tp and tp % groups:
        yield key, f"{tp} neither divides num_query_groups ({groups}) nor is a multiple of it"
    if model.num_attention_heads % groups:
        yield (
            "model.num_query_groups",
            f"{groups} does not divide num_attention_heads ({model.num_attention_heads})",
        )
    if (
        model.hidden_size % model.num_attention_heads
        and "kv_channels" not in model.model_fields_set
    ):
        yield (
            "model.num_attention_heads",
            f"{model.num_attention_heads} does not divide hidden_size ({model.hidden_size}); "
            "choose one that does, or set kv_channels",
        )
    if parallelism.sequence_parallel and tp == 1:
        yield "parallelism.sequence_parallel", "needs tensor_model_parallel_size above 1"
    if parallelism.tp_comm_overlap and not parallelism.sequence_parallel:
        yield "parallelism.tp_comm_overlap", "needs sequence_parallel: true"


def _sequence(
    model: ModelSpec, parallelism: ParallelismSpec, training: TrainingSpec
) -> Iterator[Problem]:
    tp, rows = parallelism.tensor_model_parallel_size, model.max_position_embeddings
    cp = parallelism.context_parallel_size
    if parallelism.sequence_parallel and training.seq_length % (tp * cp):
        shared = f" x context_parallel_size ({cp})" if cp > 1 else ""
        yield (
            "training.seq_length",
            f"{training.seq_length} is not divisible by tensor_model_parallel_size ({tp}){shared}, "
            "which sequence_parallel needs",
        )
    learned = model.position_embedding_type == "learned_absolute"
    if learned and rows is not None and training.seq_length > rows:
        yield (
            "training.seq_length",
            f"{training.seq_length} exceeds max_position_embeddings ({rows}); raise that too, or "
            "choose position_embedding_type: rope",
        )


def _context(
    model: ModelSpec, parallelism: ParallelismSpec, training: TrainingSpec
) -> Iterator[Problem]:
    """As Megatron-LM's arguments.py and Transformer Engine's context_parallel.py demand it."""
    cp, kind = parallelism.context_parallel_size, parallelism.cp_comm_type
    levels = parallelism.hierarchical_context_parallel_sizes
    key = "parallelism.hierarchical_context_parallel_sizes"
    if (kind == "a2a+p2p") != (levels is not None):
        yield key, "goes with cp_comm_type: a2a+p2p, which needs it; [2, 4] makes rings of 4"
    elif levels is not None and levels[0] * levels[1] != cp:
        yield key, f"{levels[0]} x {levels[1]} is not context_parallel_size ({cp})"
    if cp == 1:
        return
    if training.seq_length % (2 * cp):
        yield (
            "training.seq_length",
            f"{training.seq_length} is not divisible by 2 x context_parallel_size ({2 * cp}), "
            "which equal parts of causal attention need",
        )
    if training.attention_backend == "unfused":
        yield "training.attention_backend", "context_parallel_size above 1 needs fused or flash"
    swaps, tp = parallelism.context_swap_size, parallelism.tensor_model_parallel_size
    for name, heads in (
        ("num_attention_heads", model.num_attention_heads),
        ("num_query_groups", model.query_groups),
    ):
        if swaps > 1 and heads % (tp * swaps):
            yield (
                "parallelism.cp_comm_type",
                f"'{kind}' spreads heads over tensor x swapping ranks ({tp} x {swaps}), which does "
                f"not divide {name} ({heads})",
            )


def _pipeline(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    pp = parallelism.pipeline_model_parallel_size
    chunks = parallelism.virtual_pipeline_model_parallel_size
    schedule = parallelism.pipeline_schedule
    key = "parallelism.virtual_pipeline_model_parallel_size"
    yield from partition_problems(model, parallelism)
    if chunks > 1 and pp == 1:
        yield key, f"{chunks} chunks need pipeline_model_parallel_size above 1"
    if parallelism.v_shaped and chunks != 2:
        yield key, f"'{schedule}' runs two chunks per stage, not {chunks}"
    several = schedule == "interleaved_1f1b" or parallelism.v_shaped
    if chunks > 1 and not several:
        yield (
            "parallelism.pipeline_schedule",
            f"'{schedule}' runs one chunk per stage, not {chunks}; choose interleaved_1f1b",
        )
    if parallelism.microbatch_group_size_per_vp_stage and schedule != "interleaved_1f1b":
        yield "parallelism.microbatch_group_size_per_vp_stage", "needs interleaved_1f1b"
    if chunks == 1 and schedule == "interleaved_1f1b":
        yield (
            "parallelism.pipeline_schedule",
            "'interleaved_1f1b' needs virtual_pipeline_model_parallel_size above 1; choose 1f1b",
        )


def _batch(
    parallelism: ParallelismSpec, training: TrainingSpec, num_gpus: int
) -> Iterator[Problem]:
    size, pp = parallelism.num_model_parallel, parallelism.pipeline_model_parallel_size
    if num_gpus % size:
        yield (
            "parallelism.tensor_model_parallel_size",
            f"{_named_product(parallelism)} = {size} does not divide the cluster's {num_gpus} GPUs",
        )
        return
    dp = parallelism.data_parallel_size(num_gpus)
    sequences = training.micro_batch_size * dp
    if training.global_batch_size % sequences:
        yield (
            "training.global_batch_size",
            f"{training.global_batch_size} is not a multiple of micro_batch_size x data-parallel "
            f"size ({training.micro_batch_size} x {dp} = {sequences})",
        )
        return
    microbatches = training.global_batch_size // sequences
    passes = 2 * microbatches * parallelism.virtual_pipeline_model_parallel_size * pp
    if passes > MAX_PASSES:
        yield (
            "training.global_batch_size",
            f"gives {passes:,} passes of microbatches through model chunks; at most "
            f"{MAX_PASSES:,} can be simulated",
        )
    if parallelism.pipeline_schedule == "interleaved_1f1b":
        yield from _groups(parallelism, microbatches)
    if parallelism.pipeline_schedule == "dualpipe_v" and microbatches < 2 * pp:
        yield (
            "training.global_batch_size",
            f"gives {microbatches} microbatches; dualpipe_v needs twice "
            f"pipeline_model_parallel_size ({pp}) at least",
        )


def _named_product(parallelism: ParallelismSpec) -> str:
    context = " x context" if parallelism.context_parallel_size > 1 else ""
    return f"tensor{context} x pipeline"


def _groups(parallelism: ParallelismSpec, microbatches: int) -> Iterator[Problem]:
    """Megatron-LM, pipeline_parallel/schedules.py: groups, the last one too, keep all stages
    busy."""
    pp, size = (
        parallelism.pipeline_model_parallel_size,
        parallelism.microbatch_group_size_per_vp_stage,
    )
    if size is None and microbatches % pp:
        yield (
            "training.global_batch_size",
            f"gives {microbatches} microbatches, which interleaved_1f1b needs to be a multiple of "
            f"pipeline_model_parallel_size ({pp}); or set microbatch_group_size_per_vp_stage",
        )
    if size is None:
        return
    key = "parallelism.microbatch_group_size_per_vp_stage"
    if not pp <= size <= microbatches:
        yield key, f"{size} is not between the {pp} stages and the {microbatches} microbatches"
    elif 0 < microbatches % size < pp:
        yield (
            key,
            f"{size} leaves {microbatches % size} of {microbatches} microbatches for the last "
            f"group, fewer than the {pp} stages",
        )


def _deferral(parallelism: ParallelismSpec, training: TrainingSpec) -> Iterator[Problem]:
    """Megatron-LM, model_parallel_config.py; and what splits the backward anyway."""
    key = "parallelism.defer_embedding_wgrad_compute"
    if not parallelism.defer_embedding_wgrad_compute:
        if parallelism.wgrad_deferral_limit:
            yield "parallelism.wgrad_deferral_limit", "needs defer_embedding_wgrad_compute: true"
        return
    if parallelism.pipeline_model_parallel_size == 1:
        yield key, "needs pipeline_model_parallel_size above 1"
    if not training.gradient_accumulation_fusion:
        yield key, "needs gradient_accumulation_fusion: true"
    if parallelism.pipeline_schedule not in ("gpipe", "1f1b", "interleaved_1f1b"):
        yield key, f"'{parallelism.pipeline_schedule}' defers weight gradients by itself"


_LACKS = {
    "moe": "no experts", "moe_act": "no experts", "shared_experts": "no shared experts",
    "mla_up_proj": "no multi-latent attention",
}  # fmt: skip


def _modules(model: ModelSpec) -> set[RecomputeModule]:
    """What selective recomputation may name: `mlp` and `layernorm` of every model."""
    found: set[RecomputeModule] = {"core_attn", "mlp", "layernorm"}
    if model.num_experts:
        found |= {"moe", "moe_act"}
        if model.moe_shared_expert_intermediate_size:
            found.add("shared_experts")
    return found | ({"mla_up_proj"} if model.multi_latent_attention else set())


def _recompute(
    model: ModelSpec, parallelism: ParallelismSpec, training: TrainingSpec
) -> Iterator[Problem]:
    for module in sorted(training.selected_modules - _modules(model)):
        yield "training.recompute_modules", f"{module}: the model has {_LACKS[module]}"
    if training.recompute_granularity != "full" or any(partition_problems(model, parallelism)):
        return
    most = max(len(chunk.layers) for chunk in partition(model, parallelism).values())
    if training.recompute_num_layers > most:
        yield (
            "training.recompute_num_layers",
            f"{training.recompute_num_layers} exceeds the {most} layers of a chunk",
        )


def _cpu_offloading(
    model: ModelSpec, parallelism: ParallelismSpec, training: TrainingSpec
) -> Iterator[Problem]:
    """Megatron-LM, transformer_config.py."""
    if not training.cpu_offloading:
        return
    key = "training.cpu_offloading"
    if not 0 < training.cpu_offloading_num_layers < model.num_layers:
        yield (
            "training.cpu_offloading_num_layers",
            f"{training.cpu_offloading_num_layers} is not above 0 and below num_layers "
            f"({model.num_layers})",
        )
    if parallelism.pipeline_model_parallel_size > 1:
        yield key, "needs pipeline_model_parallel_size 1"
    if training.recompute_granularity != "none":
        yield key, "needs recompute_granularity: none"
    if training.cuda_graph != "none":
        yield key, "needs cuda_graph: none"


def _cuda_graph(training: TrainingSpec) -> Iterator[Problem]:
    """Megatron-LM, transformer_config.py."""
    if training.cuda_graph == "per_layer" and training.recompute_granularity == "full":
        yield (
            "training.cuda_graph",
            "full recomputation is captured by full_iteration only, not by per_layer",
        )


def _precision(training: TrainingSpec) -> Iterator[Problem]:
    low = training.low_precision
    if low is None:
        return
    fitting = ("e2m1",) if low.recipe == "nvfp4" else ("hybrid", "e4m3")
    if low.format not in fitting:
        choice = " or ".join(fitting)
        yield (
            "training.precision.format",
            f"{low.format!r} does not go with recipe {low.recipe}; choose {choice}",
        )
    if low.param_gather and low.recipe == "nvfp4":
        yield "training.precision.param_gather", "weights cannot be kept in 4 bits alone"


def _optimizer(optimizer: OptimizerSpec) -> Iterator[Problem]:
    key = "optimizer.overlap_param_gather"
    if optimizer.overlap_param_gather and not optimizer.use_distributed_optimizer:
        yield key, "needs use_distributed_optimizer: true"
    overlaps = optimizer.overlap_grad_reduce or optimizer.shards_weights
    if optimizer.overlap_param_gather and not overlaps:
        yield key, "needs overlap_grad_reduce: true"


def _post_validation(optimizer: OptimizerSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    if not optimizer.enable_optimizer_post_validation:
        return
    key = "optimizer.enable_optimizer_post_validation"
    if parallelism.pipeline_model_parallel_size == 1:
        yield key, "needs pipeline_model_parallel_size above 1"
    if optimizer.overlap_param_gather:
        yield key, "needs overlap_param_gather: false; weights must be there when a step is undone"


def _offload(optimizer: OptimizerSpec) -> Iterator[Problem]:
    """Megatron-LM, arguments.py: through the precision-aware optimizer, which is a sharded one."""
    key = "optimizer.optimizer_cpu_offload"
    if optimizer.optimizer_cpu_offload and not optimizer.use_distributed_optimizer:
        yield key, "needs use_distributed_optimizer: true"


def _sharding(
    parallelism: ParallelismSpec, optimizer: OptimizerSpec, num_gpus: int
) -> Iterator[Problem]:
    sharding, instances = (
        optimizer.data_parallel_sharding,
        optimizer.num_distributed_optimizer_instances,
    )
    key = "optimizer.data_parallel_sharding"
    if sharding == "none" and optimizer.use_distributed_optimizer:
        yield key, "'none' contradicts use_distributed_optimizer: true"
    if sharding != "none" and not optimizer.use_distributed_optimizer:
        yield key, f"'{sharding}' contradicts use_distributed_optimizer: false"
    if sharding == "zero3" and parallelism.pipeline_schedule not in ("1f1b", "gpipe"):
        yield key, f"'zero3' goes with 1f1b or gpipe, not {parallelism.pipeline_schedule}"
    if optimizer.shards_gradients and parallelism.defer_embedding_wgrad_compute:
        yield (
            key,
            f"'{sharding}' gives gradients up at once, which defer_embedding_wgrad_compute bars",
        )
    key = "optimizer.num_distributed_optimizer_instances"
    if instances > 1 and sharding == "none":
        yield key, "needs use_distributed_optimizer: true"
    replicas = parallelism.data_parallel_size(num_gpus) * parallelism.context_parallel_size
    if replicas % instances:
        yield key, f"{instances} does not divide the {replicas} data- and context-parallel ranks"


def _rank_order(parallelism: ParallelismSpec, num_gpus: int) -> Iterator[Problem]:
    """Megatron-LM, parallel_state.py: stages of dense layers and experts are the same ranks."""
    experts = parallelism.expert_model_parallel_size * parallelism.expert_tensor_size
    stages = parallelism.pipeline_model_parallel_size
    if num_gpus % (stages * experts) or not parallelism.data_parallel_size(num_gpus):
        return  # told elsewhere
    if not RankGrid.of(parallelism, num_gpus).stages_agree:
        yield (
            "parallelism.rank_order",
            f"in the order {parallelism.rank_order} the stages of dense layers and of experts are "
            "not the same ranks; let it end with pp",
        )
