"""Channels that wait for names to be written, for all of a set or for some: the joins of a graph.

The names may be written over many supersteps and runs. Who writes them is of no concern here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

from .base import (
    MISSING,
    BaseChannel,
    ChannelStatus,
    EmptyChannelError,
    InvalidUpdateError,
    Missing,
    Stored,
    Value,
    check_kind,
)
from .common import clone, name_key, split_finished

Late = frozenset[str | int]
"""Pending work that belongs to an earlier wave: the channels of triggers, the places of Sends."""
NOTHING_LATE: Late = frozenset()


class Barrier(BaseChannel[None, Value, Stored]):
    """What the barriers share: the names waited for and the names seen.

    Args:
        typ: the type of a name.
        names: the names to wait for, in any order.
        key: the name of the channel; the graph fills it in.
    """

    __slots__ = ("names", "seen")

    step_scoped = False

    def __init__(self, typ: Any, names: Iterable[Value], *, key: str = "") -> None:
        super().__init__(typ, key)
        check_kind("names", names, Iterable, "the values to wait for")
        self.names: frozenset[Value] = frozenset(names)
        # Swapped and never changed: copies may share it.
        self.seen: frozenset[Value] = frozenset()

    def get(self) -> None:
        """None: a barrier is open or closed and has no value.

        Raises:
            EmptyChannelError: it is closed.
        """
        if not self.is_available():
            waits = join_names(self.names - self.seen) or "the end of the run"
            text = f"this {type(self).__name__} still waits for {waits}"
            raise EmptyChannelError(name_key(self, text))

    def describe(self) -> ChannelStatus:
        """Return which names are missing and which were seen."""
        if self.is_available():
            return ChannelStatus("available", "is complete")
        missing = tuple(sorted(map(str, self.names - self.seen)))
        if not missing:
            return ChannelStatus("waiting", "is complete and waits until nothing else can run")
        waits = f"still waits for {', '.join(missing)}"
        if not self.seen:
            return ChannelStatus("empty", f"{waits} (no predecessor has finished yet)", missing)
        seen = sorted(map(str, self.seen))
        verb = "has" if len(seen) == 1 else "have"
        return ChannelStatus("waiting", f"{waits} ({', '.join(seen)} {verb} finished)", missing)

    def update(self, values: Sequence[Value]) -> bool:
        """Note the names; True if one of them is new.

        Raises:
            InvalidUpdateError: a name the barrier does not wait for. Then no name is noted.
        """
        try:
            seen = self.seen.union(values)
            known = seen <= self.names
        except TypeError:  # a value that cannot be hashed is not a name
            known = False
        if not known:
            raise self._unknown(values)
        # No news gives no new version: a second run of a predecessor does not trigger the join.
        if len(seen) == len(self.seen):
            return False
        self.seen = seen
        return True

    def _unknown(self, values: Sequence[Value]) -> InvalidUpdateError:
        names = list(self.names)  # a list, to look up without hashing
        stranger = next(name for name in values if name not in names)
        known = join_names(names)
        text = f"value {stranger!r} is not in {{{known}}}, the names this barrier waits for"
        return InvalidUpdateError(name_key(self, text))

    def copy(self) -> Self:
        """A second barrier in the same state."""
        return clone(self)

    def __eq__(self, other: object) -> bool:
        """Whether the class and the names are the same."""
        return type(self) is type(other) and self.names == getattr(other, "names", None)


class NamedBarrierValue(Barrier[Value, set[Value]]):
    """Opens when all `names` were written; closes when a node that waited for it has run.

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

    shares_blank = True

    def is_available(self) -> bool:
        """Whether all names were seen."""
        return self.seen == self.names

    def consume(self) -> bool:
        """Start over, if all names were seen."""
        # Without names there is nothing to start over: True would run the node again, endlessly.
        if not self.seen or self.seen != self.names:
            return False
        self.seen: frozenset[Value] = frozenset()
        return True

    def checkpoint(self) -> set[Value]:
        """A new set of the names seen."""
        return set(self.seen)

    def from_checkpoint(self, checkpoint: Iterable[Value] | Missing) -> Self:
        """A live channel that has seen `checkpoint`. Unknown names are left out."""
        new = self.copy()
        seen, _ = ((), False) if checkpoint is MISSING else split_finished(checkpoint)
        new.seen = self.names.intersection(seen)
        return new

    def copy(self) -> Self:
        """A second barrier that has seen the same names."""
        cls = self.__class__
        if cls is not NamedBarrierValue:
            return clone(self)
        # By hand, for speed: each branch of a fan-out writes its join (benchmark P7).
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

    shares_blank = True

    def __init__(self, typ: Any, names: Iterable[Value], *, key: str = "") -> None:
        super().__init__(typ, names, key=key)
        self.finished: bool = False

    def is_available(self) -> bool:
        """Whether all names were seen and the run has finished."""
        return self.finished and self.seen == self.names

    def consume(self) -> bool:
        """Start over, if the barrier is open."""
        if not self.is_available():
            return False
        self.seen: frozenset[Value] = frozenset()
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

    def from_checkpoint(self, checkpoint: Sequence[Any] | Missing) -> Self:
        """A live channel made of a pair (names seen, finished). Unknown names are left out."""
        new = self.copy()
        seen, finished = ((), False) if checkpoint is MISSING else split_finished(checkpoint)
        new.seen = self.names.intersection(seen)
        new.finished = finished and new.seen == self.names
        return new


