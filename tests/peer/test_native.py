"""Graphs made with stategraph's own names, in a process that has LangChain loaded."""

from __future__ import annotations

import asyncio
import sys
from contextvars import ContextVar
from typing import Annotated

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.context import register_configure_hook
from side_by_side import PROGRAMS, ROOT
from typing_extensions import TypedDict

sys.path[:0] = [str(PROGRAMS), str(ROOT / ".types")]

from program_cases import Handler, Scripted  # noqa: E402
from side_by_side import Quiet  # noqa: E402

from stategraph import START, StateGraph, add_observer  # noqa: E402
from stategraph.compat.langchain import callbacks  # noqa: E402
from stategraph.compat.langchain.runnable import as_runnable  # noqa: E402
from stategraph.graph import acall_model, add_messages, astream_text, call_model, stream_text  # noqa: E402


class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]


def saying(text="a b"):
    return Scripted(messages=iter([AIMessage(text, id=f"i{n}") for n in range(9)]))


def one_node(function):
    graph = StateGraph(State)
    graph.add_node("a", function)
    graph.add_edge(START, "a")
    return graph.compile()


async def read_all(chunks):
    return [chunk async for chunk in chunks]


def contents(chunks):
    return [(message.content, message.id) for message, _ in chunks]


TOKENS = [("a", "i0"), (" ", "i0"), ("b", "i0")]


@pytest.mark.parametrize("call", [lambda model: model.invoke("q"), lambda model: call_model(model, "q")])
def test_the_tokens_of_a_model_are_sent_once(call):
    model = saying()
    app = one_node(lambda state: {"messages": [call(model)]})
    assert contents(app.stream({"messages": []}, stream_mode="messages")) == TOKENS


@pytest.mark.parametrize("call", [lambda model: model.ainvoke("q"), lambda model: acall_model(model, "q")])
def test_the_tokens_of_an_awaited_model_are_sent_once(call):
    model = saying()

    async def node(state):
        return {"messages": [await call(model)]}

    chunks = asyncio.run(read_all(one_node(node).astream({"messages": []}, stream_mode="messages")))
    assert contents(chunks) == TOKENS


def test_a_text_that_a_model_streams_is_sent_once():
    model = saying()
    app = one_node(lambda state: {"messages": [stream_text(part.text for part in model.stream("q"))]})
    assert [part["content"] for part, _ in app.stream({"messages": []}, stream_mode="messages")] == ["a", " ", "b"]


def test_a_text_that_a_model_streams_on_an_event_loop_is_sent_once():
    model = saying()

    async def node(state):
        return {"messages": [await astream_text(part.text async for part in model.astream("q"))]}

    chunks = asyncio.run(read_all(one_node(node).astream({"messages": []}, stream_mode="messages")))
    assert [part["content"] for part, _ in chunks] == ["a", " ", "b"]


def test_a_long_answer_does_not_hold_up_the_event_loop_of_its_reader():
    model = saying("x " * 600)

    async def node(state):
        return {"messages": [await model.ainvoke("q")]}

    chunks = asyncio.run(asyncio.wait_for(read_all(one_node(node).astream({}, stream_mode="messages")), 60))
    assert "".join(message.content for message, _ in chunks) == "x " * 600


def test_metadata_names_the_node_by_the_names_of_this_engine():
    model = saying()
    app = one_node(lambda state: {"messages": [model.invoke("q")]})
    for _, metadata in app.stream({}, stream_mode="messages"):
        assert metadata["stategraph_node"] == "a"
        assert not any(key.startswith("langgraph_") for key in metadata)


def test_handlers_get_events_of_native_graphs_with_the_right_parents():
    heard = []
    model = saying()
    app = one_node(lambda state: {"messages": [model.invoke("q")]})
    handler = Handler(lambda *words: heard.append(" ".join(map(str, words[:4]))))
    app.invoke({"messages": []}, {"callbacks": [handler]})
    starts = [line for line in heard if " in " in line]
    assert starts == ["chain StateGraph in None", "chain a in StateGraph", "model Scripted in a"]


def test_a_handler_that_the_context_configures_is_found():
    variable = ContextVar("handler", default=None)
    register_configure_hook(variable, True)
    heard = []
    app = one_node(lambda state: None)
    app.invoke({})
    assert not heard
    token = variable.set(Handler(lambda *words: heard.append(words)))
    try:
        app.invoke({})
    finally:
        variable.reset(token)
    assert heard


def test_a_run_without_handlers_is_not_wrapped(monkeypatch):
    monkeypatch.setattr(callbacks, "Listener", lambda run: pytest.fail("somebody listens"))
    one_node(lambda state: None).invoke({}, {"tags": ["t"], "configurable": {"thread_id": "1"}})


def test_a_runnable_graph_is_a_node_of_another_engines_graph():
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import StateGraph as Theirs

    heard = []
    inner = as_runnable(one_node(lambda state: {"messages": [AIMessage("x", id="1")]}))
    outer = Theirs(State)
    outer.add_node("sub", inner)
    outer.add_edge(START, "sub")
    handler = Handler(lambda *words: heard.append(" ".join(map(str, words[:4]))))
    config = {"configurable": {"thread_id": "1"}, "callbacks": [handler]}
    found = outer.compile(InMemorySaver()).invoke({"messages": []}, config)
    assert [message.content for message in found["messages"]] == ["x"]
    assert "chain StateGraph in sub" in heard and "chain a in StateGraph" in heard


def routed(model):
    """A graph with a router of each kind, and one that calls a model."""
    graph = StateGraph(State)
    graph.add_node("a", lambda state: {"messages": [model.invoke("q")]})
    graph.add_node("b", RunnableLambda(lambda state: {}))
    graph.add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: model.invoke("q") and "b", ["b"])
    graph.add_conditional_edges("b", RunnableLambda(lambda state: "__end__"), {"__end__": "__end__"})
    return graph.compile()


@pytest.mark.parametrize("is_async", [False, True])
def test_handlers_get_the_same_events_with_an_observer(is_async):
    def told():
        heard = []
        handler = Handler(lambda *words: heard.append(" ".join(map(str, words[:5]))))
        app, config = routed(saying()), {"callbacks": [handler], "run_id": "00000000-0000-4000-8000-000000000001"}
        if is_async:
            asyncio.run(app.ainvoke({}, config))
        else:
            app.invoke({}, config)
        return heard

    alone, observer = told(), Quiet()
    remove = add_observer(observer)
    try:
        assert told() == alone
        chunks = list(routed(saying()).stream({}, stream_mode="messages"))
    finally:
        remove()
    assert contents(chunks)[:3] == TOKENS
    assert observer.seen[:3] == ["run", "a", "b"]
