"""Building graphs: declare a typed state, nodes and edges; `compile` makes a Pregel of them.
Nothing here runs."""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names
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

# Not every state holds messages: what is about them is loaded when it is first asked for.
__getattr__ = _lazy_names(__name__, dict.fromkeys(__all__, ".messages"))
