"""Which layer's activations travel to the host and back during which layers' passes.

As Transformer Engine spreads them (pytorch/cpu_offload.py, AsyncDoubleBufferGroupOffloadHandler):
the first n of L layers are copied one after the other, each within its window of the L layers, and
the pass waits at the end of a window for its copy. Backward mirrors that.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerCopy:
    """One layer's activations on their way, in either pass."""

    layer: int
    after: int
    """Layers of the pass that have run when the copy begins."""
    before: int
    """Layers of the pass that may run before it has ended."""


@dataclass(frozen=True, slots=True)
class ActivationOffload:
    """What a stage keeps on the host between forward and backward of a microbatch."""

    num_layers: int
    """Transformer layers of the stage."""
    num_offloaded: int
    """The first ones."""
    layer_bytes: float
    """What each keeps."""

    def copies(self, forward: bool) -> list[LayerCopy]:
        """Of a pass, in order."""
        plan = copies_down if forward else copies_up
        return plan(self.num_layers, self.num_offloaded)


def windows(num_layers: int, num_offloaded: int) -> list[int]:
    """Of each offloaded layer, the last layer that runs while it is copied."""
    each, rest = divmod(num_layers, num_offloaded)
    return [each * (i + 1) - 1 + min(i + 1, rest) for i in range(num_offloaded)]


def copies_down(num_layers: int, num_offloaded: int) -> list[LayerCopy]:
    """In a forward: the first once its layer has run, others after the window before theirs."""
    ends = windows(num_layers, num_offloaded)
    begins = [0, *ends[:-1]]
    return [
        LayerCopy(layer, begin + 1, end + 1)
        for layer, (begin, end) in enumerate(zip(begins, ends, strict=True))
    ]


def copies_up(num_layers: int, num_offloaded: int) -> list[LayerCopy]:
    """In a backward, last layer first: each begins with the last layer of its window, and has ended
    before the next one begins; the first layer's before that layer runs."""
    ends = windows(num_layers, num_offloaded)
    ready = [0, *ends[:-1]]
    return [
        LayerCopy(layer, num_layers - 1 - ends[layer], num_layers - 1 - ready[layer])
        for layer in reversed(range(num_offloaded))
    ]


def most_held(num_layers: int, num_offloaded: int) -> int:
    """Layers whose activations are on the GPU at once at most, those being copied included: before
    each wait of the forward, what has run less what has gone."""
    waits = [copy.before - i for i, copy in enumerate(copies_down(num_layers, num_offloaded))]
    return max(*waits, num_layers - num_offloaded)
