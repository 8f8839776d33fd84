"""Dict messages reduced to what the APIs of models take. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from .contents import to_openai

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
