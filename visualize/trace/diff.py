"""Computes what one step changed in the state: compares two values and returns a short list of
changes, as records, text or HTML.

Pure and never raises, whatever objects the state holds: objects that cannot be compared count as
changed if they look different. Reads no thread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Literal, NamedTuple

from ..markup import Markup, as_markup, fill
from .values import format_key, format_value, sanitize

ChangeKind = Literal["added", "removed", "changed", "appended", "edited", "more"]
"""`appended`: items at the end of a list. `edited`: lines of a text, or items of a list or set.
`more`: changes that were left out; `after` says how many."""


class Change(NamedTuple):
    """One change.

    Attributes:
        path: the keys that lead to it, from the outermost; list indexes as `[3]`.
        before, after: the values as short text; for `appended` and `edited` their lengths.
        lines: in `appended` and `edited` what came ("+ ") and went ("- "), with some of what stayed
            ("  ").
    """

    path: tuple[str, ...]
    kind: ChangeKind
    before: str = ""
    after: str = ""
    lines: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The path as one word: `docs[3].title`."""
        return (
            "".join(key if key.startswith("[") else "." + key for key in self.path).lstrip(".")
            or "value"
        )


class DiffLimits(NamedTuple):
    """How much to report.

    Attributes:
        changes: the maximum number of changes; the others are counted.
        text: the maximum number of characters of one value.
        lines: the maximum number of lines of one edited text or list.
        depth: the depth to which nested values are compared part by part.
    """

    changes: int = 100
    text: int = 160
    lines: int = 30
    depth: int = 6


DIFF_LIMITS = DiffLimits()


