"""Messages on their way to readers of the `messages` stream: what is one, who listens, what was not
sent yet.

A message is a dict with `role` and `content`, or an object with `id` and `content`: told by its
shape, never by its class. How messages are merged into a state is decided above the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass, replace
from functools import lru_cache
from typing import Any, Final
from uuid import uuid4

from ...channels.aggregate import is_overwrite, overwritten_value
from ...checkpoint.serde.class_codecs import is_pydantic, pydantic_fields
from ..program.results import is_record, record_items
from ..program.writes import Pair
from ..runtime import Running

_NO_MESSAGES: Final = frozenset((str, int, float, bool, bytes, type(None)))

NOSTREAM: Final = "nostream"
"""A task with this tag sends no tokens; a message that it returns is still sent whole."""


SENDING: Final[ContextVar[bool]] = ContextVar("stategraph_sending", default=False)
"""Whether who reads the tokens that come in this context sends them: nobody else does then."""


@contextmanager
def sending() -> Iterator[None]:
    """The tokens that come within are sent by who reads them."""
    token = SENDING.set(True)
    try:
        yield
    finally:
        SENDING.reset(token)


# -- messages by shape -----------------------------------------------------------------------------


def is_message(value: Any) -> bool:
    """Whether this can be shown as a message. An order to remove a message cannot.

    >>> is_message({"role": "user", "content": "hi"})
    True
    >>> is_message({"role": "remove", "id": "1"}), is_message("hi")
    (False, False)
    """
    if isinstance(value, dict):
        shaped = "content" in value and isinstance(value.get("role"), str)
    else:
        shaped = hasattr(value, "content") and hasattr(value, "id") and not isinstance(value, type)
    return (
        shaped and isinstance(message_id(value), (str, int, type(None))) and not is_removal(value)
    )


def is_removal(value: Any) -> bool:
    """Whether this orders a message to be removed: its `role` or `type` is "remove"."""
    if isinstance(value, dict):
        role, kind = value.get("role"), value.get("type")
    else:
        cls = value.__class__
        if _has_only_type(cls):
            own, extra = value.__dict__, getattr(value, "__pydantic_extra__", None)
            if not extra and "role" not in own and own.get("type") != "remove":
                return False
        role = _extra(value, "role") if _lacks(cls, "role") else getattr(value, "role", None)
        kind = _extra(value, "type") if _lacks(cls, "type") else getattr(value, "type", None)
    return (isinstance(role, str) and role == "remove") or (
        isinstance(kind, str) and kind == "remove"
    )


def _extra(value: Any, name: str) -> Any:
    """An attribute that a model does not declare, or None. A pydantic model looks in Python for one
    that it does not have, and makes an error of it: that costs more than all the rest (benchmark
    P35)."""
    extra = getattr(value, "__pydantic_extra__", None)
    return (extra and extra.get(name)) or value.__dict__.get(name)


@lru_cache(maxsize=512)  # asked of every message of a first call (benchmark P35-first)
def _has_only_type(cls: type) -> bool:
    """Whether this is a pydantic model that declares a `type`, and no `role`."""
    return _lacks(cls, "role") and "type" in pydantic_fields(cls)


@lru_cache(maxsize=512)
def _lacks(cls: type, name: str) -> bool:
    """Whether this is a pydantic model that declares no such attribute."""
    if not is_pydantic(cls) or name in pydantic_fields(cls):
        return False
    for base in cls.__mro__[:-1]:
        own = vars(base)
        if name in own or "__getattribute__" in own:
            return False
        if "__getattr__" in own and base.__module__.partition(".")[0] != "pydantic":
            return False
    return True


def message_id(message: Any) -> Any:
    """The message's id, or None if it has none yet; an empty one counts as none."""
    found = message.get("id") if isinstance(message, dict) else getattr(message, "id", None)
    return None if isinstance(found, str) and not found else found


def with_id(message: Any, id: Any = None) -> Any:
    """The message itself if it has an id, else a copy that has one. Only an object that cannot be
    copied is changed.

    Args:
        id: the id to give; a random one if None.

    >>> with_id({"role": "user", "content": "hi"}, "1")
    {'role': 'user', 'content': 'hi', 'id': '1'}
    """
    if message_id(message) is not None:
        return message
    return changed(message, {"id": str(uuid4()) if id is None else id})


