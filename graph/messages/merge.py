"""Merging messages into a list by their ids, with an index that goes along with the list.

The index belongs to the value of one channel and goes with it: nothing is kept in tables of the
process. Which channel folds its writes this way is decided by `channels.aggregate`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

from ...pregel.run.tokens import is_message, is_removal, message_id, with_id
from .normalize import Normalizer, list_messages, removes_all, show


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
        read = Normalizer(self.rewrite).read
        for each in new:
            if is_removal(each):
                self._remove(message_id(each))
                continue
            message, id = read(each)
            at = self._find(id)
            if at is None:
                self.new_places[id] = self.length + len(self.added)
                self.added.append(message)
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


def merge_messages(left: Any, right: Any, rewrite: bool) -> list[Any]:
    """`right` merged into `left`; see `add_messages`.

    Raises:
        ValueError: one side is None; the message to remove is not there; a role is missing.
        TypeError: something is not a message.
    """
    if left is None or right is None:
        raise missing_error("left" if left is None else "right")
    new = list_messages(right)
    start = after_removal(new)
    index = MessageIndex(list_messages(left) if start is None else [], rewrite)
    merge = Merge(index.places, len(index.messages), rewrite)
    merge.add(new[start:])
    return merge.apply(index.messages)


def _id_error(id: Any) -> TypeError:
    return TypeError(
        f"the id of a message must be a text (or another hashable value), got {show(id)}"
    )


def after_removal(new: Sequence[Any]) -> int | None:
    """Where the messages begin that follow the last removal of all; None if there is none."""
    for at in range(len(new) - 1, -1, -1):
        if removes_all(new[at]):
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
