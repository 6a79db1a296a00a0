"""Rows as CSV, Parquet and JSON, and what the terminal shows of them."""

import csv
import io
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from study_rows import answer, result

from simulator.study.evaluate import Outcome
from simulator.study.rows import answer_json, columns, write_csv, write_parquet
from simulator.study.summary import print_study, setting_names
from simulator.study.varied import Varied

RATES = Varied("cluster.fabric.link_bandwidth", ("1", "2", "4", "8"))
NODES = Varied("cluster.num_nodes", ("2", "3"))


def outcome(rate: float, nodes: float) -> Outcome:
    """max(2, 8 / rate) seconds on 2 nodes; 3 cannot be."""
    if nodes == 3:
        return Outcome("invalid", "3 does not divide 32")
    return Outcome("ok", "", result(max(2.0, 8 / rate), dp_s=8 / rate, fits=rate > 1))


ANSWER = answer([RATES, NODES], outcome, own=(4.0, 2.0))


def test_columns() -> None:
    row = columns(ANSWER.rows[2])
    assert row["point"] == 2
    assert (row[RATES.path], row[NODES.path]) == (2.0, 2.0)
    assert (row["status"], row["step_time_s"], row["mfu"]) == ("ok", 4.0, 0.125)
    assert (row["dp_exposed_s"], row["tp_exposed_s"]) == (4.0, 0.0)
    empty = columns(ANSWER.rows[1])
    assert list(empty) == list(row)
    assert (empty["status"], empty["reason"]) == ("invalid", "3 does not divide 32")
    assert empty["step_time_s"] is None


def test_csv(tmp_path: Path) -> None:
    write_csv(ANSWER, tmp_path / "a.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text())))
    assert len(rows) == 8
    assert float(rows[0]["step_time_s"]) == 8.0
    assert (rows[0]["fits"], rows[2]["fits"]) == ("false", "true")
    assert (rows[1]["step_time_s"], rows[1]["reason"]) == ("", "3 does not divide 32")


def test_parquet(tmp_path: Path) -> None:
    write_parquet(ANSWER, tmp_path / "a.parquet")
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.num_rows == 8
    assert str(table.schema.field("step_time_s").type) == "double"
    assert str(table.schema.field("fits").type) == "bool"
    assert table.column("step_time_s").to_pylist()[:2] == [8.0, None]


def test_parquet_of_values_of_several_types(tmp_path: Path) -> None:
    mixed = answer([Varied("a", ("1", "fast"))], lambda a: Outcome("ok", "", result(1.0)))
    write_parquet(mixed, tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").column("a").to_pylist() == ["1.0", "fast"]


def test_json() -> None:
    data = answer_json(ANSWER)
    assert data["vary"] == {RATES.path: list(RATES.texts), NODES.path: list(NODES.texts)}
    assert data["points"][0]["settings"][RATES.path] == {"asked": "1", "value": 1.0}
    assert data["points"][0]["result"]["step_time_s"] == 8.0
    assert data["points"][1]["result"] is None


def test_the_terminal() -> None:
    console = Console(file=io.StringIO(), width=90)
    print_study(ANSWER, console, "a study")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "8 points" in text
    assert "1.0 GiB too much" in text
    assert "invalid (4 points): 3 does not divide 32" in text
    assert " ".join(text.split()).endswith(
        "cluster.fabric.link_bandwidth: the knee is at 4: the step changes by -75.0 % from 1 to "
        "there, by +0.0 % from there to 8"
    )


def test_a_narrow_terminal_drops_whole_columns() -> None:
    console = Console(file=io.StringIO(), width=40)
    print_study(ANSWER, console, "a study")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "bubble" not in text
    assert "GiB" not in text
    assert "1 2 8 s 6.2 %" in [" ".join(line.split()) for line in text.splitlines()]


def test_names_of_settings() -> None:
    assert setting_names(["a.x", "b.y"]) == ["x", "y"]
    assert setting_names(["a.x", "b.x"]) == ["a.x", "b.x"]
