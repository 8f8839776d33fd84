"""The states of a task that has started, and which one follows another: the one table.

A driver notes on a task how its attempt has ended (`end_of`), on whatever thread it ran. The loop
takes up one end after the other and moves the task, by this table alone: see `LoopProgress.move`.
Nodes that are due and have not started are no tasks yet: what triggers them is in the channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from ..errors import ParentCommand
from ..task.task import Task

TaskState = Literal[
    "at work", "finished", "paused", "failed", "cut off", "left", "aside",
    "replaced", "lost", "folded",
]  # fmt: skip
"""What the loop knows of a task.

- at work: it runs, or waits for a free place.
- finished: its writes count, and are not in the state yet.
- paused: it waits for answers, or for a time.
- failed: it has raised an `Exception`, or its writes were refused.
- cut off: a signal has ended it, such as Ctrl-C; it runs again in a later call.
- left: it has a command for the graph around, which ends this one.
- aside: a racer that has failed or paused; another one may still win its race.
- replaced, lost, folded: its error handler has its place, another racer has won, its writes are in
  the state. The loop forgets it.
"""

TaskEvent = Literal[
    "finishes", "pauses", "fails", "is cut off", "leaves", "stands aside", "hands over",
    "waits its turn", "loses", "is folded in",
]  # fmt: skip
"""What moves a task: how it has ended, or what the loop decides. It hands over to its error
handler; it waits its turn if what ended together could not be folded in together."""

TRANSITIONS: Final[Mapping[TaskState, Mapping[TaskEvent, TaskState]]] = {
    "at work": {
        "finishes": "finished",
        "pauses": "paused",
        "fails": "failed",
        "is cut off": "cut off",
        "leaves": "left",
        "stands aside": "aside",
        "hands over": "replaced",
        "loses": "lost",
    },
    "finished": {
        "is folded in": "folded",
        "fails": "failed",
        "waits its turn": "at work",
        "loses": "lost",
    },
    "aside": {"pauses": "paused", "fails": "failed", "hands over": "replaced", "loses": "lost"},
    "paused": {"loses": "lost"},
    "failed": {"loses": "lost"},
    # A signal is not taken back.
    "cut off": {"loses": "cut off"},
    "left": {"loses": "left"},
}
"""State → what can happen to a task in it → its next state. States without a row are the last."""


def end_of(task: Task) -> TaskEvent | None:
    """Return how a task has ended; None if it has not, such as a racer that was told to begin after
    another had won."""
    if task.finished:
        return "finishes"
    if task.pause is not None:
        return "pauses"
    if task.error is None:
        return None
    if isinstance(task.error, Exception):
        return "fails"
    return "leaves" if isinstance(task.error, ParentCommand) else "is cut off"
