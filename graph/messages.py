"""Conversations as state: the reducer for lists of messages, and what nodes call to say something while they run.

Messages are told by their shape: plain dicts (`{"role", "content", "id"}`) or any objects with an `id`. No model
library is loaded here. What readers get to see is decided in `pregel.tokens`.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, overload
from uuid import uuid4

from typing_extensions import TypedDict

from ..checkpoint import register
from ..pregel.errors import InvalidUpdateError, nearest
from ..pregel.run.tokens import emit_message, emitter, is_removal, message_id, with_id
from ..pregel.runtime import RUNNING, running
from .contents import ROLES, to_openai

AnyMessage: TypeAlias = Any
"""A message: a dict with `role`, `content` and, once it is in a state, `id`; or any object with an `id`."""

Format = Literal["openai", "langchain-openai"]

REMOVE_ALL_MESSAGES: Final = "__remove_all__"
"""The id that removes every message: `RemoveMessage(id=REMOVE_ALL_MESSAGES)`."""

_FORMATS = (None, "openai", "langchain-openai")
_KNOWN_ROLES = ("user", "assistant", "system", "developer", "tool", "function", *ROLES)


@register
@dataclass(frozen=True, slots=True)
class RemoveMessage:
    """Written to a list of messages, it removes the one with this id.

    Args:
        id: the message's id, or `REMOVE_ALL_MESSAGES`.

    >>> add_messages([{"role": "user", "content": "hi", "id": "1"}], RemoveMessage(id="1"))
    []
    """

    id: str
    role: ClassVar[Literal["remove"]] = "remove"


class _Unset:
    """The default of arguments that were not given."""


_UNSET = _Unset()


# -- the reducer -----------------------------------------------------------------------------------


@overload
def add_messages(left: Any, right: Any, *, format: Format | None = None) -> list[AnyMessage]: ...
@overload
def add_messages(*, format: Format | None = None) -> Callable[[Any, Any], list[AnyMessage]]: ...
def add_messages(left: Any = _UNSET, right: Any = _UNSET, *, format: Format | None = None) -> Any:
    """Merge messages into a list of messages: the reducer of `MessagesState`.

    A message whose id is in the list replaces that one in its place; any other is appended. A `RemoveMessage` removes
    the message with its id; with `REMOVE_ALL_MESSAGES` everything before it is dropped, and what follows is merged
    into an empty list. A message without an id gets a random one.

    Nothing given is changed: the result is a new list, and a dict gets its id in a copy. The ids of messages that were
    merged must not be changed in place later on.

    Args:
        left: the messages so far, one or a list.
        right: the new ones, one or a list: dicts, objects with an `id`, `("user", "hi")`, or `"hi"` for a user's.
        format: "openai" rewrites the contents to the blocks that OpenAI's API takes; ids are kept.

    Returns:
        The merged list; called with options only, a reducer that has them, for use in an annotation.

    Raises:
        ValueError: one side is missing or None; the message to remove is not there; a role is unknown or missing; the
            format is unknown.
        TypeError: something is no message.

    >>> said = [{"role": "user", "content": "hi", "id": "1"}, {"role": "user", "content": "ho", "id": "2"}]
    >>> [message["content"] for message in add_messages(said, {"role": "user", "content": "hello", "id": "1"})]
    ['hello', 'ho']
    >>> Annotated[list, add_messages(format="openai")]
    typing.Annotated[list, ...]
    """
    if format not in _FORMATS:
        raise ValueError(f'unknown format {format!r}; there are None and "openai"')
    if left is _UNSET and right is _UNSET:
        return _with_format(format)
    for side, given in (("left", left), ("right", right)):
        if given is None or given is _UNSET:
            raise ValueError(f"add_messages needs messages on both sides; {side} is missing. An empty list is one")
    new = _listed(right)
    last = next((at for at in range(len(new) - 1, -1, -1) if _removes_all(new[at])), None)
    if last is not None:
        left, new = [], new[last + 1 :]
    book = _open_book(_listed(left), format is not None)
    book.add(new)
    return book.close()


@cache  # the same reducer for the same options: two schemas that share a key must agree on it
def _with_format(format: Format | None) -> Callable[[Any, Any], list[AnyMessage]]:
    return partial(add_messages, format=format)


class _Book:
    """A list of messages with an index by id.

    Args:
        messages: they are settled one by one, in a list of its own.
        rewrite: contents are brought to OpenAI's form.
    """

    __slots__ = ("index", "messages", "rewrite")

    def __init__(self, messages: Iterable[Any], rewrite: bool) -> None:
        self.rewrite = rewrite
        self.messages: list[Any] = []
        self.index: dict[Any, int] = {}
        for at, message in enumerate(messages):
            id = message.get("id") if message.__class__ is dict and "role" in message else None
            if not id or rewrite:  # else there is nothing to settle, as for most
                message = _settled(message, rewrite)
                id = message_id(message)
            self.messages.append(message)
            self.index[id] = at

    def add(self, new: Iterable[Any]) -> None:
        """Append, replace and remove, in the order given."""
        messages, index = self.messages, self.index
        gone: set[Any] = set()
        for each in new:
            if is_removal(each):
                gone.add(self._known_id(each))
                continue
            message = _settled(each, self.rewrite)
            id = message_id(message)
            at = index.setdefault(id, len(messages))
            if at == len(messages):
                messages.append(message)
            else:
                messages[at] = message
                gone.discard(id)
        if gone:
            self.messages = [message for message in messages if message_id(message) not in gone]
            self.index = {message_id(message): at for at, message in enumerate(self.messages)}

    def _known_id(self, removal: Any) -> Any:
        id = message_id(removal)
        if id not in self.index:
            raise ValueError(f"there is no message with id {id!r} to remove")
        return id

    def close(self) -> list[Any]:
        """The messages, in a list that may be given away. The book of a long list is kept for the next call."""
        messages = self.messages
        if len(messages) < _LONG:
            return messages
        _BOOKS[id(messages[-1])] = self
        for old in list(_BOOKS)[:-_KEPT]:
            _BOOKS.pop(old, None)
        return messages.copy()


_LONG = 128
"""From this length on it is worth keeping the index of a list for the next call."""
_KEPT = 32
"""How many are kept. They hold on to their messages."""
_BOOKS: dict[int, _Book] = {}
"""Books of long lists by the identity of the last message, the oldest first. Whoever uses one takes it out, so no two
threads share a book, and no lock is needed."""


def _open_book(messages: Sequence[Any], rewrite: bool) -> _Book:
    """The book kept of exactly these messages, or a new one."""
    book = _BOOKS.pop(id(messages[-1]), None) if len(messages) >= _LONG else None
    if book is not None and book.rewrite == rewrite and _same(book.messages, messages):
        return book
    return _Book(messages, rewrite)


def _same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two lists hold the same messages; where they are the very same objects, this is as fast as a copy."""
    try:
        return ours == theirs
    except Exception:  # some contents cannot be compared, arrays for one
        return False


