"""The node cache: which inputs share a result, who shares it, how long it is valid, and what is never cached."""

from __future__ import annotations

import asyncio
import operator
import threading
from datetime import timedelta
from typing import Annotated

import pytest
from kit.drive import each_schedule
from kit.graphs import chain_of, parallel_of, thread_config
from typing_extensions import TypedDict

from stategraph import (
    START,
    Budget,
    CachePolicy,
    Command,
    GraphWarning,
    InMemoryCache,
    InMemorySaver,
    InvalidUpdateError,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
)
from stategraph.channels import LastValue
from stategraph.checkpoint.keys import MANY_RUNS
from stategraph.pregel import NodeBuilder, Pregel
from stategraph.store import SqliteCache

WAIT = 5.0


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


class Oops(Exception):
    pass


def app_of(node, cache=None, policy: CachePolicy | None = None, **more):
    graph = StateGraph(State).add_node("node", node, cache_policy=policy or CachePolicy(), **more)
    return graph.add_edge(START, "node").compile(cache=cache or InMemoryCache())


CALLS = []
"""What `note` and others were called with. Module state: a function with a closure is not cached without a key."""


@pytest.fixture(autouse=True)
def no_calls():
    CALLS.clear()


def note(state):
    CALLS.append(state.get("n"))
    return {"log": [len(CALLS)]}


# -- hits and misses ------------------------------------------------------------------------------------------


def test_a_hit_is_marked_in_the_stream(drive):
    app = app_of(note)
    assert drive.stream(app, {"n": 1}) == [{"node": {"log": [1]}}]
    assert drive.stream(app, {"n": 1}) == [{"node": {"log": [1]}, "__metadata__": {"cached": True}}]
    names = [c["name"] for c in drive.stream(app, {"n": 1}, stream_mode="tasks")]
    assert names == ["node", "node"], "it starts and ends, though it does not run"


def test_a_policy_without_a_cache_does_nothing_and_warns(drive):
    graph = StateGraph(State).add_node("node", note, cache_policy=CachePolicy()).add_edge(START, "node")
    app = graph.compile()
    with pytest.warns(GraphWarning, match="node 'node' has a cache_policy, but the graph has no cache: compile\\(cache="):
        assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [[1], [2]]


def test_the_order_of_keys_does_not_count(drive):
    app = app_of(note)
    drive.invoke(app, {"n": {"a": 1, "b": {2, 3}}})
    drive.invoke(app, {"n": {"b": {3, 2}, "a": 1}})
    assert len(CALLS) == 1


def test_values_keep_their_types(drive):
    @task(cache_policy=CachePolicy())
    def give():
        CALLS.append(1)
        return (1, (2, {3}))

    @entrypoint(cache=InMemoryCache())
    def flow(x):
        return give().result()

    assert [drive.invoke(flow, 1) for _ in range(2)] == [(1, (2, {3}))] * 2
    assert CALLS == [1]


def test_a_custom_key_function_is_used(drive):
    for key in (lambda state: f"{state['n'] % 2}", lambda state: bytes([state["n"] % 2])):
        CALLS.clear()
        app = app_of(note, policy=CachePolicy(key_func=key))
        for n in (1, 2, 3, 4):
            drive.invoke(app, {"n": n})
        assert CALLS == [1, 2]


def test_an_input_without_a_canonical_form_is_refused(drive):
    with pytest.raises(TypeError, match="key_func"):
        drive.invoke(app_of(note), {"n": object()})


# -- who is who -----------------------------------------------------------------------------------------------


class Adds:
    def __init__(self, what):
        self.what = what

    def __call__(self, state):
        CALLS.append(self.what)
        return {"log": [self.what]}

    def method(self, state):
        return self(state)


