"""Async calls of savers, stores and caches have threads of their own: nothing that fills asyncio's default pool holds
them up, and they fill nobody else's."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest
from kit.drive import run_threads
from kit.graphs import Count, thread_config
from kit.programs import printed

from stategraph import END, START, InMemorySaver, StateGraph
from stategraph.checkpoint import threads as module
from stategraph.checkpoint.base import BaseCheckpointSaver
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.checkpoint.threads import CallThreads, call_on_thread
from stategraph.store import BaseStore, InMemoryStore
from stategraph.store.cache import BaseCache, SqliteCache
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

WAIT = 20


class Refusing(ThreadPoolExecutor):
    """asyncio's default pool, when nobody may use it."""

    def submit(self, *args, **named):
        raise AssertionError("asyncio's default pool was used")


def chain_of_three(saver):
    async def tick(state):
        return {"n": state["n"] + 1}

    graph = StateGraph(Count)
    for name in "abc":
        graph.add_node(name, tick)
    return graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END).compile(saver)


class OwnSaver(InMemorySaver):
    """A saver of a user's, whose sync methods wait for something."""

    in_memory = False


class OwnStore(BaseStore):
    """A store of a user's that knows of sync code only."""

    def __init__(self):
        self._inner = InMemoryStore()

    def batch(self, ops):
        return self._inner.batch(ops)


class OwnCache(BaseCache):
    """A cache of a user's that knows of sync code only."""

    def get(self, keys):
        return {}

    def set(self, pairs):
        pass

    def clear(self, namespaces=None):
        pass


async def use_saver(saver: BaseCheckpointSaver):
    app = chain_of_three(saver)
    config = thread_config("1")
    assert await app.ainvoke({"n": 0}, config) == {"n": 3}
    assert len([each async for each in app.aget_state_history(config)]) == 5
    await app.aupdate_state(config, {"n": 7})
    assert await saver.ahead(config) is not None
    await saver.acopy_thread("1", "2")
    await saver.aprune()
    await saver.adelete_thread("1")


async def use_store(store: BaseStore):
    await store.aput(("a",), "k", {"text": "tea"})
    assert (await store.aget(("a",), "k")).value == {"text": "tea"}  # type: ignore[union-attr]
    assert len(await store.asearch(("a",), query="tea" if getattr(store, "_index", None) else None)) == 1


async def use_cache(cache: BaseCache):
    await cache.aset({(("n",), "k"): (("raw", b"1"), None)})
    await cache.aget([(("n",), "k")])
    await cache.aclear()


def embed(texts):
    return [[1.0, float(len(text))] for text in texts]


@asynccontextmanager
async def as_it_is(made):
    yield made


INDEX = {"dims": 2, "embed": embed}
USES = {
    "SqliteSaver": (lambda path, _: SqliteSaver.from_conn_string(str(path)), use_saver),
    "PostgresSaver": (lambda _, url: PostgresSaver.from_conn_string(url), use_saver),
    "a saver of a user's": (lambda *_: OwnSaver(), use_saver),
    "SqliteStore": (lambda path, _: SqliteStore.from_conn_string(str(path)), use_store),
    "PostgresStore": (lambda _, url: PostgresStore.from_conn_string(url), use_store),
    "a store of a user's": (lambda *_: OwnStore(), use_store),
    "a store that embeds": (lambda *_: InMemoryStore(index=INDEX), use_store),
    "SqliteCache": (lambda path, _: as_it_is(SqliteCache(path)), use_cache),
    "a cache of a user's": (lambda *_: as_it_is(OwnCache()), use_cache),
}


@pytest.mark.parametrize("what", USES)
async def test_no_async_call_touches_asyncios_default_pool(what, tmp_path, postgres):
    make, use = USES[what]
    asyncio.get_running_loop().set_default_executor(Refusing())
    async with make(tmp_path / "file", postgres) as made:
        await use(made)


async def test_a_run_continues_while_the_default_pool_is_full(tmp_path):
    release = threading.Event()
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(2)
    loop.set_default_executor(pool)
    others = [asyncio.ensure_future(asyncio.to_thread(release.wait, WAIT)) for _ in range(20)]
    async with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        app = chain_of_three(saver)
        assert await app.ainvoke({"n": 0}, thread_config("1")) == {"n": 3}
    assert not any(other.done() for other in others)  # it did not wait for them
    release.set()
    await asyncio.gather(*others)


@pytest.fixture
def threads():
    made = CallThreads(2)
    yield made
    made.join()


def alive(threads: CallThreads):
    return len(threads._threads)


async def test_no_more_calls_are_made_at_once_than_there_may_be_threads(threads):
    both, order = threading.Barrier(2), []

    def call(number):
        if number < 2:
            both.wait(WAIT)  # these two are made at once
        order.append(number)
        return number

    assert (await asyncio.gather(*(threads.call(call, number) for number in range(9)))) == [*range(9)]
    assert sorted(order) == [*range(9)]
    assert alive(threads) <= 2


