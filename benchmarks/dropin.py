"""The cases of programs written for LangGraph, run unchanged by both engines. Names come from
`langgraph`; for ours, `stategraph.compat.langgraph` serves it, which is imported before."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

import sizes
from timing import best

TURNS = 10


def p31() -> float:
    """Seconds for a call of three nodes."""
    from langgraph.graph import START, StateGraph

    schema: Any = TypedDict("Numbers", {"x": int})  # type: ignore[misc]
    graph: Any = StateGraph(schema)
    graph.add_sequence([(name, lambda state: {"x": state["x"] + 1}) for name in "abc"])
    graph.add_edge(START, "a")
    app = graph.compile()

    def work() -> None:
        for _ in range(sizes.INVOKES):
            app.invoke({"x": 0})

    return best(work, sizes.INVOKES)


def p31_agent() -> float:
    """Seconds for an agent that calls a tool nine times and then answers; both are functions."""
    from langchain_core.messages import AIMessage, ToolMessage
    from langgraph.graph import END, START, MessagesState, StateGraph

    def model(state: Any) -> Any:
        said = sum(message.type == "ai" for message in state["messages"])
        call = {"name": "add", "args": {"a": said}, "id": f"c{said}"}
        return {"messages": [AIMessage("said", tool_calls=[call] if said < TURNS - 1 else [])]}

    def tools(state: Any) -> Any:
        (call,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(str(call["args"]["a"] + 1), tool_call_id=call["id"])]}

    def route(state: Any) -> str:
        return "tools" if state["messages"][-1].tool_calls else END

    graph: Any = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tools", END])
    graph.add_edge("tools", "model")
    app = graph.compile()

    def work() -> None:
        for _ in range(5):
            found = app.invoke({"messages": [("user", "go")]})
        assert len(found["messages"]) == 2 * TURNS

    return best(work, 5)


def prebuilt() -> Any:
    """The same by `create_react_agent`, with a chat model and a tool of LangChain."""
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool
    from langgraph.prebuilt import create_react_agent

    class Scripted(BaseChatModel):
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, tools: Any, **_: Any) -> Any:
            return self

        def _generate(self, messages: Any, *_: Any, **__: Any) -> ChatResult:
            said = sum(message.type == "ai" for message in messages)
            call = {"name": "add", "args": {"a": said}, "id": f"c{said}"}
            answer = AIMessage("said", tool_calls=[call] if said < TURNS - 1 else [])
            return ChatResult(generations=[ChatGeneration(message=answer)])

    @tool
    def add(a: int) -> int:
        """Add one."""
        return a + 1

    return create_react_agent(Scripted(), [add])


def p31_prebuilt() -> float:
    """Seconds for a call of `prebuilt`."""
    app = prebuilt()

    def work() -> None:
        found = app.invoke({"messages": [("user", "go")]})
        assert len(found["messages"]) == 2 * TURNS

    return best(work, 1)


def p31_prebuilt_async() -> float:
    """Seconds for a call of it on an event loop; LangChain calls model and tool on threads."""
    app = prebuilt()
    with asyncio.Runner() as runner:

        def work() -> None:
            found = runner.run(app.ainvoke({"messages": [("user", "go")]}))
            assert len(found["messages"]) == 2 * TURNS

        return best(work, 1)


CASES = {
    "P31": p31,
    "P31-agent": p31_agent,
    "P31-prebuilt": p31_prebuilt,
    "P31-prebuilt-async": p31_prebuilt_async,
}