@pytest.mark.parametrize("make", [Adds, lambda what: Adds(what).method, lambda what: lambda state: Adds(what)(state)])
def test_what_holds_values_is_refused_at_compile_and_told_apart_by_its_key(drive, make):
    """Objects, methods and closures."""
    with pytest.raises(TypeError, match="node 'node' has a cache_policy, but .*: give the cache policy a key_func"):
        app_of(make("A"))
    cache = InMemoryCache()
    policies = {what: CachePolicy(key_func=lambda state, what=what: f"{what} {state['n']}") for what in "AB"}
    found = [drive.invoke(app_of(make(w), cache, policies[w]), {"n": 1})["log"] for w in "ABA"]
    assert found == [["A"], ["B"], ["A"]]
    assert CALLS == ["A", "B"]


def test_the_refusal_covers_tasks_and_entrypoints():
    with pytest.raises(TypeError, match="'<lambda>' has a cache_policy, but a lambda has no name"):
        task(cache_policy=CachePolicy())(lambda n: n)
    held = object()

    def flow(n):
        return held

    with pytest.raises(TypeError, match=r"has a closure \(held\)"):
        entrypoint(cache=InMemoryCache(), cache_policy=CachePolicy())(flow)


def test_with_a_custom_key_a_function_may_close_over_changing_values(drive):
    ran = []

    def count(state):
        ran.append(state["n"])
        return {"log": [len(ran)]}

    app = app_of(count, policy=CachePolicy(key_func=lambda state: str(state["n"])))
    assert [drive.invoke(app, {"n": n})["log"] for n in (7, 7, 8)] == [[1], [1], [2]]
    drive.call(app, "clear_cache")
    assert drive.invoke(app, {"n": 7})["log"] == [3]


def test_a_chain_of_functions_needs_a_key():
    node = NodeBuilder().subscribe_only("a").do(note).do(note).write_to("b").add_cache_policy(CachePolicy())
    with pytest.raises(TypeError, match="key_func"):
        Pregel(
            nodes={"node": node}, channels={"a": LastValue(int), "b": LastValue(int)}, input_channels="a",
            output_channels="b", cache=InMemoryCache(),
        )  # fmt: skip


# -- at the same time -----------------------------------------------------------------------------------------


def slow(n):
    CALLS.append(n)
    threading.Event().wait(0.002)
    return {"log": [n]}


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_equal_sends_of_one_superstep_share_one_run(drive, limit):
    graph = StateGraph(State).add_node("work", slow, cache_policy=CachePolicy())
    graph.add_conditional_edges(START, lambda state: [Send("work", n) for n in (7, 7, 8, 7, 7)])
    app = graph.compile(cache=InMemoryCache())
    config = {} if limit is None else {"max_concurrency": limit}
    assert drive.invoke(app, {"n": 1}, config)["log"] == [7, 7, 8, 7, 7]
    assert sorted(CALLS) == [7, 8]


def test_equal_runs_at_the_same_time_share_too(drive):
    app = app_of(slow_state)
    assert [r["log"] for r in drive.batch(app, [{"n": 1}] * 4)] == [[1]] * 4
    assert CALLS == [1]


def slow_state(state):
    return slow(state["n"])


def test_a_failure_lets_the_next_in_line_try(drive):
    def shaky(n):
        CALLS.append(n)
        if len(CALLS) == 1:
            raise Oops
        return {"log": [n]}

    graph = StateGraph(State).add_node(
        "work", shaky, cache_policy=CachePolicy(), error_handler=lambda n: {"log": ["handled"]}
    )
    graph.add_conditional_edges(START, lambda state: [Send("work", 7)] * 3)
    assert sorted(map(str, drive.invoke(graph.compile(cache=InMemoryCache()), {"n": 1})["log"])) == ["7", "7", "handled"]
    assert CALLS == [7, 7]


