"""R1, R4, R6, R10, R11 where many threads are live at once: writes that wait together become one transaction."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import threading
from contextlib import closing, suppress
from random import Random

from stategraph.checkpoint import CheckpointConflictError, StorageError
from stategraph.checkpoint.records import Commit, address
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import CheckFailed, Commits, assert_same

from .campaign import trial

THREADS, STEPS = 24, 6


def rivals(live: Live, run: Commits):
    """A commit of a run that was overtaken: it brings what its saver had left with it, and must be refused."""
    found = live.saver.get_tuple(address(run.thread, ""))
    assert found is not None and run.head is not None
    old, run.head, run.saver_state = run.head, f"{run.head} before", None
    run.expected[run.head] = run.expected[old]
    stale = run.made(f"{old} stale", "head", (), {"a": "stale"})[0]
    state = found.saver_state  # type: ignore[attr-defined]
    state.id = run.head  # so that it is found out in the database only
    stale.saver_state, run.head = state, old
    return stale


class Live:
    """Threads of one saver that all commit at once.

    Attributes:
        stored: (thread, checkpoint) of which somebody was told that it is stored.
        images: how many copies of the file were looked at, each taken as a step was told stored: what a kill would leave.
        refused: how many commits were told that there is no room.
    """

    def __init__(self, saver, folder, random):
        self.saver, self.folder, self.random = saver, folder, random
        self.stored = {}
        self.images = self.refused = self.overtaken = 0
        self._lock = threading.Lock()
        self._other = sqlite3.connect(folder / "db", isolation_level=None, check_same_thread=False)

    def close(self):
        """Close the connection by which it looks, when nobody is looking: a trial that failed has left threads at work."""
        with self._lock:
            self._other.close()

    def check(self, commit: Commit):
        """Whoever else opens the file finds what somebody has just been told is stored."""
        with self._lock:
            found = self._other.execute("SELECT head_id FROM spaces WHERE thread_id = ?", (commit.thread_id,)).fetchone()
        if found != (commit.id,):
            raise CheckFailed(f"thread {commit.thread_id}: step {commit.id} was told stored, and is not: {found}")

    def is_full(self, error: StorageError):
        """Whether a commit was refused because the disk is full; counted."""
        full = not isinstance(error, CheckpointConflictError) and "full" in str(error)
        self.refused += full
        return full

    async def acommit(self, commit: Commit, awaited):
        """Store as a coroutine does, or on a thread of its own."""
        if awaited:
            await self.saver.acommit([commit])
            self.check(commit)
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        errors = []

        def store():
            try:
                self.saver.commit([commit])
                self.check(commit)
            except Exception as error:
                errors.append(error)
            with suppress(RuntimeError):  # the trial has failed, and its loop is closed
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=store, name="stategraph-trial", daemon=True).start()
        await ended.wait()
        if errors:
            raise errors[0]

    async def play(self, number):
        """One thread: some steps, one after the other."""
        random = Random(self.random.random())
        run = Commits(lambda *_: None, self.saver, str(number))
        for step in range(STEPS):
            value = os.urandom(random.choice((20, 200, 200, 60_000)))
            commit, whole = run.made(str(step), "head", (), {"a": value})
            try:
                await self.acommit(commit, random.random() < 0.7)
            except StorageError as error:
                if not self.is_full(error):
                    raise
                return  # its run is over
            run.expected[str(step)], run.head, run.saver_state = whole, str(step), commit.saver_state
            self.stored.setdefault(run.thread, []).append(str(step))
            if random.random() < 0.1:
                self.look()
            if random.random() < 0.2:
                try:
                    await self.acommit(rivals(self, run), True)
                except CheckpointConflictError:
                    self.overtaken += 1
                except StorageError as error:  # there was no room to try
                    if not self.is_full(error):
                        raise
                else:
                    raise CheckFailed(f"thread {run.thread}: a run that was overtaken was told that it had stored a step")

    def look(self):
        """Copy the file as a kill at this moment would leave it: what somebody was told is there."""
        told = {thread: ids[-1] for thread, ids in self.stored.items()}
        copy = self.folder / f"image {self.images}"
        self.images += 1
        copy.mkdir()
        for name in ("db", "db-wal"):
            shutil.copy(self.folder / name, copy / name)
        with closing(sqlite3.connect(copy / "db")) as image:
            heads = dict(image.execute("SELECT thread_id, head_id FROM spaces"))
        for thread, id in told.items():
            # It may have gone on meanwhile.
            if int(heads.get(thread) or -1) < int(id):
                raise CheckFailed(f"thread {thread}: step {id} was told stored, and is lost by a kill: {heads.get(thread)}")
        shutil.rmtree(copy)


def ask(saver, statement):
    """Ask the saver's connection, which its writing thread may be using: a planted bug answers before it is done."""
    with saver._lock:
        (answer,) = saver._database.execute(statement).fetchone()
    return int(answer)


@trial("R10", quick=3, full=500)
def grouped_commits(round):
    """Many threads commit at once, from coroutines and from threads, some of them overtaken, in half of the rounds to a
    disk that gets full: who is told that a step is stored finds it, also after a kill; nobody fails because of another."""
    with closing(SqliteSaver(round.folder / "db")) as saver, closing(Live(saver, round.folder, round.random)) as live:
        full = round.number % 2 == 1
        if full:
            pages = ask(saver, "PRAGMA page_count") + round.random.randint(100, 500)
            ask(saver, f"PRAGMA max_page_count={pages}")

        async def go():
            players = [asyncio.create_task(live.play(number)) for number in range(THREADS)]
            try:
                await asyncio.wait_for(asyncio.gather(*players), 120)
            finally:
                for player in players:
                    player.cancel()
                await asyncio.gather(*players, return_exceptions=True)

        asyncio.run(go())
        live.look()
        ask(saver, "PRAGMA max_page_count=1000000")
        for number in range(THREADS):
            expected = live.stored.get(str(number), [])
            found = [each.checkpoint["id"] for each in saver.list(address(str(number), ""))]
            assert_same(found, expected[::-1], f"the history of thread {number}")
        if not full:
            assert_same({len(ids) for ids in live.stored.values()}, {STEPS}, "how many steps were stored")
        counted = "SELECT count(*) FROM checkpoints"
        rows = ask(saver, counted)
        assert_same(rows, sum(map(len, live.stored.values())), "rows of checkpoints")
    round.count("commits", sum(map(len, live.stored.values())))
    round.count("overtaken", live.overtaken)
    round.count("without room", live.refused)
    round.count("images", live.images)
