"""The graphs of `executor_suite.py`. The functions of nodes stand at the top of this module, so that workers find them by
name; it imports nothing that a worker has no use for.
"""

from __future__ import annotations

import asyncio
import fcntl
import operator
import os
import signal
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import TypedDict

from kit.graphs import chain_of, graph_of
from stategraph import (
    START,
    CachePolicy,
    Command,
    GraphInterrupt,
    InMemoryCache,
    InMemoryStore,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    add_messages,
    entrypoint,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
    interrupt,
    task,
)
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.graph.messages import push_message
from stategraph.store import BaseStore, PutOp

AT_ONCE = RetryPolicy(initial_interval=0.0, jitter=False)
ONE_BY_ONE = {"configurable": {"thread_id": "1"}, "max_concurrency": 1}


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]
    texts: list
    messages: Annotated[list, add_messages]


class Oops(Exception):
    """Its arguments are not those of its `__init__`."""

    def __init__(self, code, *, place="here"):
        super().__init__(f"oops {code}")
        self.code, self.place = code, place


# -- the functions of nodes -----------------------------------------------------------------------------------


def count(state: State):
    return {"n": state.get("n", 0) + 1, "log": ["count"]}


def word_count(sent, writer):
    for word in sent["text"].split():
        writer((sent["text"], word))
    return {"log": [len(sent["text"].split())]}


def total(state: State):
    return {"n": sum(state["log"])}


def spread(state: State):
    return [Send("word_count", {"text": text}) for text in state["texts"]]


def below_three(state: State) -> Literal["count", "__end__"]:
    return "count" if state["n"] < 3 else "__end__"


def note_a(state: State):
    return {"log": ["a"]}


def note_b(state: State):
    return {"log": ["b"]}


def note_c(state: State):
    return {"log": ["c", *state["log"]]}


def goes_on(state: State) -> Command[Literal["word_count", "note_b"]]:
    return Command(update={"log": ["went"]}, goto=[Send("word_count", {"text": "x y"}), "note_b"])


def yields(state: State):
    yield {"log": ["first"]}
    yield {"log": ["second"]}


def asks_twice(state: State):
    first = interrupt("first?")
    second = interrupt({"second": first}, response_schema=int)
    return {"log": [("asked", first, second)]}


def asks_in_a_group(state: State):
    """What `asyncio.TaskGroup` does to those that ask; the event loop is the function's own."""

    async def ask(name):
        return interrupt(name, key=name)

    async def ask_both():
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(ask(name)) for name in ("one?", "two?")]
        return [each.result() for each in asked]

    return {"log": asyncio.run(ask_both())}


def asks_once(state: State):
    return {"log": [("once", interrupt("once?"))]}


def pauses_by_hand(state: State):
    first = interrupt("first?")
    if state["n"] == 0:
        raise GraphInterrupt("by hand")
    return {"log": [("by hand", first)]}


def fails_twice(state: State, runtime: Runtime):
    assert runtime.execution_info is not None
    attempt = runtime.execution_info.node_attempt
    runtime.stream_writer(("attempt", attempt))
    if attempt < 3:
        raise Oops(attempt, place="there")
    return {"log": [("attempt", attempt)]}


def fails(state: State, runtime: Runtime):
    if not runtime.context:
        raise Oops(7, place="there")
    return {"log": ["fixed"]}


def takes_over(state: State, error):
    return {"log": [(error.node, type(error.error).__name__, error.error.code, error.error.place)]}


def speaks(state: State, writer):
    for n in range(20):
        writer(n)
    push_message({"role": "assistant", "content": "hello", "id": "m1"})
    get_stream_writer()("last")
    return {"log": ["spoke"]}


def looks(state: State, config, runtime: Runtime):
    info = runtime.execution_info
    assert info is not None and runtime is get_runtime() and config == get_config()
    assert info.task_id == runtime.idempotency_key and info.checkpoint_ns.endswith(info.task_id)
    meta = {k: v for k, v in config["metadata"].items() if k != "stategraph_checkpoint_ns"}
    told = (runtime.context, runtime.previous, runtime.store, runtime.server_info)
    held = (told, info.thread_id, info.run_id, info.node_attempt)
    return {"log": [held, meta, config["configurable"]["mine"], config["tags"]]}


def where(state: State):
    return {"log": [os.getpid()]}


async def awaits(state: State):
    return {"log": [(get_config()["run_name"], state["n"])]}


