"""The first difference of two recordings, in words: which run, step and node, and what differs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from .asserts import difference
from .recording import RecordedRun, RecordedStep, RecordedTask, Recording

_IDS: Final = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b"
)
Place: TypeAlias = tuple[str, str, str, Any]
"""Something that is compared: where and what it is, the path of its node, and the value."""
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
    sides = [_Side(frozenset(ignore), frozenset(skip_inside)) for _ in range(2)]
    for number, runs in enumerate(zip(recorded.runs, now.runs, strict=False), 1):
        where = f"run {number}, " if len(recorded.runs) > 1 else ""
        places = (side.run(run, where) for side, run in zip(sides, runs, strict=True))
        # Up to the first difference, both have the same places.
        for (place, what, node, old), (*_, new) in zip(*places, strict=False):
            found = difference(old, new)
            if found is not None:
                as_whole = what.startswith("list of")
                return Difference(place, what, *(("", old, new) if as_whole else found), node)
    if len(recorded.runs) == len(now.runs):
        return None
    return Difference("the thread", "number of runs", "", len(recorded.runs), len(now.runs))


class _Side:
    """One of two recordings that are compared. What cannot be compared is put out of sight: ids
    become numbers in the order in which they come.

    Args:
        ignore, skip_inside: as of `find_difference`.
    """

    def __init__(
        self, ignore: frozenset[str] = frozenset(), skip_inside: frozenset[str] = frozenset()
    ) -> None:
        self.ignore, self.skip_inside = ignore, skip_inside
        self.ids: dict[str, str] = {}

    def run(self, run: RecordedRun, where: str) -> Iterator[Place]:
        """All that is compared of a run, in the order in which it does things."""
        yield from self.steps(run.steps, where, "")
        yield f"{where}its end", "end", "", run.end
        yield f"{where}its end", "state", "", self.apply(run.state)

    def steps(self, steps: Sequence[RecordedStep], where: str, inside: str) -> Iterator[Place]:
        for number, step in enumerate((*steps, ()), 1):  # an empty one: they have ended
            names = [task.node for task in step]
            yield f"{where}step {number}", "list of tasks", "", names
            for count, task in enumerate(step, 1):
                path = f"{inside}{task.node}"
                place = f"{where}step {number}, node {path!r}"
                if names.count(task.node) > 1:
                    place += f", task {names[:count].count(task.node)}"
                yield from self.task(task, place, path)

    def task(self, task: RecordedTask, where: str, path: str) -> Iterator[Place]:
        yield where, "input", path, self.apply(task.input)
        asked = [each["asks"] for each in task.asked_last()[1]]
        if path not in self.skip_inside:
            yield from self.steps(task.steps, f"{where}, ", f"{path}:")
            # Compared there. Which of them were asked last depends on who answered first.
            inside = [each.get("asks") for each in task.asked()] if task.steps else []
            asked = [each for each in asked if each not in inside]
        yield where, "question", path, self.apply(asked)
        yield where, "error", path, self.apply(task.error)
        yield where, "list of keys that it wrote", path, [key for key, _ in task.writes]
        for key, value in task.writes:
            if key not in self.ignore:
                yield where, f"write to {key!r}", path, self.apply(value)
        yield where, "route", path, self.apply(task.goto)

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
    return _Side().apply(form)


def rename_ids(form: Any, recorded: Any, now: Any) -> Any:
    """A recorded value in which the ids of a recorded input are those of the input now."""
    before, after = (_IDS.findall(json.dumps(each)) for each in (recorded, now))
    names = dict(zip(before, after, strict=False)) if len(before) == len(after) else {}
    if not names:
        return form
    text = _IDS.sub(lambda found: names.get(found[0], found[0]), json.dumps(form))
    return json.loads(text)


def _show(form: Any) -> str:
    text = repr(form)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."
