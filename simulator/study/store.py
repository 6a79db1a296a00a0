"""The memory of studies: an SQLite file with one row per point, written as points come.

A row is found again by run file and settings, and counts only if the run that these come to (its
digest) and the program are the same. Each row is one transaction: a study may be killed at any
moment, and several may write into one file.
"""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from simulator.errors import ConfigError, Place, Problem
from simulator.study.evaluate import Outcome, Status

_APPLICATION_ID = 0x636C7374  # "clst", in the header of the file (sqlite.org/fileformat2.html)
_VERSION = 1
_PATIENCE_S = 60.0  # while another study writes
_SCHEMA = f"""
CREATE TABLE points (
    run_file TEXT NOT NULL, settings TEXT NOT NULL,
    digest TEXT NOT NULL, program TEXT NOT NULL,
    status TEXT NOT NULL, reason TEXT NOT NULL, result TEXT, wall_s REAL NOT NULL,
    PRIMARY KEY (run_file, settings)
);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_VERSION};
"""


@dataclass(frozen=True, slots=True)
class Key:
    """Where a point's row is found: the run file, and all that is laid over it as JSON."""

    run_file: str
    settings: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A row as it stands in the file."""

    digest: str
    program: str
    outcome: Outcome


class Store:
    """An open file of results."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self.path = connection, path

    def read(self, run_file: str) -> dict[Key, Stored]:
        """All rows of one run file."""
        rows = self._connection.execute(
            "SELECT settings, digest, program, status, reason, result, wall_s FROM points"
            " WHERE run_file = ?",
            (run_file,),
        )
        return {Key(run_file, row[0]): _stored(*row[1:]) for row in rows}

    def write(self, key: Key, stored: Stored) -> None:
        """Put a row in, in place of an older one of the same key."""
        outcome = stored.outcome
        result = None if outcome.result is None else json.dumps(outcome.result, allow_nan=False)
        self._connection.execute(
            "INSERT OR REPLACE INTO points VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (key.run_file, key.settings, stored.digest, stored.program, outcome.status,
             outcome.reason, result, outcome.wall_s),
        )  # fmt: skip


def _stored(
    digest: str, program: str, status: str, reason: str, result: str | None, wall_s: float
) -> Stored:
    assert status in get_args(Status)
    plain = None if result is None else json.loads(result)
    return Stored(digest, program, Outcome(cast(Status, status), reason, plain, wall_s))


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """Open or make the file.

    Raises `ConfigError` where `path` holds something else or the system refuses.
    """
    try:
        connection = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
        try:
            _prepare(connection, path)
            yield Store(connection, path)
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise _refused(path, f"cannot be used as a file of results: {error}") from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the table in a new file; see that an old one is ours."""
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        for statement in filter(str.strip, _SCHEMA.split(";")):
            connection.execute(statement)
    connection.execute("COMMIT")
    if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
        raise _refused(path, "is an SQLite file of another program")
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    if found != _VERSION:
        message = f"has format {found}; this program reads {_VERSION}: name another file"
        raise _refused(path, message)


def _refused(path: Path, message: str) -> ConfigError:
    return ConfigError(Problem(message, place=Place(f"--store {os.fspath(path)}")))
