"""The channels of one run: as they are read, and as writes change them.

Each change is made to copies first and becomes the live state at once, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from ...channels.aggregate import is_overwrite
from ...channels.base import Channel, EmptyChannelError
from ..errors import InternalError, StateGraphError, warn
from ..names import RAN, TASKS, trigger_name
from ..program.program import CompiledNode, Program, Reader
from ..program.writes import Pair
from ..task.task import Task
from ..types import Selection

if TYPE_CHECKING:
    from .slots import OpenTasks

Grouped = Mapping[str, list[Any]]
"""channel → the values written to it, in path order"""


class StepChanges(dict[str, Channel]):
    """What an update changes: channel → the copy that takes its place.

    Attributes:
        holding: those that hold a value then. `no_changes` sets it, as an `__init__` would be a
            call in each superstep.
    """

    __slots__ = ("holding",)

    holding: set[str]

    def put(self, name: str, channel: Channel) -> None:
        """Let this channel take the place of the one of that name."""
        self[name] = channel
        if channel.is_available():
            self.holding.add(name)
        else:
            self.holding.discard(name)


def no_changes() -> StepChanges:
    """Return changes to which others are added."""
    fresh = StepChanges()
    fresh.holding = set()
    return fresh


class LiveState:
    """The channels of one run: as inputs and outputs read them, and as writes change them.

    Attributes:
        cache: what each reader last read; `refresh` brings it up to date key by key, so that
            reading a state of many keys is one copy of a dict (benchmark P11-step).
        remaining: supersteps this call may still take, the next one counted.
        changed: channels changed by the last superstep that hold a value; None right after loading.
        step: the number of the superstep that would run next; a checkpoint carries the one before.
        versions: of each channel that was ever changed, at which tick it last was.
        seen: of each node that ran, the versions of its triggers at that time.
        tick: the highest version of any channel.
        expiring: step-scoped channels that hold a value: the next superstep empties them.
        held: nodes that were triggered while their only input was empty; they run once it is not.
        open: with schedule="ready" the tasks that have started and not ended; None in supersteps,
            and if nothing runs in this state. With open tasks `held` has all nodes that are due and
            have not started: what triggers them does not expire.
        unsaved: channels changed since the last checkpoint was taken.
        unsaved_seen: nodes whose `seen` changed since then.
    """

    __slots__ = (
        "cache", "changed", "channels", "expiring", "held", "open", "program", "remaining", "seen",
        "step", "tick", "unsaved", "unsaved_seen", "versions",
    )  # fmt: skip

    cache: dict[Reader, dict[str, Any]]
    changed: Iterable[str] | None
    channels: dict[str, Channel]
    expiring: set[str]
    held: set[str]
    open: OpenTasks | None
    program: Program
    remaining: int
    seen: dict[str, dict[str, int]]
    step: int
    tick: int
    unsaved: set[str]
    unsaved_seen: set[str]
    versions: dict[str, int]

    # -- reading -----------------------------------------------------------------------------------

    def read(self, reader: Reader) -> dict[str, Any]:
        """The selected channels that hold a value, as a dict of the caller's own."""
        cached = self.cache.get(reader)
        if cached is None:
            cached = self.cache[reader] = self.select(reader.keys)
        values = cached.copy()
        for key, managed in reader.managed:
            values[key] = managed.get(self.remaining)
        return values

    def preview(self, reader: Reader, writes: Sequence[Pair]) -> dict[str, Any]:
        """`read` as it will be if these writes alone are applied. The channels stay as they are."""
        values = self.read(reader)
        readers = self.program.readers
        for channel, updates in group_by_channel(writes).items():
            # Only what this reader shows: a router must not see keys outside its schema.
            if reader in readers.get(channel, ()):
                try:
                    values[channel] = self.channels[channel].preview(updates)
                except EmptyChannelError:
                    values.pop(channel, None)
        return values

    def select(self, keys: Iterable[str]) -> dict[str, Any]:
        """The named channels that hold a value, in the order named."""
        channels, values = self.channels, {}
        for key in keys:
            try:
                values[key] = channels[key].get()
            except EmptyChannelError:
                continue
        return values

    def output(self, keys: Selection) -> Any:
        """A bare value (None if there is none) for a str, else a dict."""
        if isinstance(keys, str):
            return self.select((keys,)).get(keys)
        return self.select(keys)

    def output_with(self, keys: Selection, writes: Sequence[Pair]) -> Any:
        """`output` as it would be with these writes applied. The channels stay as they are."""
        if not writes:
            return self.output(keys)
        copies = {}
        for name, values in group_by_channel(writes).items():
            copies[name] = self.channels[name].copy()
            copies[name].update(values)
        live, self.channels = self.channels, {**self.channels, **copies}
        try:
            return self.output(keys)
        finally:
            self.channels = live

    def refresh(self, name: str, channel: Channel | None) -> None:
        """Carry a channel's change into the cache; None for a channel that holds nothing now."""
        cache = self.cache
        for reader in self.program.readers[name]:
            cached = cache.get(reader)
            if cached is None:
                continue
            if channel is not None and name in cached:
                cached[name] = channel.get()
            elif channel is not None or name in cached:
                # A key came or went. Keys stand in the order of the reader, so all of them are read
                # anew.
                del cache[reader]

    # -- what is due, and what writes change -------------------------------------------------------

    def _candidates(self, changed: Iterable[str]) -> Sequence[str]:
        """The nodes behind a changed channel, in name order; nobody else is looked at."""
        triggers = self.program.triggers
        # In most supersteps one channel triggers: its nodes stand in order already, so that they
        # are taken as they are. A set is made, and sorted, only from the second such channel on
        # (benchmark P1).
        first: Sequence[str] | None = None
        more: set[str] | None = set(self.held) if self.held else None
        for channel in changed:
            names = triggers.get(channel)
            if names is None:
                continue
            if first is None and more is None:
                first = names
            else:
                if more is None:
                    more = set(first or ())
                more.update(names)
        return (first or ()) if more is None else sorted(more)

    def _is_triggered(self, node: CompiledNode) -> bool:
        """The one rule: some trigger holds a value and moved since the node last ran."""
        versions, seen = self.versions, self.seen.get(node.name)
        for trigger in node.triggers:
            version = versions.get(trigger)
            if (
                # A channel that was just emptied has moved as well: it must also hold a value.
                version is not None
                and (seen is None or version > seen.get(trigger, 0))
                and self.channels[trigger].is_available()
            ):
                return True
        return False

    def find_due(self) -> list[str]:
        """Return the triggered nodes, in name order."""
        nodes, changed = self.program.nodes, self.changed
        names = self._candidates(self.versions if changed is None else changed)
        return [name for name in names if self._is_triggered(nodes[name])]

    def held_triggers(self) -> set[str]:
        """Return what triggers the nodes that are due and have not started."""
        nodes = self.program.nodes
        return {trigger for name in self.held for trigger in nodes[name].triggers}

    def pending_sends(self) -> list[Any]:
        """Return the Sends that have not started, in the order of their places."""
        return list(self.channels[TASKS].get()) if TASKS in self.expiring else []

    def is_due(self, node: CompiledNode, trigger: str) -> bool:
        """Whether one trigger makes a node run: the rule of `_is_triggered`, for one of them."""
        seen = self.seen.get(node.name, {}).get(trigger, 0)
        return self.versions.get(trigger, 0) > seen and self.channels[trigger].is_available()

    def find_restart(self, node: CompiledNode) -> tuple[str, ...] | None:
        """What had opened the joins behind a node that starts again in this state: see
        `Machine.requeue`. None if it starts for the first time."""
        own = trigger_name(node.name)
        joined = self.channels[own].get() if self.is_due(node, own) else None
        # A pair that ends with a bool: the node was deferred in another version of the graph.
        if joined is None or (joined and isinstance(joined[-1], bool)):
            return None
        return tuple(joined)

    def _consume(self, tasks: Sequence[Task], fresh: StepChanges) -> None:
        """Tell the channels that want to know, such as joins, that their nodes ran."""
        for task in tasks:
            task = task.cause or task  # an error handler ran in the place of the task that failed
            for name in task.node.consumes:
                if name not in fresh and task.send is None:  # a Send waits for no channel
                    channel = self.channels[name].copy()
                    if channel.consume():
                        fresh.put(name, channel)

    def _update(
        self,
        writes: Grouped,
        fresh: StepChanges,
        tasks: Sequence[Task],
        expiring: Collection[str],
    ) -> None:
        """Update copies of the written channels, and of those that an empty step changes.

        Args:
            writes: channel → values, in path order.
            fresh: what has changed so far; more is added.
            tasks: who wrote, for error texts.
            expiring: the channels that live for one step, which ends now.
        """
        channels, holding = self.channels, fresh.holding
        for name, values in writes.items():
            channel = fresh.get(name)
            if channel is None:
                try:
                    channel = channels[name].copy()
                # Writers check their channels, so a write to none here is a mistake of the
                # engine's.
                except KeyError:
                    where = f"step {self.step}: a write to the unknown channel {name!r}"
                    raise InternalError(where) from None
            try:
                moved = channel.update(values)
                if moved:
                    fresh[name] = channel
                    if channel.is_available():
                        holding.add(name)
                    else:
                        holding.discard(name)
                elif moved is None:  # a slip that would lose what was written
                    what = f"{type(channel).__name__}.update() must return whether it has changed"
                    raise TypeError(f"{what} the channel, got None")
            except Exception as error:
                writers = ", ".join(writers_of(name, tasks))
                by = f", written by {writers}" if writers else ""
                by += _repeats_note(name, tasks)
                error.add_note(
                    f"At step {self.step}, key {name!r}{by}.{reducer_note(error, channel, values)}"
                    " No write of this superstep was applied."
                )
                raise
            if channel.dropped:
                warn(overwrite_warning(name, tasks))
        blank = self.program.kinds.blank
        for name in expiring:
            # Those that got no writes get an empty update.
            if name in writes:
                continue
            if name in blank and name not in fresh:
                # A channel of ours becomes what it was at first. The program's own blank one is put
                # in its place, which saves a copy and two calls (benchmark P1).
                fresh[name] = blank[name]
                continue
            used = fresh.get(name)
            channel = self.channels[name].copy() if used is None else used
            if channel.update(()):
                fresh.put(name, channel)

    def _mark_seen(self, tasks: Sequence[Task]) -> None:
        """Remember what each node that ran had seen of its triggers, and when it ran."""
        versions, seen, tick = self.versions, self.seen, self.tick
        sent = ""
        for task in tasks:
            node = task.node
            name = node.name
            if task.send is not None:
                # Once for all Sends to a node that stand in a row (benchmark P8).
                if name != sent:
                    sent = name
                    self._note_send(name, tick)
                continue
            mine = {}
            for trigger in node.triggers:  # before Python 3.12 a comprehension is a call (P1)
                if trigger in versions:
                    mine[trigger] = versions[trigger]
            # Something else was written since it was triggered.
            if tick not in mine.values() and node.triggers:
                mine[RAN] = tick
            before = seen.get(name)
            if before and TASKS in before:
                mine[TASKS] = before[TASKS]
            seen[name] = mine
            self.unsaved_seen.add(name)
            if task.cause is not None:  # so has the node whose error this one handles
                self._mark_seen((task.cause,))

    def _note_send(self, node: str, tick: int) -> None:
        """Remember that a Send to a node has ended. What the node's triggers hold stays unseen.

        Args:
            tick: the version of the state in which it ran.
        """
        # Never in place: commits and copies of this machine share what was seen.
        before = self.seen.get(node, {})
        # With schedule="ready" one that has started later may have ended before.
        self.seen[node] = {**before, TASKS: max(tick, before.get(TASKS, 0))}
        self.unsaved_seen.add(node)

    def _swap(self, fresh: StepChanges) -> None:
        """Make the updated channels the live ones, with a new version.

        All of them get the same version, one above the highest there is: a node compares it
        with the one it has seen, so that only the order of supersteps matters, never a clock.
        """
        self.changed = holding = fresh.holding
        if not fresh:
            return
        self.channels.update(fresh)
        tick = self.tick = self.tick + 1
        versions, expiring = self.versions, self.expiring
        scoped, readers = self.program.kinds.step_scoped, self.program.readers
        for name in fresh:
            versions[name] = tick
            holds = name in holding
            if name in scoped:
                if holds:
                    expiring.add(name)
                else:
                    expiring.discard(name)
            if name in readers:
                self.refresh(name, fresh[name] if holds else None)
        self.unsaved.update(fresh)

    def _has_work(self, fresh: StepChanges) -> bool:
        """Whether anything can run without waking the channels that wait for the end."""
        # A Send is due by itself; no trigger leads to it.
        if TASKS in fresh.holding:
            return True
        nodes, triggers, channels = self.program.nodes, self.program.triggers, self.channels
        triggered = [name for channel in fresh.holding for name in triggers.get(channel, ())]
        # A deferred node that was held has been put back to sleep if something led to it once more.
        held = [
            name
            for name in self.held
            if any(fresh.get(each, channels[each]).is_available() for each in nodes[name].triggers)
        ]
        for name in (*triggered, *held):
            reads = nodes[name].reads
            # A node that would be held back, because its only input is empty, is no work.
            if reads.__class__ is not str or fresh.get(reads, channels[reads]).is_available():
                return True
        return False

    def finish_channels(self, fresh: StepChanges, names: Iterable[str]) -> None:
        """Tell these channels that nothing else is left to run."""
        for name in names:
            channel = fresh.get(name)
            if channel is None:
                channel = self.channels[name].copy()
            if channel.finish():
                fresh.put(name, channel)

    def forget_seen(self, names: Iterable[str]) -> None:
        """Let the next checkpoint say that these have seen nothing. That Sends have ended stays."""
        for name in names:
            before = self.seen.get(name, {})
            self.seen[name] = {TASKS: before[TASKS]} if TASKS in before else {}
            self.unsaved_seen.add(name)

    def wake(self, names: Iterable[str]) -> None:
        """Let these channels hold what waits for the end."""
        fresh = no_changes()
        self.finish_channels(fresh, names)
        if fresh:
            self.put(fresh)

    def put(self, fresh: StepChanges) -> None:
        """Make these channels the live ones, beside what has changed before: no step ends."""
        before = self.changed
        self._swap(fresh)
        # None stays None: after loading it still holds that anything may have changed.
        self.changed = None if before is None else {*before, *(self.changed or ())}


