"""What the pictures show, and that they are drawn."""

from pathlib import Path

import pytest
from study_rows import answer, result

from simulator.study.charts import write_curves
from simulator.study.curves import curves, plane, step_time_s
from simulator.study.evaluate import Outcome
from simulator.study.heatmaps import write_heatmaps
from simulator.study.varied import Varied
from simulator.study.whatif import Answer

RATES = Varied("rate", ("8", "1", "2", "4"))
LOADS = Varied("load", ("1", "2"))


def outcome(rate: float, load: float = 1.0) -> Outcome:
    if rate == 2 and load == 2:
        return Outcome("impossible", "deadlock")
    return Outcome("ok", "", result(max(2.0, 8 * load / rate), dp_s=1 / rate, fits=load < 2))


TWO_WAY = answer([RATES, LOADS], outcome, own=(4.0, 1.0))


def test_one_curve_per_setting_others_at_the_runs_own_value() -> None:
    by_rate, by_load = curves(TWO_WAY)
    assert by_rate.axis.values == (1.0, 2.0, 4.0, 8.0)
    assert by_rate.held == (("load", "1"),)
    assert [step_time_s(row) for row in by_rate.rows] == [8.0, 4.0, 2.0, 2.0]
    assert by_rate.knee() == 2
    assert by_load.held == (("rate", "4"),)
    assert [step_time_s(row) for row in by_load.rows] == [2.0, 4.0]


def test_the_first_value_where_the_run_has_another() -> None:
    _, by_load = curves(answer([RATES, LOADS], outcome, own=(5.0, None)))
    assert by_load.held == (("rate", "8"),)


def test_a_plane() -> None:
    found = plane(TWO_WAY)
    assert (found.along.values, found.down.values) == ((1.0, 2.0, 4.0, 8.0), (1.0, 2.0))
    times = [[step_time_s(row) for row in line] for line in found.rows]
    assert times == [[8.0, 4.0, 2.0, 2.0], [16.0, None, 4.0, 2.0]]


def test_settings_varied_together_make_one_curve() -> None:
    (curve,) = curves(answer([RATES, Varied("load", ("1", "1", "2", "2"))], outcome, zipped=True))
    assert curve.axis.texts == ("1\n1", "2\n2", "4\n2", "8\n1")
    assert curve.axis.path == "rate\nload"


def test_names_stand_as_listed_and_have_no_knee() -> None:
    named = answer([Varied("node", ("b", "a", "c"))], lambda node: Outcome("ok", "", result(1.0)))
    (curve,) = curves(named)
    assert (curve.axis.texts, curve.axis.values, curve.knee()) == (("b", "a", "c"), None, None)


def test_equal_numbers_are_drawn_once() -> None:
    (curve,) = curves(answer([Varied("rate", ("1", "1.0", "2"))], outcome))
    assert curve.axis.values == (1.0, 2.0)


PNG, SVG = b"\x89PNG", b"<?xml"


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures_are_written_and_stay_the_same(ending: str, tmp_path: Path) -> None:
    for name, write in (("curves", write_curves), ("map", write_heatmaps)):
        first, second = (tmp_path / f"{name}{i}.{ending}" for i in range(2))
        write(TWO_WAY, first, "a study of $x$")
        write(TWO_WAY, second, "a study of $x$")
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(PNG if ending == "png" else SVG)


@pytest.mark.parametrize(
    "study",
    [
        answer([Varied("rate", ("1",))], outcome),
        answer([Varied("rate", ("1", "2"))], lambda rate: Outcome("invalid", "no")),
        answer([Varied("node", ("a", "b"))], lambda node: Outcome("ok", "", result(1.0, pp_s=1.0))),
        answer([Varied("n", tuple(map(str, range(1, 30))))], lambda n: outcome(n)),
    ],
    ids=["one point", "no result", "names", "many"],
)
def test_pictures_of_odd_studies(study: Answer, tmp_path: Path) -> None:
    write_curves(study, tmp_path / "a.png", "odd")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)


def test_the_picture_shows_the_knee(tmp_path: Path) -> None:
    write_curves(answer([RATES], outcome), tmp_path / "a.svg", "a study")
    write_curves(answer([LOADS], lambda load: outcome(8, load)), tmp_path / "b.svg", "a study")
    assert "knee: 4" in (tmp_path / "a.svg").read_text()
    assert "knee" not in (tmp_path / "b.svg").read_text()
