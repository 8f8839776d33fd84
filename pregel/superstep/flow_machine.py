"""The machine of a graph whose joins gather in waves, or whose deferred nodes have an order.

Only a program with a `Flow` is run by it. It adds to `Machine` what happens between the writes of a
superstep and the plan of the next one, in this order:

1. Arrivals of late tasks are dropped; the other writes are applied. A join that waits for a number
   opens when so many have come.
2. Joins that wait for whoever can still come are judged, all of them on this one state, and opened.
3. For a join that is open, all that is pending beside its target becomes late.
4. If nothing is to run, deferred nodes wake in the order in which they lead to each other.
5. If still nothing is to run, joins open that wait for each other in a circle.

Theory of operation: late is a property of pending work, not of tasks. A task is late for a join if
all that triggered it is; what it triggers is late, unless work that is not late triggers it, too.
So it is enough to keep, in the channel of the join, which triggers and Sends are late. Nothing else
is remembered between supersteps, and a machine that was loaded goes on like the one that stored it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from ...channels.base import MISSING, Channel
from ...channels.named_barrier import Barrier, Late, WaveBarrier
from ..names import TASKS
from ..program.flow import Flow, find_first, walk
from ..program.join import Join
from ..program.program import Program
from ..program.writes import Pair, list_sends
from .machine import Machine
from .state import Channels, Grouped, Noted
from .task import Task


class FlowMachine(Machine):
    """A `Machine` that opens joins, and wakes deferred nodes in order.

    Attributes:
        flow: that of the program.
        kept: during an edit, the pending tasks that stay pending.
        starting: new input is being taken.
    """

    __slots__ = ("flow", "kept", "starting")

    def __init__(self, program: Program, *args: Any, **kwargs: Any) -> None:
        super().__init__(program, *args, **kwargs)
        assert program.flow is not None
        self.flow: Flow = program.flow
        self.kept: Sequence[Task] | None = None
        self.starting: bool = False

    def apply_input(self, writes: Sequence[Pair], discarded: Sequence[Task]) -> None:
        """`Machine.apply_input`, which ends all waves."""
        self.starting = True
        try:
            super().apply_input(writes, discarded)
        finally:
            self.starting = False

    def apply_edit(self, tasks: Sequence[Task], keep: Sequence[Task]) -> None:
        """`Machine.apply_edit`: an edit arrives at joins, or starts their target, as its node
        does."""
        self.kept = keep
        try:
            super().apply_edit(tasks, keep)
        finally:
            self.kept = None

    def late_work(self) -> dict[str, Late]:
        """What is late for each join: channel of the join → late triggers and Sends."""
        return {join.channel: barrier_of(self, join).late for join in self.flow.joins}

    def rename_late(
        self, before: Mapping[str, Late], names: Mapping[str, str | int], waited: Collection[str]
    ) -> None:
        """Keep what is late when tasks that were under way become pending again.

        Args:
            before: what was late before.
            names: their ids → the triggers, or the places of the Sends, by which they are pending.
            waited: of these triggers those that were pending before, too.
        """
        fresh: Channels = {}
        for channel, ids in before.items():
            barrier = _barrier(self.channels[channel])
            # Late is what only late work has triggered.
            still = {
                name for id, name in names.items()
                if id in ids and (name not in waited or name in barrier.late)
            }  # fmt: skip
            late = barrier.late.difference(names.values()) | still
            if late != barrier.late:
                fresh[channel] = barrier = barrier.copy()
                barrier.late = late
        if fresh:
            old = self.changed
            changed = {name for name, channel in fresh.items() if channel.is_available()}
            self._swap(fresh, [*fresh], changed)
            self.changed = None if old is None else {*old, *changed}

    def find_blockers(self, channel: str) -> set[str]:
        """`Machine.find_blockers`."""
        for join in self.flow.joins:
            barrier = self.channels[join.channel]
            if join.channel == channel and join.kind == "reachable" and _waits(barrier):
                return find_blockers(self, {}, join, _barrier(barrier).late)
        return set()

    def _update(
        self,
        writes: Grouped,
        fresh: Channels,
        noted: Noted,
        tasks: Sequence[Task],
        *,
        expire: bool = True,
    ) -> None:
        moved, changed = noted
        if self.starting:
            super()._update(writes, fresh, noted, tasks, expire=expire)
            for join in self.flow.joins:
                if self.channels[join.channel].checkpoint() is not MISSING:
                    fresh[join.channel] = self.program.channels[join.channel]
                    changed.discard(join.channel)
                    if join.channel not in moved:
                        moved.append(join.channel)
            return
        if not self.flow.joins:
            super()._update(writes, fresh, noted, tasks, expire=expire)
            return
        crossing = self._cross(tasks, consumed=moved, expire=expire)
        super()._update(crossing.drop_late(writes), fresh, noted, tasks, expire=expire)
        crossing.settle(fresh, noted)

    def _cross(self, tasks: Sequence[Task], *, consumed: Sequence[str], expire: bool) -> Crossing:
        return Crossing(self, tasks, consumed=consumed, expire=expire)

    def end_wave(self, join: Join, pending: Sequence[str], sends: Sequence[Any]) -> Late | None:
        """The pending work that is late from now on, as the join is open; None leaves it as it
        is."""
        own = (join.target,)
        others = [place for place, send in enumerate(sends) if send.node != join.target]
        triggers = self.program.triggers
        return frozenset([*(name for name in pending if triggers[name] != own), *others])

    def _finish(self, fresh: Channels, moved: list[str], changed: set[str]) -> None:
        triggers = self.program.triggers
        waiting: dict[str, list[str]] = {}
        others: list[str] = []  # keys of the state that are shown at the end
        for name in self.program.kinds.finishers:
            channel = find_channel(self, fresh, name)
            if name not in triggers:
                others.append(name)
            elif not isinstance(channel, WaveBarrier) and channel.copy().finish():
                waiting.setdefault(triggers[name][0], []).append(name)
        first = self.flow.choose_awake(waiting)
        due = [name for node in first for name in waiting[node]]
        super()._wake(fresh, moved, changed, [*others, *due])
        if not due:
            _open_circles(self, fresh, (moved, changed))

    def _wake(
        self, fresh: Channels, moved: list[str], changed: set[str], names: Iterable[str]
    ) -> None:
        barriers = {join.channel for join in self.flow.joins}
        names = [name for name in names if name not in barriers]
        super()._wake(fresh, moved, changed, names)


class Crossing:
    """One barrier between two supersteps: what it knows before the writes are applied, and what it
    does afterwards."""

    def __init__(
        self, machine: FlowMachine, tasks: Sequence[Task], *, consumed: Sequence[str], expire: bool
    ) -> None:
        self.machine = machine
        self.tasks = tasks
        self.editing = machine.kept is not None
        self.added = not expire  # writes of the caller's, beside all that is pending
        channels = machine.channels
        # join → the tasks that are late for it
        self.late_tasks: dict[str, set[int]] = {}
        for join in machine.flow.joins:
            self.late_tasks[join.channel] = {
                id(task) for task in tasks if self._comes_late(task, join)
            }
        lasting = [name for name in machine.flow.lasting if is_pending(channels[name])]
        self.staying = {name for name in lasting if name not in consumed}
        self.kept_sends: list[int] = []
        if self.added:
            self.staying.update(name for name in machine.expiring if name != TASKS)
            self.kept_sends = list(range(len(find_sends(machine, {}))))
        for task in machine.kept or ():
            if task.send is not None:
                self.kept_sends.append(task.path[1])
            else:
                self.staying.update(t for t in task.node.triggers if is_pending(channels[t]))

    def _comes_late(self, task: Task, join: Join) -> bool:
        late = barrier_of(self.machine, join).late
        return bool(late) and node_of(task) != join.target and self._is_late(task, late)

    def _is_late(self, task: Task, late: Late) -> bool:
        """Whether all that made a task run is late."""
        task = task.cause or task
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

    def settle(self, fresh: Channels, noted: Noted) -> None:
        """Open joins, now that the writes are applied, and note what is late from now on."""
        machine = self.machine
        pending, sends = find_pending(machine, fresh), find_sends(machine, fresh)
        writers = self._find_writers()
        late_by: dict[str, Late] = {}
        opening: list[Join] = []
        for join in machine.flow.joins:
            late = self._find_late(join, pending, sends, writers)
            late_by[join.channel] = late
            channel = _barrier(find_channel(machine, fresh, join.channel))
            waits = join.kind == "reachable" and _waits(channel)
            if waits and not self._find_blockers(fresh, join, late):
                opening.append(join)
        _store_waves(machine, fresh, noted, opening, late_by)

    def _find_blockers(self, fresh: Channels, join: Join, late: Late) -> set[str]:
        """The nodes under way that hold a "reachable" join back."""
        return find_blockers(self.machine, fresh, join, late)

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
        """The pending work that is late, as long as the join does not open."""
        before, tasks = self._late_before(join), self.late_tasks[join.channel]
        if not before and not tasks:
            return before
        found: set[str | int] = set()
        for name in pending:
            wrote = writers.get(name, ())
            by_late = all(id(task) in tasks for task in wrote)
            if self.editing and name in before:
                late = True  # it goes on as the task that it was
            elif name in self.staying:
                late = name in before and by_late
            else:
                late = bool(wrote) and by_late
            if late:
                found.add(name)
        found.update(self._find_late_sends(before, tasks, sends))
        return frozenset(found)

    def _late_before(self, join: Join) -> Late:
        """The work that was pending and late before this barrier."""
        return barrier_of(self.machine, join).late

    def _find_late_sends(
        self, before: Late, tasks: set[int], sends: Sequence[Any]
    ) -> set[int]:
        found = {place for place, old in enumerate(self.kept_sends) if old in before}
        place = len(self.kept_sends)
        for task in self.tasks:
            for name, value in task.writes:
                if name == TASKS:
                    end = place + len(list_sends(value))
                    again = self.editing and self._led_again(sends[place], before)
                    if again or id(task) in tasks:
                        found.update(range(place, end))
                    place = end
        return found

    def _led_again(self, send: Any, before: Late) -> bool:
        """Whether an edit leads again to Sends that were late."""
        old = [
            place
            for place, each in enumerate(find_sends(self.machine, {}))
            if each.node == send.node
        ]
        return bool(old) and before.issuperset(old)


# -- what is pending -------------------------------------------------------------------------------


def find_channel(machine: Machine, fresh: Mapping[str, Channel], name: str) -> Channel:
    """A channel as it is after the barrier."""
    return fresh[name] if name in fresh else machine.channels[name]


def find_pending(machine: FlowMachine, fresh: Mapping[str, Channel]) -> list[str]:
    """The triggers to which something was written that has made no node run so far."""
    triggers = machine.program.triggers
    names = {*machine.flow.lasting, *machine.expiring, *fresh}
    # While an edit is applied, what stays pending is not among those that expire.
    names.update(trigger for task in machine.kept or () for trigger in task.node.triggers)
    return [
        name
        for name in names
        if name in triggers and is_pending(find_channel(machine, fresh, name))
    ]


def find_sends(machine: Machine, fresh: Mapping[str, Channel]) -> list[Any]:
    """The Sends that are pending."""
    channel = find_channel(machine, fresh, TASKS)
    return list(channel.get()) if channel.is_available() else []


def find_blockers(
    machine: FlowMachine, fresh: Mapping[str, Channel], join: Join, late: Late
) -> set[str]:
    """The nodes under way that lead to a source of a "reachable" join, and so hold it back."""
    feeders = machine.flow.feeders[join.channel]
    triggers = machine.program.triggers
    found: set[str] = set()
    for name in find_pending(machine, fresh):
        channel = find_channel(machine, fresh, name)
        # A join that still misses somebody is not under way: it may wait for ever.
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


def node_of(task: Task) -> str:
    return (task.cause or task).node.name


def _waits(channel: Channel) -> bool:
    """Whether somebody has come to a join that is not open."""
    barrier = _barrier(channel)
    return bool(barrier.seen) and not barrier.opened


def barrier_of(machine: Machine, join: Join) -> WaveBarrier[Any]:
    """The channel of a join, as it was before."""
    return _barrier(machine.channels[join.channel])


def _barrier(channel: Channel) -> WaveBarrier[Any]:
    return cast(WaveBarrier[Any], channel)


# -- opening ---------------------------------------------------------------------------------------


def _open_circles(machine: FlowMachine, fresh: Channels, noted: Noted) -> None:
    """Open the joins that wait for nothing but each other."""
    waiting = {}
    late_by = {}
    for join in machine.flow.joins:
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
            and waiting[name].target in machine.flow.feeders[other]
        }
        for name in waiting
    }
    first = find_first(waiting, {name: walk(ends, leads) for name, ends in leads.items()})
    _store_waves(machine, fresh, noted, [waiting[name] for name in first], late_by)


def _store_waves(
    machine: FlowMachine,
    fresh: Channels,
    noted: Noted,
    opening: Sequence[Join],
    late_by: Mapping[str, Late],
) -> None:
    """Open these joins; for those that are open, all that is pending beside their target is late
    from now on."""
    moved, changed = noted
    for join in opening:
        channel = _barrier(find_channel(machine, fresh, join.channel)).copy()
        channel.open()
        fresh[join.channel] = channel
        if join.channel not in moved:
            moved.append(join.channel)
        changed.add(join.channel)
    pending, sends = find_pending(machine, fresh), find_sends(machine, fresh)
    for join in machine.flow.joins:
        channel = _barrier(find_channel(machine, fresh, join.channel))
        late = late_by[join.channel]
        ended = machine.end_wave(join, pending, sends) if channel.opened else None
        if ended is not None:
            late = ended
        if late != channel.late:
            channel = channel.copy()
            channel.late = late
            fresh[join.channel] = channel
            if join.channel not in moved:
                moved.append(join.channel)
