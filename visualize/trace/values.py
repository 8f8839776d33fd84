"""Converts any value to short text that is safe to show: never raises, however odd the value; never
exceeds the requested length. Also counts and durations in words.

Compares and draws nothing. The text is safe for readers and for XML (no control or direction marks,
no surrogates), but not escaped for HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from ...pregel.names import DEFAULT_HANDLER, NS_END, START, handler_name
from ..labels import visible

INSIDE = " \u203a "  # between the names of a node and of a node in its nested graph
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SPOKEN = {START: "input", handler_name(""): "on error of", DEFAULT_HANDLER: "on error"}
_LINE = 110
_PARTED = (dict, list, tuple, str)
_ITEMS = 200
_DEPTH = 12


def format_value(value: Any, limit: int = 200) -> str:
    """Return a value on one line, as Python writes it, with at most about `limit` characters.

    >>> format_value({"a": [1, 2.5, None]})
    "{'a': [1, 2.5, None]}"
    >>> format_value("x" * 1_000_000, 20)
    "'xxxxxxxxxx… (1,000,000 characters)'"
    """
    if isinstance(value, str):
        return quote(value, limit)
    writer = _Writer(limit)
    try:
        writer.write(value, 0)
    except _FullError:
        pass
    return "".join(writer.parts)


def format_key(key: Any) -> str:
    """Return a key of a dict as a name."""
    return sanitize(key, 80) if isinstance(key, str) and key else format_value(key, 80)


def quote(text: str, limit: int = 200) -> str:
    """Return a string in quotes, shortened."""
    if len(text) <= limit:
        return repr(str(text))
    kept = repr(text[: max(limit - 10, 8)])
    return f"{kept[:-1]}… ({len(text):,} characters){kept[-1]}"


def sanitize(text: str, limit: int = 2000) -> str:
    """Return a text without marks that could upset a terminal or change the reading direction,
    shortened."""
    kept = visible(text[:limit])
    return kept if len(text) <= limit else f"{kept}… ({len(text):,} characters)"


def block(value: Any, limit: int = 4000) -> str:
    """Return a value with at most about `limit` characters, over several lines if one is not
    enough; texts line by line.

    >>> print(block({"name": "n" * 60, "log": [{"text": "t" * 50}, {"text": "done"}]}))
    name: 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn'
    log: [{'text': 'tttttttttttttttttttttttttttttttttttttttttttttttttt'}, {'text': 'done'}]
    """
    lines: list[str] = []
    room = limit
    for line in _lines(value, "", "", limit):
        lines.append(line)
        room -= len(line) + 1
        if room < 0:
            lines.append("…")
            break
    return "\n".join(lines)


def _lines(value: Any, name: str, indent: str, limit: int) -> Iterator[str]:
    """Yield the lines of a value; `name` precedes the first."""
    kind = type(value)
    if kind is str and not name:
        yield sanitize(value, limit)
        return
    whole = format_value(value, _LINE)
    fits = len(whole) < _LINE
    if (fits and "…" not in whole) or _is_flat(value) or len(indent) > 2 * _DEPTH:
        yield f"{indent}{name}{whole if fits else format_value(value, limit)}"
        return
    if name:
        yield f"{indent}{name.rstrip()}"
        indent += "  "
    if kind is dict:
        for key, item in value.items():
            label = sanitize(key, 80) if isinstance(key, str) else format_value(key, 80)
            yield from _lines(item, f"{label}: ", indent, limit)
    else:
        for item in value:
            yield from _lines(item, "- ", indent, limit)


def _is_flat(value: Any) -> bool:
    """Return whether it is not a container, or is a list of items without parts."""
    if type(value) not in (dict, list, tuple):
        return True
    return type(value) is not dict and not any(isinstance(i, _PARTED) for i in value[:_ITEMS])


def display_name(node: str) -> str:
    """Return a node's name in words; of a nested node, the last part.

    >>> names = ("plan", "holder:plan", "__start__", "__error_handler__plan")
    >>> [display_name(name) for name in names]
    ['plan', 'plan', 'input', 'on error of plan']
    """
    name = sanitize(node.rpartition(NS_END)[2], 200)
    for start, words in _SPOKEN.items():
        if name.startswith(start):
            rest = name.removeprefix(start)
            return f"{words} {rest}" if rest else words.removesuffix(" of")
    return name


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> [duration(s) for s in (0, 0.0000042, 0.0123, 1.5, 75, 4000, 200000)]
    ['0 s', '4 µs', '12 ms', '1.5 s', '1 min 15 s', '1 h 7 min', '2 d 8 h']
    """
    if seconds < 0.0000005:
        return "0 s"
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 999.5e-3:
        value = seconds * 1e3
        return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"
    if seconds < 59.5:
        return f"{seconds:.2f} s" if seconds < 1.2 else f"{seconds:.1f} s".replace(".0 ", " ")
    big, small, size, part, _ = next(unit for unit in _LONG_UNITS if seconds < unit[-1])
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole:,} {big} {rest} {small}" if rest else f"{whole:,} {big}"


