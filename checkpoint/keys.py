"""Cache keys: a hash that is the same for equal values, in every process, and different for others.

A value is written in a canonical form (maps and sets sorted, every scalar with its type), a
function as its name, its code and everything it holds. A value without such a form is refused by
name, never guessed. Pure functions, independent of any cache.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
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
    return _digest(
        _Encoder("value", "pass a key_func to the cache policy", code_counts=False).encode(value)
    )


def function_identity(fn: Callable[..., Any]) -> str:
    """Return a function's name and a hash of its code, defaults, closure and, for a bound method or
    a callable object, of the object's state. Two closures of one factory differ if anything they
    hold differs.

    Module globals that the code names do not count.

    Raises:
        TypeError: something that the function holds has no canonical form, so functions that hold
            different values could not be distinguished.

    >>> def twice(factor): return lambda x: x * factor
    >>> function_identity(twice(2)) == function_identity(twice(3))
    False
    """
    if type(fn) is FunctionType and not (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__):
        return _identify(_name(fn), fn.__code__)
    name = _name(fn if hasattr(fn, "__qualname__") else type(fn))
    advice = (
        "its results cannot be told from others': give its cache policy a key_func or a namespace"
    )
    return f"{name}:{_digest(_Encoder(name, advice, code_counts=True).callable(fn))}"


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

    With `code_counts` the value is a function: what objects do counts, not only what they hold, so
    a class that its name does not tell from others is refused.
    """

    def __init__(self, root: str, advice: str, *, code_counts: bool) -> None:
        self.root = root
        self.advice = advice
        self.code_counts = code_counts
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
            return _pack(b"e", self.kind(value), self.encode(value.name or value.value))
        if isinstance(value, (type, ModuleType)):
            return self.named(value)
        if kind.__qualname__ in _BY_REPR.get(kind.__module__.partition(".")[0], ()):
            return self.by_repr(value)
        return self.code_like(value)

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

    def kind(self, value: Any) -> bytes:
        if self.code_counts:
            return self.named(type(value))
        return _text(_name(type(value)))

    def named(self, value: Any) -> bytes:
        if isinstance(value, ModuleType):
            return _pack(b"M", _text(value.__name__))
        if "<locals>" in value.__qualname__:
            self.refuse(
                f"is of {value.__qualname__}, a class that its name does not tell from others"
            )
        return _pack(b"C", _text(_name(value)))

    def code_like(self, value: Any) -> bytes:
        if isinstance(value, CodeType):
            return _encode_code(value)
        if isinstance(value, CellType):
            return self.cell(value)
        if isinstance(value, FunctionType):
            return self.function(value)
        if isinstance(value, MethodType):
            return _pack(
                b"B", self.at(value.__self__, ".__self__"), self.at(value.__func__, ".__func__")
            )
        if isinstance(value, (MethodDescriptorType, WrapperDescriptorType)):
            return _pack(b"D", self.encode(value.__objclass__), _text(value.__name__))
        if isinstance(value, BuiltinFunctionType):
            return _pack(b"P", self.at(value.__self__, ".__self__"), _text(value.__qualname__))
        if type(value) is partial:
            return _pack(b"p", self.encode((value.func, value.args, value.keywords)))
        return self.instance(value)

    def callable(self, value: Any) -> bytes:
        """A function, or an object with the code by which it is called."""
        data = self.encode(value)
        if isinstance(value, (type, FunctionType, MethodType, BuiltinFunctionType, partial)):
            return data
        methods = (getattr(type(value), name, None) for name in ("__call__", "invoke", "ainvoke"))
        return _pack(
            b"X", data, *(self.function(code) for code in methods if isinstance(code, FunctionType))
        )

    def function(self, value: FunctionType) -> bytes:
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return _pack(
            b"L",
            _text(_name(value)),
            self.at(value.__code__, ".__code__"),
            self.at(value.__defaults__, ".__defaults__"),
            self.at(value.__kwdefaults__, ".__kwdefaults__"),
            *(self.at(cell, ".<closure {}>", name) for name, cell in cells),
        )

    def cell(self, value: CellType) -> bytes:
        try:
            held = value.cell_contents
        except ValueError:  # not filled yet
            return _pack(b"o")
        return _pack(b"O", self.encode(held))

    def instance(self, value: Any) -> bytes:
        """An object whose whole state Python itself can see: attributes, slots, and what its base
        type holds."""
        from pickle import PicklingError

        kind = type(value)
        if hasattr(
            kind, "__pydantic_private__"
        ):  # which fields were set by hand does not count for equality
            state = (vars(value), value.__pydantic_extra__, value.__pydantic_private__)
            return _pack(b"I", self.kind(value), self.encode(state))
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
        return _pack(b"I", self.kind(value), *map(self.encode, held))

    def refuse(self, why: str) -> NoReturn:
        place = "".join(form.format(step) for form, step in self.trail)
        raise TypeError(f"{self.root}{place} {why}; {self.advice}")


