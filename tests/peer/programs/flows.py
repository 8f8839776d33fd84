"""Flows as tutorials write them: branches, loops, map-reduce, deferred nodes, commands, graphs in graphs."""

import asyncio
import operator
from typing import Annotated

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, InvalidUpdateError, ParentCommand
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, Send
from program_cases import case, collect, in_both_worlds, run_cases, thread
from typing_extensions import TypedDict


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def saying_name(name):
    return name, lambda state: {"log": [name]}


@case
def a_sequence(note):
    graph = StateGraph(Log).add_sequence([saying_name("one"), saying_name("two"), saying_name("three")])
    graph.add_edge(START, "one")
    in_both_worlds(note, graph.compile, {"log": []})


@case
def a_loop_with_a_limit(note):
    def route(state):
        return "more" if len(state["log"]) < 7 else "done"

    graph = StateGraph(Log)
    graph.add_node(*saying_name("a"))
    graph.add_node(*saying_name("b"))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", route, {"more": "b", "done": END})
    graph.add_edge("b", "a")
    app = graph.compile()
    note(app.invoke({"log": []}))
    note(app.get_graph().draw_mermaid())
    try:
        app.invoke({"log": []}, {"recursion_limit": 4})
    except GraphRecursionError as error:
        note("GraphRecursionError", isinstance(error, RecursionError))

    async def main():
        try:
            async for chunk in app.astream({"log": []}, {"recursion_limit": 3}):
                note(chunk)
        except GraphRecursionError:
            note("again")

    asyncio.run(main())


class Overall(TypedDict):
    topic: str
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]
    best: str


def jokes():
    def topics(state: Overall):
        return {"subjects": ["lions", "elephants", "penguins"]}

    def joke(state):
        return {"jokes": [f"joke about {state['subject']}"]}

    def spread(state: Overall):
        return [Send("joke", {"subject": each}) for each in state["subjects"]]

    def best(state: Overall):
        return {"best": state["jokes"][1]}

    graph = StateGraph(Overall)
    for node in (topics, joke, best):
        graph.add_node(node)
    graph.add_edge(START, "topics")
    graph.add_conditional_edges("topics", spread, ["joke"])
    graph.add_edge("joke", "best")
    graph.add_edge("best", END)
    return graph.compile()


@case
def map_reduce(note):
    in_both_worlds(note, jokes, {"topic": "animals"})
    for chunk in sorted(jokes().stream({"topic": "animals"}), key=str):  # who ends first is chance
        note(chunk)
    note(jokes().get_graph().draw_mermaid())


@case
def commands_to_the_parent(note):
    class State(TypedDict):
        foo: Annotated[str, operator.add]

    def inner(state: State):
        return Command(update={"foo": "inner "}, goto="b", graph=Command.PARENT)

    def make():
        sub = StateGraph(State).add_node(inner).add_edge(START, "inner").compile()
        graph = StateGraph(State)
        graph.add_node("sub", sub, destinations=("b",))
        graph.add_node("b", lambda state: {"foo": "b "})
        graph.add_edge(START, "sub")
        return graph.compile()

    in_both_worlds(note, make, {"foo": "start "})
    for chunk in make().stream({"foo": ""}, subgraphs=True):
        note([level.partition(":")[0] for level in chunk[0]], chunk[1])
    try:
        StateGraph(State).add_node(inner).add_edge(START, "inner").compile().invoke({"foo": ""})
    except (ParentCommand, InvalidUpdateError):
        note("cannot go there")


@case
def a_subgraph_with_shared_state(note):
    class Inner(TypedDict):
        foo: str
        bar: str

    class Outer(TypedDict):
        foo: str

    sub = StateGraph(Inner)
    sub.add_node("one", lambda state: {"bar": "bar"})
    sub.add_node("two", lambda state: {"foo": state["foo"] + state["bar"]})
    sub.add_edge(START, "one")
    sub.add_edge("one", "two")
    graph = StateGraph(Outer)
    graph.add_node("node_1", lambda state: {"foo": "hi! " + state["foo"]})
    graph.add_node("node_2", sub.compile())
    graph.add_edge(START, "node_1")
    graph.add_edge("node_1", "node_2")
    app = graph.compile()
    in_both_worlds(note, graph.compile, {"foo": "foo"})
    for mode in ("updates", "values"):
        for ns, chunk in app.stream({"foo": "foo"}, subgraphs=True, stream_mode=mode):
            note(len(ns), chunk)
    note(app.get_graph(xray=True).draw_mermaid())
    note([name for name, _ in app.get_subgraphs()])