_LONG_UNITS = (
    ("min", "s", 60, 1, 3600.0),
    ("h", "min", 3600, 60, 86400.0),
    ("d", "h", 86400, 3600, inf),
)
"""A unit and its smaller one, their seconds, and the number of seconds from which the next unit is
used."""


def count_noun(count: int, word: str, plural: str = "") -> str:
    """Return a count with its noun: `1 step`, `2 steps`."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


class _FullError(Exception):
    """No room is left."""


class _Writer:
    """Collects pieces of text until there is no room."""

    def __init__(self, room: int) -> None:
        self.parts: list[str] = []
        self.room = room

    def put(self, text: str) -> None:
        if len(text) > self.room:
            self.parts.append(text[: max(self.room, 0)] + "…")
            raise _FullError
        self.room -= len(text)
        self.parts.append(text)

    def write(self, value: Any, depth: int) -> None:
        try:
            self._write(value, depth)
        except _FullError:
            raise
        except Exception:  # a foreign __repr__, __len__, … may raise anything
            self._put_visible(f"<{type(value).__name__}>")

    def _write(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind is str:
            self.put(quote(value, max(self.room, 8)))
        elif kind in (bytes, bytearray) and len(value) > 40:
            self.put(f"<{len(value):,} bytes>")
        elif kind in _BRACKETS and value:
            if depth < _DEPTH:
                self._container(value, depth)
            else:
                self.put("…")
        elif isinstance(value, BaseException):
            self._put_visible(f"{kind.__name__}: {value}" if str(value) else kind.__name__)
        else:
            # Without the memory address, which is useless and differs every time.
            self._put_visible(_ADDRESS.sub("", repr(value)))

    def _put_visible(self, text: str) -> None:
        self.put(sanitize(text, max(self.room, 8) + 40))

    def _container(self, value: Any, depth: int) -> None:
        before, after = _BRACKETS[type(value)]
        self.put(before)
        for position, item in enumerate(_ordered(value)):
            if position:
                self.put(", ")
            if position == _ITEMS:
                self.put(f"… {len(value):,} in all")
                break
            self.write(item, depth + 1)
            if isinstance(value, Mapping):
                self.put(": ")
                self.write(value[item], depth + 1)
        self.put(",)" if before == "(" and len(value) == 1 else after)


_BRACKETS: dict[type, tuple[str, str]] = {
    dict: ("{", "}"),
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("{", "}"),
}


def _ordered(value: Iterable[Any]) -> Iterable[Any]:
    """Return items in a stable order: sets have none, but their text must not change from run to
    run."""
    if isinstance(value, set | frozenset) and len(value) <= _ITEMS:
        return sorted(value, key=lambda item: format_value(item, 60))
    return value
