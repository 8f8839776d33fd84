"""Searches of a server's 20,000 threads: the time of each, and how long it holds the event loop.

    .venv/bin/python benchmarks/searches.py [new.db | postgresql://...]

The second time says how much too late a task beside it woke that sleeps 5 ms at a time. Both are
medians of 5. Half of the threads belong to the user who asks; 2,000 of those have a state.
"""

import asyncio
import gc
import sys
import time
from contextlib import ExitStack
from statistics import median

import httpx

from stategraph import START, StateGraph
from stategraph.checkpoint import InMemorySaver
from stategraph.checkpoint.postgres import PostgresSaver
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.serve import create_app
from stategraph.serve.records import ROOT
from stategraph.serve.routes.threads import new_thread
from stategraph.store import InMemoryStore, PutOp
from stategraph.store.postgres import PostgresStore
from stategraph.store.sqlite import SqliteStore

THREADS, STATES = 20_000, 2_000
SEARCHES = {
    "metadata: one has it": ("/threads/search", {"metadata": {"topic": "n778"}}),
    "metadata: a list": ("/threads/search", {"metadata": {"tags": ["x", "n778"]}}),
    "status": ("/threads/search", {"status": "error"}),
    "sorted": ("/threads/search", {"sort_by": "updated_at"}),
    "sorted, from the 5,000th": ("/threads/search", {"sort_by": "created_at", "offset": 5000}),
    "1,000 records": ("/threads/search", {"limit": 1000, "select": ["thread_id", "metadata"]}),
    "values: one has it": ("/threads/search", {"values": {"topic": "n16002"}}),
    "count": ("/threads/count", {}),
    "count: metadata, all": ("/threads/count", {"metadata": {"team": "a"}}),
    "text of the page": ("/page/threads", {"text": "N778."}),
}


def fill(store, saver, app):
    """Store threads with a run each, as a server does."""
    bound, puts = app.copy({"checkpointer": saver}), []
    for n in range(THREADS):
        id, topic = f"{n * 7919 % THREADS:06}", f"n{n}"
        metadata = {"topic": topic, "team": "a", "tags": ["x", topic], "note": f"on {topic}. " * 5}
        if n >= THREADS - 2 * STATES and n % 2 == 0:
            metadata["graph_id"] = "flow"
            state = {"log": ["x" * 40] * 20, "topic": topic}
            bound.update_state({"configurable": {"thread_id": id}}, state, as_node="a")
        record = new_thread(id, ("ann", "bob")[n % 2], metadata)
        record["status"] = "error" if n % 100 == 0 else "idle"
        puts.append(PutOp((ROOT, "threads"), id, record, False))
        puts.append(PutOp((ROOT, "runs", id), "run", {"run_id": "run", "thread_id": id}, False))
    for begin in range(0, len(puts), 1000):
        store.batch(puts[begin : begin + 1000])


async def timed(work):
    """Await a request: its seconds, and those that it held the loop at most."""
    stall, begin = 0.0, time.perf_counter()

    async def tick():
        nonlocal stall
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            stall = max(stall, time.perf_counter() - before - 0.005)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(0)
    (await work).raise_for_status()
    seconds = time.perf_counter() - begin
    await asyncio.sleep(0.006)  # the ticker sees the end, too
    ticker.cancel()
    return seconds, stall


async def measure(app):
    """Print a row for each search."""
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        for name, (path, body) in SEARCHES.items():
            rounds = [await timed(client.post(path, json=body)) for _ in range(5)]
            seconds, stall = (median(each) * 1000 for each in zip(*rounds, strict=True))
            print(f"| {name:24} | {seconds:6.0f} ms | {stall:5.1f} ms |", flush=True)


def main(db=None):
    """Measure a server in memory, or on a new database."""
    app = StateGraph(dict).add_node("a", lambda _: {}).add_edge(START, "a").compile(name="flow")
    with ExitStack() as stack:
        saver, store = InMemorySaver(), InMemoryStore()
        if db:
            large = db.startswith("postgres")
            kinds = (PostgresSaver, PostgresStore) if large else (SqliteSaver, SqliteStore)
            saver, store = (stack.enter_context(kind.from_conn_string(db)) for kind in kinds)
        gc.collect()
        gc.freeze()  # as `stategraph serve` does
        fill(store, saver, app)
        served = {"checkpointer": saver, "store": store, "auth": lambda _: "ann"}
        asyncio.run(measure(create_app({"flow": app}, **served)))


if __name__ == "__main__":
    main(*sys.argv[1:])
