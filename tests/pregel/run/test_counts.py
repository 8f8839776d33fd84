"""What work costs, counted: calls of Python functions, SQL statements, commits, bytes, modules. Counts do not wobble
as times do, so CI can hold them.

A limit is the count of the day it was set, plus a tenth. A change that needs more says why and sets it anew; one that
needs less sets it lower, or the test says so: less than two thirds of a limit is a limit that guards nothing.
"""

from __future__ import annotations

import asyncio
import gc
import json
import operator
import sys
import tracemalloc
from threading import Barrier
from typing import Annotated, TypedDict

import pytest
from kit.graphs import chain_of, thread_config
from kit.programs import printed

from stategraph import (
    END,
    START,
    CachePolicy,
    CompiledStateGraph,
    InMemorySaver,
    MessagesState,
    Send,
    StateGraph,
)
from stategraph.checkpoint import Serializer
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel import undo
from stategraph.pregel.drivers import pool, timeslice
from stategraph.store import InMemoryCache

TODAY = {
    # Calls with Python 3.11. Newer Pythons need fewer: they run comprehensions in place.
    "superstep": 38,
    # Since 3.13 it is noticed when a node caught the cancellation of its run.
    "superstep, async node": 39 if sys.version_info < (3, 13) else 43,
    "superstep, async node with a timeout": 115 if sys.version_info < (3, 12) else 66,
    "superstep, in memory": 78,
    "superstep, in memory, async node": 83,
    "superstep, in SQLite": 84,
    "superstep, in SQLite, streamed": 135,
    "superstep, with a timeout": 52,
    "superstep, nodes validated": 59,  # the inputs of a node and of its router
    "superstep, writes validated": 52,
    "invoke of a chain of three": 161,
    "invoke of a cached node": 152,
    "Send": 12,
    "Send, async node": 13,
    "node compiled": 92,
    "get_state": 105,
    "get_state of an older checkpoint": 174,
    "history of 10 checkpoints": 1_195,
    "update_state of an older checkpoint": 626,
    "statements of a graph as a node": 16,
    # Bytes.
    "superstep of history in memory": 1_917,
    "append of 200 bytes in SQLite": 900,
    # Modules that `from stategraph import StateGraph` loads: our own, and others beyond what Python loads by itself.
    "own modules": 107,  # each part of a run has a file of its own; import takes as long as before
    "other modules": 56,
}
"""What was counted when the number was last set."""


@pytest.fixture(scope="module", autouse=True)
def older_objects_are_set_aside():
    """The collections of garbage in `calls` look only at what these tests make, not at what is left of all others."""
    gc.collect()
    gc.freeze()


def hold(what, count):
    """Not more than a tenth above today's number, and not so far below that it guards nothing."""
    assert count <= 1.1 * TODAY[what], f"{what}: {count:g}, where it was {TODAY[what]}"
    assert count >= TODAY[what] / 1.65, f"{what}: only {count:g}: lower TODAY, which is {TODAY[what]}"


def calls(work):
    """How many Python functions are called by `work` on this thread; a generator counts each time it goes on."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event == "call"

    gc.collect()
    gc.disable()  # a collection would run others' finalizers here, and count them
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def per_unit(run, few=100, many=300):
    """Calls for one more unit of work: what a run costs once, whatever its length, falls out."""
    run(few)  # whatever is made at the first run is made here
    return (calls(lambda: run(many)) - calls(lambda: run(few))) / (many - few)


def instructions(work):
    """How many bytecode instructions `work` takes on this thread: these see a loop that calls nothing."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return note

    before = sys.gettrace()
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):  # from Python 3.12 on the first time may go unseen
            count = 0
            sys.settrace(note)
            work()
            sys.settrace(before)
    finally:
        sys.settrace(before)
        gc.enable()
    return count


class Count(TypedDict):
    n: int
    goal: int


def tick(state):
    return {"n": state["n"] + 1}


def route(state):
    return "tick" if state["n"] < state["goal"] else "end"


def loop(
    schema=Count, others=0, saver=None, node=tick, validate=()
):
    """A node that counts up with a router, and a chain of nodes that never runs."""
    graph = StateGraph(schema, validate=validate).add_node("tick", node).add_edge(START, "tick")
    ends = {"tick": "tick", "end": END}
    for i in range(others):
        graph.add_node(f"n{i}", tick)
        if i:
            graph.add_edge(f"n{i - 1}", f"n{i}")
        else:
            ends["other"] = "n0"
    return graph.add_conditional_edges("tick", route, ends).compile(saver)


async def atick(state):
    return {"n": state["n"] + 1}


def per_superstep(app: CompiledStateGraph, **more):
    return per_unit(lambda steps: app.invoke({"n": 0, "goal": steps, **more}))