def diff(before: Any, after: Any, limits: DiffLimits = DIFF_LIMITS) -> tuple[Change, ...]:
    """Return the changes that turn `before` into `after`.

    Dicts, dataclasses, models and plain objects are compared key by key, lists item by item, texts
    of several lines line by line, lists of messages (with `id`, or `role` and `content`) by their
    ids.

    >>> for change in diff({"a": 1, "log": ["x"]}, {"a": 2, "log": ["x", "y"]}):
    ...     print(change.where, change.kind, change.before, change.after, *change.lines)
    a changed 1 2
    log appended 1 2 + 'y'
    """
    found = _Differ(limits).compare((), before, after)
    kept = tuple(islice(found, limits.changes))
    left = sum(1 for _ in islice(found, 10_000))
    return (*kept, Change((), "more", "", f"{left:,}")) if left else kept


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are equal or, if they cannot be compared, look the same."""
    if one is other:
        return True
    try:
        if type(one) is type(other) and bool(one == other):
            return True
        if type(one) in (str, int, bool, bytes, type(None)):
            return False
    except Exception:  # arrays have no truth value, and a foreign __eq__ may raise anything
        pass
    if type(one) is not type(other) or type(one) in _CONTAINERS or _parts(one):
        return False
    return format_value(one, 10_000) == format_value(other, 10_000)


# -- comparing -------------------------------------------------------------------------------------

_CONTAINERS = (dict, list, tuple, set, frozenset)

Path = tuple[str, ...]


class _Differ:
    """Finds the changes between two values; `path` leads to the parts being compared."""

    def __init__(self, limits: DiffLimits) -> None:
        self.limits = limits

    def compare(self, path: Path, before: Any, after: Any) -> Iterator[Change]:
        """Yield the changes that turn `before` into `after`."""
        try:
            if is_same(before, after):
                return
            if len(path) < self.limits.depth:
                yield from self._compare_parts(path, before, after)
                return
        except Exception:  # a foreign __len__, __iter__, … may raise anything
            pass
        yield from self._replace(path, before, after)

    def _compare_parts(self, path: Path, before: Any, after: Any) -> Iterator[Change]:
        """Compare two different values: part by part if both have the same kind of parts, otherwise
        as a whole."""
        both = (before, after)
        if all(isinstance(value, str) for value in both):
            yield self._compare_texts(path, before, after)
        elif all(isinstance(value, list | tuple) for value in both):
            yield from self._compare_lists(path, before, after)
        elif all(isinstance(value, set | frozenset) for value in both):
            gone, come = self._items(before - after), self._items(after - before)
            yield self._edit(path, _mark_lines(sorted(gone), sorted(come)), both)
        else:
            old, new = _parts(before), _parts(after)
            if old is None or new is None or not (path or type(before) is type(after)):
                yield from self._replace(path, before, after)
            else:
                yield from self._compare_keys(path, old, new)

    def _replace(self, path: Path, before: Any, after: Any) -> Iterator[Change]:
        old, new = self._show(before), self._show(after)
        if old != new:
            yield Change(path, "changed", old, new)
        elif type(before) in (str, bytes, *_CONTAINERS):
            yield Change(path, "changed", old, f"{new} (differs further on)")

    def _compare_keys(
        self, path: Path, before: Mapping[Any, Any], after: Mapping[Any, Any]
    ) -> Iterator[Change]:
        for key, value in before.items():
            if key not in after:
                yield Change((*path, format_key(key)), "removed", before=self._show(value))
        for key, value in after.items():
            below = (*path, format_key(key))
            if key in before:
                yield from self.compare(below, before[key], value)
            else:
                yield Change(below, "added", after=self._show(value))

    def _compare_lists(
        self, path: Path, before: Sequence[Any], after: Sequence[Any]
    ) -> Iterator[Change]:
        """Yield appended items, changes of messages by id or of items by index, or the part that
        was replaced."""
        head = _count_common(before, after)
        if head == len(before):
            new = _mark_lines((), self._items(after[head:]))
            more = len(after) - head - len(new)
            if more > 0:
                new.append(f"  … {more:,} more")
            yield Change(path, "appended", f"{len(before):,}", f"{len(after):,}", tuple(new))
            return
        old_ids, new_ids = _by_id(before), _by_id(after)
        if old_ids and new_ids:
            yield from self._compare_messages(path, old_ids, new_ids)
        elif len(before) == len(after):
            for place in range(head, len(before)):
                yield from self.compare((*path, f"[{place}]"), before[place], after[place])
        else:
            gone, come = map(self._items, _exchanged(before, after, head))
            where = (*path, f"[{head}]") if head else path
            yield self._edit(where, _mark_lines(gone, come), (before, after))

    def _compare_messages(
        self, path: Path, before: dict[str, Any], after: dict[str, Any]
    ) -> Iterator[Change]:
        """Compare messages by their ids, wherever they are."""
        gone = [self._item(message) for key, message in before.items() if key not in after]
        come = [self._item(message) for key, message in after.items() if key not in before]
        if gone or come:
            yield self._edit(path, _mark_lines(gone, come), (before, after))
        for key, message in after.items():
            if key in before:
                yield from self.compare((*path, f"[{sanitize(key, 40)}]"), before[key], message)

    def _compare_texts(self, path: Path, before: str, after: str) -> Change:
        """Compare short texts as a whole, longer ones by their lines."""
        longest = max(len(before), len(after))
        if "\n" not in before + after or longest <= 60:
            old, new = self._show(before), self._show(after)
            if longest > self.limits.text:
                old, new = _around(before, after, self.limits.text)
            return Change(path, "changed", old, new)
        old_lines, new_lines = before.split("\n"), after.split("\n")
        head = _count_common(old_lines, new_lines)
        gone, come = _exchanged(old_lines, new_lines, head)
        stop = head + len(gone)
        # With the line before and the line after what was replaced.
        lines = ["  " + line for line in old_lines[max(head - 1, 0) : head]]
        lines += _line_diff(gone, come)
        lines += ["  " + line for line in old_lines[stop : stop + 1]]
        return self._edit(path, lines, (old_lines, new_lines))

    def _edit(self, path: Path, lines: list[str], sides: tuple[Any, Any]) -> Change:
        kept = [sanitize(line, self.limits.text) for line in lines[: self.limits.lines]]
        if len(lines) > len(kept):
            kept.append(f"  … {len(lines) - len(kept):,} more")
        return Change(path, "edited", f"{len(sides[0]):,}", f"{len(sides[1]):,}", tuple(kept))

    def _show(self, value: Any) -> str:
        return format_value(value, self.limits.text)

    def _items(self, items: Iterable[Any]) -> list[str]:
        return [self._item(item) for item in islice(items, self.limits.lines)]

    def _item(self, item: Any) -> str:
        """Return an item on one line; a message as `role: content`."""
        role, content = _get(item, "role") or _get(item, "type"), _get(item, "content")
        if isinstance(role, str) and content is not None:
            text = content if isinstance(content, str) else self._show(content)
            return sanitize(f"{role}: {text}", self.limits.text).replace("\n", " ⏎ ")
        return self._show(item)


def _mark_lines(gone: Iterable[str], come: Iterable[str]) -> list[str]:
    return [*("- " + text for text in gone), *("+ " + text for text in come)]


def _count_common(before: Sequence[Any], after: Sequence[Any]) -> int:
    """Return how many items at the front are the same."""
    least = min(len(before), len(after))
    try:
        if bool(before[:least] == after[:least]):
            return least
    except Exception:  # see `is_same`
        pass
    for place in range(least):
        if not is_same(before[place], after[place]):
            return place
    return least


def _exchanged(before: Any, after: Any, head: int) -> tuple[Any, Any]:
    """Return what differs between the `head` common items at the front and those at the end."""
    tail = _count_common(before[head:][::-1], after[head:][::-1])
    return before[head : len(before) - tail], after[head : len(after) - tail]


def _by_id(items: Sequence[Any]) -> dict[str, Any]:
    """Return the items by their ids; nothing if an id is missing or occurs twice."""
    found: dict[str, Any] = {}
    for item in items:
        key = _get(item, "id")
        if not isinstance(key, str) or key in found:
            return {}
        found[key] = item
    return found


def _get(item: Any, name: str) -> Any:
    try:
        return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
    except Exception:  # a foreign property may raise anything
        return None


def _around(before: str, after: str, room: int) -> tuple[str, str]:
    """Return two long texts where they begin to differ."""
    differ = (place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    start = max(next(differ, min(len(before), len(after))) - room // 4, 0)
    texts = (sanitize(text[start : start + room], room) for text in (before, after))
    old, new = (f"{'…' if start else ''}{text}…" for text in texts)
    return old, new


def _line_diff(gone: list[str], come: list[str]) -> list[str]:
    if len(gone) * len(come) > 40_000:  # the exact algorithm is quadratic
        return _mark_lines(gone, come)
    lines = []
    for tag, a, b, c, d in SequenceMatcher(None, gone, come, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += ["  " + line for line in gone[a:b]]
        else:
            lines += _mark_lines(gone[a:b], come[c:d])
    return lines


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """Return the named parts of a value, if it has any."""
    if isinstance(value, dict):
        return value
    if isinstance(value, type | BaseException):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    fields = getattr(type(value), "_fields", None) or getattr(type(value), "model_fields", None)
    if isinstance(fields, tuple | dict):
        return {name: getattr(value, name, None) for name in fields}
    kind: Any = type(value)
    if kind.__eq__ is object.__eq__ and kind.__repr__ is object.__repr__:
        return getattr(value, "__dict__", None)
    return None


# -- showing ---------------------------------------------------------------------------------------


def draw_text(changes: Iterable[Change]) -> str:
    """Return changes as lines of text.

    >>> print(draw_text(diff({"a": 1}, {"b": [2]})))
    - a: 1
    + b: [2]
    """
    lines: list[str] = []
    for change in changes:
        sign = {"added": "+", "removed": "-", "more": "…"}.get(change.kind, "~")
        lines.append(f"{sign} {_headline(change)}")
        lines.extend(f"    {line}" for line in change.lines)
    return "\n".join(lines)


def _headline(change: Change) -> str:
    if change.kind == "more":
        return f"{change.after} more change{'' if change.after == '1' else 's'}"
    if change.kind == "changed":
        return f"{change.where}: {change.before} → {change.after}"
    return f"{change.where}: {count_change(change) or change.before + change.after}"


def count_change(change: Change) -> str:
    """Return how much a text, list or set has grown or shrunk."""
    if change.kind == "appended":
        old, new = (int(text.replace(",", "")) for text in (change.before, change.after))
        return (
            f"{new - old:,} appended, {change.after} in all" if old else f"{change.after} appended"
        )
    if change.kind == "edited":
        return f"{change.before} → {change.after}" if change.before != change.after else "edited"
    return ""


def draw_html(changes: Iterable[Change]) -> Markup:
    """Return changes as HTML without scripts and styles, every value escaped: `<p>` per change with
    `<del>` and `<ins>`."""
    return as_markup([_html(change) for change in changes])


_GONE, _COME = " <del>{before}</del>", " <ins>{after}</ins>"
_FORMS = {
    "more": "<p><i>… {headline}</i></p>",
    "added": f"<p><b>{{where}}</b>{_COME}</p>",
    "removed": f"<p><b>{{where}}</b>{_GONE}</p>",
    "changed": f"<p><b>{{where}}</b>{_GONE}{_COME}</p>",
}
_LONG_FORM = "<p><b>{where}</b> <i>{count}</i></p><pre>{lines}</pre>"
_LINE_FORMS = {"+ ": "<ins>{}</ins>\n", "- ": "<del>{}</del>\n"}


def _html(change: Change) -> Markup:
    return fill(
        _FORMS.get(change.kind, _LONG_FORM),
        headline=_headline(change),
        where=change.where,
        before=change.before,
        after=change.after,
        count=count_change(change),
        lines=[fill(_LINE_FORMS.get(each[:2], "<span>{}</span>\n"), each) for each in change.lines],
    )
