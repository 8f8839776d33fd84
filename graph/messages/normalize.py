"""What counts as a message: the short forms, ids, removals; and messages in the form that OpenAI's
API takes. Pure; nothing here knows a list.

Messages are recognized by their shape: plain dicts (`{"role", "content", "id"}`) or any objects
with an `id`. No model library is loaded here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, TypeAlias

from ...checkpoint import register
from ...pregel.errors import closest, nearest
from ...pregel.program.writes import shown
from ...pregel.run.tokens import changed, message_id, with_id

AnyMessage: TypeAlias = Any
"""A message: a dict with `role`, `content` and, once it is in a state, `id`; or any object with an
`id`."""

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""The id that removes every message: `RemoveMessage(id=REMOVE_ALL_MESSAGES)`."""

ROLES: Final = {"human": "user", "ai": "assistant"}
"""Other names of roles, and the names that stand in messages."""

_KNOWN_ROLES = ("user", "assistant", "system", "developer", "tool", "function", *ROLES)


@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """Written to a list of messages, it removes the one with this id.

    Args:
        id: the message's id, or `REMOVE_ALL_MESSAGES`.

    >>> from stategraph import add_messages
    >>> add_messages([{"role": "user", "content": "hi", "id": "1"}], RemoveMessage(id="1"))
    []
    """

    id: str
    role: ClassVar[Literal["remove"]] = "remove"


# The name is on people's disks: it outlives a move of the class.
register(RemoveMessage, name="stategraph.graph.messages:RemoveMessage")


def list_messages(given: Any) -> list[Any]:
    """One message or several, as a list. A tuple of two that begins with a role is one message."""
    if isinstance(given, list):
        return given
    if type(given) is tuple and not (len(given) == 2 and isinstance(given[0], str)):
        return list(given)
    return [given]


class Normalizer:
    """Normalizes many messages: most are as a list holds them, which is soon seen.

    Args:
        rewrite: bring contents to OpenAI's form.
    """

    __slots__ = ("_plain", "rewrite")

    def __init__(self, rewrite: bool) -> None:
        self.rewrite: bool = rewrite
        self._plain: set[type] = set()  # classes of objects that are messages as they are

    def read(self, given: Any) -> tuple[Any, Any]:
        """The message, and its id.

        Raises:
            ValueError, TypeError: as `normalize`.
        """
        cls = given.__class__
        id = None
        if not self.rewrite:
            if cls is dict:
                id = given.get("id") if given.get("role").__class__ is str else None
            elif cls in self._plain:
                id = given.id
        if id:
            return given, id
        message = normalize(given, self.rewrite)
        if message is given and not isinstance(given, dict) and not is_chunk(cls):
            self._plain.add(cls)
        return message, message_id(message)


def normalize(given: Any, rewrite: bool) -> Any:
    """A message as a list holds it: a dict or an object, with an id.

    Args:
        rewrite: bring its content to OpenAI's form.

    Raises:
        ValueError: the role is unknown or missing.
        TypeError: this is not a message.
    """
    message = with_id(to_message(given))
    return to_openai(message) if rewrite else message


@lru_cache(100)
def _likely_role(role: str) -> str:
    """The role that was probably meant, as the end of a sentence. Empty for a known role, and for
    one of the user's own, such as "customer"."""
    if role in _KNOWN_ROLES or not role.isalpha():
        return ""
    close = closest(role.lower(), _KNOWN_ROLES, cutoff=0.8)
    return f"; did you mean {close!r}?" if close else ""


def to_message(given: Any) -> Any:
    """A dict or an object from any of the short forms.

    Raises:
        ValueError: the role is unknown or missing.
        TypeError: this is not a message.
    """
    if isinstance(given, dict):
        if not isinstance(given.get("role", given.get("type")), str):
            raise ValueError(f"a message must have a role, got {shown(given)}")
        # What has an id may have been stored already: it must be possible to load and extend that.
        if not given.get("id") and (meant := _likely_role(given.get("role", given.get("type")))):
            raise ValueError(f"a message must have a known role, got {shown(given)}{meant}")
        return given
    if isinstance(given, str):
        return {"role": "user", "content": given}
    if type(given) in (tuple, list) and len(given) == 2 and isinstance(given[0], str):
        role, content = given
        if role not in _KNOWN_ROLES:
            raise ValueError(
                f"a message must have a known role, got {shown(given)}; "
                f"{nearest(role, _KNOWN_ROLES)}"
            )
        return {"role": ROLES.get(role, role), "content": content}
    if not hasattr(given, "id"):
        raise TypeError(
            "a message must be a dict, an object with an id, a (role, content) pair or a str, "
            f"got {shown(given)}"
        )
    return unchunk(given)


def unchunk(message: Any) -> Any:
    """A summed-up chunk as the message that it is a chunk of, which is a base of its class:
    `XChunk(X)`. Any other message as it is."""
    cls = type(message)
    if not is_chunk(cls):
        return message
    name = cls.__name__.removesuffix("Chunk")
    bases = (base for base in cls.__mro__ if base.__name__ == name)
    base: Any = next((base for base in bases if hasattr(base, "model_fields")), None)
    if base is None:
        return message
    fields = (field for field in base.model_fields if field != "type")
    return base(**{field: getattr(message, field) for field in fields})


def is_chunk(cls: type) -> bool:
    """Whether instances of a class may be parts of a message."""
    return cls.__name__.endswith("Chunk")


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