def per_saved_superstep(app: CompiledStateGraph):
    """Each run on a thread of its own: within one the history grows."""
    threads = iter(range(100))
    return per_unit(lambda steps: app.invoke({"n": 0, "goal": steps}, thread_config(str(next(threads)))))


def test_a_superstep():
    hold("superstep", per_superstep(loop()))


def test_validating_costs_nothing_where_it_is_off():
    assert per_superstep(loop(validate="input")) == per_superstep(loop())


@pytest.mark.parametrize("place", ["nodes", "writes"])
def test_a_superstep_that_is_validated(place):
    hold(f"superstep, {place} validated", per_superstep(loop(validate=place)))


def test_a_superstep_that_is_saved_in_memory():
    hold("superstep, in memory", per_saved_superstep(loop(saver=InMemorySaver())))


def test_a_superstep_that_is_saved_in_sqlite():
    with SqliteSaver.from_conn_string(":memory:") as saver:
        hold("superstep, in SQLite", per_saved_superstep(loop(saver=saver)))


def test_a_superstep_that_is_saved_in_sqlite_and_streamed():
    """PERFORMANCE P44: the node runs on another thread, since its messages are shown meanwhile."""
    modes, threads = ["messages", "updates", "values"], iter(range(100))
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = loop(saver=saver)

        def run(steps):
            for _ in app.stream({"n": 0, "goal": steps}, thread_config(str(next(threads))), stream_mode=modes):
                pass

        hold("superstep, in SQLite, streamed", per_unit(run))


@pytest.mark.parametrize(
    ("what", "saver"), [("superstep, async node", None), ("superstep, in memory, async node", InMemorySaver())]
)
def test_an_async_superstep(what, saver, monkeypatch):
    monkeypatch.setattr(timeslice, "HOLD", 3600.0)  # how often a run gives way is a matter of seconds, not of calls
    app, threads = loop(node=atick, saver=saver), iter(range(100))

    def run(steps):
        asyncio.run(app.ainvoke({"n": 0, "goal": steps}, thread_config(str(next(threads)))))

    hold(what, per_unit(run))


def test_a_call_of_a_short_graph():
    graph = StateGraph(Count)
    for name in "abc":
        graph.add_node(name, tick)
    app = graph.add_edge(START, "a").add_edge("a", "b").add_edge("b", "c").add_edge("c", END).compile()

    def run(count):
        for _ in range(count):
            app.invoke({"n": 0})

    hold("invoke of a chain of three", per_unit(run, 10, 20))


def test_a_superstep_of_a_node_with_a_timeout():
    """On the thread that waits; what its worker calls is as without one (PERFORMANCE P29)."""
    app = StateGraph(Count).add_node("tick", tick, timeout=60).add_edge(START, "tick")
    app.add_conditional_edges("tick", route, {"tick": "tick", "end": END})
    hold("superstep, with a timeout", per_superstep(app.compile()))


def test_a_superstep_of_an_async_node_with_a_timeout(monkeypatch):
    """Since Python 3.12 an attempt that never waits needs no turn of the event loop (PERFORMANCE P29)."""
    monkeypatch.setattr(timeslice, "HOLD", 3600.0)
    graph = StateGraph(Count).add_node("tick", atick, timeout=60).add_edge(START, "tick")
    app = graph.add_conditional_edges("tick", route, {"tick": "tick", "end": END}).compile()

    def run(steps):
        asyncio.run(app.ainvoke({"n": 0, "goal": steps}, {"recursion_limit": 2 * steps}))

    hold("superstep, async node with a timeout", per_unit(run))


def test_a_call_whose_node_is_cached():
    """What the code of a function does is looked at once (PERFORMANCE P29)."""
    graph = StateGraph(Count).add_node("tick", tick, cache_policy=CachePolicy()).add_edge(START, "tick")
    app = graph.compile(cache=InMemoryCache())

    def run(count):
        for _ in range(count):
            app.invoke({"n": 0})

    hold("invoke of a cached node", per_unit(run, 10, 20))


def test_a_node_that_is_compiled():
    hold("node compiled", per_unit(lambda count: loop(others=count), 10, 110))


READS = {
    "get_state": lambda app, head, old: app.get_state(head),
    "get_state of an older checkpoint": lambda app, head, old: app.get_state(old),
    "history of 10 checkpoints": lambda app, head, old: [*app.get_state_history(head, limit=10)],
    "update_state of an older checkpoint": lambda app, head, old: app.update_state(old, {"items": ["other"]}),
}