def drains(state: State, runtime: Runtime):
    assert runtime.control is not None and not runtime.drain_requested
    runtime.control.request_drain("enough")
    return {"log": ["drained"]}


@dataclass
class Record:
    n: int = 0
    log: Annotated[list, operator.add] = None  # type: ignore[assignment]


def of_record(state: Record):
    assert isinstance(state, Record)
    return {"n": state.n + 1}


@task
def square(n):
    return n * n


@task
def pid_of_a_task():
    return os.getpid()


@task
def square_or_fail(n):
    if n == 2:
        raise Oops(2)
    return n * n


# -- the graphs -----------------------------------------------------------------------------------------------


def row(*nodes, schema=State, **options):
    graph = StateGraph(schema).add_sequence(list(nodes))
    return graph.add_edge(START, next(iter(graph.nodes))).compile(**options)


def map_reduce(**options):
    graph = graph_of(State, "word_count>total", word_count=word_count, total=total)
    return graph.add_conditional_edges(START, spread, ["word_count"]).compile(**options)


def loop(**options):
    return chain_of(State, count=count).add_conditional_edges("count", below_three).compile(**options)


def joins(**options):
    graph = StateGraph(State).add_node(note_a).add_node(note_b).add_node(note_c).add_node(count, defer=True)
    graph.add_edge(START, "note_a").add_edge(START, "note_b").add_edge(["note_a", "note_b"], "note_c")
    return graph.add_edge("note_c", "count").add_edge("note_a", "count").compile(**options)


def commands(**options):
    return graph_of(State, "S>goes_on", goes_on=goes_on, note_b=note_b, word_count=word_count).compile(**options)


def questions(**options):
    graph = graph_of(State, "S>asks_twice S>asks_once", asks_twice=asks_twice, asks_once=asks_once, note_c=note_c)
    return graph.add_edge(["asks_twice", "asks_once"], "note_c").compile(**options)


def retries(**options):
    graph = StateGraph(State).add_node(fails_twice, retry_policy=AT_ONCE).add_edge(START, "fails_twice")
    return graph.compile(**options)


def handled(**options):
    """In a row: what is shown first of a handler and of a sibling is chance."""
    graph = StateGraph(State).add_node(fails, error_handler=takes_over).add_node(note_b)
    return graph.add_edge(START, "note_b").add_edge("note_b", "fails").compile(**options)


def unhandled(**options):
    return graph_of(State, "S>fails S>note_a", fails=fails, note_a=note_a).compile(**options)


def nested(**options):
    """A graph as a node, whose own nodes run where its parent's do."""
    graph = graph_of(
        State, "S>inside S>note_a [inside,note_a]>note_b", inside=row(count, asks_once), note_a=note_a, note_b=note_b
    )
    return graph.compile(**options)


def cached(**options):
    graph = StateGraph(State).add_node(count, cache_policy=CachePolicy()).add_edge(START, "count")
    return graph.compile(cache=InMemoryCache(), **options)


def squares(function):
    def build(**options):
        @entrypoint(**options)
        def flow(ns, previous: Any):
            return [future.result() for future in [function(n) for n in ns]], previous

        return flow

    return build


def gives_a_lock(state: State):
    return {"log": [1, {"lock": threading.Lock()}]}


def puts(state: State, runtime: Runtime):
    runtime.store.put(("a",), "b", {})


def gets(state: State):
    get_store().get(("a",), "b")


def remembers(state: State, *, store: BaseStore):
    """Twice the same, so that it may be done again."""
    n = state.get("n", 0)
    store.batch([PutOp(("notes", str(n)), "n", {"n": n}), PutOp(("notes", "all"), str(n), {"text": "x" * n}, ttl=5)])


def recalls(state: State, runtime: Runtime):
    store = runtime.store
    assert store is get_store()
    store.put(("notes", "all"), "of recalls", {"text": "xx"})
    found = store.search(("notes",), query="xxx")
    return {"log": [[(item.key, item.value, item.score) for item in found], store.list_namespaces()]}


def forgets(state: State):
    store = get_store()
    item = store.get(("notes", str(state["n"])), "n")
    store.delete(("notes", "all"), "of recalls")
    return {"log": [item.value, store.get(("notes",), "none").value]}


async def recalls_in_time(state: State, store: BaseStore):
    await asyncio.gather(*(store.aput(("a",), str(n), {"text": "x" * n}) for n in range(4)))
    return {"log": [item.key for item in await store.asearch((), query="xxx", limit=1)]}


