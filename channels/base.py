"""The contract of a channel: a cell that holds one part of the state between supersteps.

Here live the contract, the sentinel for "no value" and the two errors a channel raises.
No channel knows of nodes, tasks, savers or the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final, Generic, Self, TypeVar

Value = TypeVar("Value")
Update = TypeVar("Update")
Stored = TypeVar("Stored")


class Missing(Enum):
    """The type of `MISSING`; an enum, so that type checkers narrow `is MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""No value at all. `None` is a value like any other."""


class StateGraphError(Exception):
    """The root of every error this package raises (control-flow signals are not errors)."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by what it holds: what an error's `__init__` takes need not be what `args` keeps."""
        return _error_of, (type(self), self.args), self.__dict__ or None


def _error_of(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An error without a call of its `__init__`; pickle and copy then set its attributes."""
    error: BaseException = cls.__new__(cls, *args)
    error.args = args
    return error


class EmptyChannelError(StateGraphError):
    """A channel was read that holds no value."""


class InvalidUpdateError(StateGraphError):
    """A write that its channel, or its graph, cannot take."""


class BaseChannel(Generic[Value, Update, Stored]):
    """One cell of the state. Subclass it and override `update` to make your own.

    A channel given to a graph is a template: each run calls `from_checkpoint` on it and owns the result.
    The engine never changes a live channel: it updates a `copy` and swaps it in once the whole superstep
    has been applied, so an `update` that raises leaves nothing half done.

    Args:
        typ: the type of the value, as the user wrote it.
        key: the name of the channel in its graph; used in error texts. The graph fills it in.

    Attributes:
        dropped: how many writes the last `update` has left out because another one replaced them. A graph warns of it.
    """

    __slots__ = ("key", "typ")

    dropped: int = 0

    def __init__(self, typ: Any, key: str = "") -> None:
        self.typ = typ
        self.key = key

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A class with an `update` of its own may react to an empty one, unless it says otherwise.
        for base in cls.__mro__:
            if "step_scoped" in base.__dict__:
                return
            if "update" in base.__dict__:
                cls.step_scoped = BaseChannel.step_scoped  # type: ignore[method-assign]
                return

    @property
    def step_scoped(self) -> bool:
        """Whether `update([])` may change this channel.

        If True the engine calls `update([])` after every superstep that wrote nothing here while the channel
        is available. A subclass that overrides `update` counts as step-scoped until it overrides this too.
        """
        return True

    @property
    def ValueType(self) -> Any:
        """The type of what `get` returns."""
        return self.typ

    @property
    def UpdateType(self) -> Any:
        """The type of one item of what `update` takes."""
        return self.typ

    def get(self) -> Value:
        """The current value.

        Raises:
            EmptyChannelError: the channel holds none.
        """
        raise NotImplementedError(f"{type(self).__name__} must define get()")

    def is_available(self) -> bool:
        """Whether `get` would return a value."""
        try:
            self.get()
        except EmptyChannelError:
            return False
        return True

    def update(self, values: Sequence[Update]) -> bool:
        """Take all writes of one superstep, in path order; empty if there were none.

        Returns:
            True if the channel changed, so that its version moves and nodes that wait for it may run.

        Raises:
            InvalidUpdateError: these values cannot be taken (together).
        """
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def preview(self, values: Sequence[Update]) -> Value:
        """What `get` would give after an update with these values; the channel stays as it is.

        Raises:
            InvalidUpdateError: these values cannot be taken (together).
            EmptyChannelError: it would hold none.
        """
        image = self.copy()
        image.update(values)
        return image.get()

    def consume(self) -> bool:
        """A node that waits for this channel ran. Returns True if the channel changed."""
        return False

    def finish(self) -> bool:
        """Nothing else is left to run. Returns True if the channel changed."""
        return False

    def checkpoint(self) -> Stored | Missing:
        """What to store, or `MISSING` to store nothing. Defaults to the value."""
        try:
            return self.get()  # type: ignore[return-value]
        except EmptyChannelError:
            return MISSING

    def from_checkpoint(self, stored: Stored | Missing) -> Self:
        """A live channel made from this template and what `checkpoint` once returned (or `MISSING`)."""
        raise NotImplementedError(f"{type(self).__name__} must define from_checkpoint()")

    def copy(self) -> Self:
        """A second channel with the same content, which can be updated without changing this one."""
        return self.from_checkpoint(self.checkpoint())

    def __eq__(self, other: object) -> bool:
        """Whether two schemas declare the same channel; the current value does not count."""
        return type(self) is type(other)

    __hash__ = None  # type: ignore[assignment]  # two equal declarations are still two cells

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self.typ, '__name__', self.typ)})"
