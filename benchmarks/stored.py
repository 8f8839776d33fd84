"""The cases with a saver, written once for both engines: supersteps that are kept, and what they
weigh on a disk."""

from __future__ import annotations

import operator
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, TypedDict

import sizes
from cases import Engine, Gathered, limit, loop, p1, p2, p3
from timing import best


def p4(e: Engine) -> float:
    def work() -> None:
        # A new saver each round, so that no round pays for the history of those before.
        app = loop(e, sizes.STEPS).compile(checkpointer=e.InMemorySaver())
        app.invoke({"n": 0}, limit(sizes.STEPS, thread_id="1"))

    return best(work, sizes.STEPS)


def saved(e: Engine, synchronous: str) -> float:
    """Seconds per superstep in a file, on a new thread each round: within one the history grows."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", synchronous) as saver:
        app, threads = loop(e, sizes.STEPS).compile(checkpointer=saver), count()

        def work() -> None:
            app.invoke(
                {"n": 0}, limit(sizes.STEPS, thread_id=str(next(threads))), durability="sync"
            )

        return best(work, sizes.STEPS)


def p5(e: Engine) -> float:
    return saved(e, "normal")


def p6(e: Engine) -> float:
    return saved(e, "full")


class Inside(TypedDict):
    n: int
    items: list[int]


class Outside(TypedDict):
    sends: int
    items: Annotated[list[int], operator.add]


def p30(e: Engine) -> float:
    """The time of P1 to P4 once LangChain is loaded ÷ before, on average. Nobody listens."""
    cases = (p1, p2, p3, p4)
    before = [case(e) for case in cases]
    import langchain_core.callbacks
    import langchain_core.messages
    import langchain_core.runnables  # noqa: F401

    return sum(case(e) / bare for case, bare in zip(cases, before, strict=True)) / len(cases)


def p23(e: Engine) -> float:
    """Milliseconds of a Send into a graph of two nodes."""
    inner = e.StateGraph(Inside).add_node("first", lambda state: {"n": state["n"] + 1})
    inner.add_node("second", lambda state: {"items": [state["n"]]})
    inner.add_edge(e.START, "first").add_edge("first", "second").add_edge("second", e.END)
    graph = e.StateGraph(Outside).add_node("inner", inner.compile())
    graph.add_conditional_edges(
        e.START,
        lambda state: [e.Send("inner", {"n": n}) for n in range(state["sends"])],
        ["inner"],
    )
    graph.add_edge("inner", e.END)
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "normal") as saver:
        app, threads = graph.compile(checkpointer=saver), count()

        def work() -> None:
            config = limit(10, thread_id=str(next(threads)))
            app.invoke({"sends": sizes.NESTED, "items": []}, config, durability="sync")

        return best(work, sizes.NESTED) * 1e3


# -- bytes -----------------------------------------------------------------------------------------


class Grows(TypedDict):
    items: Annotated[list[str], operator.add]


def random_item() -> str:
    return os.urandom(sizes.ITEM // 2).hex()


def appending(e: Engine, item: Callable[[], str] = random_item, schema: Any = Grows) -> Any:
    """A loop that appends `item()` to a list until it is as long as its first item says."""
    graph = e.StateGraph(schema)
    graph.add_node("add", lambda state: {"items": [item()]})
    graph.add_edge(e.START, "add")

    def route(state: Any) -> str:
        return "add" if len(state["items"]) < int(state["items"][0]) else "end"

    graph.add_conditional_edges("add", route, {"add": "add", "end": e.END})
    return graph


def weight(folder: str) -> int:
    """Bytes of all files in a folder."""
    return sum(file.stat().st_size for file in Path(folder).iterdir())


def appended(e: Engine, appends: int, schema: Any = Grows) -> float:
    """Bytes on the disk per byte appended in so many supersteps of one call."""
    with TemporaryDirectory() as folder:
        with e.sqlite(f"{folder}/threads.db", "off") as saver:
            app = appending(e, schema=schema).compile(checkpointer=saver)
            app.invoke({"items": [str(appends)]}, limit(appends, thread_id="1"), durability="sync")
        return weight(folder) / (appends * sizes.ITEM)


def p12(e: Engine) -> float:
    return appended(e, sizes.PEER_APPENDS if e.stores_all else sizes.APPENDS)


def p12_delta(e: Engine) -> float:
    """P12 with the channel that an engine offers for lists that grow, if it has one."""
    if e.delta is None:
        return appended(e, sizes.APPENDS)
    schema: Any = TypedDict("Grows", {"items": Annotated[list[str], e.delta()]})  # type: ignore[misc]
    return appended(e, sizes.APPENDS, schema)


def file_bytes(e: Engine, steps: int) -> int:
    """Size of the file that holds so many supersteps of the loop, in one thread."""
    with TemporaryDirectory() as folder:
        with e.sqlite(f"{folder}/threads.db", "off") as saver:
            app = loop(e, steps).compile(checkpointer=saver)
            app.invoke({"n": 0}, limit(steps, thread_id="1"), durability="sync")
        return weight(folder)


# -- a long thread ---------------------------------------------------------------------------------


def opened(e: Engine, saver: Any, checkpoints: int) -> float:
    """Seconds for a call of one superstep on a thread that has so many checkpoints."""
    app = loop(e, 0).compile(checkpointer=saver)
    config = limit(checkpoints, thread_id=str(checkpoints))
    loop(e, checkpoints - 1).compile(checkpointer=saver).invoke({"n": 0}, config)

    def work() -> None:
        for _ in range(20):
            app.invoke({"n": 0}, config)

    return best(work, 20)


def p14(e: Engine) -> float:
    """Opening a thread of many checkpoints for one step, by the same for a thread of few."""
    with TemporaryDirectory() as folder, e.sqlite(f"{folder}/threads.db", "off") as saver:
        short = opened(e, saver, sizes.SHORT)
        return opened(e, saver, sizes.LONG) / short


# -- commits ---------------------------------------------------------------------------------------

WRITING = ("INSERT", "UPDATE", "DELETE", "REPLACE")


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the commits of all SQLite connections that are opened inside."""
    commits, inside = [0], [False]

    def note(statement: str) -> None:
        word = statement.split(None, 1)[0].upper() if statement.strip() else ""
        if word == "BEGIN":
            inside[0] = True
        elif word == "COMMIT":
            inside[0] = False
            commits[0] += 1
        elif (
            word in WRITING and not inside[0]
        ):  # a statement of its own is a transaction of its own
            commits[0] += 1

    real = sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*args, **options)
        connection.set_trace_callback(note)
        return connection

    sqlite3.connect = connect  # type: ignore[assignment]
    try:
        yield commits
    finally:
        sqlite3.connect = real