class WaveBarrier(Barrier[Value, tuple[list[Value], bool, list[str | int]]]):
    """Gathers names in waves and opens once in each: when enough of the `names` have been written.
    Closes when a node that waited for it has run. Names that are written while it is open belong to
    the wave that is about to start. What is late for a wave is decided by the engine, and kept here
    so that it is stored with the rest.

    Args:
        typ: the type of a name.
        names: the names that may come, in any order.
        count: how many of them open it; None leaves it to the engine, which calls `open`.
        key: the name of the channel; the graph fills it in.

    Attributes:
        opened: whether a node that waits for it is to run.
        late: what is pending of earlier waves.

    >>> join = WaveBarrier(str, {"a", "b", "c"}, 2)
    >>> join.update(["a"]), join.is_available()
    (True, False)
    >>> join.update(["c"]), join.is_available()
    (True, True)
    >>> join.consume(), join.is_available()
    (True, False)
    """

    __slots__ = ("count", "late", "opened")

    shares_blank = True

    step_scoped = False  # an empty `update` changes nothing, though the class has its own

    def __init__(
        self, typ: Any, names: Iterable[Value], count: int | None = None, *, key: str = ""
    ) -> None:
        super().__init__(typ, names, key=key)
        self.count: int | None = count
        self.opened: bool = False
        self.late: Late = NOTHING_LATE

    def is_available(self) -> bool:
        """Whether the wave is complete."""
        return self.opened

    def get(self) -> None:
        """None: a barrier is open or closed and has no value.

        Raises:
            EmptyChannelError: it is closed.
        """
        if not self.opened:
            raise EmptyChannelError(name_key(self, f"this barrier {self.describe().text}"))

    def describe(self) -> ChannelStatus:
        """Says who has come, and for whom it waits."""
        got = ", ".join(sorted(map(str, self.seen)))
        if self.opened:
            return ChannelStatus("available", f"is open (got {got})")
        names = ", ".join(sorted(map(str, self.names)))
        got = f"got {got}" if got else "no predecessor has finished yet"
        if self.count is not None:
            missing = tuple(sorted(map(str, self.names - self.seen)))
            text = f"waits for {self.count} of {names} ({got})"
            return ChannelStatus("waiting" if self.seen else "empty", text, missing)
        if not self.seen:
            text = f"waits for one of {names} ({got})"
            return ChannelStatus("empty", text, tuple(sorted(map(str, self.names))))
        text = f"waits until nothing under way leads to {names} any more ({got})"
        return ChannelStatus("waiting", text)

    def update(self, values: Sequence[Value]) -> bool:
        """Note the names; True if one of them is new in this wave, or it opens.

        Raises:
            InvalidUpdateError: a name the barrier does not wait for. Then no name is noted.
        """
        changed, was_open = super().update(values), self.opened
        if self.count is not None and len(self.seen) >= self.count:
            self.opened = True
        return changed or self.opened != was_open

    def open(self) -> None:
        """Let the nodes run that wait for it, whoever has come."""
        self.opened = True

    def finish(self) -> bool:
        """Open, if somebody has come and no number was given: nobody else can come."""
        if self.opened or self.count is not None or not self.seen:
            return False
        self.opened = True
        return True

    def consume(self) -> bool:
        """Begin a new wave, if it is open."""
        if not self.opened:
            return False
        self.seen: frozenset[Value] = frozenset()
        self.opened = False
        return True

    def checkpoint(self) -> tuple[list[Value], bool, list[str | int]] | Missing:
        """The names of this wave, whether it is open, and what is late; `MISSING` if there is
        none of it."""
        if not self.seen and not self.late:
            return MISSING
        return sorted(self.seen, key=str), self.opened, sorted(self.late, key=str)

    def from_checkpoint(self, checkpoint: Sequence[Any] | Missing) -> Self:
        """A live channel made of what `checkpoint` has returned. Unknown names are left out."""
        new = self.copy()
        seen, opened, late = ((), False, ()) if checkpoint is MISSING else checkpoint
        new.seen = self.names.intersection(seen)
        new.opened, new.late = opened and bool(new.seen), frozenset(late)
        return new

    def __eq__(self, other: object) -> bool:
        """Whether the class, the names and the number are the same."""
        return super().__eq__(other) and self.count == getattr(other, "count", None)


def join_names(names: Iterable[Any]) -> str:
    """Names for an error text, always in the same order."""
    return ", ".join(sorted(map(repr, names)))
