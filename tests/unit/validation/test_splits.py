"""How frameworks divide layers over stages, against splits worked by hand."""

import pytest
from small_runs import small_model

from validation.splits import deepspeed_layers, nanotron_layers, split_by_arguments, split_of
from workloads.partition import partition_problems
from workloads.spec import ParallelismSpec


@pytest.mark.parametrize(
    ("num_layers", "num_stages", "expected"),
    [
        (70, 12, [5, *[6] * 10, 5]),  # BLOOM 176B: 72 items, 6 a stage
        (78, 12, [6, *[7] * 10, 2]),  # 80 items, at most 7 a stage, filled from the front
        (100, 6, [16, 17, 17, 17, 17, 16]),
    ],
)
def test_deepspeed_counts_both_embeddings(
    num_layers: int, num_stages: int, expected: list[int]
) -> None:
    assert deepspeed_layers(num_layers, num_stages) == expected


def test_nanotron_by_hand() -> None:
    """Layer cost 4 h^2 + 2 f h = 12 h^2, head V h = 24 h^2: a total of 8 x 12 + 24 = 120 h^2. Two
    stages: 60 is reached by 5 layers but exceeded by the sixth only. Ten stages of 12: each layer
    reaches, the next exceeds; a stage takes the block that exceeds, but only one at a time."""
    model = small_model(num_layers=8, hidden_size=512, vocab_size=24 * 512)
    assert nanotron_layers(model, 2) == [6, 2]
    assert nanotron_layers(model, 10) == [2, 1, 1, 1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("split", ["embedding_and_loss", "deepspeed", "nanotron"])
@pytest.mark.parametrize("num_layers", [6, 22, 30])
def test_a_split_holds_every_layer(split: str, num_layers: int) -> None:
    model = small_model(num_layers=num_layers)
    keys = split_of(split, model, 8)  # type: ignore[arg-type]
    parallelism = ParallelismSpec(pipeline_model_parallel_size=8, **keys)
    assert list(partition_problems(model, parallelism)) == []


def test_nothing_is_said_of_one_stage_or_of_what_divides() -> None:
    assert split_of("nanotron", small_model(num_layers=8), 1) == {}
    assert split_of("even", small_model(num_layers=7), 2) == {}
    assert split_of("deepspeed", small_model(num_layers=8), 4) == {}


def test_megatrons_arguments() -> None:
    arguments = {
        "account-for-loss-in-pipeline-split": "", "decoder-first-pipeline-num-layers": "3",
        "pipeline-model-parallel-layout": "Et|tL",
    }  # fmt: skip
    assert split_by_arguments(arguments) == {
        "account_for_loss_in_pipeline_split": True, "num_layers_in_first_pipeline_stage": 3,
        "pipeline_model_parallel_layout": "Et|tL",
    }  # fmt: skip
