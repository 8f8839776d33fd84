"""R9, R13, R16 and more of R6 to R11: checks of `stategraph.testing` on our savers, with another seed in every round."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from unittest import SkipTest

from kit.saver_suites import TestInMemorySaver, TestPostgresSaver, TestSqliteSaver

from stategraph.checkpoint.sql.sqlite_database import Database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, SaverChecks
from stategraph.testing.damage import Reading, _filled, _invented
from stategraph.testing.harness import Harness

from .campaign import Skipped, patched, trial


def checked(round, suite: type[SaverChecks], only):
    """Run some checks, sync and async."""
    mine = suite()
    mine.seed, mine.scale = round.random.getrandbits(32), 1
    for number, case in enumerate(mine.cases(only)):
        folder = round.folder / f"{suite.__name__}-{number}"
        folder.mkdir()
        try:
            mine.run(case, folder)
        except SkipTest as error:
            raise Skipped(f"{case.name}: {error}") from error
        except CheckFailed as error:
            raise CheckFailed(f"{case.name}, {suite.__name__}: {error}") from error
        round.count("checks")


@trial("R9", quick=2, full=1_000)
def clocks_that_jump(round):
    """The clock jumps by up to a year at every look, ids and times are in no order: the latest is what was committed
    last, and runs end as ever. In memory and SQLite; every tenth round in Postgres."""
    checked(round, TestSqliteSaver, ["clock"])
    checked(round, TestInMemorySaver, ["clock"])
    if round.number % 10 == 3:
        checked(round, TestPostgresSaver, ["clock"])


@trial("R11", quick=1, full=100)
def full_storages(round):
    """The suite's checks of storages without room."""
    checked(round, TestSqliteSaver, ["full"])


@trial("R13", quick=1, full=4_000)
def damaged_rows(round):
    """25 times a bit is flipped, a value cut, two rows swapped or one deleted in an SQLite file: every read gives what was
    stored or a typed error, other threads stay readable."""
    checked(round, TestSqliteSaver, ["damaged_bytes_are_never_believed"])
    round.count("damages", 25)


@trial("R13", quick=0, full=400)
def damaged_rows_postgres(round):
    """The same in Postgres."""
    checked(round, TestPostgresSaver, ["damaged_bytes_are_never_believed"])
    round.count("damages", 25)


@trial("R13", quick=1, full=1_000)
def rows_that_are_missing(round):
    """The same damages: nothing goes missing unseen, but a whole thread or namespace."""
    checked(round, TestSqliteSaver, ["nothing_goes_missing_unseen"])
    round.count("damages", 25)


@trial("R13", quick=13, full=40_000)
def damaged_files(round):
    """A byte of the SQLite file itself is changed, or its end is cut off: no read gives anything that was not stored."""
    suite = TestSqliteSaver()

    def made():
        with tempfile.TemporaryDirectory() as folder, Harness(suite, Path(folder), "sync") as desk:
            _filled(desk)
            was = Reading(desk)
            desk.close()
            return Path(folder, "threads.db").read_bytes(), was

    data, was = round.bench.once("file", made)
    random, changed = round.random, bytearray(data)
    at = random.randrange(len(changed))
    if random.random() < 0.1:
        del changed[at:]
    else:
        changed[at] ^= 1 << random.randrange(8)
    file = round.folder / "threads.db"
    file.write_bytes(changed)
    with ExitStack() as stack:
        desk = Harness(suite, round.folder, "sync")
        stack.callback(desk.__exit__)
        try:
            desk.__enter__()
        except Exception as error:
            if type(error).__name__ not in ("StorageError", "DamagedError"):
                raise CheckFailed(f"byte {at}: opening raised {type(error).__name__}: {error}") from error
            round.count("files refused")
            return
        now = Reading(desk, [*was.each])
        _invented(was, now)
        round.count("damages")
        round.count("told", bool(now.refused()))


@trial("R16", quick=2, full=700)
def hostile_texts(round):
    """Texts that mean something to SQL, patterns, paths and JSON in every id, name, value, filter and limit: SQLite
    answers as memory does."""
    checked(round, TestSqliteSaver, ["hostile"])


@trial("R16", quick=1, full=200)
def hostile_texts_postgres(round):
    """The same on Postgres."""
    checked(round, TestPostgresSaver, ["hostile_texts_are_only_texts"])


@trial("R16", quick=1, full=200)
def sql_texts_are_constants(round):
    """Whatever texts come, the statements sent to SQLite are constants of the product."""
    import stategraph.checkpoint.sql.sqlite_database as database
    import stategraph.checkpoint.sqlite as product

    said = set()

    class Cursor(sqlite3.Cursor):
        def execute(self, statement, *args):
            said.add(statement)
            return super().execute(statement, *args)  # type: ignore[arg-type]

    class Watched(sqlite3.Connection):
        def cursor(self):  # type: ignore[override]
            return super().cursor(Cursor)

        def execute(self, *args):
            return self.cursor().execute(*args)  # type: ignore[arg-type]

    def connect(self: Database, name, timeout):
        return sqlite3.connect(name, timeout=timeout, isolation_level=None, check_same_thread=False, factory=Watched)

    with patched(Database, "_connect", connect):
        checked(round, TestSqliteSaver, ["hostile_texts_are_only_texts", "prune", "copy"])
        with closing(SqliteSaver(":memory:")):
            pass
    known = constants_of(database) | constants_of(product)
    if said - known:
        raise CheckFailed(f"statements that are no constants: {sorted(said - known)[:3]}")
    round.count("statements", len(said))


def constants_of(module):
    """All texts in the constants of a module; not in its builtins, where whatever was shown last may hold itself."""
    return constants(value for name, value in vars(module).items() if name != "__builtins__")


def constants(values):
    """All texts in constants, tuples and dicts."""
    found = set()
    for value in values:  # type: ignore[attr-defined]
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, tuple):
            found |= constants(value)
        elif isinstance(value, dict):
            found |= constants(value.values())
    return found


