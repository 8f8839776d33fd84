"""The content of a report on a thread, as plain data: steps with their changes, values by number,
errors and questions.

Everything here is text, shortened so that the whole stays within a budget. Its appearance is
decided elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...pregel.app import Pregel
from ...pregel.types import AnyConfig
from ..labels import drop_illegal
from ..trace.diff import DiffLimits
from ..trace.reader import read_snapshot, read_trace
from ..trace.records import Trace, TraceTask, find_still_failed
from ..trace.values import block, format_value, sanitize
from .step_data import (
    Data,
    StateTexts,
    describe_changes,
    describe_error,
    describe_step,
    describe_writers,
    list_task_rows,
    within,
    without_empty,
)
from .timeline import Timeline, build_timeline

BUDGET = 1_200_000
"""The maximum number of characters for all changes of a report, and for all its values."""

MOST = 50
"""How many errors and questions are shown."""


class Trouble(NamedTuple):
    """An error or a question of a task. `step` is its index in the list of steps, `path` the task's
    name for readers, `input` what a task that failed was called with."""

    step: int
    node: str
    path: str
    title: str
    text: str
    input: str = ""


@dataclass
class ReportData:
    """Everything that a page shows.

    Attributes:
        steps: what the page's script reads, one dict per step; see `describe_step`.
        values: the texts of values; steps name them by number.
        limit: the maximum number of characters of a value.
        unheard: the number of errors left out because there are too many.
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
        """Add to each step the nodes that represent its nodes in the pictures."""
        for step in self.steps:
            ran = step.get("w", ())
            for known in (homes, self.timeline.homes):
                told = dict.fromkeys(drop_illegal(known[id]) for id in ran if id in known)
                ran = [*ran, *(id for id in told if id not in ran)]
            if ran:
                step["w"] = ran


def gather(app: Pregel, config: AnyConfig) -> ReportData:
    """Read a thread and shorten its content.

    Raises:
        TypeError, ValueError: see `read_trace`.
    """
    metadata = read_snapshot(app, config).metadata
    expected = int((metadata or {}).get("step", 0)) + 3
    states = StateTexts(_share(expected, 200, 6000), _limits(expected))
    trace = read_trace(app, config, states.look, texts=True)
    report = ReportData(trace, build_timeline(trace), states.limit)
    numbers: dict[str, int] = {}
    room = _share(len(trace.steps), 150, 20_000)
    forks = Counter(branch.parent for branch in trace.branches)
    for place, step in enumerate(trace.steps):
        told = states.told.pop(id(step))
        rows = list(list_task_rows(step))
        data = {
            **describe_step(report.timeline, place, step),
            "d": describe_changes(within(told.changes, room)),
            "b": describe_writers(step) if len(rows) > 1 else {},
            "k": rows,
            "v": {key: numbers.setdefault(text, len(numbers)) for key, text in told.after.items()},
            "x": list(told.gone),
            "f": forks[step.checkpoint],
        }
        report.steps.append(without_empty(data))
    report.values = list(numbers)
    _gather_troubles(report)
    return report


def _share(count: int, least: int, most: int) -> int:
    return max(least, min(most, BUDGET // max(count, 1)))


def _limits(count: int) -> DiffLimits:
    few = count > 2000
    return DiffLimits(changes=12 if few else 60, text=80 if few else 200, lines=6 if few else 30)


# -- errors and questions --------------------------------------------------------------------------


def _gather_troubles(report: ReportData) -> None:
    """Collect the errors of all steps, and the open questions."""
    steps = report.trace.steps
    for place, step in enumerate(steps):
        for task in step.all_tasks(besides=find_still_failed(step, steps)):
            if _is_source_of_error(task):
                if len(report.errors) < MOST:
                    report.errors.append(_describe_trouble(place, step.number, task))
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
    """Return whether the task itself failed: an error that was raised inside it is shown there."""
    error = task.error
    return error is not None and not any(
        # They were stored separately, so compare their texts.
        inner.error is not None and format_value(inner.error, 2000) == format_value(error, 2000)
        for inner in _below(task)
    )


def _is_asking(task: TraceTask) -> bool:
    return task.state == "paused" and not any(inner.questions for inner in _below(task))


def _below(task: TraceTask) -> Iterator[TraceTask]:
    for step in task.steps:
        yield from step.all_tasks()


def _describe_trouble(place: int, number: int, task: TraceTask) -> Trouble:
    assert task.error is not None
    return Trouble(
        place,
        task.node,
        task.path,
        f"in step {number}",
        describe_error(task.error),
        drop_illegal(sanitize(task.input)),
    )