async def test_a_cancelled_wait_lets_go():
    """A run that is cancelled while it waits for another's result holds up nobody."""
    go, entered = asyncio.Event(), asyncio.Event()

    async def node(state):
        CALLS.append(1)
        entered.set()
        await go.wait()
        return {"log": [1]}

    app = app_of(node, policy=CachePolicy(key_func=lambda state: "k"))
    first = asyncio.ensure_future(app.ainvoke({"n": 1}))
    await entered.wait()
    second, third = (asyncio.ensure_future(app.ainvoke({"n": 1})) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    done = await asyncio.wait_for(asyncio.gather(first, third), WAIT)
    await asyncio.wait([second])
    assert ([d["log"] for d in done], second.cancelled()) == ([[1], [1]], True)
    assert CALLS == [1]


def test_nested_cached_nodes_do_not_wait_for_each_other(drive):
    child = app_of(note)

    def parent(state):
        return {"log": child.invoke({"n": state["n"]})["log"]}

    app = app_of(parent, policy=CachePolicy(key_func=lambda state: str(state["n"])))
    assert drive.invoke(app, {"n": 1})["log"] == [1]


def test_a_cached_task_that_runs_itself_with_the_same_key_does_not_wait_for_itself(drive):
    one_key, apps = CachePolicy(key_func=lambda given: "k"), []

    def node(state):
        return {"log": [state["n"], *(apps[0].invoke({"n": state["n"] - 1})["log"] if state["n"] else [])]}

    async def anode(state):
        return {"log": [state["n"], *((await apps[0].ainvoke({"n": state["n"] - 1}))["log"] if state["n"] else [])]}

    @task(cache_policy=one_key)
    def count(n):
        return [n, *(count(n - 1).result() if n else [])]

    @task(cache_policy=one_key)
    async def acount(n):
        return [n, *(await acount(n - 1) if n else [])]

    apps.append(app_of(anode if drive.is_async else node, policy=one_key))
    assert drive.invoke(apps[0], {"n": 2})["log"] == [2, 1, 0]
    assert drive.invoke(apps[0], {"n": 7})["log"] == [2, 1, 0]

    @entrypoint(cache=InMemoryCache())
    def flow(n):
        return count(n).result()

    @entrypoint(cache=InMemoryCache())
    async def aflow(n):
        return await acount(n)

    assert drive.invoke(aflow if drive.is_async else flow, 2) == [2, 1, 0]


def test_an_attempt_that_was_given_up_does_not_hold_up_equal_tasks():
    """Its thread may never end."""
    go = threading.Event()

    def hang_once(state):
        CALLS.append(1)
        if len(CALLS) == 1:
            go.wait(WAIT)
        return {"log": [1]}

    app = app_of(hang_once, policy=CachePolicy(key_func=lambda state: "k"))
    app.step_timeout = 0.05
    try:
        with pytest.raises(TimeoutError):
            app.invoke({"n": 1})
        app.step_timeout = None
        assert [app.invoke({"n": 1})["log"] for _ in range(2)] == [[1], [1]]
        assert len(CALLS) == 2 and not go.is_set()
    finally:
        go.set()


# -- time and clearing ----------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("make", [lambda c: InMemoryCache(clock=c), lambda c: SqliteCache(":memory:", clock=c)],
                         ids=["memory", "sqlite"])  # fmt: skip
def test_a_result_expires_after_its_ttl(drive, make):
    clock = Clock()
    cache = make(clock)
    app = app_of(note, cache, CachePolicy(ttl=10))
    drive.invoke(app, {"n": 1})
    clock.now = 9.9
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 1
    clock.now = 10
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 2
    if hasattr(cache, "close"):
        cache.close()


def test_a_file_serves_the_next_process(drive, tmp_path):
    """Here: another cache on the same file and another graph."""
    for _ in range(2):
        cache = SqliteCache(str(tmp_path / "cache.db"))
        assert drive.invoke(app_of(note, cache), {"n": 1})["log"] == [1]
        cache.close()
    assert CALLS == [1]


def two_nodes(cache):
    graph = parallel_of(State, {"a": note, "b": note}, cache_policy=CachePolicy())
    return graph.add_node("plain", lambda state: None).add_edge(START, "plain").compile(cache=cache)


