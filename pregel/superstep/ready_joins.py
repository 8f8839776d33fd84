"""The joins that gather in waves, with schedule="ready".

What `flow_machine` says of the work that is pending holds here of the tasks that are under way,
too: they are late, by their ids, if what started them was late, or if the target of the join has
started since. A wave ends when the target starts, not when the join opens: that may wait for
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...channels.named_barrier import Late
from ..program.join import Join
from .flow_machine import Crossing, FlowMachine, barrier_of, is_pending, node_of
from .state import Channels
from .task import Task


class ReadyCrossing(Crossing):
    """The end of a step.

    Args:
        under_way: the tasks that have started before this state, and had not ended.
        lost: those that leave without having ended: they have lost their races.
        just_started: those that have started in it.
        waiting_sends: the Sends of it that have not been started, by their places.
    """

    def __init__(
        self,
        machine: FlowMachine,
        tasks: Sequence[Task],
        *,
        consumed: Sequence[str],
        expire: bool,
        lost: Sequence[Task],
        under_way: Iterable[Task],
        just_started: Sequence[Task],
        waiting_sends: Mapping[int, Any],
    ) -> None:
        ended = {*(task.cause or task for task in tasks), *lost}
        self.left_joins = frozenset(consumed)  # the joins whose targets have started
        self.just_started = frozenset(just_started)
        self.left = [task for task in (*under_way, *just_started) if task not in ended]
        self.waiting_sends = waiting_sends
        super().__init__(machine, tasks, consumed=consumed, expire=expire)
        if not self.added:
            self.kept_sends = [*waiting_sends]
            nodes, channels = machine.program.nodes, machine.channels
            waiting = {trigger for name in machine.held for trigger in nodes[name].triggers}
            self.staying |= {
                name
                for name in waiting
                if name not in self.left_joins and is_pending(channels[name])
            }

    def _comes_late(self, task: Task, join: Join) -> bool:
        if node_of(task) == join.target:
            return False
        if join.channel in self.left_joins:
            return True
        task, late = task.cause or task, barrier_of(self.machine, join).late
        if not late or task not in self.just_started:
            return task.id in late
        return self._is_late(task, late)

    def _late_before(self, join: Join) -> Late:
        if join.channel not in self.left_joins:
            return super()._late_before(join)
        triggers, own = self.machine.program.triggers, (join.target,)
        sends = self.waiting_sends.items()
        return frozenset([
            *(name for name in self.staying if tuple(triggers.get(name, ())) != own),
            *(place for place, send in sends if send.node != join.target),
        ])  # fmt: skip

    def _find_late(
        self,
        join: Join,
        pending: Iterable[str],
        sends: Sequence[Any],
        writers: Mapping[str, Sequence[Task]],
    ) -> Late:
        found = super()._find_late(join, pending, sends, writers)
        return found.union(task.id for task in self.left if self._comes_late(task, join))

    def _find_blockers(self, fresh: Channels, join: Join, late: Late) -> set[str]:
        found = super()._find_blockers(fresh, join, late)
        feeders = self.machine.flow.feeders[join.channel]
        new = (task.name for task in self.left if task.id not in late)
        return found.union(name for name in new if name in feeders)
