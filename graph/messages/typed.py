"""`add_messages` for keys that are declared to hold LangChain's messages: what comes in becomes one
of its objects. LangChain is not imported for it: an annotation that names its classes says that it
is there.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any

from ...channels.aggregate import FOLDING
from .merge import MessageFolding
from .normalize import list_messages


class TypedReducer:
    """A reducer of messages that first makes LangChain's objects of what is written.

    It equals the reducer that it calls: a schema of a node may declare the key without LangChain's
    types, and the first declaration counts.
    """

    def __init__(self, reducer: Callable[[Any, Any], Any], rewrite: bool) -> None:
        self.reducer = reducer
        self.rewrite = rewrite
        self.__qualname__ = "add_messages"
        setattr(self, FOLDING, _make_folding)

    def __call__(self, left: Any, right: Any) -> Any:
        return self.reducer(to_langchain(left), to_langchain(right))

    def __eq__(self, other: object) -> bool:
        return other == self.reducer or (
            isinstance(other, TypedReducer) and other.reducer == self.reducer
        )

    def __hash__(self) -> int:
        return hash(self.reducer)


def _make_folding(reducer: Any) -> TypedFolding | None:
    if type(reducer) is not TypedReducer:
        return None
    return TypedFolding(reducer, reducer.rewrite)


class TypedFolding(MessageFolding):
    """The folding of a `TypedReducer`."""

    __slots__ = ()

    @staticmethod
    def listed(given: Any) -> list[Any]:
        """LangChain's objects, whatever they are made of."""
        return to_langchain(given)  # type: ignore[no-any-return]


def to_langchain(given: Any) -> Any:
    """What was written, with LangChain's objects in place of dicts, tuples and texts."""
    if given is None:
        return None
    convert = sys.modules["langchain_core.messages"].convert_to_messages
    return [
        convert([each])[0] if isinstance(each, (dict, tuple, list, str)) else each
        for each in list_messages(given)
    ]


def names_langchain(annotation: Any) -> bool:
    """Whether a list is declared to hold LangChain's messages and nothing else."""
    base = getattr(sys.modules.get("langchain_core.messages"), "BaseMessage", None)
    if base is None:
        return False
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is None:
        return False
    members = [member for item in typing.get_args(annotation) for member in _members(item)]
    return bool(members) and all(
        isinstance(member, type) and issubclass(member, base) for member in members
    )


def _members(annotation: Any) -> list[Any]:
    """The members of a union; any other annotation alone."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin is typing.Union or origin is UnionType:
        return [each for arg in typing.get_args(annotation) for each in _members(arg)]
    return [annotation]
