"""Operations, weights and memory of layers with experts, by hand."""

from itertools import chain

import pytest
from small_models import all_layers, layout, llama, training

from workloads.data_parallel import gradient_buckets
from workloads.graph import build_work
from workloads.layer_kinds import LayerKind, layer_kinds
from workloads.layout_checks import check_layout
from workloads.memory import layer_activation_bytes
from workloads.operations import (
    Collective,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operation,
    Overlapped,
    expert_parameters,
)
from workloads.spec import ModelSpec, OptimizerSpec, ParallelismSpec
from workloads.stages import stage_chunks
from workloads.transformer import transformer_layer

H, E, K, F = 64, 8, 2, 48
EXPERTS = LayerKind(experts=True)


def moe(**changes: object) -> ModelSpec:
    fields = {"num_experts": E, "moe_router_topk": K, "moe_ffn_hidden_size": F}
    return llama(**{**fields, **changes})


def parallel(**changes: object) -> ParallelismSpec:
    fields = {"moe_token_dispatcher_type": "alltoall", "expert_model_parallel_size": 4}
    return ParallelismSpec.model_validate({**fields, **changes})


TRAINING = training(moe_grouped_gemm=True, moe_permute_fusion=True)
T = TRAINING.seq_length * TRAINING.micro_batch_size


def of_kind(operations: tuple[Operation, ...], name: str) -> list[Operation]:
    return [op for op in operations if getattr(op, "name", "") == name]


def exchanges(operations: tuple[Operation, ...], axis: str) -> list[tuple[str, float]]:
    return [
        (op.kind, op.num_bytes)
        for op in operations
        if isinstance(op, Collective) and op.axis == axis
    ]


