"""`add_messages`, the reducer of conversations, and the state that has it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, overload

from typing_extensions import TypedDict

from ...channels.aggregate import FOLDING, FOR_TYPE
from .merge import MessageFolding, merge_messages, missing_error
from .normalize import AnyMessage
from .typed import TypedReducer, names_langchain

Format = Literal["openai", "langchain-openai"]

_FORMATS = (None, "openai", "langchain-openai")


class _Unset:
    """The default of arguments that were not given."""


_UNSET = _Unset()


@overload
def add_messages(left: Any, right: Any, *, format: Format | None = None) -> list[AnyMessage]: ...
@overload
def add_messages(*, format: Format | None = None) -> Callable[[Any, Any], list[AnyMessage]]: ...
def add_messages(left: Any = _UNSET, right: Any = _UNSET, *, format: Format | None = None) -> Any:
    """Merge messages into a list of messages: the reducer of `MessagesState`.

    A message whose id is in the list replaces that one in its place; any other is appended. A
    `RemoveMessage` removes the message with its id; with `REMOVE_ALL_MESSAGES` everything before it
    is dropped, and what follows is merged into an empty list. A message without an id gets a random
    one.

    Nothing given is changed: the result is a new list, and a dict gets its id in a copy. The ids of
    messages that were merged must not be changed in place later on.

    A key that is declared to hold LangChain's messages (`Annotated[list[AnyMessage], add_messages]`
    with its `AnyMessage`) holds its objects, whatever is written; elsewhere dicts stay dicts.

    A channel that has exactly this reducer keeps an index of its messages, so that a write costs
    what it adds and one copy of the list. A reducer of yours that calls `add_messages` has none:
    each call looks at every message.

    Args:
        left: the messages so far, one or a list.
        right: the new ones, one or a list: dicts, objects with an `id`, `("user", "hi")`, or `"hi"`
            for a user's.
        format: "openai" rewrites the contents to the blocks that OpenAI's API takes; ids are kept.

    Returns:
        The merged list; called with options only, a reducer that has them, for use in an
        annotation.

    Raises:
        ValueError: one side is missing or None; the message to remove is not there; a role is
            unknown or missing; the format is unknown.
        TypeError: something is not a message.

    >>> said = add_messages([], [("user", "hi"), {"role": "user", "content": "ho", "id": "2"}])
    >>> said = add_messages(said, {"role": "user", "content": "hello", "id": "2"})
    >>> [message["content"] for message in said]
    ['hi', 'hello']
    >>> Annotated[list, add_messages(format="openai")]
    typing.Annotated[list, ...]
    """
    if format not in _FORMATS:
        raise ValueError(f'format must be None or "openai", got {format!r}')
    if left is _UNSET and right is _UNSET:
        return _with_format(format)
    for side, given in (("left", left), ("right", right)):
        if given is _UNSET:
            raise missing_error(side)
    return merge_messages(left, right, format is not None)


def _make_folding(reducer: Any) -> MessageFolding | None:
    """What folds like `add_messages` with these options; None if this is another function."""
    if reducer is add_messages:
        return MessageFolding(reducer, rewrite=False)
    if isinstance(reducer, partial) and reducer.func is add_messages:
        return MessageFolding(reducer, rewrite=reducer.keywords["format"] is not None)
    return None


def _for_type(reducer: Any, annotation: Any) -> TypedReducer | None:
    """What merges messages of the declared type; None if any message will do, or if this is
    another function."""
    folding = _make_folding(reducer)
    if folding is None or not names_langchain(annotation):
        return None
    return TypedReducer(reducer, folding.rewrite)


setattr(add_messages, FOLDING, _make_folding)
setattr(add_messages, FOR_TYPE, _for_type)


@cache  # the same reducer for the same options: two schemas that share a key must agree on it
def _with_format(format: Format | None) -> Callable[[Any, Any], list[AnyMessage]]:
    reducer = partial(add_messages, format=format)
    setattr(reducer, FOLDING, _make_folding)
    setattr(reducer, FOR_TYPE, _for_type)
    return reducer


if TYPE_CHECKING:
    from ...pregel.types import Interrupt

    class _Result(TypedDict):
        __interrupt__: NotRequired[list[Interrupt]]

else:
    _Result = TypedDict


class MessagesState(_Result):
    """A state with one key, `messages`, whose updates are merged by `add_messages`. Inherit from it
    to add keys."""

    messages: Annotated[list[AnyMessage], add_messages]
