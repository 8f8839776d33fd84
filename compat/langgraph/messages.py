"""LangGraph's conversations: lists of LangChain's message objects."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from typing_extensions import TypedDict

from ...graph.messages import REMOVE_ALL_MESSAGES
from ..langchain.messages import AnyMessage, add_messages, push_message

__all__ = ["REMOVE_ALL_MESSAGES", "Messages", "MessagesState", "add_messages", "push_message"]

Messages: TypeAlias = list[Any] | Any


class MessagesState(TypedDict):
    """A state with one key, `messages`, merged by `add_messages`."""

    messages: Annotated[list[AnyMessage], add_messages]
