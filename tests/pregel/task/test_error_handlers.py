"""Error handlers: when they run in place of a failed task, what they are given, and what a resume finds."""

from __future__ import annotations

import asyncio
import operator
from threading import Event
from typing import Annotated

import pytest
from kit.drive import each_durability, each_schedule
from kit.graphs import CONFIG, EMPTY, chain_of, parallel_of
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    InvalidUpdateError,
    Limit,
    NodeError,
    RetryPolicy,
    RunControl,
    Send,
    StateGraph,
    interrupt,
)
from stategraph.checkpoint import register


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


@register
class Oops(Exception):
    """Registered, so that it comes back from a saver as what it was."""


def fail(state):
    raise Oops("no")


def say(what):
    return lambda state: {"log": [what]}


def app_of(handler, node=fail, saver=None, **policies):
    """START → node (with the handler) → after; and `aside`, which only a goto reaches."""
    graph = StateGraph(State).add_node("node", node, error_handler=handler, **policies)
    graph.add_node("after", say("after")).add_node("aside", say("aside"))
    graph.add_edge(START, "node").add_edge("node", "after")
    graph.add_conditional_edges("after", lambda state: "__end__", ["aside", "__end__"])
    return graph.compile(saver)


# -- what it is given and what it gives -----------------------------------------------------------------------


def test_the_update_of_a_handler_resolves_the_failure(drive):
    assert drive.invoke(app_of(say("handled")), {"n": 1}) == {"n": 1, "log": ["handled"]}


def test_a_handler_gets_the_input_and_the_error(drive):
    seen = []

    def handler(state, error: NodeError):
        seen.append((state, error))

    drive.invoke(app_of(handler), {"n": 1})
    ((state, error),) = seen
    assert state == {"n": 1, "log": []}
    assert error.node == "node"
    assert isinstance(error.error, Oops) and str(error.error) == "no"


def test_outside_of_handlers_the_error_parameter_is_none(drive):
    seen = []
    app = chain_of(State, node=lambda state, error: seen.append(error)).compile()
    drive.invoke(app, {"n": 1})
    assert seen == [None]


def test_a_handler_may_return_a_goto(drive):
    handler = lambda state: Command(update={"log": ["handled"]}, goto="aside")  # noqa: E731
    assert drive.invoke(app_of(handler), {"n": 1})["log"] == ["handled", "aside"]
    assert drive.invoke(app_of(lambda state: Send("aside", state)), {"n": 1})["log"] == ["aside"]


def test_an_unknown_key_or_target_of_a_handler_fails(drive):
    for result in ({"nope": 1}, Command(goto="nowhere")):
        with pytest.raises(Exception, match="nope|nowhere"):
            drive.invoke(app_of(lambda state, result=result: result), {"n": 1})


def test_a_join_on_the_failed_node_waits_on(drive):
    graph = StateGraph(State).add_node("node", fail, error_handler=say("handled")).add_node("other", say("other"))
    graph.add_node("end", say("end")).add_edge(START, "node").add_edge(START, "other").add_edge(["node", "other"], "end")
    assert drive.invoke(graph.compile(), {"n": 1})["log"] == ["handled", "other"]


def test_a_node_that_waited_for_others_has_run_once_its_failure_is_handled(drive):
    """What had triggered it is used up: the thread is at rest, and the join waits for all of its nodes again."""
    graph = StateGraph(State).add_node("node", fail, error_handler=say("handled"))
    graph.add_node("one", say("one")).add_node("two", say("two")).add_edge(["one", "two"], "node")
    graph.add_edge(START, "one").add_edge(START, "two")
    thread = drive.on(graph.compile(InMemorySaver()))
    assert thread.invoke({"n": 1})["log"] == ["one", "two", "handled"]
    assert thread.state.next == ()
    assert thread.invoke(None)["log"] == ["one", "two", "handled"]
    thread.update({"log": ["one again"]}, as_node="one")
    assert thread.state.next == ()


def test_an_update_without_as_node_is_from_the_node_whose_failure_was_handled(drive):
    thread = drive.on(app_of(say("handled"), saver=InMemorySaver()))
    thread.invoke({"n": 1})
    thread.update({"log": ["edited"]})
    assert thread.state.next == ("after",)


