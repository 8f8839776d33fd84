"""`since`: the step from which on something holds of a stored thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..pregel.app import Pregel
from ..pregel.types import AnyConfig
from ..visualize.trace.diff import Change, diff
from ..visualize.trace.reader import read_trace
from ..visualize.trace.records import TraceStep, TraceTask


class Since(NamedTuple):
    """The step that made something true.

    Attributes:
        step: its number.
        checkpoint: the id of the checkpoint that it made.
        source: what made it: "input", "loop" (nodes), "update" or "fork".
        tasks: those that ran in it.
        changes: what it changed in the state.
    """

    step: int
    checkpoint: str | None
    source: str
    tasks: tuple[TraceTask, ...]
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        nodes = ", ".join(dict.fromkeys(each.name for each in self.tasks))
        return f"since step {self.step} ({self.source}: {nodes})"


def since(
    app: Pregel[Any, Any, Any, Any], config: AnyConfig, predicate: Callable[[Any], Any]
) -> Since | None:
    """Return the step since which a predicate has held of the state without a break.

    The line that leads to the state is looked at from its end, one step after the other, and no
    further than to the step that is found.

    Args:
        app: the graph that ran the thread, with its checkpointer. It is only read.
        config: the thread; with a `checkpoint_id`, the line that leads there.
        predicate: is given a state's values.

    Returns:
        The step; None if the predicate does not hold at the end.

    Raises:
        TypeError, ValueError: there is no such thread.
        Exception: what the predicate raises.
    """
    found: list[Since] = []

    def see(step: TraceStep, before: Any, after: Any) -> None:
        if step.checkpoint is None:
            return
        if not predicate(after):
            raise _Found
        if not predicate(before):
            changed = diff(before, after)
            found.append(Since(step.number, step.checkpoint, step.source, step.tasks, changed))
            raise _Found

    try:
        read_trace(app, config, see)
    except _Found:
        pass
    return found[0] if found else None


class _Found(Exception):
    """The search is over."""
