"""What one step changed in the state: two values → a short list of changes, as records, text or
HTML.

Pure and never raises, whatever objects the state holds: one that cannot be compared counts as
changed if it looks different. No thread is read here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import islice
from typing import Any, Literal, NamedTuple

from .values import format_value, sanitize

ChangeKind = Literal["added", "removed", "changed", "appended", "edited", "more"]
"""`appended`: items at the end of a list. `edited`: lines of a text, or items of a list or set.
`more`: changes that were left out, `after` says how many."""


class Change(NamedTuple):
    """One change.

    Attributes:
        path: the keys that lead to it, from the outermost; places in a list as `[3]`.
        before, after: the values as short text; in `appended` and `edited` what stands in for them.
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
    """How much is told.

    Attributes:
        changes: so many at most; what is left out is counted.
        text: characters of one value.
        lines: of one edited text or list.
        depth: of nested values that are compared part by part.
    """

    changes: int = 100
    text: int = 160
    lines: int = 30
    depth: int = 6


DIFF_LIMITS = DiffLimits()


def diff(before: Any, after: Any, limits: DiffLimits = DIFF_LIMITS) -> tuple[Change, ...]:
    """What must be done to `before` to have `after`.

    Dicts, dataclasses, models and plain objects are compared key by key, lists item by item, texts
    of several lines line by line, lists of messages (with `id`, or `role` and `content`) by their
    ids.

    >>> for change in diff({"a": 1, "log": ["x"]}, {"a": 2, "log": ["x", "y"]}):
    ...     print(change.where, change.kind, change.before, change.after, *change.lines)
    a changed 1 2
    log appended 1 2 + 'y'
    """
    found = _compare((), before, after, limits)
    kept = tuple(islice(found, limits.changes))
    left = sum(1 for _ in islice(found, 10_000))
    return (*kept, Change((), "more", "", f"{left:,}")) if left else kept


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are equal, as far as they can tell; if they cannot, whether they look the
    same."""
    if one is other:
        return True
    try:
        if type(one) is type(other) and bool(one == other):
            return True
        if type(one) in (str, int, bool, bytes, type(None)):
            return False
    except Exception:  # arrays have no truth, foreign __eq__ may do anything
        pass
    if type(one) is not type(other) or type(one) in _CONTAINERS or _parts(one):
        return False
    return format_value(one, 10_000) == format_value(other, 10_000)


# -- comparing -------------------------------------------------------------------------------------

_CONTAINERS = (dict, list, tuple, set, frozenset)


def _compare(
    path: tuple[str, ...], before: Any, after: Any, limits: DiffLimits
) -> Iterator[Change]:
    try:
        if is_same(before, after):
            return
        if len(path) < limits.depth:
            yield from _inside(path, before, after, limits)
            return
    except Exception:  # a foreign __len__, __iter__, … may do anything
        pass
    yield from _replace(path, before, after, limits)


def _inside(path: tuple[str, ...], before: Any, after: Any, limits: DiffLimits) -> Iterator[Change]:
    """Of two values that are not the same: part by part if both have the same kind of parts, else
    as a whole."""
    both = (before, after)
    if all(isinstance(value, str) for value in both):
        yield _texts(path, before, after, limits)
    elif all(isinstance(value, list | tuple) for value in both):
        yield from _lists(path, before, after, limits)
    elif all(isinstance(value, set | frozenset) for value in both):
        gone, come = sorted(_items(before - after, limits)), sorted(_items(after - before, limits))
        yield _edit(path, _mark_lines(gone, come), both, limits)
    else:
        old, new = _parts(before), _parts(after)
        if old is None or new is None or not (path or type(before) is type(after)):
            yield from _replace(path, before, after, limits)
        else:
            yield from _keys(path, old, new, limits)


def _mark_lines(gone: Iterable[str], come: Iterable[str]) -> list[str]:
    return [*("- " + text for text in gone), *("+ " + text for text in come)]


def _replace(
    path: tuple[str, ...], before: Any, after: Any, limits: DiffLimits
) -> Iterator[Change]:
    old, new = format_value(before, limits.text), format_value(after, limits.text)
    if old != new:
        yield Change(path, "changed", old, new)
    elif type(before) in (str, bytes, *_CONTAINERS):
        yield Change(path, "changed", old, f"{new} (differs further on)")


def _keys(
    path: tuple[str, ...], before: Mapping[Any, Any], after: Mapping[Any, Any], limits: DiffLimits
) -> Iterator[Change]:
    for key in before:
        if key not in after:
            yield Change(
                (*path, _key(key)), "removed", before=format_value(before[key], limits.text)
            )
    for key, value in after.items():
        if key in before:
            yield from _compare((*path, _key(key)), before[key], value, limits)
        else:
            yield Change((*path, _key(key)), "added", after=format_value(value, limits.text))


def _key(key: Any) -> str:
    return sanitize(key, 80) if isinstance(key, str) and key else format_value(key, 80)


def _lists(
    path: tuple[str, ...], before: Sequence[Any], after: Sequence[Any], limits: DiffLimits
) -> Iterator[Change]:
    """Appended items, messages by id, items in place, or the stretch that was exchanged."""
    head = _common(before, after)
    if head == len(before):
        new = ["+ " + text for text in _items(after[head:], limits)]
        more = len(after) - head - len(new)
        lines = (*new, f"  … {more:,} more") if more > 0 else tuple(new)
        yield Change(path, "appended", f"{len(before):,}", f"{len(after):,}", lines)
        return
    old, new_ids = _by_id(before), _by_id(after)
    if old and new_ids:
        yield from _messages(path, old, new_ids, limits)
    elif len(before) == len(after):
        for place in range(head, len(before)):
            yield from _compare((*path, f"[{place}]"), before[place], after[place], limits)
    else:
        tail = _common(before[head:][::-1], after[head:][::-1])
        gone = _items(before[head : len(before) - tail], limits)
        come = _items(after[head : len(after) - tail], limits)
        where = (*path, f"[{head}]") if head else path
        yield _edit(where, _mark_lines(gone, come), (before, after), limits)


def _common(before: Sequence[Any], after: Sequence[Any]) -> int:
    """How many items at the front are the same."""
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


def _messages(
    path: tuple[str, ...], before: dict[str, Any], after: dict[str, Any], limits: DiffLimits
) -> Iterator[Change]:
    """Messages are told apart by their ids, wherever they stand."""
    gone = [f"- {_item(message, limits)}" for key, message in before.items() if key not in after]
    come = [f"+ {_item(message, limits)}" for key, message in after.items() if key not in before]
    if gone or come:
        yield _edit(path, [*gone, *come], (before, after), limits)
    for key, message in after.items():
        if key in before:
            yield from _compare((*path, f"[{sanitize(key, 40)}]"), before[key], message, limits)


def _by_id(items: Sequence[Any]) -> dict[str, Any]:
    """The items by their ids; nothing if one has none, or two have the same."""
    found: dict[str, Any] = {}
    for item in items:
        key = _get(item, "id")
        if not isinstance(key, str) or key in found:
            return {}
        found[key] = item
    return found


def _items(items: Iterable[Any], limits: DiffLimits) -> list[str]:
    return [_item(item, limits) for item in islice(items, limits.lines)]


def _item(item: Any, limits: DiffLimits) -> str:
    """An item on one line; a message as `role: content`."""
    role, content = _get(item, "role") or _get(item, "type"), _get(item, "content")
    if isinstance(role, str) and content is not None:
        text = content if isinstance(content, str) else format_value(content, limits.text)
        return sanitize(f"{role}: {text}", limits.text).replace("\n", " ⏎ ")
    return format_value(item, limits.text)


def _get(item: Any, name: str) -> Any:
    try:
        return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
    except Exception:  # a foreign property may do anything
        return None


def _texts(path: tuple[str, ...], before: str, after: str, limits: DiffLimits) -> Change:
    """Short texts as a whole, longer ones by their lines."""
    if "\n" not in before + after or max(len(before), len(after)) <= 60:
        old, new = format_value(before, limits.text), format_value(after, limits.text)
        if max(len(before), len(after)) > limits.text:
            old, new = _around(before, after, limits.text)
        return Change(path, "changed", old, new)
    old_lines, new_lines = before.split("\n"), after.split("\n")
    head = _common(old_lines, new_lines)
    tail = _common(old_lines[head:][::-1], new_lines[head:][::-1])
    gone, come = old_lines[head : len(old_lines) - tail], new_lines[head : len(new_lines) - tail]
    lines = [*("  " + line for line in old_lines[max(head - 1, 0) : head]), *_line_diff(gone, come)]
    lines += ["  " + line for line in old_lines[len(old_lines) - tail :][: 1 if tail else 0]]
    return _edit(path, lines, (old_lines, new_lines), limits)


def _around(before: str, after: str, room: int) -> tuple[str, str]:
    """Two long texts where they begin to differ."""
    differ = (place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b)
    start = max(next(differ, min(len(before), len(after))) - room // 4, 0)
    texts = (sanitize(text[start : start + room], room) for text in (before, after))
    old, new = (f"{'…' if start else ''}{text}…" for text in texts)
    return old, new


def _line_diff(gone: list[str], come: list[str]) -> Iterator[str]:
    if len(gone) * len(come) > 40_000:  # the exact way is quadratic
        yield from _mark_lines(gone, come)
        return
    for tag, a, b, c, d in SequenceMatcher(None, gone, come, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ("  " + line for line in gone[a:b])
        else:
            yield from _mark_lines(gone[a:b], come[c:d])


def _edit(
    path: tuple[str, ...], lines: list[str], sides: tuple[Any, Any], limits: DiffLimits
) -> Change:
    kept = [sanitize(line, limits.text) for line in lines[: limits.lines]]
    if len(lines) > len(kept):
        kept.append(f"  … {len(lines) - len(kept):,} more")
    return Change(path, "edited", f"{len(sides[0]):,}", f"{len(sides[1]):,}", tuple(kept))


def _parts(value: Any) -> Mapping[Any, Any] | None:
    """What a value is made of, if it can be told by names."""
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
    """Changes as lines of text.

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
    return f"{change.where}: {_count(change) or change.before + change.after}"


