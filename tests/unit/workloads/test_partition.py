"""Which chunk holds which layers, in numbers worked by hand; what cannot be divided."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from small_models import gpt
from small_models import training as train

from workloads.flops import parameter_count
from workloads.layout_string import chunks_of_layout
from workloads.partition import (
    partition,
    partition_problems,
    shares_embedding,
    stage_contents,
)
from workloads.spec import ParallelismSpec
from workloads.stages import stage_chunks

FIRST = "num_layers_in_first_pipeline_stage"
LAST = "num_layers_in_last_pipeline_stage"
EMBEDDING = "account_for_embedding_in_pipeline_split"
LOSS = "account_for_loss_in_pipeline_split"
LAYOUT = "pipeline_model_parallel_layout"


def parallel(pp: int, vpp: int = 1, **changes: Any) -> ParallelismSpec:
    sizes = {"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": vpp}
    return ParallelismSpec.model_validate(sizes | changes)


def counts(num_layers: int, parallelism: ParallelismSpec) -> list[list[int]]:
    """Layers per chunk, per stage."""
    model = gpt(num_layers=num_layers)
    assert list(partition_problems(model, parallelism)) == []
    return [
        [len(c.layers) for c in stage_contents(model, parallelism, stage)]
        for stage in range(parallelism.pipeline_model_parallel_size)
    ]


@pytest.mark.parametrize(
    ("num_layers", "parallelism", "expected"),
    [
        (8, parallel(4), [[2], [2], [2], [2]]),
        (8, parallel(2, 2), [[2, 2], [2, 2]]),
        (7, parallel(4, **{FIRST: 1}), [[1], [2], [2], [2]]),
        (7, parallel(4, **{LAST: 1}), [[2], [2], [2], [1]]),
        (30, parallel(8, **{FIRST: 3, LAST: 3}), [[3], *[[4]] * 6, [3]]),
        (10, parallel(2, **{FIRST: 6, LAST: 4}), [[6], [4]]),
        (16, parallel(3, 2, **{FIRST: 4, LAST: 4}), [[2, 2], [4, 4], [2, 2]]),
        (30, parallel(8, **{EMBEDDING: True, LOSS: True}), [[3], *[[4]] * 6, [3]]),
        (7, parallel(2, 2, **{EMBEDDING: True}), [[1, 2], [2, 2]]),
        (7, parallel(2, 2, **{LOSS: True}), [[2, 2], [2, 1]]),
        (2, parallel(4, **{EMBEDDING: True, LOSS: True}), [[0], [1], [1], [0]]),
        (5, parallel(2, 2, **{LAYOUT: "Et|tt||ttL"}), [[1, 0], [2, 2]]),
    ],
)
def test_layers_of_each_chunk(
    num_layers: int, parallelism: ParallelismSpec, expected: list[list[int]]
) -> None:
    assert counts(num_layers, parallelism) == expected


def test_megatrons_own_example_of_a_layout() -> None:
    """61 layers of DeepSeek-V3 on 32 chunks: 3, 29 times 2, none, none."""
    chunks = chunks_of_layout("Et*3|(tt|)*29,|L")
    assert len(chunks) == 32
    assert [c.count("t") for c in chunks] == [3, *[2] * 29, 0, 0]
    assert chunks_of_layout("(ab)*3".replace("a", "t").replace("b", "|")) == ("t", "t", "t", "")


def test_a_layout_sets_the_number_of_chunks_when_that_is_left_out() -> None:
    fields = {"pipeline_model_parallel_size": 2, LAYOUT: "Et|t|t|tL"}
    spec = ParallelismSpec.model_validate(fields)
    assert spec.virtual_pipeline_model_parallel_size == 2
    assert spec.pipeline_schedule == "interleaved_1f1b"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ex|tL", "found 'x'"),
        ("E(t|tL", "found '('"),
        ("Em|tL", "multi-token"),
        ("(t)*9999999999", "written out"),
        ("t*99999999", "written out"),
    ],
)
def test_what_is_no_layout(text: str, said: str) -> None:
    with pytest.raises(ValidationError, match="layout") as error:
        ParallelismSpec(pipeline_model_parallel_layout=text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("num_layers", "parallelism", "key", "said"),
    [
        (7, parallel(4), "pipeline_model_parallel_size", "num_layers (7) evenly"),
        (8, parallel(2, 3), "virtual_pipeline_model_parallel_size", "3 chunks"),
        (8, parallel(4, **{LOSS: True}), "pipeline_model_parallel_size", "plus loss (9)"),
        (8, parallel(1, **{FIRST: 8}), FIRST, "above 1"),
        (8, parallel(4, **{FIRST: 1}), FIRST, "leaves 7 layers, which 3 stages"),
        (8, parallel(4, **{LAST: 9}), LAST, "num_layers (8)"),
        (8, parallel(2, **{FIRST: 2, LAST: 2}), FIRST, "4 layers at the ends"),
        (8, parallel(3, 2, **{FIRST: 3, LAST: 1}), LAST, "1 layers are not divisible"),
        (8, parallel(2, **{FIRST: 4, EMBEDDING: True}), FIRST, "together with"),
        (4, parallel(2, **{LAYOUT: "Ett|ttL", LOSS: True}), LAYOUT, "together with"),
        (4, parallel(2, **{LAYOUT: "Ett|tt|L"}), LAYOUT, "3 chunks, not 2 stages"),
        (4, parallel(2, **{LAYOUT: "tt|ttL"}), LAYOUT, "begin with E"),
        (4, parallel(2, **{LAYOUT: "EEtt|ttL"}), LAYOUT, "begin with E"),
        (4, parallel(2, **{LAYOUT: "Ett|tt"}), LAYOUT, "end with L"),
        (4, parallel(2, **{LAYOUT: "Ett|tL"}), LAYOUT, "3 layers (t), not num_layers (4)"),
        (1, parallel(3, 3, **{EMBEDDING: True, LOSS: True}),
         "virtual_pipeline_model_parallel_size", "plus embedding and loss (3)"),
    ],
)  # fmt: skip
def test_what_cannot_be_divided(
    num_layers: int, parallelism: ParallelismSpec, key: str, said: str
) -> None:
    problems = list(partition_problems(gpt(num_layers=num_layers), parallelism))
    assert any(path == f"parallelism.{key}" and said in text for path, text in problems), problems


def _layouts() -> Iterator[ParallelismSpec]:
    for pp in (1, 2, 4):
        for vpp in (1, 2):
            if vpp == 1 or pp > 1:
                yield parallel(pp, vpp)
                yield parallel(pp, vpp, **{EMBEDDING: True, LOSS: True})


@given(st.sampled_from(list(_layouts())), st.integers(1, 40))
def test_every_layer_is_held_once_and_in_order(
    parallelism: ParallelismSpec, num_layers: int
) -> None:
    model = gpt(num_layers=num_layers)
    if list(partition_problems(model, parallelism)):
        return
    held = partition(model, parallelism)
    assert list(chain.from_iterable(c.layers for c in held.values())) == list(range(num_layers))
    assert sum(c.embedding for c in held.values()) == sum(c.loss for c in held.values()) == 1


@pytest.mark.parametrize("tied", [True, False])
def test_uneven_stages_hold_the_weights_of_the_model(tied: bool) -> None:
    """Untied, or tied on one stage, they sum to its parameters; apart, the embedding twice."""
    model = gpt(
        num_layers=5, vocab_size=1024, max_position_embeddings=64,
        untie_embeddings_and_output_weights=not tied,
    )  # fmt: skip
    for parallelism in (parallel(1), parallel(2, **{FIRST: 4, LAST: 1})):
        held = stage_chunks(model, train(), parallelism)
        weights = sum(layer.parameters for layer in chain.from_iterable(held.values()))
        apart = tied and not shares_embedding(model, parallelism)
        assert weights == parameter_count(model) + apart * 1024 * model.hidden_size
