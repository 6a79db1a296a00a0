"""What a measured run recomputes, in the run file's words.

PyTorch trainers say `selective` of other things than Megatron-LM's attention core: whole layers in
turn, or single operations.
"""

import re
from collections.abc import Mapping
from typing import Any, get_args

from workloads.spec import RecomputeModule

_MODULE = "|".join(sorted(get_args(RecomputeModule), key=len, reverse=True))
"""Longest first: `moe_act` is not `moe`."""


def recompute_settings(
    row: Mapping[str, str], granularity: str, layers_per_chunk: int
) -> dict[str, Any]:
    """Fields of `TrainingSpec`. Raises `ValueError` for what has no counterpart there."""
    notes = row.get("notes", "")
    if granularity == "selective":
        if re.search(r"selective op\b", notes):
            raise ValueError("recomputation of single operations (torchtitan) is not modelled")
        if "fraction not printed" in notes:
            raise ValueError("the source does not print which part of the layers is recomputed")
        if "selective layer" in notes:  # every second one (torchtitan, selective_ac_option: 2)
            return {
                "recompute_granularity": "full",
                "recompute_method": "block",
                "recompute_num_layers": max(1, layers_per_chunk // 2),
            }
    modules = re.findall(_MODULE, row.get("recompute_modules", ""))
    return {
        "recompute_granularity": granularity,
        "recompute_modules": tuple(modules) or ("core_attn",),
    }
