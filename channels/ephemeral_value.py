"""Channels whose value lives for one superstep: written at its end, readable in the next, then
gone.

Channels that keep their value live in `last_value`, the one that gathers many in `topic`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .aggregate import Overwrite
from .base import Missing, Value
from .common import GuardedValue, SingleValue, clone, guard_error


class EphemeralValue(GuardedValue[Value]):
    """Holds a value for the one superstep that follows the write.

    Args:
        typ: the type of the value.
        guard: refuse several writes in one superstep; if False the last one wins.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import EphemeralValue
    >>> signal = EphemeralValue(str)
    >>> signal.update(["go"]), signal.get()
    (True, 'go')
    >>> signal.update([]), signal.is_available()
    (True, False)
    """

    __slots__ = ()

    shares_blank = True

    def update(self, values: Sequence[Any]) -> bool:
        """Take the last value, or drop the old one if there is none.

        Raises:
            InvalidUpdateError: there is more than one and the channel is guarded.
        """
        if not values:
            return self._drop_value()
        if len(values) > 1 and self.guard:
            raise guard_error(self, len(values))
        value = values[-1]
        self.value: Value | Missing = value.value if type(value) is Overwrite else value
        return True

    def copy(self) -> Self:
        """A second channel with the same value (shared, not copied)."""
        cls = self.__class__
        if cls is not EphemeralValue:
            return clone(self)
        # By hand, for speed: triggers are copied in every superstep (benchmark P1).
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.guard = self.guard
        new.value = self.value
        return new


class AnyValue(SingleValue[Value]):
    """Holds a value for the one superstep that follows the write. It takes
    several writes in one superstep to be equal: the last one counts.

    Args:
        typ: the type of the value.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import AnyValue
    >>> answer = AnyValue(int)
    >>> answer.update([42, 42]), answer.get()
    (True, 42)
    """

    __slots__ = ()

    shares_blank = True

    def update(self, values: Sequence[Any]) -> bool:
        """Take the last value, or drop the old one if there is none."""
        if not values:
            return self._drop_value()
        value = values[-1]
        self.value: Value | Missing = value.value if type(value) is Overwrite else value
        return True
