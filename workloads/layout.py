"""Ranks, their coordinates and their process groups, in Megatron's order.

Dense layers lie on a grid of tensor, context, data and pipeline ranks; expert layers on one of
expert tensor, expert, expert data and the same pipeline ranks, both over all GPUs of the run
(Megatron-LM, parallel_state.py, RankGenerator).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workloads.spec import ParallelismSpec

Ints: TypeAlias = npt.NDArray[np.int64]

GroupAxis = Literal[
    "tp", "cp", "cp_a2a", "cp_ring", "dp", "dp_shard", "dp_replica", "etp", "ep", "edp", "pp",
    "embedding",
]  # fmt: skip
GROUP_AXES: tuple[GroupAxis, ...] = (
    "tp", "cp", "cp_a2a", "cp_ring", "dp", "dp_shard", "dp_replica", "etp", "ep", "edp",
    "embedding",
)  # fmt: skip
"""Axes along which collectives run."""

RANK_ORDER = "tp-cp-ep-dp-pp"
"""Megatron-LM's default, fastest to slowest. Its `dp` and `tp` are those of the experts where
experts are laid out."""


class Coordinates(NamedTuple):
    """Where a rank of dense layers stands along each axis."""

    tp: int
    cp: int
    dp: int
    pp: int


@dataclass(frozen=True)
class RankGrid:
    """All ranks of a run. `dp` counts replicas of the batch; gradients of dense weights are summed
    over the `cp` ranks too, and so the groups of axis `dp` span both."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    cp_a2a: int = 1
    """Neighbouring context-parallel ranks that swap heads; `cp` over it form rings."""
    optimizer_instances: int = 1
    """Parts of a data-parallel group that each hold a whole copy of what is sharded."""
    order: str = RANK_ORDER

    @classmethod
    def of(
        cls, parallelism: ParallelismSpec, num_gpus: int, optimizer_instances: int = 1
    ) -> "RankGrid":
        """The grid of a checked layout on `num_gpus`."""
        return cls(
            tp=parallelism.tensor_model_parallel_size,
            cp=parallelism.context_parallel_size,
            dp=parallelism.data_parallel_size(num_gpus),
            pp=parallelism.pipeline_model_parallel_size,
            ep=parallelism.expert_model_parallel_size,
            etp=parallelism.expert_tensor_size,
            cp_a2a=parallelism.context_swap_size,
            optimizer_instances=optimizer_instances,
            order=parallelism.rank_order,
        )

    @property
    def num_ranks(self) -> int:
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Ranks that hold the same experts."""
        return self.num_ranks // (self.etp * self.ep * self.pp)

    @property
    def folds_experts(self) -> bool:
        """Whether experts lie otherwise than dense layers do."""
        return (self.ep, self.etp) != (1, self.tp)

    def canonical(self, axis: str) -> str:
        """`axis`, or the one of the dense layers whose groups are the same."""
        same = {} if self.folds_experts else {"etp": "tp", "edp": "dp"}
        if self.optimizer_instances == 1:
            same["dp_shard"] = "dp"
        return same.get(axis, axis)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """Slowest to fastest, as the dimensions of an array of ranks."""
        return tuple(reversed(self.order.split("-")))

    @cached_property
    def _dense(self) -> Mapping[str, int]:
        return {"tp": self.tp, "cp": self.cp, "ep": 1, "dp": self.dp, "pp": self.pp}

    @cached_property
    def _expert(self) -> Mapping[str, int]:
        return {"tp": self.etp, "cp": 1, "ep": self.ep, "dp": self.edp, "pp": self.pp}

    @property
    def stage_stride(self) -> int:
        """Ranks from a place in one stage to the same place in the next."""
        return self._faster_than_stages(self._dense)

    @property
    def stages_agree(self) -> bool:
        """Whether dense layers and experts have the same ranks in each stage."""
        if self.pp == 1 or not self.folds_experts:
            return True
        return self.stage_stride == self._faster_than_stages(self._expert)

    def _faster_than_stages(self, sizes: Mapping[str, int]) -> int:
        return prod(sizes[name] for name in self._names[self._names.index("pp") + 1 :])

    def _ranks(self, sizes: Mapping[str, int]) -> Ints:
        return np.arange(self.num_ranks).reshape([sizes[name] for name in self._names])

    def coordinates(self, rank: int) -> Coordinates:
        place: dict[str, int] = {}
        for name in reversed(self._names):
            rank, place[name] = divmod(rank, self._dense[name])
        return Coordinates(place["tp"], place["cp"], place["dp"], place["pp"])

    def stages(self) -> Ints:
        """Pipeline stage of each rank."""
        ranks = self._ranks(self._dense)
        along = [self.pp if name == "pp" else 1 for name in self._names]
        return np.broadcast_to(np.arange(self.pp).reshape(along), ranks.shape).ravel()

    def groups(self, axis: str) -> Ints:
        """One row of ranks per process group, each in ascending order.

        `dp`: data- and context-parallel ranks together. `cp_a2a`, `cp_ring`: the levels of `cp`,
        neighbours first (Megatron-LM, create_hierarchical_groups). `dp_shard`, `dp_replica`: ranks
        of `dp` that share out one copy, and those that hold the same part of it. `etp`, `ep`,
        `edp`: the experts' grid. `embedding`: first and last stage.
        """
        along = {
            "tp": ("tp",), "cp": ("cp",), "dp": ("dp", "cp"), "pp": ("pp",), "embedding": ("pp",),
            "dp_shard": ("dp", "cp"), "dp_replica": ("dp", "cp"), "cp_a2a": ("cp",),
            "cp_ring": ("cp",), "etp": ("tp",), "ep": ("ep",), "edp": ("dp",),
        }  # fmt: skip
        if axis not in along:
            raise ValueError(f"no axis {axis!r}")
        rows = self._rows(self._expert if axis.startswith("e") else self._dense, along[axis])
        if axis == "embedding":
            return rows[:, [0, -1]] if self.pp > 1 else np.empty((0, 2), np.int64)
        near = {"cp": self.cp_a2a, "dp": rows.shape[1] // self.optimizer_instances}
        if axis in ("cp_a2a", "dp_shard"):
            return rows.reshape(-1, near[axis[:2]])
        if axis in ("cp_ring", "dp_replica"):
            far = np.swapaxes(rows.reshape(len(rows), -1, near[axis[:2]]), 1, 2)
            return far.reshape(-1, far.shape[2])
        return rows

    def _rows(self, sizes: Mapping[str, int], along: tuple[str, ...]) -> Ints:
        kept = [i for i, name in enumerate(self._names) if name in along]
        ranks = np.moveaxis(self._ranks(sizes), kept, range(-len(kept), 0))
        return np.sort(ranks.reshape(-1, prod(sizes[name] for name in along)), axis=1)

    def neighbours(self, step: int, wraps: bool) -> Ints:
        """Rank `step` stages on from each rank, -1 beyond the ends unless it `wraps` around."""
        axis = self._names.index("pp")
        ranks = np.moveaxis(np.roll(self._ranks(self._dense), -step, axis=axis), axis, 0)
        if not wraps:
            ranks[-1 if step > 0 else 0] = -1
        return np.moveaxis(ranks, 0, axis).ravel()
