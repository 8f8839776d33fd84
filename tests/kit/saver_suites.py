"""Our savers under the suite of `stategraph.testing`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest

from kit import cluster
from stategraph.checkpoint import InMemorySaver
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import SaverChecks, damage_sqlite

SCALE = int(os.environ.get("STATEGRAPH_CHECKS_SCALE", "1"))
SERVER = "STATEGRAPH_CHECKS_POSTGRES"
"""Tells the processes that the checks start where the server is."""
LONG = {
    case.check.name for case in SaverChecks().cases() if case.check.group in ("crash", "damage")
} | {"an_answer_is_taken_once_by_many_processes", "one_of_many_processes_wins_each_head"}
"""Checks that start many processes or damage many copies."""


class Ours(SaverChecks):
    """Checks of both modes are trials in one of them; in a database long checks are too, but for those of `quick`."""

    scale = SCALE
    quick: tuple[str, ...] = ()
    trials = "async"
    """The mode that `make trials` runs: memory in sync and SQLite in async every day."""

    def pytest_generate_tests(self, metafunc):
        if "case" in metafunc.fixturenames:
            long = LONG.difference(self.quick) if self.durable else ()
            is_trial = {case: case.check.name in long or (case.mode == self.trials and len(case.check.modes) > 1) for case in self.cases()}
            metafunc.parametrize("case", [pytest.param(case, id=case.name, marks=[pytest.mark.trial] * is_trial[case]) for case in is_trial])


class TestInMemorySaver(Ours):
    durable = False

    def open(self, folder):
        return InMemorySaver()


class TestSqliteSaver(Ours):
    quick = ("what_was_acknowledged_survives_a_kill", "damaged_bytes_are_never_believed")
    trials = "sync"

    def open(self, folder):
        return SqliteSaver.from_conn_string(str(folder / "threads.db"), synchronous="off")

    def damage(self, folder: Path, random: Random):
        return damage_sqlite(folder / "threads.db", random)

    def size(self, folder: Path):
        return sum(file.stat().st_size for file in folder.iterdir())

    @contextmanager
    def full(self, saver, room):
        connection = saver._database.connection
        (pages,), (size,) = (connection.execute(f"PRAGMA page_{what}").fetchone() for what in ("count", "size"))
        connection.execute(f"PRAGMA max_page_count = {pages + room // size}")
        yield
        connection.execute(f"PRAGMA max_page_count = {2**30}")


@pytest.mark.trial
class TestPostgresSaver(Ours):
    """A folder stands for a schema of the tests' own server."""

    emptied: Mapping[Path, str] = {}
    """Folders that stand for a schema in which the tables are already."""

    def test_saver(self, case, tmp_path):
        self.server()  # before any process is started, which is to find it
        if "size" in case.check.needs:  # what earlier tests have left would be reused, and not be seen to grow
            self.run(case, tmp_path)
            return
        with cluster.shared().emptied() as schema:
            self.emptied = {tmp_path / "storage": schema}
            self.run(case, tmp_path)

    def where(self, folder: Path):
        if folder in self.emptied:
            return self.emptied[folder]
        return f"{self.server()} options='-c search_path={self.schema(folder)}'"

    def server(self):
        if SERVER not in os.environ:
            os.environ[SERVER] = cluster.shared().address
        return os.environ[SERVER]

    def schema(self, folder: Path):
        return "checks_" + hashlib.sha1(str(folder).encode()).hexdigest()

    def connect(self, folder):
        return closing(psycopg.connect(self.where(folder), autocommit=True))

    def open(self, folder):
        if folder not in self.emptied:
            with self.connect(folder) as connection:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self.schema(folder)}")
        return PostgresSaver.from_conn_string(self.where(folder), pool_size=4)

    def tables(self, connection):
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() ORDER BY 1"
        )
        return [name for (name,) in found if "migrations" not in name]

    def size(self, folder: Path):
        with self.connect(folder) as connection:
            return sum(
                connection.execute(f"SELECT pg_total_relation_size('{name}')").fetchone()[0]
                for name in self.tables(connection)
            )

    def damage(self, folder: Path, random: Random):
        """One byte of a `bytea` altered or cut, or a row deleted."""
        with self.connect(folder) as connection:
            rows = {name: self.rows(connection, name) for name in self.tables(connection)}
            table = random.choice([name for name, found in rows.items() if found])
            row = random.choice(rows[table])
            columns = connection.execute(
                "SELECT column_name FROM information_schema.columns "
                f"WHERE table_name = '{table}' AND table_schema = current_schema() AND data_type = 'bytea' ORDER BY 1"
            ).fetchall()
            if not columns or random.random() < 0.2:
                connection.execute(f"DELETE FROM {table} WHERE ctid = %s", (row,))
                return f"deleted row {row} of {table}"
            (column,) = random.choice(columns)
            (data,) = connection.execute(f"SELECT {column} FROM {table} WHERE ctid = %s", (row,)).fetchone()
            data = data or b"x"
            at = random.randrange(len(data))
            altered = data[:at] + (bytes([data[at] ^ 1]) + data[at + 1 :] if random.random() < 0.7 else b"")
            try:
                connection.execute(f"UPDATE {table} SET {column} = %s WHERE ctid = %s", (altered, row))
            except psycopg.errors.UniqueViolation:
                return "altered nothing"
            return f"altered byte {at} of {column} of row {row} of {table}"

    def rows(self, connection, table):
        return [row for (row,) in connection.execute(f"SELECT ctid::text FROM {table} ORDER BY ctid")]
