"""Shows the readers of a run what happens in it. Nothing is made if nobody reads.

Part of the loop: pure, but for giving way to other work in wide supersteps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..task.task import Task
from .effects import WIDE, Effects, GiveWay
from .resume import upcoming
from .run import Run
from .snapshots import live_snapshot
from .stream import identify_messages


def show_checkpoint(run: Run, tasks: Sequence[Task] | None = None) -> None:
    """Show readers the last checkpoint, now that the tasks that follow it are known.

    Args:
        tasks: None if nobody has made them yet.
    """
    streams = run.output.streams
    if run.commits.last is not None and any(s.wants("checkpoints", "debug") for s in streams):
        state = live_snapshot(run, upcoming(run) if tasks is None else tasks)
        for stream in streams:
            stream.checkpoint(state)
        run.commits.take_last()


def show_starts(run: Run, tasks: Sequence[Task]) -> Effects:
    """Tell the readers which tasks are about to run."""
    for stream in run.output.streams:
        for number, task in enumerate(tasks, 1):
            stream.started(task)
            if number % WIDE == 0:
                yield GiveWay()


def show_ends(run: Run, tasks: Sequence[Task]) -> None:
    """Tell the readers how tasks have ended, and what they ask."""
    machine, streams = run.machine, run.output.streams
    identify_messages(streams, tasks, machine.channels)
    for stream in streams:
        for task in tasks:
            stream.ended(task)
            if task.interrupts or task.wake_at is not None:
                stream.question(machine, task)
