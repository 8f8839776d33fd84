"""What one run costs the server, as counts that no busy machine changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from uuid import uuid4

import httpx
from kit.graphs import Log

from stategraph import START, StateGraph
from stategraph.checkpoint.sql.group_commit import WriteQueue
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.checkpoint.threads import CallThreads
from stategraph.pregel.drivers import timeslice
from stategraph.serve import create_app
from stategraph.store import InMemoryStore
from stategraph.store.sqlite import SqliteStore

MOST_CALLS = 1230
"""Functions of this package that are called for a run of three steps, its request and its answer."""


class CountingStore(InMemoryStore):
    """Counts its operations."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    async def abatch(self, ops):
        self.batches += 1
        return await super().abatch(ops)


def make_flow():
    def node(name):
        async def run(state):
            return {"log": [name]}

        return run

    graph = StateGraph(Log)
    graph.add_sequence([(name, node(name)) for name in "abc"])
    graph.add_edge(START, "a")
    return graph.compile()


class Server:
    """An app that is called without a socket."""

    def __init__(self, **storage):
        self.store = CountingStore()
        self._app = create_app({"flow": make_flow()}, **({"store": self.store} | storage))

    async def count(self, measure: Callable[[Callable[[], Awaitable[None]]], Awaitable[int]]):
        """What is counted while one run is begun and waited for, which is not the first."""
        transport = httpx.ASGITransport(app=self._app)
        async with (
            self._app.router.lifespan_context(self._app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):

            async def run():
                body = {"assistant_id": "flow", "input": {"log": ["x"]}, "if_not_exists": "create"}
                answer = await client.post(f"/threads/{uuid4()}/runs/wait", json=body)
                assert answer.json() == {"log": ["x", "a", "b", "c"]}

            await run()
            return await measure(run)


def test_a_run_takes_two_asyncio_tasks_and_no_thread(monkeypatch):
    # One for the runs of the thread, one that a cancel ends. None for a step.
    from stategraph.pregel.drivers.pool import POOL

    monkeypatch.setattr(POOL, "submit", None)

    async def count_tasks(run: Callable[[], Awaitable[None]]):
        tasks = []

        def make_task(loop, coroutine, **more):
            tasks.append(coroutine)
            return asyncio.Task(coroutine, loop=loop, **more)

        asyncio.get_running_loop().set_task_factory(make_task)
        await run()
        return len(tasks)

    assert asyncio.run(Server().count(count_tasks)) == 2


def test_a_run_on_sqlite_waits_for_a_thread_eight_times(tmp_path, monkeypatch):
    # Is the thread there? The run. The thread's state. The input with START, three steps. The end.
    calls = []

    def count(cls):
        call = cls.call

        def count_call(self, function, *args):
            calls.append(function)
            return call(self, function, *args)

        monkeypatch.setattr(cls, "call", count_call)

    async def count_calls(run: Callable[[], Awaitable[None]]):
        count(CallThreads)
        count(WriteQueue)
        await run()
        return len(calls)

    name = str(tmp_path / "db")
    with SqliteSaver.from_conn_string(name) as saver, SqliteStore.from_conn_string(name, saver=saver) as store:
        assert asyncio.run(Server(checkpointer=saver, store=store).count(count_calls)) == 8


def test_a_run_calls_few_functions(monkeypatch):
    monkeypatch.setattr(timeslice, "HOLD", 3600.0)  # how often a run gives way is a matter of seconds, not of calls

    async def count_calls(run: Callable[[], Awaitable[None]]):
        calls = 0

        def count(frame, event, _):
            nonlocal calls
            # What the client, a log handler and asyncio call differs from run to run.
            calls += event == "call" and frame.f_globals["__name__"].startswith("stategraph.")

        sys.setprofile(count)
        try:
            await run()
        finally:
            sys.setprofile(None)
        return calls

    assert asyncio.run(Server().count(count_calls)) <= MOST_CALLS
