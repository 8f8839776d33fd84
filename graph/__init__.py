"""Building graphs: declare a typed state, nodes and edges; `compile` makes a Pregel of them.
Nothing here runs."""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

from ..pregel.errors import GraphWarning
from ..pregel.names import END, START
from .builder import StateGraph
from .compile import CompiledStateGraph

if TYPE_CHECKING:
    from .messages import (
        REMOVE_ALL_MESSAGES,
        MessagesState,
        RemoveMessage,
        acall_model,
        add_messages,
        astream_text,
        call_model,
        push_message,
        stream_text,
        strip_messages,
    )

__all__ = [
    "END",
    "START",
    "CompiledStateGraph",
    "GraphWarning",
    "StateGraph",
    # messages
    "MessagesState",
    "RemoveMessage",
    "REMOVE_ALL_MESSAGES",
    "add_messages",
    "push_message",
    "stream_text",
    "astream_text",
    "call_model",
    "acall_model",
    "strip_messages",
]


def __getattr__(name: str) -> Any:
    """Load what is about messages when it is first asked for: not every state holds some."""
    if name in __all__:
        return getattr(_load(f"{__name__}.messages"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
