"""The program of each simulated rank: streams of tasks, and the exchanges that tie them together.

Reads the work of a step (passes in order, buckets, optimizer), the classes of ranks that behave
alike, and prices; returns what the event loop executes. One rank per class gets a program; an
exchange has one member per class of the ranks that take part in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

from hardware.collectives import CollectiveCost
from hardware.links import Standing
from simulator.costs import Costs
from simulator.engine import Exchange, Rank, Task
from simulator.errors import SimulationError
from simulator.hooks import After, Before, joined_after, joined_before
from simulator.offload import HostStreams
from simulator.placement import FoldedRanks, GroupPlace
from simulator.profile import QUIET, Profile, Segment, Slowdown
from simulator.trace import Category, communication_kind
from workloads.graph import DeferredHead, StageWork, StepWork
from workloads.memory import KEPT_WHOLE
from workloads.operations import Axis, Collective, CollectiveKind, LayerWork, Operation
from workloads.passes import Direction, Pass, Route, pass_input

MAX_TASKS = 20_000_000
"""What fits in memory: about 0.3 kB each."""


@dataclass(frozen=True)
class Program:
    """What the loop executes: ranks, the capacities of the links that exchanges load, and the flows
    of other jobs on them."""

    ranks: tuple[Rank, ...]
    capacity_bytes_per_s: tuple[float, ...]
    standing: tuple[tuple[Standing, ...], ...] = ()


def build_program(work: StepWork, folded: FoldedRanks, costs: Costs) -> Program:
    """Lay out every class's streams, then tie passes to the transfers that feed them.

    Raises `SimulationError` when they would not fit in memory.
    """
    builder = _Builder(work, folded, costs)
    ranks: list[Rank] = []
    num_tasks = 0
    for c in range(len(folded)):
        ranks.append(builder.rank(c))
        num_tasks += sum(map(len, ranks[-1].streams.values()))
        _check_size(num_tasks * len(folded) // (c + 1))
    builder.tie(ranks)
    return Program(tuple(ranks), folded.capacities(), folded.standing())


def _check_size(num_tasks: int) -> None:
    if num_tasks > MAX_TASKS:
        raise SimulationError(
            f"about {num_tasks:,} operations are more than the {MAX_TASKS:,} that fit in memory; "
            "let ranks that behave alike be folded, or simulate fewer ranks or microbatches"
        )


class Feeder(NamedTuple):
    """Where passes of one kind have their input from: a class and its passes of one kind."""

    c: int
    direction: Direction
    chunk: int


@dataclass
class _Builder:
    work: StepWork
    folded: FoldedRanks
    costs: Costs
    exchanges: dict[tuple[object, ...], Exchange] = field(default_factory=dict)
    first_of: dict[tuple[int, Pass], Task] = field(default_factory=dict)
    output_of: dict[tuple[int, Pass], Task] = field(default_factory=dict)
    joined: dict[tuple[int, Pass], Pass] = field(default_factory=dict)
    """Class and backward -> the forward that begins with it."""

    def rank(self, c: int) -> Rank:
        """Streams of class c's representative."""
        return _RankBuilder(self, c).build()

    def tie(self, ranks: Sequence[Rank]) -> None:
        """Give each pass the transfer that brings its input."""
        feeders: dict[tuple[int, Direction, int], Feeder | None] = {}
        for (c, step), task in self.first_of.items():
            kind = c, step.direction, step.chunk
            if kind not in feeders:
                feeders[kind] = self.feeder(c, step)
            feeder = feeders[kind]
            if feeder is not None:
                output = Pass(feeder.direction, step.microbatch, feeder.chunk)
                transfer = self.output_of[feeder.c, output]
                task.needs = (transfer, *task.needs)
                if self.joined and (c, step) in self.joined:
                    begins = self.first_of[c, self.joined[c, step]]
                    begins.needs = (transfer, *begins.needs)
                assert transfer.exchange is not None
                transfer.exchange.receivers.append(ranks[c])

    def feeder(self, c: int, step: Pass) -> "Feeder | None":
        """What sends such passes of class c their input; None where it was made on the spot."""
        stage = self.folded.stage(c)
        source = pass_input(step, stage, self.route)
        if source is None or source.stage == stage:
            return None
        from_before = self.goes_next(source.source)
        sender = self.folded.previous(c) if from_before else self.folded.next(c)
        return Feeder(sender, source.source.direction, source.source.chunk)

    @cached_property
    def route(self) -> Route:
        """Of microbatches over the stages."""
        return Route.of(self.work.parallelism)

    def goes_next(self, step: Pass) -> bool:
        """Whether a pass's output goes to the stage behind (the first behind the last)."""
        return (step.direction == "forward") != self.route.goes_back(step.chunk)

    def exchange(self, key: tuple[object, ...], make: "_Maker") -> Exchange:
        """The exchange of this key, made when its first member asks for it."""
        if key not in self.exchanges:
            self.exchanges[key] = make.exchange()
        return self.exchanges[key]