def changed(message: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of the message with other fields; an object that cannot be copied is changed itself.

    Raises:
        TypeError: the object can neither be copied nor changed.
    """
    if isinstance(message, dict):
        return {**message, **changes}
    if hasattr(message, "model_copy"):
        return message.model_copy(update=dict(changes))
    try:
        twin = copy.copy(message)
    except Exception:  # whatever its __copy__ says: it cannot be copied
        twin = message
    try:
        for name, value in changes.items():
            setattr(twin, name, value)
    except AttributeError as error:
        if is_dataclass(message):  # a frozen one
            return replace(message, **changes)  # type: ignore[type-var]
        raise TypeError(
            f"a message must have writable attributes {', '.join(changes)}, "
            f"got {type(message).__name__}: {error}"
        ) from error
    return twin


# -- sending ---------------------------------------------------------------------------------------


def emitter(task: Running, *, tokens: bool = True) -> Callable[[Any], None] | None:
    """What sends messages of this attempt of `task`, or None if nobody wants them. A chunk is
    (message, metadata).

    Args:
        tokens: parts of a message are to be sent, which the tag "nostream" forbids.
    """
    if not task.listens("messages"):
        return None
    config = task.config
    tags = config.get("tags") or ()
    if tokens and NOSTREAM in tags:
        return None
    metadata = {**config.get("metadata", {}), **({"tags": list(tags)} if tags else {})}
    attempt = task.attempt

    def emit(message: Any) -> None:
        if task.attempt == attempt:  # an abandoned attempt speaks no more
            task.emit("messages", (message, metadata))

    return emit


def emit_message(task: Running, message: Any) -> None:
    """Send a whole message to those who read the messages of `task`, at once."""
    emit = emitter(task, tokens=False)
    if emit is not None:
        emit(message)


def unstreamed(task_input: Any, found: Sequence[Any], seen_ids: Container[Any]) -> list[Any]:
    """The messages that a task wrote and that its readers have not seen yet, in the order written.
    One without an id comes as a copy with a random one; it is not the id that a reducer will give
    it.

    Args:
        task_input: what the task was called with; messages in it, one level deep, are not shown
            again.
        found: all messages that it wrote.
        seen_ids: the ids of messages that were sent, whole or in parts.

    >>> question = {"role": "user", "content": "?", "id": "1"}
    >>> answer = {"role": "assistant", "content": "!", "id": "2"}
    >>> unstreamed({"messages": [question]}, [question, answer], set())
    [{'role': 'assistant', 'content': '!', 'id': '2'}]
    >>> unstreamed({"messages": [question]}, [answer], {"2"})
    []
    """
    # Only these are looked for in the input, which may have many (benchmark P44).
    ids = {message_id(message) for message in found} - {None}
    known = {message_id(message) for message in _messages_below(task_input, ids)} if ids else set()
    new = []
    for message in found:
        id = message_id(message)
        if id is None:
            new.append(with_id(message))
        elif id not in known and id not in seen_ids:
            known.add(id)
            new.append(message)
    return new


def _messages_below(task_input: Any, ids: Container[Any]) -> Iterator[Any]:
    """The messages with such ids in a state, or in an input that is a message or a list of them."""
    if is_message(task_input) or isinstance(task_input, (list, tuple)):
        yield from messages_in(task_input, ids)
    elif isinstance(task_input, Mapping):
        for value in task_input.values():
            yield from messages_in(value, ids)
    elif is_record(task_input):
        for _, value in record_items(task_input):
            yield from messages_in(value, ids)


def written_messages(writes: Iterable[Pair]) -> list[Any]:
    """The messages in what a task wrote, in the order written."""
    return [
        message
        for _, value in writes
        if value.__class__ not in _NO_MESSAGES  # nor is what triggers the next nodes
        for message in messages_in(value)
    ]


def messages_in(value: Any, ids: Container[Any] | None = None) -> Iterator[Any]:
    """The messages in a written value, one level deep: it is one, or a list of them, or an
    `Overwrite` of either.

    Args:
        ids: only messages that have one of these ids.
    """
    if is_overwrite(value):
        value = overwritten_value(value)
    for item in value if isinstance(value, (list, tuple)) else (value,):
        if ids is not None:
            # No calls: each turn of a chat looks at all messages before it (benchmark P44).
            id = item.get("id") if isinstance(item, dict) else getattr(item, "id", None)
            if not isinstance(id, (str, int)) or id not in ids:
                continue
        if is_message(item):
            yield item
