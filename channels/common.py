"""What channels share: a channel with one value, copying, and the texts of errors.

When a value comes and when it goes is the rule of each channel and stays in its own file.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

from .base import MISSING, BaseChannel, EmptyChannelError, InvalidUpdateError, Missing, Value

AnyChannel = TypeVar("AnyChannel", bound=BaseChannel[Any, Any, Any])

CONCURRENT = "INVALID_CONCURRENT_GRAPH_UPDATE"
"""The code that ends the text of two writes which exclude each other."""


class SingleValue(BaseChannel[Value, Any, Value]):
    """A channel that holds one value and stores it as it is. Subclasses say when it changes.

    Args:
        typ: the type of the value.
        key: the name of the channel; the graph fills it in.
    """

    __slots__ = ("value",)

    value: Value | Missing

    def __init__(self, typ: Any, key: str = "") -> None:
        # Without super(): a graph makes one for every node and key (benchmark P11).
        self.typ = typ
        self.key = key
        self.value = MISSING

    def get(self) -> Value:
        """The value.

        Raises:
            EmptyChannelError: there is none.
        """
        value = self.value
        if value is MISSING:
            raise empty_error(self)
        return value

    def is_available(self) -> bool:
        """Whether there is a value; `None` is one."""
        return self.value is not MISSING

    def checkpoint(self) -> Value | Missing:
        """The value itself, or `MISSING`."""
        return self.value

    def from_checkpoint(self, checkpoint: Value | Missing) -> Self:
        """A live channel that holds `checkpoint`."""
        new = self.copy()
        new.value = checkpoint
        return new

    def copy(self) -> Self:
        """A second channel with the same value (shared, not copied)."""
        return clone(self)

    def _drop_value(self) -> bool:
        """Empty the channel; True if it held a value."""
        if self.value is MISSING:
            return False
        self.value = MISSING
        return True


class GuardedValue(SingleValue[Value]):
    """A `SingleValue` that may refuse several writes in one superstep.

    Args:
        guard: refuse them; if False the last one wins.
    """

    __slots__ = ("guard",)

    def __init__(self, typ: Any, guard: bool = True, *, key: str = "") -> None:
        super().__init__(typ, key)
        self.guard: bool = guard

    def __eq__(self, other: object) -> bool:
        """Whether the class and `guard` are the same."""
        return type(self) is type(other) and self.guard == getattr(other, "guard", None)


def clone(channel: AnyChannel) -> AnyChannel:
    """Copy a channel of any class, with its slots and its `__dict__`.

    Lists, dicts and sets that a subclass added are copied one level deep, so that an `update`
    which changes them leaves the original alone. The value is shared.
    """
    new = object.__new__(type(channel))
    state: Any = object.__getstate__(channel)
    for part in state if isinstance(state, tuple) else (state,):
        for name, held in (part or {}).items():
            own = name not in ("typ", "value") and isinstance(held, (list, dict, set))
            object.__setattr__(new, name, held.copy() if own else held)
    return new


def split_finished(stored: Any) -> tuple[Any, bool]:
    """The value and `finished` of what a channel has stored that waits for the end of a run. In
    another version of the graph it may not have waited, and stored the value alone. That counts as
    finished, so what was due stays due.

    >>> split_finished(("report", False)), split_finished(None)
    (('report', False), (None, True))
    """
    is_pair = isinstance(stored, tuple | list) and len(stored) == 2 and isinstance(stored[1], bool)
    return (stored[0], stored[1]) if is_pair else (stored, True)


def name_key(channel: BaseChannel[Any, Any, Any], text: str) -> str:
    """Put the name of the channel, if it has one, before what went wrong."""
    return f"At key {channel.key!r}: {text}" if channel.key else text


def empty_error(channel: BaseChannel[Any, Any, Any]) -> EmptyChannelError:
    """The error for a read of a channel without a value."""
    return EmptyChannelError(name_key(channel, f"this {type(channel).__name__} holds no value"))


def too_many_error(
    channel: BaseChannel[Any, Any, Any], rule: str, count: int, advice: str
) -> InvalidUpdateError:
    """The error for more writes in one superstep than `rule` allows."""
    return InvalidUpdateError(name_key(channel, f"{rule}, but got {count}. {advice}"))


def guard_error(channel: BaseChannel[Any, Any, Any], count: int) -> InvalidUpdateError:
    """The error for several writes to a channel with `guard=True`."""
    rule = f"{type(channel).__name__}(guard=True) can take only one value per step"
    return too_many_error(channel, rule, count, "Use guard=False to let the last one win.")