@dataclass(frozen=True)
class _Maker:
    """How to make one exchange."""

    name: str
    num_members: int
    cost: CollectiveCost
    links: tuple[tuple[int, float], ...] = ()
    slowdown: Slowdown = QUIET

    def exchange(self) -> Exchange:
        return Exchange(
            self.name, self.num_members, self.cost.latency_s, self.cost.wire_bytes, self.links,
            self.cost.rate_bytes_per_s, self.slowdown,
        )  # fmt: skip


_NOTHING = CollectiveCost(0.0, 0.0, float("inf"), "none", "none", 0)


class _Buffer(NamedTuple):
    """Weights whose copies lie along one axis: those of experts, or all others."""

    name: str
    axis: Axis
    """All copies, and
    shard_axis, those among which optimizer state is shared out."""
    shard_axis: Axis
    buckets: tuple[tuple[int, ...], ...]
    """Parameters of each bucket of each chunk, and
    weights, the tensors that they are."""
    weights: tuple[tuple[int, ...], ...]
    experts: bool = False

    def cumulative(self, profile: Profile) -> Sequence[int]:
        """Weights read, or gradients completed, up to each bound of a pass."""
        return profile.expert_parameters if self.experts else profile.parameters


class _RankBuilder:
    """One class's streams, filled from the first task to the last."""

    def __init__(self, builder: _Builder, c: int) -> None:
        self.b, self.c, self.folded = builder, c, builder.folded
        self.stage = self.folded.stage(c)
        self.work: StageWork = builder.work.stages[self.stage]
        self.parallel, self.optimizer = builder.work.parallelism, builder.work.optimizer
        self.place = self.folded.place(c)
        self.mixed = {
            axis
            for axis, group in self.place.groups
            if group.shape.num_ranks > 1
            and (self.folded.unfolded or len(self.folded.classes(axis, c)) > 1)
        }
        """Axes inside passes whose groups hold ranks that behave differently."""
        self.compute: list[Task] = []
        self.dp: list[Task] = []
        self.sends: dict[str, list[Task]] = {"pp_next": [], "pp_prev": []}
        self.host = HostStreams(builder.costs)
        self.host_transfer = builder.costs.host_transfer()
        self.gathers: dict[tuple[str, int], list[Task]] = {}
        self.profiles: dict[tuple[Direction, int, bool, bool], Profile] = {}
        self.bounds: dict[Profile, dict[int, list[str]]] = {}
        self.goals: dict[tuple[Direction, int], bool | None] = {}
        self.dp_size = self.folded.shape("dp", c).num_ranks
        self.buffers = self._buffers()
        self.transfers = self.folded.transfers(c, builder.work.boundary_bytes)
        self.transfer_slowdown = QUIET
        if self.transfers and self.parallel.overlap_p2p_communication:
            cost, _ = next(iter(self.transfers.values()))
            self.transfer_slowdown = builder.costs.transfer_slowdown(cost)

    def build(self) -> Rank:
        shards_weights = self.optimizer.shards_weights
        if self.optimizer.overlap_param_gather and not shards_weights:
            self._gather_ahead()
        final = {step.chunk: step for step in self.work.order if step.completes_gradients}
        joined: Pass | None = None
        for step in self.work.order:
            if self.dp_size > 1 and shards_weights:
                self._gathered(step)
            elif step.direction == "forward":
                self._forward(step, first=step.microbatch == 0)
            else:
                self._backward(step, last=step == final[step.chunk])
            if step in self.work.joined:
                joined = step
                continue
            if joined is not None:
                self.b.joined[self.c, step] = joined
                self._send(joined)
                joined = None
            self._send(step)
        if self.work.deferred is not None:
            self._deferred(self.work.deferred)
        self._finish()
        streams = {"compute": self.compute, **self.sends, "dp": self.dp, **self.host.streams}
        rank = Rank(self.folded.representative(self.c), self.stage, self.folded.count(self.c))
        rank.speed = self.place.speed
        rank.streams = {name: tasks for name, tasks in streams.items() if tasks}
        return rank

    # passes

    def _forward(self, step: Pass, first: bool) -> None:
        profile = self._profile(step)
        needs: dict[int, list[Task]] = {}
        for buffer in self.buffers if first else ():
            if (buffer.name, step.chunk) not in self.gathers:
                continue
            starts = _first_use(buffer.cumulative(profile), buffer.buckets[step.chunk])
            for start, gather in zip(starts, self.gathers[buffer.name, step.chunk], strict=True):
                needs.setdefault(start, []).append(gather)
        self._run(step, profile, {at: partial(tuple, tasks) for at, tasks in needs.items()}, {})

    def _backward(self, step: Pass, last: bool) -> None:
        profile = self._profile(step)
        closing: dict[int, list[tuple[_Buffer, int]]] = {}
        scatters = self.optimizer.shards_gradients and step.completes_gradients
        early = last and self._reduces_early and not self._waits_for_deferred(step.chunk)
        if not self.buffers or not (scatters or early):
            self._run(step, profile, {}, {})
            return
        for buffer in self.buffers:
            cumulative = buffer.cumulative(profile)
            for i, total in enumerate(accumulate(buffer.buckets[step.chunk])):
                closing.setdefault(_reaches(cumulative, total), []).append((buffer, i))
        each = f" of {_title(step)}" if scatters else ""

        def reduce(closed: Sequence[tuple[_Buffer, int]]) -> None:
            for buffer, i in closed:
                self._reduce(buffer, step.chunk, i, each)

        after = {bound: partial(reduce, closed) for bound, closed in closing.items()}
        self._run(step, profile, {}, after)

    def _gathered(self, step: Pass) -> None:
        """A pass whose layers' weights are gathered before they run and given up after (ZeRO-3).

        With overlap_param_gather the next layer's are on their way while one runs, and no more
        (PyTorch FSDP's limit_all_gathers); with overlap_grad_reduce a layer's gradients are
        scattered while the next one runs, else before it.
        """
        profile, forward = self._profile(step), step.direction == "forward"
        units = _units(self.work.chunks[step.chunk], profile, forward)
        ahead = 2 if self.optimizer.overlap_param_gather else 1
        queued: list[tuple[Task, ...]] = []
        reduced: list[Task] = []

        def before(i: int) -> tuple[Task, ...]:
            for unit in units[len(queued) : i + ahead]:
                kept = not forward and (unit.stays or not self.optimizer.reshard_after_forward)
                last = tuple(self.compute[-1:])
                queued.append(() if kept else self._gather(step, unit.bucket, last))
            awaited = () if self.optimizer.overlap_grad_reduce else tuple(reduced[-1:])
            return (*queued[i], *awaited)

        def after(i: int) -> None:
            if not forward:
                bucket = units[i].bucket
                reduced.append(
                    self._reduce(self.buffers[0], step.chunk, bucket, f" of {_title(step)}")
                )

        self._run(
            step, profile,
            {unit.low: partial(before, i) for i, unit in enumerate(units)},
            {unit.high: partial(after, i) for i, unit in enumerate(units)},
        )  # fmt: skip

    @property
    def _reduces_early(self) -> bool:
        return bool(self.buffers) and self.optimizer.overlap_grad_reduce

    def _waits_for_deferred(self, chunk: int) -> bool:
        return self.work.deferred is not None and chunk == len(self.work.chunks) - 1

    def _deferred(self, deferred: DeferredHead) -> None:
        """Weight gradients of the logits that were left; only now the chunk's are complete."""
        segments = self.b.costs.segments(deferred.operations, "backward_weight", self.place)
        profile = Profile(segments * deferred.num_microbatches)
        name = "deferred weight gradients of the logits"
        task = Task(name, "backward_weight", (), profile, 0.0, profile.duration_s)
        self.compute.append(task)
        chunk = len(self.work.chunks) - 1
        if self._reduces_early:
            for buffer in self.buffers:
                for bucket in range(len(buffer.buckets[chunk])):
                    self._reduce(buffer, chunk, bucket)

    def _profile(self, step: Pass) -> Profile:
        hidden = self.work.exchanges is not None and step not in self.work.exchanges.alone
        kind = step.direction, step.chunk, self.work.defers(step), hidden
        if kind not in self.profiles:
            layers = self.work.pass_layers(step)
            self.profiles[kind] = self.b.costs.pass_profile(layers, step.direction, self.place)
        return self.profiles[kind]

    def _run(
        self,
        step: Pass,
        profile: Profile,
        before: Before,
        after: After,
    ) -> None:
        """Append a pass, cut where it waits for a gather, completes a bucket or meets a group that
        communicates inside it."""
        barriers = self._barriers(profile) if self.mixed else {}
        if self.work.offload is not None:
            waits, queues = self.host.activations(
                self.work.offload, profile, _title(step), step.direction == "forward", self.compute
            )
            before, after = joined_before(before, waits), joined_after(after, queues)
        begin = len(self.compute)
        if self.host_transfer is not None and self.b.feeder(self.c, step) is not None:
            self._host_at_transfer()
        if not (before or after or barriers):
            self._compute_part(step, profile, 0, len(profile.segments), ())
            self.b.first_of[self.c, step] = self.compute[begin]
            return
        cuts = sorted({0, len(profile.segments), *before, *after, *barriers})
        for low, high in list(pairwise(cuts)) or [(0, 0)]:  # an empty chunk only passes on
            needs = before[low]() if low in before else ()
            if self._meet(step, low, barriers, needs):
                needs = ()
            self._compute_part(step, profile, low, high, needs)
            if high in after:
                after[high]()
        self._meet(step, cuts[-1], barriers)
        self.b.first_of[self.c, step] = self.compute[begin]

    def _compute_part(
        self, step: Pass, profile: Profile, low: int, high: int, needs: tuple[Task, ...]
    ) -> None:
        self.compute.append(
            Task(
                _title(step), _CATEGORIES[step.direction], needs, profile, profile.bounds_s[low],
                profile.bounds_s[high], None, step.microbatch, step.chunk,
            )
        )  # fmt: skip

    def _barriers(self, profile: Profile) -> dict[int, list[str]]:
        """Bound -> axes whose group meets there: around each of its collectives."""
        if profile in self.bounds:
            return self.bounds[profile]
        bounds = self.bounds[profile] = dict[int, list[str]]()
        for i, segment in enumerate(profile.segments):
            if segment.synchronizes and segment.axis in self.mixed:
                for bound in (i, i + 1):
                    axes = bounds.setdefault(bound, [])
                    if segment.axis not in axes:
                        axes.append(segment.axis)
        return bounds

    def _meet(
        self,
        step: Pass,
        bound: int,
        barriers: Mapping[int, Sequence[str]],
        needs: tuple[Task, ...] = (),
    ) -> bool:
        """Wait at a bound for what is needed and for all members of each group that meets there;
        false where none does."""
        for axis in barriers.get(bound, ()):
            name = f"{axis} barrier {bound} {_title(step)}"
            key = (axis, self.folded.hub(axis, self.c), step, bound)
            members = len(self.folded.classes(axis, self.c))
            exchange = self.b.exchange(key, _Maker(name, members, _NOTHING))
            self._join(self.compute, name, communication_kind(axis), exchange, needs, step)
        return bool(barriers.get(bound))

    # exchanges

    def _host_at_transfer(self) -> None:
        """One end of a transfer, if the host takes time for it."""
        if self.host_transfer is not None:
            name = "host at a transfer"
            duration_s = self.host_transfer.duration_s
            self.compute.append(Task(name, "overhead", (), self.host_transfer, 0.0, duration_s))

    def _send(self, step: Pass) -> None:
        """Send a pass's output to the stage that needs it, beside compute or before going on."""
        goes_next = self._goal(step)
        if goes_next is None:
            return
        self._host_at_transfer()
        done, output = self.compute[-1], step.output
        cost, links = self.transfers[goes_next]
        exchange = Exchange(
            f"send {_title(output)}", 1, cost.latency_s, cost.wire_bytes, links,
            cost.rate_bytes_per_s, self.transfer_slowdown,
        )  # fmt: skip
        stream = self.compute
        needs: tuple[Task, ...] = ()
        if self.parallel.overlap_p2p_communication:
            stream, needs = self.sends["pp_next" if goes_next else "pp_prev"], (done,)
        task = Task(
            exchange.name, "pp", needs, exchange=exchange,
            microbatch=output.microbatch, chunk=output.chunk,
        )  # fmt: skip
        stream.append(task)
        self.b.output_of[self.c, output] = task

    def _goal(self, step: Pass) -> bool | None:
        """Whether a pass's output goes to the stage behind; None where it stays."""
        kind = step.direction, step.chunk
        if kind not in self.goals:
            forward = step.direction == "forward"
            target = self.b.route.neighbour((self.stage, step.chunk), forward)
            stays = target is None or target[0] == self.stage
            none = stays or step.direction == "backward_weight"
            self.goals[kind] = None if none else self.b.goes_next(step)
        return self.goals[kind]

    def _buffers(self) -> tuple["_Buffer", ...]:
        """Buffers whose weights this class shares with other ranks."""
        dense = _Buffer("", "dp", "dp_shard", self.work.buckets, self.work.bucket_weights)
        held = self.work.expert_buckets
        experts = _Buffer(
            "expert ", "edp", "edp",
            tuple(tuple(b.parameters for b in chunk) for chunk in held),
            tuple(tuple(b.num_weights for b in chunk) for chunk in held),
            True,
        )  # fmt: skip
        buffers = (dense, experts) if self.work.expert_parameters else (dense,)
        return tuple(b for b in buffers if self.folded.shape(b.axis, self.c).num_ranks > 1)

    def _gather_ahead(self) -> None:
        """Queue the parameter all-gathers, in the order in which forward first reads them."""
        for chunk in range(len(self.work.chunks)):
            for buffer in self.buffers:
                if self.folded.shape(buffer.shard_axis, self.c).num_ranks == 1:
                    continue
                queued = self.gathers[buffer.name, chunk] = list[Task]()
                for i in reversed(range(len(buffer.buckets[chunk]))):
                    self._data_parallel(buffer, self.dp, "all_gather", chunk, i, f"{chunk}.{i}")
                    queued.append(self.dp[-1])

    def _gather(self, step: Pass, bucket: int, needs: tuple[Task, ...]) -> tuple[Task, ...]:
        """Gather one layer's weights for a pass; nothing where a rank has them whole."""
        before = len(self.dp)
        label, buffer = f"{step.chunk}.{bucket} for {_title(step)}", self.buffers[0]
        self._data_parallel(buffer, self.dp, "all_gather", step.chunk, bucket, label, needs)
        return tuple(self.dp[before:])

    def _reduce(self, buffer: "_Buffer", chunk: int, bucket: int, each: str = "") -> Task:
        """Reduce one bucket's gradients behind the compute that has just ended; `each` tells
        microbatches apart where all of them do."""
        label, done = f"{chunk}.{bucket}{each}", tuple(self.compute[-1:])
        self._data_parallel(buffer, self.dp, self._reduction, chunk, bucket, label, done)
        return self.dp[-1]

    @property
    def _reduction(self) -> CollectiveKind:
        sharded = self.optimizer.use_distributed_optimizer
        return "reduce_scatter" if sharded else "all_reduce"

    def _all_buckets(self, stream: list[Task], kind: CollectiveKind) -> None:
        """One collective after the other, over all buckets of all chunks."""
        for buffer in self.buffers:
            for chunk, buckets in enumerate(buffer.buckets):
                for i in range(len(buckets)):
                    self._data_parallel(buffer, stream, kind, chunk, i, f"{chunk}.{i}")

    def _data_parallel(
        self,
        buffer: "_Buffer",
        stream: list[Task],
        kind: CollectiveKind,
        chunk: int,
        bucket: int,
        label: str,
        needs: tuple[Task, ...] = (),
    ) -> None:
        """One bucket's collective over the ranks that share it out; gradients of several copies
        (HSDP) are then summed over those that hold the same part."""
        gather, beside = kind == "all_gather", stream is self.dp
        per_parameter = self.b.work.parameter_bytes if gather else self.b.work.gradient_bytes
        num_bytes = float(buffer.buckets[chunk][bucket] * per_parameter)
        weights = buffer.weights[chunk][bucket]
        what = f"{buffer.name}{'parameters' if gather else 'gradients'}"
        name = f"{'gather' if gather else 'reduce'} {what} {label}"
        axis = buffer.axis if kind == "all_reduce" else buffer.shard_axis

        def queue(op: Collective) -> None:
            self._collective(stream, op, needs, chunk, beside_compute=beside, num_weights=weights)

        queue(Collective(name, kind, axis, num_bytes))
        copies = self.optimizer.num_distributed_optimizer_instances
        if kind == "reduce_scatter" and copies > 1:
            part = num_bytes / self.folded.shape(axis, self.c).num_ranks
            queue(Collective(f"sum copies {label}", "all_reduce", "dp_replica", part))

    def _collective(
        self,
        stream: list[Task],
        op: Collective,
        needs: tuple[Task, ...] = (),
        chunk: int = -1,
        beside_compute: bool = False,
        num_weights: int = 0,
    ) -> None:
        """Join a collective of this class's group along `op.axis`, of so many weights' parts."""
        shape = self.folded.shape(op.axis, self.c)
        if shape.num_ranks == 1:
            return
        cost = self.b.costs.data_parallel(op, GroupPlace(shape), num_weights)
        slowdown = QUIET
        if beside_compute:
            slowdown = self.b.costs.slowdown(cost, shape)
        key = (op.axis, self.folded.hub(op.axis, self.c), op.name)
        members = len(self.folded.classes(op.axis, self.c))
        links = self.folded.links(op.axis, self.c, cost)
        maker = _Maker(op.name, members, cost, links, slowdown)
        kind = communication_kind(op.axis)
        self._join(stream, op.name, kind, self.b.exchange(key, maker), needs, chunk=chunk)

    def _join(
        self,
        stream: list[Task],
        name: str,
        category: Category,
        exchange: Exchange,
        needs: tuple[Task, ...],
        step: Pass | None = None,
        chunk: int = -1,
    ) -> None:
        task = Task(name, category, needs, exchange=exchange, chunk=chunk)
        if step is not None:
            task.microbatch, task.chunk = step.microbatch, step.chunk
        stream.append(task)

    # end of the step

    def _finish(self) -> None:
        """Reduce what is left, then gradient norm and optimizer, then gather parameters."""
        work, optimizer = self.work, self.optimizer
        on_the_way = optimizer.overlap_grad_reduce or optimizer.shards_gradients
        if not on_the_way:
            self._all_buckets(self.compute, self._reduction)
        waits = (self.dp[-1],) if self.dp and on_the_way else ()
        for op in work.finish:
            self._finish_operation(op, waits)
            waits = ()
        if work.host_step is not None:
            self._finish_compute((), (self.host.step(work.host_step, self.compute[-1]),))
        self._finish_compute(self.b.costs.host_segments(), ())
        gathers = optimizer.use_distributed_optimizer and not optimizer.overlap_param_gather
        if gathers and not optimizer.shards_weights:
            self._all_buckets(self.compute, "all_gather")

    def _finish_operation(self, op: Operation, needs: tuple[Task, ...]) -> None:
        if isinstance(op, Collective):
            before = len(self.compute)
            self._collective(self.compute, op)
            if needs and len(self.compute) > before:
                self.compute[-1].needs = needs
            elif needs:
                self._finish_compute((), needs)
            return
        self._finish_compute(self.b.costs.segments((op,), "optimizer", self.place), needs)

    def _finish_compute(self, segments: Iterable[Segment], needs: tuple[Task, ...]) -> None:
        profile = Profile(tuple(segments))
        name = profile.segments[0].pieces[0].name if profile.segments else "wait"
        self.compute.append(Task(name, "optimizer", needs, profile, 0.0, profile.duration_s))


