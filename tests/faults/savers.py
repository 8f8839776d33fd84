"""R36 and more: what a saver promises beside storing: overrides are called, files are watched, damage is told."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import threading
from contextlib import closing
from itertools import product
from pathlib import Path

from kit.counting_saver import SYNC, THREAD, State, counting, play
from kit.graphs import chain_of
from kit.saver_suites import TestSqliteSaver

from stategraph.checkpoint import DamagedError, InMemorySaver, StorageError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.cache import SqliteCache
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import CheckFailed, Commits, assert_same
from stategraph.testing.damage import THREADS, Reading, _filled, _invented, _missed
from stategraph.testing.harness import Harness

from .campaign import Round, trial
from .races import Gate


@trial("R36", quick=6, full=400)
def overridden_methods(round: Round) -> None:
    """A subclass of a saver overrides some of its methods, sync or async: a run with questions, answers, a delivery that
    comes twice and a fork calls each of them, and leaves the same history as the class itself."""
    random = round.random
    asynchronous = random.random() < 0.5
    names = tuple(random.sample([("a" if asynchronous else "") + name for name in SYNC], random.randint(1, len(SYNC))))
    world = "async" if asynchronous else random.choice(("sync", "async"))
    base = random.choice((InMemorySaver, SqliteSaver))
    cls = counting(base, names)
    if base is SqliteSaver:
        with SqliteSaver.from_conn_string(":memory:") as plain, cls.from_conn_string(":memory:") as saver:  # type: ignore[attr-defined]
            expected, found = play(plain, world), play(saver, world)
    else:
        saver = cls()
        expected, found = play(InMemorySaver(), world), play(saver, world)
    assert_same(found, expected, f"the history of a {base.__name__} that overrides {', '.join(names)}")
    assert_same([name for name in names if not saver.calls[name]], [], f"methods that were not called, {world}")
    round.count("overridden methods", len(names))


@trial("R39", quick=4, full=50)
def vanished_files(round: Round) -> None:
    """An SQLite file or its journal is deleted, moved away or replaced while a saver and a store have it open: the next
    commit and the next put are refused, so nothing is told stored that nobody can find."""
    random = round.random
    name, how = random.choice(("threads.db", "threads.db-wal")), random.choice(("deleted", "moved", "replaced"))
    file = round.folder / name
    with closing(SqliteSaver(round.folder / "threads.db")) as saver, closing(SqliteStore(round.folder / "threads.db")) as store:
        run = Commits(lambda method, *args: getattr(saver, method)(*args), saver)
        for step in range(random.randint(1, 5)):
            run.step(str(step), a=step)
            store.put(("a",), str(step), {"step": step})
        if how == "moved":
            file.rename(round.folder / "elsewhere")
        else:
            file.unlink()
        if how == "replaced":
            file.write_bytes(b"")
        for what, write in (("commit", lambda: run.step("lost", a=0)), ("put", lambda: store.put(("a",), "lost", {}))):
            try:
                write()
            except StorageError:
                round.count("refused")
            else:
                raise CheckFailed(f"{name} was {how}, and a {what} is told stored")


FLIPS = 25


@trial("R33", quick=2, full=200)
def flipped_bits(round: Round) -> None:
    """25 times a bit of an SQLite file is flipped, anywhere, indexes and page headers included: what is read, listed,
    copied and pruned is what was stored, or `DamagedError` or `StorageError` says that it is not: no shorter history,
    and no error without a word on damage."""
    suite = TestSqliteSaver()

    def made() -> tuple[bytes, Reading]:
        with tempfile.TemporaryDirectory() as folder, Harness(suite, Path(folder), "sync") as desk:
            _filled(desk)
            was = Reading(desk)
            desk.close()
            return Path(folder, "threads.db").read_bytes(), was

    data, was = round.bench.once("flipped file", made)
    for number in range(FLIPS):
        changed = bytearray(data)
        at = round.random.randrange(len(changed))
        changed[at] ^= 1 << round.random.randrange(8)
        folder = round.folder / f"{number}"
        folder.mkdir()
        (folder / "threads.db").write_bytes(changed)
        try:
            with Harness(suite, folder, "sync") as desk:
                _read_all(desk, was)
        except (DamagedError, StorageError):
            round.count("files refused")
        except CheckFailed as error:
            raise CheckFailed(f"page {at // 4096 + 1}, byte {at % 4096}: {error}") from error
        except Exception as error:
            raise CheckFailed(f"page {at // 4096 + 1}, byte {at % 4096}: {type(error).__name__}: {error}") from error
        round.count("flipped bits")


def _read_all(desk: Harness, was: Reading):
    """All that is read, and copied or kept by pruning, is what was stored, or it is told."""
    now = Reading(desk, [*was.each])
    _invented(was, now)
    _missed(was, now)
    for thread in THREADS:
        whole = [found.checkpoint for found in was.lists[thread]]
        try:
            desk.saver.copy_thread(thread, f"copy of {thread}")
            copied = desk.listed(f"copy of {thread}")
            names = {found.config["configurable"]["checkpoint_ns"] for found in copied}  # a whole one may be missing
            kept = [found for found in was.lists[thread] if found.config["configurable"]["checkpoint_ns"] in names]
            assert_same([found.checkpoint for found in copied], [found.checkpoint for found in kept], "a copy")
        except (DamagedError, StorageError):
            pass
        except ValueError as error:
            if "there is no thread" not in str(error):  # a whole thread that is missing may have been deleted
                raise
        try:
            desk.saver.prune([thread], keep_last=2)
            left = [found.checkpoint for found in desk.listed(thread)]
            assert_same([each for each in left if each not in whole], [], "what pruning has left")
            assert_same([each for each in whole[:1] if left and each not in left], [], "the newest, after pruning")
        except (DamagedError, StorageError):
            pass


def opening(folder, gate, rounds):
    """Open new files, each at the same moment as all others do; the errors."""
    errors = []
    for turn in range(rounds):
        gate()
        for cls in (SqliteSaver, SqliteStore, SqliteCache):
            try:
                cls(f"{folder}/{turn}-{cls.__name__}.db").close()
            except Exception as error:
                errors.append(f"{cls.__name__}: {type(error).__name__}: {error}")
    return errors


@trial("R30", quick=2, full=20)
def opened_at_once(round: Round) -> None:
    """Eight processes open ten new SQLite files at the same moment, as savers, stores and caches, and one file is opened
    while another program writes to it: no error."""
    gate = Gate(round.folder / "gate", 8)
    for ended in round.bench.run(*((opening, str(round.folder), gate, 10) for _ in range(8))):
        assert_same((ended.error, ended.result), ("", []), "errors of a process that opens")
    written = sqlite3.connect(round.folder / "written.db", isolation_level=None, check_same_thread=False)
    with closing(written):
        written.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.2, written.execute, ["COMMIT"])
        timer.start()
        try:
            SqliteSaver(round.folder / "written.db").close()
        finally:
            timer.join()
    round.count("opens", 8 * 10 * 3 + 1)


@trial("R31", quick=3, full=100)
def losers(round: Round) -> None:
    """While a run goes on, another with the same outcome moves the thread on, through a saver of its own: the loser is told
    `CheckpointConflictError`, in each durability, sync and async."""
    for durability, asynchronous in product(("sync", "async", "exit"), (False, True)):
        file = round.folder / f"{durability}-{asynchronous}.db"
        with closing(SqliteSaver(file)) as mine, closing(SqliteSaver(file)) as theirs:
            told = lost_race(mine, theirs, durability, asynchronous)
        assert_same(told, "CheckpointConflictError", f"what the loser is told, durability {durability!r}")
        round.count("races")


def logging(saver, first):
    """A graph of two nodes; the first is given."""
    return chain_of(State, first=first, second=lambda state: {"log": ["y"]}).compile(checkpointer=saver)


def lost_race(mine, theirs, durability, asynchronous):
    """The name of the error that the loser gets."""
    won = []

    def overtaken(state):
        if not won:
            won.append(logging(theirs, lambda state: {"log": ["x"]}).invoke(None, THREAD, durability=durability))
        return {"log": ["x"]}

    app = logging(mine, overtaken)
    app.invoke({"log": ["in"]}, THREAD, interrupt_before=["first"])
    try:
        if asynchronous:
            asyncio.run(app.ainvoke(None, THREAD, durability=durability))
        else:
            app.invoke(None, THREAD, durability=durability)
    except Exception as error:
        return type(error).__name__
    return "ok"
