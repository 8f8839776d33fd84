"""How exceptions are stored: type, arguments, attributes, notes, cause and context. An error is
never refused: what cannot be stored as it is comes back as a `StoredError` that tells type and
message.

Two things stay behind, because they hold what no other process has: the traceback, and an
`AttributeError`'s `obj`.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

from ..errors import StoredError
from .class_codecs import slots_of
from .codec import key_of

BUILTIN_ERRORS: dict[str, type[BaseException]] = {
    key_of(cls): cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
}

MOST_ERRORS = 100
"""How many errors of a chain of causes and contexts are stored with all they hold. Of others only
type and message."""

_OS_ERROR = ("errno", "strerror", "filename", "filename2", "characters_written")
_SYNTAX_ERROR = (
    *("msg", "filename", "lineno", "offset", "text"),
    *("end_lineno", "end_offset", "print_file_and_line"),
)

# What these keep in the C structure instead of in `args` or `__dict__`, where the stored value may
# be set again.
_HIDDEN: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (ImportError, ("name", "path", "name_from")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
    (OSError, _OS_ERROR),
    (SyntaxError, _SYNTAX_ERROR),
    (StopIteration, ("value",)),
    (SystemExit, ("code",)),
)

# The same, where it must not be set: it is made from `args`, or not stored. Values of a wrong type
# would crash Python.
_FIXED: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (BaseExceptionGroup, ("message", "exceptions")),
    (UnicodeDecodeError, ("encoding", "object", "start", "end", "reason")),
    (UnicodeEncodeError, ("encoding", "object", "start", "end", "reason")),
    (UnicodeTranslateError, ("object", "start", "end", "reason")),
)

_ABSENT = object()


# -- one error -------------------------------------------------------------------------------------


def describe(error: BaseException, key: str) -> list[Any]:
    """What is always stored: [key of the type, message, notes]."""
    notes = vars(error).get("__notes__", ())
    # Stored again it stays what it was at first, not a StoredError of a StoredError.
    if isinstance(error, StoredError):
        return [error.type_name, error.message, _texts(notes)]
    return [key, *_texts([error]), _texts(notes)]


def parts_of(error: BaseException) -> list[Any]:
    """What is stored if it can be: [arguments, instance attributes, attributes outside `__dict__`].

    Raises:
        TypeError: made again from these, it would not be the same.
    """
    args = _arguments_of(error)
    attributes = dict(vars(error))
    notes = attributes.get("__notes__")
    if type(notes) is list and notes and all(type(note) is str for note in notes):
        del attributes["__notes__"]  # `describe` has them
    # From its arguments alone, to see what these do not tell.
    bare = rebuild(type(error), [args, {}, {}])
    if (
        type(bare) is not type(error)
        or not _equal(bare.args, error.args)
        or not _equal(_fixed_values(bare), _fixed_values(error))
    ):
        raise TypeError("its arguments do not make an equal one")
    return [args, attributes, _find_hidden(error, bare)]


def _arguments_of(error: BaseException) -> list[Any]:
    """The arguments that make an equal error."""
    args = list(error.args)
    # OSError takes its file names out of `args`; given back, they make an equal one.
    if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
        args.append(error.filename)
        if error.filename2 is not None:
            args += (None, error.filename2)
    return args


def _find_hidden(error: BaseException, bare: BaseException) -> dict[str, Any]:
    """The attributes outside `__dict__` in which an error differs from one that was made from its
    arguments alone.

    Raises:
        TypeError: it lacks one that the other has, for which the form has no word.
    """
    hidden = {}
    cls: Any = type(error)
    for name, slot in _hidden_slots(cls).items():
        held = _read_slot(slot, error)
        if not _equal(held, _read_slot(slot, bare)):
            if held is _ABSENT:
                raise TypeError(f"its {name} was deleted")
            hidden[name] = held
    return hidden


def rebuild(cls: Any, parts: list[Any]) -> BaseException:
    """The exception again, made by its built-in base: the `__init__` of a registered class does not
    run."""
    args, attributes, hidden = parts
    base = cls
    while base.__module__ != "builtins":
        base = base.__base__  # the one that decides the layout in memory
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    vars(error).update(attributes)
    if hidden:
        slots = _hidden_slots(cls)
        for name, value in hidden.items():
            if name not in slots:
                raise ValueError(f"{name} is not an attribute of {cls.__name__}")
            slots[name].__set__(error, value)
    return error


@lru_cache(500)
def _hidden_slots(cls: Any) -> dict[str, MemberDescriptorType]:
    """What an error of this class may hold outside `args` and `__dict__`, as it stands in its
    classes."""
    found = {
        name: slot
        for name, slot in slots_of(cls).items()
        if slot.__objclass__.__module__ != "builtins"
    }
    for owner, names in _HIDDEN:
        if issubclass(cls, owner):
            found |= {name: vars(owner)[name] for name in names if name in vars(owner)}
    return found


def _fixed_values(error: BaseException) -> list[Any]:
    return [
        getattr(error, name)
        for owner, names in _FIXED
        if isinstance(error, owner)
        for name in names
    ]


def _read_slot(slot: MemberDescriptorType, error: BaseException) -> Any:
    try:
        return slot.__get__(error)
    except AttributeError:
        return _ABSENT


def _equal(one: Any, two: Any) -> bool:
    if type(one) in (tuple, list) and type(one) is type(two):
        return len(one) == len(two) and all(map(_equal, one, two))
    # By type too: 1 == True. And a foreign `==` may give something that is not a bool.
    return one is two or (type(one) is type(two) and bool(one == two))


def restore(
    state: list[Any],
    find: Callable[[str], type[BaseException] | None],
    loads: Callable[[bytes], Any],
) -> BaseException:
    """The exception again, or a `StoredError` if its type is not known here or its parts were not
    stored.

    Args:
        state: what `describe` gave and, packed, what `parts_of` gave (empty if that could not be
            stored); if it is one of a chain, then the links of all, and such a state of each of the
            others.
        find: key → class, or None.
        loads: unpacks the parts, or gives None if they hold something unknown.
    """
    first, chain = state[:4], state[4:]
    error = _restore_one(first, find, loads)
    if chain:
        links, others = chain
        _link([error, *(_restore_one(each, find, loads) for each in others)], links)
    return error


def _restore_one(
    state: list[Any],
    find: Callable[[str], type[BaseException] | None],
    loads: Callable[[bytes], Any],
) -> BaseException:
    key, message, notes, packed = state
    if type(key) is not str or type(message) is not str or type(packed) is not bytes:
        raise TypeError("an error is stored as name, message, notes and parts")
    cls = find(key) if packed else None
    parts = loads(packed) if cls is not None else None
    if cls is None or parts is None:
        error: BaseException = StoredError(key.removeprefix("builtins:").replace(":", "."), message)
    else:
        error = rebuild(cls, parts)
    if "__notes__" not in vars(error):
        for note in notes:
            error.add_note(note)
    return error


# -- chains: an error, what it came from, and so on ------------------------------------------------


class _OpenErrors(threading.local):
    """What this thread is storing: errors may hold errors that lead back to them."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.left = MOST_ERRORS