def test_tokens_go_to_their_experts_and_back() -> None:
    layer = transformer_layer(moe(), TRAINING, parallel(), False, EXPERTS)
    copies = 2.0 * T * K * H
    assert exchanges(layer.forward, "ep") == [("all_to_all", copies)] * 2
    assert exchanges(layer.backward, "ep") == [("all_to_all", copies)] * 2
    (fc1,) = of_kind(layer.forward, "expert fc1")
    assert isinstance(fc1, GroupedGemm)
    assert (fc1.groups, fc1.m, fc1.n, fc1.k) == (E // 4, T * K, 2 * F, H)


def test_experts_hold_their_weights_apart() -> None:
    layer = transformer_layer(moe(), TRAINING, parallel(), False, EXPERTS)
    assert layer.expert_parameters == E // 4 * 3 * H * F
    for way in (layer.forward, layer.backward):
        assert sum(map(expert_parameters, way)) == layer.expert_parameters
        assert sum(op.parameters for op in way) == layer.parameters
    dense = transformer_layer(llama(ffn_hidden_size=F), TRAINING, layout(), False)
    assert layer.parameters == dense.parameters - 3 * H * F + E * H  # the router


def test_products_count_all_flops() -> None:
    layer = transformer_layer(moe(), TRAINING, parallel(), False, EXPERTS)
    forward = sum(op.flops for op in layer.forward if isinstance(op, GroupedGemm))
    backward = sum(op.flops for op in layer.backward if isinstance(op, GroupedGemm))
    assert forward == 2.0 * T * K * 3 * H * F
    assert backward == 2 * forward


def test_expert_tensor_parallelism_gathers_and_scatters() -> None:
    p = parallel(
        tensor_model_parallel_size=2, sequence_parallel=True, expert_tensor_parallel_size=2
    )
    layer = transformer_layer(moe(), TRAINING, p, False, EXPERTS)
    rows = T // 2 * K * 2
    assert exchanges(layer.forward, "etp") == [
        ("all_gather", 2.0 * rows * H), ("reduce_scatter", 2.0 * rows * H),
    ]  # fmt: skip
    (fc1,) = of_kind(layer.forward, "expert fc1")
    assert isinstance(fc1, GroupedGemm)
    assert (fc1.m, fc1.n) == (rows, F)  # both gate and value, half of each


def test_allgather_dispatcher_moves_all_tokens() -> None:
    p = parallel(moe_token_dispatcher_type="allgather")
    layer = transformer_layer(moe(), TRAINING, p, False, EXPERTS)
    whole = 2.0 * 4 * T * H
    assert exchanges(layer.forward, "ep") == [("all_gather", whole), ("reduce_scatter", whole)]


def test_flex_sends_each_token_once_to_a_rank() -> None:
    p = parallel(moe_token_dispatcher_type="flex")
    layer = transformer_layer(moe(), TRAINING, p, False, EXPERTS)
    assert exchanges(layer.forward, "ep") == [("token_exchange", 2.0 * T * H)] * 2


def test_shared_expert_beside_the_exchange() -> None:
    model = moe(moe_shared_expert_intermediate_size=32)
    p = parallel(moe_shared_expert_overlap=True)
    layer = transformer_layer(model, TRAINING, p, False, EXPERTS)
    (beside,) = [op for op in layer.forward if isinstance(op, Overlapped)]
    assert [op.name for op in beside.compute] == ["shared fc1", "activation", "shared fc2"]
    assert beside.collective.axis == "ep"
    apart = transformer_layer(model, TRAINING, parallel(), False, EXPERTS)
    assert apart.parameters == layer.parameters
    assert sum(op.flops for op in apart.forward) == sum(op.flops for op in layer.forward)


def test_unfused_permutation_is_other_kernels() -> None:
    train = TRAINING.model_copy(update={"moe_permute_fusion": False})
    layer = transformer_layer(moe(), train, parallel(), False, EXPERTS)
    kernels = [op.kernel for op in layer.forward if isinstance(op, MemoryBound)]
    assert "unpermute_scatter_add" in kernels
    assert "permute" not in kernels


def test_selective_recomputation_of_experts() -> None:
    train = TRAINING.model_copy(
        update={"recompute_granularity": "selective", "recompute_modules": ("moe",)}
    )
    layer = transformer_layer(moe(), train, parallel(), False, EXPERTS)
    assert exchanges(layer.recompute, "ep") == exchanges(layer.forward, "ep")
    kept = layer_activation_bytes(moe(), train, parallel(), False, EXPERTS)
    whole = layer_activation_bytes(moe(), TRAINING, parallel(), False, EXPERTS)
    assert whole - kept == 2.0 * T * K * (H + 3 * F)


@pytest.mark.parametrize(
    ("freq", "expected"),
    [(1, [True] * 4), (2, [True, False, True, False]), ((0, 1, 1, 1), [False, True, True, True])],
)
def test_layers_that_have_experts(freq: object, expected: list[bool]) -> None:
    model = moe(num_layers=4, moe_layer_freq=freq)
    assert [kind.experts for kind in layer_kinds(model)] == expected


def test_windows_skip_every_other_layer() -> None:
    model = llama(num_layers=4, window_size=16, window_attn_skip_freq=2)
    assert [kind.window for kind in layer_kinds(model)] == [16, None, 16, None]


def test_dense_and_expert_layers_mix_on_a_stage() -> None:
    model = moe(num_layers=4, moe_layer_freq=(0, 1, 1, 1))
    held = stage_chunks(model, TRAINING, parallel(pipeline_model_parallel_size=2))
    counts = [layer.expert_parameters > 0 for layer in held[0, 0]]
    assert counts == [False, False, True]  # embedding, dense, experts


def test_buckets_of_experts_are_their_own() -> None:
    work = build_work(moe(), TRAINING, parallel(), OptimizerSpec(overlap_grad_reduce=True), 4)
    (stage,) = work.stages
    assert sum(map(sum, stage.buckets)) == stage.parameters
    assert (
        sum(b.parameters for held in stage.expert_buckets for b in held) == stage.expert_parameters
    )
    layers = tuple(reversed(stage.chunks[0]))
    assert len(gradient_buckets(layers, 1, experts=True)) == 2 * 8  # fc2 and fc1 of 8 layers


def test_optimizer_steps_shards_of_both() -> None:
    """4 ranks share the dense weights; experts of EP 4 have one copy each."""
    optimizer = OptimizerSpec(use_distributed_optimizer=True)
    (stage,) = build_work(moe(), TRAINING, parallel(), optimizer, 4).stages
    adam = next(op for op in stage.finish if op.name == "adam")
    assert isinstance(adam, MemoryBound)
    assert adam.num_bytes == 28 * (-(-stage.parameters // 4) + stage.expert_parameters)


def test_all_weights_of_all_ranks_are_the_models() -> None:
    from workloads.flops import parameter_count

    model = moe(vocab_size=1024, moe_shared_expert_intermediate_size=32)
    held = all_layers(model, TRAINING, layout())
    work = build_work(model, TRAINING, layout(), OptimizerSpec(), 1)
    experts = sum(stage.expert_parameters for stage in work.stages)
    assert sum(h[3] for h in held) + experts == parameter_count(model)


LATENT = {
    "multi_latent_attention": True, "num_query_groups": 8, "q_lora_rank": 24, "kv_lora_rank": 16,
    "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 8, "vocab_size": 1024,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None}])
def test_weights_of_latent_attention(changes: dict[str, object]) -> None:
    from workloads.flops import parameter_count

    model = llama(**{**LATENT, **changes})
    held = chain.from_iterable(stage_chunks(model, TRAINING, layout()).values())
    layers = list(held)
    assert sum(layer.parameters for layer in layers) == parameter_count(model)
    for layer in layers:
        assert sum(op.parameters for op in layer.backward) == layer.parameters


def problems(model: ModelSpec, p: ParallelismSpec, gpus: int = 8, **train: object) -> list[str]:
    batch = training(global_batch_size=32, **train)
    found = check_layout(model, p, batch, OptimizerSpec(), gpus)
    return [f"{key}: {message}" for key, message in found]


@pytest.mark.parametrize(
    ("model", "p", "train", "expected"),
    [
        (moe(), parallel(expert_model_parallel_size=3), {}, "3 does not divide num_experts (8)"),
        (llama(), parallel(), {}, "the model has no experts"),
        (moe(moe_router_topk=9), parallel(), {}, "9 exceeds num_experts"),
        (moe(), parallel(tensor_model_parallel_size=2), {}, "sequence_parallel"),
        (moe(moe_layer_freq=(0, 1)), parallel(), {}, "has 2 entries, not num_layers (8)"),
        (moe(), parallel(), {"moe_expert_loads": (1.0,)}, "needs moe_routing: histogram"),
        (moe(), parallel(), {"moe_routing": "histogram", "moe_expert_loads": (1.0,)},
         "has 1 entries, not num_experts (8)"),
        (moe(), parallel(moe_shared_expert_overlap=True), {}, "no shared expert"),
        (moe(), parallel(), {"moe_pad_expert_input_to_capacity": True},
         "needs moe_expert_capacity_factor"),
    ],
)  # fmt: skip
def test_contradictions(
    model: ModelSpec, p: ParallelismSpec, train: dict[str, object], expected: str
) -> None:
    assert any(expected in line for line in problems(model, p, **train))


def test_a_sound_layout_has_no_problems() -> None:
    assert problems(moe(), parallel()) == []


@pytest.mark.parametrize(("grouped", "expected"), [(True, 1 + 4), (False, 1 + 11)])
def test_the_host_issues_more_for_more_experts(grouped: bool, expected: int) -> None:
    """8 experts on one rank: 0.53 or 1.43 operations each, and one."""
    train = training(moe_grouped_gemm=grouped)
    layer = transformer_layer(moe(), train, layout(), False, EXPERTS)
    (fc1,) = of_kind(layer.forward, "expert fc1")
    assert isinstance(fc1, GroupedGemm)
    assert (fc1.launches, fc1.sequential) == (expected, not grouped)


def test_experts_in_eight_bits() -> None:
    """Each product's operand is quantized before it; the router stays in bf16."""
    train = training(precision={"recipe": "tensorwise"}, moe_grouped_gemm=True)
    layer = transformer_layer(moe(), train, parallel(), False, EXPERTS)
    grouped = [op for op in layer.forward if isinstance(op, GroupedGemm)]
    assert {op.dtype for op in grouped} == {train.linear_dtype} != {train.dtype}
    names = [op.name for op in layer.forward if isinstance(op, MemoryBound)]
    assert {"expert fc1 input quantized", "expert fc2 input quantized"} <= set(names)
    (router,) = of_kind(layer.forward, "router")
    assert isinstance(router, Gemm)
    assert router.dtype == "bf16"
