"""Converts messages between the forms of AG-UI and of a graph. Pure.

A graph's message is read in its JSON form: a dict with a `role`, or LangChain's with a `type`.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from ...json_messages import calls_of, role_of, text_of

_PARTS: Final[TypeAdapter[Any]] = TypeAdapter(ContentPart)
_CALL: Final = {"id", "type", "function"}


# -- to a graph ------------------------------------------------------------------------------------


def to_graph(message: Message) -> dict[str, Any] | None:
    """Convert a message to a graph's form; None for one that is meant for the client only."""
    if isinstance(message, ActivityMessage | ReasoningMessage):
        return None
    made: dict[str, Any] = {"role": message.role, "id": message.id}
    if isinstance(message, AssistantMessage):
        made["content"] = message.content or ""
        if message.tool_calls:
            made["tool_calls"] = [call.model_dump(include=_CALL) for call in message.tool_calls]
    elif isinstance(message, DeveloperMessage | SystemMessage):
        made["content"] = message.content
    else:
        content = message.content
        is_text = isinstance(content, str)
        made["content"] = content if is_text else [*map(_part_to_graph, content)]
    if isinstance(message, ToolMessage):
        made["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            made |= {"status": "error", "content": made["content"] or message.error}
    elif message.name is not None:
        made["name"] = message.name
    return made


def _part_to_graph(part: Any) -> dict[str, Any]:
    """Convert a content part: images to the form that most models take, others unchanged."""
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
    """Convert a graph's message to AG-UI's form; None if AG-UI has no form for it.

    Args:
        place: its position among the graph's messages, from which one without an id gets its id.
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


def _content_from_graph(content: Any) -> Any:
    """Return a content as text, or as parts if one of them is not text."""
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
