"""Messages of AG-UI as a graph holds them, and a graph's messages as AG-UI sends them. Pure.

A graph's message is read in its JSON form: a dict with a `role`, or LangChain's with a `type`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ag_ui.core import (
    ActivityMessage,
    AssistantMessage,
    ContentPart,
    DeveloperMessage,
    FunctionCall,
    Message,
    ReasoningMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pydantic import TypeAdapter, ValidationError

_ROLES: Final = {"human": "user", "ai": "assistant"}
_PARTS: Final[TypeAdapter[Any]] = TypeAdapter(ContentPart)


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


# -- to a graph ------------------------------------------------------------------------------------


def to_graph(message: Message) -> dict[str, Any] | None:
    """A message as a graph holds it; None for one that only its client is to see."""
    if isinstance(message, ActivityMessage | ReasoningMessage):
        return None
    made: dict[str, Any] = {"role": message.role, "id": message.id}
    if isinstance(message, AssistantMessage):
        made["content"] = message.content or ""
        if message.tool_calls:
            made["tool_calls"] = [_call_to_graph(call) for call in message.tool_calls]
    elif isinstance(message, DeveloperMessage | SystemMessage):
        made["content"] = message.content
    else:
        made["content"] = _content_to_graph(message.content)
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            made |= {"status": "error", "content": made["content"] or message.error}
    elif message.name is not None:
        made["name"] = message.name
    return made


def _call_to_graph(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _content_to_graph(content: str | Sequence[Any]) -> Any:
    return content if isinstance(content, str) else [_part_to_graph(part) for part in content]


def _part_to_graph(part: Any) -> dict[str, Any]:
    """A part of a content: texts and images as most models take them, others as they came."""
    given: dict[str, Any] = part.model_dump(by_alias=True, exclude_none=True)
    source = given.get("source", {})
    if part.type == "image" and source.get("type") == "url":
        return {"type": "image_url", "image_url": {"url": source["value"]}}
    if part.type == "image" and source.get("type") == "data":
        url = f"data:{source['mimeType']};base64,{source['value']}"
        return {"type": "image_url", "image_url": {"url": url}}
    return given


# -- from a graph ----------------------------------------------------------------------------------


def from_graph(message: Any, place: int) -> Message | None:
    """A graph's message as AG-UI sends it; None if AG-UI has no form for it.

    Args:
        place: where it stands among the graph's messages: the id of one that has none.
    """
    if not isinstance(message, Mapping):
        return None
    id, content = str(message.get("id") or f"message-{place}"), message.get("content")
    match role_of(message):
        case "user":
            return UserMessage(id=id, content=_content_from_graph(content), name=_name(message))
        case "assistant":
            calls = [
                ToolCall(
                    id=str(call.id),
                    function=FunctionCall(name=str(call.name), arguments=call.arguments),
                )
                for call in calls_of(message)
            ]
            text = text_of(content) or None
            return AssistantMessage(
                id=id, content=text, tool_calls=calls or None, name=_name(message)
            )
        case "system":
            return SystemMessage(id=id, content=text_of(content))
        case "developer":
            return DeveloperMessage(id=id, content=text_of(content))
        case "tool":
            failed = message.get("status") == "error"
            return ToolMessage(
                id=id,
                content=_content_from_graph(content),
                tool_call_id=str(message.get("tool_call_id")),
                error=text_of(content) if failed else None,
            )
    return None


def role_of(message: Mapping[str, Any]) -> str:
    """Whose message it is, in AG-UI's words; a piece that does not say so is the model's."""
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


def _content_from_graph(content: Any) -> Any:
    """A content as text, or as parts where it has one that is no text."""
    if not isinstance(content, list):
        return text_of(content)
    parts = [part for each in content if (part := _part_from_graph(each)) is not None]
    if all(part["type"] == "text" for part in parts):
        return text_of(content)
    return parts


def _part_from_graph(part: Any) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, Mapping) and part.get("type") == "image_url":
        url = str(part["image_url"]["url"])
        head, comma, value = url.partition(",")
        kind = head.removeprefix("data:").removesuffix(";base64")
        if comma and head.startswith("data:") and head.endswith(";base64"):
            return {"type": "image", "source": {"type": "data", "value": value, "mimeType": kind}}
        return {"type": "image", "source": {"type": "url", "value": url}}
    try:
        _PARTS.validate_python(part)
    except ValidationError:
        return None
    return dict(part)


def _name(message: Mapping[str, Any]) -> str | None:
    return message.get("name") or None


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
