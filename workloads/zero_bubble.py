"""Orders of passes that split the backward, so that weight gradients fill the bubble.

ZB-H1 and ZB-H2 (Qi 2023, arXiv 2401.10241, section 2) run one chunk per stage; ZB-V (section 6
there) and DualPipeV (github.com/deepseek-ai/DualPipe) two, of which the second goes back from the
last stage to the first.
"""

from collections import deque
from collections.abc import Iterable

from workloads.passes import Direction, Order, Pass


def zb_h1(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Order:
    """1F1B whose weight gradients wait: as many as stages lie before this one, so that every stage
    holds what the first one of 1F1B holds."""
    return _handcrafted(num_microbatches, num_stages - stage, stage)


def zb_h2(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 1) -> Order:
    """Twice the forwards and waiting weight gradients of ZB-H1, less one: fills the wait for the
    first backward too, at almost twice the memory."""
    return _handcrafted(num_microbatches, 2 * (num_stages - stage) - 1, 2 * stage)


def _handcrafted(num_microbatches: int, most_forwards: int, most_waiting: int) -> Order:
    """One forward, one input gradient in turn once `most_forwards` are under way; weight gradients
    once more than `most_waiting` wait, and after the last forward whenever one does."""
    order = _Order()
    for i in range(min(most_forwards - 1, num_microbatches)):
        order.add("forward", i)
    for i in range(num_microbatches):
        forward = i + most_forwards - 1
        if forward < num_microbatches:
            order.add("forward", forward)
        order.add("backward_input", i)
        if len(order.waiting) > most_waiting or forward >= num_microbatches:
            order.weight()
    return order.finished()


def zb_v(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Order:
    """Two chunks in a V: the last stage turns at once, so that backwards begin early, and all
    stages hold as much as the first one of 1F1B.

    Drawn for 2 num_stages - 1 microbatches or more; with fewer, what they lack is left out.
    """
    drawn = max(num_microbatches, 2 * num_stages - 1)
    order = _Order()
    order.forwards(0, 2 * (num_stages - stage) - 1)
    for _ in range(stage):
        order.forwards(1)
        order.forwards(0)
    for _ in range(num_stages - stage):
        order.forwards(1)
        order.backward_both(1)
    while order.done("forward", 1) < order.done("forward", 0) or order.done("forward", 0) < drawn:
        if order.done("forward", 0) < drawn:
            order.forwards(0)
        order.backward_both(0)
        order.forwards(1)
        order.backward_both(1)
    for _ in range(stage):
        order.next("backward_input", 0)
        order.next("backward_input", 1)
    for _ in range(num_stages - stage):
        order.next("backward_input", 0)
        order.weight()
    return _without_extra(order.finished(), num_microbatches)


def dualpipe_v(stage: int, num_stages: int, num_microbatches: int, num_chunks: int = 2) -> Order:
    """DeepSeek's DualPipe cut in half, in its authors' eight steps (dualpipe/dualpipev.py).

    Its pairs of a forward and a backward are joined (`pipeline.joined_forwards`). Needs
    2 num_stages microbatches.
    """
    behind = num_stages - stage - 1
    order = _Order()
    order.forwards(0, 2 * behind)
    for _ in range(stage + 1):
        order.forwards(0)
        order.forwards(1)
    for _ in range(behind):
        order.backward_both(1)
        order.forwards(1)
    for _ in range(num_microbatches - 2 * num_stages + stage + 1):
        order.forwards(0)
        order.next("backward", 1)
        order.forwards(1)
        order.next("backward", 0)
    for _ in range(behind):
        order.next("backward", 1)
        order.forwards(1)
        order.next("backward", 0)
    # of the last backwards, twice stage + 1, the second half leaves its weights for later
    for i in range(2 * (stage + 1)):
        order.next("backward" if i < stage + 1 else "backward_input", 1 - i % 2)
    for _ in range(behind):
        order.weight()
        order.next("backward_input", 0)
    return order.finished()


class _Order:
    """An order in the making: counts passes of each kind, queues weight gradients."""

    def __init__(self) -> None:
        self._passes: list[Pass] = []
        self._counts: dict[tuple[str, int], int] = {}
        self.waiting: deque[Pass] = deque()

    def done(self, direction: Direction, chunk: int) -> int:
        """Microbatches whose forward, or backward of either kind, has been added."""
        return self._counts.get((direction[:7], chunk), 0)

    def add(self, direction: Direction, microbatch: int, chunk: int = 0) -> None:
        self._passes.append(Pass(direction, microbatch, chunk))
        if direction == "backward_input":
            self.waiting.append(Pass("backward_weight", microbatch, chunk))

    def next(self, direction: Direction, chunk: int) -> None:
        """The next microbatch of a chunk, one way."""
        self.add(direction, self.done(direction, chunk), chunk)
        self._counts[direction[:7], chunk] = self.done(direction, chunk) + 1

    def forwards(self, chunk: int, count: int = 1) -> None:
        for _ in range(count):
            self.next("forward", chunk)

    def backward_both(self, chunk: int) -> None:
        """Both parts, the input's first so that its gradient leaves early."""
        self.next("backward_input", chunk)
        self._passes.append(self.waiting.pop())

    def weight(self) -> None:
        """The weight gradient that has waited longest."""
        self._passes.append(self.waiting.popleft())

    def finished(self) -> Order:
        """All passes, the weight gradients that still wait last."""
        return (*self._passes, *self.waiting)


def _without_extra(passes: Iterable[Pass], num_microbatches: int) -> Order:
    return tuple(step for step in passes if step.microbatch < num_microbatches)
