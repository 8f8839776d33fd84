"""What a running node has: its runtime and config, by parameter and by function, in threads and coroutines; the step
counts; draining; and the idempotency key that is the same for every attempt.
"""

from __future__ import annotations

import asyncio
import contextvars
import operator
import threading
from dataclasses import FrozenInstanceError, dataclass
from typing import Annotated, Any

import pytest
from kit.drive import each_case
from kit.graphs import CONFIG, EMPTY, chain_of, graph_of, thread_config
from typing_extensions import TypedDict

from stategraph import (
    START,
    GraphDrained,
    GraphRecursionError,
    GraphWarning,
    InMemorySaver,
    InMemoryStore,
    IsLastStep,
    RemainingSteps,
    RetryPolicy,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    get_config,
    get_runtime,
    get_store,
    get_stream_writer,
    task,
)

WAIT = 5.0


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


class Oops(Exception):
    pass


def app_of(*nodes, saver=None, schema=None, **more):
    """The nodes in a row."""
    graph = StateGraph(State, schema).add_sequence(list(nodes))
    return graph.add_edge(START, next(iter(graph.nodes))).compile(saver, **more)


# -- the runtime ----------------------------------------------------------------------------------------------


def test_a_node_gets_the_whole_runtime(drive):
    seen = []
    store, control = InMemoryStore(), RunControl()

    def node(state, runtime: Runtime):
        seen.append(runtime)
        assert get_runtime() is runtime, "one object for the whole attempt"

    app = app_of(node, saver=InMemorySaver(), store=store)
    config = {**CONFIG, "run_id": "run-1"}
    drive.invoke(app, {"n": 1}, config, context={"user": "x"}, control=control)
    (runtime,) = seen
    info = runtime.execution_info
    assert (runtime.context, runtime.store, runtime.control) == ({"user": "x"}, store, control)
    assert (runtime.previous, runtime.drain_requested, runtime.drain_reason) == (None, False, None)
    assert (info.thread_id, info.run_id, info.node_attempt) == ("t", "run-1", 1)
    assert info.checkpoint_ns == f"node:{info.task_id}"
    (step,) = [s for s in drive.history(app, CONFIG) if s.next == ("node",)]
    assert (info.checkpoint_id, info.task_id) == (step.config["configurable"]["checkpoint_id"], step.tasks[0].id)


def test_a_runtime_is_frozen_and_can_be_overridden(drive):
    runtime = Runtime(context=1)
    with pytest.raises(FrozenInstanceError):
        runtime.context = 2  # type: ignore[misc]
    assert (runtime.override(context=2).context, runtime.context) == (2, 1)
    runtime.stream_writer("nobody listens")
    runtime.heartbeat()


def test_a_nested_run_knows_the_run_it_belongs_to(drive):
    seen = []
    child = app_of(("inner", lambda state: seen.append(get_runtime().execution_info)))
    app = app_of(("outer", child), saver=InMemorySaver())
    drive.invoke(app, {"n": 1}, {**CONFIG, "run_id": "run-1"})
    (info,) = seen
    assert (info.run_id, info.thread_id) == ("run-1", "t")
    outer, inner = info.checkpoint_ns.split("|")
    assert outer.startswith("outer:") and inner == f"inner:{info.task_id}"


# -- the functions --------------------------------------------------------------------------------------------

GETTERS = [get_config, get_store, get_stream_writer, get_runtime]


@pytest.mark.parametrize("getter", GETTERS)
def test_outside_of_a_run_there_is_nothing_to_get(getter):
    with pytest.raises(RuntimeError, match=rf"{getter.__name__}\(\) must be called inside"):
        getter()


def held():
    """What the four give here: the node's name and the store, having written an event."""
    get_stream_writer()("event")
    assert get_runtime().store is get_store()
    return get_config()["metadata"]["stategraph_node"], get_store()


def stream_of(drive, node, found):
    """Run a node that adds what `held()` gives it to `found`, and expect all of it."""
    store = InMemoryStore()
    assert drive.stream(app_of(("node", node), store=store), {"n": 1}, stream_mode="custom") == ["event"]
    assert found == [("node", store)]


