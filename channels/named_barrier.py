"""Channels that wait until every one of a set of names has been written: the joins of a graph.

Names may come in over many supersteps and runs. Here lives the counting; who writes a name is no concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from .base import MISSING, BaseChannel, EmptyChannelError, InvalidUpdateError, Missing, Stored, Value
from .cell import at_key, clone


class Barrier(BaseChannel[None, Value, Stored]):
    """What both barriers share: the names waited for and the names seen.

    Args:
        typ: the type of a name.
        names: the names to wait for, in any order.
        key: the name of the channel; the graph fills it in.
    """

    __slots__ = ("names", "seen")

    step_scoped = False

    def __init__(self, typ: Any, names: Iterable[Value], *, key: str = "") -> None:
        super().__init__(typ, key)
        self.names = frozenset(names)
        # Swapped and never changed: copies may share it.
        self.seen: frozenset[Value] = frozenset()

    def get(self) -> None:
        """Nothing: a barrier is either open or not.

        Raises:
            EmptyChannelError: it is not open.
        """
        if not self.is_available():
            waits = listed(self.names - self.seen) or "the end of the run"
            raise EmptyChannelError(at_key(self, f"this {type(self).__name__} still waits for {waits}"))

    def update(self, values: Sequence[Value]) -> bool:
        """Note the names; True if one of them is new.

        Raises:
            InvalidUpdateError: a name the barrier does not wait for. None of the names is noted then.
        """
        try:
            seen = self.seen.union(values)
            known = seen <= self.names
        except TypeError:  # what cannot be hashed is no name either
            known = False
        if not known:
            raise self._unknown(values)
        if len(seen) == len(self.seen):
            return False
        self.seen = seen
        return True

    def _unknown(self, values: Sequence[Value]) -> InvalidUpdateError:
        names = list(self.names)  # a list, to look up without hashing
        stranger = next(name for name in values if name not in names)
        text = f"value {stranger!r} is not in {{{listed(names)}}}, the names this barrier waits for"
        return InvalidUpdateError(at_key(self, text))

    def __eq__(self, other: object) -> bool:
        """Whether the class and the names are the same."""
        return type(self) is type(other) and self.names == getattr(other, "names", None)


class NamedBarrierValue(Barrier[Value, set[Value]]):
    """Opens when all `names` were written; closes again when a node that waited for it has run.

    Args:
        typ: the type of a name.
        names: the names to wait for, in any order. A barrier without names is always open.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import NamedBarrierValue
    >>> join = NamedBarrierValue(str, {"a", "b"})
    >>> join.update(["a"]), join.is_available()
    (True, False)
    >>> join.update(["b"]), join.is_available()
    (True, True)
    >>> join.consume(), join.is_available()
    (True, False)
    """

    __slots__ = ()

    def is_available(self) -> bool:
        """Whether all names were seen."""
        return self.seen == self.names

    def consume(self) -> bool:
        """Start over, if all names were seen."""
        # Without names there is nothing to start over: True would wake the node again for ever.
        if not self.seen or self.seen != self.names:
            return False
        self.seen = frozenset()
        return True

    def checkpoint(self) -> set[Value]:
        """A new set of the names seen."""
        return set(self.seen)

    def from_checkpoint(self, stored: Iterable[Value] | Missing) -> Self:
        """A live channel that has seen `stored`; names no longer waited for are left out."""
        new = self.copy()
        new.seen = frozenset() if stored is MISSING else self.names.intersection(stored)
        return new

    def copy(self) -> Self:
        """A second barrier that has seen the same names."""
        cls = self.__class__
        if cls is not NamedBarrierValue:
            return clone(self)
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.names = self.names
        new.seen = self.seen
        return new


class NamedBarrierValueAfterFinish(Barrier[Value, tuple[set[Value], bool]]):
    """Opens when all `names` were written and nothing else is left to run.

    Args:
        typ: the type of a name.
        names: the names to wait for, in any order.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import NamedBarrierValueAfterFinish
    >>> join = NamedBarrierValueAfterFinish(str, {"a"})
    >>> join.update(["a"]), join.is_available()
    (True, False)
    >>> join.finish(), join.is_available()
    (True, True)
    """

    __slots__ = ("finished",)

    def __init__(self, typ: Any, names: Iterable[Value], *, key: str = "") -> None:
        super().__init__(typ, names, key=key)
        self.finished = False

    def is_available(self) -> bool:
        """Whether all names were seen and the run has finished."""
        return self.finished and self.seen == self.names

    def consume(self) -> bool:
        """Start over, if the barrier is open."""
        if not self.is_available():
            return False
        self.seen = frozenset()
        self.finished = False
        return True

    def finish(self) -> bool:
        """Open, if all names were seen."""
        if self.finished or self.seen != self.names:
            return False
        self.finished = True
        return True

    def checkpoint(self) -> tuple[set[Value], bool]:
        """The pair (new set of the names seen, finished)."""
        return set(self.seen), self.finished

    def from_checkpoint(self, stored: Sequence[Any] | Missing) -> Self:
        """A live channel made from a pair (names seen, finished); names no longer waited for are left out."""
        new = self.copy()
        seen, finished = ((), False) if stored is MISSING else stored
        new.seen = self.names.intersection(seen)
        new.finished = finished
        return new

    def copy(self) -> Self:
        """A second barrier in the same state."""
        cls = self.__class__
        if cls is not NamedBarrierValueAfterFinish:
            return clone(self)
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.names = self.names
        new.seen = self.seen
        new.finished = self.finished
        return new


def listed(names: Iterable[Any]) -> str:
    """Names for an error text, always in the same order."""
    return ", ".join(sorted(map(repr, names)))
