"""Makes what is under way pending work again (schedule="ready"): to look at it, to edit it, and to
run it in supersteps."""

from __future__ import annotations

from collections.abc import Mapping

from ..names import TASKS, trigger_name
from ..program.writes import Pair
from .flow_machine import FlowMachine, is_pending
from .ids import Carried
from .machine import Machine, handler_of
from .task import Task
from .under_way import UnderWayRecord

NO_ORIGINS: Mapping[str, str] = {}


def requeue(
    machine: Machine, known: Mapping[str, UnderWayRecord], origins: Mapping[str, str] = NO_ORIGINS
) -> None:
    """Make all that is under way pending work of this state, under the ids that it has, as after an
    edit. So it is looked at, edited, and run in supersteps.

    Args:
        known: slot → what is under way there.
        origins: slot → the checkpoint at which it has started, if it goes on from there.
    """
    # What is pending already.
    nodes, carried = machine.program.nodes, dict(machine.carried)
    sends = list(machine.channels[TASKS].get()) if TASKS in machine.expiring else []
    triggers: list[str] = []
    places: dict[str, str | int] = {}  # id → the trigger, or the place of the Send, by which it is
    writes: list[Pair] = []
    for slot, each in known.items():
        node, joined = nodes[each["node"]], tuple(each.get("joined", ()))
        if each["send"] is None:
            task = Task(node, node.path, None)
            triggers.append(trigger_name(node.name))
            # The trigger's value marks a restart: an edge writes None, this writes what had opened
            # the task's joins. A fork begins without records, and this is all that tells it who had
            # started (see `find_restart`).
            writes.append((triggers[-1], joined))
            places[each["id"]] = triggers[-1]
        else:
            task = Task(node, len(sends), None)
            places[each["id"]] = len(sends)
            sends.append(each["send"])
            writes.append((TASKS, each["send"]))
        origin = origins.get(slot, "")
        carried[task.path] = Carried(each["id"], joined, origin)
        if each["handler"] is not None and node.handler is not None:
            carried[handler_of(task).path] = Carried(each["handler"], origin=origin)
    # Late for a join is what was late as a task, by the trigger or place that it has now.
    waited = {name for name in triggers if is_pending(machine.channels[name])}
    late = machine.late_work() if isinstance(machine, FlowMachine) else {}
    if writes:
        machine.apply_writes(writes)
    machine.wake(name for name in triggers if not machine.channels[name].is_available())
    if isinstance(machine, FlowMachine):
        machine.rename_late(late, places, waited)
    # The slots are empty. None of these nodes has finished here, so an update without `as_node`
    # must not be attributed to them.
    machine.forget(known)
    pulled = [each["node"] for each in known.values() if each["send"] is None]
    machine.forget_seen([*known, *pulled])
    machine.carry(carried)
