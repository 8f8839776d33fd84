"""Errors of LangGraph that this engine does not raise, and its error codes."""

from __future__ import annotations

import warnings as _warnings
from enum import Enum
from typing import Any

from ...pregel.errors import GraphInterrupt
from ...pregel.task.interrupts import INVALID_RESUME
from ...pregel.types import Interrupt
from .warnings import LangGraphDeprecatedSinceV10

_PAGE = "https://docs.langchain.com/oss/python/langgraph/errors/"


class ErrorCode(Enum):
    """LangGraph's names of common mistakes."""

    GRAPH_RECURSION_LIMIT = "GRAPH_RECURSION_LIMIT"
    INVALID_CONCURRENT_GRAPH_UPDATE = "INVALID_CONCURRENT_GRAPH_UPDATE"
    INVALID_GRAPH_NODE_RETURN_VALUE = "INVALID_GRAPH_NODE_RETURN_VALUE"
    MULTIPLE_SUBGRAPHS = "MULTIPLE_SUBGRAPHS"
    INVALID_CHAT_HISTORY = "INVALID_CHAT_HISTORY"


def create_error_message(*, message: str, error_code: ErrorCode) -> str:
    """A message that ends with the page of LangGraph's docs about its code."""
    return f"{message}\nFor troubleshooting, visit: {_PAGE}{error_code.value}"


class NodeInterrupt(GraphInterrupt):
    """Raised by a node, it pauses the graph with one question. Deprecated; use `interrupt`."""

    def __init__(self, value: Any, id: str | None = None) -> None:
        _warnings.warn(
            LangGraphDeprecatedSinceV10("NodeInterrupt is deprecated; call interrupt() instead"),
            stacklevel=2,
        )
        super().__init__(value if id is None else [Interrupt(value, id)])


class TaskNotFound(Exception):
    """LangGraph's executors could not find a task. This engine does not raise it."""


def is_invalid_resume(error: BaseException) -> bool:
    """Return whether an answer did not fit the `response_schema` of its question."""
    return hasattr(error, INVALID_RESUME)
