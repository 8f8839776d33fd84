"""Graphs with schedule="ready" for the test kit: where the tasks of their threads have started, and
what makes a run take the same steps each time. Nothing is run here."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from ..channels.base import check_kind
from ..checkpoint.base import CheckpointTuple
from ..pregel.app import Pregel
from ..pregel.names import under_way_number
from ..pregel.program.program import Program
from ..pregel.run.ledger import Ledger
from ..pregel.run.origins import with_origins
from ..pregel.run.snapshots import View, view
from ..pregel.schedule.machine import Machine
from ..pregel.schedule.rules import always, could_start
from ..pregel.schedule.slots import OpenTasks, find_origin, find_under_way
from ..pregel.task.task import Task, handler_of


def view_within(
    program: Program, found: CheckpointTuple, line: Mapping[str, CheckpointTuple]
) -> View:
    """What waits and is under way in a checkpoint, with what is recorded beside the origins.

    Args:
        line: the checkpoints of a run, by their ids.
    """
    origins = dict.fromkeys(origin for _, origin in _list_under_way(found))
    known = [line[id] for id in origins if id in line]
    return view(program, with_origins(found, known) if known else found)


def find_start(
    task: Task, found: CheckpointTuple, line: Mapping[str, CheckpointTuple]
) -> CheckpointTuple:
    """The checkpoint at which a task has started that is under way in one, if the line has it."""
    for ids, id in _list_under_way(found):
        if task.id in ids:
            return line.get(id, found)
    return found


def kept_back(program: Program, before: CheckpointTuple, after: CheckpointTuple) -> bool:
    """Whether no task has started at a checkpoint though one could have: the call had failed, or
    was to end. It starts in a later call.

    Args:
        before: the checkpoint.
        after: the next one.
    """
    id = before.checkpoint["id"]
    if any(origin == id for _, origin in _list_under_way(after)):
        return False
    was_under_way = {id for ids, _ in _list_under_way(before) for id in ids}
    records = Ledger(before.pending_writes or ()).items()
    if any(known.finished and id not in was_under_way for id, known in records):
        return False
    open_tasks = OpenTasks()
    step = before.metadata.get("step", -1) + 1
    machine = Machine(program, before.checkpoint, step, open=open_tasks)
    tasks: dict[int, Task] = {}
    for slot, known in find_under_way(before.checkpoint).items():
        node = program.nodes.get(known["node"])
        if node is None:  # of an earlier version of the graph
            return False
        tasks[under_way_number(slot)] = Task(node, known["path"], None, None, known["send"])
    machine.load_open(tasks)
    return could_start(machine, always)


def _list_under_way(found: CheckpointTuple) -> Iterator[tuple[tuple[str | None, ...], str]]:
    """The ids of each task and of its error handler's, and its origin."""
    for slot, each in find_under_way(found.checkpoint).items():
        yield (each["id"], each["handler"]), find_origin(found.checkpoint, slot)


def find_ended(seen: View, found: CheckpointTuple) -> Container[str]:
    """The ids of the tasks that ended with the step behind a checkpoint: they have written, or
    their error handler has."""
    records = Ledger(found.pending_writes or ())
    ended = {task.id for task in seen.tasks if task.id in records and records[task.id].finished}
    for task in seen.tasks:
        if task.node.handler is not None and handler_of(task).id in ended:
            ended.add(task.id)
    return ended


def thread_for(program: Program, config: Mapping[str, Any] | None, thread_id: str) -> Any:
    """The config of a thread for a test. A graph takes the same steps whenever it runs; with
    schedule="ready" their order would depend on how long its tasks take."""
    check_kind("config", config, Mapping | None, "a dict")
    given = {**({"max_concurrency": 1} if has_ready(program) else {}), **(config or {})}
    return {**given, "configurable": {**given.get("configurable", {}), "thread_id": thread_id}}


def has_ready(program: Program) -> bool:
    """Whether a graph, or one that its nodes hold, has schedule="ready"."""
    inside = list_held(program).values()
    return program.starts_ready or any(has_ready(held.program) for held in inside)


def list_held(program: Program) -> Mapping[str, Pregel[Any, Any, Any, Any]]:
    """The graphs that nodes hold, by node name."""
    nodes = program.nodes.items()
    return {name: node.source for name, node in nodes if isinstance(node.source, Pregel)}
