"""The tasks by which an update of a thread speaks for nodes, and the open ones that go on after it.

Part of `update_state`, which decides what is kept and stores it. Pure but for encoding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from ...checkpoint.base import NULL_TASK_ID, TaskWrites
from ..errors import InvalidUpdateError, nearest
from ..names import INPUT, RAN, TASKS
from ..program.program import CompiledNode, NodeCall
from ..schedule.machine import Machine
from ..task.ids import Carried
from ..task.task import Task
from ..types import Command, Send, StateUpdate
from .ledger import ClaimRecord, TaskRecord, describe_kept
from .resume import upcoming
from .run import Run


def make_tasks(
    run: Run,
    machine: Machine,
    updates: Sequence[StateUpdate],
    pending: Sequence[Task],
    finished: Sequence[Task],
) -> list[Task]:
    """A task for each update; it stands for a pending one of its node if there is one: first of all
    for one that is open and that no other update stands for."""
    open_ = [task for task in pending if task not in finished]
    mine: list[Task] = []
    for place, update in enumerate(updates):
        free = [task for task in open_ if task.path not in paths_of(mine)]
        mine.append(_task(run, machine, update, place, [*free, *open_, *pending]))
    return mine


def _task(
    run: Run, machine: Machine, update: StateUpdate, place: int, pending: Sequence[Task]
) -> Task:
    """A task that does nothing but write `update.values` as its node would.

    Args:
        pending: the tasks it may stand for, the best first.
    """
    name = update.as_node if update.as_node is not None else infer_node(machine, pending)
    if update.as_node is None and pending and machine.program.inputs not in machine.program.nodes:
        # In a graph made by hand and in an entrypoint no node stands for the input.
        raise InvalidUpdateError(
            f"node {name!r} has not run yet, and no node brings the input: specify "
            f"as_node={name!r} to act in its place, or let it run first"
        )
    node = machine.program.nodes.get(name)
    if node is None:
        known = _find_own_nodes(machine)
        raise InvalidUpdateError(f"as_node: node {name!r} does not exist; {nearest(name, known)}")
    if not node.writers:
        raise InvalidUpdateError(
            f"as_node: node {name!r} has no writers, so it cannot write an update"
        )
    here = None
    if update.as_node is not None or name == machine.program.inputs:
        here = next((task for task in pending if task.name == name), None)
    node = _writers_only(node)
    if here is None:
        task = Task(node, (INPUT, place), update.values, run)
    else:
        # With its Send: then the node has not seen its triggers, by which it may be pending too.
        task = Task(node, here.path, update.values, run, here.send)
        task.carry_id(here.id)
        if here.cause is not None:
            task.take_place_of(here.cause)
    if update.task_id:
        task.carry_id(update.task_id)
    return task


def _writers_only(node: CompiledNode) -> CompiledNode:
    """The node with a body that returns its input."""
    # A retry policy would run an update again that a writer has refused.
    stand_in = copy(node)
    stand_in.call = NodeCall(_same, inline=True)
    stand_in.policies = node.policies._replace(retry=())
    return stand_in


def _same(value: Any) -> Any:
    return value


def infer_node(machine: Machine, pending: Sequence[Task]) -> str:
    """The node that an update without `as_node` is from: the one that ran last; on a new thread,
    the only one; START, as long as it has an input to take.

    Args:
        pending: the tasks of the open superstep.

    Raises:
        InvalidUpdateError: several ran last, or none has run and the input is not a node's.
    """
    nodes = machine.program.nodes
    own = _find_own_nodes(machine)
    inputs = machine.program.inputs
    if any(task.name == inputs for task in pending):
        return str(inputs)
    found = {name: _last_run(seen) for name, seen in machine.seen.items() if name in nodes}
    ran = {name: version for name, version in found.items() if version}
    if not ran:
        if len(own) == 1:
            return own[0]
        if isinstance(inputs, str) and inputs in nodes:
            return inputs
        raise InvalidUpdateError("no node has run on this thread yet: specify as_node")
    last = [name for name, version in ran.items() if version == max(ran.values())]
    if len(last) > 1:
        raise InvalidUpdateError(
            f"the update is ambiguous, specify as_node: {', '.join(sorted(last))} ran last together"
        )
    return last[0]


def _last_run(seen: Mapping[str, int]) -> int:
    """The version of the state in which a node ran last; 0 if it never ran to its end.

    Args:
        seen: what it has seen.
    """
    ran = seen.get(RAN)
    if ran is None:
        ran = max((version for name, version in seen.items() if name != TASKS), default=0)
    return max(ran, seen.get(TASKS, 0))


def says_where(values: Any) -> bool:
    """Whether an update says itself where its node goes, beside the node's edges."""
    parts = values if isinstance(values, (list, tuple)) else (values,)
    return any(isinstance(p, Send) or (isinstance(p, Command) and bool(p.goto)) for p in parts)


