"""What happens to joins that gather in waves, and to deferred nodes, when a step ends.

Only for a program with a `Flow`. Between the writes of a step and the plan of the next one, in this
order:

1. Arrivals of late tasks are dropped; the other writes are applied. A join that waits for a number
   opens when so many have come.
2. Joins that wait for whoever can still come are judged, all of them on this one state, and opened.
3. A wave ends, and all that is pending or open beside the target of its join becomes late: in
   supersteps when the join opens, with schedule="ready" when its target starts, which may have to
   wait for others.
4. If nothing is to run, deferred nodes wake in the order in which they lead to each other.
5. If still nothing is to run, joins open that wait for each other in a circle.

Theory of operation: late is a property of pending work, not of tasks. A task is late for a join if
all that triggered it is; what it triggers is late, unless work that is not late triggers it, too.
So it is enough to keep, in the channel of the join, which triggers, `Send`s and open tasks are
late. Nothing else is remembered between steps, and a machine that was loaded goes on like the one
that stored it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from ...channels.base import MISSING, Channel
from ...channels.named_barrier import Barrier, Late, WaveBarrier
from ..names import TASKS
from ..program.flow import Flow, Join, find_first, walk
from ..program.writes import list_sends
from ..task.task import Task
from .state import Grouped, LiveState, StepChanges, no_changes


def late_work(machine: LiveState) -> dict[str, Late]:
    """Return what is late for each join: channel of the join → late triggers, `Send`s and tasks."""
    flow = machine.program.flow
    joins = () if flow is None else flow.joins
    return {join.channel: barrier_of(machine, join).late for join in joins}


def rename_late(
    machine: LiveState,
    before: Mapping[str, Late],
    names: Mapping[str, str | int],
    waited: Collection[str],
) -> None:
    """Keep what is late when open tasks become pending again.

    Args:
        before: what was late before.
        names: their ids → the triggers, or the places of the Sends, by which they are pending.
        waited: of these triggers those that were pending before, too.
    """
    fresh = no_changes()
    for channel, ids in before.items():
        barrier = _barrier(machine.channels[channel])
        # Late is what only late work has triggered.
        still = {
            name
            for id, name in names.items()
            if id in ids and (name not in waited or name in barrier.late)
        }
        late = barrier.late.difference(names.values()) | still
        if late != barrier.late:
            barrier = barrier.copy()
            barrier.late = late
            fresh.put(channel, barrier)
    if fresh:
        machine.put(fresh)


def find_blockers_of(machine: LiveState, channel: str) -> set[str]:
    """Return the nodes under way for which the join with this channel waits, though somebody has
    come; none where it waits for those that are missing."""
    flow = machine.program.flow
    for join in () if flow is None else flow.joins:
        barrier = machine.channels[join.channel]
        if join.channel == channel and join.kind == "reachable" and _waits(barrier):
            return find_blockers(machine, {}, join, _barrier(barrier).late)
    return set()


def restart(machine: LiveState, fresh: StepChanges) -> None:
    """End all waves, as new input comes in."""
    for join in flow_of(machine).joins:
        if machine.channels[join.channel].checkpoint() is not MISSING:
            fresh.put(join.channel, machine.program.channels[join.channel])


def finish(machine: LiveState, fresh: StepChanges) -> None:
    """Wake deferred nodes, as nothing else is left to run: those to which no other one leads."""
    triggers = machine.program.triggers
    waiting: dict[str, list[str]] = {}
    others: list[str] = []  # keys of the state that are shown at the end
    for name in machine.program.kinds.finishers:
        channel = find_channel(machine, fresh, name)
        if name not in triggers:
            others.append(name)
        elif not isinstance(channel, WaveBarrier) and channel.copy().finish():
            waiting.setdefault(triggers[name][0], []).append(name)
    first = flow_of(machine).choose_awake(waiting)
    due = [name for node in first for name in waiting[node]]
    barriers = {join.channel for join in flow_of(machine).joins}
    names = [name for name in (*others, *due) if name not in barriers]
    machine.finish_channels(fresh, names)
    if not due:
        _open_circles(machine, fresh)


def flow_of(machine: LiveState) -> Flow:
    """Return the `Flow` of a program that has one."""
    flow = machine.program.flow
    assert flow is not None
    return flow


class BarrierTransition:
    """The end of one step: what it knows before the writes are applied, and what it does
    afterwards.

    Args:
        tasks: those that end with it.
        consumed: the channels that their targets have consumed.
        lost: those that leave without having ended: they have lost their races.
        added: the writes are the caller's, beside all that is pending.
        keep: during an edit, the pending tasks that stay pending; else None.
    """

    def __init__(
        self,
        machine: LiveState,
        tasks: Sequence[Task],
        *,
        consumed: Sequence[str],
        lost: Sequence[Task] = (),
        added: bool = False,
        keep: Sequence[Task] | None = None,
    ) -> None:
        self.machine = machine
        self.flow = flow_of(machine)
        self.tasks = tasks
        self.keep = keep
        channels, open_ = machine.channels, machine.open
        # With schedule="ready": the tasks that stay open, those among the open ones that have
        # started in this state, and the joins whose targets have.
        self.left: Sequence[Task] = ()
        self.starting: Collection[Task] | None = None
        self.left_joins: Collection[str] = ()
        self.waiting_sends: Mapping[int, Any] = {}
        if open_ is not None:
            ended = {*(task.cause or task for task in tasks), *lost}
            self.left = [task for task in (*open_, *open_.starting) if task not in ended]
            self.starting = frozenset(open_.starting)
            self.left_joins = frozenset(consumed)
            self.waiting_sends = open_.waiting_sends or {}
        elif keep is not None and machine.program.starts_ready:  # the edit starts their targets
            self.left_joins = frozenset(consumed)
            self.waiting_sends = {task.path[1]: task.send for task in keep if task.send is not None}
        # join → the tasks that are late for it
        self.late_tasks: dict[str, set[int]] = {}
        for join in self.flow.joins:
            self.late_tasks[join.channel] = {
                id(task) for task in tasks if self._comes_late(task, join)
            }
        lasting = [name for name in self.flow.lasting if is_pending(channels[name])]
        self.staying: set[str] = {name for name in lasting if name not in consumed}
        self.kept_sends: list[int] = []
        if added:
            self.staying.update(name for name in machine.expiring if name != TASKS)
            self.kept_sends = list(range(len(machine.pending_sends())))
        elif open_ is not None:
            self.kept_sends = [*self.waiting_sends]
            self.staying |= {
                name
                for name in machine.held_triggers()
                if name not in self.left_joins and is_pending(channels[name])
            }
        for task in keep or ():
            if task.send is not None:
                self.kept_sends.append(task.path[1])
            else:
                self.staying.update(t for t in task.node.triggers if is_pending(channels[t]))

    def _comes_late(self, task: Task, join: Join) -> bool:
        """Return whether a task belongs to an earlier wave of a join."""
        task = task.cause or task
        if task.node.name == join.target:
            return False
        if join.channel in self.left_joins:
            return True
        late = barrier_of(self.machine, join).late
        if self.starting is not None and task not in self.starting:
            return task.id in late
        return bool(late) and self._is_late(task, late)

    def _is_late(self, task: Task, late: Late) -> bool:
        """Return whether all that made a task run is late."""
        if task.send is not None:
            return task.path[1] in late
        if task.path != task.node.path:
            return False  # an edit that stands for no pending task
        machine, node = self.machine, task.node
        due = [trigger for trigger in node.triggers if machine.is_due(node, trigger)]
        return bool(due) and late.issuperset(due)

    def drop_late(self, writes: Grouped) -> Grouped:
        """The writes without the arrivals of tasks that are late."""
        kept = dict(writes)
        for channel, late in self.late_tasks.items():
            if late and channel in kept:
                kept[channel] = [
                    value
                    for task in self.tasks
                    if id(task) not in late
                    for name, value in task.writes
                    if name == channel
                ]
        return kept

    def settle(self, fresh: StepChanges) -> None:
        """Open joins, now that the writes are applied, and note what is late from now on."""
        machine = self.machine
        pending, sends = find_pending(machine, fresh), find_sends(machine, fresh)
        writers = self._find_writers()
        late_by: dict[str, Late] = {}
        opening: list[Join] = []
        for join in self.flow.joins:
            late = self._find_late(join, pending, sends, writers)
            late_by[join.channel] = late
            channel = _barrier(find_channel(machine, fresh, join.channel))
            waits = join.kind == "reachable" and _waits(channel)
            if waits and not self._find_blockers(fresh, join, late):
                opening.append(join)
        _store_waves(machine, fresh, opening, late_by)

    def _find_blockers(self, fresh: StepChanges, join: Join, late: Late) -> set[str]:
        """Return the nodes under way that hold a "reachable" join back."""
        found = find_blockers(self.machine, fresh, join, late)
        feeders = self.flow.feeders[join.channel]
        new = (task.name for task in self.left if task.id not in late)
        return found.union(name for name in new if name in feeders)

    def _find_writers(self) -> dict[str, list[Task]]:
        """channel → the tasks that wrote to it; an arrival that was dropped is none."""
        found: dict[str, list[Task]] = {}
        for task in self.tasks:
            for name, _ in task.writes:
                if id(task) not in self.late_tasks.get(name, ()):
                    found.setdefault(name, []).append(task)
        return found

    def _find_late(
        self,
        join: Join,
        pending: Iterable[str],
        sends: Sequence[Any],
        writers: Mapping[str, Sequence[Task]],
    ) -> Late:
        """Return what is late from now on, as long as the join does not open."""
        before, tasks = self._late_before(join), self.late_tasks[join.channel]
        left = [task.id for task in self.left if self._comes_late(task, join)]
        if not before and not tasks:
            return before.union(left)
        found: set[str | int] = set()
        for name in pending:
            wrote = writers.get(name, ())
            by_late = all(id(task) in tasks for task in wrote)
            if self.keep is not None and name in before:
                late = True  # it goes on as the task that it was
            elif name in self.staying:
                late = name in before and by_late
            else:
                late = bool(wrote) and by_late
            if late:
                found.add(name)
        found.update(self._find_late_sends(before, tasks, sends))
        return frozenset(found.union(left))

    def _late_before(self, join: Join) -> Late:
        """Return the work that was pending and late before this step ended."""
        if join.channel not in self.left_joins:
            return barrier_of(self.machine, join).late
        return _work_beside(self.machine, join, self.staying, self.waiting_sends)

    def _find_late_sends(self, before: Late, tasks: set[int], sends: Sequence[Any]) -> set[int]:
        found = {place for place, old in enumerate(self.kept_sends) if old in before}
        place = len(self.kept_sends)
        for task in self.tasks:
            for name, value in task.writes:
                if name == TASKS:
                    end = place + len(list_sends(value))
                    again = self.keep is not None and self._led_again(sends[place], before)
                    if again or id(task) in tasks:
                        found.update(range(place, end))
                    place = end
        return found

    def _led_again(self, send: Any, before: Late) -> bool:
        """Whether an edit leads again to Sends that were late."""
        pending = enumerate(self.machine.pending_sends())
        old = [place for place, each in pending if each.node == send.node]
        return bool(old) and before.issuperset(old)


# -- what is pending -------------------------------------------------------------------------------


def find_channel(machine: LiveState, fresh: Mapping[str, Channel], name: str) -> Channel:
    """A channel as it is after the barrier."""
    return fresh[name] if name in fresh else machine.channels[name]


def find_pending(machine: LiveState, fresh: Mapping[str, Channel]) -> list[str]:
    """Return the triggers to which something was written that has made no node run so far."""
    triggers = machine.program.triggers
    names = {*flow_of(machine).lasting, *machine.expiring, *fresh}
    return [
        name
        for name in names
        if name in triggers and is_pending(find_channel(machine, fresh, name))
    ]


def find_sends(machine: LiveState, fresh: Mapping[str, Channel]) -> list[Any]:
    """The Sends that are pending."""
    channel = find_channel(machine, fresh, TASKS)
    return list(channel.get()) if channel.is_available() else []


def find_blockers(
    machine: LiveState, fresh: Mapping[str, Channel], join: Join, late: Late
) -> set[str]:
    """The nodes under way that lead to a source of a "reachable" join, and so hold it back."""
    feeders = flow_of(machine).feeders[join.channel]
    triggers = machine.program.triggers
    found: set[str] = set()
    for name in find_pending(machine, fresh):
        channel = find_channel(machine, fresh, name)
        # A join that still misses a source is not under way: it may never open.
        if name not in late and (channel.is_available() or not channel.describe().missing):
            found.update(feeders.intersection(triggers[name]))
    for place, send in enumerate(find_sends(machine, fresh)):
        if place not in late and send.node in feeders:
            found.add(send.node)
    return found


def is_pending(channel: Channel) -> bool:
    if isinstance(channel, Barrier):
        return bool(channel.seen)
    return channel.is_available() or channel.describe().state == "waiting"


def _waits(channel: Channel) -> bool:
    """Whether somebody has come to a join that is not open."""
    barrier = _barrier(channel)
    return bool(barrier.seen) and not barrier.opened


def barrier_of(machine: LiveState, join: Join) -> WaveBarrier[Any]:
    """The channel of a join, as it was before."""
    return _barrier(machine.channels[join.channel])


def _barrier(channel: Channel) -> WaveBarrier[Any]:
    return cast(WaveBarrier[Any], channel)


# -- opening ---------------------------------------------------------------------------------------


def _open_circles(machine: LiveState, fresh: StepChanges) -> None:
    """Open the joins that wait for nothing but each other."""
    waiting = {}
    late_by = {}
    for join in flow_of(machine).joins:
        channel = _barrier(find_channel(machine, fresh, join.channel))
        late_by[join.channel] = channel.late
        if join.kind == "reachable" and _waits(channel):
            waiting[join.channel] = join
    if not waiting:
        return
    leads: dict[str, set[str]] = {
        name: {
            other
            for other, join in waiting.items()
            if other != name
            and name not in late_by[other]
            and waiting[name].target in flow_of(machine).feeders[other]
        }
        for name in waiting
    }
    first = find_first(waiting, {name: walk(ends, leads) for name, ends in leads.items()})
    _store_waves(machine, fresh, [waiting[name] for name in first], late_by)


def _store_waves(
    machine: LiveState,
    fresh: StepChanges,
    opening: Sequence[Join],
    late_by: Mapping[str, Late],
) -> None:
    """Open these joins. In supersteps that ends their waves: all that is pending beside the target
    is late from now on."""
    for join in opening:
        channel = _barrier(find_channel(machine, fresh, join.channel)).copy()
        channel.open()
        fresh.put(join.channel, channel)
    pending = find_pending(machine, fresh)
    sends = dict(enumerate(find_sends(machine, fresh)))
    for join in flow_of(machine).joins:
        channel = _barrier(find_channel(machine, fresh, join.channel))
        late = late_by[join.channel]
        if channel.opened and machine.open is None:
            late = _work_beside(machine, join, pending, sends)
        if late != channel.late:
            channel = channel.copy()
            channel.late = late
            fresh[join.channel] = channel


def _work_beside(
    machine: LiveState, join: Join, pending: Iterable[str], sends: Mapping[int, Any]
) -> Late:
    """Return the pending work that makes another node run than the target of a join.

    Args:
        pending: the triggers.
        sends: by their places.
    """
    triggers = machine.program.triggers
    return frozenset([
        *(name for name in pending if triggers.get(name) != (join.target,)),
        *(place for place, send in sends.items() if send.node != join.target),
    ])  # fmt: skip
