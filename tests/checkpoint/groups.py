"""Writers of one SQLite file that wait together."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing

import pytest

from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.testing import Commits

WAIT = 20


@pytest.fixture
def saver(tmp_path):
    with SqliteSaver.from_conn_string(str(tmp_path / "db"), synchronous="off") as opened:
        yield opened


def first_commit(saver, thread, **values):
    run = Commits(lambda *_: None, saver, thread)
    return run.made("0", None, (), values or {"a": 1})[0]


def heads(path):
    """What is stored, seen by another connection."""
    with closing(sqlite3.connect(path)) as other, other:
        return dict(other.execute("SELECT thread_id, head_id FROM spaces WHERE head_id IS NOT NULL"))


def path_of(saver):
    found = saver._database.path()
    assert found is not None
    return found


async def together(saver: SqliteSaver, writes, is_async=True):
    """Make these writes while another holds the database, so that all of them wait; how each ended."""
    saver._lock.acquire()
    try:
        tasks = [asyncio.ensure_future(write()) for write in writes]
        deadline = time.monotonic() + WAIT
        while len(saver._group.waiting) < len(writes):
            assert time.monotonic() < deadline
            await asyncio.sleep(0)
    finally:
        saver._lock.release()
    return await asyncio.gather(*tasks, return_exceptions=True)


def write_together(saver, commits, is_async):
    """`together`, for commits: of coroutines, or of threads that wait for them."""
    if is_async:
        return asyncio.run(together(saver, [lambda c=c: saver.acommit([c]) for c in commits]))
    ended = [None] * len(commits)

    def write(place):
        try:
            saver.commit([commits[place]])
        except Exception as error:
            ended[place] = error

    threads = [threading.Thread(target=write, args=(place,)) for place in range(len(commits))]
    with saver._lock:
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT
        while len(saver._group.waiting) < len(commits):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    for thread in threads:
        thread.join(WAIT)
    return ended
