"""`add_messages`, the reducer of conversations, and the state that has it. Messages are merged into
a list by their ids, and become LangChain's where a key is declared so."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, overload

from typing_extensions import TypedDict

from ...channels.aggregate import FOLDING, FOR_TYPE
from ...channels.base import MISSING
from ...pregel.program.callables import members_of
from ...pregel.program.writes import shown
from ...pregel.run.tokens import is_message, is_removal, message_id, with_id
from .normalize import REMOVE_ALL_MESSAGES, AnyMessage, Normalizer, list_messages

Format = Literal["openai", "langchain-openai"]

_FORMATS = (None, "openai", "langchain-openai")


@overload
def add_messages(left: Any, right: Any, *, format: Format | None = None) -> list[AnyMessage]: ...
@overload
def add_messages(*, format: Format | None = None) -> Callable[[Any, Any], list[AnyMessage]]: ...
def add_messages(left: Any = MISSING, right: Any = MISSING, *, format: Format | None = None) -> Any:
    """Merge messages into a list of messages: the reducer of `MessagesState`.

    A message whose id is in the list replaces that one in its place; any other is appended. A
    `RemoveMessage` removes the message with its id; with `REMOVE_ALL_MESSAGES` everything before it
    is dropped, and what follows is merged into an empty list. A message without an id gets a random
    one.

    Nothing given is changed: the result is a new list, and a dict gets its id in a copy. The ids of
    messages that were merged must not be changed in place later on.

    A key that is declared to hold LangChain's messages (`Annotated[list[AnyMessage], add_messages]`
    with its `AnyMessage`) holds its objects, whatever is written; elsewhere dicts stay dicts.

    A channel that has exactly this reducer keeps an index of its messages, so that a write costs
    what it adds and one copy of the list. A reducer of yours that calls `add_messages` has none:
    each call looks at every message.

    Args:
        left: the messages so far, one or a list.
        right: the new ones, one or a list: dicts, objects with an `id`, `("user", "hi")`, or `"hi"`
            for a user's.
        format: "openai" rewrites the contents to the blocks that OpenAI's API takes; ids are kept.

    Returns:
        The merged list; called with options only, a reducer that has them, for use in an
        annotation.

    Raises:
        ValueError: one side is missing or None; the message to remove is not there; a role is
            unknown or missing; the format is unknown.
        TypeError: something is not a message.

    >>> said = add_messages([], [("user", "hi"), {"role": "user", "content": "ho", "id": "2"}])
    >>> said = add_messages(said, {"role": "user", "content": "hello", "id": "2"})
    >>> [message["content"] for message in said]
    ['hi', 'hello']
    >>> Annotated[list, add_messages(format="openai")]
    typing.Annotated[list, ...]
    """
    if format not in _FORMATS:
        raise ValueError(f'format must be None or "openai", got {format!r}')
    if left is MISSING and right is MISSING:
        return _with_format(format)
    for side, given in (("left", left), ("right", right)):
        if given is MISSING:
            raise missing_error(side)
    if left is None:
        raise missing_error("left")
    folding = MessageFolding(add_messages, format is not None)
    return folding.fold([*list_messages(left)], [right])[0]


def _make_folding(reducer: Any) -> MessageFolding | None:
    """What folds like `add_messages` with these options; None if this is another function."""
    if reducer is add_messages:
        return MessageFolding(reducer, rewrite=False)
    if isinstance(reducer, partial) and reducer.func is add_messages:
        return MessageFolding(reducer, rewrite=reducer.keywords["format"] is not None)
    return None


def _for_type(reducer: Any, annotation: Any) -> TypedReducer | None:
    """What merges messages of the declared type; None if any message will do, or if this is
    another function."""
    folding = _make_folding(reducer)
    if folding is None or not names_langchain(annotation):
        return None
    return TypedReducer(reducer, folding.rewrite)


setattr(add_messages, FOLDING, _make_folding)
setattr(add_messages, FOR_TYPE, _for_type)


@cache  # the same reducer for the same options: two schemas that share a key must agree on it
def _with_format(format: Format | None) -> Callable[[Any, Any], list[AnyMessage]]:
    reducer = partial(add_messages, format=format)
    setattr(reducer, FOLDING, _make_folding)
    setattr(reducer, FOR_TYPE, _for_type)
    return reducer


if TYPE_CHECKING:
    from ...pregel.types import Interrupt

    class _Result(TypedDict):
        __interrupt__: NotRequired[list[Interrupt]]

else:
    _Result = TypedDict


class MessagesState(_Result):
    """A state with one key, `messages`, whose updates are merged by `add_messages`. Inherit from it
    to add keys."""

    messages: Annotated[list[AnyMessage], add_messages]


# -- merging messages into a list by their ids -----------------------------------------------------
# An index goes along with the list. It belongs to the value of one channel: nothing is kept in
# tables of the process. Which channel folds its writes this way is decided by `channels.aggregate`.


class MessageIndex:
    """A list of messages, and where each one stands.

    Args:
        given: what is to be in the list; it is normalized one by one.
        rewrite: contents are brought to OpenAI's form.

    Attributes:
        messages: a list of the index's own. Nobody else changes it.
        places: id → position.
        version: how often messages were added or replaced.
        lock: held while that is done: routers of one superstep may ask on several threads.
    """

    __slots__ = ("lock", "messages", "places", "version")

    def __init__(self, given: Iterable[Any], rewrite: bool) -> None:
        self.lock: AbstractContextManager[Any] = Lock()
        self.version: int = 0
        self.messages: list[Any] = []
        self.places: dict[Any, int] = {}
        keep, places, read = self.messages.append, self.places, Normalizer(rewrite).read
        for at, each in enumerate(given):
            message, id = read(each)
            keep(message)
            try:
                places[id] = at
            except TypeError:
                raise _id_error(id) from None

    def take(self, merge: Merge) -> None:
        """Add and replace what was merged, none of which is removed."""
        self.places.update(merge.new_places)
        for at, message in merge.replaced.items():
            self.messages[at] = message
        self.messages += merge.added
        self.version += 1


class Merge:
    """What writes do to a list of messages, found without touching the list.

    Args:
        places: id → position in the list.
        length: of the list.
        rewrite: contents are brought to OpenAI's form.

    Attributes:
        replaced: position → the message that stands there now.
        added: the messages behind the end of the list.
        new_places: id → position of those.
        gone: the ids of those that are removed.
    """

    __slots__ = ("added", "gone", "length", "new_places", "places", "replaced", "rewrite")

    def __init__(self, places: Mapping[Any, int], length: int, rewrite: bool) -> None:
        self.places: Mapping[Any, int] = places
        self.length: int = length
        self.rewrite: bool = rewrite
        self.replaced: dict[int, Any] = {}
        self.added: list[Any] = []
        self.new_places: dict[Any, int] = {}
        self.gone: set[Any] = set()

    def add(self, new: Iterable[Any]) -> None:
        """Append, replace and remove, in the order given.

        Raises:
            ValueError: a message to remove is not there.
        """
        read, find = Normalizer(self.rewrite).read, self._find
        added, new_places, length = self.added, self.new_places, self.length
        for each in new:
            if is_removal(each):
                self._remove(message_id(each))
                continue
            message, id = read(each)
            at = find(id)
            if at is None:
                new_places[id] = length + len(added)
                added.append(message)
                continue
            self.gone.discard(id)
            if at < self.length:
                self.replaced[at] = message
            else:
                self.added[at - self.length] = message

    def _find(self, id: Any) -> int | None:
        try:
            at = self.places.get(id)
        except TypeError:
            raise _id_error(id) from None
        return self.new_places.get(id) if at is None else at

    def _remove(self, id: Any) -> None:
        if self._find(id) is None:
            raise ValueError(f"there is no message with id {id!r} to remove")
        self.gone.add(id)

    def apply(self, messages: list[Any]) -> list[Any]:
        """The list as it is after the writes, as a new one."""
        merged = [*messages, *self.added]
        for at, message in self.replaced.items():
            merged[at] = message
        if self.gone:
            merged = [each for each in merged if message_id(each) not in self.gone]
        return merged


def _id_error(id: Any) -> TypeError:
    return TypeError(
        f"the id of a message must be a text (or another hashable value), got {shown(id)}"
    )


def after_removal(new: Sequence[Any]) -> int | None:
    """Where the messages begin that follow the last removal of all; None if there is none."""
    for at in range(len(new) - 1, -1, -1):
        each = new[at]
        # The id first: it is quick to get, and says no for most (benchmark P35-first).
        id = each.get("id") if isinstance(each, dict) else getattr(each, "id", None)
        if isinstance(id, str) and id == REMOVE_ALL_MESSAGES and is_removal(each):
            return at + 1
    return None


def missing_error(side: str) -> ValueError:
    """The error for None where messages are needed."""
    return ValueError(
        f"add_messages needs two lists of messages; {side} is missing. An empty list will do"
    )


class MessageFolding:
    """`add_messages` for the value of one channel, with the index of that value.

    A channel and its copies share the folding of their value: a router's preview and the barrier
    after it ask the same one. An update gives the new value a folding of its own, which shares the
    index and remembers what is to be added; it is added once that folding is asked, so that a
    preview, or a superstep that fails, leaves the index as it was.

    Args:
        reducer: what this folds like.
        rewrite: contents are brought to OpenAI's form.
    """

    __slots__ = ("_state", "reducer", "rewrite")

    listed = staticmethod(list_messages)

    def __init__(self, reducer: Callable[[Any, Any], Any], rewrite: bool) -> None:
        self.reducer: Callable[[Any, Any], Any] = reducer
        self.rewrite: bool = rewrite
        self._state: tuple[MessageIndex, int, Merge | None] | None = None
        """The index, the version of it that fits the value, and what is still to be added to it."""

    def fold(self, value: Any, writes: Sequence[Any]) -> tuple[Any, MessageFolding]:
        """The value after some writes, and its folding.

        Raises:
            ValueError, TypeError: as `add_messages`.
        """
        folding = type(self)(self.reducer, self.rewrite)
        if value.__class__ is not list:
            for write in writes:
                value = self.reducer(value, write)
            return value, folding
        index, version, messages = self._open(value)
        merge = Merge(index.places, len(messages), self.rewrite)
        for write in writes:
            if write is None:
                raise missing_error("right")
            new = self.listed(write)
            start = after_removal(new)
            if merge.gone or start is not None:  # the messages get new places
                index = MessageIndex(
                    [] if start is not None else merge.apply(messages), self.rewrite
                )
                messages, version = index.messages, 0
                merge = Merge(index.places, len(messages), self.rewrite)
            merge.add(new[start:])
        if not merge.gone:
            folding._state = index, version, merge
        return merge.apply(messages), folding

    def identify(self, write: Any) -> Any:
        """The write with an id for each message that has none; the write itself if all have one.
        Short forms of messages stay as they are: nobody is shown them."""
        if write is None:
            return None
        given = list_messages(write)
        named = [with_id(each) if is_message(each) else each for each in given]
        if all(one is other for one, other in zip(named, given, strict=True)):
            return write
        return named

    def _open(self, value: list[Any]) -> tuple[MessageIndex, int, list[Any]]:
        """The index of exactly this value, its version, and the value's messages, normalized."""
        if self._state is not None:
            with self._state[0].lock:
                index, version, merge = self._state
                if merge is not None and version == index.version:
                    index.take(merge)
                    version = index.version
                    self._state = index, version, None
                fits = version == index.version
            # A node may have changed the list in place. Where all is as it was, looking costs no
            # more than a copy: the messages are the very same objects.
            if fits and is_same(index.messages, value):
                return index, version, value
        index = MessageIndex(self.listed(value), self.rewrite)
        self._state = index, 0, None
        return index, 0, index.messages

    def stored_types(self) -> Any:
        """LangChain's messages, where the program has loaded them. Those of others are registered,
        or named by the state."""
        return getattr(sys.modules.get("langchain_core.messages"), "AnyMessage", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reducer, self.rewrite)