@lru_cache(maxsize=1024)
def _identify(name: str, code: CodeType) -> str:
    """The identity of a function that holds nothing, as `_Encoder.function` would make it."""
    nothing = _SCALARS[type(None)](None)
    return f"{name}:{_digest(_pack(b'L', _text(name), _encode_code(code), nothing, nothing))}"


@lru_cache(maxsize=1024)
def _encode_code(value: CodeType) -> bytes:
    """What a function does; not what it holds. Kept, since code never changes and this is most of
    the work for a key (benchmark P29)."""
    encoder = _Encoder(value.co_qualname, "", code_counts=True)
    shape = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
    names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
    return _pack(
        b"K",
        # Not the line numbers: a function that has moved in its file is the same.
        value.co_code,
        value.co_exceptiontable,
        encoder.encode(shape),
        encoder.encode(names),
        encoder.encode(value.co_consts),
    )


# -- keys that never come twice --------------------------------------------------------------------

FEW_CALLS = 3
"""After so many calls with another function each, or with one that holds something else, a cache
cannot help."""

MANY_RUNS = 20
"""After so many runs with another input each, it probably does not."""


class KeyWatch:
    """Looks at the keys of one node until one comes twice, and says so if none does.

    Args:
        name: the node's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._functions: list[str] = []
        self._held: dict[str, str] = {}
        self._keys: set[str] = set()
        self._runs = 0
        self._run: ref[Any] | None = None
        self._input: Any = None
        self.done: bool = False

    def look(
        self, function: str, fn: Callable[..., Any], key: str, value: Any, run: Any
    ) -> str | None:
        """Note one call: the function's identity, the function, the input's key, the input, and
        something that only this run has. A sentence if it is time to say that no key comes twice;
        None otherwise."""
        new = function not in self._functions
        if new:
            self._functions.append(function)
            held, self._held = self._held, _parts_of(fn)
            if len(self._functions) == FEW_CALLS:
                changed = [name for name, part in self._held.items() if held.get(name) != part]
                what = _list_names(changed)
                return self._end(
                    f"its function is another one at each call: what changes is {what}"
                )
        if len(self._functions) > 1 or key in self._keys:
            self.done = not new  # or else it may be another one at the next call, too
            return None
        if self._run is not None and self._run() is run:
            self._keys.add(key)  # of many tasks of one run each may have an input of its own
            return None
        self._run, self._runs = ref(run), self._runs + 1
        if self._runs == MANY_RUNS:
            what = _list_names(_differing(self._input, value))
            return self._end(
                f"its input is another one in each of {MANY_RUNS} runs: {what} changes"
            )
        self._keys.add(key)
        if self._runs == MANY_RUNS - 1:
            self._input = value
        return None

    def _end(self, reason: str) -> str:
        self.done, self._input = True, None
        return (
            f"the cache of node {self._name!r} has never been hit: {reason}. Give its CachePolicy "
            "a key_func that makes the key only from what the result depends on"
        )


def _parts_of(fn: Any) -> dict[str, str]:
    """What a function holds, by name, each as a hash; what has none is left out."""
    held: dict[str, Any] = {}
    if isinstance(fn, MethodType):
        fn, held = fn.__func__, dict(getattr(fn.__self__, "__dict__", {}))
    elif isinstance(fn, partial):
        held = {f"argument {number}": each for number, each in enumerate(fn.args)} | dict(
            fn.keywords
        )
    elif not isinstance(fn, FunctionType):
        held = dict(getattr(fn, "__dict__", {}))
    if isinstance(fn, FunctionType):
        cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        held |= {"its defaults": fn.__defaults__, **dict(cells)}
    parts = {}
    for name, each in held.items():
        try:
            parts[name] = _digest(_Encoder(name, "", code_counts=True).encode(each))
        except TypeError:
            continue
    return parts


def _differing(one: Any, two: Any) -> list[str]:
    """The keys under which two inputs differ."""
    if type(one) is not dict or type(two) is not dict:
        return []
    return [
        key for key in two if key not in one or canonical_key(one[key]) != canonical_key(two[key])
    ]


def _list_names(names: list[str]) -> str:
    return ", ".join(map(repr, names)) or "all of it"
