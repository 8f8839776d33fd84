"""Reads some steps of a stored thread, and not the others; see `trace_reader`."""

from __future__ import annotations

from collections.abc import Sequence

from ...checkpoint.base import RunnableConfig, address, coordinates
from ...pregel.app import Pregel
from .orphans import Orphans
from .thread_index import ThreadIndex
from .trace import TraceStep
from .trace_reader import (
    MOST_NESTED,
    StepVisitor,
    TextLimit,
    TraceLevel,
    TraceReader,
    ignore,
    list_transitions,
    read_snapshot,
)


def read_steps(
    app: Pregel,
    index: ThreadIndex,
    tip: str,
    rows: Sequence[str],
    visit: StepVisitor | None = None,
    *,
    texts: TextLimit | bool = False,
    most_nested: int = MOST_NESTED,
) -> tuple[TraceStep, ...]:
    """Some steps of a long thread, the oldest first, without reading the others.

    Args:
        tip: the checkpoint to which the line leads.
        rows: of the rows of that line those that are wanted, without gaps.
        visit: as in `read_trace`.
        texts: as in `read_trace`, or how many characters of what a task got and wrote are told.
        most_nested: so many histories of nested graphs are read at most.

    Raises:
        ValueError: the graph has no saver.
    """
    if not rows:
        return ()
    line = index.line(tip)
    # An input that was dropped is known by what follows it.
    place_of_next = line.checkpoints.index(rows[-1]) + 1
    newest = line.checkpoints[min(place_of_next, len(line.checkpoints) - 1)]
    newer = index.newer(newest)
    thread = address(index.thread_id, index.ns)
    before = None if newer is None else address(index.thread_id, index.ns, newer)
    history = app.get_state_history(thread, before=before)
    transitions = list_transitions(history, newest, [], line.left)
    reader = TraceReader(app, thread, texts, most_nested)
    place = TraceLevel(app.nested(index.ns), index.thread_id, index.ns, "")
    wanted, found = {*rows}, []
    for step in reader.list_steps(place, transitions, visit or ignore):
        if step.checkpoint in wanted:
            found.append(step)
        if step.checkpoint == rows[0]:
            break
    return tuple(reversed(found))


def read_open_step(
    app: Pregel,
    where: RunnableConfig,
    visit: StepVisitor | None = None,
    *,
    texts: TextLimit | bool = False,
) -> tuple[TraceStep | None, Orphans]:
    """The step that a checkpoint leads to, if there is one, and what was left by another version of
    the graph.

    Args:
        where: a checkpoint that nothing follows, or the thread for its newest.

    Raises:
        ValueError: the graph has no saver, or nothing is stored for the thread.
    """
    head = read_snapshot(app, where)
    reader = TraceReader(app, where, texts)
    left = reader.find_left(app, head)
    if not head.next and not left.tasks:
        return None, left
    place = TraceLevel(app, coordinates(where)[0], "", "")
    return reader.read_open(place, head, left, visit or ignore), left
