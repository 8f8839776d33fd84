"""What a thread holds that was stored by another version of the graph, and that this version has no
place for."""

from __future__ import annotations

from collections.abc import Mapping

from ...checkpoint.base import RETURN, CheckpointTuple
from ..names import GRAPH, TASKS, is_routing, is_under_way, triggered_node
from ..program.join import parse_join
from ..program.version import find_retyped
from ..schedule.machine import Machine
from .task_records import TaskRecord


def lost_work(
    machine: Machine, found: CheckpointTuple, stored: Mapping[str, TaskRecord]
) -> list[str]:
    """The pending work of a checkpoint that the machine's program lacks: another graph made it."""
    program = machine.program
    names = set(_lost_triggers(machine, found))
    for known in stored.values():
        names.update(c for c, _ in known.writes if c not in program.channels and c != RETURN)
    sends = machine.channels[TASKS].get() if TASKS in machine.expiring else ()
    nodes = {send.node for send in sends if send.node not in program.nodes}
    nodes.update(_lost_slots(machine, found).values())
    return sorted({_where_to(name) for name in names} | {f"node {name!r}" for name in nodes})


def lost_kinds(machine: Machine, found: CheckpointTuple) -> list[str]:
    """The keys with a value and the pending nodes of a checkpoint that are of another kind in the
    machine's program."""
    changed = find_retyped(
        found.checkpoint["versions_seen"].get(GRAPH, {}), machine.program.fingerprint
    )
    if not changed:
        return []
    held = {f"key {name!r}" for name in found.checkpoint["channel_values"]}
    due = {f"node {task.name!r}" for task in machine.plan(coerce=False)}
    return sorted(changed & (held | due))


def forget_lost(machine: Machine, found: CheckpointTuple) -> None:
    """Drop the pending work of a checkpoint for which the machine's program has no node."""
    slots = _lost_slots(machine, found)
    machine.forget([*_lost_triggers(machine, found), *slots])
    machine.forget_seen(slots)  # else the origins of these tasks would be kept


def _lost_slots(machine: Machine, found: CheckpointTuple) -> dict[str, str]:
    """Slot → node of the tasks under way (schedule="ready") whose node the machine's program
    lacks."""
    stored = found.checkpoint["channel_values"].items()
    nodes = {name: value["node"] for name, value in stored if is_under_way(name)}
    return {name: node for name, node in nodes.items() if node not in machine.program.nodes}


def _lost_triggers(machine: Machine, found: CheckpointTuple) -> list[str]:
    """The channels that trigger a node in the graph that made the checkpoint, and that the
    machine's program lacks."""
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
