"""Half a transformer layer, as its builders return it."""

from typing import NamedTuple

from workloads.operations import Operation
from workloads.spec import RecomputeModule


class Block(NamedTuple):
    """Forward and backward operations of attention or MLP, and of the forward those that selective
    recomputation may name."""

    forward: tuple[Operation, ...]
    backward: tuple[Operation, ...]
    modules: dict[RecomputeModule, tuple[Operation, ...]]
