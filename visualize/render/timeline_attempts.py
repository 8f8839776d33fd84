"""Brings together the attempts at one task that several steps show: with schedule="ready", a task
may ask or fail in one step, and end in another. Measures and draws nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from ..trace.records import TraceStep, TraceTask


def list_parts(steps: Sequence[TraceStep]) -> list[range]:
    """Return the indexes of the steps, in parts across whose ends no task runs. A superstep is a
    part of its own."""
    starts = [
        place
        for place, step in enumerate(steps)
        if not place or step.since is None or step.source in ("input", "update", "fork")
    ]
    return [range(*ends) for ends in pairwise([*starts, len(steps)])]


def gather_attempts(steps: Sequence[TraceStep]) -> tuple[TraceStep, ...]:
    """Return the steps with each task only in the last of those that show it, with all its
    attempts: the step in which it has ended, or the open one."""
    return tuple(step for part in list_parts(steps) for step in _gather(steps, part))


def _gather(steps: Sequence[TraceStep], part: range) -> Iterator[TraceStep]:
    """Yield the steps of one part."""
    last = {task.id: place for place in part for task in steps[place].tasks}
    earlier: dict[str, TraceTask] = {}
    for place in part:
        tasks = []
        for task in steps[place].tasks:
            if task.steps:
                task = replace(task, steps=gather_attempts(task.steps))
            if task.id in earlier:
                task = _merge(earlier[task.id], task)
            if last[task.id] > place:
                earlier[task.id] = task
            else:
                tasks.append(task)
        yield replace(steps[place], tasks=tuple(tasks))


def _merge(before: TraceTask, after: TraceTask) -> TraceTask:
    """Return a task as a later step shows it, with the attempts that an earlier one shows."""
    spans = tuple(sorted({*before.spans, *after.spans}))
    return replace(
        after,
        spans=spans,
        waits=(*before.waits, *after.waits)[: len(spans)],
        questions=after.questions or before.questions,
        steps=after.steps or before.steps,
    )