def test_in_a_thread_that_copies_the_context(drive):
    found = []

    def node(state):
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(lambda: found.append(held()),))
        thread.start()
        thread.join(WAIT)

    stream_of(drive, node, found)


def test_a_bare_thread_has_nothing_but_may_use_a_writer_it_was_handed(drive):
    found = []

    def bare(writer):
        with pytest.raises(RuntimeError, match="copy_context"):
            get_config()
        writer("handed over")
        found.append(True)

    def node(state, writer):
        thread = threading.Thread(target=bare, args=(writer,))
        thread.start()
        thread.join(WAIT)

    assert drive.stream(app_of(node), {"n": 1}, stream_mode="custom") == ["handed over"]
    assert found == [True]


def test_runtime_functions_work_in_coroutines_and_their_tasks():
    found = []

    async def part():
        found.append(held()[0])

    async def node(state):
        await part()
        await asyncio.create_task(part())
        await asyncio.gather(part(), part())
        await asyncio.to_thread(lambda: found.append(held()[0]))

    asyncio.run(app_of(node).ainvoke({"n": 1}))
    assert found == ["node"] * 5


def test_in_routers_and_tasks(drive):
    found = []

    @task
    def work():
        found.append(held()[0])

    def route(state):
        found.append(held()[0])
        return "__end__"

    def node(state):
        work().result()

    drive.invoke(chain_of(State, node=node).add_conditional_edges("node", route, ["__end__"]).compile(), {"n": 1})
    assert found == ["work", "node"]


def test_parallel_nodes_hold_their_own(drive):
    barrier = threading.Barrier(2, timeout=WAIT)

    def node(state):
        barrier.wait()
        return {"log": [held()[0]]}

    graph = graph_of(State, "S>a S>b", a=node, b=node)
    assert drive.invoke(graph.compile(), {"n": 1})["log"] == ["a", "b"]


# -- context --------------------------------------------------------------------------------------------------


@dataclass
class Context:
    user: str
    level: int = 1


class Typed(TypedDict):
    user: str


def context_of(drive, schema, **options):
    seen = []
    app = app_of(("node", lambda state: seen.append(get_runtime().context)), schema=schema)
    drive.invoke(app, {"n": 1}, **options)
    return seen[0]


@each_case("schema", [None, Typed, dict])
@each_case("context", [{"user": "x"}, {}, 3, None])
def test_without_a_class_to_make_it_passes_unchanged(drive, schema, context):
    assert context_of(drive, schema, context=context) is context
    assert context_of(drive, schema) is None


@each_case("schema", [3, "Context", Context | None, Context("u"), [Context]])
def test_a_schema_that_is_no_class_is_refused_at_once(schema):
    with pytest.raises(TypeError, match="context_schema"):
        StateGraph(State, schema)
    with pytest.raises(TypeError, match="context_schema"):
        entrypoint(context_schema=schema)(lambda x: x)


@pytest.mark.parametrize("as_node", [True, False])
def test_a_nested_graph_inherits_the_context(drive, as_node):
    seen = []
    child = app_of(("inner", lambda state: seen.append(get_runtime().context)), schema=Context)
    given = Context("x")
    node = ("call", child if as_node else drive.node_of(child, {"n": 1}))
    drive.invoke(app_of(node, schema=Context), {"n": 1}, context=given)
    assert seen[0] is given


@each_case("own", [{"user": "mine"}, {}, 0, ""])
def test_a_context_of_its_own_wins_even_if_falsy(drive, own):
    seen = []
    child = app_of(("inner", lambda state: seen.append(get_runtime().context)))
    drive.invoke(app_of(("call", drive.node_of(child, {"n": 1}, context=own))), {"n": 1}, context={"user": "theirs"})
    assert seen == [own]


# -- the store ------------------------------------------------------------------------------------------------


def test_nodes_share_the_store_over_threads_of_the_graph(drive):
    def remember(state, store):
        known = store.get(("facts",), "n")
        store.put(("facts",), "n", {"value": state["n"]})
        return {"log": [known.value["value"] if known else None]}

    app = app_of(remember, saver=InMemorySaver(), store=InMemoryStore())
    found = [drive.invoke(app, {"n": n}, thread_config(str(n)))["log"] for n in (1, 2, 3)]
    assert found == [[None], [1], [2]]


