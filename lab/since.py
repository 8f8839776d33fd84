"""`since`: the step from which on something holds of a stored thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from ..channels.base import check_kind
from ..checkpoint.base import address, coordinates
from ..pregel.app import Pregel
from ..pregel.types import AnyConfig, StateSnapshot
from ..visualize.trace.diff import Change, diff
from ..visualize.trace.reader import TraceLevel, TraceReader, read_snapshot
from ..visualize.trace.records import TraceTask
from ..visualize.trace.transitions import list_transitions

FIRST_STEP: Final = -1
"""The number of a thread's first input. There is no state before it, so it is not tried."""


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
    """Return the step since which a predicate has held of the state.

    The line that leads to the state is bisected, so of n steps about log₂ n are read. If the
    predicate comes and goes, one of the steps at which it began to hold is found; the newest are
    tried first.

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
    check_kind("predicate", predicate, Callable, "a function of a state's values")

    def holds(snapshot: Any) -> Any:
        try:
            return predicate(snapshot.values)
        except Exception as error:
            known = ", ".join(map(repr, snapshot.values)) or "none"
            error.add_note(f"in the state of step {step_of(snapshot)}, which has the keys {known}")
            raise

    found = read_snapshot(app, config)
    if not holds(found):
        return None
    low, top, jump = FIRST_STEP, step_of(found), 1
    while top > low + 1:
        wanted = max((low + top) // 2, top - jump)
        jump *= 16
        # Some steps have no checkpoint: they were pruned, or durability="exit" made none.
        tried = next(filter(None, (_find(app, found, n) for n in range(wanted, top))), None)
        if tried is None:
            top = wanted
        elif holds(tried):
            found, top = tried, step_of(tried)
        else:
            low = step_of(tried)
    states: list[Any] = []
    thread_id, ns, _ = coordinates(found.config)
    level = TraceLevel(app.nested(ns), thread_id, ns, "")
    links = list_transitions(_line(app, found), None, [])
    reader = TraceReader(app, found.config, texts=False, most_nested=0)
    step = next(reader.list_steps(level, links, lambda _, *both: states.extend(both)))
    changes = diff(*states[:2])
    return Since(step.number, step.checkpoint, step.source, step.tasks, changes)


def _find(app: Pregel, tip: StateSnapshot, step: int) -> StateSnapshot | None:
    """Return the checkpoint with the number of a step on the line that leads to a later one."""
    found = list(_history(app, tip, limit=2, step=step))
    if len(found) == 2:  # there are branches
        while (begun := _begin_of(app, tip)) is not None and step_of(begun) > step:
            tip = next(app.get_state_history(begun.parent_config or {}))
        found = [tip] if step_of(tip) == step else [*_history(app, tip, limit=1, step=step)]
    return found[0] if found else None


def _begin_of(app: Pregel, tip: StateSnapshot) -> StateSnapshot | None:
    """Return the newest checkpoint up to this one that an input, an edit or a fork has made. From
    there to here each follows the one that was stored before it, since a thread has one head."""
    if (tip.metadata or {}).get("source") != "loop":
        return tip
    newest = None
    for source in ("input", "update", "fork"):
        for found in _history(app, tip, limit=1, source=source):
            if newest is None or found.config not in (
                each.config for each in _history(app, newest, limit=1, source=source)
            ):
                newest = found
    return newest


def _history(app: Pregel, tip: StateSnapshot, *, limit: int, **about: Any) -> Iterator[Any]:
    """Yield the checkpoints before one whose metadata is this, the newest first."""
    where = address(*coordinates(tip.config)[:2])
    return app.get_state_history(where, before=tip.config, filter=about, limit=limit)


def _line(app: Pregel, tip: StateSnapshot) -> Iterator[StateSnapshot]:
    """Yield a checkpoint, its parent, and so on."""
    while True:
        yield tip
        parent = tip.parent_config
        found = None if parent is None else next(app.get_state_history(parent), None)
        if found is None:
            return
        tip = found


def step_of(snapshot: StateSnapshot) -> int:
    """Return the number of the step that made a checkpoint."""
    return int((snapshot.metadata or {}).get("step", FIRST_STEP))
