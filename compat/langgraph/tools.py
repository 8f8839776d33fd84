"""What LangGraph's tool node looks up: who reads the output of a tool while it runs, and the
threads that call tools."""

from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar, copy_context
from typing import Any

from langchain_core.runnables.config import get_executor_for_config

_tool_call_writer: ContextVar[Any] = ContextVar("langgraph_tool_call_writer", default=None)


class ToolExecutor(nullcontext[Any]):
    """Calls the tools of a message. A single one, as agents have it, is called on the caller's
    thread: to start another takes longer than most of the agent (benchmark P31-prebuilt)."""

    def __init__(self, config: Any) -> None:
        super().__init__(self)
        self._config = config

    def map(self, function: Callable[..., Any], *given: Any) -> list[Any]:
        """Return what the function returns for each call, in order."""
        calls = [*zip(*given, strict=False)]
        if len(calls) == 1:
            return [copy_context().run(function, *calls[0])]
        with get_executor_for_config(self._config) as executor:
            return [*executor.map(function, *zip(*calls, strict=False))]