@case
def a_subgraph_with_private_state(note):
    class Inner(TypedDict):
        bar: str

    class Outer(TypedDict):
        foo: str

    sub = StateGraph(Inner).add_sequence([("x", lambda s: {"bar": s["bar"] + "x"}), ("y", lambda s: {"bar": s["bar"] + "y"})])
    inner = sub.add_edge(START, "x").compile()

    def call(state: Outer):
        return {"foo": inner.invoke({"bar": state["foo"]})["bar"]}

    async def acall(state: Outer):
        return {"foo": (await inner.ainvoke({"bar": state["foo"]}))["bar"]}

    def make():
        return StateGraph(Outer).add_node("call", call).add_edge(START, "call").compile()

    note(make().invoke({"foo": "f"}))
    for ns, chunk in make().stream({"foo": "f"}, subgraphs=True):
        note([level.partition(":")[0] for level in ns], chunk)
    app = StateGraph(Outer).add_node("call", acall).add_edge(START, "call").compile()
    for ns, chunk in asyncio.run(collect(app.astream({"foo": "f"}, subgraphs=True))):
        note([level.partition(":")[0] for level in ns], chunk)


@case
def graphs_three_deep(note):
    class State(TypedDict):
        key: str

    inner = StateGraph(State).add_node("leaf", lambda s: {"key": s["key"] + " leaf"}).add_edge(START, "leaf").compile()
    middle = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    app = StateGraph(State).add_node("middle", middle).add_edge(START, "middle").compile(checkpointer=InMemorySaver())
    for ns, chunk in app.stream({"key": "k"}, thread(), subgraphs=True):
        note([level.partition(":")[0] for level in ns], chunk)
    note(app.get_graph(xray=True).draw_mermaid())
    note(app.get_graph(xray=1).draw_mermaid())


@case
def a_subgraph_that_remembers(note):
    class State(Log):
        pass

    def make():
        sub = StateGraph(State).add_node("n", lambda s: {"log": [f"sub has {len(s['log'])}"]}).add_edge(START, "n")
        inner = sub.compile(checkpointer=True)

        def call(state):
            return {"log": inner.invoke({"log": ["q"]})["log"][-1:]}

        return StateGraph(State).add_node("call", call).add_edge(START, "call").compile(checkpointer=InMemorySaver())

    in_both_worlds(note, make, {"log": []}, {"log": []}, config=thread())


@case
def updates_that_do_not_fit(note):
    class State(TypedDict):
        x: int

    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"x": 1})
    graph.add_node("b", lambda state: {"x": 2})
    graph.add_node("c", lambda state: 5)
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    for app in (graph.compile(),):
        try:
            app.invoke({"x": 0})
        except InvalidUpdateError as error:
            note("InvalidUpdateError", "x" in str(error))
    graph = StateGraph(State).add_node("c", lambda state: 5).add_edge(START, "c")
    try:
        graph.compile().invoke({"x": 0})
    except InvalidUpdateError:
        note("again")


@case
def errors_reach_the_caller(note):
    def fail(state):
        raise ValueError("boom")

    app = StateGraph(Log).add_node("a", lambda s: {"log": ["a"]}).add_node(fail)
    app.add_edge(START, "a").add_edge("a", "fail")
    made = app.compile(checkpointer=InMemorySaver())
    try:
        made.invoke({"log": []}, thread())
    except ValueError as error:
        note(error, getattr(error, "__notes__", None) is not None)
    snapshot = made.get_state(thread())
    note(snapshot.values, snapshot.next, [bool(task.error) for task in snapshot.tasks])


@case
def retried_nodes(note):
    tries = []

    def flaky(state):
        tries.append(1)
        if len(tries) % 3:
            raise ConnectionError("no")
        return {"log": [f"try {len(tries)}"]}

    def make():
        graph = StateGraph(Log)
        graph.add_node(flaky, retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False))
        return graph.add_edge(START, "flaky").compile()

    in_both_worlds(note, make, {"log": []})

    def wrong(state):
        tries.append(1)
        raise ValueError("never again")

    tries.clear()
    graph = StateGraph(Log)
    graph.add_node(wrong, retry_policy=[RetryPolicy(retry_on=KeyError), RetryPolicy(retry_on=lambda e: False)])
    try:
        graph.add_edge(START, "wrong").compile().invoke({"log": []})
    except ValueError as error:
        note(error, len(tries))


@case
def mistakes_in_graphs(note):
    def attempt(build):
        try:
            build()
            note("fine")
        except Exception as error:
            note([each.__name__ for each in (KeyError, ValueError, TypeError) if isinstance(error, each)])

    def graph():
        return StateGraph(Log).add_node(*saying_name("a"))

    attempt(lambda: graph().compile())
    attempt(lambda: graph().add_node(*saying_name("a")))
    attempt(lambda: graph().add_edge(START, "nowhere").compile())
    attempt(lambda: graph().add_edge("a", START))
    attempt(lambda: graph().add_edge(END, "a"))
    attempt(lambda: graph().add_node(END, lambda s: s))
    attempt(lambda: graph().add_node("x:y", lambda s: s))
    attempt(lambda: graph().add_edge(START, "a").set_finish_point("a").compile())
    attempt(lambda: graph().add_edge(START, "a").compile(interrupt_before=["zzz"]))
    attempt(lambda: graph().add_edge(START, "a").compile(checkpointer=InMemorySaver()).invoke({"log": []}))
    attempt(lambda: graph().add_edge(START, "a").compile().invoke(5))
    attempt(lambda: graph().add_edge(START, "a").compile().get_state(thread()))


if __name__ == "__main__":
    run_cases()
