"""A study from end to end: what is simulated, what is remembered, what is noticed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.study import whatif
from simulator.study.evaluate import Outcome, Task, evaluate
from simulator.study.processes import Done, run_in_processes
from simulator.study.store import open_store
from simulator.study.varied import Varied
from simulator.study.whatif import Answer, Study, run_study

TOY = Path(__file__).parents[4] / "examples/toy-2-nodes.yaml"
LINK = "cluster.fabric.link_bandwidth"


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TOY.read_text())
    return path


class Simulated(list[int]):
    """Stands in for the simulator; remembers the points that it was asked for."""

    def __call__(self, tasks: Iterable[Task]) -> Iterator[Done]:
        for task in tasks:
            self.append(task.number)
            yield task, Outcome("ok", "", {"step_time_s": float(task.number)})


def study(run_file: Path, *texts: str, over: tuple[str, ...] = (), fold: bool = True) -> Study:
    return Study(str(run_file), over, (Varied(LINK, texts),), fold=fold)


def answer(asked: Study, simulated: Simulated) -> Answer:
    with open_store(Path(asked.run_file).with_suffix(".sqlite")) as store:
        return run_study(asked, store, simulated)


def test_a_point_is_simulated_once(run_file: Path) -> None:
    simulated = Simulated()
    first = answer(study(run_file, "1GB/s", "2GB/s"), simulated)
    assert (simulated, first.num_reused, first.notes) == ([0, 1], 0, ())
    again = answer(study(run_file, "1GB/s", "2GB/s"), simulated)
    assert (simulated, again.num_reused, again.rows) == ([0, 1], 2, first.rows)


def test_a_longer_study_simulates_what_is_new(run_file: Path) -> None:
    answer(study(run_file, "1GB/s", "2GB/s"), Simulated())
    simulated = Simulated()
    longer = answer(study(run_file, "1GB/s", "3GB/s", "2GB/s"), simulated)
    assert (simulated, longer.num_reused) == ([1], 2)


def test_a_study_cut_short_goes_on(run_file: Path) -> None:
    def cut_short(tasks: Iterable[Task]) -> Iterator[Done]:
        yield from Simulated()(task for task in tasks if task.number == 0)
        raise KeyboardInterrupt

    asked = study(run_file, "1GB/s", "2GB/s", "3GB/s")
    with open_store(run_file.with_suffix(".sqlite")) as store, pytest.raises(KeyboardInterrupt):
        run_study(asked, store, cut_short)
    simulated = Simulated()
    assert [row.number for row in answer(asked, simulated).rows] == [0, 1, 2]
    assert simulated == [1, 2]


def test_other_settings_are_other_points(run_file: Path) -> None:
    answer(study(run_file, "1GB/s"), Simulated())
    for other in (
        study(run_file, "1GB/s", over=("seed=1",)),
        study(run_file, "1GB/s", fold=False),
    ):
        simulated = Simulated()
        answer(other, simulated)
        assert simulated == [0]


def test_a_changed_run_file_is_noticed(run_file: Path) -> None:
    answer(study(run_file, "1GB/s", "2GB/s"), Simulated())
    run_file.write_text(run_file.read_text().replace("dgx-h100", "dgx-h200"))
    simulated = Simulated()
    found = answer(study(run_file, "1GB/s", "2GB/s"), simulated)
    assert simulated == [0, 1]
    assert len(found.notes) == 1
    assert "run.yaml (or a file it names) has changed: 2 points" in found.notes[0]
    assert answer(study(run_file, "1GB/s", "2GB/s"), simulated).notes == ()


def test_a_comment_changes_nothing(run_file: Path) -> None:
    answer(study(run_file, "1GB/s"), Simulated())
    run_file.write_text("# the same run\n" + run_file.read_text())
    assert answer(study(run_file, "1GB/s"), Simulated()).num_reused == 1


def test_a_changed_program_is_noticed(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(study(run_file, "1GB/s"), Simulated())
    monkeypatch.setattr(whatif, "program_fingerprint", lambda: "9.9+new")
    simulated = Simulated()
    found = answer(study(run_file, "1GB/s"), simulated)
    assert simulated == [0]
    assert "clustersim has changed (now 9.9+new): 1 points" in found.notes[0]


def test_what_failed_is_tried_again(run_file: Path) -> None:
    def failing(tasks: Iterable[Task]) -> Iterator[Done]:
        return ((task, Outcome("failed", "out of memory")) for task in tasks)

    asked = study(run_file, "1GB/s")
    with open_store(run_file.with_suffix(".sqlite")) as store:
        assert run_study(asked, store, failing).rows[0].outcome.reason == "out of memory"
    simulated = Simulated()
    assert answer(asked, simulated).rows[0].outcome.status == "ok"
    assert simulated == [0]


def test_invalid_points_are_rows_and_nothing_is_simulated(run_file: Path) -> None:
    simulated = Simulated()
    found = answer(study(run_file, "1GB/s", "fast"), simulated)
    assert [row.outcome.status for row in found.rows] == ["ok", "invalid"]
    assert simulated == [0]


def test_a_run_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        answer(study(tmp_path / "none.yaml", "1GB/s"), Simulated())


def test_progress_counts_points(run_file: Path) -> None:
    told: list[tuple[int, int]] = []
    with open_store(run_file.with_suffix(".sqlite")) as store:
        run_study(
            study(run_file, "1GB/s", "fast"), store, Simulated(), lambda *now: told.append(now)
        )
    assert told[0] == (0, 2)
    assert told[-1] == (2, 2)


# real processes


def tasks(run_file: Path, count: int) -> list[Task]:
    from simulator.loading import load_run

    rates = [f"{LINK}={10 + i}GB/s" for i in range(count)]
    return [Task(i, load_run(run_file, [rate])) for i, rate in enumerate(rates)]


def test_processes_give_what_one_gives(run_file: Path) -> None:
    asked = tasks(run_file, 5)
    here = {task.number: evaluate(task).result for task in asked}
    there = {t.number: outcome.result for t, outcome in run_in_processes(asked, 2)}
    assert there == here
    assert {t.number: o.result for t, o in run_in_processes(asked, 1)} == here


@pytest.mark.parametrize("pause_s", [0.0, 1.0], ids=["at once", "before the next is handed out"])
def test_a_process_that_dies_loses_no_point(run_file: Path, pause_s: float) -> None:
    """After the first outcome its processes are killed while others wait: all are simulated."""
    before = set(multiprocessing.active_children())
    asked, numbers = tasks(run_file, 12), []
    for task, outcome in run_in_processes(asked, 2):
        assert outcome.status == "ok"
        if not numbers:
            for child in set(multiprocessing.active_children()) - before:
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(pause_s)
        numbers.append(task.number)
    assert sorted(numbers) == list(range(12))


def test_a_fault_of_the_program_is_a_row(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(run: object, fold: bool) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("simulator.study.evaluate.simulate", broken)
    (outcome,) = [evaluate(task) for task in tasks(run_file, 1)]
    assert outcome.status == "failed"
    assert outcome.reason == "internal error: ZeroDivisionError: division by zero"
