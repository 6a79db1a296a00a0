"""Both parts of a layer's backward: nothing is lost, and each does what it should."""

from collections import Counter
from itertools import chain

import pytest
from small_models import LAYOUTS, collectives, flops, gpt, layout, llama
from small_models import training as train

from workloads.backward import input_part, pass_operations, weight_part
from workloads.operations import Gemm, Operation, Overlapped
from workloads.spec import ParallelismSpec
from workloads.stages import stage_chunks
from workloads.transformer import transformer_layer


def gemms(operations: tuple[Operation, ...]) -> Counter[str]:
    flat = chain.from_iterable(
        op.compute if isinstance(op, Overlapped) else (op,) for op in operations
    )
    return Counter(op.kind for op in flat if isinstance(op, Gemm))


@pytest.mark.parametrize("parallelism", LAYOUTS)
@pytest.mark.parametrize("fused", [True, False])
def test_the_parts_make_up_the_whole(parallelism: ParallelismSpec, fused: bool) -> None:
    """Products, traffic and weights: the input's part completes no gradient, the weights' all."""
    training = train(gradient_accumulation_fusion=fused)
    held = stage_chunks(gpt(), training, parallelism)
    for layer in chain.from_iterable(held.values()):
        first, second = input_part(layer), weight_part(layer)
        assert flops(first) + flops(second) == pytest.approx(flops(layer.backward))
        moved = Counter((c.name, c.num_bytes) for c in collectives((*first, *second)))
        assert moved == Counter((c.name, c.num_bytes) for c in collectives(layer.backward))
        assert sum(op.parameters for op in first) == 0
        assert sum(op.parameters for op in second) == layer.parameters
        assert "wgrad" not in gemms(first)
        assert set(gemms(second)) <= {"wgrad"}


def test_four_products_each_by_hand() -> None:
    """Each of the four linear layers has a dgrad and a wgrad; attention stays with the input."""
    layer = transformer_layer(llama(), train(), layout(), recomputed=False)
    assert gemms(input_part(layer)) == {"dgrad": 4}
    assert gemms(weight_part(layer)) == {"wgrad": 4}


def test_inputs_are_gathered_again_beside_the_weights_product() -> None:
    """Sequence parallelism: qkv and fc1 gather their input for wgrad only. Their reduce-scatter,
    which wgrad hid, stands alone."""
    parallel = layout(2, sequence_parallel=True)
    layer = transformer_layer(llama(), train(), parallel, recomputed=False)
    beside = [op.collective.name for op in weight_part(layer) if isinstance(op, Overlapped)]
    assert beside == ["fc1 input again", "qkv input again"]
    alone = [op.name for op in input_part(layer) if op in collectives(layer.backward)]
    assert alone.count("fc1 dgrad") == alone.count("qkv dgrad") == 1


def test_recomputation_comes_with_the_input() -> None:
    layer = transformer_layer(gpt(), train(), layout(), recomputed=True)
    assert pass_operations(layer, "backward_input")[: len(layer.forward)] == layer.forward
    assert pass_operations(layer, "backward_weight") == weight_part(layer)
    assert pass_operations(layer, "forward") == layer.forward
    assert pass_operations(layer, "backward") == (*layer.recompute, *layer.backward)
