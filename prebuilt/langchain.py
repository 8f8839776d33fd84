"""LangChain's messages and tools, as `tool_node` and `agent` take them. LangChain is not loaded for
it: a program that gives one of its objects has loaded it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from pydantic import ValidationError, create_model

from ..graph.effects import declared_of
from ..pregel.program.callables import Hints
from .tool import Tool, describe_misfit, parse, untitled_schema

_MESSAGES = "langchain_core.messages"
_TOOL_CALL = "tool_call"


def is_langchain(given: Any) -> bool:
    """Return whether this is a message of LangChain's classes."""
    base = getattr(sys.modules.get(_MESSAGES), "BaseMessage", None)
    return base is not None and isinstance(given, base)


def openai_call(call: dict[str, Any], message: Any) -> dict[str, Any]:
    """Return a tool call of a message in OpenAI's form; its type says if the message is
    LangChain's."""
    if "function" in call:
        return call
    function = {"name": call["name"], "arguments": json.dumps(call["args"])}
    kind = _TOOL_CALL if is_langchain(message) else "function"
    return {"id": call["id"], "type": kind, "function": function}


def tool_message(call: dict[str, Any], message: Any) -> Any:
    """Return the answer to a call, a dict or a `ToolMessage`, in the form in which the model has
    called."""
    if call.get("type") == _TOOL_CALL:
        if not isinstance(message, dict):
            return message
        fields = {key: value for key, value in message.items() if key != "role"}
        return sys.modules[_MESSAGES].ToolMessage(**fields)
    if isinstance(message, dict):
        return message
    failed = {"status": "error"} if message.status == "error" else {}
    named = {"role": "tool", "name": message.name, "tool_call_id": message.tool_call_id}
    return {**named, "content": message.content, **failed}


class LangChainTool(Tool):
    """A tool of LangChain. It validates its arguments, reports to handlers, and formats its result
    itself; parameters that this engine fills are hidden from the model.

    Args:
        tool: has `name`, `description`, `tool_call_schema` and `invoke`.
    """

    def __init__(self, tool: Any) -> None:
        body, coroutine = getattr(tool, "func", None), getattr(tool, "coroutine", None)
        self.effect = declared_of(tool)
        self.tool = tool
        self.name, self.description = tool.name, tool.description
        self.is_async = coroutine is not None and body is None
        self._given, self._states, self._ids = {}, {}, []
        hints = Hints(body or coroutine or tool._run)
        self._shown = tool.tool_call_schema
        if not isinstance(self._shown, dict):
            fields: Any = {
                name: (field.annotation, field)
                for name, field in self._shown.model_fields.items()
                if not self._note_injected(name, hints.get(name))
            }
            self._shown = create_model(tool.name, **fields)

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of what the model fills."""
        shown = self._shown
        return shown if isinstance(shown, dict) else untitled_schema(shown)

    def read(self, text: str) -> dict[str, Any]:
        """Return the arguments of a call, unchecked: LangChain checks them.

        Raises:
            ToolCallError: the text is no JSON.
        """
        found: dict[str, Any] = parse(text)
        return found

    def bind(self, call: dict[str, Any], arguments: dict[str, Any]) -> Callable[[], Any]:
        """Return the call as a function without parameters; with a coroutine, if it is async."""
        given = {"name": self.name, "args": arguments, "id": call["id"], "type": _TOOL_CALL}
        return partial(self._acall if self.is_async else self._call, given)

    def _call(self, given: dict[str, Any]) -> Any:
        with self._misfits_told():
            return self.tool.invoke(given)

    async def _acall(self, given: dict[str, Any]) -> Any:
        with self._misfits_told():
            return await self.tool.ainvoke(given)

    @contextmanager
    def _misfits_told(self) -> Iterator[None]:
        """Raise a `ToolCallError` where the arguments do not fit the schema of the tool."""
        try:
            yield
        except ValidationError as error:
            if error.title != getattr(self.tool.args_schema, "__name__", None):
                raise
            raise describe_misfit(error) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """Made anew: what it knows of the tool follows from it."""
        return LangChainTool, (self.tool,)


def as_tool(given: Any) -> Tool:
    """Return the tool that was given, or one made of a function or of a tool of LangChain."""
    if isinstance(given, Tool):
        return given
    base = getattr(sys.modules.get("langchain_core.tools"), "BaseTool", None)
    return LangChainTool(given) if base is not None and isinstance(given, base) else Tool(given)
