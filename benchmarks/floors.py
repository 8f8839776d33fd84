"""The floor of each case: bare Python that does only the bookkeeping nobody can leave out. No
engine is imported.

What every floor keeps: a node gets a dict of its own, writes are gathered and applied only when all
of the superstep have run, a router sees its own node's writes. Each says below what else it does.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import pickle
import sqlite3
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from functools import partial
from itertools import count
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from threading import Barrier, Lock, Thread
from typing import Any

from cases import adouble, atick, double, tick
from sizes import (
    CHAT,
    FEW,
    GROWN,
    INVOKES,
    ITEM,
    KEYS,
    LONG_CHAT,
    MANY,
    PENDING,
    SENDS,
    STEPS,
    TEXT,
    TURNS,
)
from stored import weight
from timing import abest, best, live, mean, peak


def route(state: dict[str, Any]) -> str:
    return "tick" if state["n"] < STEPS else "end"


class Task:
    """One execution of a node, with a place for its writes and its error."""

    __slots__ = ("error", "input", "name", "writes")

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.input = given
        self.writes: list[tuple[str, Any]] = []
        self.error: BaseException | None = None


class Graph:
    """What a superstep cannot do without, in dicts and lists.

    Which nodes a channel wakes; a version per channel and what each node has seen of its own, for
    that decides what runs; a task in a context of its own, whose error is kept; writes gathered by
    channel and applied at the barrier.
    """

    def __init__(self, nodes: dict[str, Any], edges: dict[str, str] | None = None) -> None:
        self.nodes = nodes
        self.edges = edges  # None: a router decides
        self.wakes = {f"to:{name}": name for name in nodes}

    def begin(self, given: dict[str, Any]) -> None:
        self.state = dict(given)
        self.versions: dict[str, int] = {**dict.fromkeys(given, 1), "to:tick": 1, "to:a": 1}
        self.seen: dict[str, int] = {}
        self.changed = ["to:tick" if self.edges is None else "to:a"]
        self.step = 1

    def plan(self) -> list[Task]:
        tasks = []
        for channel in self.changed:
            name = self.wakes.get(channel)
            if name is not None and self.versions[channel] > self.seen.get(name, 0):
                tasks.append(Task(name, self.state.copy()))
        return tasks

    def run(self, task: Task) -> None:
        try:
            self.write(task, self.nodes[task.name](task.input))
        except Exception as error:
            task.error = error

    async def arun(self, task: Task) -> None:
        try:
            self.write(task, await self.nodes[task.name](task.input))
        except Exception as error:
            task.error = error

    def write(self, task: Task, result: dict[str, Any]) -> None:
        writes = task.writes
        for key, value in result.items():
            if key in self.state:
                writes.append((key, value))
        if self.edges is None:
            view = self.state.copy()
            view.update(writes)
            target = route(view)
        else:
            target = self.edges[task.name]
        if target != "end":
            writes.append((f"to:{target}", None))

    def apply(self, tasks: list[Task]) -> None:
        grouped: dict[str, list[Any]] = {}
        for task in tasks:
            if task.error is not None:
                raise task.error
            self.seen[task.name] = self.versions[f"to:{task.name}"]
            for channel, value in task.writes:
                grouped.setdefault(channel, []).append(value)
        self.step += 1
        for channel, values in grouped.items():
            self.versions[channel] = self.step
            if channel in self.state:
                self.state[channel] = values[-1]
        self.changed = list(grouped)

    def invoke(self, given: dict[str, Any], history: list[Any] | None = None) -> dict[str, Any]:
        self.begin(given)
        while (tasks := self.plan()) and self.step < 3 * STEPS:
            for task in tasks:
                copy_context().run(self.run, task)
            self.apply(tasks)
            if history is not None:
                stored = {
                    name: pickle.dumps(self.state[name], 5)
                    for name in self.changed
                    if name in self.state
                }
                history.append(
                    (self.step, self.step - 1, self.versions.copy(), self.seen.copy(), stored)
                )
        return dict(self.state)

    async def ainvoke(self, given: dict[str, Any]) -> dict[str, Any]:
        self.begin(given)
        while (tasks := self.plan()) and self.step < 3 * STEPS:
            for task in tasks:
                await self.arun(task)
            self.apply(tasks)
        return dict(self.state)


def p1() -> float:
    """Supersteps of one node and its router."""
    graph = Graph({"tick": tick})
    return best(lambda: graph.invoke({"n": 0}), STEPS)


CHAIN = {"a": "b", "b": "c", "c": "end"}


def p2() -> float:
    """Three supersteps joined by edges, and an input and an output dict."""
    graph = Graph(dict.fromkeys("abc", tick), CHAIN)

    def work() -> None:
        for _ in range(INVOKES):
            graph.invoke({"n": 0})

    return best(work, INVOKES)


def p2_async() -> float:
    """As P2, with an await of each node; a single coroutine needs no asyncio task."""
    graph = Graph(dict.fromkeys("abc", atick), CHAIN)

    async def work() -> None:
        for _ in range(INVOKES):
            await graph.ainvoke({"n": 0})

    return asyncio.run(abest(work, INVOKES))


def p3() -> float:
    """As P1, with an await of the node; a single coroutine needs no asyncio task."""
    graph = Graph({"tick": atick})
    return asyncio.run(abest(lambda: graph.ainvoke({"n": 0}), STEPS))


def p4() -> float:
    """As P1, with a record per superstep: id and parent, versions, what was seen, the changed
    values as bytes."""
    graph = Graph({"tick": tick})
    return best(lambda: graph.invoke({"n": 0}, []), STEPS)


def m_step() -> float:
    """What P4's record of a superstep holds."""
    graph = Graph({"tick": tick})
    history: list[Any] = []
    tracemalloc.start()
    graph.invoke({"n": STEPS - 1}, history)
    before, already = live(), len(history)
    graph.invoke({"n": 0}, history)
    return (live() - before) / (len(history) - already)


