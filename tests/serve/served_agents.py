"""Graphs that the tests of AG-UI and MCP serve: an agent with a scripted model, its tools, its state."""

from __future__ import annotations

import json
import operator
from typing import Annotated, Any

import pytest
from kit.graphs import chain_of, graph_of
from serving import Gates
from typing_extensions import TypedDict

from stategraph import (
    END,
    START,
    MessagesState,
    RunnableConfig,
    StateGraph,
    get_stream_writer,
    interrupt,
)
from stategraph.graph import call_model
from stategraph.graph.messages.models import add_parts


class Ask(TypedDict):
    approved: bool


class Desk(MessagesState, total=False):
    log: Annotated[list[str], operator.add]
    order: dict[str, Any]
    tools: list[Any]


def call(id: str, name: str, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


class Model:
    """Answers by what was said last, and in pieces: as a model behind a server does."""

    def stream(self, messages: list[Any], **_):
        last = messages[-1]
        said = last["content"]
        id = f"answer-{len(messages)}"
        if last["role"] == "tool":
            yield from self._say(id, f"Done: {said}")
        elif said in ("weather", "approve", "locate"):
            yield {"role": "assistant", "content": "Let me see.", "id": id}
            for piece in ('{"city"', ': "Rome"}'):
                function = {"arguments": piece} if piece[0] == ":" else {"name": said, "arguments": piece}
                yield {"tool_calls": [{"index": 0, "id": f"call-{len(messages)}", "function": function}]}
        else:
            yield from self._say(id, f"You said {said}.")

    def invoke(self, messages: list[Any], **_):
        return add_parts(self.stream(messages))

    def _say(self, id: str, text: str):
        words = text.split(" ")
        for place, word in enumerate(words):
            yield {"role": "assistant", "content": word + " " * (place < len(words) - 1), "id": id}


def make_desk(gates: Gates):
    """model → tools → model ..., where the tool `approve` asks first, and `locate` is the page's."""

    async def model(state: Desk, config: RunnableConfig):
        said = state["messages"][-1]["content"]
        get_stream_writer()({"name": "thinking", "value": {"about": said}})
        if said == "fail":
            raise ValueError("boom")
        await gates.pass_through(str(said))
        if said == "tools?":
            names = [tool["name"] for tool in config["configurable"]["ag_ui"]["tools"]]
            held = [tool["name"] for tool in state["tools"]]
            return {"messages": {"role": "assistant", "content": f"{names} {held}", "id": "told"}}
        return {"messages": call_model(Model(), state["messages"]), "log": ["model"]}

    def tools(state: Desk):
        made = state["messages"][-1]["tool_calls"][0]
        result = "sunny"
        if made["function"]["name"] == "approve":
            asked = {"question": "Really?", "tool_call_id": made["id"]}
            result = str(interrupt(asked, response_schema=Ask)["approved"])
        order = {**state.get("order", {}), "items": [*state.get("order", {}).get("items", []), result]}
        message = {"role": "tool", "tool_call_id": made["id"], "content": result, "id": f"result-{made['id']}"}
        return {"messages": message, "log": ["tools"], "order": order}

    def follow(state: Desk):
        calls = state["messages"][-1].get("tool_calls")
        theirs = {tool["name"] for tool in state.get("tools", [])}
        return "tools" if calls and calls[0]["function"]["name"] not in theirs else END

    graph = graph_of(Desk, "S>model", model=model, tools=tools)
    graph.add_conditional_edges("model", follow, ["tools", END])
    graph.add_edge("tools", "model")
    return graph.compile(name="desk")


def make_forgetful():
    """Nodes that give their messages no ids, but for the last, and say something aside."""

    def ask(state: Desk):
        call_model(Model(), [{"role": "user", "content": "aside"}])
        made = {"role": "assistant", "content": "", "tool_calls": [call("c1", "look", at="it"), call("c2", "look", at="him")]}
        return {"messages": made}

    def look(state: Desk):
        calls = state["messages"][-1]["tool_calls"]
        return {"messages": [{"role": "tool", "tool_call_id": each["id"], "content": "seen"} for each in calls]}

    def answer(state: Desk):
        return {"messages": {"role": "assistant", "content": "Done.", "id": f"done-{len(state['messages'])}"}}

    graph = StateGraph(Desk)
    for node in (ask, look, answer):
        graph.add_node(node)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "look")
    graph.add_edge("look", "answer")
    return graph.compile(name="forgetful")


def make_langchain():
    """An agent with LangChain's messages inside another graph. Its model calls a tool, in pieces, and says "Done."."""
    pytest.importorskip("langchain_core", reason="needs langchain_core: make compat")
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk, AnyMessage, ToolMessage
    from langchain_core.messages.tool import tool_call_chunk
    from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

    from stategraph.graph import add_messages

    class Scripted(BaseChatModel):
        _llm_type: str = "scripted"

        def _stream(self, messages: list[Any], *_, **__):
            if messages[-1].type == "tool":
                pieces = [AIMessageChunk(text) for text in ("Do", "ne.")]
            else:
                heads = [("c1", "look", '{"at"'), (None, None, ': "it"}')]
                calls = [tool_call_chunk(id=id, name=name, args=args, index=0) for id, name, args in heads]
                pieces = [AIMessageChunk("", tool_call_chunks=[each]) for each in calls]
            yield from (ChatGenerationChunk(message=piece) for piece in pieces)

        def _generate(self, *given, **options):
            whole = sum((each.message for each in self._stream(*given)), AIMessageChunk(""))
            return ChatResult(generations=[ChatGeneration(message=whole)])

    class Talk(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    model = Scripted()

    def ask(state: Talk):
        return {"messages": call_model(model, state["messages"])}

    def look(state: Talk):
        calls = state["messages"][-1].tool_calls  # type: ignore[union-attr]
        return {"messages": [ToolMessage("seen", tool_call_id=each["id"], status="error") for each in calls]}

    inner = graph_of(Talk, "S>ask", ask=ask, look=look)
    inner.add_conditional_edges("ask", lambda state: "look" if state["messages"][-1].tool_calls else END, ["look", END])
    inner.add_edge("look", "ask")
    return chain_of(Talk, agent=inner.compile()).compile(name="langchain")
