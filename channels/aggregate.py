"""The channel that folds writes with a reducer, and `Overwrite`, which bypasses it.

Which annotation becomes such a channel is decided when a graph is built.
"""

from __future__ import annotations

import inspect
import operator as op
from collections import OrderedDict, abc, deque
from collections.abc import Callable, Sequence
from copy import Error as CopyError
from copy import copy as shallow_copy
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain
from types import CoroutineType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NotRequired,
    Protocol,
    Required,
    Self,
    TypeVar,
    final,
    get_args,
    get_origin,
)

from .base import MISSING, BaseChannel, InvalidUpdateError, Missing, Value, check_kind
from .common import CONCURRENT, SingleValue, clone, name_key, too_many_error

New = TypeVar("New")

_TAG: Literal["__overwrite__"] = "__overwrite__"
_QUALIFIERS = (Annotated, Required, NotRequired)
_CONCRETE: dict[Any, Callable[[], Any]] = {
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Set: set,
    abc.MutableSet: set,
    abc.Mapping: dict,
    abc.MutableMapping: dict,
}


_IMMUTABLE = frozenset((int, float, str, bool, tuple, frozenset, bytes, type(None)))
_MUTABLE = (list, set, dict, bytearray, deque, OrderedDict)
_IN_PLACE = frozenset(
    (
        "add", "append", "appendleft", "difference_update", "discard", "extend", "extendleft",
        "intersection_update", "remove", "symmetric_difference_update", "update",
    )
)  # fmt: skip
"""Methods of builtin types that change their object and return None."""
_PURE = (op.add, op.or_, op.and_, op.mul, op.sub, op.xor, op.concat, max, min)
"""Reducers known to return a new value, so that they can be given the live one."""


@final
@dataclass(frozen=True, slots=True)
class Overwrite(Generic[New]):
    """A write that replaces the value and bypasses the reducer.

    It wins over all other writes of its superstep, whatever their order, and a warning says so. On
    a channel without a reducer it is a plain write of `value`. It cannot be subclassed.

    Args:
        value: the new value.
        type: a constant, so that an `Overwrite` turned into JSON is not taken for another dict.
    """

    value: New
    type: Literal["__overwrite__"] = field(default=_TAG, repr=False)

    def __init_subclass__(cls) -> None:
        raise TypeError("Overwrite cannot be subclassed")


class Folding(Protocol):
    """Folds writes like a reducer, with something that goes along with the value, such as an index.

    A channel and its copies share the folding of their value, also on several threads: `fold`
    leaves it usable for that value.
    """

    def fold(self, value: Any, writes: Sequence[Any]) -> tuple[Any, Folding]:
        """The value after some writes, and the folding of that value."""

    def identify(self, write: Any) -> Any:
        """A write whose items have the ids that `fold` would otherwise give them at random."""

    def stored_types(self) -> Any:
        """An annotation that names what values may hold besides what their schema says; None if
        that is nothing."""


FOLDING = "stategraph_folding"
"""The attribute of a function that gives a reducer its `Folding`; None if the reducer is another
function: `functools.wraps` copies attributes."""


FOR_TYPE = "stategraph_for_type"
"""The attribute of a function that gives the reducer to use for a key of a type: called with the
reducer and the type; None for the reducer itself."""


def reducer_for(reducer: Any, annotation: Any) -> Any:
    """The reducer to use for a key of this type."""
    choose = getattr(reducer, "__dict__", {}).get(FOR_TYPE)
    return (choose and choose(reducer, annotation)) or reducer


def reducer_fault(reducer: Any) -> str:
    """Why a function cannot be a reducer, as the end of a sentence; empty if nothing is known."""
    function = reducer.func if isinstance(reducer, partial) else reducer
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(called):
        return "must not be an async function: it is called between supersteps, without an await"
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        return "must not be a generator function: it must return the new value"
    owner = getattr(function, "__objclass__", None)
    if owner in _MUTABLE and function.__name__ in _IN_PLACE:
        return "changes the value in place and returns None; it must return the new value"
    return ""


def make_folding(reducer: Any) -> Folding | None:
    """A new `Folding` of this reducer, if it has one."""
    make: Callable[[Any], Folding | None] | None = getattr(reducer, "__dict__", {}).get(FOLDING)
    if make is None:
        return None
    return make(reducer)