def test_clear_cache_forgets_all_nodes_or_some(drive):
    cache = InMemoryCache()
    app = two_nodes(cache)
    drive.invoke(app, {"n": 1})
    drive.call(app, "clear_cache", ["a"])
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 3
    drive.call(app, "clear_cache")
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 5
    drive.call(app, "clear_cache", nodes=["plain"])
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 5


def test_clear_cache_says_what_is_missing(drive):
    with pytest.raises(ValueError, match="has no cache"):
        drive.call(two_nodes(None), "clear_cache")
    with pytest.raises(ValueError, match="no node 'c'"):
        drive.call(two_nodes(InMemoryCache()), "clear_cache", ["a", "c"])


def test_the_cache_of_a_task_is_cleared_by_the_task(drive):
    cache = InMemoryCache()

    @task(cache_policy=CachePolicy())
    def double(x):
        CALLS.append(x)
        return 2 * x

    @entrypoint(cache=cache)
    def flow(x):
        return double(x).result()

    assert [drive.invoke(flow, 2) for _ in range(2)] == [4, 4]
    drive.call(flow, "clear_cache")
    drive.invoke(flow, 2)
    assert CALLS == [2], "clear_cache of the graph is for its nodes"
    drive.call(double, "clear_cache", cache)
    drive.invoke(flow, 2)
    assert CALLS == [2, 2]


def test_a_cached_task_shows_in_the_stream(drive):
    @task(cache_policy=CachePolicy())
    def double(x):
        return 2 * x

    @entrypoint(cache=InMemoryCache())
    def flow(x):
        return [double(x).result(), double(x).result()]

    assert drive.stream(flow, 2) == [
        {"double": 4}, {"double": 4, "__metadata__": {"cached": True}}, {"flow": [4, 4]},
    ]  # fmt: skip


def test_an_entrypoint_may_be_cached_as_a_whole(drive):
    @entrypoint(cache=InMemoryCache(), cache_policy=CachePolicy())
    def flow(x):
        CALLS.append(x)
        return 2 * x

    assert [drive.invoke(flow, x) for x in (1, 1, 2)] == [2, 2, 4]
    assert CALLS == [1, 2]


# -- what is kept ---------------------------------------------------------------------------------------------


def test_errors_are_not_but_a_retried_success_is(drive):
    def shaky(state):
        CALLS.append(1)
        if len(CALLS) == 1:
            raise Oops
        return {"log": ["fine"]}

    for retry_policy in (None, RetryPolicy(initial_interval=0)):
        CALLS.clear()
        app = app_of(shaky, retry_policy=retry_policy)
        if retry_policy is None:
            with pytest.raises(Oops):
                drive.invoke(app, {"n": 1})
        assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [["fine"]] * 2
        assert len(CALLS) == 2


def test_questions_are_not_and_their_answers_are_not_shared(drive):
    def ask(state):
        return {"log": [interrupt("?")]}

    graph = StateGraph(State).add_node("ask", ask, cache_policy=CachePolicy()).add_edge(START, "ask")
    app = graph.compile(cache=InMemoryCache(), checkpointer=InMemorySaver())
    for thread in ("1", "2"):
        config = thread_config(thread)
        assert "__interrupt__" in drive.invoke(app, {"n": 1}, config), thread
    config = thread_config("1")
    assert drive.invoke(app, Command(resume="A"), config)["log"] == ["A"]


@task
def ask_by_task(question):
    return interrupt(question)


async def ask_twice_by_tasks(state):
    return {"log": [await ask_by_task("first"), await ask_by_task("second")]}


def ask_twice(state):
    return {"log": [interrupt("first"), interrupt("second")]}


asking_graph = chain_of(State, node=ask_twice).compile()


