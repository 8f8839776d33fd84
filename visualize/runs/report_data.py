"""What a report tells of a thread, as plain data: steps with their changes, values by number,
errors and questions.

Everything here is text already, shortened so that the whole stays within a budget. How it looks is
not decided here.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...pregel.app import Pregel
from ...pregel.names import START
from ...pregel.types import AnyConfig
from ..group import group
from ..labels import TIMES, drop_illegal
from .changes import headline, writers
from .diff import Change, DiffLimits, diff, draw_html
from .timeline import Timeline, build_timeline
from .trace import Trace, TraceStep, TraceTask
from .trace_reader import read_snapshot, read_trace
from .values import block, duration, format_key, format_value, sanitize

BUDGET = 1_200_000
"""Characters for all changes of a report, and as many for all values."""

MOST = 50
"""So many errors and questions are shown."""

BAD = ("failed", "paused")
"""States of tasks that are shown first."""

MOST_ROWS = 60
"""So many rows of tasks are shown for a step."""

Data = dict[str, Any]


class Trouble(NamedTuple):
    """An error or a question of a task. `step` is its place in the list of steps, `path` what the
    task is called, `input` what an error's task was called with."""

    step: int
    node: str
    path: str
    title: str
    text: str
    input: str = ""


@dataclass
class ReportData:
    """All that a page shows.

    Attributes:
        steps: what the page's script reads, one dict per step; see `_step`.
        values: the texts of values; steps name them by number.
        limit: characters that a value may have.
        unheard: errors that are not told because there are too many.
    """

    trace: Trace
    timeline: Timeline
    limit: int
    steps: list[Data] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    errors: list[Trouble] = field(default_factory=list)
    questions: list[Trouble] = field(default_factory=list)
    unheard: int = 0

    def fold(self, homes: Mapping[str, str]) -> None:
        """Let each step name what stands for its nodes in the pictures, too."""
        for step in self.steps:
            ran = step.get("w", ())
            for known in (homes, self.timeline.homes):
                told = dict.fromkeys(drop_illegal(known[id]) for id in ran if id in known)
                ran = [*ran, *(id for id in told if id not in ran)]
            if ran:
                step["w"] = ran


def gather(app: Pregel, config: AnyConfig) -> ReportData:
    """Read a thread and shorten what it holds.

    Raises:
        TypeError, ValueError: see `read_trace`.
    """
    metadata = read_snapshot(app, config).metadata
    expected = int((metadata or {}).get("step", 0)) + 3
    states = _States(_share(expected, 200, 6000), _limits(expected))
    trace = read_trace(app, config, states.look, texts=True)
    report = ReportData(trace, build_timeline(trace), states.limit)
    numbers: dict[str, int] = {}
    room = _share(len(trace.steps), 150, 20_000)
    forks = Counter(branch.parent for branch in trace.branches)
    for place, step in enumerate(trace.steps):
        told = states.told.pop(id(step))
        data = _step(report.timeline, place, step, within(told.changes, room))
        data["v"] = {
            key: numbers.setdefault(text, len(numbers)) for key, text in told.after.items()
        }
        data["x"] = list(told.gone)
        data["f"] = forks[step.checkpoint]
        report.steps.append(
            {
                key: value
                for key, value in data.items()
                if value not in (None, [], {}, "", 0) or key == "n"
            }
        )
    report.values = list(numbers)
    _gather_troubles(report)
    return report


