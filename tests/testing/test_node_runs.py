"""`run_node`: one node of a graph runs alone, with given input, and stops after it."""

from __future__ import annotations

import asyncio
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from kit.graphs import chain_of

from stategraph import (
    END,
    START,
    Command,
    InMemoryStore,
    InvalidUpdateError,
    NodeError,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    add_messages,
    entrypoint,
    interrupt,
    task,
)
from stategraph.testing import arun_node, run_node


class State(TypedDict, total=False):
    item: str
    log: Annotated[list[str], add]
    messages: Annotated[list[Any], add_messages]


def price(state: State):
    return {"log": [f"{state['item']}: 9.50"]}


def approve(state: State):
    return {"log": [f"{interrupt('Buy it?')}, {interrupt({'how': 'many?'})}"]}


def route(state: State):
    return "price" if "again" in state["log"][-1] else END


def build():
    return (
        chain_of(State, price=price, approve=approve).add_conditional_edges("approve", route, ["price", END]).compile()
    )


APP = build()


def alone(drive, app, node, state=None, **options):
    if drive.is_async:
        return asyncio.run(arun_node(app, node, state, **options))
    return run_node(app, node, state, **options)


def graph_of(node, **options):
    return StateGraph(State).add_node("node", node, **options).add_edge(START, "node").compile()


def test_a_node_is_given_the_state_and_shows_what_it_did(drive):
    done = alone(drive, APP, "price", {"item": "tea", "log": ["before"]})
    assert done.returned == {"log": ["tea: 9.50"]}
    assert (done.update, done.writes) == ({"log": ["tea: 9.50"]}, (("log", ["tea: 9.50"]),))
    assert done.state == {"item": "tea", "log": ["before", "tea: 9.50"], "messages": []}
    assert (done.goto, done.questions, done.events) == (("approve",), (), ())


def test_the_state_is_used_without_its_reducers(drive):
    def fold(old, new):
        return old - new

    class Count(TypedDict):
        n: Annotated[int, fold]

    app = chain_of(Count, down=lambda state: {"n": 1}).compile()
    assert alone(drive, app, "down", {"n": 7}).state == {"n": 6}


def test_messages_may_be_short(drive):
    seen = alone(drive, graph_of(lambda state: {"log": [state["messages"][0]["content"]]}), "node", {"messages": "Hi"})
    assert seen.update == {"log": ["Hi"]}


@pytest.mark.parametrize(
    "answers",
    [
        ["yes", 3],
        lambda question: "yes" if question.value == "Buy it?" else 3,
    ],
)
def test_its_questions_are_answered(drive, answers):
    done = alone(drive, APP, "approve", {}, answers=answers)
    assert (done.update, done.goto, done.questions) == ({"log": ["yes, 3"]}, (END,), ())


def test_a_question_without_an_answer_stays_open(drive):
    stopped = alone(drive, APP, "approve", {}, answers={"Buy it?": "yes"})
    assert [question.value for question in stopped.questions] == [{"how": "many?"}]
    assert (stopped.returned, stopped.writes, stopped.goto) == (None, (), ())


def test_its_router_is_asked_with_what_it_wrote(drive):
    assert alone(drive, APP, "approve", {}, answers=["again", 1]).goto == ("price",)


def test_it_finds_config_context_store_and_writer(drive):
    def look(state: State, runtime: Runtime[Any], config):
        runtime.stream_writer({"half": "done"})
        found = runtime.store.get(("a",), "k").value["v"]
        return {"log": [runtime.context["user"], config["configurable"]["tenant"], found]}

    store = InMemoryStore()
    store.put(("a",), "k", {"v": "stored"})
    done = alone(
        drive, graph_of(look), "node", {}, context={"user": "Ann"}, config={"configurable": {"tenant": "t"}}, store=store
    )
    assert done.update == {"log": ["Ann", "t", "stored"]}
    assert done.events == ({"half": "done"},)


def test_commands_and_sends_are_shown(drive):
    def spread(state: State):
        return [Command(update={"log": ["x"]}, goto="price"), Send("approve", {"item": "tea"})]

    graph = StateGraph(State).add_node(price).add_node(approve).add_edge(START, "spread")
    app = graph.add_node("spread", spread, destinations=["price", "approve"]).compile()
    done = alone(drive, app, "spread", {})
    assert (done.update, done.goto) == ({"log": ["x"]}, ("price", Send("approve", {"item": "tea"})))


def test_what_a_send_brings_is_given_as_it_is(drive):
    app = graph_of(lambda path: {"log": [path.upper()]})
    assert alone(drive, app, "node", sent="a.txt").update == {"log": ["A.TXT"]}


def test_a_node_of_a_nested_graph_is_found_by_its_path(drive):
    outer = chain_of(State, shop=APP).compile()
    assert alone(drive, outer, "shop:price", {"item": "tea"}).update == {"log": ["tea: 9.50"]}


def test_a_command_for_the_graph_around_is_what_it_returned(drive):
    command = Command(update={"log": ["up"]}, goto="elsewhere", graph=Command.PARENT)
    done = alone(drive, graph_of(lambda state: command), "node", {})
    assert (done.returned, done.writes, done.goto) == (command, (), ())


def test_its_error_reaches_the_test_at_once(drive):
    """Neither its error handler nor its retry policy keeps it back."""
    attempts = []

    def fail(state: State):
        attempts.append(1)
        raise ConnectionError("down")

    def handle(state: State, error: NodeError):
        return {"log": ["handled"]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0, jitter=False)
    app = graph_of(fail, error_handler=handle, retry_policy=policy)
    with pytest.raises(ConnectionError, match="down"):
        alone(drive, app, "node", {})
    assert len(attempts) == 1
    with pytest.raises(ConnectionError):
        alone(drive, app, "node", {}, retry=True)
    assert len(attempts) == 4


def test_what_it_returns_is_checked_as_in_the_graph(drive):
    with pytest.raises(InvalidUpdateError, match="unknown key 'lgo'"):
        alone(drive, graph_of(lambda state: {"lgo": []}), "node", {})


def test_tasks_that_it_calls_run(drive):
    @task
    def double(n):
        return 2 * n

    def call(state: State):
        return {"log": [str(double(4).result())]}

    if not drive.is_async:
        assert alone(drive, graph_of(call), "node", {}).update == {"log": ["8"]}


def test_async_nodes_run_in_an_async_test():
    async def wait(state: State):
        await asyncio.sleep(0)
        return {"log": ["waited"]}

    assert asyncio.run(arun_node(graph_of(wait), "node", {})).update == {"log": ["waited"]}


def test_saver_and_graph_are_unchanged():
    from stategraph import InMemorySaver

    saver = InMemorySaver()
    app = APP.copy({"checkpointer": saver})
    program = app.program
    run_node(app, "price", {"item": "tea"})
    assert app.program is program
    assert list(saver.list(None)) == []


def test_mistakes_are_reported():
    with pytest.raises(ValueError, match="has no node 'prise'; did you mean 'price'"):
        run_node(APP, "prise", {})
    with pytest.raises(ValueError, match="node 'price' of graph 'StateGraph' holds no graph"):
        run_node(APP, "price:inner", {})
    with pytest.raises(TypeError, match="compile\\(\\) it first"):
        run_node(StateGraph(State), "price", {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="what a Send brings is given as sent="):
        run_node(APP, "price", "tea")
    with pytest.raises(TypeError, match="answers must be a list"):
        run_node(APP, "approve", {}, answers="yes")

    @entrypoint()
    def flow(n):
        return n

    with pytest.raises(TypeError, match="a node of a StateGraph"):
        run_node(flow, "flow", 1)
