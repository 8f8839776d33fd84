"""Building graphs: declare a typed state, nodes and edges; `compile` makes a Pregel of them.
Nothing here runs."""

from ..pregel.errors import GraphWarning
from ..pregel.names import END, START
from .builder import StateGraph
from .compile import CompiledStateGraph
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
]