def commits(e: Engine, steps: int, tasks: int) -> int:
    """How many commits so many supersteps take, with `tasks` tasks each that wait for each
    other."""
    meet = threading.Barrier(tasks)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    def route(state: Any) -> Any:
        return [e.Send("work", None)] * tasks if len(state["items"]) < steps * tasks else e.END

    graph = e.StateGraph(Gathered)
    graph.add_node("work", node)
    graph.add_node("again", lambda state: {})
    graph.add_edge(e.START, "again").add_edge("work", "again")
    graph.add_conditional_edges("again", route, ["work", e.END])
    with (
        counted() as found,
        TemporaryDirectory() as folder,
        e.sqlite(f"{folder}/threads.db", "off") as saver,
    ):
        app = graph.compile(checkpointer=saver)
        app.invoke({"items": []}, limit(2 * steps, thread_id="1"), durability="sync")
    return found[0]


def per_superstep(e: Engine, tasks: int) -> float:
    """Commits of one more superstep; what a call costs whatever its length falls out. The
    supersteps of `again`, with one task each, count too: their share is taken off by those of one
    task alone."""
    few, many = sizes.COMMITS, 2 * sizes.COMMITS
    return (commits(e, many, tasks) - commits(e, few, tasks)) / (many - few)


def p16(e: Engine) -> float:
    return per_superstep(e, 1) / 2  # `work` and `again` have one task each


def p16_tasks(e: Engine) -> float:
    return per_superstep(e, sizes.TOGETHER) - p16(e)