_CATEGORIES: dict[str, Category] = {
    "forward": "forward", "backward": "backward", "backward_input": "backward",
    "backward_weight": "backward_weight",
}  # fmt: skip


class _Unit(NamedTuple):
    """A layer with weights: the bounds between which it runs, and its bucket."""

    low: int
    high: int
    bucket: int
    stays: bool
    """Its weights are kept from forward to backward."""


def _units(layers: tuple[LayerWork, ...], profile: Profile, forward: bool) -> list[_Unit]:
    """Layers that hold weights, in the order in which a pass runs them; what runs before the first
    and between two of them counts to the one before it, or to the first."""
    order = layers if forward else layers[::-1]
    held = [(mark, x) for mark, x in zip(profile.marks, order, strict=True) if x.parameters]
    lows = [0, *(mark for mark, _ in held[1:])]
    highs = [*lows[1:], len(profile.segments)]
    # buckets are numbered as backward fills them
    numbers = range(len(held))
    return [
        _Unit(low, high, len(held) - 1 - i if forward else i, layer.name in KEPT_WHOLE)
        for i, low, high, (_, layer) in zip(numbers, lows, highs, held, strict=True)
    ]


@lru_cache(maxsize=1 << 16)
def _title(step: Pass) -> str:
    return f"{step.direction.replace('_', ' ')} {step.microbatch}.{step.chunk}"


def _first_use(cumulative: Sequence[int], buckets: Sequence[int]) -> list[int]:
    """Bound before the segment that first reads each bucket, in forward order.

    Buckets fill in the order of backward, so the last of them holds the first parameters.
    """
    starts, before = [], 0
    for parameters in reversed(buckets):
        starts.append(max(0, _reaches(cumulative, before + 1) - 1))
        before += parameters
    return starts


def _reaches(cumulative: Sequence[int], value: int) -> int:
    """First index at which a running sum reaches `value` (its last index if it never does)."""
    for i, total in enumerate(cumulative):
        if total >= value:
            return i
    return len(cumulative) - 1
