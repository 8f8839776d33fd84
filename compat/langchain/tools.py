"""LangChain's tools: a `Command` that one returns reaches the graph as it is."""

from __future__ import annotations

from langchain_core.messages.tool import ToolOutputMixin

from ...pregel.types import Command


def adopt_command() -> None:
    """Make `Command` one of the results that LangChain does not turn into a text.

    It asks for the class `ToolOutputMixin`. Only with LangChain loaded can `Command` inherit from
    it, so the base is added here.
    """
    if not issubclass(Command, ToolOutputMixin):
        Command.__bases__ = (*Command.__bases__, ToolOutputMixin)
