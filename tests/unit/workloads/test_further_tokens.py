"""Multi-token prediction: weights, operations and FLOPs, by hand."""

from itertools import chain

import pytest
from small_models import layout, llama, training

from workloads.flops import model_flops
from workloads.operations import LayerWork
from workloads.spec import ModelSpec, ParallelismSpec
from workloads.stages import stage_chunks

H, V = 64, 1024
TRAINING = training()


def model(layers: int) -> ModelSpec:
    return llama(vocab_size=V, mtp_num_layers=layers)


def held(m: ModelSpec, p: ParallelismSpec) -> list[LayerWork]:
    return list(chain.from_iterable(stage_chunks(m, TRAINING, p).values()))


def layer_weights() -> int:
    (layer,) = {x.parameters for x in held(model(0), layout()) if x.name == "transformer layer"}
    return layer


@pytest.mark.parametrize("further", [1, 2])
def test_weights(further: int) -> None:
    """Two norms, [2h, h] and the output's norm beside each layer; the words are the model's own."""
    plain = sum(x.parameters for x in held(model(0), layout()))
    with_them = sum(x.parameters for x in held(model(further), layout()))
    assert with_them - plain == further * (2 * H + 2 * H * H + layer_weights() + H)


def test_last_stage_holds_a_copy_of_the_words() -> None:
    plain = sum(x.parameters for x in held(model(0), layout(pipeline=2)))
    with_them = sum(x.parameters for x in held(model(2), layout(pipeline=2)))
    assert with_them - plain == 2 * (2 * H + 2 * H * H + layer_weights() + H) + V * H


def test_gradients_of_all_weights_are_completed() -> None:
    for layer in held(model(1), layout(2, 2, sequence_parallel=True)):
        assert sum(op.parameters for op in layer.backward) == layer.parameters
        assert sum(op.parameters for op in layer.forward) == layer.parameters


def test_flops_are_those_of_the_operations() -> None:
    """One more layer, one more output and the product that joins."""
    m = model(1)
    tokens = TRAINING.seq_length * TRAINING.micro_batch_size
    done = sum(op.flops for layer in held(m, layout()) for op in layer.forward)
    counted = model_flops(
        m, TRAINING.model_copy(update={"flops_convention": "causal"})
    ) / 3 / TRAINING.global_batch_size / TRAINING.seq_length  # fmt: skip
    assert done / tokens == pytest.approx(counted)