class BinaryOperatorAggregate(SingleValue[Value]):
    """Folds every write into the value: `value = operator(value, write)`, in path order.

    The value starts as `typ()`; where that cannot be called (`int | None`, `Any`, …) the channel
    starts empty and takes its first write as it is. A write `Overwrite(v)`, `{"__overwrite__": v}`
    or `{"type": "__overwrite__", "value": v}` replaces the value.

    Args:
        typ: the type of the value. Abstract ones start as a `list`, `set` or `dict`.
        operator: the reducer, `(value, write) -> value`. It may change `value` (one level deep)
            and return it; it must leave `write` alone.
        first: makes the value that it starts with instead.
        key: the name of the channel; the graph fills it in.

    >>> from operator import add
    >>> from stategraph.channels import BinaryOperatorAggregate, Overwrite
    >>> total = BinaryOperatorAggregate(int, add)
    >>> total.update([1, 2]), total.get()
    (True, 3)
    >>> total.update([5, Overwrite(10), 5]), total.get()
    (True, 10)
    """

    __slots__ = ("dropped", "folding", "make", "operator", "pure")

    step_scoped = False

    def __init__(
        self,
        typ: Any,
        operator: Callable[[Any, Any], Value],
        *,
        first: Callable[[], Value] | None = None,
        key: str = "",
    ) -> None:
        super().__init__(typ, key)
        if fault := reducer_fault(operator):
            raise TypeError(f"the reducer {operator!r} {fault}")
        self.dropped: int = 0
        self.operator: Callable[[Any, Any], Value] = operator
        self.folding: Folding | None = make_folding(operator)
        self.pure: bool = any(operator is known for known in _PURE)
        self.make: Callable[[], Value] | None = first
        if first is not None:
            check_kind("first", first, Callable, "a function that makes the first value")
            self.value = first()
            return
        self.make = concrete_type(typ)
        try:
            self.value = self.make()
        except Exception:
            # Whatever an unknown type raises when called, it only means: no initial value.
            self.make = None

    @property
    def reducer(self) -> Callable[[Any, Any], Value]:
        """The operator."""
        return self.operator

    def from_checkpoint(self, checkpoint: Value | Missing) -> Self:
        """A live channel that holds `checkpoint`, or a fresh initial value."""
        new = self.copy()
        if self.folding is not None:
            new.folding = make_folding(self.operator)  # the template's is not the live channel's
        # Not the one of the template: nodes of several runs would be given the same list.
        if checkpoint is MISSING and self.make is not None:
            new.value = self.make()
        else:
            new.value = checkpoint
        return new

    def update(self, values: Sequence[Any]) -> bool:
        """Fold `values`, or take the one `Overwrite` among them.

        Raises:
            InvalidUpdateError: two overwrites in one superstep; or the operator changed the value
                in place and returned None, or returned a coroutine.
            Exception: whatever the operator raises.
        """
        self.dropped = 0
        if not values:
            return False
        for write in values:
            # Most writes are neither; asking here saves them a call (benchmark P1).
            if (type(write) is Overwrite or isinstance(write, dict)) and is_overwrite(write):
                overwrites = [write for write in values if is_overwrite(write)]
                self.value = sole_overwrite(self, overwrites)
                self.dropped = len(values) - 1
                if self.folding is not None:
                    self.folding = make_folding(self.operator)
                return True
        value = self.value
        if value is MISSING:
            self.value = self._fold_first(values)
            return True
        if self.folding is not None:
            self.value, self.folding = self.folding.fold(value, values)
            return True
        # The channel that this one was copied from shares the value: a reducer that works in place
        # is given a copy.
        start = value if self.pure or value.__class__ in _IMMUTABLE else own_copy(value)
        self.value = self._fold(values, start, value)
        return True

    def _fold(self, values: Sequence[Any], start: Any, before: Any) -> Any:
        """The value after these writes, one by one.

        Args:
            start: with what to begin; the operator may change it.
            before: the same, which nobody changes.
        """
        if self.pure:
            return fold_pure(self.operator, values, start)
        value, operator = start, self.operator
        for write in values:
            value = operator(value, write)
            if value is None or value.__class__ is CoroutineType:
                self._check_result(value, start, before)
        return value

    def _check_result(self, result: Any, start: Any, before: Any) -> None:
        """Refuse what an operator returns that has forgotten its `return`, or an `await`."""
        name = getattr(self.operator, "__qualname__", None) or repr(self.operator)
        if result is not None:
            result.close()
            text = f"the reducer {name} returned a coroutine; it must return the new value"
        # None may be meant, unless the operator has done its work on the old value.
        elif isinstance(start, _MUTABLE) and start != before:
            text = (
                f"the reducer {name} changed the {type(start).__name__} in place and returned "
                "None; it must return the new value"
            )
        else:
            return
        raise InvalidUpdateError(name_key(self, text))

    def identify(self, write: Any) -> Any:
        """A write as `update` takes it, with the ids that its items would otherwise be given then,
        at random. Without a `Folding` it is the write itself, and so is an `Overwrite`."""
        if self.folding is None or is_overwrite(write):
            return write
        return self.folding.identify(write)

    def _fold_first(self, values: Sequence[Any]) -> Any:
        """The value of an empty channel after its first writes."""
        if len(values) == 1:
            return values[0]
        # The first write becomes the value, but it still belongs to its node: work on a copy.
        return self._fold(values[1:], own_copy(values[0]), values[0])

    def copy(self) -> Self:
        """A second channel with the same value (shared, not copied)."""
        cls = self.__class__
        if cls is not BinaryOperatorAggregate:
            return clone(self)
        # By hand, for speed: it is copied in every superstep that writes it (benchmark P1).
        new = cls.__new__(cls)
        new.key = self.key
        new.typ = self.typ
        new.dropped = 0
        new.operator = self.operator
        new.folding = self.folding
        new.pure = self.pure
        new.make = self.make
        new.value = self.value
        return new

    def __eq__(self, other: object) -> bool:
        """Whether the class and the operator are the same."""
        if type(self) is not type(other) or not isinstance(other, BinaryOperatorAggregate):
            return False
        return self.operator is other.operator or bool(self.operator == other.operator)