@pytest.mark.parametrize("what", READS)
def test_a_look_at_a_stored_thread(what, monkeypatch):
    """PERFORMANCE P40: with a list that grows by 200 bytes a superstep."""
    # A process that declares effects, as other tests do, also asks whether the thread is being undone.
    monkeypatch.setattr(undo, "DECLARED", {})

    class Grows(TypedDict):
        items: Annotated[list[str], operator.add]

    graph = StateGraph(Grows).add_node("add", lambda state: {"items": [f"{len(state['items']):0200}"]})
    graph.add_conditional_edges("add", lambda state: "add" if len(state["items"]) < 60 else END, ["add", END])
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app, config = graph.add_edge(START, "add").compile(saver), thread_config()
        app.invoke({"items": []}, {**config, "recursion_limit": 100})
        (old,) = [each.config for each in app.get_state_history(config, filter={"step": 30})]
        READS[what](app, config, old)
        hold(what, calls(lambda: READS[what](app, config, old)))


class Gathered(TypedDict):
    items: Annotated[list[int], operator.add]
    count: int


def map_reduce(node):
    graph = StateGraph(Gathered).add_node("work", node)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(state["count"])], ["work"])
    return graph.compile()


ONE_WORKER = {"max_concurrency": 1}
"""So that all calls are on this thread."""


def test_a_send():
    app = map_reduce(lambda item: {"items": [item]})
    # One of the calls is the node's, and one the router's lambda.
    hold("Send", per_unit(lambda count: app.invoke({"count": count}, ONE_WORKER)))


def test_a_send_to_an_async_node():
    async def work(item):
        return {"items": [item]}

    app = map_reduce(work)
    hold("Send, async node", per_unit(lambda count: asyncio.run(app.ainvoke({"count": count}))))


@pytest.mark.parametrize("others", [10, 100])
def test_nodes_that_do_not_run_cost_nothing(others):
    assert per_superstep(loop(others=others)) == per_superstep(loop())


def test_a_call_costs_the_same_in_a_large_graph():
    def cost(others):
        app = loop(others=others)
        app.invoke({"n": 0, "goal": 1})
        return instructions(lambda: app.invoke({"n": 0, "goal": 1}))

    assert cost(300) == cost(10)


def test_untouched_keys_cost_nothing():
    keys = {f"k{i}": int for i in range(2000)}
    wide = TypedDict("wide", {"n": int, "goal": int, **keys})  # type: ignore[operator]
    app = loop(wide)
    assert per_superstep(app, **dict.fromkeys(keys, 1)) == per_superstep(loop())


def test_supersteps_cost_the_same_at_the_end_as_at_the_start():
    app = loop()

    def run(steps):
        app.invoke({"n": 0, "goal": steps})

    assert per_unit(run, 10, 20) == per_unit(run, 1000, 1010)


def test_sends_cost_the_same_among_many():
    app = map_reduce(lambda item: {"items": [item]})

    def run(count):
        app.invoke({"count": count}, ONE_WORKER)

    assert per_unit(run, 10, 20) == per_unit(run, 5000, 5010)


def chat(length, saver=None):
    """Calls a loop of so many supersteps, each of which says one more in a chat that begins with so many messages."""

    def speak(state):
        return {"messages": [{"role": "user", "content": "x" * 100, "id": str(len(state["messages"]))}]}

    def run(steps):
        graph = chain_of(MessagesState, speak=speak).add_conditional_edges(
            "speak", lambda s: END if len(s["messages"]) == length + steps else "speak"
        )
        said = [{"role": "user", "content": "x" * 100, "id": str(n)} for n in range(length)]
        graph.compile(saver).invoke({"messages": said}, thread_config(f"{length} {steps}"))

    return run


def test_a_superstep_scans_only_new_messages_however_long_the_chat_is():
    """The first superstep looks at all messages; after that, only C does: copies and comparisons (PERFORMANCE P21)."""
    assert per_unit(chat(2000), 20, 30) == per_unit(chat(200), 20, 30)


def test_a_superstep_encodes_only_new_messages(monkeypatch):
    """Once as the task's write, once for the list; the rest is compared, not encoded."""
    encoded = []
    real = Serializer.dumps

    def dumps(self: Serializer, value):
        blob = real(self, value)
        if isinstance(value, list):
            encoded.append(len(blob[1]))
        return blob

    saver = InMemorySaver()
    monkeypatch.setattr(Serializer, "dumps", dumps)
    chat(2000, saver)(30)
    assert sum(encoded[-40:]) < 40 * 200 and max(encoded) > 2000 * 100


