"""Reads messages of graphs as JSON: dicts with a `role`, or LangChain's with a `type`. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_ROLES: Final = {"human": "user", "ai": "assistant"}


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A tool call of a message, or a chunk of one.

    Attributes:
        index: chunks with the same index belong to the same call.
        id, name: None in chunks after the first.
        arguments: the next part of the arguments' text.
    """

    index: int
    id: str | None
    name: str | None
    arguments: str


def role_of(message: Mapping[str, Any]) -> str:
    """Return the role of a message, under the name that most providers use; a chunk without a role
    belongs to the model."""
    said = str(message.get("role") or message.get("type") or "assistant")
    name = said.removesuffix("Chunk").removesuffix("Message").lower()
    return _ROLES.get(name, name)


def text_of(content: Any) -> str:
    """Return the text of a content: its text parts joined, without the others. A value that is
    neither a string nor a list of parts becomes JSON."""
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
    """Yield the tool calls of a message, or the chunks of them in a message chunk."""
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
