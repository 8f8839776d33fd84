"""Look-ups: the items below a namespace by conditions, in the order of some fields.

A database answers them by its indexes where it can say exactly what a filter means; all other
look-ups read the items of the namespace and pick from them here, piece by piece.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from .base import Namespace
from .filters import compile_filter
from .namespaces import window
from .paths import parse_place

FIELDS: Final = ("owner", "status", "thread_id", "created_at", "updated_at")
"""The fields that a database finds and sorts items by. They hold texts or null."""

AT_ONCE: Final = 200
"""How many items are tested before others may have the processor."""

_EXACT: Final = 2**53
"""Below it, numbers that are equal are written in few ways."""
_MOST: Final = 16
"""How many places in an item one statement compares at most."""
_CODED: Final = re.compile(r'[\x00-\x1f"\\]')
"""What JSON text holds in another form."""
_PLAIN: Final = re.compile(r"[ !#-\[\]-~]+")
"""What JSON text holds as it is, and what is in lower case in every alphabet's rules."""


class Lookup(NamedTuple):
    """Selects items below a namespace.

    Attributes:
        filter: conditions on the value, see `stategraph.store.filters`.
        order: the fields to sort by, in the order of their texts; the item put last comes first
            among equals, and if there are none.
        test: a further condition, which sees the item's key and its value.
        text: in lower case; only items with it in their key, `metadata` or `error`, and those with
            the status "error", can pass the test.
    """

    namespace: Namespace
    filter: Mapping[str, Any]
    order: tuple[str, ...] = ()
    ascending: bool = False
    limit: int = 0
    offset: int = 0
    test: Callable[[str, Mapping[str, Any]], bool] | None = None
    text: str = ""

    def hint(self) -> str:
        """Return the longest part of the text that a database can search for; "" if it has none."""
        return max(_PLAIN.findall(self.text), key=len, default="")


class Place(NamedTuple):
    """A condition on what lies at a path: it is an object, or one of these scalars."""

    path: tuple[str, ...]
    equals: tuple[Any, ...] | None


class Conditions(NamedTuple):
    """A filter as a database understands it: every condition holds.

    Attributes:
        choices: by a field, its values, and whether the item must have one of them or none.
        most: by a field, its highest text.
        places: conditions on other places in the value.
    """

    choices: list[tuple[str, list[str | None], bool]]
    most: list[tuple[str, str]]
    places: list[Place]


class _Unknown(Exception):
    """A filter that databases do not understand as exactly as `filters` does."""


class Entry(Protocol):
    """An item, as a store keeps it or as it gives it."""

    @property
    def key(self) -> str: ...
    @property
    def value(self) -> Mapping[str, Any]: ...


Kept = TypeVar("Kept", bound=Entry)
Done = TypeVar("Done")


def pick(lookup: Lookup, items: Iterable[Kept]) -> Generator[None, None, list[Kept]]:
    """Return the items that match, sorted: all of them, or as many as are asked for if the limit is
    above 0. Yield now and then, so that others can run.

    Args:
        items: the items below the namespace, the one put last first.
    """
    wanted, test, hint = compile_filter(lookup.filter), lookup.test, lookup.hint()
    found: list[Kept] = []
    most = lookup.offset + lookup.limit if lookup.limit else sys.maxsize
    for number, item in enumerate(items, 1):
        if (
            wanted(item.value)
            and (not hint or _may_have(hint, item.key, item.value))
            and (test is None or test(item.key, item.value))
        ):
            found.append(item)
            if len(found) == most and not lookup.order:
                return found
        if number % AT_ONCE == 0:
            yield
    if not lookup.order:
        return found

    def texts(item: Kept) -> list[str]:
        return [str(item.value.get(name) or "") for name in lookup.order]

    # Sorted in pieces, since one sort of all of them would not give way.
    pieces: list[list[Kept]] = []
    chosen: list[Kept] = []
    descending = not lookup.ascending
    for begin in range(0, len(found), AT_ONCE):
        pieces.append(sorted(found[begin : begin + AT_ONCE], key=texts, reverse=descending))
        yield
    merged = merge(*pieces, key=texts, reverse=descending)
    while piece := [*islice(merged, min(AT_ONCE, most - len(chosen)))]:
        chosen += piece
        yield
    return chosen


def _may_have(hint: str, key: str, value: Mapping[str, Any]) -> bool:
    """Return False only for an item in which databases do not find a text either."""
    if value.get("status") == "error":
        return True
    told = [key, value.get("metadata"), value.get("error")]
    return hint in json.dumps(told, ensure_ascii=False).lower()


