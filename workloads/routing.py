"""How tokens spread over the experts of a layer, and what the fullest rank gets of them.

All ranks of an expert-parallel group meet at every exchange of tokens, so the fullest one sets
the pace of a layer; which one that is may differ from layer to layer, so each is taken to be it.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from workloads.spec import ModelSpec, ParallelismSpec, TrainingSpec

SEED = 0
"""Of the order in which ranks hold experts of a power law: which are liked is chance."""


@lru_cache(maxsize=64)
def expert_loads(
    num_experts: int, routing: str, exponent: float, loads: tuple[float, ...]
) -> npt.NDArray[np.float64]:
    """Share of the tokens that each expert gets, in the order in which ranks hold them; they sum
    to 1."""
    if routing == "balanced":
        weights = np.ones(num_experts)
    elif routing == "zipf":
        weights = np.arange(1, num_experts + 1, dtype=float) ** -exponent
        weights = np.random.default_rng(SEED).permutation(weights)
    else:
        weights = np.asarray(loads, dtype=float)
    return np.asarray(weights / weights.sum())


def busiest_rank(model: ModelSpec, training: TrainingSpec, parallelism: ParallelismSpec) -> float:
    """Tokens of the fullest expert-parallel rank over the even share, dropped ones left out.

    With a capacity an expert takes no more than that; padded, it always works on all of it.
    """
    loads = _kept(model, training)
    ranks = parallelism.expert_model_parallel_size
    per_rank = loads.reshape(ranks, -1).sum(axis=1)
    return float(per_rank.max() * ranks)


def kept_share(model: ModelSpec, training: TrainingSpec) -> float:
    """Tokens that reach an expert, padding counted, over those routed."""
    return float(_kept(model, training).sum())


def _kept(model: ModelSpec, training: TrainingSpec) -> npt.NDArray[np.float64]:
    experts = model.expert_count
    loads = expert_loads(
        experts, training.moe_routing, training.moe_zipf_exponent, training.moe_expert_loads
    )
    if training.moe_expert_capacity_factor is None:
        return loads
    capacity = training.moe_expert_capacity_factor / experts
    if training.moe_pad_expert_input_to_capacity:
        return np.full(experts, capacity)
    return np.minimum(loads, capacity)
