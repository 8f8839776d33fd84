"""The types of the standard library that are stored exactly, and how. A table; it knows nothing of
user types.

Every decoder gets hostile input sooner or later: it takes only the exact shape its encoder makes,
calls nothing that the bytes name, and must not let a few bytes grow into much memory.
"""

from __future__ import annotations

import re
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from pickle import PicklingError
from typing import Any
from uuid import UUID, SafeUUID

from ..errors import UnknownTypeError
from . import codec
from .class_codecs import check_no_attributes, is_cache
from .codec import Codec, Style

FACTORIES: dict[str | None, type | None] = {
    None: None,
    **{
        cls.__name__: cls
        for cls in (
            bool,
            int,
            float,
            complex,
            str,
            bytes,
            bytearray,
            list,
            tuple,
            dict,
            set,
            frozenset,
        )
    },
}
"""What a stored `defaultdict` may have as its factory."""


# -- mappings: keys of any kind, flat --------------------------------------------------------------


def _flat(value: dict[Any, Any]) -> list[Any]:
    flat: list[Any] = []
    for pair in value.items():
        flat += pair
    return flat


def _pairs(flat: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _flat_alone(value: dict[Any, Any]) -> list[Any]:
    """`_flat` for types that accept attributes, which their contents do not show."""
    check_no_attributes(value)
    return _flat(value)


def _counter(flat: list[Any]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, _pairs(flat))
    return counter


def _flat_defaultdict(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    name = None if factory is None else getattr(factory, "__name__", "?")
    if FACTORIES.get(name, ...) is not factory:
        raise TypeError(f"its default_factory must be None or a built-in type, got {factory!r}")
    return [*_flat(value), name]


# -- numbers and text ------------------------------------------------------------------------------


def _fraction(parts: list[Any]) -> Fraction:
    numerator, denominator = parts
    if type(numerator) is not int or type(denominator) is not int:  # a text could say 1e999999999
        raise TypeError("a fraction must be made of two ints")
    return Fraction(numerator, denominator)


def _complex(parts: list[Any]) -> complex:
    real, imag = parts
    return complex(real, imag)


def _uuid_bytes(value: UUID) -> bytes:
    safe = value.is_safe.value
    return value.bytes if safe is None else value.bytes + _SAFE[safe]


_SAFE = {0: b"\0", -1: b"\xff"}
_SAFE_OF = {b"": SafeUUID.unknown, b"\0": SafeUUID.safe, b"\xff": SafeUUID.unsafe}


def _address_text(value: Any) -> str:
    """An address or network as text, which must be all of it."""
    cls = type(value)
    for name in getattr(value, "__dict__", ()):
        if name not in _ADDRESS_PARTS and not is_cache(cls, name):
            raise TypeError(f"it has an attribute of its own: {name!r}")
    return str(value)


_ADDRESS_PARTS = frozenset(
    name
    for some in (IPv4Interface("0.0.0.0"), IPv6Interface("::"))
    for name in (*vars(some), *vars(some.network))
)


def _pattern_parts(value: re.Pattern[Any]) -> list[Any]:
    if value.flags & re.DEBUG:
        raise TypeError("it is compiled with re.DEBUG")
    return [value.pattern, value.flags]


def _pattern(parts: list[Any]) -> re.Pattern[Any]:
    source, flags = parts
    if type(source) not in (str, bytes) or type(flags) is not int or flags & re.DEBUG:
        raise TypeError("not a pattern")
    try:
        return re.compile(source, flags)
    except RecursionError as exc:
        raise ValueError("a pattern that nests too deeply") from exc


# -- time ------------------------------------------------------------------------------------------


def _datetime_parts(value: datetime) -> list[Any]:
    parts = [
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
    ]
    return parts if value.tzinfo is None and not value.fold else [*parts, value.tzinfo, value.fold]


def _datetime(parts: list[Any]) -> datetime:
    year, month, day, hour, minute, second, microsecond, *zone = parts
    tz, fold = zone or (None, 0)
    return datetime(year, month, day, hour, minute, second, microsecond, tz, fold=fold)


def _date(parts: list[Any]) -> date:
    year, month, day = parts  # exactly three: with one, `date` would take raw bytes unchecked
    return date(year, month, day)


def _time(parts: list[Any]) -> time:
    hour, minute, second, microsecond, tz, fold = parts
    return time(hour, minute, second, microsecond, tz, fold=fold)


def _zone_key(value: zoneinfo.ZoneInfo) -> str:
    try:
        value.__reduce__()
    except PicklingError:  # its rules need not be those that this machine knows under its key
        raise TypeError("it was read from a file") from None
    return value.key


@cache
def _list_zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


@lru_cache(1000)
def _has_zone(key: str) -> bool:
    plain = re.fullmatch(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", key)
    return bool(plain) and (
        any(Path(folder, key).is_file() for folder in zoneinfo.TZPATH) or key in _list_zones()
    )


def _zone(key: str) -> zoneinfo.ZoneInfo:
    # ZoneInfo(key) alone would import a submodule of `tzdata` by a name made from the key.
    if not _has_zone(key):
        raise UnknownTypeError(key, "the time zone data of this machine has no such zone")
    return zoneinfo.ZoneInfo(key)


# -- the table -------------------------------------------------------------------------------------

def _exact(
    code: int,
    cls: type,
    stored: type,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    style: Style = "value",
) -> Codec:
    """The codec of a built-in type, whose encoded form is of exactly the type `stored`."""

    def check_and_decode(state: Any) -> Any:
        if type(state) is not stored:
            raise TypeError(
                f"{cls.__name__} is stored as {stored.__name__}, found {type(state).__name__}"
            )
        return decode(state)

    return Codec(cls, encode, check_and_decode, style, code, cls.__name__)


_CODECS = [
    _exact(codec.TUPLE, tuple, list, list, tuple, "items"),
    _exact(codec.MAP, dict, list, _flat, lambda flat: dict(_pairs(flat)), "pairs"),
    _exact(
        codec.BIG_INT,
        int,
        bytes,
        lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True),
        lambda data: int.from_bytes(data, "big", signed=True),
    ),
    _exact(
        codec.TEXT,
        str,
        bytes,
        lambda text: text.encode("utf-8", "surrogatepass"),
        lambda data: data.decode("utf-8", "surrogatepass"),
    ),
    _exact(codec.BYTEARRAY, bytearray, bytes, bytes, bytearray),
    _exact(codec.SET, set, list, list, set, "elements"),
    _exact(codec.FROZENSET, frozenset, list, list, frozenset, "elements"),
    # The length limit comes last, so that items keep their index in error paths.
    _exact(
        codec.DEQUE,
        deque,
        list,
        lambda d: [*d, d.maxlen],
        lambda s: deque(s[:-1], s[-1]),
        "items",
    ),
    _exact(codec.DATETIME, datetime, list, _datetime_parts, _datetime),
    _exact(codec.DATE, date, list, lambda d: [d.year, d.month, d.day], _date),
    _exact(
        codec.TIME,
        time,
        list,
        lambda t: [t.hour, t.minute, t.second, t.microsecond, t.tzinfo, t.fold],
        _time,
    ),
    _exact(
        codec.TIMEDELTA,
        timedelta,
        list,
        lambda d: [d.days, d.seconds, d.microseconds],
        lambda s: timedelta(*s),
    ),
    _exact(
        codec.TIMEZONE,
        timezone,
        list,
        lambda zone: [*zone.__getinitargs__()],
        lambda s: timezone(*s),
    ),
    _exact(codec.ZONE, zoneinfo.ZoneInfo, str, _zone_key, _zone),
    _exact(
        codec.UUID_,
        UUID,
        bytes,
        _uuid_bytes,
        lambda data: UUID(bytes=data[:16], is_safe=_SAFE_OF[data[16:]]),
    ),
    _exact(codec.FRACTION, Fraction, list, lambda f: [f.numerator, f.denominator], _fraction),
    _exact(codec.COMPLEX, complex, list, lambda c: [c.real, c.imag], _complex),
    _exact(codec.RANGE, range, list, lambda r: [r.start, r.stop, r.step], lambda s: range(*s)),
    _exact(codec.PATTERN, re.Pattern, list, _pattern_parts, _pattern),
    _exact(
        codec.ORDERED_DICT,
        OrderedDict,
        list,
        _flat_alone,
        lambda s: OrderedDict(_pairs(s)),
        "pairs",
    ),
    _exact(
        codec.DEFAULT_DICT,
        defaultdict,
        list,
        _flat_defaultdict,
        lambda s: defaultdict(FACTORIES[s.pop()], _pairs(s)),
        "pairs",
    ),
    _exact(codec.COUNTER, Counter, list, _flat_alone, _counter, "pairs"),
    *(
        _exact(code, cls, str, str, cls)
        for code, cls in (
            (codec.DECIMAL, Decimal),
            (codec.PURE_POSIX_PATH, PurePosixPath),
            (codec.POSIX_PATH, PosixPath),
            (codec.PURE_WINDOWS_PATH, PureWindowsPath),
            (codec.WINDOWS_PATH, WindowsPath),
        )
    ),
    *(
        _exact(code, cls, str, _address_text, cls)
        for code, cls in (
            (codec.IPV4, IPv4Address),
            (codec.IPV6, IPv6Address),
            (codec.IPV4_NETWORK, IPv4Network),
            (codec.IPV6_NETWORK, IPv6Network),
            (codec.IPV4_INTERFACE, IPv4Interface),
            (codec.IPV6_INTERFACE, IPv6Interface),
        )
    ),
]

BY_TYPE: dict[type, Codec] = {each.cls: each for each in _CODECS}
BY_CODE: dict[int, Codec] = {each.code: each for each in _CODECS}