def _count(change: Change) -> str:
    """How a text, list or set grew or shrank."""
    if change.kind == "appended":
        old, new = (int(text.replace(",", "")) for text in (change.before, change.after))
        return (
            f"{new - old:,} appended, {change.after} in all" if old else f"{change.after} appended"
        )
    if change.kind == "edited":
        return f"{change.before} → {change.after}" if change.before != change.after else "edited"
    return ""


def draw_html(changes: Iterable[Change]) -> str:
    """Changes as HTML without scripts and styles, every value escaped: `<p>` per change with
    `<del>` and `<ins>`."""
    return "".join(_html(change) for change in changes)


def _escape(text: str) -> str:
    return escape(text, quote=False)


def _html(change: Change) -> str:
    if change.kind == "more":
        return f"<p><i>… {_escape(_headline(change))}</i></p>"
    name = f"<b>{_escape(change.where)}</b>"
    gone = f" <del>{_escape(change.before)}</del>"
    come = f" <ins>{_escape(change.after)}</ins>"
    if change.kind in ("added", "removed"):
        return f"<p>{name}{come if change.kind == 'added' else gone}</p>"
    if change.kind == "changed":
        return f"<p>{name}{gone}{come}</p>"
    return (
        f"<p>{name} "
        f"<i>{_escape(_count(change))}</i></p><pre>{''.join(map(_html_line, change.lines))}</pre>"
    )


def _html_line(line: str) -> str:
    tag = {"+ ": "ins", "- ": "del"}.get(line[:2], "span")
    return f"<{tag}>{_escape(line)}</{tag}>\n"
