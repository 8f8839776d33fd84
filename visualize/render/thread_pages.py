"""A stored thread in pieces, as plain data: some of its steps, one step, some of its tasks, one
value. For views that poll and must not read a long thread as a whole.

`step_data` decides the content of a piece and the length of its texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ...checkpoint.base import address
from ...pregel.app import Pregel
from ...pregel.names import START
from ..extract import extract
from ..fold import FittedGraph, fit
from ..svg import draw_svg
from ..trace.diff import DiffLimits, diff
from ..trace.index import NotThereError, ThreadIndex, shared
from ..trace.orphans import Orphans
from ..trace.reader import TextLimit, read_open_step, read_steps
from ..trace.records import Trace, TraceStep, TraceTask, mark_running
from ..trace.values import block, duration, format_value, sanitize
from .branches import draw_branches
from .step_data import (
    Data,
    Prices,
    count_by_node,
    count_usage,
    describe_changes,
    describe_step,
    describe_task,
    describe_whole_task,
    describe_writers,
    list_new_messages,
    state_keys,
)
from .timeline import Timeline, build_timeline

MOST_STEPS: Final = 500
"""How many steps are returned at once."""
MOST_TASKS: Final = 500
"""How many tasks are returned at once."""
MOST_KEYS: Final = 500
"""For how many keys of a state the texts are returned."""
PREVIEW: Final = 2000
"""The maximum number of characters of a value, or of a task's input or result, unless it is
requested by itself."""
MOST_NESTED: Final = 60
"""How many histories of nested graphs are read for one answer."""
WHOLE: Final = 400_000
"""The maximum number of characters of one that is requested by itself."""
MOST_TREE: Final = 300
"""A tree with more branches is not drawn, since it would be illegible."""

OPEN: Final = "open"
"""Names the step that has made no checkpoint yet."""

_ABSENT: Final = object()
_FEW: Final = DiffLimits(changes=12, text=40, lines=1, depth=1)
_MANY: Final = DiffLimits(changes=100, text=400, lines=60)


class _ReadStep(NamedTuple):
    """A step, the states before and after it, and what an older graph has left beside it."""

    step: TraceStep
    before: Any
    after: Any
    left: Orphans


class ThreadPages:
    """One thread of a graph. Reads only, through the sync methods of its checkpointer. Used by one
    reader at a time.

    Args:
        index: the index of the thread; `refresh` it first. If it has only the newest checkpoints,
            older steps cannot be requested, and their number is an estimate.

    Attributes:
        busy_since: when the run in progress began, in seconds since the epoch; None if there is
            none. Nothing stored says so: the caller knows.
    """

    def __init__(self, app: Pregel, index: ThreadIndex, busy_since: float | None = None) -> None:
        self.app = app
        self.busy_since = busy_since
        self._index = index
        # The step that was read last, and the open one, each with the key under which it may be
        # used again: the next request is usually about the same step.
        self._known_steps: dict[bool, tuple[Any, _ReadStep | None]] = {}

    def find(self, tip: str = "", at: str = "", number: int | None = None) -> Data:
        """Return the index of a step on the line to a checkpoint: the step that made a checkpoint,
        or the first with at least this number."""
        line = self._index.line(self._tip(tip))
        if number is None:
            if at not in line.checkpoints:
                raise NotThereError(f"the branch has no checkpoint {at!r}")
            behind = {*line.checkpoints[line.checkpoints.index(at) :]}
            found = (place for place, id in enumerate(line.rows) if id in behind)
        else:
            points = self._index.points
            found = (place for place, id in enumerate(line.rows) if points[id].number >= number)
        return {"place": next(found, max(len(line.rows) - 1, 0))}

    def steps(
        self, tip: str = "", first: int | None = None, count: int = 100, *, nested: bool = False
    ) -> Data:
        """Return some steps of the line to a checkpoint, and the open step if the checkpoint is the
        newest.

        Args:
            tip: the checkpoint's id; the newest by default.
            first: the index of the first step; the last `count` steps by default.
            nested: include the tasks of nested graphs, which costs more.
        """
        tip = self._tip(tip)
        line = self._index.line(tip)
        part = _clip(line.rows, first, count)
        seen: dict[int, Data] = {}

        def visit(step: TraceStep, before: Any, after: Any) -> None:
            used = count_usage(list_new_messages(before, after), self._prices())
            seen[id(step)] = {"keys": _touched(before, after), "$": used}

        left_out = 0
        if line.rows and not self._index.is_whole:  # an estimate: steps count up from 0
            left_out = max(self._index.points[line.rows[0]].number, 0)
        found = read_steps(
            self.app, self._index, tip, line.rows[part], visit,
            most_nested=MOST_NESTED if nested else 0,
        )  # fmt: skip
        remarks, opened = self._open(tip)
        timeline = self._timeline([*found, *opened])
        steps = [
            self._head(timeline, place, step, f=line.forks[step.checkpoint or ""], **seen[id(step)])
            for place, step in enumerate(found)
        ]
        return {
            "tip": tip,
            "head": self._index.head,
            "count": left_out + len(line.rows),
            "first": left_out + part.start,
            "whole": self._index.is_whole,
            "runs": line.runs if self._index.is_whole else [],
            "steps": steps,
            "open": next((self._head(self._timeline(opened), 0, each) for each in opened), None),
            "remarks": [*map(sanitize, remarks)],
        }

    def run(self, number: int = 1, tip: str = "") -> Data:
        """Return how long a run of the line took so far, and what its models have used.

        Args:
            number: which run, the first is 1.
        """
        tip = self._tip(tip)
        line = self._index.line(tip)
        begins = [*line.runs, len(line.rows)]
        if not 0 < number < len(begins):
            raise NotThereError(f"the branch has no run {number}")
        rows = line.rows[begins[number - 1] : begins[number]][:MOST_STEPS]
        used: list[Any] = []

        def visit(step: TraceStep, before: Any, after: Any) -> None:
            if step.checkpoint in rows:
                used.extend(list_new_messages(before, after))

        found = read_steps(self.app, self._index, tip, rows, visit, most_nested=0)
        opened = self._open(tip)[1] if number == len(line.runs) else []
        timeline = self._timeline([*found, *opened])
        took = sum(timeline.took(place) or 0 for place in range(len(timeline.steps)))
        return {"t": duration(took), "$": count_usage(used, self._prices())}

    def usage(self, key: str) -> Data:
        """Return what each message in a key of the newest state has used, and all of them; see
        `count_usage`."""
        messages = state_keys(self._values(self._tip(""))).get(key)
        messages = messages if isinstance(messages, list) else []
        prices = self._prices()
        each = [count_usage([message], prices) for message in messages]
        return {"each": each, "all": count_usage(messages, prices)}

    def became(self, key: str, text: str = "", tip: str = "", last: int | None = None) -> Data:
        """Return the steps that gave a key a value, the oldest first: a text or collection that
        contains what is searched for, or another value that is written so.

        Args:
            text: any change of the key if it is empty.
            last: only steps before this place; the result says which place is the next one.
        """
        tip = self._tip(tip)
        rows = self._index.line(tip).rows[:last]
        first = max(len(rows) - MOST_STEPS, 0)
        found: dict[str, Data] = {}

        def visit(step: TraceStep, before: Any, after: Any) -> None:
            old, new = (state_keys(state).get(key, _ABSENT) for state in (before, after))
            is_new = _fits(new, text) and not _fits(old, text) if text else new != old
            if step.checkpoint and is_new:
                value = "" if new is _ABSENT else format_value(new, 60)
                found[step.checkpoint] = {"c": step.checkpoint, "n": step.number, "value": value}

        read_steps(self.app, self._index, tip, rows[first:], visit, most_nested=0)
        steps = [found[id] for id in rows[first:] if id in found]
        return {"steps": steps, "next": first or None}

    def step(self, at: str, tip: str = "") -> Data | None:
        """Return one step with its changes and the state after it; None if no step is open any
        more.

        Args:
            at: the checkpoint that it made, or "open".
            tip: the end of the line that the step is on; the newest checkpoint by default.
        """
        read = self._read(at, tip)
        if read is None:
            return None
        step, old, new, _ = read
        changes = diff(old, new, _MANY)
        after = state_keys(new)
        touched = {*_touched(old, new)}
        opened: list[TraceStep] = []
        if at != OPEN and any(task.state == "failed" for task in step.tasks):  # maybe it still is
            opened = self._open(tip)[1]
        timeline = self._timeline([step, *opened])
        return {
            **describe_step(timeline, 0, step),
            "d": describe_changes(changes),
            "$": count_usage(list_new_messages(old, new), self._prices()),
            "b": describe_writers(step) if len(step.tasks) > 1 else {},
            "tasks": len(_own_tasks(read)),
            "u": count_by_node(step, timeline.steps),
            "keys": len(after),
            "state": [_preview(key, after[key], touched) for key in [*after][:MOST_KEYS]],
        }

    def tasks(
        self,
        at: str,
        tip: str = "",
        *,
        first: int = 0,
        count: int = 100,
        state: str = "",
        slowest: bool = False,
    ) -> Data:
        """Return some tasks of a step, each followed by those that ran inside it, or the slowest
        first."""
        tasks = _own_tasks(self._read(at, tip))
        found = [task for task in tasks if not state or task.state == state]
        if slowest:
            found.sort(key=lambda task: sum(took for _, took in task.spans), reverse=True)
        first, count = max(first, 0), min(max(count, 0), MOST_TASKS)
        rows = [describe_task(task) for task in found[first : first + count]]
        return {"count": len(found), "first": first, "tasks": rows}

    def task(self, at: str, id: str, tip: str = "") -> Data:
        """Return everything that is known about one task."""
        read = self._read_anew(at, self._tip(tip), lambda task: WHOLE if task.id == id else 0)
        for task in _own_tasks(read):
            if task.id == id:
                return describe_whole_task(task)
        raise NotThereError(f"the step has no task {id!r}")

    def value(self, at: str, key: str, tip: str = "") -> Data:
        """Return the value of a key after a step."""
        read = self._read(at, tip)
        state = {} if read is None else state_keys(read.after)
        if key not in state:
            raise NotThereError(f"the state has no key {key!r}")
        return {"key": key, "text": block(state[key], WHOLE)}

    def timeline(
        self, tip: str = "", first: int | None = None, count: int = 60, width: int = 900
    ) -> str:
        """Return when some steps ran, as SVG without its own style sheet.

        Args:
            width: in pixels; more if the steps need it.
        """
        tip = self._tip(tip)
        rows = self._index.line(tip).rows
        part = _clip(rows, first, max(count, 1))
        steps = read_steps(self.app, self._index, tip, rows[part], most_nested=MOST_NESTED)
        if part.stop >= len(rows):
            steps = (*steps, *self._open(tip)[1])
        timeline = self._timeline(steps)
        # No call begins where a part of the thread begins.
        if part.start and steps and steps[0].source == "loop":
            timeline = replace(timeline, calls=tuple(c for c in timeline.calls if c.step))
        across = max(16 * len(steps), min(width, 40_000), 320)
        return without_style(timeline.draw_svg(width=across))

    # -- branches ----------------------------------------------------------------------------------

    def branches(self) -> Data:
        """Return the ends of all branches, the oldest branch first."""
        tips = self._index.tips()
        found = [
            {
                "number": number,
                "tip": tip,
                "step": self._index.points[tip].number,
                "own": self._index.count_own(tip),
                "next": self._index.points[tip].next,
            }
            for number, tip in enumerate(tips, 1)
        ]
        return {"head": self._index.head, "branches": found, "tree": len(tips) <= MOST_TREE}

    def tree(self) -> str:
        """Return the branches as a tree, as SVG without its own style sheet. Its nodes have the ids
        of their newest checkpoints.

        Raises:
            NotThereError: there are too many branches to draw.
        """
        if len(self._index.tips()) > MOST_TREE:
            raise NotThereError(f"a thread of more than {MOST_TREE} branches has no drawing")
        return without_style(draw_svg(draw_branches(self._index).model))

    def compare(self, one: str, other: str, most: int = 100) -> Data:
        """Return the differences between the lines to two checkpoints, and between their states."""
        first, second = (self._index.line(self._known(id)) for id in (one, other))
        both = {*first.checkpoints[: shared(first.checkpoints, second.checkpoints)]}
        before, after = (self._values(id) for id in (one, other))
        own = [[id for id in line.rows if id not in both] for line in (first, second)]
        return {
            "both": sum(1 for id in first.rows if id in both),
            "own": [len(rows) for rows in own],
            "steps": [
                self.steps(tip, count=min(len(rows), most))["steps"]
                for tip, rows in zip((one, other), own, strict=True)
            ],
            "d": describe_changes(diff(before, after, _MANY)),
        }

    # -- reading -----------------------------------------------------------------------------------

    def _tip(self, tip: str) -> str:
        return self._known(tip) if tip else self._index.head

    def _known(self, id: str) -> str:
        if id not in self._index.points:
            raise NotThereError(f"the thread has no checkpoint {id!r}")
        return id

    def _values(self, id: str) -> Any:
        return self.app.get_state(address(self._index.thread_id, self._index.ns, id)).values

    def _read(self, at: str, tip: str) -> _ReadStep | None:
        """Return a step, with short texts of its tasks; from the cache if it cannot have changed.
        None if the open step is requested and has ended."""
        tip, index, program = self._tip(tip), self._index, self.app.program
        key: Any = at, tip
        if at == OPEN:
            # Nested graphs record beside their own checkpoints, and with schedule="ready" a task
            # records beside the checkpoint at which it has started.
            elsewhere = program.nested or program.starts_ready or tip != index.head
            is_counted = index.revision is not None and not elsewhere
            key = (tip, index.revision, self.busy_since) if is_counted else None
        known = self._known_steps.get(at == OPEN)
        if known is None or key is None or known[0] != key:
            known = self._known_steps[at == OPEN] = key, self._read_anew(at, tip)
        return known[1]

    def _read_anew(self, at: str, tip: str, texts: TextLimit | bool = True) -> _ReadStep | None:
        states: dict[int, tuple[Any, Any]] = {}

        def visit(step: TraceStep, before: Any, after: Any) -> None:
            states[id(step)] = before, after

        index, left = self._index, Orphans()
        if at == OPEN:
            if not index.is_tip(tip):
                return None
            where = address(index.thread_id, index.ns, tip)
            found, left = read_open_step(self.app, where, visit, texts=texts)
            if found is None:
                return None
            seen = states[id(found)]
            if self.busy_since is not None and tip == index.head:
                found = mark_running(found, self.busy_since, [id for _, id, _ in left.tasks])
            return _ReadStep(found, *seen, left)
        if self._known(at) not in index.line(tip).checkpoints:
            tip = at
        for found in read_steps(self.app, index, tip, [at], visit, texts=texts):
            return _ReadStep(found, *states[id(found)], left)
        raise NotThereError(f"the thread has no step that made the checkpoint {at!r}")

    def _open(self, tip: str) -> tuple[tuple[str, ...], list[TraceStep]]:
        """Return remarks on the thread, and its open step if there is one."""
        read = self._read(OPEN, tip)
        return ((), []) if read is None else (read.left.remarks, [read.step])

    def _prices(self) -> Prices:
        return next((each.prices for each in self.app.budgets if each.prices), {})

    def _timeline(self, steps: Iterable[TraceStep]) -> Timeline:
        name = self.app.program.name
        return build_timeline(Trace(name, self._index.thread_id, "", None, tuple(steps)))

    def _head(self, timeline: Timeline, place: int, step: TraceStep, **more: Any) -> Data:
        counts = count_by_node(step, timeline.steps)
        return describe_step(timeline, place, step, u=counts, **more)


def draw_graph(app: Pregel) -> tuple[str, FittedGraph]:
    """Return a graph as SVG without its own style sheet."""
    fitted = fit(extract(app, xray=True))
    return without_style(draw_svg(fitted.model, fitted.layout)), fitted


def without_style(svg: str) -> str:
    """Return a drawing for a page whose policy allows style sheets only from files: without its own
    style sheet and without style attributes."""
    svg = re.sub(r"<style>.*?</style>", "", svg, count=1, flags=re.DOTALL)
    return svg.replace(' style="max-width:100%;height:auto"', "", 1)


def _clip(rows: Sequence[str], first: int | None, count: int) -> slice:
    """Return which rows to read: from the first one, or the last ones."""
    count = min(max(count, 0), MOST_STEPS)
    first = max(len(rows) - count if first is None else first, 0)
    return slice(first, first + count)


def _own_tasks(read: _ReadStep | None) -> list[TraceTask]:
    return [task for task in read.step.all_tasks() if task.name != START] if read else []


def _touched(before: Any, after: Any) -> list[str]:
    """Return the keys that a step has changed."""
    return list(dict.fromkeys(c.path[0] for c in diff(before, after, _FEW) if any(c.path[:1])))


def _fits(value: Any, text: str) -> bool:
    """Return whether a value is the one that is searched for, see `ThreadPages.became`."""
    if value is _ABSENT:
        return False
    shown = format_value(value, WHOLE)
    return text.lower() in shown.lower() if isinstance(value, str | list | dict) else shown == text


def _preview(key: str, value: Any, touched: set[str]) -> Data:
    """Return a key with the beginning of its value; `whole` says that there is no more."""
    text = block(value, PREVIEW)
    is_whole = len(text) < PREVIEW // 2
    return {"key": key, "text": text, "whole": is_whole, "fresh": key in touched}