_open_errors = _OpenErrors()


@contextmanager
def open_chain(
    error: BaseException,
) -> Iterator[tuple[list[BaseException], list[bool], list[list[Any]]]]:
    """Find an error and those that its causes and contexts lead to, each once; in this context they
    are stored.

    Yields:
        These, from the error itself on. Which of them are to be stored with all they hold: not one
        that is being stored further out, where it is whole, and what comes after `MOST_ERRORS`. For
        each the place of its cause, that of its context, and whether the context is suppressed.
    """
    errors, places = [error], {id(error): 0}
    whole: list[bool] = []
    links: list[list[Any]] = []

    def place_of(found: BaseException | None) -> int | None:
        if found is None:
            return None
        if id(found) not in places:
            places[id(found)] = len(errors)
            errors.append(found)
        return places[id(found)]

    # The outermost begins to count; errors inside errors share its allowance.
    if not _open_errors.open:
        _open_errors.left = MOST_ERRORS
    for each in errors:  # which grows
        # An error that is being stored further out is named only, or the two would hold each
        # other for ever.
        is_whole = id(each) not in _open_errors.open and (each is error or _open_errors.left > 0)
        whole.append(is_whole)
        _open_errors.left -= each is not error
        cause, context = (each.__cause__, each.__context__) if is_whole else (None, None)
        links.append([place_of(cause), place_of(context), each.__suppress_context__])
    opened = {id(each) for each in errors} - _open_errors.open
    _open_errors.open |= opened
    try:
        yield errors, whole, links
    finally:
        _open_errors.open -= opened


def _link(errors: list[BaseException], links: list[list[Any]]) -> None:
    for error, (cause, context, suppressed) in zip(errors, links, strict=True):
        error.__cause__ = None if cause is None else errors[cause]
        error.__context__ = None if context is None else errors[context]
        error.__suppress_context__ = suppressed


def _texts(things: Any) -> list[str]:
    texts = []
    for thing in things if isinstance(things, (list, tuple)) else ():
        try:
            texts.append(str(thing))
        except Exception:  # a foreign __str__ must not cost us the rest
            texts.append(f"<{type(thing).__name__}>")
    return texts