def fold_pure(operator: Callable[[Any, Any], Any], values: Sequence[Any], start: Any) -> Any:
    """`reduce`, but many lists are added up in one new list (benchmark P8)."""
    # One by one each sum copies all before it: n lists would cost n² (benchmark P8).
    lists = operator is op.add and start.__class__ is list and len(values) > 1
    if lists and all(value.__class__ is list for value in values):
        return [*start, *chain.from_iterable(values)]
    return reduce(operator, values, start)


def concrete_type(typ: Any) -> Any:
    """What to call for an initial value of `typ`: the bare type, a concrete one if it is abstract.

    >>> concrete_type(Annotated[abc.Sequence[int], "note"])
    <class 'list'>
    """
    while get_origin(typ) in _QUALIFIERS:
        typ = get_args(typ)[0]
    bare = get_origin(typ) or typ
    return _CONCRETE.get(bare, bare) if isinstance(bare, type) else bare


def is_overwrite(write: Any) -> bool:
    """Whether a write to a reducer is an `Overwrite` or one of the two dicts that stand for it."""
    if not isinstance(write, dict):
        return type(write) is Overwrite
    if len(write) == 1 and _TAG in write:
        return True
    # What a user's dict holds there may raise when it is compared, as an array does.
    tag = write.get("type")
    return isinstance(tag, str) and tag == _TAG and "value" in write


def sole_overwrite(channel: BaseChannel[Any, Any, Any], found: Sequence[Any]) -> Any:
    """The value carried by the only overwrite in `found`.

    Raises:
        InvalidUpdateError: there are several.
    """
    if len(found) > 1:
        advice = f"Let a single node overwrite the key. ({CONCURRENT})"
        raise too_many_error(channel, "only one Overwrite per step is possible", len(found), advice)
    return overwritten_value(found[0])


def overwritten_value(write: Any) -> Any:
    """The value that an overwrite carries."""
    if type(write) is Overwrite:
        return write.value
    return write[_TAG] if len(write) == 1 else write["value"]


def own_copy(value: Any) -> Any:
    """A shallow copy, for a reducer that may work in place. What cannot be copied is returned."""
    kind = type(value)
    try:
        # A `copy` method knows its object best, unless the class also defines `__copy__`.
        if hasattr(kind, "copy") and not hasattr(kind, "__copy__"):
            return value.copy()
        return shallow_copy(value)
    except (TypeError, CopyError):
        return value
