"""What the peer's tool node looks up: who reads the output of a tool while it runs."""

from contextvars import ContextVar
from typing import Any

_tool_call_writer: ContextVar[Any] = ContextVar("langgraph_tool_call_writer", default=None)