def _share(count: int, least: int, most: int) -> int:
    return max(least, min(most, BUDGET // max(count, 1)))


def _limits(count: int) -> DiffLimits:
    few = count > 2000
    return DiffLimits(changes=12 if few else 60, text=80 if few else 200, lines=6 if few else 30)


# -- states ----------------------------------------------------------------------------------------


class _StepTexts(NamedTuple):
    """Of one step: its changes, and the texts of the keys that changed or went."""

    changes: tuple[Change, ...]
    after: dict[str, str]
    gone: tuple[str, ...]


class _States:
    """Turns the states that the trace hands over, newest first, into short texts, so that none must
    be kept."""

    def __init__(self, limit: int, limits: DiffLimits) -> None:
        self.limit = limit
        self.limits = limits
        self.told: dict[int, _StepTexts] = {}

    def look(self, step: TraceStep, before: Any, after: Any) -> None:
        changes = diff(before, after, self.limits)
        old, new = _keys(before), _keys(after)
        touched = {change.path[0] if change.path else "" for change in changes}
        every = any(change.kind == "more" for change in changes) or "" in touched
        after_texts = {
            key: self._text(value) for key, value in new.items() if every or key in touched
        }
        self.told[id(step)] = _StepTexts(
            changes, after_texts, tuple(key for key in old if key not in new)
        )

    def _text(self, value: Any) -> str:
        return drop_illegal(block(value, self.limit))


def _keys(state: Any) -> dict[str, Any]:
    """The state by its keys, as the changes name them; one that has none stands under no name."""
    if isinstance(state, dict):
        return {format_key(key): value for key, value in state.items()}
    return {"": state}


def within(changes: Iterable[Change], room: int) -> Iterator[Change]:
    """The changes for which there is room, in characters; of what is left out the number is
    told."""
    changes = list(changes)
    for place, change in enumerate(changes):
        size = len(draw_html([change]))
        if size > room and place:
            left = sum(
                int(c.after.replace(",", "")) if c.kind == "more" else 1 for c in changes[place:]
            )
            yield Change((), "more", "", f"{left:,}")
            return
        if size > room:
            change = change._replace(
                before=change.before[:40], after=change.after[:80], lines=change.lines[:2]
            )
        room -= size
        yield change


# -- steps -----------------------------------------------------------------------------------------


def _step(timeline: Timeline, place: int, step: TraceStep, changes: Iterable[Change]) -> Data:
    """One step as the page's script reads it.

    n: number, h: headline, s: how it stands, l: how many tasks stand so, t: how long it ran, c:
    checkpoint, a: stored at (milliseconds since the epoch), w: ids of its nodes with the nested
    ones, d: changes as HTML, b: key → who wrote it, k: its tasks as rows, m: the caller's metadata;
    v: key → number of its value, x: keys that went, f: how many branches leave here.
    """
    took = timeline.took(place)
    rows = list(_task_rows(step))
    who = writers(step) if len(rows) > 1 else {}
    own = {k: v for k, v in step.metadata.items() if k not in ("source", "step", "parents")}
    ids = dict.fromkeys(drop_illegal(task.node) for task in step.all_tasks() if task.name != START)
    return {
        "n": step.number,
        "h": drop_illegal(headline(step).partition(": ")[2]),
        "s": _standing(step),
        "t": "" if took is None else duration(took),
        "c": step.checkpoint,
        "a": round(step.at * 1000) if step.at else 0,
        "w": list(ids),
        "d": drop_illegal(draw_html(changes)),
        "b": {
            drop_illegal(sanitize(key, 80)): drop_illegal(", ".join(names))
            for key, names in who.items()
        },
        "k": rows,
        "l": _count_states(step) if len(rows) > 1 else "",
        "m": drop_illegal(format_value(own, 400)) if own else "",
    }


def _standing(step: TraceStep) -> str:
    states = {task.state for task in step.tasks}
    if step.source == "open":
        return next((state for state in ("failed", "paused") if state in states), "waiting")
    return "handled" if "failed" in states else ""


def _task_rows(step: TraceStep) -> Iterator[list[str]]:
    """[node, state, attempts and times, input, result, note] of each task, the last two only where
    there are any; equal ones share a row. Of very many, those that did not end well are
    shown rather than others."""
    groups = group(
        ((task.path, task.state, len(task.spans), _in_and_out(task)), task)
        for task in step.all_tasks()
        if task.name != START
    )
    rows = list(groups.items())
    shown = set(sorted(range(len(rows)), key=lambda n: rows[n][0][1] not in BAD)[:MOST_ROWS])
    for number, ((_, state, attempts, texts), tasks) in enumerate(rows):
        if number in shown:
            name = drop_illegal(tasks[0].path)
            yield [name, state, _describe_times(tasks, attempts), *map(drop_illegal, texts)]
    if len(rows) > MOST_ROWS:
        yield ["…", "", f"{len(rows) - MOST_ROWS:,} more"]


def _count_states(step: TraceStep) -> str:
    """How the tasks of a step stand, if not all of them are done: `2 of 30 failed`."""
    states = Counter(task.state for task in step.tasks)
    return ", ".join(
        f"{count:,} of {len(step.tasks):,} {state}"
        for state, count in states.items()
        if state in BAD
    )


def _describe_times(tasks: list[TraceTask], attempts: int) -> str:
    """How many tasks there were, with how many attempts each, and how long these took."""
    times = [took for task in tasks for _, took in task.spans]
    parts = [f"{TIMES}{len(tasks):,}"] if len(tasks) > 1 else []
    if attempts > 1:
        parts.append(f"{attempts} attempts")
    if len(times) == 1:
        parts.append(duration(times[0]))
    elif times:
        parts.append(f"{duration(min(times))} to {duration(max(times))}")
    return " ".join(parts)


def _in_and_out(task: TraceTask) -> tuple[str, ...]:
    """What a task got, and what became of it: its result, and what it raised or asked."""
    note = ""
    if task.error is not None:
        note = format_value(task.error, 160)
    elif task.questions:
        note = f"asked: {format_value(task.questions[0].value, 160)}"
    ends = [text for text in (task.result, note) if text]
    return tuple(map(sanitize, (task.input, *ends)))


# -- what needs a person ---------------------------------------------------------------------------


def _gather_troubles(report: ReportData) -> None:
    """Errors of all steps, and the questions that are open."""
    for place, step in enumerate(report.trace.steps):
        for task in step.all_tasks():
            if _is_source_of_error(task):
                if len(report.errors) < MOST:
                    report.errors.append(_describe_error(place, step.number, task))
                else:
                    report.unheard += 1
            if step.source == "open" and _is_asking(task):
                room = MOST - len(report.questions)
                report.questions += [
                    Trouble(
                        place,
                        task.node,
                        task.path,
                        f'answer with Command(resume={{"{question.id}": ...}})',
                        drop_illegal(block(question.value, 4000)),
                    )
                    for question in task.questions[:room]
                ]


def _is_source_of_error(task: TraceTask) -> bool:
    """Whether it failed by itself: an error that came up from below is shown there."""
    error = task.error
    return error is not None and not any(
        # They were stored apart.
        inner.error is not None and format_value(inner.error, 2000) == format_value(error, 2000)
        for inner in _below(task)
    )


def _is_asking(task: TraceTask) -> bool:
    return task.state == "paused" and not any(inner.questions for inner in _below(task))


def _below(task: TraceTask) -> Iterator[TraceTask]:
    for step in task.steps:
        yield from step.all_tasks()


def _describe_error(place: int, number: int, task: TraceTask) -> Trouble:
    assert task.error is not None
    try:
        lines = traceback.format_exception(task.error)
    except Exception:  # a foreign __str__ or __cause__ may do anything
        lines = [format_value(task.error, 400)]
    return Trouble(
        place,
        task.node,
        task.path,
        f"in step {number}",
        drop_illegal(sanitize("".join(lines), 6000).rstrip()),
        drop_illegal(sanitize(task.input)),
    )