@each_schedule
@pytest.mark.parametrize("node", [ask_twice, ask_twice_by_tasks, asking_graph], ids=["node", "tasks", "graph"])
async def test_what_a_person_has_answered_is_for_this_thread_alone(node, schedule, local_saver):
    graph = StateGraph(State).add_node("ask", node, cache_policy=CachePolicy(key_func=lambda state: str(state["n"])))
    app = graph.add_edge(START, "ask").compile(cache=InMemoryCache(), checkpointer=local_saver, schedule=schedule)
    for thread in "AB":
        config = thread_config(thread)
        assert "__interrupt__" in await app.ainvoke({"n": 1}, config), thread
        assert "__interrupt__" in await app.ainvoke(Command(resume=thread), config)
        assert (await app.ainvoke(Command(resume=thread), config))["log"] == [thread] * 2


def ask_by_graph(state):
    return asking_graph.invoke(state)["log"]


def ask_by_calls(state):
    return [ask_by_task("first").result(), ask_by_task("second").result()]


@each_schedule
@pytest.mark.parametrize("ask", [ask_by_graph, ask_by_calls], ids=["graph", "calls"])
def test_what_a_person_has_answered_is_for_this_thread_alone_after_a_crash(ask, schedule, local_saver):
    """The attempt that returns has only found what an earlier run did with the answer."""
    crashes = [KeyboardInterrupt]

    def node(state):
        log = ask(state)
        if crashes:
            raise crashes.pop()
        return {"log": log}

    policy = CachePolicy(key_func=lambda state: str(state["n"]))
    graph = StateGraph(State).add_node("ask", node, cache_policy=policy).add_edge(START, "ask")
    app = graph.compile(cache=InMemoryCache(), checkpointer=local_saver, schedule=schedule)
    first, second = thread_config("A"), thread_config("B")
    app.invoke({"n": 1}, first)
    app.invoke(Command(resume="A"), first)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(Command(resume="A"), first)
    assert app.invoke(None, first)["log"] == ["A", "A"]
    assert "__interrupt__" in app.invoke({"n": 1}, second)


def test_where_to_go_is_replayed(drive):
    def go(state):
        CALLS.append("go")
        return Command(update={"log": ["go"]}, goto=["a", Send("b", {"n": 5})])

    graph = StateGraph(State).add_node("go", go, cache_policy=CachePolicy(), destinations=["a", "b"])
    graph.add_node("a", lambda s: {"log": ["a"]}).add_node("b", lambda s: {"log": [s["n"]]}).add_edge(START, "go")
    app = graph.compile(cache=InMemoryCache())
    assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [["go", "a", 5]] * 2
    assert CALLS == ["go"]


def wired(cache, edge=None, ends=("a", "b"), route=None, node=note, **more):
    """`node` with a cache policy, and nodes that it may lead to."""
    graph = StateGraph(State, **more.pop("graph", {})).add_edge(START, "node")
    graph.add_node("node", node, cache_policy=CachePolicy(), destinations=ends, **more.pop("node_options", {}))
    for end in ends:
        graph.add_node(end, lambda state, end=end: {"log": [end]})
    if edge is not None:
        graph.add_edge("node", edge)
    if route is not None:
        graph.add_conditional_edges("node", route, list(ends))
    return graph.compile(cache=cache, **more)


def test_edges_and_routers_are_those_of_the_graph_at_hand(drive):
    cache = InMemoryCache()
    for edge in ("a", "b"):
        assert drive.invoke(wired(cache, edge), {"n": 1})["log"][1:] == [edge]
    for end in ("a", "b"):
        assert drive.invoke(wired(cache, route=lambda state, end=end: end), {"n": 1})["log"][1:] == [end]


class Narrow(TypedDict):
    n: int


def route_by_log(state: State):
    return "a" if "x" in state["log"] else "b"


def test_a_router_that_reads_more_than_its_node_is_asked_again(drive):
    app = wired(InMemoryCache(), route=route_by_log, node_options={"input_schema": Narrow})
    for log, end in ("x", "a"), ("y", "b"):
        assert drive.invoke(app, {"n": 1, "log": [log]})["log"] == [log, 1, end]
    assert CALLS == [1]


def leave(state):
    CALLS.append("leave")
    return {"log": [], "end": "b"}


