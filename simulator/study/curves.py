"""What a study's pictures show: the rows along one varied setting, and those over two."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.study.knee import find_knee
from simulator.study.points import Scalar
from simulator.study.whatif import Answer, Row


def step_time_s(row: Row) -> float | None:
    """Seconds of a step, None without a result."""
    return None if row.outcome.result is None else float(row.outcome.result["step_time_s"])


def mfu(row: Row) -> float | None:
    """Model FLOPs utilisation, None without a result."""
    return None if row.outcome.result is None else float(row.outcome.result["mfu"])


def exposed_s(row: Row) -> dict[str, float]:
    """Seconds of each kind of communication that compute does not cover."""
    if row.outcome.result is None:
        return {}
    return {k: v["exposed_s"] for k, v in row.outcome.result["communication"].items()}


def all_exposed_s(row: Row) -> float | None:
    """Their sum, None without a result."""
    return None if row.outcome.result is None else sum(exposed_s(row).values())


@dataclass(frozen=True)
class Axis:
    """The values of one setting, in the order in which they are drawn."""

    path: str
    texts: tuple[str, ...]
    """As the user wrote them."""
    values: tuple[float, ...] | None
    """In SI units, rising; None where they are no numbers: then they stand as listed."""

    @property
    def positions(self) -> tuple[float, ...]:
        """Where the values stand on an axis."""
        return self.values or tuple(map(float, range(len(self.texts))))


@dataclass(frozen=True)
class Curve:
    """The rows along one setting, others held where they are."""

    axis: Axis
    held: tuple[tuple[str, str], ...]
    """(path, text) of the other settings."""
    rows: tuple[Row, ...]

    def knee(self) -> int | None:
        """Index of the value where the step time bends, if it does; only numbers have one."""
        if self.axis.values is None:
            return None
        return knee_index(self.axis.values, [step_time_s(row) for row in self.rows])


def knee_index(x: Sequence[float], y: Sequence[float | None]) -> int | None:
    """Index of the knee of the points that have a value."""
    there = [(i, a, b) for i, (a, b) in enumerate(zip(x, y, strict=True)) if b is not None]
    best = find_knee([a for _, a, _ in there], [b for _, _, b in there])
    return None if best is None else there[best][0]


def curves(answer: Answer) -> tuple[Curve, ...]:
    """One curve per setting; of settings varied together, one."""
    varied = answer.study.varied
    if answer.study.zipped:
        return (_curve(answer.rows, range(len(varied)), ()),)
    held = [_held(answer, i) for i in range(len(varied))]
    found = []
    for i in range(len(varied)):
        others = [j for j in range(len(varied)) if j != i]
        rows = [r for r in answer.rows if all(r.point.settings[j].text == held[j] for j in others)]
        found.append(_curve(rows, [i], [(varied[j].path, held[j]) for j in others]))
    return tuple(found)


def _held(answer: Answer, i: int) -> str:
    """The value that the run has without the study, if it is one of those tried; else the first."""
    own = answer.own_values[i]
    same = (row for row in answer.rows if row.point.values[i] == own)
    row = next(same, answer.rows[0])
    return row.point.settings[i].text


def _curve(rows: Sequence[Row], settings: Sequence[int], held: Sequence[tuple[str, str]]) -> Curve:
    first = settings[0]
    numbers = _numbers([row.point.values[first] for row in rows])
    if numbers is not None:
        by_number = dict(zip(numbers, rows, strict=True))
        if len(by_number) == len(rows) or len(settings) == 1:  # equal numbers are equal runs
            numbers = sorted(by_number)
            rows = [by_number[number] for number in numbers]
        else:  # others vary beside it
            numbers = None
    texts = tuple("\n".join(r.point.settings[i].text for i in settings) for r in rows)
    path = "\n".join(rows[0].point.settings[i].path for i in settings)
    axis = Axis(path, texts, None if numbers is None else tuple(numbers))
    return Curve(axis, tuple(held), tuple(rows))


def _numbers(values: Sequence[Scalar]) -> list[float] | None:
    """The values, if all are numbers."""
    found = [float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return found if len(found) == len(values) else None


@dataclass(frozen=True)
class Plane:
    """The rows over two settings: `rows[i][j]` at the i-th value of `down`, the j-th of `along`."""

    along: Axis
    down: Axis
    rows: tuple[tuple[Row, ...], ...]


def plane(answer: Answer) -> Plane:
    """The rows of a two-way study; the first setting runs along, the second down."""
    assert answer.study.is_two_way
    by_texts = {tuple(s.text for s in row.point.settings): row for row in answer.rows}
    first, second = answer.study.varied
    along = _axis([by_texts[text, second.texts[0]] for text in first.texts], 0)
    down = _axis([by_texts[first.texts[0], text] for text in second.texts], 1)
    rows = tuple(tuple(by_texts[a, d] for a in along.texts) for d in down.texts)
    return Plane(along, down, rows)


def _axis(rows: Sequence[Row], i: int) -> Axis:
    return _curve(rows, [i], ()).axis