class MessagesState(TypedDict):
    """A state with one key, `messages`, whose updates are merged by `add_messages`. Inherit from it to add keys."""

    messages: Annotated[list[AnyMessage], add_messages]


def message_types(channels: Iterable[Any]) -> Any:
    """The type of messages that lists among these channels may hold beside dicts, so that savers take them:
    LangChain's, where the program has loaded it; else None. Those of others are registered, or named by the state."""
    reducers = [getattr(channel, "operator", None) for channel in channels]
    if not any(getattr(reducer, "func", reducer) is add_messages for reducer in reducers):
        return None
    return getattr(sys.modules.get("langchain_core.messages"), "AnyMessage", None)


# -- one message -----------------------------------------------------------------------------------


def _listed(side: Any) -> list[Any]:
    """One message or several, as a list. A tuple of two that begins with a role is one message."""
    if isinstance(side, list):
        return side
    if type(side) is tuple and not (len(side) == 2 and isinstance(side[0], str)):
        return list(side)
    return [side]


def _removes_all(message: Any) -> bool:
    return is_removal(message) and message_id(message) == REMOVE_ALL_MESSAGES


def _settled(given: Any, rewrite: bool) -> Any:
    """A message as it is kept: a dict or an object, with an id."""
    message = with_id(_message(given))
    return to_openai(message) if rewrite else message


def _message(given: Any) -> Any:
    """A dict or an object from any of the short forms.

    Raises:
        ValueError: the role is unknown or missing.
        TypeError: this is no message.
    """
    if isinstance(given, dict):
        if not isinstance(given.get("role", given.get("type")), str):
            raise ValueError(f"a message needs a role: {_shown(given)}")
        return given
    if isinstance(given, str):
        return {"role": "user", "content": given}
    if type(given) in (tuple, list) and len(given) == 2 and isinstance(given[0], str):
        role, content = given
        if role not in _KNOWN_ROLES:
            raise ValueError(f"unknown role in {_shown(given)}; {nearest(role, _KNOWN_ROLES)}")
        return {"role": ROLES.get(role, role), "content": content}
    if not hasattr(given, "id"):
        raise TypeError(f"a message is a dict, an object with an id, a (role, content) pair or a str: {_shown(given)}")
    return _whole(given)


def _whole(message: Any) -> Any:
    """A summed-up chunk as the message that it is a chunk of, which is a base of its class: `XChunk(X)`."""
    cls = type(message)
    if not cls.__name__.endswith("Chunk"):
        return message
    name = cls.__name__.removesuffix("Chunk")
    base: Any = next((base for base in cls.__mro__ if base.__name__ == name and hasattr(base, "model_fields")), None)
    if base is None:
        return message
    return base(**{field: getattr(message, field) for field in base.model_fields if field != "type"})


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__}: {text if len(text) <= 80 else text[:77] + '...'}"


# -- said while a node runs ------------------------------------------------------------------------