def test_an_update_without_as_node_is_never_from_a_handler(drive):
    graph = StateGraph(State).add_node("node", fail, error_handler=say("handled")).add_edge(START, "node")
    thread = drive.on(graph.compile(InMemorySaver()))
    thread.update({"log": ["from the only node"]})
    assert thread.state.next == ()
    with pytest.raises(InvalidUpdateError) as caught:
        thread.update(EMPTY, as_node="other")
    assert "known: 'node'" in str(caught.value)


def test_a_handler_has_its_own_name_in_streams(drive):
    app = app_of(say("handled"))
    assert drive.stream(app, {"n": 1}) == [{"__error_handler__node": {"log": ["handled"]}}]
    chunks = drive.stream(app, {"n": 1}, stream_mode="tasks")
    assert [(c["name"], "error" in c and c["error"] is not None) for c in chunks] == [
        ("node", False), ("node", True), ("__error_handler__node", False), ("__error_handler__node", False),
    ]  # fmt: skip


def test_a_handler_has_its_own_task_id(drive):
    """Not the failed task's id or namespace: nested graphs of the two must not meet."""
    ids = []

    def note(state, runtime):
        ids.append((runtime.execution_info.task_id, runtime.execution_info.checkpoint_ns))

    def node(state, runtime):
        note(state, runtime)
        raise Oops

    drive.invoke(app_of(note, node), {"n": 1})
    (task, ns), (handler_task, handler_ns) = ids
    assert task != handler_task
    assert handler_ns.startswith("__error_handler__node:") and ns.startswith("node:")


# -- when it runs ---------------------------------------------------------------------------------------------


def test_a_handler_runs_after_the_last_attempt(drive):
    calls = []

    def node(state):
        calls.append(1)
        raise Oops

    app = app_of(say("handled"), node, retry_policy=RetryPolicy(initial_interval=0, max_attempts=3))
    assert drive.invoke(app, {"n": 1})["log"] == ["handled"]
    assert len(calls) == 3


def test_a_handler_runs_in_the_same_superstep_and_siblings_continue(drive):
    """Its writes take the place of the failed task's."""
    graph = StateGraph(State)
    for name, node in {"a": say("a"), "b": fail, "c": say("c")}.items():
        graph.add_node(name, node, error_handler=say("handled") if name == "b" else None).add_edge(START, name)
    thread = drive.on(graph.compile(InMemorySaver()))
    assert thread.invoke({"n": 1})["log"] == ["a", "handled", "c"]
    assert [s.metadata["step"] for s in thread.history()] == [1, 0, -1]


@pytest.mark.parametrize("saver", [None, InMemorySaver])
@pytest.mark.parametrize("limited", [False, True])
def test_a_handler_starts_while_siblings_run(drive, saver, limited):
    handled = Event()

    def handler(state):
        handled.set()
        return {"log": ["handled"]}

    def wait(state):
        assert handled.wait(10)
        return {"log": ["waited"]}

    limit = Limit(2) if limited else None
    graph = StateGraph(State).add_node("a", fail, error_handler=handler, limit=limit)
    graph.add_node("b", wait, limit=limit)
    graph.add_edge(START, "a").add_edge(START, "b")
    app = graph.compile(checkpointer=None if saver is None else saver())
    assert drive.invoke(app, {"n": 1}, CONFIG)["log"] == ["handled", "waited"]


async def test_a_coroutine_handler_starts_while_coroutines_run():
    handled = asyncio.Event()

    async def handler(state):
        handled.set()
        await asyncio.sleep(0)
        return {"log": ["handled"]}

    async def wait(state):
        await asyncio.wait_for(handled.wait(), 10)
        return {"log": ["waited"]}

    graph = StateGraph(State).add_node("a", fail, error_handler=handler).add_node("b", wait)
    app = graph.add_edge(START, "a").add_edge(START, "b").compile()
    assert (await app.ainvoke({"n": 1}))["log"] == ["handled", "waited"]


def test_each_failed_send_has_its_own_handler(drive):
    def work(n):
        if n % 2:
            raise Oops
        return {"log": [n]}

    graph = StateGraph(State).add_node("work", work, error_handler=lambda n, error: {"log": [f"handled {n}"]})
    graph.add_conditional_edges(START, lambda state: [Send("work", n) for n in range(4)])
    assert drive.invoke(graph.compile(), {"n": 1})["log"] == [0, "handled 1", 2, "handled 3"]


