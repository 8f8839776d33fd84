"""R10, R11: a statement fails, a signal comes, the caller is cancelled, the disk is full: what is stored is whole, nothing
is left running, and the next run goes on."""

from __future__ import annotations

import asyncio
import errno
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from stategraph import InMemorySaver
from stategraph.checkpoint.errors import DamagedError, StorageError
from stategraph.checkpoint.sql.sqlite_database import Database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, Ledger, assert_same
from stategraph.testing.graphs import shown
from stategraph.testing.harness import Mode

from .campaign import Skipped, patched, trial
from .stages import carry_through, config, journey, sqlite

ROUNDS, ASK = 4, 2


class Trap:
    """Does something at the n-th statement, before it or after it.

    Args:
        at: which; 0 never.
        spring: what to do; may raise.
    """

    def __init__(self, at=0, spring=None, after=False):
        self.at, self.spring, self.after = at, spring, after
        self.passed = 0

    @contextmanager
    def set(self):
        """Inside, databases that are opened run into it."""
        trap = self

        class Cursor(sqlite3.Cursor):
            def execute(self, *args):
                trap.passed += 1
                here = trap.passed == trap.at
                if here and not trap.after and trap.spring is not None:
                    trap.spring()
                done = super().execute(*args)
                if here and trap.after and trap.spring is not None:
                    trap.spring()
                return done

        class Connection(sqlite3.Connection):
            def cursor(self):  # type: ignore[override]
                return super().cursor(Cursor)

            def execute(self, *args):
                return self.cursor().execute(*args)

        def connect(database, name, timeout):
            return sqlite3.connect(
                name, timeout=timeout, isolation_level=None, check_same_thread=False, factory=Connection
            )

        with patched(Database, "_connect", connect):
            yield


def expected(round):
    """The history that an undisturbed journey leaves."""

    def make():
        app = journey(InMemorySaver(), Ledger(round.folder / "expected"), ASK)
        with Mode("sync") as world:
            carry_through(app, {"left": ROUNDS, "log": []}, config(), world, "sync")
        return shown([*app.get_state_history(config())])

    return round.bench.once("undisturbed", make)


def judge(round, saver, world, durability, where):
    """What is stored is whole, and the journey goes on to its end."""
    app = journey(saver, Ledger(round.folder / "ledger"), ASK)
    until = time.monotonic() + 10
    while saver._database.connection.in_transaction:  # what a cancelled call has begun may end on its thread
        if time.monotonic() > until:
            raise CheckFailed(f"{where}: a transaction was left open")
        time.sleep(0.001)
    wanted = [{**row, "tasks": None, "next": None} for row in expected(round)]
    rows = [{**row, "tasks": None, "next": None} for row in shown([*app.get_state_history(config())])]
    if durability != "exit":
        assert_same(rows, wanted[len(wanted) - len(rows) :], f"{where}: what is stored")
    carry_through(app, {"left": ROUNDS, "log": []}, config(), world, durability)
    end = shown([*app.get_state_history(config())])
    assert_same(end[0]["values"], expected(round)[0]["values"], f"{where}: state in the end")
    if durability != "exit":
        assert_same(end, expected(round), f"{where}: history in the end")


def left_running(before):
    """Threads that do not end; the engine's own are kept for the next run."""
    kept = ("stategraph", "asyncio_")  # of the pool, and of the event loop, which is closed after the round
    more = [each for each in threading.enumerate() if each not in before and not each.name.startswith(kept)]
    for each in more:
        each.join(1)
    return [each.name for each in more if each.is_alive()]


def io_error():
    raise sqlite3.OperationalError("disk I/O error")


def no_space():
    raise sqlite3.OperationalError("database or disk is full")


def os_error():
    raise OSError(errno.EIO, "Input/output error")


def interrupted():
    raise KeyboardInterrupt


ERRORS = {
    "EIO": (io_error, StorageError),
    "ENOSPC": (no_space, StorageError),
    "OSError": (os_error, OSError),
    "KeyboardInterrupt": (interrupted, KeyboardInterrupt),
}


