"""Values ↔ bytes. Strict: a value that would not come back equal and of the same type is refused
when it is stored.

This module holds the format, its fast path and, in `StrictEncoder`, its slow one. The codecs of
each type are in `*_codecs`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..errors import DamagedError, UnknownTypeError, UnserializableError
from .class_codecs import plain_text
from .codec import (
    BIG_INT,
    ERROR,
    FREE_OBJECTS,
    MAP,
    MAX_NESTING,
    MAX_OBJECTS,
    OBJECT,
    TEXT,
    Codec,
    is_text,
    key_of,
)
from .delta import Blob
from .error_codec import BUILTIN_ERRORS, describe, open_chain, parts_of, restore
from .library_codecs import find_codec, find_codec_named, loading_advice
from .msgpack import OPTIONS, Ext, packb, unpackb
from .registry import DEFAULT, AnyClass, Encode, Registry
from .schema_types import classes_in

if TYPE_CHECKING:
    from .list_encoder import ListEncoder

FORMAT = "msgpack"

_NONE: Blob = (FORMAT, b"\xc0")
_NO_LINKS = [None, None, False]


class _Hooks(dict[int, Any]):
    """A hook by its level, made when it is first needed: few values nest, and every compiled graph
    has a serializer."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def __missing__(self, level: int) -> Any:
        made = self[level] = partial(self._hook, level)
        return made


# The packer drops what a hook raised and reports its own error; here the true one waits, per
# thread.
_raised = threading.local()


