"""Brings messages and their contents into the form that OpenAI's API takes. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from ...pregel.run.tokens import changed

ROLES: Final = {"human": "user", "ai": "assistant"}
"""Other names of roles, and the names that stand in messages."""


def to_openai(message: Any) -> Any:
    """The message with its content, tool calls and role in the form that OpenAI's API takes; itself
    if they are already. Of an object only the content is rewritten.

    >>> to_openai({"role": "ai", "content": [{"type": "text", "text": "a"}, "b"], "id": "1"})
    {'role': 'assistant', 'content': 'a\\nb', 'id': '1'}
    """
    changes = _change_dict(message) if isinstance(message, dict) else _change_object(message)
    return changed(message, changes) if changes else message


def _change_dict(message: Mapping[str, Any]) -> dict[str, Any]:
    """What must change in a message that is a dict."""
    changes: dict[str, Any] = {}
    content = message.get("content")
    if isinstance(content, list):
        calls = _tool_calls(content, message.get("tool_calls") or [])
        if calls:
            changes["tool_calls"] = calls
        changes["content"] = _openai_content(_without_tool_use(content))
    role = message.get("role") or message.get("type")
    if role in ROLES:
        changes["role"] = ROLES[role]
    return changes


def _change_object(message: Any) -> dict[str, Any]:
    """What must change in a message of a class: its content alone."""
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        return {}
    # Without calls of its own, the blocks are the only place where they stand.
    own_calls = getattr(message, "tool_calls", None)
    return {"content": _openai_content(_without_tool_use(content) if own_calls else content)}


def _without_tool_use(blocks: Iterable[Any]) -> list[Any]:
    return [block for block in blocks if not _is_tool_use(block)]


def _openai_content(blocks: Sequence[Any]) -> str | list[Any]:
    """Blocks of text alone become one str."""
    rewritten = [_openai_block(block) for block in blocks]
    if all(isinstance(block, dict) and block.get("type") == "text" for block in rewritten):
        return "\n".join(block["text"] for block in rewritten)
    return rewritten


def _openai_block(block: Any) -> Any:
    """Text and images in OpenAI's form; blocks of other kinds as they are."""
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, Mapping):
        return block
    if block.get("type") == "text":
        return {"type": "text", "text": block.get("text", "")}
    url = _image_url(block) if block.get("type") == "image" else None
    return {"type": "image_url", "image_url": {"url": url}} if url else block


def _image_url(block: Mapping[str, Any]) -> str | None:
    """The address of an image, or its data as one; None if neither is found."""
    source = block.get("source")
    source = source if isinstance(source, Mapping) else block
    url = source.get("url")
    data = source.get("base64") or source.get("data")
    if not isinstance(data, str):
        return url if isinstance(url, str) else None
    kind = source.get("media_type") or source.get("mime_type") or "image/png"
    return f"data:{kind};base64,{data}"


def _is_tool_use(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "tool_use"


def _tool_calls(blocks: Iterable[Any], known: Sequence[Any]) -> list[Any]:
    """The known calls, and those that stand among the blocks of a content."""
    ids = {call.get("id") for call in known if isinstance(call, Mapping)}
    fresh = [block for block in blocks if _is_tool_use(block) and block.get("id") not in ids]
    return [*known, *map(_tool_call, fresh)]


def _tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input", {}))
    function = {"name": block.get("name"), "arguments": arguments}
    return {"type": "function", "id": block.get("id"), "function": function}


# -- dict messages reduced to what the APIs of models take -----------------------------------------

_TAKEN: Final = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": ("role", "content", "name", "refusal", "audio", "tool_calls", "function_call"),
    "tool": ("role", "content", "tool_call_id"),
    "function": ("role", "content", "name"),
}
"""Role → the keys that the chat-completions API takes."""

_TAKEN_OF_CALLS: Final = ("id", "type", "function", "custom")


def strip_messages(messages: Iterable[Any], *, keep: Collection[str] = ()) -> list[Any]:
    """The messages without what the APIs of models refuse: ids, and keys that are not part of the
    chat-completions protocol. Roles and contents are brought to OpenAI's form.

    Nothing given is changed. Objects that are no dicts stay as they are: a model's own library
    understands them.

    Args:
        keep: further keys that this API takes, such as "reasoning_content".

    >>> strip_messages([{"role": "user", "content": "hi", "id": "1", "seen": True}])
    [{'role': 'user', 'content': 'hi'}]
    """
    return [_strip(each, keep) if isinstance(each, dict) else each for each in messages]


def _strip(message: Mapping[str, Any], keep: Collection[str]) -> dict[str, Any]:
    whole = to_openai(message)
    role = whole.get("role") or whole.get("type")
    taken = _TAKEN.get(role, ("role", "content", "name"))
    found = {key: value for key, value in whole.items() if key in taken or key in keep}
    calls = found.pop("tool_calls", None)
    if calls:  # an empty list is refused
        found["tool_calls"] = [_strip_call(call) for call in calls]
    return {**found, "role": role}


def _strip_call(call: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in call.items() if key in _TAKEN_OF_CALLS}
    return {"type": "function", **found}
