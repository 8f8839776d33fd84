r"""Paths into a stored value: one grammar for filters and for index fields.

A path is keys joined by dots, each followed by any number of `[n]` (negative n counts from the
end). Index fields may also branch: `[*]` every element, `*` every element or every value, `{a,b.c}`
each of these paths; a lone `$` is the whole value. A backslash takes the next character literally;
`escape` does it for a key of any kind. This module holds only the grammar and the walk, no
conditions and no vectors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from ..channels.base import MISSING
from .values import MAX_DEPTH


class Every(Enum):
    """A step to all elements of an array; `*` goes to all values of an object as well."""

    ELEMENT = "[*]"
    CHILD = "*"


@dataclass(frozen=True, slots=True)
class OneOf:
    """A step that goes several ways: `{a,b.c}`."""

    paths: tuple[tuple[Step, ...], ...]


Step = str | int | Every | OneOf
Path = tuple[Step, ...]

_INDEX = re.compile(r"\[(?:(-?[0-9]{1,9})|(\*))\]")
_SPECIAL = re.compile(r"([\\.\[\]{},*$])")


def escape(key: str) -> str:
    r"""Return a key as a path of one step, whatever characters it has.

    >>> escape("a.b")
    'a\\.b'
    """
    return _SPECIAL.sub(r"\\\1", key)


def parse(text: object) -> Path:
    """Read a path.

    Raises:
        ValueError: it is not a string, or does not follow the grammar.

    >>> parse("a.b[-1]")
    ('a', 'b', -1)
    """
    if not isinstance(text, str):
        raise ValueError(f"a path must be a string, got {text!r}")
    if text == "$":
        return ()
    if text.startswith("$"):
        raise ValueError(f"the path {text!r} must not begin with $: write \\$ for a key that does")
    return _PathReader(text).read()


def parse_place(text: object) -> tuple[str | int, ...]:
    """Read the path of a filter: it leads to one place, so it cannot branch.

    Raises:
        ValueError: as `parse`, or it branches, or begins with `$` like an operator.
    """
    if isinstance(text, str) and text.startswith("$"):
        raise ValueError(
            f"unknown operator {text!r} in a filter; write \\$ for a key that begins with $"
        )
    steps = []
    for step in parse(text):
        if not isinstance(step, (str, int)):
            raise ValueError(
                f"the filter path {text!r} must lead to one place; write \\* or \\{{ for a literal "
                "* or {"
            )
        steps.append(step)
    return tuple(steps)


def find(value: Any, path: tuple[str | int, ...]) -> Any:
    """What lies at a path, or `MISSING`.

    >>> find({"a": [1, None]}, ("a", -1)) is None
    True
    """
    for step in path:
        if isinstance(step, str) and isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(step, int) and isinstance(value, list) and -len(value) <= step < len(value):
            value = value[step]
        else:
            return MISSING
    return value


def walk(value: Any, path: Path) -> Iterator[Any]:
    """All that lies at a path, in the order of the value.

    >>> list(walk({"a": [{"b": 1}, {"c": 2}, {"b": 3}]}, parse("a[*].b")))
    [1, 3]
    """
    if not path:
        yield value
        return
    step, rest = path[0], path[1:]
    if isinstance(step, OneOf):
        for way in step.paths:
            yield from walk(value, way + rest)
        return
    for child in _children(value, step):
        yield from walk(child, rest)


def _children(value: Any, step: str | int | Every) -> list[Any]:
    if not isinstance(step, Every):
        found = find(value, (step,))
        if found is MISSING:
            return []
        return [found]
    if isinstance(value, list):  # both `*` and `[*]` take all items
        return value
    if isinstance(value, dict) and step is Every.CHILD:
        return list(value.values())
    return []


@dataclass(eq=False)
class _PathReader:
    """Reads one path from left to right."""

    text: str
    at: int = 0
    depth: int = 0  # inside how many braces

    def read(self) -> Path:
        path = self.path()
        if self.at < len(self.text):
            self.fail(f"unexpected {self.text[self.at]!r}")
        return path

    def path(self) -> Path:
        steps = self.part()
        while self.take("."):
            steps += self.part()
        return tuple(steps)

    def part(self) -> list[Step]:
        steps: list[Step] = [self.choice() if self.take("{") else self.name()]
        while self.text.startswith("[", self.at):
            steps.append(self.index())
        return steps

    def choice(self) -> OneOf:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail("too many braces")
        paths = [self.path()]
        while self.take(","):
            paths.append(self.path())
        if not self.take("}"):
            self.fail("a closing } is missing")
        self.depth -= 1
        return OneOf(tuple(paths))

    def name(self) -> str | Every:
        start, key, ends = self.at, [], ".[,}" if self.depth else ".["
        while self.at < len(self.text) and self.text[self.at] not in ends:
            if self.take("\\") and self.at == len(self.text):
                self.fail("a backslash takes the next character literally, but there is none")
            key.append(self.text[self.at])
            self.at += 1
        return Every.CHILD if self.text[start : self.at] == "*" else "".join(key)

    def index(self) -> int | Every:
        match = _INDEX.match(self.text, self.at)
        if not match:
            self.fail("expected [n] or [*]; write \\[ for a literal [")
        self.at = match.end()
        return Every.ELEMENT if match[2] else int(match[1])

    def take(self, character: str) -> bool:
        taken = self.text.startswith(character, self.at)
        self.at += taken
        return taken

    def fail(self, why: str) -> NoReturn:
        raise ValueError(f"the path {self.text!r} cannot be read at {self.at}: {why}")
