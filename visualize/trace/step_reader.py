"""Reads some steps of a stored thread without the others; see `trace_reader`."""

from __future__ import annotations

from collections.abc import Sequence

from ...checkpoint.base import RunnableConfig, address, coordinates
from ...pregel.app import Pregel
from .index import ThreadIndex
from .orphans import Orphans
from .reader import (
    MOST_NESTED,
    StepVisitor,
    TextLimit,
    TraceLevel,
    TraceReader,
    ignore,
    list_transitions,
    read_snapshot,
)
from .records import TraceStep


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
    """Return some steps of a long thread, the oldest first, without reading the others.

    Args:
        tip: the checkpoint at the end of the line.
        rows: the wanted rows of that line, without gaps.
        visit: as in `read_trace`.
        texts: as in `read_trace`, or how many characters of a task's input and result to return.
        most_nested: how many histories of nested graphs to read at most.

    Raises:
        ValueError: the graph has no checkpointer.
    """
    if not rows:
        return ()
    line = index.line(tip)
    # An input that was dropped is recognized by what follows it.
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
    """Return the step that a checkpoint leads to, if any, and what another version of the graph has
    left.

    Args:
        where: a checkpoint without successors, or the thread for its newest one.

    Raises:
        ValueError: the graph has no checkpointer, or nothing is stored for the thread.
    """
    head = read_snapshot(app, where)
    reader = TraceReader(app, where, texts)
    left = reader.find_left(app, head)
    if not head.next and not left.tasks:
        return None, left
    place = TraceLevel(app, coordinates(where)[0], "", "")
    return reader.read_open(place, head, left, visit or ignore), left