def test_async_nodes_use_its_async_face():
    async def remember(state, *, store):
        await store.aput(("facts",), "n", {"value": state["n"]})
        return {"log": [item.value["value"] for item in await store.asearch(("facts",))]}

    assert asyncio.run(app_of(remember, store=InMemoryStore()).ainvoke({"n": 4}))["log"] == [4]


def test_the_nearest_store_that_was_given_wins(drive):
    """A nested graph has its own, else the one of the graph around it."""
    seen = []
    mine, theirs = InMemoryStore(), InMemoryStore()
    inner = ("inner", lambda state: seen.append(get_store()))
    for child_store, parent_store in ((None, theirs), (mine, theirs), (mine, None), (None, None)):
        child = app_of(inner, store=child_store)
        drive.invoke(app_of(("call", child), store=parent_store), {"n": 1})
    assert seen == [theirs, mine, mine, None]


def test_tasks_and_entrypoints_have_it_too(drive):
    store = InMemoryStore()

    @task
    def look(x, store: Any):
        return store

    @entrypoint(store=store)
    def flow(x, store: Any):
        return [store, look(1).result(), get_store()]

    assert drive.invoke(flow, 1) == [store] * 3


# -- config ---------------------------------------------------------------------------------------------------


def test_the_path_of_a_task_that_is_called_ends_in_true():
    @task
    def call():
        return get_config()["metadata"]["stategraph_path"]

    @entrypoint()
    def run(x):
        return [future.result() for future in (call(), call())]

    parent = ("__pregel_pull", "run")
    assert run.invoke(1) == [("__pregel_push", parent, 0, True), ("__pregel_push", parent, 1, True)]


def test_server_info_is_what_a_server_has_written_into_the_config(drive):
    seen = []

    def look(state, runtime: Runtime):
        seen.append(runtime.server_info)

    def inside(state):
        return nested.invoke({})

    nested = chain_of(dict, look=look).compile()
    app = chain_of(dict, inside=inside).compile()
    user = {"identity": "ann", "permissions": ["read"]}
    for given in ({}, {"langgraph_auth_user": user}, {"assistant_id": "a", "graph_id": "g", "langgraph_auth_user": user}):
        drive.invoke(app, {}, {"configurable": given})
    *nothing, info = seen
    assert nothing == [None, None] and (info.assistant_id, info.graph_id) == ("a", "g")
    assert info.user.identity == info.user["identity"] == "ann" and "permissions" in info.user
    assert not hasattr(info.user, "email")


def test_a_nodes_metadata_is_its_own(drive):
    seen = []
    look = ("look", lambda state: seen.append(get_config()["metadata"]))
    graph = StateGraph(State).add_node("child", app_of(look), metadata={"secret": 1}).add_node(*look)
    graph.add_edge(START, "child").add_edge("child", "look")
    drive.invoke(graph.compile(), {"n": 1}, {"metadata": {"shared": 2}})
    assert all("secret" not in found and found["shared"] == 2 for found in seen)


def test_a_nested_run_inherits_settings_but_the_name(drive):
    seen = []
    child = app_of(("inner", lambda state: seen.append(get_config())))
    config = {"run_name": "mine", "recursion_limit": 7, "max_concurrency": 3, "tags": ["t"], "configurable": {"x": 1}}
    drive.invoke(app_of(("call", child)), {"n": 1}, config)
    (found,) = seen
    assert (found["recursion_limit"], found["max_concurrency"], found["tags"]) == (7, 3, ["t"])
    assert found["configurable"]["x"] == 1
    assert found["run_name"] == "inner"


# -- counted steps --------------------------------------------------------------------------------------------


class Counted(TypedDict, total=False):
    log: Annotated[list, operator.add]
    left: RemainingSteps
    last: IsLastStep


def counted(length, saver=None, **more):
    graph = StateGraph(Counted)
    node = lambda state: {"log": [(state["left"], state["last"])]}  # noqa: E731
    graph.add_sequence([(str(i), node) for i in range(length)])
    return graph.add_edge(START, "0").compile(saver, **more)