def test_import_loads_no_library_that_only_some_runs_need(tmp_path):
    code = "import json, sys; before = set(sys.modules); from stategraph import StateGraph; print(json.dumps([*{*sys.modules} - before]))"
    loaded = json.loads(printed(code, cwd=tmp_path))
    tops = [name.partition(".")[0] for name in loaded]
    assert not {*tops} & {"networkx", "graphviz", "pydantic", "sqlite3", "asyncio", "psycopg", "rich", "IPython"}
    hold("own modules", tops.count("stategraph"))
    hold("other modules", len(tops) - tops.count("stategraph"))


# -- a database ---------------------------------------------------------------------------------------------------


def said(app, saver: SqliteSaver, given):
    """The SQL statements of one call."""
    texts = []
    saver._database.connection.set_trace_callback(texts.append)
    app.invoke(given, {"configurable": {"thread_id": str(given)}, "recursion_limit": 1000})
    saver._database.connection.set_trace_callback(None)
    return texts


def test_a_superstep_in_sqlite_is_one_commit_of_four_statements():
    """Begin, the checkpoint with what led to it, its head, commit (PERFORMANCE P16)."""
    with SqliteSaver.from_conn_string(":memory:") as saver:
        few, many = (said(loop(saver=saver), saver, {"n": 0, "goal": goal}) for goal in (10, 110))
    assert many.count("COMMIT") - few.count("COMMIT") == 100
    assert len(many) - len(few) == 400


def test_a_subgraph_node_in_sqlite_adds_two_commits_to_its_superstep(monkeypatch):
    """Its input, START and first step are one, its second step the other; nothing is looked for where nothing can be
    (PERFORMANCE P23)."""
    submit = "stategraph.pregel.drivers.pool.HeldEntries.submit"
    monkeypatch.setattr(submit, lambda self, entry, store: None)  # however slow this machine is
    compiled = chain_of(Gathered, a=lambda state: {"items": [1]}, b=lambda state: {"items": [2]}).compile()

    def cost(graphs):
        graph, before = StateGraph(Gathered), START
        for number in range(graphs):
            graph.add_node(f"n{number}", compiled).add_edge(before, f"n{number}")
            before = f"n{number}"
        with SqliteSaver.from_conn_string(":memory:") as saver:
            return said(graph.compile(saver), saver, {"items": [0]})

    few, many = cost(1), cost(3)
    assert many.count("COMMIT") - few.count("COMMIT") == 2 * 3
    hold("statements of a graph as a node", (len(many) - len(few)) / 2)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_tasks_that_end_together_take_two_commits_at_most(count, monkeypatch):
    # Long enough for threads that a busy machine keeps waiting.
    monkeypatch.setattr(pool, "TOGETHER", 0.1)
    monkeypatch.setattr(pool, "AT_MOST", 5.0)
    meet = Barrier(count)

    def node(state):
        meet.wait(10)
        return {"items": [1]}

    builder = StateGraph(Gathered).add_node("w", node)
    builder.add_conditional_edges(START, lambda state: [Send("w", {})] * (count if state["items"] else 0), ["w"])
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = builder.compile(saver)
        none, all = (said(app, saver, {"items": items}).count("COMMIT") for items in ([], [0]))
    assert all - none <= 2


# -- bytes --------------------------------------------------------------------------------------------------------


def held(work):
    """Bytes of Python objects that live after `work`, and did not before."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    work()
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def test_a_superstep_of_history_in_memory():
    app, threads = loop(saver=InMemorySaver()), iter(range(100))

    def bytes_of(steps):
        return held(lambda: app.invoke({"n": 0, "goal": steps}, thread_config(str(next(threads)))))

    tracemalloc.start()
    try:
        bytes_of(10)
        hold("superstep of history in memory", (bytes_of(300) - bytes_of(100)) / 200)
    finally:
        tracemalloc.stop()


def appending(saver):
    """A loop whose list grows by 200 bytes a superstep, to the length its first item names."""
    return (
        chain_of(Gathered, add=lambda state: {"items": ["x" * 198]})
        .add_conditional_edges("add", lambda state: "add" if len(state["items"]) < int(state["items"][0]) else END)
        .compile(saver)
    )


def stored(appends):
    """Bytes of a database that holds so many appends."""
    with SqliteSaver.from_conn_string(":memory:") as saver:
        appending(saver).invoke({"items": [str(appends)]}, {**thread_config("1"), "recursion_limit": 2 * appends})
        pages, size = (saver._database.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_count", "page_size"))
    return int(pages * size)


def test_an_append_costs_what_it_adds():
    hold("append of 200 bytes in SQLite", (stored(600) - stored(100)) / 500)


def test_bytes_per_append_do_not_grow_with_the_list():
    early, late = (stored(200) - stored(100)) / 100, (stored(1100) - stored(1000)) / 100
    assert late <= 1.2 * early
