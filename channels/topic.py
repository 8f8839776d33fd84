"""The channel that gathers: every write of a superstep is an item, in path order.

A reducer that joins lists is a `BinaryOperatorAggregate`; it does not live here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, Union

from .aggregate import Overwrite, sole_overwrite
from .base import MISSING, BaseChannel, ChannelStatus, Missing, Value
from .common import clone, empty_error


class Topic(BaseChannel[Sequence[Value], Any, list[Value]]):
    """A list of what was written: in the last superstep, or since the thread began.

    A write that is a list adds its items one by one; other sequences are items themselves. An
    `Overwrite` replaces all items, also those of an accumulating topic.

    Args:
        typ: the type of one item.
        accumulate: keep the items of earlier supersteps.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import Topic
    >>> words = Topic(str)
    >>> words.update(["a", ["b", "c"]]), words.get()
    (True, ['a', 'b', 'c'])
    >>> words.update([]), words.is_available()
    (True, False)
    """

    __slots__ = ("accumulate", "dropped", "items")

    shares_blank = True

    def __init__(self, typ: Any, accumulate: bool = False, *, key: str = "") -> None:
        super().__init__(typ, key)
        self.dropped: int = 0
        self.accumulate: bool = accumulate
        # A tuple, swapped and never changed: copies may share it.
        self.items: tuple[Value, ...] = ()

    @property
    def step_scoped(self) -> bool:
        """True unless the topic accumulates."""
        return not self.accumulate

    @property
    def ValueType(self) -> Any:
        """A sequence of items."""
        # Built from the user's type, at run time.
        return Sequence[self.typ]  # type: ignore[name-defined]

    @property
    def UpdateType(self) -> Any:
        """One item, or a list of them."""
        # Not with `|`: typ may be a string.
        return Union[self.typ, list[self.typ]]  # type: ignore[name-defined]  # noqa: UP007

    def get(self) -> list[Value]:
        """A new list of the items.

        Raises:
            EmptyChannelError: there are none.
        """
        if not self.items:
            raise empty_error(self)
        return list(self.items)

    @property
    def values(self) -> list[Value]:
        """A new list of the items, empty if there are none."""
        return list(self.items)

    def is_available(self) -> bool:
        """Whether there are any items."""
        return bool(self.items)

    def describe(self) -> ChannelStatus:
        """Return how many items there are."""
        if not self.items:
            return ChannelStatus("empty", "holds no items")
        noun = "item" if len(self.items) == 1 else "items"
        return ChannelStatus("available", f"holds {len(self.items)} {noun}")

    def update(self, values: Sequence[Any]) -> bool:
        """Add the items; first drop the old ones if the topic does not accumulate.

        Raises:
            InvalidUpdateError: two overwrites in one superstep.
        """
        kinds = set(map(type, values))
        keep = self.accumulate
        self.dropped = 0
        if Overwrite in kinds:
            self.dropped = len(values) - 1
            overwrites = [write for write in values if type(write) is Overwrite]
            values = [sole_overwrite(self, overwrites)]
            kinds, keep = {type(values[0])}, False
        fresh = flatten(values, kinds)
        if keep:
            self.items += fresh
            return bool(fresh)
        # From nothing to nothing is no change, and triggers nobody.
        changed = bool(self.items or fresh)
        self.items = fresh
        return changed

    def checkpoint(self) -> list[Value]:
        """A new list of the items, `[]` if there are none."""
        return list(self.items)

    def from_checkpoint(self, checkpoint: Sequence[Value] | Missing) -> Self:
        """A live channel with the items of `checkpoint`."""
        new = self.copy()
        new.items = () if checkpoint is MISSING else tuple(checkpoint)
        return new

    def copy(self) -> Self:
        """A second channel with the same items."""
        cls = self.__class__
        if cls is not Topic:
            return clone(self)
        # By hand, for speed: every `Send` goes through a Topic (benchmark P8).
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.dropped = 0
        new.accumulate = self.accumulate
        new.items = self.items
        return new

    def __eq__(self, other: object) -> bool:
        """Whether the class and `accumulate` are the same."""
        return type(self) is type(other) and self.accumulate == getattr(other, "accumulate", None)


def flatten(values: Sequence[Any], kinds: set[type]) -> tuple[Any, ...]:
    """The items of `values`, whose types are `kinds`: lists are opened one level deep."""
    for kind in kinds:
        if issubclass(kind, list):
            break
    else:
        return tuple(values)
    items: list[Any] = []
    for value in values:
        if isinstance(value, list):
            items.extend(value)
        else:
            items.append(value)
    return tuple(items)
