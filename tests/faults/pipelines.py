"""R1, R4, R10 on Postgres where many threads are live at once: commits that wait together become one transaction."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing, suppress
from random import Random

import psycopg

from stategraph.checkpoint import CheckpointConflictError
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.records import Commit, address
from stategraph.testing import CheckFailed, Commits, assert_same

from .campaign import trial
from .stages import postgres

THREADS, STEPS = 24, 6
LOOK = "SELECT head_id FROM stategraph_spaces WHERE thread_id = %s"
LOCK = "SELECT 1 FROM stategraph_spaces WHERE thread_id = %s FOR UPDATE"
CUT = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE application_name = 'stategraph' AND datname = current_database() AND query LIKE '%%stategraph_spaces%%'
    ORDER BY state_change DESC LIMIT 1
"""


class Live:
    """Threads of one saver that all commit at once, while connections are cut and others hold locks."""

    def __init__(self, saver, where, random):
        self.saver, self.random = saver, random
        self.other = psycopg.connect(where, autocommit=True, application_name="trial")
        self.holder = psycopg.connect(where, application_name="trial")
        self.overtaken = self.cut = self.held = 0
        self.stored = {}
        self._free = threading.Lock()
        self._under_way = set()

    def close(self):
        """Close the connections by which it looks and locks."""
        self.other.close()
        self.holder.close()

    def look(self, thread):
        """The head of a thread, seen by another session."""
        found = self.other.execute(LOOK, (thread.encode(),)).fetchone()
        return found[0].decode() if found and found[0] else None

    def lock(self, thread):
        """Hold the lock of a thread's row for longer than a group waits for it."""
        if not self._free.acquire(blocking=False):
            return
        self.held += 1
        self.holder.execute(LOCK, (thread.encode(),))

        def release():
            self.holder.rollback()
            self._free.release()

        asyncio.get_running_loop().call_later(0.15, release)

    async def acommit(self, commit: Commit):
        """Store, and look whether it is there."""
        name = f"{commit.thread_id} {commit.id}"
        self._under_way.add(name)
        try:
            await self.saver.acommit([commit])
        finally:
            self._under_way.discard(name)
        if (found := self.look(commit.thread_id)) != commit.id:
            raise CheckFailed(f"thread {commit.thread_id}: step {commit.id} was told stored, and is not: {found}")

    async def overtake(self, run: Commits):
        """A run that was overtaken, and brings what its saver had left with it, is refused."""
        found = self.saver.get_tuple(address(run.thread, ""))
        assert found is not None and run.head is not None
        old, run.head, run.saver_state = run.head, f"{run.head} before", None
        run.expected[run.head] = run.expected[old]
        stale = run.made(f"{old} stale", "head", (), {"a": "stale"})[0]
        state = found.saver_state  # type: ignore[attr-defined]
        state.id = run.head
        state.seq -= 1  # so that it is found out in the database only
        stale.saver_state, run.head = state, old
        self._under_way.add(f"{run.thread} {stale.id}")
        try:
            await self.saver.acommit([stale])
        except CheckpointConflictError:
            self.overtaken += 1
        else:
            raise CheckFailed(f"thread {run.thread}: a run that was overtaken was told that it had stored a step")
        finally:
            self._under_way.discard(f"{run.thread} {stale.id}")

    async def play(self, number):
        """One thread: some steps, one after the other."""
        random = Random(self.random.random())
        run = Commits(lambda *_: None, self.saver, str(number))
        for step in range(STEPS):
            value = random.randbytes(random.choice((20, 200, 200, 60_000)))
            commit, whole = run.made(str(step), "head", (), {"a": value})
            if step and random.random() < 0.05:
                self.lock(run.thread)
            await self.acommit(commit)
            run.expected[str(step)], run.head, run.saver_state = whole, str(step), commit.saver_state
            self.stored.setdefault(run.thread, []).append(str(step))
            if random.random() < 0.2:
                await self.overtake(run)

    async def cut_connections(self):
        """Cut a connection of the saver, again and again, but no commit's twice: that may fail."""
        while True:
            while not self._under_way:
                await asyncio.sleep(0)
            self.cut += len(self.other.execute(CUT).fetchall())
            hit = set(self._under_way)
            while hit & self._under_way:
                await asyncio.sleep(0.001)


@trial("R10", quick=2, full=300)
def pipelined_commits(round):
    """Many threads commit at once to Postgres, some of them overtaken, some locked by others, in half of the rounds while
    connections are cut: who is told that a step is stored finds it, once; nobody fails because of another."""
    where = postgres(round).address
    with closing(PostgresSaver(where, pool_size=4)) as saver, closing(Live(saver, where, round.random)) as live:

        async def go():
            players = [asyncio.create_task(live.play(number)) for number in range(THREADS)]
            cutting = asyncio.create_task(live.cut_connections()) if round.number % 2 == 1 else None
            try:
                await asyncio.wait_for(asyncio.gather(*players), 120)
            finally:
                for each in (*players, cutting):
                    if each is not None:
                        each.cancel()
                await asyncio.gather(*players, return_exceptions=True)
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.2)  # what is locked is let go

        asyncio.run(go())
        steps = [str(step) for step in range(STEPS)]
        for number in range(THREADS):
            assert_same(live.stored[str(number)], steps, f"what thread {number} was told")
            found = [each.checkpoint["id"] for each in saver.list(address(str(number), ""))]
            assert_same(found, steps[::-1], f"the history of thread {number}")
    round.count("overtaken", live.overtaken)
    round.count("locked", live.held)
    round.count("cut", live.cut)
