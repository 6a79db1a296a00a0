"""What a rank moves to its host and back, and what the host computes for it.

Three streams beside the compute: copies down, copies up, and the host's own work. Nobody else takes
part in them; a node's GPUs have a link each and share the host's memory evenly.
"""

from hardware.collectives import CollectiveCost
from simulator.costs import Costs
from simulator.engine import Exchange, Task
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

    def _add(self, stream: str, name: str, cost: CollectiveCost, needs: tuple[Task, ...]) -> Task:
        exchange = Exchange(name, 1, cost.latency_s, cost.wire_bytes, (), cost.rate_bytes_per_s)
        task = Task(name, "offload", needs, exchange=exchange)
        self.streams[stream].append(task)
        return task