def test_the_default_limit(drive):
    assert drive.invoke(counted(1), EMPTY)["log"] == [(10_000, False)]


def test_a_resume_restarts_the_step_count(drive):
    thread = drive.on(counted(4, InMemorySaver()))
    config = {**CONFIG, "recursion_limit": 2}
    with pytest.raises(GraphRecursionError):
        thread.invoke(EMPTY, config)
    assert thread.state.next == ("2",)
    assert thread.invoke(None, config)["log"] == [(2, False), (1, True)] * 2


def test_a_nested_graph_counts_its_own(drive):
    found = []

    def inner(state: Counted):
        found.append((state["left"], state["last"]))

    child = chain_of(Counted, inner=inner).compile()
    app = app_of(("one", lambda state: None), ("two", child))
    drive.invoke(app, {"n": 1}, {"recursion_limit": 2})
    assert found == [(2, False)]


def test_counted_keys_are_not_state(drive):
    app = counted(1)
    with pytest.warns(GraphWarning, match="'left', which is computed, 'last', which is computed; dropped"):
        assert set(drive.invoke(app, {"log": [], "left": 99, "last": True})) == {"log"}


def test_sends_and_routers_see_them(drive):
    found = []

    def route(state: Counted):
        found.append(state["left"])
        return [Send("work", 1)]

    graph = graph_of(Counted, "S>start", start=lambda state: None, work=lambda x: None)
    graph.add_conditional_edges("start", route, ["work"])
    drive.invoke(graph.compile(), EMPTY, {"recursion_limit": 5})
    assert found == [5]


# -- draining -------------------------------------------------------------------------------------------------


def say(what):
    return (what, lambda state: {"log": [what]})


def draining(what, log):
    def node(state, runtime: Runtime):
        log.append(what)
        assert runtime.control is not None
        runtime.control.request_drain("shift is over")
        runtime.control.request_drain("a second reason")
        return {"log": [what]}

    return (what, node)


def test_a_node_ends_the_run_after_its_superstep(drive):
    log = []
    thread = drive.on(app_of(draining("one", log), say("two"), saver=InMemorySaver()))
    with pytest.raises(GraphDrained) as caught:
        thread.invoke({"n": 1})
    assert caught.value.reason == "shift is over", "the first reason stands"
    state = thread.state
    assert (state.values["log"], state.next) == (["one"], ("two",))
    assert thread.invoke(None)["log"] == ["one", "two"]
    assert log == ["one"]


def test_chunks_arrive_before_the_run_ends(drive):
    chunks = []
    with pytest.raises(GraphDrained):
        drive.stream(app_of(draining("one", []), say("two")), {"n": 1}, each=chunks.append)
    assert chunks == [{"one": {"log": ["one"]}}]


def test_in_the_last_superstep_it_changes_nothing(drive):
    assert drive.invoke(app_of(draining("one", [])), {"n": 1})["log"] == ["one"]


def test_before_the_start_the_input_is_kept(drive):
    control = RunControl()
    control.request_drain()
    thread = drive.on(app_of(say("one"), saver=InMemorySaver()))
    with pytest.raises(GraphDrained, match="shutdown"):
        thread.invoke({"n": 1}, control=control)
    assert thread.invoke(None)["log"] == ["one"]


def test_an_empty_reason_is_a_reason(drive):
    control = RunControl()
    control.request_drain("")
    with pytest.raises(GraphDrained):
        drive.invoke(app_of(say("one")), {"n": 1}, control=control)


def test_a_nested_graph_stops_at_its_own_boundary(drive):
    log = []
    child = app_of(draining("one", log), say("two"))
    thread = drive.on(app_of(("child", child), say("after"), saver=InMemorySaver()))
    with pytest.raises(GraphDrained):
        thread.invoke({"n": 1})
    state = thread.call("get_state", subgraphs=True)
    assert state.next == ("child",) and state.tasks[0].state.next == ("two",)
    assert state.tasks[0].error is None, "it is no failure"
    assert thread.invoke(None)["log"] == ["one", "two", "after"]
    assert log == ["one"]