class Serializer:
    """Turns values into bytes and back.

    Stored exactly: None, bool, int, float, str, bytes, bytearray, list, tuple, dict (any keys),
    set, frozenset, deque, OrderedDict, defaultdict, Counter, datetime and its kin, UUID, Decimal,
    Fraction, complex, range, paths, patterns, IP addresses, exceptions, and every registered
    dataclass, enum, named tuple, pydantic model, subclass of `str` or class with an encoder of its
    own; and, where the program has loaded these libraries, arrays and scalars of NumPy and messages
    and documents of LangChain. Anything else, a subclass of one of these included, is refused.

    Equality is preserved, identity is not: a list that occurs twice in a value comes back as two
    equal lists. A text of a subclass of `str` that is not registered is stored as `str`, with a
    warning, if it has no attributes of its own; LangChain's `message.text` without one. A
    `cached_property` is computed again. An exception is never refused: one that cannot be stored as
    it is comes back as a `StoredError`; its traceback, and an `AttributeError`'s `obj`, are not
    stored.

    Args:
        registry: the registry of types that are not registered on this serializer; the global one
            by default.

    >>> serializer = Serializer()
    >>> serializer.loads(serializer.dumps({"point": (1, 2), 3: {"x"}}))
    {'point': (1, 2), 3: {'x'}}
    >>> serializer.dumps({"a": [print]})  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    UnserializableError: at ['a'][0]: cannot store builtin_function_or_method print; ...
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = Registry(DEFAULT if registry is None else registry)
        self._teachers: WeakSet[Serializer] = WeakSet()
        # One hook per level of objects, so that depth is known without a counter that threads would
        # share.
        self._encoders = _Hooks(self._encode)
        self._decoders = _Hooks(self._decode)
        self._encoder = self._encoders[0]
        self._decoder = self._decoders[0]

    # Deferred: these tables load a dozen standard modules, and many graphs store nothing but what
    # the packer knows (benchmark P26).

    @cached_property
    def _by_type(self) -> dict[type, Codec]:
        from .builtin_codecs import BY_TYPE

        return BY_TYPE

    @cached_property
    def _by_code(self) -> dict[int, Codec]:
        from .builtin_codecs import BY_CODE

        return BY_CODE

    # -- the face ----------------------------------------------------------------------------------

    def dumps(self, value: Any) -> Blob:
        """The value as bytes.

        Raises:
            UnserializableError: the value would not come back the same; the text names the place
                inside it.
        """
        if value is None:
            return _NONE
        try:
            payload = packb(value, self._encoder, OPTIONS)
        except TypeError:
            payload = self._pack_strictly(value, 0)
        else:
            # These open packed bytes. Only where one occurs can a bytearray have been taken for
            # bytes, so most values are not walked through.
            if (196 in payload or 197 in payload or 198 in payload) and _has_mutable_bytes(value):
                payload = self._pack_strictly(value, 0)
        return FORMAT, payload

    def loads(self, blob: Blob) -> Any:
        """Return the value that was given to `dumps`.

        Raises:
            UnknownTypeError: the value holds a type that is not registered here.
            DamagedError: the bytes are not what `dumps` wrote, or no longer fit the class they
                name.
        """
        form, payload = blob
        if form != FORMAT:
            raise DamagedError(f"stored in an unknown format: {form!r}")
        try:
            return unpackb(payload, ext_hook=self._decoder)
        except Exception as exc:
            error = _take_raised() or exc
            if isinstance(
                error, (DamagedError, UnknownTypeError, MemoryError, RecursionError, ImportError)
            ):
                raise error from error.__cause__
            if not isinstance(error, Exception):  # a KeyboardInterrupt that fell into a hook
                raise error from None
            raise DamagedError(f"stored bytes cannot be read: {error}") from error

    def make_list_encoder(self) -> ListEncoder | None:
        """What encodes the values of one channel if they are long lists; None if a subclass has a
        `dumps` of its own."""
        if type(self).dumps is not Serializer.dumps:
            return None
        from .list_encoder import ListEncoder  # few programs have long lists (benchmark P26)

        return ListEncoder(self.dumps, self.find)

    def dumps_typed(self, value: Any) -> Blob:
        """`dumps` under the name other checkpoint libraries use."""
        return self.dumps(value)

    def loads_typed(self, blob: Blob) -> Any:
        """`loads` under the name other checkpoint libraries use."""
        return self.loads(blob)

    def register(
        self,
        cls: AnyClass,
        *,
        encode: Encode | None = None,
        decode: Encode | None = None,
        name: str | None = None,
        subclasses: bool = False,
    ) -> AnyClass:
        """Let instances of exactly this class be stored by this serializer; see
        `Registry.register`."""
        return self._registry.register(
            cls, encode=encode, decode=decode, name=name, subclasses=subclasses
        )

    def learn(self, other: Serializer) -> None:
        """Take over the types that were registered on another serializer, once."""
        if other is not self and other not in self._teachers:
            self._teachers.add(other)
            self._registry.learn(other._registry)

    def register_schema(self, annotation: Any) -> None:
        """Register every dataclass, enum, named tuple, pydantic model and exception that an
        annotation names.

        Walks TypedDicts, dataclasses, models, unions and generics; a hint that cannot be resolved
        is passed over.

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Order:
        ...     id: int
        >>> serializer = Serializer()
        >>> serializer.register_schema(list[Order] | None)
        >>> serializer.loads(serializer.dumps([Order(7)]))
        [Order(id=7)]
        """
        for cls in classes_in(annotation):
            if self.find(cls) is None:
                self._registry.register(cls)

    # -- packing -----------------------------------------------------------------------------------

    def find(self, cls: type) -> Codec | None:
        """How instances of exactly this class are stored, or None."""
        return self._by_type.get(cls) or self._registry.find(cls) or find_codec(cls)

    def _encode(self, level: int, value: Any) -> Ext | str:
        """What the packer calls for anything it does not know: one level of it, the rest by the
        next hook."""
        try:
            if level >= MAX_OBJECTS:
                raise UnserializableError("", TOO_DEEP)
            cls = type(value)
            codec = self._by_type.get(cls) or self._registry.find(cls) or find_codec(cls)
            if isinstance(value, BaseException) and (codec is None or codec.error):
                return Ext(ERROR, self._encode_error(value, level + 1))
            if codec is None:
                text = plain_text(value)
                if text is not None:
                    return text
                raise UnserializableError("", "")  # the strict path will name it
            state = codec.encode(value)
            if codec.code == OBJECT:
                state = [codec.key, state]
            return Ext(codec.code, self._pack(state, level + 1))
        except BaseException as exc:
            _raised.error = exc
            raise

    def _pack(self, state: Any, level: int) -> bytes:
        """`dumps` for what lies inside of objects."""
        try:
            payload = packb(state, self._encoders[level], OPTIONS)
        except TypeError:
            return self._pack_strictly(state, level)
        if (196 in payload or 197 in payload or 198 in payload) and _has_mutable_bytes(state):
            return self._pack_strictly(state, level)
        if level > FREE_OBJECTS:
            _check_nesting(payload)
        return payload

    def _pack_strictly(self, value: Any, level: int) -> bytes:
        """Pack what the fast path did not, or say why it cannot be packed."""
        error = _take_raised()
        if error is not None:
            # Not about the value: the strict path would only meet it again, or swallow a Ctrl-C.
            if isinstance(error, MemoryError) or not isinstance(error, Exception):
                raise error
            if level and isinstance(error, UnserializableError):
                raise error  # only the outermost knows the whole path
        return StrictEncoder(self.find, self._pack_plain, self._encode_error, level).pack(value)

    def _pack_plain(self, plain: Any, level: int) -> bytes:
        """Pack what the strict path has made packable."""
        try:
            payload = packb(plain, None, OPTIONS)
            if level > FREE_OBJECTS:
                _check_nesting(payload)
        except (TypeError, ValueError) as exc:
            raise UnserializableError("", TOO_DEEP) from exc
        return payload

    def _encode_error(self, error: BaseException, level: int) -> bytes:
        with open_chain(error) as (errors, whole, links):
            states = [
                self._error_state(each, level, is_whole)
                for each, is_whole in zip(errors, whole, strict=True)
            ]
        # Most errors have no cause and no context: they are stored without the list of links.
        if links != [_NO_LINKS]:
            return self._pack([*states[0], links, states[1:]], level)
        return self._pack(states[0], level)

    def _error_state(self, error: BaseException, level: int, whole: bool) -> list[Any]:
        codec = self._registry.find(type(error))
        key = codec.key if codec else key_of(type(error))
        packed = b""
        if whole and (codec is not None or key in BUILTIN_ERRORS):
            try:
                packed = self._pack(parts_of(error), level)
            except MemoryError:
                raise
            except Exception:
                _take_raised()  # then only what `describe` tells is kept
        return [*describe(error, key), packed]

    # -- unpacking ---------------------------------------------------------------------------------

    def _decode(self, level: int, code: int, data: bytes) -> Any:
        """What the unpacker calls for each stored object."""
        try:
            if level >= MAX_OBJECTS:
                raise DamagedError("stored bytes cannot be read: objects nested too deeply")
            state = self._unpack(data, level + 1)
            if code == OBJECT:
                return self.decode_object(*state)
            if code == ERROR:
                return restore(state, self._error_class, partial(self._error_parts, level + 1))
            codec = self._by_code.get(code)
            if codec is None:
                raise UnknownTypeError(f"extension {code}", "a newer version may have written it")
            return codec.decode(state)
        except BaseException as exc:
            if getattr(_raised, "error", None) is None:  # else: a deeper hook has failed already
                _raised.error = exc
            raise

    def _unpack(self, data: bytes, level: int) -> Any:
        if level > FREE_OBJECTS:
            _check_nesting(data)
        return unpackb(data, ext_hook=self._decoders[level])

    def _error_parts(self, level: int, packed: bytes) -> Any:
        try:
            return self._unpack(packed, level)
        except ValueError:
            error = _take_raised()
            if error is not None and not isinstance(error, Exception):
                raise error from None
            return None

    def decode_object(self, key: str, state: Any) -> Any:
        """The value of a registered type, of what its codec made of it.

        Raises:
            UnknownTypeError: nothing is registered under this key.
            DamagedError: that cannot be a value of the type.
        """
        codec = self._registry.find_named(key) or find_codec_named(key)
        if codec is None:
            raise UnknownTypeError(key, loading_advice(key))
        try:
            return codec.decode(state)
        except Exception as exc:
            raise DamagedError(
                f"a value stored as {key!r} does not match its class: {exc} "
                "(the class has changed, or the bytes are damaged)"
            ) from exc

    def _error_class(self, key: str) -> type[BaseException] | None:
        codec = self._registry.find_named(key)
        if codec is not None and codec.error:
            return codec.cls
        return BUILTIN_ERRORS.get(key)


def _take_raised() -> BaseException | None:
    error: BaseException | None = getattr(_raised, "error", None)
    _raised.error = None
    return error


def _has_mutable_bytes(value: Any) -> bool:
    """Whether lists and dicts hold a bytearray or memoryview, which the packer would turn into
    bytes unasked."""
    waiting = [value]
    for item in waiting:
        kind = type(item)
        if kind is list:
            waiting += item
        elif kind is dict:
            waiting += item.values()
        elif kind is bytearray or kind is memoryview:
            return True
    return False


# All but the first bytes of lists and dicts.
_NOT_OPENING = bytes(set(range(256)) - {*range(0x80, 0xA0), *range(0xDC, 0xE0)})


def _check_nesting(payload: bytes) -> None:
    """Refuse bytes in which lists and dicts nest deeper than MAX_NESTING.

    Raises:
        ValueError: they do.
    """
    # There are at most as many levels as bytes that may open one: only if these are many look
    # closer.
    if len(payload.translate(None, _NOT_OPENING)) > MAX_NESTING:
        # The unpacker has a limit of its own: with so many levels around it, the payload has few
        # left.
        unpackb(b"\x91" * (_unpacker_limit() - MAX_NESTING) + payload, ext_hook=_skip)


def _skip(code: int, data: bytes) -> None:
    return None


@cache
def _unpacker_limit() -> int:
    """How many levels the unpacker reads before it raises."""
    limit = bisect_left(range(5000), True, key=_is_beyond_limit) - 1
    if limit == 4999:
        raise RuntimeError("this ormsgpack reads any depth: hostile bytes could overflow the stack")
    return limit


def _is_beyond_limit(levels: int) -> bool:
    try:
        unpackb(b"\x91" * levels + b"\xc0")
    except ValueError:
        return True
    return False


# -- strict ----------------------------------------------------------------------------------------
# The slow way to pack a value: step by step, knowing at each step where it is. The packer takes
# only text as keys, takes a bytearray for bytes and does not say where it failed. The serializer
# comes here when it has to: for a dict with other keys, for a bytearray, and to name the place in a
# refusal.

ADVICE = (
    "register the type with stategraph.checkpoint.register, or keep the key out of checkpoints "
    "with UntrackedValue"
)

AWAIT = "await it first, or take its .result()"

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
            return value if is_text(value) else self._ext(TEXT, kind, value)
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
            texts = all(type(key) is str and is_text(key) for key in value)
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
            advice = AWAIT if hasattr(kind, "__await__") else ADVICE
            raise self._refusal(f"cannot store {name_of(value)}; {advice}")
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
