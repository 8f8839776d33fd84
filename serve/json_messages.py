"""Messages of graphs as JSON: dicts with a `role`, or LangChain's with a `type`. Reads both, and
converts between them for clients, which know only the second form. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..graph.messages.reducer import MessageFolding, TypedFolding

_ROLES: Final = {"human": "user", "ai": "assistant"}
_TYPES: Final = {
    "user": "human",
    "assistant": "ai",
    "human": "human",
    "ai": "ai",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "function",
}
"""The type of a message with a role, in the form that LangGraph's clients read."""
_PROMPTS: Final = ("message", "question", "prompt")
_WRITES: Final = "$writes"
_PLAIN: Final = (str, int, float, bool, type(None))


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


def prompt_of(value: Any) -> str | None:
    """Return the text of a question: its value, or the `message`, `question` or `prompt` in its
    value; None if it has none.

    >>> prompt_of("Go on?"), prompt_of({"question": "Name?"}), prompt_of({"order": 7})
    ('Go on?', 'Name?', None)
    """
    if isinstance(value, dict):
        texts = (value.get(key) for key in _PROMPTS)
        value = next((each for each in texts if isinstance(each, str)), None)
    return value if isinstance(value, str) else None


# -- at the door of the server -----------------------------------------------------------------


def for_clients(state: Any) -> Any:
    """Return a state, or an update of one, in which each message that is a dict with a `role` also
    has the `type` that LangGraph's clients look for, and its tool calls `name` and `args`.

    >>> for_clients({"messages": [{"role": "user", "content": "hi", "id": "1"}]})
    {'messages': [{'role': 'user', 'content': 'hi', 'id': '1', 'type': 'human'}]}
    """
    if isinstance(state, list):
        return [*map(for_clients, state)]
    if not isinstance(state, dict):
        return state
    if "role" in state and "content" in state:
        return add_type(state)
    return {key: _messages(value, add_type) for key, value in state.items()}


def from_clients(state: Any, channels: Mapping[str, Any]) -> Any:
    """Return what a client writes to a state, in which each message with a `type` has the `role`
    that graphs read. A key of messages holds them without the `type`; one of LangChain's objects
    takes both forms itself.

    Args:
        channels: the graph's.
    """
    if not isinstance(state, dict):
        return state
    return {
        key: _messages(value, _reader(getattr(channels.get(key), "folding", None)))
        for key, value in state.items()
    }


def _reader(folding: Any) -> Callable[[Any], Any]:
    if isinstance(folding, TypedFolding):
        return _keep
    return _without_type if isinstance(folding, MessageFolding) else _add_role


def _messages(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the value of a key in which each message is converted, in a list or by itself."""
    if value.__class__ is dict:
        if (writes := value.get(_WRITES)) is not None:  # of a task that has written a key twice
            return {_WRITES: [_messages(each, convert) for each in writes]}
        return convert(value)
    if value.__class__ is not list or not value or isinstance(value[0], _PLAIN):
        return value
    return [convert(each) for each in value]


def add_type(message: Any) -> Any:
    """Return a message with its `type`; anything else as it is."""
    if message.__class__ is not dict or "content" not in message or "type" in message:
        return message
    kind = _TYPES.get(_word(message.get("role")))
    if kind is None:
        return message
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return {**message, "type": kind}
    return {**message, "type": kind, "tool_calls": [*map(_add_arguments, calls)]}


def _add_arguments(call: Any) -> Any:
    """Return a tool call in OpenAI's form with the fields of LangChain's."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "args" in call:
        return call
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except (TypeError, ValueError):  # a part, or what a model has spoilt
        arguments = {}
    return {**call, "name": function.get("name"), "args": arguments}


def _without_type(message: Any) -> Any:
    """Return a message of a client as a graph keeps it, without what `add_type` adds."""
    if not _is_typed(message):
        return message
    kept = {key: value for key, value in _add_role(message).items() if key != "type"}
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [*map(_without_arguments, calls)]
    return kept


def _without_arguments(call: Any) -> Any:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {key: value for key, value in call.items() if key not in ("name", "args")}


def _add_role(message: Any) -> Any:
    if not _is_typed(message) or "role" in message:
        return message
    return {**message, "role": _ROLES.get(message["type"], message["type"])}


def _keep(message: Any) -> Any:
    return message


def _is_typed(message: Any) -> bool:
    if not isinstance(message, dict) or "content" not in message:
        return False
    return _word(message.get("type")) in _TYPES.values()


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
