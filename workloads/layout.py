"""Ranks and their coordinates: Megatron's order, fastest to slowest tp, dp, pp."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from workloads.spec import ParallelismSpec

Ints: TypeAlias = npt.NDArray[np.int64]


class Coordinates(NamedTuple):
    """Where a rank stands along each axis."""

    tp: int
    dp: int
    pp: int


@dataclass(frozen=True)
class RankGrid:
    """All ranks of a run, as a (pp, dp, tp) grid (Megatron-LM, parallel_state.py)."""

    tp: int
    dp: int
    pp: int

    @classmethod
    def of(cls, parallelism: ParallelismSpec, num_gpus: int) -> "RankGrid":
        """The grid of a checked layout on `num_gpus`."""
        dp = num_gpus // parallelism.num_model_parallel
        tp = parallelism.tensor_model_parallel_size
        return cls(tp, dp, parallelism.pipeline_model_parallel_size)

    @property
    def _ranks(self) -> Ints:
        return np.arange(self.tp * self.dp * self.pp).reshape(self.pp, self.dp, self.tp)

    def coordinates(self, rank: int) -> Coordinates:
        return Coordinates(rank % self.tp, rank // self.tp % self.dp, rank // (self.tp * self.dp))

    def stages(self) -> Ints:
        """Pipeline stage of each rank."""
        return np.repeat(np.arange(self.pp), self.dp * self.tp)

    def groups(self, axis: str) -> Ints:
        """One row of ranks per process group. `embedding`: first and last stage."""
        ranks = self._ranks
        if axis == "tp":
            return ranks.reshape(-1, self.tp)
        if axis == "dp":
            return np.moveaxis(ranks, 1, 2).reshape(-1, self.dp)
        if axis == "pp":
            return np.moveaxis(ranks, 0, 2).reshape(-1, self.pp)
        if axis == "embedding":
            if self.pp == 1:
                return np.empty((0, 2), np.int64)
            return np.stack([ranks[0].ravel(), ranks[-1].ravel()], axis=1)
        raise ValueError(f"no axis {axis!r}")

    def neighbours(self, step: int, wraps: bool) -> Ints:
        """Rank `step` stages on from each rank, -1 beyond the ends unless it `wraps` around."""
        ranks = np.roll(self._ranks, -step, axis=0)
        if not wraps:
            ranks[-1 if step > 0 else 0] = -1
        return ranks.ravel()
