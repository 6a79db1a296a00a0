"""The file of results: what is written comes back, and only into a file that is ours."""

import sqlite3
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.study.evaluate import Outcome
from simulator.study.store import Key, Stored, open_store

KEY = Key("/run.yaml", '["a=1"]')
ROW = Stored("d1", "1.0+x", Outcome("ok", "", {"step_time_s": 1.5}, 0.25))


def test_rows_come_back_after_closing(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    with open_store(path) as store:
        assert store.read("/run.yaml") == {}
        store.write(KEY, ROW)
    with open_store(path) as store:
        assert store.read("/run.yaml") == {KEY: ROW}
        assert store.read("/other.yaml") == {}


def test_a_key_has_one_row(tmp_path: Path) -> None:
    newer = Stored("d2", "1.0+y", Outcome("invalid", "does not divide"))
    with open_store(tmp_path / "study.sqlite") as store:
        store.write(KEY, ROW)
        store.write(KEY, newer)
        assert store.read("/run.yaml") == {KEY: newer}


def test_a_row_is_there_for_others_at_once(tmp_path: Path) -> None:
    """It is committed, not held until the file is closed."""
    path = tmp_path / "study.sqlite"
    with open_store(path) as store, open_store(path) as other:
        store.write(KEY, ROW)
        assert other.read("/run.yaml") == {KEY: ROW}


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 40)
    with pytest.raises(ConfigError, match="cannot be used as a file of results"), open_store(path):
        pass
    assert path.read_text().startswith("these are my notes")


def test_databases_of_others_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE points (x)")
    connection.close()
    with pytest.raises(ConfigError, match="of another program"), open_store(path):
        pass


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    with open_store(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.close()
    with pytest.raises(ConfigError, match="has format 7"), open_store(path):
        pass


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--store"), open_store(tmp_path / "none" / "s.sqlite"):
        pass
