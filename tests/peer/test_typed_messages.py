"""A key declared to hold LangChain's messages holds its objects, whatever is written, also with the native reducer."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel
from side_by_side import ROOT
from typing_extensions import TypedDict

sys.path[:0] = [str(ROOT / ".types")]

from stategraph import START, InMemorySaver, MessagesState, StateGraph, add_messages  # noqa: E402
from stategraph import RemoveMessage as NativeRemoval  # noqa: E402

THREAD = {"configurable": {"thread_id": "1"}}


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []


class Base(TypedDict):
    messages: Annotated[Sequence[BaseMessage], add_messages]


class Two(TypedDict):
    messages: Annotated[list[HumanMessage | AIMessage], add_messages(format="langchain-openai")]


TYPED = [Chat, Model, Base, Two]


def answering(schema, answer, **options):
    graph = StateGraph(schema)
    graph.add_node("a", lambda state: {"messages": answer})
    return graph.add_edge(START, "a").compile(**options)


GIVEN = [
    ("hi", HumanMessage("hi")),
    (("user", "hi"), HumanMessage("hi")),
    ({"role": "assistant", "content": "hi"}, AIMessage("hi")),
    ({"type": "human", "content": "hi", "id": "1"}, HumanMessage("hi", id="1")),
    ([("ai", "hi")], AIMessage("hi")),
    (AIMessage("hi", id="2"), AIMessage("hi", id="2")),
]


@pytest.mark.parametrize("schema", TYPED)
@pytest.mark.parametrize(("given", "expected"), GIVEN)
def test_input_messages_become_objects(schema, given, expected):
    app = answering(schema, given)
    for state in (app.invoke({"messages": given}), asyncio.run(app.ainvoke({"messages": given}))):
        assert {type(message) for message in state["messages"]} == {type(expected)}
        for message in state["messages"]:
            assert message.id
            assert message.model_copy(update={"id": None}) == expected.model_copy(update={"id": None})


def test_tool_calls_in_openais_form_become_langchains():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    answer = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "system", "content": "s"},
    ]
    asked, told, system = answering(Chat, answer).invoke({"messages": []})["messages"]
    assert asked.tool_calls == [{"name": "f", "args": {"x": 1}, "id": "c", "type": "tool_call"}]
    assert (type(told), told.tool_call_id, type(system)) == (ToolMessage, "c", SystemMessage)


@pytest.mark.parametrize("removal", [NativeRemoval(id="1"), RemoveMessage(id="1"), {"role": "remove", "id": "1", "content": ""}])
def test_messages_are_replaced_and_removed_by_id(removal):
    app = answering(Chat, [removal, {"role": "user", "content": "new", "id": "2"}])
    state = app.invoke({"messages": [HumanMessage("a", id="1"), HumanMessage("b", id="2")]})
    assert state["messages"] == [HumanMessage("new", id="2")]


def test_a_stored_thread_and_an_edit_hold_objects_too():
    app = answering(Chat, ("ai", "ho"), checkpointer=InMemorySaver())
    app.invoke({"messages": "hi"}, THREAD)
    app.update_state(THREAD, {"messages": {"role": "user", "content": "more"}}, as_node="a")
    app.invoke({"messages": "again"}, THREAD)
    kinds = [type(message) for message in app.get_state(THREAD).values["messages"]]
    assert kinds == [HumanMessage, AIMessage, HumanMessage, HumanMessage, AIMessage]


class Either(TypedDict):
    messages: Annotated[list[AnyMessage | dict[str, Any]], add_messages]


class Bare(TypedDict):
    messages: Annotated[list, add_messages]


@pytest.mark.parametrize("schema", [MessagesState, Either, Bare])
def test_dict_messages_are_unchanged_in_other_keys(schema):
    state = answering(schema, ("ai", "ho")).invoke({"messages": {"role": "user", "content": "hi"}})
    assert [type(message) for message in state["messages"]] == [dict, dict]


def test_a_custom_reducer_is_not_replaced():
    class Own(TypedDict):
        messages: Annotated[list[AnyMessage], lambda left, right: [*left, right]]

    assert answering(Own, "ho").invoke({"messages": "hi"})["messages"] == ["hi", "ho"]


def test_a_schema_of_a_node_may_repeat_the_key_without_the_types():
    graph = StateGraph(Chat)
    graph.add_node("a", lambda state: {"messages": "ho"}, input_schema=MessagesState)
    state = graph.add_edge(START, "a").compile().invoke({"messages": "hi"})
    assert [type(message) for message in state["messages"]] == [HumanMessage, HumanMessage]


def test_a_role_that_langchain_does_not_know_is_its_own_error():
    with pytest.raises(ValueError, match="captain"):
        answering(Chat, {"role": "captain", "content": "x"}).invoke({"messages": []})


def test_a_graph_with_such_a_key_is_pickled():
    graph = StateGraph(Chat)
    graph.add_node("a", len).add_edge(START, "a")
    channel = pickle.loads(pickle.dumps(graph.compile().program.channels["messages"]))
    channel.update(["hi"])
    assert [type(message) for message in channel.get()] == [HumanMessage]