def p10() -> float:
    """As P1, with a dict of 2,000 keys for the node and one for its router."""
    graph = Graph({"tick": tick})
    return best(lambda: graph.invoke({"n": 0, **{f"k{i}": 1 for i in range(KEYS - 1)}}), STEPS)


def fan_out(node: Callable[[Any], Any]) -> float:
    """Five jobs handed to threads that are kept, and one wait for all; then the join is called."""
    with ThreadPoolExecutor(5) as pool:

        def work() -> None:
            for _ in range(INVOKES):
                state: dict[str, Any] = {"items": []}
                jobs = [pool.submit(node, state.copy()) for _ in range(5)]
                wait(jobs)
                for job in jobs:
                    state["items"] = state["items"] + job.result()["items"]
                state["items"] = state["items"] + [len(state.copy()["items"])]

        return best(work, INVOKES)


def p7() -> float:
    return fan_out(lambda state: {"items": [1]})


def p7_wait() -> float:
    """The same, and the five wait for each other, so that each needs a thread of its own."""
    meet = Barrier(5)

    def node(state: Any) -> Any:
        meet.wait(10)
        return {"items": [1]}

    return fan_out(node)


def p7_async() -> float:
    """Five asyncio tasks and one wait for all; then the join is called."""

    async def node(state: Any) -> Any:
        return {"items": [1]}

    async def work() -> None:
        for _ in range(INVOKES):
            state: dict[str, Any] = {"items": []}
            for result in await asyncio.gather(*(node(state.copy()) for _ in range(5))):
                state["items"] = state["items"] + result["items"]
            state["items"] = state["items"] + [len(state.copy()["items"])]

    return asyncio.run(abest(work, INVOKES))


def p29() -> float:
    """A job handed to a thread that is kept, and a wait until it has ended: who waits for plain
    code with a limit cannot do with less."""
    jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    ended = Lock()

    def serve() -> None:
        while (job := jobs.get()) is not None:
            job()

    def work() -> None:
        for _ in range(STEPS):
            jobs.put(ended.release)
            ended.acquire(timeout=60)

    ended.acquire()
    Thread(target=serve).start()
    try:
        return best(work, STEPS)
    finally:
        jobs.put(None)


def p8() -> float:
    """One job per task in a thread pool's queue; results gathered in order."""
    with ThreadPoolExecutor() as pool:

        def work() -> None:
            items: list[int] = []
            for result in pool.map(double, range(SENDS)):
                items.extend(result["items"])

        return best(work, SENDS)


def turn(length: int) -> float:
    """A superstep of a loop whose list grows: a copy of it with one more, and an index of ids that
    says whether that one is new; the router sees the new list."""
    given = [{"role": "user", "content": "words", "id": f"m{n}"} for n in range(length)]

    def work() -> None:
        state: dict[str, Any] = {"messages": given, "turn": 0}
        places = {message["id"]: at for at, message in enumerate(given)}
        while state["turn"] < TURNS:
            known, seen = state.copy(), state["turn"]
            new = {"role": "user", "content": "words", "id": f"n{seen}"}
            assert places.setdefault(new["id"], len(known["messages"])) == length + seen
            state = {**known, "messages": [*known["messages"], new], "turn": seen + 1}

    def index() -> None:
        assert {message["id"]: at for at, message in enumerate(given)}

    return (best(work, 1) - best(index, 1)) / TURNS


class Packet:
    """A Send, with nothing but its content."""

    __slots__ = ("arg", "node", "timeout")

    def __init__(self, arg: int) -> None:
        self.node, self.arg, self.timeout = "work", arg, None


def gather(count: int) -> list[int]:
    """A loop that keeps one packet and one result per Send, as any map-reduce must until its
    barrier."""
    packets = [Packet(i) for i in range(count)]
    results = [double(packet.arg)["items"] for packet in packets]
    return [item for items in results for item in items]


def p8_linear() -> float:
    """The loop: what grows in it is the garbage collector's work, which looks at all that lives
    again and again."""
    return mean(lambda: gather(MANY), 1) / mean(lambda: gather(FEW), 1)


def m_send() -> float:
    """The same loop's packet and result."""
    tracemalloc.start()
    gather(PENDING)
    few, many = (peak(lambda count=count: gather(count)) for count in (PENDING, 3 * PENDING))  # type: ignore[misc]
    return (many - few) / (2 * PENDING)