def push_message(message: Any, *, state_key: str | None = "messages") -> AnyMessage:
    """Send a message to readers of the `messages` stream now, and write it to the state when the node ends.

    Args:
        message: it must have an id.
        state_key: the key to write to; None sends only.

    Returns:
        The message.

    Raises:
        ValueError: the message has no id.
        InvalidUpdateError: the state has no such key.
        RuntimeError: called outside of a running node.
    """
    task = running("push_message()")
    message = _message(message)
    if message_id(message) is None:
        raise ValueError(f"push_message() needs a message with an id: {_shown(message)}")
    if state_key is not None and state_key not in task.known_channels():
        raise InvalidUpdateError(
            f"node {task.name!r} pushed a message to the unknown key {state_key!r}; "
            f"{nearest(state_key, task.known_channels())} (state_key=None only streams it)"
        )
    emit_message(task, message)
    if state_key is not None:
        task.writes.append((state_key, message))
    return message


def emit_message_delta(id: str, content: Any = "", role: str = "assistant") -> None:
    """Send one part of a message to readers of the `messages` stream; the parts of a message share its id.

    Raises:
        RuntimeError: called outside of a running node.
    """
    emit = emitter(running("emit_message_delta()"))
    if emit is not None:
        emit({"role": role, "content": content, "id": id})


def stream_text(deltas: Iterable[str], *, id: str | None = None, role: str = "assistant") -> dict[str, Any]:
    """Send the parts of a text as they come to readers of the `messages` stream; each is a message with the same id.

    Args:
        deltas: the parts, in order; empty ones are passed over.
        id: the message's id; a random one if None.

    Returns:
        The whole message, for the node to return.

    Raises:
        RuntimeError: called outside of a running node.
    """
    telling = _Telling("stream_text()", id, role)
    for delta in deltas:
        telling.tell(delta)
    return telling.message()


async def astream_text(
    deltas: AsyncIterable[str] | Iterable[str], *, id: str | None = None, role: str = "assistant"
) -> dict[str, Any]:
    """`stream_text` for an async iterable; a plain one will do as well."""
    telling = _Telling("astream_text()", id, role)
    if isinstance(deltas, AsyncIterable):
        async for delta in deltas:
            telling.tell(delta)
    else:
        for delta in deltas:
            telling.tell(delta)
    return telling.message()


class _Telling:
    """A text that is sent part by part, and put together."""

    __slots__ = ("_emit", "_id", "_parts", "_role")

    def __init__(self, what: str, id: str | None, role: str) -> None:
        self._emit = emitter(running(what))
        self._id = str(uuid4()) if id is None else id
        self._role = role
        self._parts: list[str] = []

    def tell(self, delta: str | None) -> None:
        if delta:
            self._parts.append(delta)
            if self._emit is not None:
                self._emit({"role": self._role, "content": delta, "id": self._id})

    def message(self) -> dict[str, Any]:
        return {"role": self._role, "content": "".join(self._parts), "id": self._id}


def call_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """Call a chat model; if somebody reads the `messages` stream, its tokens are sent there as they come.

    The answer is the same either way: a sum of chunks is turned into the message they are chunks of.

    Args:
        model: an object with `invoke(messages, **options)`. Its tokens can be sent if it also has
            `stream(messages, **options)`, which yields chunks that can be added up with `+`.

    Returns:
        The model's answer.

    Raises:
        ValueError: the model's stream was empty.
    """
    emit = _token_emitter(model, "stream")
    if emit is None:
        return model.invoke(messages, **options)
    summing = _Summing(emit)
    for chunk in model.stream(messages, **options):
        summing.add(chunk)
    return summing.message()


async def acall_model(model: Any, messages: Any, **options: Any) -> AnyMessage:
    """`call_model` by the model's `ainvoke` and `astream`."""
    emit = _token_emitter(model, "astream")
    if emit is None:
        return await model.ainvoke(messages, **options)
    summing = _Summing(emit)
    async for chunk in model.astream(messages, **options):
        summing.add(chunk)
    return summing.message()


def _token_emitter(model: Any, method: str) -> Callable[[Any], None] | None:
    """Where the model's tokens go; None if it sends none, nobody reads them, or no graph is running."""
    task = RUNNING.get()
    return emitter(task) if task is not None and hasattr(model, method) else None


class _Summing:
    """Chunks that are sent, each with the id of the whole message, and added up."""

    __slots__ = ("_emit", "_id", "_sum")

    def __init__(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        self._id: Any = None
        self._sum: Any = _UNSET

    def add(self, chunk: Any) -> None:
        chunk = with_id(chunk, self._id)  # the first decides
        self._id = message_id(chunk) if self._id is None else self._id
        self._emit(chunk)
        self._sum = chunk if self._sum is _UNSET else self._sum + chunk

    def message(self) -> Any:
        if self._sum is _UNSET:
            raise ValueError("the model's stream gave no chunk")
        return with_id(_whole(self._sum), self._id)
