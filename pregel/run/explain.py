"""Why did my node not run? The answer, from a program and a stored checkpoint; nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from ...channels.base import ChannelStatus
from ...checkpoint.base import CheckpointTuple
from ..names import triggered_node
from ..program.flow import find_free
from ..program.program import CompiledNode, Program
from ..schedule.joins import find_blockers_of
from ..schedule.slots import find_under_way
from ..task.task import Task
from .snapshots import View, view

NEXT = "it runs in the next superstep"
# These must be true while a run is in progress, and when none is.
STARTED = "it has started and not ended: it is running, or goes on with the next call"
STARTS = "nothing holds it back: it is running already, or starts with the next call"


class NodeStatus(NamedTuple):
    """Whether a node would run, and why; from the last checkpoint alone, whether or not a run is in
    progress. So with schedule="ready" it is not known of a node whether it has started since that
    checkpoint was made.

    Attributes:
        state: "next" if it would run now; "waiting" if something led to it and it cannot run yet;
            "idle" if nothing leads to it.
        why: a sentence.
        missing: the nodes that a join still waits for; of a "reachable" join at which somebody has
            arrived, the nodes under way that lead to its predecessors; with schedule="ready" the
            nodes that hold a triggered one back.
    """

    state: Literal["next", "waiting", "idle"]
    why: str
    missing: tuple[str, ...] = ()


def explain(program: Program, found: CheckpointTuple | None) -> dict[str, NodeStatus]:
    """The status of every node that is not hidden, at this checkpoint."""
    names = [name for name, node in program.nodes.items() if not node.hidden]
    if found is None:
        return {name: NodeStatus("idle", "the thread has not started") for name in names}
    seen = view(program, found)
    statuses = {name: _explain_node(program.nodes[name], seen) for name in names}
    if program.starts_ready:
        statuses.update(_explain_ready(program, found, seen, statuses))
    return statuses


def _explain_ready(
    program: Program, found: CheckpointTuple, seen: View, statuses: Mapping[str, NodeStatus]
) -> Iterator[tuple[str, NodeStatus]]:
    """What differs with schedule="ready": what has started goes on, and what is due may have to
    wait for what leads to it."""
    flow = program.flow
    assert flow is not None
    started = {each["id"] for each in find_under_way(found.checkpoint).values()}
    running = {task.name for task in seen.tasks if task.id in started or task.send is not None}
    due = [task.name for task in seen.tasks if task.name not in running and not task.node.hidden]
    holders = flow.find_holders_in(seen.machine.channels)
    free = find_free(due, running, holders)
    for task in seen.tasks:
        name = task.name
        # Other words are of what was recorded: a question, a sleep, an error.
        if name not in statuses or statuses[name].why != NEXT:
            continue
        if task.id in started:
            yield name, NodeStatus("next", STARTED)
        elif name in free or task.send is not None:
            yield name, NodeStatus("next", STARTS)
        else:
            held = sorted(holders[name].intersection({*running, *due}) - {name})
            why = f"it was triggered and waits for what leads to it: {', '.join(held)}"
            yield name, NodeStatus("waiting", why, tuple(held))


def _explain_node(node: CompiledNode, seen: View) -> NodeStatus:
    pending = [task for task in seen.tasks if task.name == node.name]
    if pending:
        return _explain_pending(pending, seen)
    if any(task.name == node.name for task in seen.lost):
        return NodeStatus("idle", "another task has won the race that its own was in")
    if not node.triggers:
        why = "it runs only when the node whose errors it handles fails"
        return NodeStatus("idle", why)
    return _explain_triggers(node, seen)


def _explain_pending(tasks: Sequence[Task], seen: View) -> NodeStatus:
    """The status of a node that has tasks in the open superstep."""
    status = _explain_tasks([task.id for task in tasks], seen)
    keys = [repr(task.send.key) for task in tasks if task.send and task.send.key is not None]
    about = f" (its tasks have the keys {', '.join(keys)})" if keys else ""
    return status._replace(why=status.why + about)


def _explain_triggers(node: CompiledNode, seen: View) -> NodeStatus:
    """The status of a node that none of its triggers makes run now."""
    machine = seen.machine
    joins = {join.channel for join in machine.program.joins}
    ran_with = machine.seen.get(node.name, {})
    waiting = False
    sentences: list[str] = []
    missing: list[str] = []
    for trigger in node.triggers:
        status = machine.channels[trigger].describe()
        waiting = waiting or status.state == "waiting"
        if trigger in joins and status.state == "empty" and trigger in ran_with:
            sentence = f"it has run since the join {trigger!r} last opened"
        else:
            was_written = trigger in machine.versions or any(t in ran_with for t in node.triggers)
            sentence = _explain_trigger(trigger, status, trigger in joins, was_written)
        blockers = sorted(find_blockers_of(machine, trigger))
        if blockers:
            sentence += f"; under way: {', '.join(blockers)}"
        sentences.append(sentence)
        missing.extend(status.missing or blockers)
    return NodeStatus("waiting" if waiting else "idle", "; ".join(sentences), tuple(missing))


def _explain_tasks(task_ids: Sequence[str], seen: View) -> NodeStatus:
    """The status of a node that is part of the open superstep."""
    stored = [seen.ledger[task_id] for task_id in task_ids if task_id in seen.ledger]
    unfinished = [record for record in stored if not record.finished]
    for record in unfinished:
        if record.waiting:
            asked = record.waiting[0].value
            return NodeStatus("next", f"it is paused: it asked {asked!r} and waits for the answer")
    for record in unfinished:
        if record.wake_at is not None and record.asleep:
            return NodeStatus("next", f"it sleeps until {record.wake_at:%Y-%m-%d %H:%M:%S} UTC")
    for record in unfinished:
        if record.error is not None:
            return NodeStatus("next", f"it failed with {record.error!r} and runs again on resume")
    if not _have_finished(task_ids, seen):
        return NodeStatus("next", NEXT)
    if _have_finished([task.id for task in seen.tasks], seen):
        return NodeStatus("idle", "it has run; its writes are part of the next checkpoint")
    return NodeStatus("waiting", "it has finished; its superstep waits for the other nodes")


def _have_finished(task_ids: Sequence[str], seen: View) -> bool:
    return all(task_id in seen.ledger and seen.ledger[task_id].finished for task_id in task_ids)


def _explain_trigger(name: str, status: ChannelStatus, is_join: bool, was_written: bool) -> str:
    """A sentence that says why this trigger does not make its node run now."""
    if is_join:
        return f"the join {name!r} {status.text}"
    if triggered_node(name) is not None:
        if status.state == "waiting":
            return "it was triggered and waits until nothing else can run"
        return "nothing triggers it now" if was_written else "nothing has triggered it yet"
    if status.state == "available":
        return f"it has run since its trigger {name!r} last changed"
    if not was_written and not status.missing:
        return f"its trigger {name!r} was never written"
    return f"its trigger {name!r} {status.text}"