@trial("R10", quick=2, full=400)
def failing_statements(round):
    """The k-th statement of a journey fails, before it was done or after, by EIO, ENOSPC, an OSError or Ctrl-C, for all k
    (every 9th at first): a typed error, whole steps, no thread left, and the next call goes on."""
    random = round.random
    name = [*ERRORS][round.number % 4]
    spring, kind = ERRORS[name]
    world_name = "sync" if name == "KeyboardInterrupt" else random.choice(["sync", "async"])
    durability, after = random.choice(["sync", "sync", "async", "exit"]), random.random() < 0.3
    with Mode(world_name) as world:
        dry = Trap()
        _tried(round, world, durability, dry)
        step = 9 if round.number < 8 else 1
        for at in range(1 + random.randrange(step), dry.passed + 1, step):
            trap = Trap(at, spring, after)
            where = f"{name} {'after' if after else 'at'} statement {at} of {dry.passed}, {world_name}, {durability}"
            before = {*threading.enumerate()}
            try:
                _tried(round, world, durability, trap, where)
            except CheckFailed:
                raise
            except kind:
                pass
            except BaseException as error:
                raise CheckFailed(f"{where}: expected {kind.__name__}, got {type(error).__name__}: {error}") from error
            left = left_running(before)
            if left:
                raise CheckFailed(f"{where}: threads were left running: {left}")
            round.count("faults", trap.passed >= at)


def _tried(round, world, durability, trap: Trap, where="no fault"):
    """A journey into a trap, and what comes after it.

    Raises:
        BaseException: what the caller of the run was told.
    """
    told = None
    with trap.set():
        try:
            saver = SqliteSaver(":memory:", synchronous="off")
        except (StorageError, OSError, sqlite3.Error, KeyboardInterrupt):
            return  # it could not be opened: nothing is stored
    try:
        app = journey(saver, Ledger(round.folder / "ledger"), ASK)
        try:
            carry_through(app, {"left": ROUNDS, "log": []}, config(), world, durability)
        except BaseException as error:
            told = error
        judge(round, saver, world, durability, where)
    finally:
        saver.close()
    if told is not None:
        raise told


# -- signals ----------------------------------------------------------------------------------------------------


class SignalAt:
    """Sends this process a signal at the n-th call of any function of the main thread.

    Args:
        at: which; None never.
    """

    def __init__(self, number, at):
        self.number, self.at, self.calls = number, at, 0

    def _count(self, _frame, event, _arg):
        if event in ("call", "c_return"):  # where Python looks for signals; never before a lock's __exit__
            self.calls += 1
            if self.calls == self.at:
                sys.setprofile(None)
                signal.raise_signal(self.number)

    def __enter__(self):
        def end(*_):
            raise SystemExit(143)

        self._old = signal.signal(signal.SIGTERM, end) if self.number == signal.SIGTERM else None
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        if self._old is not None:
            signal.signal(signal.SIGTERM, self._old)


