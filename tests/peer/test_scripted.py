"""A scripted model is a chat model of LangChain: agents, tools, tokens, structured output."""

from __future__ import annotations

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from pydantic import BaseModel

from stategraph import START, MessagesState, StateGraph
from stategraph.testing import CheckFailed, ScriptedModel, tool_call


@tool
def height(mountain: str) -> str:
    """The height of a mountain."""
    return f"{mountain}: 3369 m"


def test_it_is_a_chat_model():
    scripted = ScriptedModel(["Hello.", AIMessage("Bye.")])
    model = scripted.as_langchain()
    assert isinstance(model, BaseChatModel)
    assert (ChatPromptTemplate([("user", "{x}")]) | model).invoke({"x": "Hi"}).content == "Hello."
    assert model.invoke("?").content == "Bye."
    assert [messages[0].content for messages, _ in scripted.requests] == ["Hi", "?"]


def test_it_asks_for_tools_and_sees_them():
    scripted = ScriptedModel([{"tool_calls": [tool_call("height", mountain="Etna")]}])
    answer = scripted.as_langchain().bind_tools([height]).invoke("How high is Etna?")
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("height", {"mountain": "Etna"})]
    assert scripted.requests[0][1]["tools"][0]["function"]["name"] == "height"




def test_it_streams_tokens_and_pieces_of_tool_calls():
    import asyncio

    line = {"content": "Let me see.", "tool_calls": [tool_call("height", mountain="Etna")]}
    scripted = ScriptedModel([line, line, AIMessage("Whole.")])
    model = scripted.as_langchain()

    async def read():
        return [part async for part in model.astream("?")]

    for parts in (list(model.stream("?")), asyncio.run(read())):
        assert [part.content for part in parts if part.content] == ["Let", " me", " see."]
        whole = sum(parts[1:], parts[0])
        assert isinstance(whole, AIMessageChunk)
        assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("height", {"mountain": "Etna"})]
    assert "".join(part.content for part in model.stream("?")) == "Whole."


def test_structured_output():
    class Peak(BaseModel):
        name: str
        metres: int

    scripted = ScriptedModel([{"tool_calls": [tool_call("Peak", name="Etna", metres=3369)]}])
    assert scripted.as_langchain().with_structured_output(Peak).invoke("?") == Peak(name="Etna", metres=3369)


def test_an_agent_of_langchain_runs_on_it():
    from langchain.agents import create_agent

    scripted = ScriptedModel([{"tool_calls": [tool_call("height", mountain="Etna")]}, "3369 m."])
    agent = create_agent(scripted.as_langchain(), [height])
    messages = agent.invoke({"messages": [HumanMessage("How high is Etna?")]})["messages"]
    assert [message.content for message in messages] == ["How high is Etna?", "", "Etna: 3369 m", "3369 m."]
    scripted.check_used_up()


def test_its_tokens_reach_readers_of_our_graphs():
    model = ScriptedModel(["One two."]).as_langchain()
    graph = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [model.invoke(state["messages"])]})
    app = graph.add_edge(START, "ask").compile()
    chunks = list(app.stream({"messages": [HumanMessage("?")]}, stream_mode="messages"))
    assert [message.content for message, _ in chunks if message.content] == ["One", " two."]


def test_a_script_that_is_over_shows_what_was_asked():
    model = ScriptedModel(["One."]).as_langchain()
    model.invoke("first")
    with pytest.raises(CheckFailed, match="asked 2 times.* message 1, human: 'second'"):
        model.invoke("second")