def is_same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Whether two lists hold equal messages."""
    try:
        return ours == theirs
    except Exception:  # some contents cannot be compared, arrays for one
        return False


# -- keys that are declared to hold LangChain's messages -------------------------------------------
# What comes in becomes one of its objects. LangChain is not imported for it: an annotation that
# names its classes says that it is there.

class TypedReducer:
    """A reducer of messages that first makes LangChain's objects of what is written.

    It equals the reducer that it calls: a schema of a node may declare the key without LangChain's
    types, and the first declaration counts.
    """

    def __init__(self, reducer: Callable[[Any, Any], Any], rewrite: bool) -> None:
        self.reducer = reducer
        self.rewrite = rewrite
        self.__qualname__ = "add_messages"
        setattr(self, FOLDING, _make_typed_folding)

    def __call__(self, left: Any, right: Any) -> Any:
        return self.reducer(to_langchain(left), to_langchain(right))

    def __eq__(self, other: object) -> bool:
        return other == self.reducer or (
            isinstance(other, TypedReducer) and other.reducer == self.reducer
        )

    def __hash__(self) -> int:
        return hash(self.reducer)


def _make_typed_folding(reducer: Any) -> TypedFolding | None:
    if type(reducer) is not TypedReducer:
        return None
    return TypedFolding(reducer, reducer.rewrite)


class TypedFolding(MessageFolding):
    """The folding of a `TypedReducer`."""

    __slots__ = ()

    @staticmethod
    def listed(given: Any) -> list[Any]:
        """LangChain's objects, whatever they are made of."""
        return to_langchain(given)  # type: ignore[no-any-return]


def to_langchain(given: Any) -> Any:
    """What was written, with LangChain's objects in place of dicts, tuples and texts."""
    if given is None:
        return None
    convert = sys.modules["langchain_core.messages"].convert_to_messages
    return [
        convert([each])[0] if isinstance(each, (dict, tuple, list, str)) else each
        for each in list_messages(given)
    ]


def names_langchain(annotation: Any) -> bool:
    """Whether a list is declared to hold LangChain's messages and nothing else."""
    base = getattr(sys.modules.get("langchain_core.messages"), "BaseMessage", None)
    if base is None:
        return False
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is None:
        return False
    members = [member for item in typing.get_args(annotation) for member in members_of(item)]
    return bool(members) and all(
        isinstance(member, type) and issubclass(member, base) for member in members
    )