def only_looks(state: State, runtime: Runtime):
    assert runtime.previous is None
    return {"log": ["only looked"]}


def opens_its_store(state: State):
    store = get_store()
    return {"log": [store and type(store).__name__]}


class Noted(InMemoryStore):
    """Notes in a file when it is opened elsewhere, and when it is closed."""

    def __init__(self, log, name=None):
        super().__init__()
        self._log, self._name = log, name
        if name is not None:
            self._note("opened")

    def _note(self, what):
        with Path(self._log).open("a") as file:
            file.write(f"{what}{self._name} ")

    def reopen(self):
        return partial(Noted, self._log, "")

    def close(self):
        self._note("closed")


def lengths(texts):
    """What finds items by their meaning, for a short word like x."""
    return [[len(text), 1] for text in texts]


INDEX = {"dims": 2, "embed": lengths, "fields": ["text"]}


def memories(**options):
    """What nodes write is read by others, by parameter, runtime and function."""
    return row(remembers, recalls, forgets, **options)


def runs_a_graph(state: State):
    return row(count).invoke(state)


def calls_a_task(state: State):
    return {"n": square(3).result()}


def kills_its_worker(state: State):
    path = Path(state["texts"][0])
    with path.open("a") as file:
        file.write("x")
    if path.stat().st_size <= state["n"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"log": ["survived"]}


def deadly(**options):
    graph = StateGraph(State).add_node(kills_its_worker).add_node(note_a)
    return graph.add_edge(START, "kills_its_worker").add_edge(START, "note_a").compile(**options)


def waits_for_a_file(state: State, runtime: Runtime):
    """Only its first attempt waits, for longer than any test."""
    assert runtime.execution_info is not None
    folder = Path(state["texts"][0])
    if runtime.execution_info.node_attempt == 1:
        (folder / "pid").write_text(str(os.getpid()))
        while not (folder / "go").exists():
            time.sleep(0.01)
        (folder / "late").touch()
    return {"log": ["in time"]}


def stays(state: State):
    """Tells which process it is in, and stays there."""
    get_stream_writer()(os.getpid())
    (Path(state["texts"][0]) / f"pid {os.getpid()}").touch()
    while not (Path(state["texts"][0]) / "go").exists():
        time.sleep(0.01)
    return {"log": ["stayed"]}


def two_stay(**options):
    return graph_of(State, "S>a S>b", a=stays, b=stays).compile(**options)


def two_tasks_stay(executor):
    called = task(stays, executor=executor)

    @entrypoint()
    def both(state: State):
        return [call.result() for call in (called(state), called(state))]

    return both


def limited(seconds, **options):
    graph = StateGraph(State).add_node(waits_for_a_file, timeout=seconds, retry_policy=AT_ONCE)
    return graph.add_edge(START, "waits_for_a_file").compile(**options)


def beats(state: State, runtime: Runtime):
    for _ in range(8):
        time.sleep(0.1)
        runtime.heartbeat()
    return {"log": ["alive"]}


def takes_its_time(state: State):
    time.sleep(0.4)
    return {"log": ["done"]}


def rests(sent):
    time.sleep(0.05)
    return {"log": [sent["n"]]}


def reads_much(state: State):
    return {"n": len(state["texts"][0])}


def works_or_waits(sent):
    """The third waits for good, the first time."""
    folder = Path(sent["folder"])
    with (folder / "log").open("a") as file:
        file.write(f"{sent['n']} ")
    if sent["n"] == 3 and (folder / "log").read_text().count("3") == 1:
        with (folder / "held").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            while not (folder / "over").exists():
                time.sleep(0.01)
    return {"log": [sent["n"]]}


def six(state: State):
    return [Send("works_or_waits", {"n": n, "folder": state["texts"][0]}) for n in range(6)]


def six_tasks(**options):
    graph = graph_of(State, "works_or_waits>total", works_or_waits=works_or_waits, total=total)
    return graph.add_conditional_edges(START, six, ["works_or_waits"]).compile(**options)


def be_a_driver(folder):
    """What a process does that will be killed."""
    with SqliteSaver.from_conn_string(f"{folder}/threads.db") as saver:
        app = six_tasks(checkpointer=saver, executor="processes")
        app.invoke({"texts": [folder]}, ONE_BY_ONE)
