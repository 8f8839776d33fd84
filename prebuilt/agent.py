"""The agent loop: a model answers or asks for tools, the tools are called, until nothing is asked.

It is a graph of two nodes. Where it does not do what you want, write it out: it is a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..graph import CompiledStateGraph, MessagesState, StateGraph, acall_model, call_model
from ..graph.arguments import known_keywords
from ..pregel.names import END, START
from ..pregel.types import LOCAL
from .langchain import is_langchain
from .openai_model import OpenAIModel
from .tool import ToolCallError
from .tool_node import Approval, ErrorPolicy, Message, ToolNode, tools_condition


@known_keywords(StateGraph.compile)
def create_agent(
    model: Any,
    tools: ToolNode | Sequence[Any] = (),
    *,
    system_prompt: str | None = None,
    approve: Approval = (),
    handle_tool_errors: ErrorPolicy = ToolCallError,
    state_schema: Any = MessagesState,
    context_schema: Any = None,
    name: str = "agent",
    **options: Any,
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return an agent as a compiled graph: its input and output are `{"messages": [...]}`, dicts
    or messages of LangChain.

    Args:
        model: an object with `invoke(messages, tools=...)`, and `stream`, `ainvoke` and `astream`
            if it has them, as `call_model` takes it; a chat model of LangChain; or the name of a
            model, for `OpenAIModel`.
        tools: functions with type hints, `Tool`s, tools of LangChain, or a `ToolNode`.
        system_prompt: placed before the messages of the state; not stored.
        approve, handle_tool_errors: as in `ToolNode`.
        state_schema: has a key `messages`.
        context_schema: as in `StateGraph`.
        name: of the graph.
        options: as in `StateGraph.compile`: `checkpointer`, `store`, ...

    Raises:
        ValueError, TypeError: as `ToolNode`.
    """
    if not isinstance(tools, ToolNode):
        tools = ToolNode(tools, handle_tool_errors=handle_tool_errors, approve=approve)
    graph: Any = StateGraph(state_schema, context_schema)
    graph.add_node("model", ModelNode(model, tools.schemas, system_prompt))
    graph.add_edge(START, "model")
    if tools.tools:
        graph.add_node("tools", tools, executor=LOCAL)  # its calls go to executors
        graph.add_conditional_edges("model", tools_condition, ["tools", END])
        graph.add_edge("tools", "model")
    compiled: CompiledStateGraph[Any, Any, Any, Any] = graph.compile(name=name, **options)
    return compiled


class ModelNode:
    """A node that asks a model; its tokens are sent to readers of the `messages` stream.

    Args:
        model: as in `create_agent`.
        schemas: the tools that it may ask for.
        system_prompt: comes before the messages of the state.
    """

    name = "model"
    drawn_as: tuple[str, ...] = ("model",)

    def __init__(
        self,
        model: Any,
        schemas: Sequence[dict[str, Any]] = (),
        system_prompt: str | None = None,
    ) -> None:
        self.model: OpenAIModel | Any = OpenAIModel(model) if isinstance(model, str) else model
        self.system: list[Message] = []
        if system_prompt:
            self.system.append({"role": "system", "content": system_prompt})
        self.options: dict[str, list[dict[str, Any]]] = {}
        if schemas:  # servers refuse an empty list
            if hasattr(model, "bind_tools"):
                self.model = model.bind_tools(schemas)
            else:
                self.options = {"tools": list(schemas)}

    def invoke(self, state: Any, config: Any = None) -> dict[str, Message]:
        """The model's answer, as an update."""
        return _update(call_model(self.model, self._conversation(state), **self.options))

    async def ainvoke(self, state: Any, config: Any = None) -> dict[str, Message]:
        """`invoke` for async runs. A model that is only sync is called on a thread."""
        if not hasattr(self.model, "ainvoke"):
            return await asyncio.to_thread(self.invoke, state)
        return _update(await acall_model(self.model, self._conversation(state), **self.options))

    def _conversation(self, state: Any) -> list[Message]:
        messages = state["messages"] if isinstance(state, dict) else state.messages
        return [*self.system, *messages]


def _update(message: Any) -> dict[str, Message]:
    if not isinstance(message, dict) and not is_langchain(message):
        raise TypeError(
            f"the model must answer with a dict, got {type(message).__name__}; messages of "
            "LangChain are taken, too"
        )
    return {"messages": message}