def test_a_router_sees_what_the_state_lacks_from_a_cache_as_well(drive):
    async def route(state):
        return state["end"]

    app = wired(InMemoryCache(), node=leave, route=lambda state: state["end"], graph={"extra_keys": "ignore"})
    assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [["b"]] * 2
    app = wired(InMemoryCache(), node=leave, route=route, graph={"extra_keys": "ignore"})
    assert [asyncio.run(app.ainvoke({"n": 1}))["log"] for _ in range(2)] == [["b"]] * 2
    assert CALLS == ["leave"] * 2


@pytest.mark.parametrize("goto", ["a", [Send("a", {"n": 5})]])
def test_what_leads_to_nodes_that_the_graph_lacks_is_not_used(drive, goto):
    global GOTO
    cache, GOTO = InMemoryCache(), goto
    assert drive.invoke(wired(cache, node=go_there), {"n": 1})["log"] == ["a"]
    with pytest.raises(InvalidUpdateError, match="the unknown node 'a'"):
        drive.invoke(wired(cache, node=go_there, ends=()), {"n": 1})


GOTO = None


def go_there(state):
    return Command(goto=GOTO)


def spend(state, runtime: Runtime):
    CALLS.append("spend")
    runtime.spend(usd=1)
    return {"log": ["paid"]}


async def aspend(state, runtime: Runtime):
    CALLS.append("spend")
    await runtime.aspend(usd=1)
    return {"log": ["paid"]}


def test_what_a_result_has_cost_stays_with_the_thread_that_paid(drive, local_saver):
    cache, node = InMemoryCache(), aspend if drive.is_async else spend
    narrow = {"input_schema": Narrow}
    app = wired(cache, node=node, checkpointer=local_saver, budget=Budget(usd=5), node_options=narrow)
    first, second = thread_config("1"), thread_config("2")
    for n in (1, 2, 3):
        drive.invoke(app, {"n": n}, first)
    drive.invoke(app, {"n": 4}, second)
    for n in (3, 1):
        assert drive.invoke(app, {"n": n}, second)["log"][-1] == "paid"
    assert drive.invoke(app, {"n": 4}, first)["log"][-1] == "paid"
    assert [drive.call(app, "get_spent", each)["usd"] for each in (first, second)] == [3, 1]
    free = wired(cache, node=node, node_options=narrow)  # it has no budget
    assert drive.invoke(free, {"n": 1}, thread_config("3"))["log"] == ["paid"]
    assert CALLS == ["spend"] * 4


def test_what_cannot_be_stored_is_not_and_a_warning_says_so(drive):
    def give(state):
        CALLS.append(1)
        return {"log": [threading.Lock()]}

    app = app_of(give)
    for _ in range(2):
        with pytest.warns(UserWarning, match="'node': the result was not cached"):
            drive.invoke(app, {"n": 1})
    assert CALLS == [1, 1]


def test_a_hit_shares_nothing_with_the_first_result(drive):
    def give(state):
        return {"log": [["inner"]]}

    app = app_of(give)
    drive.invoke(app, {"n": 1})["log"][0].append("changed")
    assert drive.invoke(app, {"n": 1})["log"] == [["inner"]]
    drive.invoke(app, {"n": 1})["log"][0].append("changed")
    assert drive.invoke(app, {"n": 1})["log"] == [["inner"]]


def test_a_hit_is_kept_by_a_saver_like_any_result(drive):
    cache = InMemoryCache()
    drive.invoke(app_of(note, cache), {"n": 1})
    graph = StateGraph(State).add_node("node", note, cache_policy=CachePolicy()).add_edge(START, "node")
    thread = drive.on(graph.compile(cache=cache, checkpointer=InMemorySaver()))
    thread.invoke({"n": 1})
    assert thread.log == [1]
    assert CALLS == [1]


