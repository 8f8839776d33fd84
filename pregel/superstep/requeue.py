"""Makes what is under way pending work again (schedule="ready"): to look at it, to edit it, and to
run it in supersteps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ..names import TASKS, trigger_name
from ..program.writes import Pair
from .flow_machine import FlowMachine, is_pending
from .ids import Carried
from .machine import Machine, handler_of
from .task import Task
from .under_way import UnderWayRecord


def requeue(machine: Machine, slots: Collection[str], known: Sequence[UnderWayRecord]) -> None:
    """Make all that is under way pending work of this state, under the ids that it has, as after an
    edit. So it is looked at, edited, and run in supersteps."""
    nodes, carried = machine.program.nodes, dict(machine.carried)
    triggers: list[str] = []
    places: dict[str, str | int] = {}  # id → by what it is pending now
    sends = list(machine.channels[TASKS].get()) if TASKS in machine.expiring else []
    writes: list[Pair] = []
    for each in known:
        node, joined = nodes[each["node"]], tuple(each.get("joined", ()))
        if each["send"] is None:
            task = Task(node, node.path, None)
            triggers.append(trigger_name(node.name))
            # An edge writes None. So a fork, which begins without records, still tells who had
            # started, and what had led there, which is used up.
            writes.append((triggers[-1], joined))
            places[each["id"]] = triggers[-1]
        else:
            task = Task(node, len(sends), None)
            places[each["id"]] = len(sends)
            sends.append(each["send"])
            writes.append((TASKS, each["send"]))
        carried[task.path] = Carried(each["id"], joined)
        if each["handler"] is not None and node.handler is not None:
            carried[handler_of(task).path] = Carried(each["handler"])
    waited = {name for name in triggers if is_pending(machine.channels[name])}
    late = machine.late_work() if isinstance(machine, FlowMachine) else {}
    if writes:
        machine.apply_writes(writes)
    machine.wake(name for name in triggers if not machine.channels[name].is_available())
    if isinstance(machine, FlowMachine):
        machine.rename_late(late, places, waited)
    machine.forget(slots)
    # None of these nodes has run to its end: an update without `as_node` is not theirs.
    machine.forget_seen([*slots, *(each["node"] for each in known if each["send"] is None)])
    machine.carry(carried)
