"""The slow way to pack a value: step by step, knowing at each step where it is.

The packer takes only text as keys, takes a bytearray for bytes and does not say where it failed.
The serializer comes here when it has to: for a dict with other keys, for a bytearray, and to name
the place in a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UnserializableError
from .class_codecs import plain_text
from .codec import BIG_INT, ERROR, MAP, MAX_OBJECTS, OBJECT, TEXT, Codec
from .msgpack import Ext

ADVICE = (
    "register the type with stategraph.checkpoint.register, or keep the key out of checkpoints "
    "with UntrackedValue"
)

TOO_DEEP = "nested too deeply to be stored"
_MAX_LEVELS = 250
_PLAIN = frozenset((type(None), bool, float, bytes))


@dataclass(eq=False)
class StrictEncoder:
    """Encodes one value step by step, so that the packer takes it without further questions.

    Args:
        find: type → codec, or None.
        pack_plain: (packable, level of objects) → bytes, or raises for what nests too deeply.
        error: (exception, level of objects) → its encoded form; it never refuses.
        objects: how many stored objects already lie around the value.
    """

    _find: Callable[[type], Codec | None]
    _pack_plain: Callable[[Any, int], bytes]
    _error: Callable[[BaseException, int], bytes]
    _objects: int
    _levels: int = 0
    _path: list[tuple[str, Any]] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)

    def pack(self, value: Any) -> bytes:
        """The value as bytes.

        Raises:
            UnserializableError: with the path.
        """
        try:
            return self._pack_plain(self._plain(value), self._objects)
        except RecursionError as exc:
            raise self._refusal(TOO_DEEP) from exc

    def _plain(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**64 else self._ext(BIG_INT, kind, value)
        if kind is str:
            return value if _is_text(value) else self._ext(TEXT, kind, value)
        if id(value) in self._open:
            raise self._refusal(f"cannot store {name_of(value)}: it contains itself")
        # The unpacker has a limit of its own: what it could not read again is refused now.
        if self._levels >= _MAX_LEVELS:
            raise self._refusal(f"cannot store {name_of(value)}: {TOO_DEEP}")
        self._open.add(id(value))
        plain = self._container(kind, value)
        # Only while it is open: the same object may well stand at two places.
        self._open.discard(id(value))
        return plain

    def _container(self, kind: type, value: Any) -> Any:
        if kind is list:
            return self._parts(value, "items")
        if kind is dict:
            texts = all(type(key) is str and _is_text(key) for key in value)
            return self._parts(value, "items") if texts else self._ext(MAP, kind, value)
        codec = self._find(kind)
        # Errors go their own way: one that cannot be stored is described instead, and never
        # refused.
        if isinstance(value, BaseException) and (codec is None or codec.error):
            self._check_objects(value)
            return Ext(ERROR, self._error(value, self._objects + 1))
        if codec is None:
            text = plain_text(value)
            if text is not None:
                return self._plain(text)
            raise self._refusal(f"cannot store {name_of(value)}; {ADVICE}")
        return self._ext(codec.code, kind, value)

    def _ext(self, code: int, kind: type, value: Any) -> Ext:
        codec = self._find(kind)
        assert codec is not None  # built-in, or the caller has just found it
        self._check_objects(value)
        # What is packed inside an object is read by a call of its own, so its levels count anew.
        levels, self._levels = self._levels, 0
        self._objects += 1
        state = self._encode(codec, value)
        known = codec.style != "form" and type(state) in (list, dict)
        inner = self._parts(state, codec.style) if known else self._plain(state)
        try:
            packed = self._pack_plain(
                [codec.key, inner] if code == OBJECT else inner, self._objects
            )
        except UnserializableError as exc:
            raise self._refusal(f"cannot store {name_of(value)}: {exc.reason}") from exc
        self._objects -= 1
        self._levels = levels
        return Ext(code, packed)

    def _check_objects(self, value: Any) -> None:
        if self._objects >= MAX_OBJECTS:
            raise self._refusal(f"cannot store {name_of(value)}: {TOO_DEEP}")

    def _encode(self, codec: Codec, value: Any) -> Any:
        try:
            return codec.encode(value)
        except RecursionError:
            raise
        except Exception as exc:
            raise self._refusal(f"cannot store {name_of(value)}: {exc}") from exc

    def _parts(self, state: Any, style: str) -> Any:
        # Loops, and no more calls than this: each level of the value costs three frames of Python's
        # thousand.
        path = self._path
        self._levels += 1
        if type(state) is dict:
            label = _FIELD if style == "fields" else _ITEM
            plain: Any = {}
            for key, each in state.items():
                path.append((label, key))
                plain[key] = self._plain(each)
                path.pop()
        else:
            plain = []
            for index, each in enumerate(state):
                path.append(_place(state, index, style))
                plain.append(self._plain(each))
                path.pop()
        self._levels -= 1
        return plain

    def _refusal(self, reason: str) -> UnserializableError:
        path = "".join(_text(label, key) for label, key in self._path)
        if len(path) > 200:
            path = f"{path[:100]}...{path[-100:]}"
        return UnserializableError(path, reason)


# How a part is called, by what it is of the value around it.
_ITEM, _FIELD, _ELEMENT, _KEY, _NAMELESS = "[%s]", ".%s", "{%s}", "(key %s)", "%.0s"


def _place(state: list[Any], index: int, style: str) -> tuple[str, Any]:
    """The label of an item of an encoded form, and what to put into it. Turned into text only in a
    refusal."""
    if style == "items":
        return _ITEM, index
    if style == "pairs":
        return (_ITEM, state[index - 1]) if index % 2 else (_KEY, state[index])
    return (_ELEMENT, state[index]) if style == "elements" else (_NAMELESS, "")


def _text(label: str, key: Any) -> str:
    if label == _FIELD:
        return (
            "" if key.startswith("|") else label % key
        )  # a bar: not the user's name but a codec's
    return label % _short(key)


def name_of(value: Any) -> str:
    """What a refused value is called: its type, or its own name if it is a class or a function."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    own = getattr(value, "__qualname__", None)
    return f"{module}{kind.__qualname__}" + (f" {own}" if isinstance(own, str) else "")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__ must not hide the refusal
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
