"""Reads messages of graphs as JSON: dicts with a `role`, or LangChain's with a `type`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_ROLES: Final = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A tool call of a message, or a piece of one.

    Attributes:
        index: tells the pieces of one call from those of another.
        id, name: None in pieces after the first.
        arguments: what comes next of the arguments' text.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


def role_of(message: Mapping[str, Any]) -> str:
    """Whose message it is, as most providers say it; a piece that does not say is the model's."""
    said = str(message.get("role") or message.get("type") or "assistant")
    name = said.removesuffix("Chunk").removesuffix("Message").lower()
    return _ROLES.get(name, name)


def text_of(content: Any) -> str:
    """The text of a content: its text parts put together, the others left out. A value that is
    neither a text nor parts as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content)
    texts = [
        part if isinstance(part, str) else part.get("text", "")
        for part in content
        if isinstance(part, str) or (isinstance(part, Mapping) and part.get("type") == "text")
    ]
    return "".join(texts)


def calls_of(message: Mapping[str, Any]) -> Iterator[CallPiece]:
    """The tool calls of a message, or the pieces of them in a piece of one."""
    is_piece = str(message.get("type") or "").endswith("Chunk")
    found = message.get("tool_call_chunks" if is_piece else "tool_calls")
    for place, call in enumerate(found or ()):
        function = call.get("function")
        if function is not None:  # OpenAI's form
            name, arguments = function.get("name"), function.get("arguments")
        else:
            name, arguments = call.get("name"), call.get("args")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments)
        index = call.get("index")
        yield CallPiece(place if index is None else index, call.get("id"), name, arguments)