def test_a_failing_router_is_a_failure_of_its_node(drive):
    """And what the node had written is dropped."""

    def route(state):
        raise Oops

    graph = StateGraph(State).add_node("node", say("node"), error_handler=say("handled")).add_edge(START, "node")
    app = graph.add_conditional_edges("node", route, ["node"]).compile()
    assert drive.invoke(app, {"n": 1})["log"] == ["handled"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("parallel", [False, True])
def test_ctrl_c_is_not_handled(drive, signal, parallel):
    handled = []

    def node(state):
        raise signal

    graph = StateGraph(State).add_node("node", node, error_handler=handled.append).add_edge(START, "node")
    if parallel:
        graph.add_node("other", say("other")).add_edge(START, "other")
    with pytest.raises(signal):
        drive.invoke(graph.compile(), {"n": 1})
    assert handled == []


def test_questions_are_not_handled(drive):
    thread = drive.on(app_of(say("handled"), lambda state: {"log": [interrupt("?")]}, InMemorySaver()))
    assert "__interrupt__" in thread.invoke({"n": 1})
    assert thread.resume("A")["log"] == ["A", "after"]


def test_a_drain_in_a_nested_graph_is_not_handled(drive):
    control = RunControl()
    child = StateGraph(State).add_sequence([("one", lambda s: control.request_drain("stop")), ("two", say("two"))])
    thread = drive.on(app_of(say("handled"), child.add_edge(START, "one").compile(), InMemorySaver()))
    with pytest.raises(GraphDrained):
        thread.invoke({"n": 1}, control=control)
    assert thread.invoke(None)["log"] == ["two", "after"]


def test_a_command_for_the_parent_is_not_handled(drive):
    child = app_of(say("handled"), lambda s: Command(graph=Command.PARENT, update={"log": ["from below"]}))
    app = chain_of(State, child=child).compile()
    assert drive.invoke(app, {"n": 1})["log"] == ["from below"]


def test_a_write_conflict_is_no_failure_of_a_node(drive):
    graph = parallel_of(State, dict.fromkeys("ab", lambda s: {"n": 2}), error_handler=say("handled"))
    with pytest.raises(InvalidUpdateError):
        drive.invoke(graph.compile(), {"n": 1})


# -- a handler that fails -------------------------------------------------------------------------------------


@each_durability
def test_a_failed_handler_fails_the_run_and_a_resume_runs_only_the_handler(drive, durability):
    log = []
    broken = [True]

    def node(state):
        log.append("node")
        raise Oops("first")

    def handler(state, error: NodeError):
        log.append((type(error.error), str(error.error), error.node))
        if broken:
            broken.pop()
            raise KeyError("second")
        return {"log": ["handled"]}

    thread = drive.on(app_of(handler, node, InMemorySaver()))
    with pytest.raises(KeyError, match="second") as caught:
        thread.invoke({"n": 1}, durability=durability)
    assert isinstance(caught.value.__cause__, Oops), "the first error is not lost"
    assert thread.invoke(None)["log"] == ["handled"]
    assert log == ["node", (Oops, "first", "node"), (Oops, "first", "node")]
    assert thread.state.next == ()


def test_a_handler_is_not_handled(drive):
    graph = StateGraph(State).set_node_defaults(error_handler=lambda s: fail(s)).add_node("node", fail)
    with pytest.raises(Oops):
        drive.invoke(graph.add_edge(START, "node").compile(), {"n": 1})


# -- a handler that asks --------------------------------------------------------------------------------------


def test_a_handler_may_interrupt(drive):
    seen = []

    def handler(state, error: NodeError):
        seen.append(type(error.error))
        return {"log": [interrupt("what now?")]}

    thread = drive.on(app_of(handler, saver=InMemorySaver()))
    chunks = thread.stream({"n": 1})
    assert [[q.value for q in c["__interrupt__"]] for c in chunks] == [["what now?"]]
    state = thread.state
    assert ([q.value for q in state.interrupts], state.next) == (["what now?"], ("__error_handler__node",))
    assert [(t.name, type(t.error)) for t in state.tasks] == [("node", Oops), ("__error_handler__node", type(None))]
    assert thread.resume("go on")["log"] == ["go on"]
    assert seen == [Oops, Oops], "the same error, before and after"


# -- defaults and the layout ----------------------------------------------------------------------------------


def test_a_default_handler_is_for_nodes_without_their_own(drive):
    graph = StateGraph(State).set_node_defaults(error_handler=lambda s, error: {"log": [f"default: {error.node}"]})
    graph.add_node("a", fail).add_node("b", fail, error_handler=say("own")).add_edge(START, "a").add_edge(START, "b")
    app = graph.compile()
    assert sorted(drive.invoke(app, {"n": 1})["log"]) == ["default: a", "own"]
    assert {"__default_error_handler__", "__error_handler__b"} <= set(app.nodes)


def test_a_graph_with_a_default_handler_compiles_twice(drive):
    graph = chain_of(State, a=fail).set_node_defaults(error_handler=say("default"))
    first, second = graph.compile(), graph.compile()
    assert list(first.nodes) == list(second.nodes)
    assert drive.invoke(second, {"n": 1})["log"] == ["default"]


def test_handlers_take_the_default_retry_and_timeout():
    from stategraph import CachePolicy, TimeoutPolicy

    retry = RetryPolicy(max_attempts=7)
    graph = StateGraph(State).set_node_defaults(retry_policy=retry, timeout=9, cache_policy=CachePolicy())
    app = graph.add_node("a", fail, error_handler=say("own")).add_edge(START, "a").compile()
    node = app.program.nodes["__error_handler__a"]
    assert (node.policies.retry, node.policies.timeout, node.cache) == ((retry,), TimeoutPolicy(run_timeout=9), None)


def test_a_handled_failure_of_a_nested_graph_stays_inside(drive):
    app = chain_of(State, child=app_of(say("handled"))).compile()
    assert drive.invoke(app, {"n": 1})["log"] == ["handled"]


def test_a_handler_takes_over_for_a_nested_graph(drive):
    child = chain_of(State, node=fail).compile()
    assert drive.invoke(app_of(say("handled"), child), {"n": 1})["log"] == ["handled"]


def test_a_node_name_reserved_for_handlers_is_refused():
    graph = StateGraph(State).add_node("a", fail, error_handler=say("own"))
    for name in ("__error_handler__a", "__default_error_handler__"):
        with pytest.raises(ValueError, match="reserved"):
            graph.add_node(name, say("mine"))


def test_several_failures_with_a_fatal_one(drive):
    """The one without a handler ends the run; the others' handlers need not run again."""
    broken = [True]

    def fatal(state):
        if broken:
            raise KeyError("fatal")
        return {"log": ["fatal"]}

    graph = StateGraph(State).add_node("a", fail, error_handler=say("handled")).add_node("b", fatal)
    thread = drive.on(graph.add_edge(START, "a").add_edge(START, "b").compile(InMemorySaver()))
    with pytest.raises(KeyError, match="fatal"):
        thread.invoke({"n": 1})
    broken.clear()
    assert sorted(thread.invoke(None)["log"]) == ["fatal", "handled"]


@pytest.mark.parametrize(("node", "update", "log"), [("ask", ["by hand"], ["by hand", "handled"]), ("__end__", None, ["handled"])])
def test_writes_of_a_handler_in_an_interrupted_superstep_survive_an_edit(drive, node, update, log):
    graph = StateGraph(State).add_node("node", fail, error_handler=say("handled"))
    graph.add_node("ask", lambda state: {"log": [interrupt("?")]})
    thread = drive.on(graph.add_edge(START, "node").add_edge(START, "ask").compile(InMemorySaver()))
    thread.invoke(EMPTY)
    thread.update(update and {"log": update}, as_node=node)
    state = thread.state
    assert (state.values["log"], state.next) == (log, ())


@each_schedule
def test_a_handler_that_had_finished_counts_when_its_node_fails_again(drive, saver, schedule):
    failing, handled = [True], []

    def node(state):
        if not failing:
            interrupt("node?")
        raise Oops("no")

    def handler(state):
        handled.append(True)
        return {"log": ["handled"]}

    def app(**policies):
        graph = StateGraph(State).add_node("node", node, **policies).add_edge(START, "node")
        graph.add_node("other", lambda state: {"log": [interrupt("other?", key="other")]}).add_edge(START, "other")
        return graph.compile(saver, schedule=schedule)

    config = {"configurable": {"thread_id": "t"}}
    drive.invoke(app(error_handler=handler), {"n": 1}, config)
    failing.clear()
    asked = drive.invoke(app(), None, config)["__interrupt__"]
    failing.append(True)
    answers = {question.id: "answered" for question in asked}
    done = drive.invoke(app(error_handler=handler), Command(resume=answers), config)
    assert sorted(done["log"]) == ["answered", "handled"] and handled == [True]
    assert app().get_state(config).next == ()
