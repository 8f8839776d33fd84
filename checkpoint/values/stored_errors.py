"""How exceptions are stored: type, arguments, attributes and notes. An error is never refused: what cannot be
stored as it is comes back as a `StoredError` that tells type and message.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from ..errors import StoredError
from .codec import key_of

BUILTIN_ERRORS: dict[str, type[BaseException]] = {
    key_of(cls): cls for cls in vars(builtins).values() if isinstance(cls, type) and issubclass(cls, BaseException)
}

# What these keep in the C structure instead of in `args` or `__dict__`.
_HIDDEN: tuple[tuple[type[BaseException], tuple[str, ...]], ...] = (
    (ImportError, ("name", "path")),
    (NameError, ("name",)),
    (AttributeError, ("name",)),
)


def describe(error: BaseException, key: str) -> list[Any]:
    """What is always stored: [key of the type, message, notes]."""
    notes = getattr(error, "__notes__", ())
    if isinstance(error, StoredError):
        return [error.type_name, error.message, _texts(notes)]
    return [key, *_texts([error]), _texts(notes)]


def parts_of(error: BaseException) -> list[Any]:
    """What is stored if it can be: [arguments, instance attributes, attributes outside `__dict__`]."""
    args = list(error.args)
    if isinstance(error, OSError) and error.filename is not None and len(args) == 2:
        args.append(error.filename)
        if error.filename2 is not None:
            args += (None, error.filename2)
    attributes = {name: value for name, value in vars(error).items() if name != "__notes__"}
    hidden = {
        name: value
        for cls, names in _HIDDEN
        if isinstance(error, cls)
        for name in names
        if (value := getattr(error, name)) is not None
    }
    return [args, attributes, hidden]


def rebuild(cls: type[BaseException], parts: list[Any]) -> BaseException:
    """The exception again, made by its built-in base: the `__init__` of a registered class does not run."""
    args, attributes, hidden = parts
    base = cls
    while base.__module__ != "builtins":
        base = base.__base__  # type: ignore[assignment]  # the one that decides the layout in memory
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    vars(error).update(attributes)
    for name, value in hidden.items():
        if not any(name in names for owner, names in _HIDDEN if isinstance(error, owner)):
            raise ValueError(f"{name} is no attribute of {cls.__name__}")
        setattr(error, name, value)
    return error


def restore(
    state: list[Any],
    find: Callable[[str], type[BaseException] | None],
    loads: Callable[[bytes], Any],
) -> BaseException:
    """The exception again, or a `StoredError` if its type is not known here or its parts were not stored.

    Args:
        state: what `describe` gave and, packed, what `parts_of` gave (empty if that could not be stored).
        find: key → class, or None.
        loads: unpacks the parts, or gives None if they hold something unknown.
    """
    key, message, notes, packed = state
    if type(key) is not str or type(message) is not str or type(packed) is not bytes:
        raise TypeError("an error is stored as name, message, notes and parts")
    cls = find(key) if packed else None
    parts = loads(packed) if cls is not None else None
    if cls is None or parts is None:
        error: BaseException = StoredError(key.removeprefix("builtins:").replace(":", "."), message)
    else:
        error = rebuild(cls, parts)
    for note in notes:
        error.add_note(note)
    return error


def _texts(things: Any) -> list[str]:
    texts = []
    for thing in things if isinstance(things, (list, tuple)) else ():
        try:
            texts.append(str(thing))
        except Exception:  # a foreign __str__ must not cost us the rest
            texts.append(f"<{type(thing).__name__}>")
    return texts
