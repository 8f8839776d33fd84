"""R30, R33: what savers promise of files: opening waits its turn, and damage is told wherever it is."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

from kit.saver_suites import TestSqliteSaver

from stategraph.checkpoint import DamagedError, StorageError
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.store.cache import SqliteCache
from stategraph.store.sqlite import SqliteStore
from stategraph.testing import CheckFailed, assert_same
from stategraph.testing.damage import THREADS, Reading, _filled, _invented, _missed
from stategraph.testing.harness import Harness

from .campaign import trial
from .races import Gate

FLIPS = 25


@trial("R33", quick=2, full=200)
def flipped_bits(round):
    """25 times a bit of an SQLite file is flipped, anywhere, indexes and page headers included: what is read, listed,
    copied and pruned is what was stored, or `DamagedError` or `StorageError` says that it is not: no shorter history,
    and no error without a word on damage."""
    suite = TestSqliteSaver()

    def made():
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
def opened_at_once(round):
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
