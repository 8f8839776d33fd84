"""The order in which the writes of a superstep are applied, whatever the order in which its tasks
have ended."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from ..names import PUSH
from .task import Task


def in_path_order(tasks: Sequence[Task]) -> list[Task]:
    """As their writes are applied: updates from outside, nodes by name, Sends by index."""
    sends = [task for task in tasks if task.order.__class__ is int]
    rest = [task for task in tasks if task.order.__class__ is not int]
    if sends and any(task.path[0] == PUSH for task in rest):
        # The handler of a failed Send has its path, and stands between Sends that have an index.
        return sorted(tasks, key=_path)
    return sorted(rest, key=_order) + sorted(sends, key=_order)


# INPUT < PULL < PUSH as texts, so paths sort as they are.
_path = attrgetter("path")
# The same order where all are paths, or all are indexes; no path has to be made (benchmark P8).
_order = attrgetter("order")