class Broken(InMemoryCache):
    """Fails at one of its methods, or holds what nobody can read."""

    def __init__(self, breaks):
        super().__init__()
        self.breaks = breaks

    def get(self, keys):
        if self.breaks == "get":
            raise ConnectionError("the cache is away")
        return dict.fromkeys(keys, ("msgpack", b"\xff\x00")) if self.breaks == "value" else super().get(keys)

    def set(self, pairs):
        if self.breaks == "set":
            raise ConnectionError("the cache is away")
        super().set(pairs)


@pytest.mark.parametrize("breaks, words", [
    ("get", "the cache was not asked: ConnectionError: the cache is away"),
    ("set", "the result was not cached: ConnectionError: the cache is away"),
    ("value", "what the cache has was not used: "),
])  # fmt: skip
def test_a_cache_that_fails_costs_no_result(drive, breaks, words):
    app = app_of(note, Broken(breaks), retry_policy=RetryPolicy(initial_interval=0))
    with pytest.warns(UserWarning, match=f"node 'node': {words}"):
        assert drive.invoke(app, {"n": 1})["log"] == [1]
    assert CALLS == [1]


def test_a_key_function_that_returns_nothing_is_refused(drive):
    app = app_of(note, policy=CachePolicy(key_func=lambda state: None))
    with pytest.raises(TypeError, match="node 'node': the key_func of its cache_policy must return a str or bytes, got None"):
        drive.invoke(app, {"n": 1})


def test_seconds_to_live_may_be_a_timedelta_and_nothing_else():
    assert CachePolicy(ttl=timedelta(minutes=1)) == CachePolicy(ttl=60)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="CachePolicy: ttl must be a number of seconds or a timedelta, got '5'"):
        CachePolicy(ttl="5")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="CachePolicy: key_func must be a function of the input, got 'n'"):
        CachePolicy(key_func="n")  # type: ignore[arg-type]


# -- nested graphs --------------------------------------------------------------------------------------------


def test_a_nested_graph_uses_the_cache_of_the_one_around_it(drive):
    child = StateGraph(State).add_node("node", note, cache_policy=CachePolicy()).add_edge(START, "node").compile()
    app = chain_of(State, child=child).compile(cache=InMemoryCache())
    assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [[1], [1]]
    assert CALLS == [1]


def test_or_its_own(drive):
    mine, other = InMemoryCache(), InMemoryCache()
    child = app_of(note, mine)
    app = chain_of(State, child=child).compile(cache=other)
    drive.invoke(app, {"n": 1})
    drive.call(child, "clear_cache")
    drive.invoke(app, {"n": 1})
    assert len(CALLS) == 2


def test_a_whole_graph_is_cached_under_a_custom_key(drive):
    child = chain_of(State, node=note).compile()
    key = CachePolicy(key_func=lambda state: str(state["n"]))
    app = StateGraph(State).add_node("child", child, cache_policy=key).add_edge(START, "child").compile(cache=InMemoryCache())
    assert [drive.invoke(app, {"n": 1})["log"] for _ in range(2)] == [[1], [1]]
    assert CALLS == [1]


# -- keys that never come twice -----------------------------------------------------------------------------------


def test_an_input_that_changes_with_each_run_warns_once(drive):
    app = app_of(note)
    for n in range(MANY_RUNS - 1):
        drive.invoke(app, {"n": n, "log": []})
    with pytest.warns(RuntimeWarning, match=r"another one in each of 20 runs: 'n' changes\. Give"):
        drive.invoke(app, {"n": -1, "log": []})
    drive.invoke(app, {"n": -2, "log": []})


def test_a_cache_with_hits_or_with_different_tasks_in_one_run_does_not_warn(drive):
    app = app_of(note)
    for n in (1, 1, *range(2 * MANY_RUNS)):
        drive.invoke(app, {"n": n})
    wide = StateGraph(State).add_node("node", note, cache_policy=CachePolicy())
    wide.add_conditional_edges(START, lambda state: [Send("node", {"n": n}) for n in range(3 * MANY_RUNS)], ["node"])
    drive.invoke(wide.compile(cache=InMemoryCache()), {"n": 0})
