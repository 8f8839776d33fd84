"""What a report tells of a thread, as plain data: steps with their changes, values by number, errors and questions.

Everything here is text already, shortened so that the whole stays within a budget. How it looks is not decided here.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...checkpoint.base import RunnableConfig
from ...pregel.app import Pregel
from ...pregel.names import START
from .changes import headline, writers
from .diff import Change, Limits, diff, draw_html
from .story import Step, Story, Task, TaskState, newest, read
from .timeline import Timeline, of_story
from .values import TIMES, block, duration, legal, plain, shown

BUDGET = 1_200_000
"""Characters for all changes of a report, and as many for all values."""

MOST = 50
"""So many errors and questions are told."""

Data = dict[str, Any]


class Trouble(NamedTuple):
    """An error or a question of a task. `step` is its place in the list of steps, `path` what the task is called."""

    step: int
    node: str
    path: str
    title: str
    text: str


@dataclass
class Report:
    """All that a page shows.

    Attributes:
        steps: what the page's script reads, one dict per step; see `_step`.
        values: the texts of values; steps name them by number.
        limit: characters that a value may have.
        unheard: errors that are not told because there are too many.
    """

    story: Story
    timeline: Timeline
    limit: int
    steps: list[Data] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    errors: list[Trouble] = field(default_factory=list)
    questions: list[Trouble] = field(default_factory=list)
    unheard: int = 0


def gather(app: Pregel, config: RunnableConfig) -> Report:
    """Read a thread and shorten what it holds.

    Raises:
        TypeError, ValueError: see `read`.
    """
    metadata = newest(app, config).metadata
    expected = int((metadata or {}).get("step", 0)) + 3
    states = _States(_share(expected, 200, 6000), _limits(expected))
    story = read(app, config, states.look)
    report = Report(story, of_story(story), states.limit)
    numbers: dict[str, int] = {}
    room = _share(len(story.steps), 150, 20_000)
    forks = _forks(story)
    for place, step in enumerate(story.steps):
        told = states.told.pop(id(step))
        data = _step(report.timeline, place, step, within(told.changes, room))
        data["v"] = {key: numbers.setdefault(text, len(numbers)) for key, text in told.after.items()}
        data["x"] = list(told.gone)
        data["f"] = forks.get(step.checkpoint, 0)
        report.steps.append(
            {key: value for key, value in data.items() if value not in (None, [], {}, "", 0) or key == "n"}
        )
    report.values = list(numbers)
    _gather_troubles(report)
    return report


def _share(count: int, least: int, most: int) -> int:
    return max(least, min(most, BUDGET // max(count, 1)))


def _limits(count: int) -> Limits:
    few = count > 2000
    return Limits(changes=12 if few else 60, text=80 if few else 200, lines=6 if few else 30)


# -- states ---------------------------------------------------------------------------------------------------


class _Told(NamedTuple):
    """Of one step: its changes, and the texts of the keys that changed or went."""

    changes: tuple[Change, ...]
    after: dict[str, str]
    gone: tuple[str, ...]


class _States:
    """Turns the states that the story hands over, newest first, into short texts, so that none must be kept."""

    def __init__(self, limit: int, limits: Limits) -> None:
        self.limit = limit
        self.limits = limits
        self.told: dict[int, _Told] = {}

    def look(self, step: Step, before: Any, after: Any) -> None:
        changes = diff(before, after, self.limits)
        old, new = _keys(before), _keys(after)
        touched = {change.path[0] if change.path else "" for change in changes}
        every = any(change.kind == "more" for change in changes) or "" in touched
        after_texts = {key: self._text(value) for key, value in new.items() if every or key in touched}
        self.told[id(step)] = _Told(changes, after_texts, tuple(key for key in old if key not in new))

    def _text(self, value: Any) -> str:
        return legal(block(value, self.limit))


def _keys(state: Any) -> dict[str, Any]:
    """The state by its keys, as the changes name them; one that has none stands under no name."""
    if isinstance(state, dict):
        return {plain(key, 80) if isinstance(key, str) and key else shown(key, 80): v for key, v in state.items()}
    return {"": state}


def within(changes: Iterable[Change], room: int) -> Iterator[Change]:
    """The changes for which there is room, in characters; of what is left out the number is told."""
    changes = list(changes)
    for place, change in enumerate(changes):
        size = len(draw_html([change]))
        if size > room and place:
            left = sum(int(c.after.replace(",", "")) if c.kind == "more" else 1 for c in changes[place:])
            yield Change((), "more", "", f"{left:,}")
            return
        if size > room:
            change = change._replace(before=change.before[:40], after=change.after[:80], lines=change.lines[:2])
        room -= size
        yield change


# -- steps ----------------------------------------------------------------------------------------------------


def _step(timeline: Timeline, place: int, step: Step, changes: Iterable[Change]) -> Data:
    """One step as the page's script reads it.

    n: number, h: headline, s: how it stands, t: how long it ran, c: checkpoint, a: stored at (milliseconds since the
    epoch), w: ids of its nodes with the nested ones, d: changes as HTML, b: key → who wrote it, k: its tasks as rows,
    m: the caller's metadata; v: key → number of its value, x: keys that went, f: how many branches leave here.
    """
    took = timeline.took(place)
    rows = list(_task_rows(step))
    obvious = [len(task.spans) for task in step.tasks] == [1] and [row[1] for row in rows] == ["done"]
    own = {k: v for k, v in step.metadata.items() if k not in ("source", "step", "parents")}
    return {
        "n": step.number,
        "h": legal(headline(step).partition(": ")[2]),
        "s": _standing(step),
        "t": "" if took is None else duration(took),
        "c": step.checkpoint,
        "a": round(step.at * 1000) if step.at else 0,
        "w": list(dict.fromkeys(legal(task.node) for task in _tasks(step) if task.name != START)),
        "d": legal(draw_html(changes)),
        "b": {legal(plain(key, 80)): legal(", ".join(who)) for key, who in writers(step).items()} if rows[1:] else {},
        "k": [] if obvious else rows,
        "m": legal(shown(own, 400)) if own else "",
    }


def _standing(step: Step) -> str:
    states = {task.state for task in step.tasks}
    if step.source == "open":
        return next((state for state in ("failed", "paused") if state in states), "waiting")
    return "handled" if "failed" in states else ""


def _tasks(step: Step) -> Iterator[Task]:
    for task in step.tasks:
        yield task
        for inner in task.steps:
            yield from _tasks(inner)


def _task_rows(step: Step) -> Iterator[list[str]]:
    """[node, state, attempts and times, note] of each task worth a row; many equal ones share one."""
    groups: dict[tuple[str, TaskState, int, str], list[Task]] = {}
    for task in _tasks(step):
        if task.name != START:
            groups.setdefault((task.node, task.state, len(task.spans), _note(task)), []).append(task)
    for (_, state, attempts, note), tasks in list(groups.items())[:40]:
        times = [took for task in tasks for _, took in task.spans]
        words = f"{TIMES}{len(tasks):,} " if len(tasks) > 1 else ""
        words += f"{attempts} attempts " if attempts > 1 else ""
        if len(times) == 1:
            words += duration(times[0])
        elif times:
            words += f"{duration(min(times))} to {duration(max(times))}"
        yield [legal(tasks[0].path), state, words.strip(), note]
    if len(groups) > 40:
        yield ["…", "", f"{len(groups) - 40:,} more", ""]


def _note(task: Task) -> str:
    if task.error is not None:
        return legal(plain(shown(task.error, 160), 200))
    return legal("asked: " + shown(task.questions[0].value, 160)) if task.questions else ""


def _forks(story: Story) -> Mapping[str | None, int]:
    found: dict[str | None, int] = {}
    for branch in story.branches:
        found[branch.parent] = found.get(branch.parent, 0) + 1
    return found


# -- what needs a person --------------------------------------------------------------------------------------


def _gather_troubles(report: Report) -> None:
    """Errors of all steps, and the questions that are open."""
    for place, step in enumerate(report.story.steps):
        for task in _tasks(step):
            if task.error is not None and not any(_alike(inner.error, task.error) for inner in _below(task)):
                if len(report.errors) < MOST:
                    report.errors.append(_error(place, step.number, task))
                else:
                    report.unheard += 1
            if step.source == "open" and task.state == "paused" and not any(t.questions for t in _below(task)):
                for question in task.questions[: MOST - len(report.questions)]:
                    report.questions.append(
                        Trouble(
                            place,
                            task.node,
                            task.path,
                            f'answer with Command(resume={{"{question.id}": ...}})',
                            legal(block(question.value, 4000)),
                        )
                    )


def _below(task: Task) -> Iterator[Task]:
    for step in task.steps:
        yield from _tasks(step)


def _alike(one: BaseException | None, other: BaseException) -> bool:
    """Whether an error is the one that came up from below: they were stored apart."""
    return one is not None and shown(one, 2000) == shown(other, 2000)


def _error(place: int, number: int, task: Task) -> Trouble:
    assert task.error is not None
    try:
        lines = traceback.format_exception(task.error)
    except Exception:  # a foreign __str__ or __cause__ may do anything
        lines = [shown(task.error, 400)]
    return Trouble(place, task.node, task.path, f"in step {number}", legal(plain("".join(lines), 6000).rstrip()))
