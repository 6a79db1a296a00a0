"""What a rank moves to its host and back, and what the host computes for it.

Three streams beside the compute: copies down, copies up, and the host's own work. Nobody else takes
part in them; a node's GPUs have a link each and share the host's memory evenly.
"""

from collections.abc import Sequence
from functools import partial

from hardware.collectives import CollectiveCost
from simulator.costs import Costs
from simulator.engine import Exchange, Task
from simulator.hooks import After, Before
from simulator.profile import Profile
from workloads.activation_offload import ActivationOffload
from workloads.data_parallel import HostStep

_NO_BYTES = float("inf")


class HostStreams:
    """The streams of one rank, filled from the first task to the last."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self.streams: dict[str, list[Task]] = {"host_down": [], "host": [], "host_up": []}

    def down(self, name: str, num_bytes: float, needs: tuple[Task, ...]) -> Task:
        """Copy from the GPU to the host once `needs` have ended."""
        return self._add("host_down", name, self._costs.host_copy(num_bytes), needs)

    def up(self, name: str, num_bytes: float, needs: tuple[Task, ...]) -> Task:
        """Copy from the host to the GPU."""
        return self._add("host_up", name, self._costs.host_copy(num_bytes), needs)

    def step(self, work: HostStep, after: Task) -> Task:
        """Gradients down, Adam, weights up, piece by piece; returns the last copy."""
        pieces = work.pieces
        seconds = self._costs.host_adam_s(work.parameters / pieces)
        adam = CollectiveCost(seconds, 0.0, _NO_BYTES, "adam", "none", 0)
        for i in range(pieces):
            label = f" {i}" if pieces > 1 else ""
            down = self.down(f"gradients to host{label}", work.down_bytes / pieces, (after,))
            stepped = self._add("host", f"adam on host{label}", adam, (down,))
            last = self.up(f"weights from host{label}", work.up_bytes / pieces, (stepped,))
        return last

    def activations(
        self,
        offload: ActivationOffload,
        profile: Profile,
        title: str,
        forward: bool,
        compute: Sequence[Task],
    ) -> tuple[Before, After]:
        """Copies of the activations of a pass's layers: awaited where they must have ended, queued
        behind the last task of `compute` where they may begin.

        One end of the model, embedding or head, comes before the layers in either direction.
        """
        copied: dict[int, Task] = {}

        def queue(layer: int) -> None:
            copy = self.down if forward else self.up
            name = f"activations of layer {layer}, {title}"
            copied[layer] = copy(name, offload.layer_bytes, tuple(compute[-1:]))

        def wait(layer: int) -> tuple[Task, ...]:
            return (copied[layer],)

        copies = offload.copies(forward)  # no two share a bound
        return (
            {profile.marks[1 + c.before]: partial(wait, c.layer) for c in copies},
            {profile.marks[1 + c.after]: partial(queue, c.layer) for c in copies},
        )

    def _add(self, stream: str, name: str, cost: CollectiveCost, needs: tuple[Task, ...]) -> Task:
        exchange = Exchange(name, 1, cost.latency_s, cost.wire_bytes, (), cost.rate_bytes_per_s)
        task = Task(name, "offload", needs, exchange=exchange)
        self.streams[stream].append(task)
        return task