async def test_a_call_sees_the_context_of_its_caller_and_cannot_change_it(threads):
    name = ContextVar("name", default="nobody")

    def call():
        found = name.get()
        name.set("changed")
        return found

    name.set("caller")
    assert (await threads.call(call), name.get()) == ("caller", "caller")


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt("no"), StopIteration("no")])
async def test_what_a_call_raises_its_caller_gets(threads, error):
    def fail():
        raise error

    try:
        await threads.call(fail)
    except BaseException as raised:
        assert raised is error or raised.__cause__ is error
    else:
        raise AssertionError("it raised nothing")
    assert await threads.call(lambda: 7) == 7


def test_several_event_loops_call_at_once(threads):
    both = threading.Barrier(2)

    async def go():
        await threads.call(both.wait, WAIT)
        return threading.current_thread().name

    names = []
    loops = [threading.Thread(target=lambda: names.append(asyncio.run(go()))) for _ in range(2)]
    run_threads(loops)
    assert len(set(names)) == 2


async def test_a_cancelled_call_that_has_started_completes_and_one_that_has_not_is_dropped():
    one, made = CallThreads(1), []
    begun, release = threading.Event(), threading.Event()

    def slow():
        begun.set()
        release.wait(WAIT)
        made.append("slow")

    loop = asyncio.get_running_loop()
    first = asyncio.ensure_future(one.call(slow))
    await loop.run_in_executor(None, begun.wait, WAIT)
    second = asyncio.ensure_future(one.call(made.append, "never"))
    await asyncio.sleep(0)
    first.cancel()
    second.cancel()
    await asyncio.wait([first, second])
    release.set()
    assert await one.call(lambda: "next") == "next"
    one.join()
    assert made == ["slow"]


def test_a_loop_that_is_closed_meanwhile_ends_no_thread(threads):
    begun, release = threading.Event(), threading.Event()

    def slow():
        begun.set()
        release.wait(WAIT)

    async def leave():
        call = asyncio.ensure_future(threads.call(slow))
        while not begun.is_set():
            await asyncio.sleep(0)
        call.cancel()

    asyncio.run(leave())
    release.set()
    assert asyncio.run(threads.call(lambda: 7)) == 7


def test_threads_end_when_they_are_closed_and_a_later_call_still_works(threads):
    asyncio.run(threads.call(int))
    threads.join()
    assert alive(threads) == 0
    assert asyncio.run(threads.call(lambda: 7)) == 7
    threads.join()
    assert alive(threads) == 0


def test_idle_threads_end(threads, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    asyncio.run(threads.call(int))
    for thread in list(threads._threads):
        thread.join(WAIT)
    assert alive(threads) == 0


async def test_closing_a_saver_ends_its_threads(tmp_path):
    async with SqliteSaver.from_conn_string(str(tmp_path / "db")) as saver:
        await saver.ahead(thread_config("1"))
        threads = saver._call_threads()
    threads.join()
    assert alive(threads) == 0


def test_threads_hold_no_saver_alive(tmp_path):
    gone = threading.Event()

    class Watched(SqliteSaver):
        def __del__(self):
            gone.set()

    saver = Watched(str(tmp_path / "db"))
    asyncio.run(saver.ahead(thread_config("1")))
    saver.close()
    del saver
    gc.collect()
    assert gone.wait(WAIT)


def test_a_call_on_a_thread_of_its_own_leaves_none():
    used = []
    asyncio.run(call_on_thread(lambda: used.append(threading.current_thread())))
    assert used[0].daemon
    used[0].join(WAIT)
    assert not used[0].is_alive()


def test_a_cache_with_threads_can_be_pickled():
    cache = OwnCache()
    asyncio.run(use_cache(cache))
    asyncio.run(use_cache(pickle.loads(pickle.dumps(cache))))
    cache._end_threads()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_the_child_of_a_fork_has_threads_of_its_own():
    program = """
import asyncio, os, sys, threading
from stategraph.checkpoint.threads import CallThreads
threads = CallThreads(1)
asyncio.run(threads.call(int))
held = threading.Event()
threads.submit(lambda: held.wait(20))
child = os.fork()
if child == 0:
    assert asyncio.run(threads.call(lambda: 7)) == 7
    os._exit(0)
_, status = os.waitpid(child, 0)
held.set()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60).returncode == 0


def test_started_calls_complete_when_the_program_ends(tmp_path):
    told = tmp_path / "told"
    program = f"""
import threading, time
from pathlib import Path
from stategraph.checkpoint.threads import CallThreads
threads, begun = CallThreads(1), threading.Event()
def job():
    begun.set()
    time.sleep(0.2)
    Path({str(told)!r}).write_text("done")
threads.submit(job)
begun.wait()
"""
    printed(program)
    assert told.read_text() == "done"
