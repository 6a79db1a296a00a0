"""Exchanges of tokens beside another microbatch's compute."""

from small_models import llama, training

from workloads.exchange_overlap import alone, with_hidden_exchanges
from workloads.graph import build_work
from workloads.layer_kinds import LayerKind
from workloads.operations import Collective, Overlapped, expert_parameters
from workloads.passes import Pass
from workloads.pipeline import stage_order
from workloads.spec import OptimizerSpec, ParallelismSpec
from workloads.transformer import transformer_layer

MODEL = llama(num_experts=8, moe_ffn_hidden_size=48)
PLAIN = ParallelismSpec(expert_model_parallel_size=4, moe_token_dispatcher_type="alltoall")
HIDDEN = PLAIN.model_copy(update={"overlap_moe_expert_parallel_comm": True})
LAYER = transformer_layer(MODEL, training(), PLAIN, False, LayerKind(experts=True))


def test_each_exchange_has_compute_beside_it() -> None:
    hidden = with_hidden_exchanges(LAYER)
    for way in (hidden.forward, hidden.backward):
        assert sum(isinstance(op, Overlapped) for op in way) == 2
        assert not any(isinstance(op, Collective) and op.axis == "ep" for op in way)
    dispatch, combine = (op for op in hidden.forward if isinstance(op, Overlapped))
    assert "qkv" in [op.name for op in dispatch.compute]
    assert "expert fc1" in [op.name for op in combine.compute]


def test_nothing_is_lost() -> None:
    hidden = with_hidden_exchanges(LAYER)
    for whole, way in ((LAYER.forward, hidden.forward), (LAYER.backward, hidden.backward)):
        assert sum(op.flops for op in way) == sum(op.flops for op in whole)
        assert sum(op.parameters for op in way) == LAYER.parameters
        assert sum(map(expert_parameters, way)) == LAYER.expert_parameters


def test_first_forward_and_last_backward_are_alone() -> None:
    order = stage_order(PLAIN, 0, 3)
    assert alone(order) == {Pass("forward", 0, 0), Pass("backward", 2, 0)}
    (stage,) = build_work(MODEL, training(), HIDDEN, OptimizerSpec(), 4).stages
    whole = stage.pass_layers(Pass("forward", 0, 0))
    beside = stage.pass_layers(Pass("forward", 1, 0))
    assert whole[1].forward == LAYER.forward
    assert beside[1].forward == with_hidden_exchanges(LAYER).forward
