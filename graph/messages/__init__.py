"""Conversations as state: the reducer for lists of messages, and what nodes call to send messages
while they run. No model library is loaded here."""

from .models import acall_model, call_model
from .normalize import REMOVE_ALL_MESSAGES, AnyMessage, RemoveMessage, strip_messages
from .reducer import Format, MessagesState, add_messages
from .streaming import astream_text, emit_message_delta, push_message, stream_text

__all__ = [
    "REMOVE_ALL_MESSAGES",
    "AnyMessage",
    "Format",
    "MessagesState",
    "RemoveMessage",
    "acall_model",
    "add_messages",
    "astream_text",
    "call_model",
    "emit_message_delta",
    "push_message",
    "stream_text",
    "strip_messages",
]