def finish(work: Generator[None, None, Done]) -> Done:
    """Do all of a work, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Done = done.value
            return result


async def afinish(work: Generator[None, None, Done]) -> Done:
    """Do the same on the event loop, where others run between two pieces."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Done = done.value
            return result
        await asyncio.sleep(0)


def cut(lookup: Lookup, found: Iterable[Kept]) -> list[Kept]:
    """Return the part of what was found that a look-up asks for."""
    return window(found, lookup.offset, lookup.limit)


def tested(lookup: Lookup, rows: Iterable[Kept]) -> list[Kept]:
    """Return what a look-up asks for, of rows that a database has found and sorted: it has cut them
    already if there was no further test."""
    test = lookup.test
    if test is None:
        return [*rows]
    return cut(lookup, (row for row in rows if test(row.key, row.value)))


def understand(lookup: Lookup) -> Conditions | None:
    """Return the conditions of a look-up for a database; None if it cannot say them exactly."""
    if not {*FIELDS}.issuperset(lookup.order):
        return None
    made = Conditions([], [], [])
    try:
        for path, condition in lookup.filter.items():
            steps = parse_place(path)
            if steps[0] in FIELDS and len(steps) == 1:
                _read_field(str(steps[0]), condition, made)
            elif steps[0] != "metadata":
                return None
            else:
                _read_place(steps, condition, made.places)
    except (_Unknown, ValueError):
        return None
    return made if len(made.places) <= _MOST else None


def _read_field(field: str, condition: Any, made: Conditions) -> None:
    tests = condition.items() if isinstance(condition, Mapping) else [("$eq", condition)]
    for name, operand in tests:
        if name == "$eq":
            made.choices.append((field, [_text(operand)], True))
        elif name in ("$in", "$nin") and isinstance(operand, (list, tuple)):
            made.choices.append((field, [*map(_text, operand)], name == "$in"))
        elif name == "$lte" and isinstance(operand, str):
            made.most.append((field, operand))
        else:
            raise _Unknown


def _text(operand: Any) -> str | None:
    if operand is not None and (not isinstance(operand, str) or _CODED.search(operand)):
        raise _Unknown
    return operand


def _read_place(steps: tuple[str | int, ...], condition: Any, places: list[Place]) -> None:
    path = tuple(step for step in steps if isinstance(step, str) and step)
    if len(path) < len(steps) or any(map(_CODED.search, path)):
        raise _Unknown
    if not isinstance(condition, Mapping):
        places.append(Place(path, _same_as(condition)))
        return
    if any(str(name).startswith("$") for name in condition):
        raise _Unknown
    places.append(Place(path, None))
    for name, inner in condition.items():
        _read_place((*path, *parse_place(name)), inner, places)


def _same_as(value: Any) -> tuple[Any, ...]:
    """Return the scalars that are equal to one, as JSON may write them."""
    if value is None or isinstance(value, (bool, str)):
        # A database may hold the two characters for each other.
        if isinstance(value, str) and ("\0" in value or "�" in value or "\\u" in value):
            raise _Unknown
        return (value,)
    if not isinstance(value, (int, float)) or not -_EXACT < value < _EXACT:
        raise _Unknown
    if value != int(value):
        return (value,)
    return (int(value), float(int(value)), *([-0.0] if value == 0 else []))


Part = tuple[str, list[Any]]
"""A condition of a statement, and the values that it binds."""


class Dialect(NamedTuple):
    """The words of a database: constants, in which `?` stands for a value that is bound.

    Attributes:
        field: the expression of a field's text, with the field for `%s`.
        among: that it is one of the texts in a JSON array.
        not_among: that it is none of them.
        most: that it is not above a text.
        text: that the item's key, metadata or error has a text.
        places: makes conditions of places.
        null: what the expression of a field gives for null.
    """

    field: str
    among: str
    not_among: str
    most: str
    text: str
    places: Callable[[Sequence[Place]], list[Part]]
    null: Any


def where(dialect: Dialect, lookup: Lookup, conditions: Conditions) -> tuple[list[Part], str]:
    """Return the conditions of a statement, and its order."""
    parts: list[Part] = []
    for name, values, inside in conditions.choices:
        listed = [dialect.null if value is None else value for value in values]
        words = dialect.among if inside else dialect.not_among
        parts.append((f"{dialect.field % name} {words}", [json.dumps(listed, ensure_ascii=False)]))
    for name, most in conditions.most:
        parts.append((f"{dialect.field % name} {dialect.most}", [most]))
    parts += dialect.places(conditions.places)
    if hint := lookup.hint():
        parts.append((f"({dialect.text} OR {dialect.field % 'status'} = 'error')", [hint]))
    way = "ASC" if lookup.ascending else "DESC"
    order = "".join(f"{dialect.field % name} {way}, " for name in lookup.order)
    return parts, f"{order}seq DESC"