def group_by_channel(writes: Iterable[Pair]) -> dict[str, list[Any]]:
    """channel → values, in write order."""
    found: dict[str, list[Any]] = {}
    for channel, value in writes:
        if channel in found:
            found[channel].append(value)
        else:
            found[channel] = [value]
    return found


def writers_of(key: str, tasks: Sequence[Task], *, overwrites: bool = True) -> list[str]:
    """The names of the nodes that wrote to a channel, sorted.

    Args:
        overwrites: count those that wrote an `Overwrite`, too.
    """
    return sorted(
        {
            task.name
            for task in tasks
            if any(n == key and (overwrites or not is_overwrite(v)) for n, v in task.writes)
        }
    )


def _repeats_note(key: str, tasks: Sequence[Task]) -> str:
    """Which task wrote a key several times, and how it came to that."""
    for task in tasks:
        count = sum(name == key for name, _ in task.writes)
        if count > 1:
            return (
                f". {task.name} alone wrote it {count} times: each update that a node yields, or "
                "returns in a list, is a write of its own"
            )
    return ""


def reducer_note(error: Exception, channel: Channel, values: Any) -> str:
    """What a reducer of the user's could not fold into what."""
    reducer = getattr(channel, "operator", None)
    if reducer is None or isinstance(error, StateGraphError) or not channel.is_available():
        return ""
    name = getattr(reducer, "__name__", repr(reducer))
    got = " and ".join(sorted({type(value).__name__ for value in values}))
    held = type(channel.get()).__name__
    return f" Its reducer {name} folds writes into a {held}, and got {got}."


def overwrite_warning(key: str, tasks: Sequence[Task]) -> str:
    """Without step or count: Python shows a warning once for each text."""
    writers = ", ".join(map(repr, writers_of(key, tasks, overwrites=False)))
    by = f"; they came from {writers}" if writers else ""
    return (
        f"key {key!r}: an Overwrite replaced the value, and the other writes of the superstep were "
        f"dropped{by}. Overwrite the key in a superstep of its own"
    )


@cache
def _slots_of(cls: type) -> tuple[str, ...]:
    return tuple(name for base in cls.__mro__ for name in base.__dict__.get("__slots__", ()))


def copy_slots(record: Any) -> Any:
    """`copy` for an object whose classes have slots, all of them set: in half the time. With
    schedule="ready" each step makes three (benchmarks/ready.py)."""
    cls = record.__class__
    other = cls.__new__(cls)
    assign_slots(other, record)
    return other


def assign_slots(record: Any, other: Any) -> None:
    """Let a record hold what another one of its class holds."""
    for name in _slots_of(record.__class__):
        setattr(record, name, getattr(other, name))
