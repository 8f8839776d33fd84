"""The cases that read stored threads, written once for both engines: one of many steps, one value
that is large, one thread among many; and what others wait for while threads are pruned."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypedDict

import sizes
from cases import Engine, limit, loop
from live_threads import served, tick
from stored import appending
from timing import best


@contextmanager
def grown(e: Engine, in_memory: bool = False) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A graph, and the config of its thread, in which a list has grown for many supersteps."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as file:
        saver = e.InMemorySaver() if in_memory else file
        app, config = appending(e).compile(checkpointer=saver), limit(sizes.GROWN, thread_id="1")
        app.invoke({"items": [str(sizes.GROWN)]}, config)
        yield app, config


def middle(app: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The config of a checkpoint in the middle of a thread."""
    wanted = {"step": sizes.GROWN // 2}
    (found,) = app.get_state_history(config, filter=wanted)
    return {**config, "configurable": found.config["configurable"]}


def p22_state(e: Engine, in_memory: bool = False) -> float:
    with grown(e, in_memory) as (app, config):
        return best(lambda: app.get_state(config), 1)


def p22_middle(e: Engine, in_memory: bool = False) -> float:
    with grown(e, in_memory) as (app, config):
        place = middle(app, config)
        return best(lambda: app.get_state(place), 1)


def p22_fork(e: Engine) -> float:
    with grown(e) as (app, config):
        fork = app.update_state(middle(app, config), {"items": ["forked"]})
        return best(lambda: app.get_state(fork), 1)


def p22_update(e: Engine) -> float:
    with grown(e) as (app, config):
        place = middle(app, config)
        return best(lambda: app.update_state(place, {"items": ["forked"]}), 1)


def p22_history(e: Engine, limit: int | None = 1, in_memory: bool = False) -> float:
    with grown(e, in_memory) as (app, config):
        return best(lambda: list(app.get_state_history(config, limit=limit)), 1)


def p41(e: Engine, in_memory: bool = False) -> float:
    """Milliseconds to list the newest checkpoints of all threads."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as file:
        saver = e.InMemorySaver() if in_memory else file
        for number in range(sizes.THREADS):
            put(saver, number)
        return best(lambda: list(saver.list(None, limit=10)), 1)


def p22_filter(e: Engine) -> float:
    wanted = {"step": sizes.GROWN // 2}
    with grown(e) as (app, config):
        return best(lambda: list(app.get_state_history(config, filter=wanted)), 1)


class Text(TypedDict):
    text: str


def p27(e: Engine) -> float:
    """Seconds to read a state that holds a long text."""
    graph = e.StateGraph(Text)
    graph.add_node("end", lambda state: {})
    graph.add_edge(e.START, "end").add_edge("end", e.END)
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as saver:
        app, config = graph.compile(checkpointer=saver), limit(1, thread_id="1")
        app.invoke({"text": "abcdefghij" * (sizes.TEXT // 10)}, config)
        return best(lambda: app.get_state(config), 1)


def put(saver: Any, number: int) -> None:
    """A thread of one checkpoint, which its metadata tell from all others."""
    config = {"configurable": {"thread_id": f"thread {number}", "checkpoint_ns": ""}}
    checkpoint = {
        "v": 1,
        "id": f"{number:036d}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"n": number},
        "channel_versions": {"n": 1},
        "versions_seen": {},
        "updated_channels": None,
    }
    metadata = {"source": "loop", "step": 1, "parents": {}, "user": f"user {number}"}
    saver.put(config, checkpoint, metadata, {"n": 1})


def found(saver: Any) -> float:
    """Seconds to find the thread of one user among many."""
    for number in range(sizes.THREADS):
        put(saver, number)
    return find(saver)


def find(saver: Any) -> float:
    wanted = {"user": f"user {sizes.THREADS // 2}"}
    return best(lambda: list(saver.list(None, filter=wanted)), 1)


def p33(e: Engine) -> float:
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as saver:
        return found(saver)


def p33_postgres(e: Engine) -> float:
    """The threads are made by runs, many at once: one after the other they would take a minute."""

    async def run_all() -> None:
        for start in range(0, sizes.THREADS, 100):
            users = ((n, f"user {n}") for n in range(start, start + 100))
            configs = [{**limit(1, thread_id=str(n)), "metadata": {"user": u}} for n, u in users]
            await asyncio.gather(*(app.ainvoke({"n": 0}, c, durability="exit") for c in configs))

    with served(e, durable=False) as saver:
        app = loop(e, 1, node=tick).compile(checkpointer=saver)
        asyncio.run(run_all())
        return find(saver)


def p33_memory(e: Engine) -> float:
    return found(e.InMemorySaver())


def p34(e: Engine) -> float:
    """The longest time, in ms, that a superstep of a run takes while `prune()` works."""
    longest = [0.0]
    pruned = threading.Event()
    seen: Callable[[], float] = perf_counter

    def node(state: Any) -> Any:
        now = seen()
        if "last" in times:
            longest[0] = max(longest[0], now - times["last"])
        pruned.wait(0.002)  # others' supersteps do something, too
        times["last"] = seen()
        return {"n": 0 if not pruned.is_set() else 10}

    times: dict[str, float] = {}
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        short = loop(e, 2).compile(checkpointer=saver)
        for number in range(sizes.PRUNED):
            short.invoke({"n": 0}, limit(2, thread_id=str(number)))
        app = loop(e, 5, node=node).compile(checkpointer=saver)
        config = {"recursion_limit": 10**9, "configurable": {"thread_id": "other"}}
        other = threading.Thread(target=lambda: app.invoke({"n": 0}, config))
        other.start()
        saver.prune(keep_last=1)
        pruned.set()
        other.join()
    return longest[0] * 1e3
