"""Channels that keep their value until it is written again.

Channels whose value lives for one superstep are in `ephemeral_value`, those that combine writes in
`aggregate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from .aggregate import Overwrite
from .base import MISSING, BaseChannel, ChannelStatus, Missing, Value
from .common import (
    CONCURRENT,
    GuardedValue,
    SingleValue,
    clone,
    empty_error,
    guard_error,
    split_finished,
    too_many_error,
)


class LastValue(SingleValue[Value]):
    """Keeps the last value written; takes one write per superstep. State keys without a reducer
    use this class.

    Args:
        typ: the type of the value.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import LastValue
    >>> name = LastValue(str)
    >>> name.update(["Ada"]), name.update([]), name.get()
    (True, False, 'Ada')
    """

    __slots__ = ()

    step_scoped = False
    exclusive = True
    shares_blank = True

    def update(self, values: Sequence[Any]) -> bool:
        """Take the only value.

        Raises:
            InvalidUpdateError: there is more than one.
        """
        if len(values) != 1:
            return self._refuse_many(values)
        value = values[0]
        self.value: Value | Missing = value.value if type(value) is Overwrite else value
        return True

    def _refuse_many(self, values: Sequence[Any]) -> bool:
        if not values:
            return False
        rule = f"{type(self).__name__} can take only one value per step"
        advice = "To take several, give the key a reducer: Annotated[list, operator.add]."
        raise too_many_error(self, rule, len(values), f"{advice} ({CONCURRENT})")

    def preview(self, values: Sequence[Any]) -> Value:
        """What `get` would give after an update with these values."""
        if len(values) != 1 or type(values[0]) is Overwrite or self.__class__ is not LastValue:
            return super().preview(values)
        # Without a copy: a router reads the state after every superstep (benchmark P1).
        value: Value = values[0]
        return value

    def copy(self) -> Self:
        """A second channel with the same value (shared, not copied)."""
        cls = self.__class__
        if cls is not LastValue:
            return clone(self)
        # By hand, for speed: most keys of a state are of this class (benchmark P1).
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.value = self.value
        return new


class UntrackedValue(GuardedValue[Value]):
    """Keeps the last value written within a run and is never stored: a resumed run starts without.

    Args:
        typ: the type of the value.
        guard: refuse several writes in one superstep; if False the last one wins.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import UntrackedValue
    >>> handle = UntrackedValue(object)
    >>> handle.update(["open file"]), handle.get(), handle.checkpoint()
    (True, 'open file', MISSING)
    """

    __slots__ = ()

    step_scoped = False
    shares_blank = True
    stored = False

    @property
    def exclusive(self) -> bool:
        """Whether it is guarded."""
        return self.guard

    def update(self, values: Sequence[Any]) -> bool:
        """Take the last value.

        Raises:
            InvalidUpdateError: there is more than one and the channel is guarded.
        """
        if not values:
            return False
        if len(values) > 1 and self.guard:
            raise guard_error(self, len(values))
        value = values[-1]
        self.value: Value | Missing = value.value if type(value) is Overwrite else value
        return True

    def checkpoint(self) -> Missing:
        """Always `MISSING`."""
        return MISSING

    def from_checkpoint(self, checkpoint: Value | Missing) -> Self:
        """An empty channel, whatever was stored."""
        return super().from_checkpoint(MISSING)


class LastValueAfterFinish(BaseChannel[Value, Any, tuple[Value, bool]]):
    """Keeps the last value written, but hides it until nothing else is left to run. A node that
    reads it then uses it up.

    Args:
        typ: the type of the value.
        key: the name of the channel; the graph fills it in.

    >>> from stategraph.channels import LastValueAfterFinish
    >>> report = LastValueAfterFinish(str)
    >>> report.update(["done"]), report.is_available()
    (True, False)
    >>> report.finish(), report.get()
    (True, 'done')
    >>> report.consume(), report.is_available()
    (True, False)
    """

    __slots__ = ("finished", "value")

    step_scoped = False
    shares_blank = True

    value: Value | Missing

    def __init__(self, typ: Any, key: str = "") -> None:
        super().__init__(typ, key)
        self.value = MISSING
        self.finished: bool = False

    def get(self) -> Value:
        """The value, once the run has finished.

        Raises:
            EmptyChannelError: there is no value, or the run has not finished yet.
        """
        value = self.value
        if value is MISSING or not self.finished:
            raise empty_error(self)
        return value

    def is_available(self) -> bool:
        """Whether there is a value and the run has finished."""
        return self.finished and self.value is not MISSING

    def update(self, values: Sequence[Any]) -> bool:
        """Take the last value and hide it until the next `finish`."""
        if not values:
            return False
        value = values[-1]
        self.value: Value | Missing = value.value if type(value) is Overwrite else value
        self.finished = False
        return True

    def describe(self) -> ChannelStatus:
        """A hidden value waits."""
        if self.value is MISSING or self.finished:
            return super().describe()
        return ChannelStatus("waiting", "holds a value and waits until nothing else can run")

    def consume(self) -> bool:
        """Drop the value if it is visible."""
        if not self.finished:
            return False
        self.value = MISSING
        self.finished = False
        return True

    def finish(self) -> bool:
        """Make the value visible, if there is one."""
        if self.finished or self.value is MISSING:
            return False
        self.finished = True
        return True

    def checkpoint(self) -> tuple[Value, bool] | Missing:
        """The pair (value, finished), or `MISSING`."""
        value = self.value
        return MISSING if value is MISSING else (value, self.finished)

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """A live channel made from a pair (value, finished)."""
        new = self.copy()
        is_empty = checkpoint is MISSING
        new.value, new.finished = (MISSING, False) if is_empty else split_finished(checkpoint)
        return new

    def copy(self) -> Self:
        """A second channel with the same value (shared, not copied)."""
        return clone(self)
