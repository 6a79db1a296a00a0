"""How frameworks divide layers over pipeline stages, as keys of `ParallelismSpec`.

Megatron-LM divides evenly unless its arguments say otherwise; DeepSpeed and nanotron balance
weights of their own.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, TypeAlias

from workloads.spec import ModelSpec

Split: TypeAlias = Literal["even", "embedding_and_loss", "nemo", "deepspeed", "nanotron"]
"""`embedding_and_loss`: both count as a layer; `nemo`: where only that divides (126 layers of Llama
3.1 405B, nemo/collections/llm/recipes/llama31_405b.py), with fewer in the last chunk where that
does not either. `deepspeed`: `type:transformer`, or
`type:transformer|embedding` where that does not divide. `nanotron`: by the cost of matrix
products."""

_FLAGS = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
_COUNTS = {
    "decoder-first-pipeline-num-layers": "num_layers_in_first_pipeline_stage",
    "decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
}
_LAYOUT = "pipeline-model-parallel-layout"


def split_by_arguments(arguments: Mapping[str, str]) -> dict[str, Any]:
    """What Megatron-LM's arguments say of it."""
    found: dict[str, Any] = {flag.replace("-", "_"): True for flag in _FLAGS if flag in arguments}
    found |= {key: int(arguments[flag]) for flag, key in _COUNTS.items() if flag in arguments}
    if _LAYOUT in arguments:
        found[_LAYOUT.replace("-", "_")] = arguments[_LAYOUT]
    return found


def split_of(
    split: Split, model: ModelSpec, num_stages: int, num_chunks: int = 1
) -> dict[str, Any]:
    """What a framework does by itself; other splits than the first three have one chunk a stage."""
    parts = num_stages * num_chunks
    if split == "nemo":
        divides = model.num_layers % parts != 0 and (model.num_layers + len(_FLAGS)) % parts == 0
        if model.num_layers % parts and not divides:
            return _last_has_fewer(model.num_layers, num_stages, num_chunks)
        split = "embedding_and_loss" if divides else "even"
    if num_stages == 1 or split == "even":
        return {}
    if split == "embedding_and_loss":
        return {flag.replace("-", "_"): True for flag in _FLAGS}
    if split == "deepspeed":
        if model.num_layers % num_stages == 0:
            return {}
        counts = deepspeed_layers(model.num_layers, num_stages)
    else:
        counts = nanotron_layers(model, num_stages)
    return {_LAYOUT.replace("-", "_"): _layout(counts)}


def _last_has_fewer(num_layers: int, num_stages: int, num_chunks: int) -> dict[str, Any]:
    """As many layers in every chunk but the last, which has what is left: 61 of DeepSeek-V3 in 16
    chunks are 15 of 4 and one of 1 (Megatron-Bridge, recipes/deepseek/deepseek_v3.py)."""
    parts = num_stages * num_chunks
    each = -(-num_layers // parts)
    last = num_layers - each * (parts - 1)
    if last < 0:
        return {}
    return {_LAYOUT.replace("-", "_"): _layout([each] * (parts - 1) + [last])}


def deepspeed_layers(num_layers: int, num_stages: int) -> list[int]:
    """Layers per stage by `type:transformer|embedding`: input and output embedding count as one
    each, and every stage takes what the smallest possible fullest stage allows (DeepSpeed,
    runtime/utils.py, partition_balanced)."""
    fullest = -(-(num_layers + 2) // num_stages)
    ends = [min((i + 1) * fullest - 1, num_layers) for i in range(num_stages)]
    return _differences(ends)


def nanotron_layers(model: ModelSpec, num_stages: int) -> list[int]:
    """Layers per stage by nanotron's rule (models/base.py, build_model; models/llama.py,
    get_block_compute_costs): blocks go to a stage until their running cost, attention and MLP
    weights of a layer, vocabulary x hidden of the head, exceeds the stage's share of the total.
    """
    hidden, products = model.hidden_size, 3 if model.gated_linear_unit else 2
    layer = 4 * hidden * hidden + products * model.ffn_size * hidden
    total = layer * model.num_layers + model.vocab_size * hidden
    running = list(accumulate([layer] * model.num_layers))
    ends: list[int] = []
    for stage in range(num_stages - 1):
        share = total * (stage + 1) / num_stages
        end = bisect_right(running, share) + 1  # the block that exceeds it still belongs to it
        end = max(end, 1 + (ends[-1] if ends else 0))  # and each stage takes one at least
        ends.append(min(end, model.num_layers))
    return _differences([*ends, model.num_layers])


def _differences(ends: Sequence[int]) -> list[int]:
    return [end - begin for begin, end in zip((0, *ends), ends, strict=False)]


def _layout(counts: Sequence[int]) -> str:
    return "E" + "|".join("t" * count for count in counts) + "L"
