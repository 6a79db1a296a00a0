"""What must hold between the keys of a model with experts, multi-latent attention, sliding windows
or multi-token prediction, as Megatron-LM's arguments.py and transformer_config.py demand it."""

from collections.abc import Iterator

from workloads.partition import Problem
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec, TrainingSpec


def expert_problems(
    model: ModelSpec,
    parallelism: ParallelismSpec,
    training: TrainingSpec,
    optimizer: OptimizerSpec,
    num_gpus: int,
) -> Iterator[Problem]:
    """All contradictions that have to do with experts."""
    ep = parallelism.expert_model_parallel_size
    if model.num_experts is None:
        if ep > 1:
            yield "parallelism.expert_model_parallel_size", "the model has no experts"
        return
    yield from _grid(model, parallelism, num_gpus)
    yield from _routing(model, training)
    yield from _dispatch(model, parallelism)
    if len_problem := _per_layer("moe_layer_freq", model.moe_layer_freq, model.num_layers):
        yield len_problem
    if optimizer.shards_gradients:
        yield (
            "optimizer.data_parallel_sharding",
            f"'{optimizer.data_parallel_sharding}' of a model with experts is not modelled; "
            "choose zero1",
        )
    if optimizer.num_distributed_optimizer_instances > 1:
        yield "optimizer.num_distributed_optimizer_instances", "is not modelled with experts"
    if optimizer.optimizer_cpu_offload:
        yield "optimizer.optimizer_cpu_offload", "is not modelled with experts"
    if training.offloaded_layers:
        yield "training.cpu_offloading", "is not modelled with experts"


def attention_problems(
    model: ModelSpec, parallelism: ParallelismSpec, training: TrainingSpec
) -> Iterator[Problem]:
    """All contradictions of windows and multi-latent attention."""
    if model.window_attn_skip_freq is not None and model.window_size is None:
        yield "model.window_attn_skip_freq", "needs window_size"
    if problem := _per_layer(
        "window_attn_skip_freq", model.window_attn_skip_freq, model.num_layers
    ):
        yield problem
    special = {"window_size": model.window_size, "multi_latent_attention":
               model.multi_latent_attention}  # fmt: skip
    for name, value in special.items():
        if value and training.attention_backend == "unfused":
            yield "training.attention_backend", f"'unfused' is not modelled with {name}"
        if value and parallelism.context_parallel_size > 1:
            yield "parallelism.context_parallel_size", f"above 1 is not modelled with {name}"
    if model.multi_latent_attention and model.query_groups != model.num_attention_heads:
        yield "model.num_query_groups", "multi_latent_attention has as many groups as heads"


def _grid(model: ModelSpec, parallelism: ParallelismSpec, num_gpus: int) -> Iterator[Problem]:
    ep, etp = parallelism.expert_model_parallel_size, parallelism.expert_tensor_size
    key = "parallelism.expert_model_parallel_size"
    if model.expert_count % ep:
        yield key, f"{ep} does not divide num_experts ({model.num_experts})"
    size = etp * ep * parallelism.pipeline_model_parallel_size
    if num_gpus % size:
        yield (
            key,
            f"expert tensor x expert x pipeline = {size} does not divide the cluster's {num_gpus} "
            "GPUs",
        )
    if model.expert_ffn_size % etp:
        yield (
            "parallelism.expert_tensor_parallel_size",
            f"{etp} does not divide moe_ffn_hidden_size ({model.expert_ffn_size})",
        )
    tp, shared = (
        parallelism.tensor_model_parallel_size,
        model.moe_shared_expert_intermediate_size,
    )
    if shared % tp:
        yield (
            "parallelism.tensor_model_parallel_size",
            f"{tp} does not divide moe_shared_expert_intermediate_size ({shared})",
        )
    if tp > 1 and not parallelism.sequence_parallel:
        yield "parallelism.sequence_parallel", "experts with tensor parallelism need it"
    if model.add_bias_linear:
        yield "model.add_bias_linear", "experts have no biases; choose false"


def _routing(model: ModelSpec, training: TrainingSpec) -> Iterator[Problem]:
    if model.moe_router_topk > model.expert_count:
        yield (
            "model.moe_router_topk",
            f"{model.moe_router_topk} exceeds num_experts ({model.num_experts})",
        )
    if training.moe_pad_expert_input_to_capacity and training.moe_expert_capacity_factor is None:
        yield "training.moe_pad_expert_input_to_capacity", "needs moe_expert_capacity_factor"
    loads, key = training.moe_expert_loads, "training.moe_expert_loads"
    if training.moe_routing == "histogram":
        if len(loads) != model.expert_count:
            yield key, f"has {len(loads)} entries, not num_experts ({model.num_experts})"
        elif sum(loads) <= 0:
            yield key, "has no tokens"
    elif loads:
        yield key, "needs moe_routing: histogram"
    if training.moe_zipf_exponent and training.moe_routing != "zipf":
        yield "training.moe_zipf_exponent", "needs moe_routing: zipf"


def _dispatch(model: ModelSpec, parallelism: ParallelismSpec) -> Iterator[Problem]:
    dispatcher = parallelism.moe_token_dispatcher_type
    if parallelism.moe_shared_expert_overlap:
        key = "parallelism.moe_shared_expert_overlap"
        if not model.moe_shared_expert_intermediate_size:
            yield key, "the model has no shared expert"
        if dispatcher != "alltoall":
            yield key, f"needs moe_token_dispatcher_type: alltoall, not {dispatcher}"
        if parallelism.overlap_moe_expert_parallel_comm:
            yield key, "cannot be given together with overlap_moe_expert_parallel_comm"
    if parallelism.overlap_moe_expert_parallel_comm:
        key = "parallelism.overlap_moe_expert_parallel_comm"
        if dispatcher == "allgather":
            yield key, "needs moe_token_dispatcher_type: alltoall or flex"
        if parallelism.expert_model_parallel_size == 1:
            yield key, "needs expert_model_parallel_size above 1"
        schedule = parallelism.pipeline_schedule
        if parallelism.pipeline_model_parallel_size > 1 and schedule != "interleaved_1f1b":
            yield key, f"needs interleaved_1f1b, not {schedule}"
    elif parallelism.delay_wgrad_compute:
        yield "parallelism.delay_wgrad_compute", "needs overlap_moe_expert_parallel_comm: true"


def _per_layer(name: str, value: int | tuple[int, ...] | None, num_layers: int) -> Problem | None:
    if isinstance(value, tuple) and len(value) != num_layers:
        return f"model.{name}", f"has {len(value)} entries, not num_layers ({num_layers})"
    return None
