"""The first difference of two recordings, in words: which run, step and node, and what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from .asserts import difference
from .recording import RecordedRun, RecordedStep, RecordedTask, Recording

_IDS: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)
LONGEST: Final = 500
"""Characters that are shown of a value."""


class Difference(NamedTuple):
    """Where two recordings differ.

    Attributes:
        where: run, step and node.
        what: "input", "question", "write", "route", "error", "tasks", "end", "state" or "runs".
        path: into the value, such as `['messages'][0]['content']`.
        recorded, now: the two values there, in their forms.
        node: the path of the node; "" if it is no node's.
    """

    where: str
    what: str
    path: str
    recorded: Any
    now: Any
    node: str = ""

    def __str__(self) -> str:
        return (
            f"{self.where}: the {self.what} differs{' at ' if self.path else ''}{self.path}\n"
            f"  recorded: {_show(self.recorded)}\n"
            f"  now:      {_show(self.now)}"
        )


def find_difference(
    recorded: Recording,
    now: Recording,
    *,
    ignore: Collection[str] = (),
    skip_inside: Collection[str] = (),
) -> Difference | None:
    """The first difference of two recordings, in the order in which a run does things; None if
    there is none.

    Random ids (UUIDs) are the same if they stand in the same places.

    Args:
        ignore: keys of dicts and fields of objects whose values are not compared, at any depth.
        skip_inside: paths of nodes whose nested graphs are not compared.
    """
    one, two = Recording.from_json(recorded.to_json()), Recording.from_json(now.to_json())
    left, right = _Masks(frozenset(ignore)), _Masks(frozenset(ignore))
    comparison = _Comparison(left, right, frozenset(skip_inside), len(one.runs) > 1)
    return next(comparison.runs(one, two), None)


class _Masks:
    """Puts what cannot be compared out of sight: ids become numbers in the order in which they
    come."""

    def __init__(self, ignore: frozenset[str]) -> None:
        self.ignore = ignore
        self.ids: dict[str, str] = {}

    def apply(self, form: Any) -> Any:
        if isinstance(form, str):
            return _IDS.sub(self._number, form)
        if isinstance(form, (list, tuple)):
            return [self.apply(item) for item in form]
        if isinstance(form, dict):
            return {
                key: "(ignored)" if key in self.ignore else self.apply(item)
                for key, item in form.items()
            }
        return form

    def _number(self, found: re.Match[str]) -> str:
        return self.ids.setdefault(found[0], f"<id {len(self.ids) + 1}>")


def hide_ids(form: Any) -> Any:
    """A value in which ids are numbered in the order in which they come."""
    return _Masks(frozenset()).apply(form)


def rename_ids(form: Any, recorded: Any, now: Any) -> Any:
    """A recorded value in which the ids of a recorded input are those of the input now."""
    before, after = (_IDS.findall(json.dumps(each)) for each in (recorded, now))
    names = dict(zip(before, after, strict=False)) if len(before) == len(after) else {}
    if not names:
        return form
    text = _IDS.sub(lambda found: names.get(found[0], found[0]), json.dumps(form))
    return json.loads(text)


class _Comparison:
    def __init__(
        self, left: _Masks, right: _Masks, skip_inside: frozenset[str], many_runs: bool
    ) -> None:
        self.left = left
        self.right = right
        self.skip_inside = skip_inside
        self.many_runs = many_runs
        self.node = ""

    def runs(self, one: Recording, two: Recording) -> Iterator[Difference]:
        for number, (old, new) in enumerate(zip(one.runs, two.runs, strict=False), 1):
            yield from self.run(old, new, f"run {number}, " if self.many_runs else "")
        if len(one.runs) != len(two.runs):
            yield Difference("the thread", "number of runs", "", len(one.runs), len(two.runs))

    def run(self, old: RecordedRun, new: RecordedRun, where: str) -> Iterator[Difference]:
        yield from self.steps(old.steps, new.steps, where, "")
        self.node = ""
        yield from self.values(f"{where}its end", "end", old.end, new.end)
        yield from self.values(f"{where}its end", "state", old.state, new.state)

    def steps(
        self, old: tuple[RecordedStep, ...], new: tuple[RecordedStep, ...], where: str, inside: str
    ) -> Iterator[Difference]:
        for number, (one, two) in enumerate(zip_longest(old, new, fillvalue=()), 1):
            place = f"{where}step {number}"
            names, others = [task.node for task in one], [task.node for task in two]
            if names != others:
                yield Difference(place, "list of tasks", "", names, others)
            seen: dict[str, int] = {}
            for left, right in zip(one, two, strict=False):
                seen[left.node] = count = seen.get(left.node, 0) + 1
                which = f", task {count}" if names.count(left.node) > 1 else ""
                path = f"{inside}{left.node}"
                yield from self.task(left, right, f"{place}, node {path!r}{which}", path)

    def task(
        self, old: RecordedTask, new: RecordedTask, where: str, path: str
    ) -> Iterator[Difference]:
        self.node = path
        yield from self.values(where, "input", old.input, new.input)
        if path not in self.skip_inside:
            yield from self.steps(old.steps, new.steps, f"{where}, ", f"{path}:")
        self.node = path
        asked = [each["asks"] for each in old.questions if "asks" in each]
        now = [each["asks"] for each in new.questions if "asks" in each]
        yield from self.values(where, "question", asked, now)
        yield from self.values(where, "error", old.error, new.error)
        yield from self.writes(where, old.writes, new.writes)
        yield from self.values(where, "route", list(old.goto), list(new.goto))

    def writes(
        self, where: str, old: tuple[Any, ...], new: tuple[Any, ...]
    ) -> Iterator[Difference]:
        keys, others = [key for key, _ in old], [key for key, _ in new]
        if keys != others:
            yield Difference(where, "list of keys that it wrote", "", keys, others, self.node)
        for (key, one), (_, two) in zip(old, new, strict=False):
            if key not in self.left.ignore:
                yield from self.values(where, f"write to {key!r}", one, two)

    def values(self, where: str, what: str, old: Any, new: Any) -> Iterator[Difference]:
        found = difference(self.left.apply(old), self.right.apply(new))
        if found is not None:
            path, one, two = found
            yield Difference(where, what, path, one, two, self.node)


def _show(form: Any) -> str:
    text = repr(form)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