def test_siblings_of_a_drained_graph_run_to_their_end(drive):
    """And need not run again."""
    log = []
    drained = threading.Event()

    def one(state, runtime: Runtime):
        assert runtime.control is not None
        runtime.control.request_drain()

    def two(state):
        return {"log": ["two"]}

    async def aslow(state):
        for _ in range(20):
            await asyncio.sleep(0)
        return slow(state)

    def slow(state):
        log.append("slow")
        return {"log": ["slow"]}

    graph = StateGraph(State).add_node("child", app_of(one, two)).add_node("slow", aslow if drive.is_async else slow)
    thread = drive.on(graph.add_edge(START, "child").add_edge(START, "slow").compile(InMemorySaver()))
    with pytest.raises(GraphDrained):
        thread.invoke({"n": 1})
    assert sorted(thread.invoke(None)["log"]) == ["slow", "two"]
    assert log == ["slow"] and not drained.is_set()


def test_a_breakpoint_at_the_same_place_takes_precedence(drive):
    app = app_of(draining("one", []), say("two"), saver=InMemorySaver(), interrupt_before=["two"])
    assert drive.invoke(app, {"n": 1}, CONFIG)["log"] == ["one"]


def test_a_drain_is_not_tried_again(drive):
    log = []
    child = app_of(draining("one", log), say("two"))
    graph = StateGraph(State).add_node("child", child, retry_policy=RetryPolicy(initial_interval=0, retry_on=lambda e: True))
    with pytest.raises(GraphDrained):
        drive.invoke(graph.add_edge(START, "child").compile(), {"n": 1})
    assert log == ["one"]


def test_a_control_may_be_used_from_any_thread(drive):
    control = RunControl()

    def node(state):
        thread = threading.Thread(target=control.request_drain, args=("outside",))
        thread.start()
        thread.join(WAIT)
        assert get_runtime().drain_requested and get_runtime().drain_reason == "outside"

    with pytest.raises(GraphDrained, match="outside"):
        drive.invoke(app_of(node, say("two")), {"n": 1}, control=control)


# -- the key of a task ----------------------------------------------------------------------------------------


def keyed(fails, keys, **policies):
    def node(state, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        if fails:
            raise fails.pop()
        return {"log": ["done"]}

    return StateGraph(State).add_node("node", node, **policies).add_edge(START, "node").compile(InMemorySaver())


def test_the_same_for_every_attempt(drive):
    keys = []
    app = keyed([Oops(), Oops()], keys, retry_policy=RetryPolicy(initial_interval=0))
    drive.invoke(app, {"n": 1}, CONFIG)
    assert len(keys) == 3 and len(set(keys)) == 1 and keys[0]


def test_another_for_another_run_another_thread_and_a_fork(drive):
    keys = []
    thread = drive.on(keyed([], keys))
    thread.invoke({"n": 1})
    thread.invoke({"n": 1})
    thread.invoke({"n": 1}, thread_config("2"))
    (first, *_) = [s for s in thread.history() if s.next == ("node",)]
    forked = drive.update_state(thread.app, first.config, {"n": 5}, "__start__")
    thread.invoke(None, forked)
    assert len(keys) == 4 and len(set(keys)) == 4


def test_another_for_every_send_and_every_call(drive):
    keys = []

    @task
    def call(runtime: Runtime):
        keys.append(runtime.idempotency_key)

    def work(x, runtime: Runtime):
        keys.append(runtime.idempotency_key)
        for future in (call(), call()):
            future.result()

    graph = StateGraph(State).add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", 1), Send("work", 1)])
    drive.invoke(graph.compile(), {"n": 1})
    assert len(keys) == 6 and len(set(keys)) == 6


def test_calls_and_nested_graphs_keep_theirs_over_a_resume(drive):
    keys = []
    fails = [Oops()]

    @task
    def call(runtime: Runtime):
        keys.append(runtime.idempotency_key)
        if fails:
            raise fails.pop()

    child = app_of(("inner", lambda state: call().result()))
    thread = drive.on(app_of(("outer", child), saver=InMemorySaver()))
    with pytest.raises(Oops):
        thread.invoke({"n": 1})
    thread.invoke(None)
    assert len(keys) == 2 and len(set(keys)) == 1
