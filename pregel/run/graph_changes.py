"""What a stored thread holds that another version of the graph has left, and this one has no place for."""

from __future__ import annotations

from collections.abc import Mapping

from ...checkpoint.base import RETURN, CheckpointTuple
from ..names import GRAPH, TASKS, is_routing, triggered_node
from ..program.join import parse_join
from ..program.version import find_retyped
from ..superstep.machine import Machine
from .task_records import TaskRecord


def lost_work(
    machine: Machine, found: CheckpointTuple, stored: Mapping[str, TaskRecord]
) -> list[str]:
    """What a checkpoint would go on with and the machine's program lacks, because another graph has made it."""
    program = machine.program
    names = set(lost_triggers(machine, found))
    for known in stored.values():
        names.update(c for c, _ in known.writes if c not in program.channels and c != RETURN)
    sends = machine.channels[TASKS].get() if TASKS in machine.expiring else ()
    nodes = {send.node for send in sends if send.node not in program.nodes}
    return sorted({_where_to(name) for name in names} | {f"node {name!r}" for name in nodes})


def lost_kinds(machine: Machine, found: CheckpointTuple) -> list[str]:
    """What a checkpoint holds or would go on with that is of another kind in the machine's program: keys with a value,
    nodes that are to run."""
    changed = find_retyped(
        found.checkpoint["versions_seen"].get(GRAPH, {}), machine.program.fingerprint
    )
    if not changed:
        return []
    held = {f"key {name!r}" for name in found.checkpoint["channel_values"]}
    due = {f"node {task.name!r}" for task in machine.plan(coerce=False)}
    return sorted(changed & (held | due))


def lost_triggers(machine: Machine, found: CheckpointTuple) -> list[str]:
    """The channels that hold what makes a node run, in a graph that is not the machine's program."""
    left = [name for name in found.checkpoint["channel_values"] if name not in machine.channels]
    if machine.program.scope.triggers:
        return [name for name in left if is_routing(name)]
    moved = found.checkpoint["updated_channels"] or ()
    return [name for name in left if name in moved]


def _where_to(channel: str) -> str:
    node = triggered_node(channel)
    if node is not None:
        return f"node {node!r}"
    join = parse_join(channel)
    if join is not None:
        return f"the join of {' and '.join(map(repr, join.sources))} before {join.target!r}"
    return f"channel {channel!r}"