def m_send_waiting() -> float:
    """The packet."""
    tracemalloc.start()
    before = live()
    packets = [Packet(i) for i in range(PENDING)]
    return (live() - before) / len(packets)


def p9() -> float:
    """One asyncio task per Send; results gathered in order."""

    async def work() -> None:
        items: list[int] = []
        for result in await asyncio.gather(*(adouble(i) for i in range(SENDS))):
            items.extend(result["items"])

    return asyncio.run(abest(work, SENDS))


TABLES = """
    CREATE TABLE spaces (id INTEGER PRIMARY KEY, thread_id TEXT, checkpoint_ns TEXT, head INTEGER,
        head_id TEXT);
    CREATE TABLE checkpoints (seq INTEGER PRIMARY KEY, space INTEGER, checkpoint_id TEXT,
        parent_id TEXT, link INTEGER, run_id TEXT, body BLOB);
    CREATE UNIQUE INDEX a ON checkpoints (space, checkpoint_id);
    CREATE INDEX b ON checkpoints (space);
    CREATE INDEX c ON checkpoints (run_id) WHERE run_id IS NOT NULL;
    INSERT INTO spaces VALUES (1, '1', '', 0, '');
"""
BODY = 292
"""Bytes of the long column, as ours has them in this case: what changed, and what the task
wrote."""


class File:
    """The very row that ours stores, in the same table and indexes, and a new head: one transaction
    a superstep."""

    def __init__(self, folder: str, synchronous: str) -> None:
        self.database = sqlite3.connect(f"{folder}/threads.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute(f"PRAGMA synchronous={synchronous}")
        self.database.executescript(TABLES)
        self.numbers = count()

    def keep(self, steps: int) -> None:
        """So many transactions."""
        row = (
            "INSERT INTO checkpoints (space, checkpoint_id, parent_id, link, body) "
            "VALUES (1, ?, ?, ?, ?)"
        )
        execute, body, last = self.database.execute, bytes(BODY), ""
        for _ in range(steps):
            name = f"{next(self.numbers):036d}"
            execute("BEGIN IMMEDIATE")
            seq = execute(row, (name, last, 1, body)).lastrowid
            execute(
                "UPDATE spaces SET head = ?, head_id = ? WHERE id = 1 AND head < ?",
                (seq, name, seq),
            )
            execute("COMMIT")
            last = name


def saved(synchronous: str) -> float:
    """One transaction per superstep."""
    with TemporaryDirectory() as folder:
        file = File(folder, synchronous)
        spent = best(lambda: file.keep(STEPS), STEPS)
        file.database.close()
    return spent


def file_bytes(steps: int) -> int:
    """What so many transactions weigh."""
    with TemporaryDirectory() as folder:
        file = File(folder, "off")
        file.keep(steps)
        file.database.close()
        return weight(folder)


def floor_of_fleet(case: str) -> float:
    """A bare `SKIP LOCKED` loop; needs psycopg."""
    import fleet_floor

    return fleet_floor.CASES[case]()


def floor_of_live_threads() -> float:
    """Bare transactions on Postgres; needs psycopg."""
    import live_floor

    return live_floor.p19()


def read(value: Any) -> float:
    """One row of an SQLite file, and what its bytes hold."""
    with TemporaryDirectory() as folder:
        database = sqlite3.connect(f"{folder}/values.db")
        database.execute("CREATE TABLE channel_values (id INTEGER PRIMARY KEY, data BLOB)")
        database.execute("INSERT INTO channel_values (data) VALUES (?)", (marshal.dumps(value),))
        database.commit()

        def work() -> None:
            ((data,),) = database.execute("SELECT data FROM channel_values WHERE id = 1")
            marshal.loads(data)

        return best(work, 1)


FLOORS: dict[str, Callable[[], float]] = {
    "P1": p1,
    "P2": p2,
    "P2-async": p2_async,
    "P3": p3,
    "P4": p4,
    "P5": lambda: saved("normal"),
    "P6": lambda: saved("full"),
    "P18": lambda: saved("normal"),
    "P19": floor_of_live_threads,
    "P20": lambda: saved("full"),
    "P7": p7,
    "P7-wait": p7_wait,
    "P7-async": p7_async,
    "P8": p8,
    "P8-linear": p8_linear,
    "P9": p9,
    "P29-timeout": p29,
    "P10": p10,
    "P21": lambda: turn(CHAT),
    "P21-long": lambda: turn(LONG_CHAT),
    **{name: partial(floor_of_fleet, name) for name in ("P28-1", "P28-3", "P36-1", "P36-3")},
    "P22-state": lambda: read([os.urandom(ITEM // 2).hex() for _ in range(GROWN)]),
    "P27": lambda: read("abcdefghij" * (TEXT // 10)),
    "M-step": m_step,
    "M-step-file": lambda: (file_bytes(STEPS) - file_bytes(STEPS // 4)) / (STEPS - STEPS // 4),
    "M-send": m_send,
    "M-send-waiting": m_send_waiting,
}
