"""The contract of a channel, which holds one part of the state between supersteps.

Here live the contract, the sentinel for "no value", the two errors a channel raises, and the
warning of all graphs.
No channel knows of nodes, tasks, checkpointers or the engine. `stategraph.testing.check_channel`
tests a channel of your own against the contract."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar

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
        """Copy and pickle by content: `__init__` need not take what `args` keeps."""
        return _rebuild_error, (type(self), self.args), self.__dict__ or None


def _rebuild_error(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An error made without calling its `__init__`; pickle and copy then set its attributes."""
    error: BaseException = cls.__new__(cls, *args)
    error.args = args
    return error


class EmptyChannelError(StateGraphError):
    """A read of a channel that holds no value."""


class InvalidUpdateError(StateGraphError):
    """A write that the channel or the graph cannot accept."""


class GraphWarning(UserWarning):
    """The graph runs, but probably not as intended."""


def warn(text: str) -> None:
    """Warn of something that runs, in the name of the nearest caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, GraphWarning, stacklevel=level)


def check_kind(name: str, given: Any, kinds: Any, words: str) -> None:
    """Refuse an argument of another kind.

    Args:
        kinds: as for `isinstance`.
        words: what it must be.

    Raises:
        TypeError: naming it, what it must be and what it is.
    """
    if not isinstance(given, kinds):
        raise TypeError(f"{name} must be {words}, got {given!r:.200}")


_PACKAGE = __name__.partition(".")[0] + "."


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """The status of a channel; see `BaseChannel.describe`.

    Attributes:
        state: "available" if it can be read; "waiting" if it was written but cannot be read yet;
            "empty" if no write is in effect.
        text: the predicate of a sentence whose subject is the channel, such as "holds no value".
        missing: the names that must still be written, sorted; only joins wait for names.
    """

    state: Literal["available", "waiting", "empty"]
    text: str
    missing: tuple[str, ...] = ()


class BaseChannel(Generic[Value, Update, Stored]):
    """One part of the state. To make your own, subclass it and define `get`, `update` and
    `from_checkpoint`; then run `stategraph.testing.check_channel` on it.

    A channel given to a graph is a template: each run calls `from_checkpoint` on it and owns the
    result. The engine never changes a live channel: it updates a `copy` and swaps it in once the
    whole superstep has been applied, so an `update` that raises leaves the run as it was.

    Args:
        typ: the type of the value, as the user wrote it.
        key: the name of the channel in its graph; used in error texts. The graph fills it in.

    Attributes:
        dropped: how many writes the last `update` left out because another one replaced them.
            A graph warns about them.
        stored: whether checkpoints hold this channel. If False a resumed run starts without it.
        shares_blank: whether all runs may use one empty instance, the template itself, because
            `from_checkpoint(MISSING)` and an `update([])` that empties the channel both give
            exactly that. A class must set it in its own body: subclasses do not inherit it.
            It saves a run one new channel per key and per emptied trigger (benchmarks P2 and P10).
    """

    __slots__ = ("key", "typ")

    dropped: int = 0
    stored: ClassVar[bool] = True
    shares_blank: ClassVar[bool] = False

    def __init__(self, typ: Any, key: str = "") -> None:
        self.typ: Any = typ
        self.key: str = key

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # What a subclass overrides may make its empty instances differ: it has to say so anew.
        cls.shares_blank = cls.__dict__.get("shares_blank", False)
        # A class with an `update` of its own may react to an empty one, and take several writes,
        # unless it says otherwise.
        for name in ("step_scoped", "exclusive"):
            for base in cls.__mro__:
                if name in base.__dict__:
                    break
                if "update" in base.__dict__:
                    setattr(cls, name, getattr(BaseChannel, name))
                    break

    @property
    def step_scoped(self) -> bool:
        """Whether `update([])` may change this channel.

        If True the engine calls `update([])` after every superstep that wrote nothing here while
        the channel is available. A subclass that overrides `update` counts as step-scoped until
        it overrides this too.
        """
        return True

    @property
    def exclusive(self) -> bool:
        """Whether a write may only replace a value that its writer could see.

        If True `update` refuses several writes in one superstep, and with schedule="ready" the
        engine refuses a write to a value that has changed since the writer started. A subclass
        that overrides `update` takes them until it overrides this too.
        """
        return False

    @property
    def reducer(self) -> Callable[[Any, Any], Any] | None:
        """The function that folds writes into the value; None if there is none."""
        return None

    @property
    def ValueType(self) -> Any:
        """The type of what `get` returns."""
        return self.typ

    @property
    def UpdateType(self) -> Any:
        """The type of one item of what `update` takes."""
        return self.typ

    def get(self) -> Value:
        """Return the current value.

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
        """Apply all writes of one superstep, in path order; `values` is empty if there were none.

        Returns:
            True if the channel changed: its version moves, and nodes that wait for it may run.

        Raises:
            InvalidUpdateError: these values cannot be taken (together).
        """
        raise NotImplementedError(f"{type(self).__name__} must define update()")

    def preview(self, values: Sequence[Update]) -> Value:
        """Return what `get` would give after an update with these values; change nothing.

        Raises:
            InvalidUpdateError: these values cannot be taken (together).
            EmptyChannelError: it would hold none.
        """
        updated = self.copy()
        updated.update(values)
        return updated.get()

    def declare(self, key: str, hint: Any) -> Self:
        """Return the channel of a key whose annotation holds this one: a copy, so that one instance
        in two annotations does not become one channel with two names.

        Args:
            hint: the annotation, `Annotated[type, channel]`.
        """
        mine = self.copy()
        mine.key = key
        return mine

    def describe(self) -> ChannelStatus:
        """Return what the channel holds or waits for, for `explain` and error texts."""
        if self.is_available():
            return ChannelStatus("available", "holds a value")
        return ChannelStatus("empty", "holds no value")

    def consume(self) -> bool:
        """A node that waits for this channel ran. Returns True if the channel changed."""
        return False

    def finish(self) -> bool:
        """Nothing else is left to run. Returns True if the channel changed."""
        return False

    def checkpoint(self) -> Stored | Missing:
        """Return what to store, or `MISSING` to store nothing. Defaults to the value.

        Raises:
            EmptyChannelError: means the same as `MISSING`.
        """
        try:
            return self.get()  # type: ignore[return-value]
        except EmptyChannelError:
            return MISSING

    def from_checkpoint(self, checkpoint: Stored | Missing) -> Self:
        """Make a live channel from this template and what `checkpoint` returned (or `MISSING`)."""
        raise NotImplementedError(f"{type(self).__name__} must define from_checkpoint()")

    def copy(self) -> Self:
        """Return a second channel with the same content; updating it does not change this one."""
        return self.from_checkpoint(stored_of(self))

    def __eq__(self, other: object) -> bool:
        """Whether two schemas declare the same channel; the current value does not count."""
        return type(self) is type(other)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # two equal declarations are still two channels

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type_name(self.typ)})"


def type_name(typ: Any) -> str:
    """A type as an error text shows it."""
    return str(getattr(typ, "__name__", typ))


Channel = BaseChannel[Any, Any, Any]
"""Any channel, whatever it holds."""


def stored_of(channel: Any) -> Any:
    """What is stored of a channel: what its `checkpoint` returns, or `MISSING` if that raises
    `EmptyChannelError`."""
    try:
        return channel.checkpoint()
    except EmptyChannelError:
        return MISSING