@trial("R10", quick=15, full=10_000)
def signals(round):
    """Ctrl-C or SIGTERM comes at any call of the main thread: the same."""
    random = round.random
    signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio may have been stopped before it put it back
    number, ends = random.choice([(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
    kind, durability = random.choice(["sync", "async"]), random.choice(["sync", "sync", "async", "exit"])
    if kind == "async":
        number, ends = signal.SIGINT, KeyboardInterrupt
    most = round.bench.once((kind, durability), lambda: _signalled(round, kind, durability, number, None, ""))
    at = random.randrange(1, most + 1)
    where = f"{signal.Signals(number).name} at call {at} of {most}, {kind}, {durability}"
    before = {*threading.enumerate()}
    try:
        _signalled(round, kind, durability, number, at, where)
    except ends:
        round.count("signals")
    except DamagedError:  # a signal inside a hook of the unpacker is lost to Python; nothing else is
        round.count("signals told as damage")
    left = left_running(before)
    if left:
        raise CheckFailed(f"{where}: threads were left running: {left}")


def _signalled(round, kind, durability, number, at, where):
    told = None
    saver = SqliteSaver(":memory:", synchronous="off")
    try:
        app = journey(saver, Ledger(round.folder / "ledger"), ASK)
        sent = SignalAt(number, at)

        async def all_of_it():
            # A signal inside a callback of asyncio's own makes it complain; the caller is told all the same.
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            given = {"left": ROUNDS, "log": []}
            with sent:
                await app.ainvoke(given, config(), durability=durability)
                await app.ainvoke(None, config(), durability=durability)

        try:
            if kind == "sync":
                with sent:
                    app.invoke({"left": ROUNDS, "log": []}, config(), durability=durability)
                    app.invoke(None, config(), durability=durability)
            else:
                asyncio.run(all_of_it())
        except (KeyboardInterrupt, SystemExit, DamagedError) as error:
            told = error.with_traceback(None)  # which would keep alive what was left half-way
            del error
        with Mode("sync") as world:
            judge(round, saver, world, durability, where)
    finally:
        saver.close()
    if told is not None:
        raise told
    return sent.calls


@trial("R10", quick=10, full=5_000)
def cancelled_calls(round):
    """The awaiting task is cancelled when the k-th statement is reached: the same, and no asyncio task is left."""
    random = round.random
    durability = random.choice(["sync", "sync", "async", "exit"])
    most = round.bench.once(("cancel", durability), lambda: _cancelled(round, durability, 0, ""))
    at = random.randrange(20, most + 1)
    _cancelled(round, durability, at, f"cancelled at statement {at} of {most}, {durability}")
    round.count("cancellations")


def _cancelled(round, durability, at, where):
    async def cancelled():
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        assert me is not None
        trap.spring = lambda: loop.call_soon_threadsafe(me.cancel)  # type: ignore[assignment,return-value]
        app = journey(saver, Ledger(round.folder / "ledger"), ASK)
        try:
            await app.ainvoke({"left": ROUNDS, "log": []}, config(), durability=durability)
            await app.ainvoke(None, config(), durability=durability)
        except asyncio.CancelledError:
            me.uncancel()
        for _ in range(10):
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {me}
        if left:
            raise CheckFailed(f"{where}: asyncio tasks were left: {left}")

    trap = Trap(at)
    with trap.set():
        saver = SqliteSaver(":memory:", synchronous="off")
    try:
        asyncio.run(cancelled())
        passed, trap.at = trap.passed, 0
        with Mode("async") as world:
            judge(round, saver, world, durability, where)
    finally:
        saver.close()
    return passed


# -- R11 --------------------------------------------------------------------------------------------------------


@trial("R11", quick=13, full=2_000)
def full_databases(round):
    """The file may grow by some pages only (`max_page_count` swept): a StorageError, the newest step can be read, and
    with room the journey goes on to its end."""
    storage = sqlite(round)
    durability = round.random.choice(["sync", "async", "exit"])
    with storage.open() as saver, Mode(round.random.choice(["sync", "async"])) as world:
        execute = saver._database.connection.execute
        (pages,) = execute("PRAGMA page_count").fetchone()
        room = round.number % 100
        execute(f"PRAGMA max_page_count = {pages + room}")
        app = journey(saver, Ledger(round.folder / "ledger"), ASK)
        where = f"room for {room} pages, {durability}"
        try:
            carry_through(app, {"left": ROUNDS, "log": ["x" * 3000] * 3}, config(), world, durability)
        except StorageError:
            round.count("full")
        except Exception as error:
            raise CheckFailed(f"{where}: expected StorageError, got {type(error).__name__}: {error}") from error
        app.get_state(config())  # the newest can be read
        execute("PRAGMA max_page_count = 1000000")
        carry_through(app, {"left": ROUNDS, "log": ["x" * 3000] * 3}, config(), world, durability)
        log = app.get_state(config()).values["log"]
        assert_same(log[3:], expected(round)[0]["values"]["log"], f"{where}: log in the end")
    round.count("sizes")


@trial("R11", quick=2, full=100)
def full_disks(round):
    """The same on a file system of 400 KB."""
    folder = round.folder / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Skipped(f"no small file system may be mounted here: {done.stderr.strip()}")
    try:
        durability = round.random.choice(["sync", "async", "exit"])
        with SqliteSaver.from_conn_string(str(folder / "threads.db")) as saver, Mode("sync") as world:
            (folder / "filler").write_bytes(b"x" * 1000 * round.random.randrange(1, 300))
            app = journey(saver, Ledger(round.folder / "ledger"), ASK)
            given = {"left": ROUNDS, "log": ["x" * 20_000] * 2}
            try:
                carry_through(app, given, config(), world, durability)
            except StorageError:
                round.count("full")
            subprocess.run(["mount", "-o", "remount,size=8m", str(folder)], check=True)
            with SqliteSaver.from_conn_string(str(folder / "threads.db")) as another:
                log = another.get(config())  # the newest can be read, by others too
                kept = log["channel_values"].get("log", []) if log else []
            carry_through(app, given, config(), world, durability)
            assert_same(app.get_state(config()).values["log"][: len(kept)], kept, "log before, and after the resume")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)
