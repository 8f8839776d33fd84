"""What an object is that a node, a router or a caller has brought: a record of state keys, or
something that was mistaken for one. Looks at types and names only; libraries that are not loaded
are not loaded for it.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from types import CoroutineType
from typing import Any, Final

from typing_extensions import Format, get_annotations

from ...channels.aggregate import Overwrite
from ..errors import InvalidUpdateError
from ..types import (
    CachePolicy,
    Command,
    GraphOutput,
    Interrupt,
    PregelTask,
    RetryPolicy,
    Send,
    StateSnapshot,
    StateUpdate,
    TimeoutPolicy,
)

_SHAPES: Final[dict[str, tuple[type, tuple[str, ...]]]] = {
    "Command": (Command, ("update", "goto", "resume", "graph")),
    "Send": (Send, ("node", "arg")),
    "Interrupt": (Interrupt, ("value", "id")),
    "Overwrite": (Overwrite, ("value", "type")),
}
"""The control objects that a class of the same name in another library is taken for, if it has
these attributes."""

_CONTAINERS: Final = (list, dict, set, bytearray, deque)

NO_UPDATES: Final = (
    Command, Send, Interrupt, Overwrite, StateSnapshot, StateUpdate, PregelTask, GraphOutput,
    RetryPolicy, CachePolicy, TimeoutPolicy,
)  # fmt: skip
"""Records of ours that are never an update of the state, whatever their fields are called."""


def is_graph(value: Any) -> bool:
    """Whether this is a compiled graph. A `Mock` has every attribute, but none that is True."""
    return getattr(value, "is_stategraph", False) is True


def is_record(value: Any) -> bool:
    """An instance with declared fields: pydantic, dataclass, NamedTuple, or any annotated class."""
    cls = type(value)
    if isinstance(value, type):
        return False
    if is_dataclass(cls) or hasattr(cls, "_fields"):  # of the class: a `Mock` has every attribute
        return True
    return any(get_annotations(base, format=Format.FORWARDREF) for base in cls.__mro__)


def record_fields(cls: type) -> Iterable[str]:
    """The names of the fields that a record's class declares."""
    if hasattr(cls, "model_fields"):
        return list(cls.model_fields)
    if is_dataclass(cls):
        return [field.name for field in fields(cls)]
    if hasattr(cls, "_fields"):
        return list(cls._fields)
    return list(
        {
            n: None
            for c in reversed(cls.__mro__)
            for n in get_annotations(c, format=Format.FORWARDREF)
        }
    )


def record_items(value: Any, unset: bool = False) -> list[tuple[str, Any]]:
    """The fields that count as written: of a pydantic model those that were set, or whose default
    was changed in place; all of any other record.

    Args:
        unset: whether defaults of a pydantic model count as well, if they are not None.
    """
    names = record_fields(type(value))
    if hasattr(type(value), "model_fields"):
        given = value.model_fields_set
        names = [
            name
            for name in names
            if name in given
            or (getattr(value, name, None) is not None if unset else _is_edited(value, name))
        ]
    return [(name, getattr(value, name)) for name in names if hasattr(value, name)]


def _is_edited(model: Any, name: str) -> bool:
    """Whether a field that was not set holds something else than its default, in a container."""
    held = getattr(model, name, None)
    if not isinstance(held, _CONTAINERS) and not hasattr(type(held), "model_fields"):
        return False
    field = type(model).model_fields.get(name)
    if field is None:
        return False
    made_of_others = getattr(field, "default_factory_takes_validated_data", None) is True
    given = {"validated_data": vars(model)} if made_of_others else {}
    return bool(held != field.get_default(call_default_factory=True, **given))


def find_lookalike(value: Any) -> str | None:
    """Where a control object comes from that another library has under the same name; None for
    anything else.

    >>> find_lookalike(Command(goto="a")) is None
    True
    """
    cls = type(value)
    for base in cls.__mro__:
        ours, shape = _SHAPES.get(base.__name__, (base, ()))
        if base is not ours and all(hasattr(value, name) for name in shape):
            path = f"{cls.__module__}.{cls.__qualname__}"
            return f"{path}; import {base.__name__} from stategraph instead"
    return None


def refuse_lookalike(value: Any) -> None:
    """Refuse a `Command` of another library, before it is stored as a value.

    Raises:
        InvalidUpdateError: naming where it comes from.
    """
    if find_lookalike(value) is not None:
        raise InvalidUpdateError(f"the input is a {type(value).__name__}{advice(value)}")


def refuse_coroutine(value: Any, who: str) -> None:
    """Refuse what a function has returned because nobody awaited it.

    Raises:
        InvalidUpdateError: it is a coroutine.
    """
    if value.__class__ is CoroutineType:
        raise InvalidUpdateError(f"{who} returned a coroutine: {value!r}{advice(value)}")


def misplaced_classes() -> frozenset[type]:
    """The classes whose instances, found as the value of a state key, are most likely a mistake."""
    # One look-up, no import: if LangGraph was not loaded, nobody can have made an object of it.
    theirs = vars(sys.modules.get("langgraph.types", object))
    others = [
        theirs[name]
        for name in ("Command", "Send", "Overwrite")
        if isinstance(theirs.get(name), type)
    ]
    return frozenset((Command, Send, CoroutineType, *others)) - {Overwrite}


def mentions(hint: Any, cls: type) -> bool:
    """Whether an annotation names a class, alone or inside."""
    return hint is cls or any(mentions(arg, cls) for arg in getattr(hint, "__args__", ()))


def advice(value: Any, nodes: Iterable[str] = ()) -> str:
    """The end of a sentence about a value that is no update: what was probably meant, or nothing.

    Args:
        nodes: the names that a `Command` may go to.
    """
    other = find_lookalike(value)
    if other is not None:
        return f"; it is {other}"
    if inspect.iscoroutine(value):
        value.close()  # or Python would warn, a second time, that it was never awaited
    if isinstance(value, str):
        if value not in nodes:
            return ""
        return f'; to go there, return Command(goto="{value}")'
    for fits, text in _ADVICE:
        if fits(value):
            return text
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return f"; put the pair into a dict: {{{value[0]!r}: ...}}"
    return ""


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_future(value: Any) -> bool:
    futures: Any = sys.modules.get("concurrent.futures")
    return futures is not None and isinstance(value, futures.Future)


def _is_stream(value: Any) -> bool:
    return inspect.isasyncgen(value) or hasattr(type(value), "__next__")


# The first that fits: what is awaitable may be callable, too.
_ADVICE: Final[tuple[tuple[Callable[[Any], bool], str], ...]] = (
    (inspect.iscoroutine, "; is an await missing, or should the function be async?"),
    (_is(type), "; return an instance, not the class"),
    (_is(Command), "; a Command cannot contain another: return both in a list"),
    (_is(Send), "; put Sends into Command(goto=[...])"),
    (_is(Interrupt), "; to ask a question, call interrupt(value)"),
    (_is(Overwrite), '; put it under the key whose value it replaces: {"key": Overwrite(value)}'),
    (_is(StateSnapshot), "; the values of a snapshot are in .values"),
    (_is(StateUpdate), "; a StateUpdate is for bulk_update_state"),
    (_is(BaseException), "; raise errors, do not return them"),
    (_is_future, "; take its .result(), or await it"),
    (_is(set, frozenset), "; a set has no keys"),
    (_is_stream, "; `yield` each update in the node itself, or collect them in a list"),
    (inspect.isawaitable, "; is an await missing, or should the function be async?"),
    (callable, "; should it be called?"),
)