def _find_own_nodes(machine: Machine) -> list[str]:
    """The nodes that the graph's author has named: no hidden ones, no error handlers."""
    nodes = machine.program.nodes
    # They run in the place of others and are due by no trigger, so no update is theirs by itself.
    handlers = {node.handler.name for node in nodes.values() if node.handler is not None}
    return [name for name, node in nodes.items() if not node.hidden and name not in handlers]


def is_outside(task: Task) -> bool:
    """Whether an update stands for no pending task."""
    return bool(task.path[0] == INPUT)


def paths_of(tasks: Sequence[Task]) -> set[tuple[Any, ...]]:
    """Their places in the superstep."""
    return {task.path for task in tasks}


# -- what an edit keeps of a superstep that is open ------------------------------------------------
# Tasks to which the edit leads again go on in the checkpoint that it makes.

def match(run: Run, old: Sequence[Task], new: Sequence[Task]) -> list[tuple[Task, Task]]:
    """The tasks that are the same before and after an edit: of one node, and of Sends those that
    carry the same."""
    left, same = list(old), dict[Task, Task]()
    # Of equal Sends each goes on once: as itself, if it stays, and not as one that has finished.
    for fits in (_is_itself, partial(_is_equal, run)):
        for task in new:
            if task not in same:
                found = next((o for o in left if o.name == task.name and fits(o, task)), None)
                if found is not None:
                    same[task] = found
                    left.remove(found)
    return [(same[task], task) for task in new if task in same]


def _is_itself(old: Task, new: Task) -> bool:
    # A node is due once in a superstep, so its name tells the task.
    return old.send is new.send


def _is_equal(run: Run, old: Task, new: Task) -> bool:
    """Whether the Sends of two tasks carry the same."""
    if old.send is None or new.send is None:
        return False
    if (old.send.key, old.send.race) != (new.send.key, new.send.race):
        return False
    dumps = run.settings.serde.dumps
    try:
        return dumps(old.send.arg) == dumps(new.send.arg)
    except Exception:  # it could not be stored either
        return False


class OpenWork:
    """What the tasks of an open superstep have recorded, read before an edit. Tasks to which the
    edit leads again go on in its checkpoint: they keep their ids, and with them their questions,
    calls, idempotency keys and the namespaces of graphs inside them.

    Args:
        again: those tasks.
    """

    def __init__(self, run: Run, pending: Sequence[Task], again: Sequence[Task]) -> None:
        ledger = run.ledger
        planned = {NULL_TASK_ID}
        self.tasks: list[tuple[Task, TaskRecord]] = []
        for task in ledger.with_handlers(pending):
            planned.add(task.id)
            before = ledger.of(task.id)
            if task.cause is None and task in again:
                self.tasks.append((task, before))
            elif task.cause in again and before.finished:  # its handler has dealt with its failure
                self.tasks[-1] = (task.cause, before)  # type: ignore[assignment]
        self.calls: dict[str, TaskRecord] = {
            task_id: before for task_id, before in ledger.items() if task_id not in planned
        }
        self.claim: ClaimRecord | None = ledger.claim
        machine = run.machine
        self.joined = {task.id: machine.find_joined(task) for task in pending}
        # Without a record, too: it may have stored something in a graph inside it.
        self.begun: set[str] = ledger.find_begun(each.id for each in machine.carried.values())
        # That it has failed is not carried over, so nothing else might tell.
        self.begun.update(task.id for task, before in self.tasks if before.error is not None)

    def carry(self, run: Run, machine: Machine) -> list[TaskWrites]:
        """Their records for the checkpoint of the edit, which has been applied. From then on they
        are the run's."""
        before = {id(task): known for task, known in self.tasks}
        kept = match(run, [task for task, _ in self.tasks], upcoming(run, machine))
        joined, begun = self.joined, self.begun
        machine.carry({new.path: Carried(old.id, joined[old.id]) for old, new in kept})
        records = {
            old.id: _going_on(
                before[id(old)], describe_kept(new.path, joined[old.id], begun=old.id in begun)
            )
            for old, new in kept
        }
        # Calls have ids made of their parents': without any task that goes on nobody asks for them.
        if kept:
            calls = self.calls.items()
            records.update((id, _going_on(known, describe_kept(None))) for id, known in calls)
        if self.claim is not None:
            # What it brought has no questions here unless their tasks go on; but which calls were
            # taken stays known, so that a call which comes once more is not taken again.
            answers = self.claim["answers"] if kept else {}
            claim: ClaimRecord = {**self.claim, "answers": answers, "live": False}
            records[NULL_TASK_ID] = TaskRecord(claim=claim)
        run.ledger.replace(records)
        serde = run.settings.serde
        return [known.encode(serde, id) for id, known in records.items()]


def _going_on(before: TaskRecord, kept: Mapping[str, Any]) -> TaskRecord:
    """What is known of a task in the checkpoint in which it goes on: what it has done, not how it
    failed."""
    # An error is not carried over: the edit may have mended its cause, so the task runs again.
    if before.error is not None:
        before = replace(
            before, writes=[], wrote=False, error=None, routed=False, wake_at=None
        )
    return replace(before, kept=kept, edited=True)
