"""Cache keys: a hash that is the same for equal values, in every process, and different for others.

A value is written in a canonical form (maps and sets sorted, every scalar with its type), a
function as its name and source. A value without such a form is refused by name, never guessed. Pure
functions, independent of any cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from inspect import getsource
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn
from weakref import ref

from .digest import blake2b

_MAX_DEPTH = 100


def canonical_key(value: Any) -> str:
    """Return the hash of a value's canonical form: equal for equal values, whatever the order of
    their maps and sets.

    Raises:
        TypeError: something in the value has no canonical form; the text names the place.

    >>> canonical_key({"a": 1, "b": {2, 3}}) == canonical_key({"b": {3, 2}, "a": 1})
    True
    >>> canonical_key(1) == canonical_key(True)
    False
    """
    return _digest(_Encoder().encode(value))


def function_identity(fn: Callable[..., Any]) -> str:
    """Return a function's or class's name and a hash of its source.

    Raises:
        TypeError: several functions may have this name and source: it is a lambda, has a closure or
            is bound to an object; or its source cannot be read.

    >>> from textwrap import dedent, indent
    >>> function_identity(dedent) == function_identity(indent)
    False
    >>> function_identity(lambda x: x)
    Traceback (most recent call last):
    TypeError: a lambda has no name: give the cache policy a key_func, or cache a named function
    """
    if not isinstance(fn, (FunctionType, type)):
        _refuse_function(f"{fn!r} is neither a Python function nor a class")
    name = _name(fn)
    is_local = "<locals>" in name
    if fn.__name__ == "<lambda>":
        _refuse_function("a lambda has no name")
    if isinstance(fn, type) and is_local:
        _refuse_function(f"{name} is a class inside a function")
    if isinstance(fn, FunctionType) and fn.__closure__:
        _refuse_function(f"{name} has a closure ({', '.join(fn.__code__.co_freevars)})")
    if isinstance(fn, FunctionType) and is_local and (fn.__defaults__ or fn.__kwdefaults__):
        _refuse_function(f"{name} has defaults and is defined inside a function")
    try:
        source = getsource(fn)
    except (OSError, TypeError):
        _refuse_function(f"the source of {name} cannot be read")
    return f"{name}:{_digest(_text(source))}"


def _refuse_function(why: str) -> NoReturn:
    raise TypeError(f"{why}: give the cache policy a key_func, or cache a named function")


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _pack(tag: bytes, *parts: bytes) -> bytes:
    # Every length is written, so that no two lists of parts make the same bytes.
    written = [b"%d:%s" % (len(part), part) for part in parts]
    return b"%s%d(%s" % (tag, len(parts), b"".join(written))


def _text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _float(number: float) -> bytes:
    # Any NaN is one key, though no two of them are equal and their bits may differ.
    return b"nan" if number != number else struct.pack(">d", number)


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    type(...): lambda _: b"E",
    bool: lambda value: b"T" if value else b"F",
    int: lambda value: _pack(b"i", b"%x" % value),
    float: lambda value: _pack(b"f", _float(value)),
    complex: lambda value: _pack(b"c", _float(value.real), _float(value.imag)),
    str: lambda value: _pack(b"s", _text(value)),
    bytes: lambda value: _pack(b"b", value),
    bytearray: lambda value: _pack(b"a", bytes(value)),
}

# Their repr says all of them. By name, so that none of their modules need be imported.
_BY_REPR = {
    "builtins": {"range"},
    "datetime": {"date", "time", "datetime", "timedelta", "timezone"},
    "zoneinfo": {"ZoneInfo"},
    "uuid": {"UUID"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
}


_REDUCERS = ("__reduce__", "__reduce_ex__")


class _Encoder:
    """Writes one value. `trail` is the way down to where it is now, `within` the objects on that
    way.
    """

    def __init__(self) -> None:
        self.trail: list[tuple[str, object]] = []  # made into text only for a refusal
        self.within: dict[int, int] = {}

    def encode(self, value: Any) -> bytes:
        scalar = _SCALARS.get(type(value))
        if scalar:
            return scalar(value)
        if id(value) in self.within:
            return _pack(
                b"^", b"%d" % self.within[id(value)]
            )  # an object within itself: name the level
        if len(self.within) >= _MAX_DEPTH:
            self.refuse(f"is nested deeper than {_MAX_DEPTH}")
        self.within[id(value)] = len(self.within)
        data = self.compound(value)
        del self.within[id(value)]
        return data

    def at(self, value: Any, form: str, step: object = None) -> bytes:
        self.trail.append((form, step))
        data = self.encode(value)
        self.trail.pop()
        return data

    def compound(self, value: Any) -> bytes:
        kind = type(value)
        if kind in (list, tuple):
            items = [self.at(item, "[{}]", index) for index, item in enumerate(value)]
            return _pack(b"l" if kind is list else b"t", *items)
        if kind is dict:
            return self.map(value)
        if kind in (set, frozenset):
            return _pack(
                b"S" if kind is set else b"Z",
                *sorted(self.at(item, "{{{!r}}}", item) for item in value),
            )
        if isinstance(value, Enum):
            return _pack(b"e", _text(_name(kind)), self.encode(value.name or value.value))
        if isinstance(value, ModuleType):
            return _pack(b"M", _text(value.__name__))
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
            return self.named(value)
        if kind.__qualname__ in _BY_REPR.get(kind.__module__.partition(".")[0], ()):
            return self.by_repr(value)
        return self.instance(value)

    def by_repr(self, value: Any) -> bytes:
        text = repr(value)
        if " at 0x" in text:  # a time zone without a repr of its own
            self.refuse(f"is {text}, which tells an address and not a value")
        return _pack(b"r", _text(_name(type(value))), _text(text))

    def map(self, value: dict[Any, Any]) -> bytes:
        pairs = [
            (self.at(key, ".keys()"), self.at(item, "[{!r}]", key)) for key, item in value.items()
        ]
        return _pack(b"m", *(part for pair in sorted(pairs) for part in pair))

    def named(self, value: Any) -> bytes:
        name = f"{value.__module__}.{value.__qualname__}"
        bound = getattr(value, "__self__", None)
        if "<" in name or not (bound is None or isinstance(bound, (type, ModuleType))):
            self.refuse(f"is {name}, which its name does not tell from others")
        return _pack(b"C", _text(name))

    def instance(self, value: Any) -> bytes:
        """An object whose whole state Python itself can see: attributes, slots, and what its base
        type holds."""
        from pickle import PicklingError

        kind = type(value)
        if hasattr(
            kind, "__pydantic_private__"
        ):  # which fields were set by hand does not count for equality
            state = (vars(value), value.__pydantic_extra__, value.__pydantic_private__)
            return _pack(b"I", _text(_name(kind)), self.encode(state))
        taken_over = any(getattr(kind, name) is not getattr(object, name) for name in _REDUCERS)
        if kind is object or taken_over:
            self.refuse(f"is a {_name(kind)}, which has no canonical form")
        try:
            _, (_, *given), state, items, pairs = (*value.__reduce_ex__(2), None, None, None)[:5]
        except (
            TypeError,
            PicklingError,
        ):  # the second from what says itself why it cannot be pickled
            self.refuse(f"is a {_name(kind)}, whose state cannot be seen")
        held = (given, state, items and list(items), pairs and dict(pairs))
        return _pack(b"I", _text(_name(kind)), *map(self.encode, held))

    def refuse(self, why: str) -> NoReturn:
        place = "".join(form.format(step) for form, step in self.trail)
        raise TypeError(f"value{place} {why}; pass a key_func to the cache policy")


# -- keys that never come twice --------------------------------------------------------------------

MANY_RUNS = 20
"""After so many runs with another input each, a cache probably does not help."""


class KeyWatch:
    """Looks at the keys of one node until one comes twice, and says so if none does.

    Args:
        name: the node's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._keys: set[str] = set()
        self._runs = 0
        self._run: ref[Any] | None = None
        self._input: Any = None
        self.done: bool = False

    def look(self, key: str, value: Any, run: Any) -> str | None:
        """Note one call: the input's key, the input, and something that only this run has. Return a
        sentence if it is time to say that no key comes twice; None otherwise."""
        if key in self._keys:
            self.done = True
            return None
        self._keys.add(key)
        if self._run is not None and self._run() is run:
            return None  # of many tasks of one run each may have an input of its own
        self._run, self._runs = ref(run), self._runs + 1
        if self._runs == MANY_RUNS - 1:
            self._input = value
        if self._runs < MANY_RUNS:
            return None
        what = ", ".join(map(repr, _differing(self._input, value))) or "all of it"
        self.done, self._input = True, None
        return (
            f"the cache of node {self._name!r} has never been hit: its input is another one in "
            f"each of {MANY_RUNS} runs: {what} changes. Give its CachePolicy a key_func that makes "
            "the key only from what the result depends on"
        )


def _differing(one: Any, two: Any) -> list[str]:
    """Return the keys under which two inputs differ."""
    if type(one) is not dict or type(two) is not dict:
        return []
    return [
        key for key in two if key not in one or canonical_key(one[key]) != canonical_key(two[key])
    ]
