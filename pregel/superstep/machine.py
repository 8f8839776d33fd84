"""The superstep as pure state: `plan` says which tasks run, `apply` folds in what they wrote.

No await, no lock, no clock, no saver: give it the same writes and it makes the same history. Work follows what
changed: the channels written, the nodes they trigger, the few channels that react to an empty step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any

from ...channels.base import MISSING, EmptyChannelError
from ...checkpoint.base import CHECKPOINT_FORMAT, Checkpoint
from ..errors import InternalError, InvalidUpdateError, nearest, warn
from ..names import INPUT, TASKS
from ..program.program import CompiledNode, Program
from ..program.writes import Pair
from .task import Task, in_path_order
from .view import Cells, Channel, grouped


class Machine(Cells):
    """The live state of one run of one program.

    Attributes:
        step: the number of the superstep that would run next; a checkpoint carries the one before.
        changed: channels changed by the last `apply` that hold a value; None right after loading.
        kept: path → id of the next tasks that were begun beside an earlier checkpoint, before an edit.
        unsaved: channels changed since the last checkpoint was taken.
        unsaved_seen: nodes whose `seen` changed since then.
    """

    __slots__ = (
        "changed",
        "checkpoint_id",
        "expiring",
        "held",
        "kept",
        "seen",
        "step",
        "tick",
        "unsaved",
        "unsaved_seen",
        "versions",
    )

    def __init__(self, program: Program, checkpoint: Checkpoint | None = None, step: int = -1) -> None:
        self.program = program
        self.step = step
        self.remaining = 0
        self.changed: Iterable[str] | None = ()
        self.held: set[str] = set()
        self.unsaved: set[str] = set()
        self.unsaved_seen: set[str] = set()
        self.views = {}
        self.kept: Mapping[tuple[Any, ...], str] = {}
        self.checkpoint_id = ""
        self.versions: dict[str, int] = {}
        self.seen: dict[str, dict[str, int]] = {}
        stored: Mapping[str, Any] = {}
        if checkpoint is not None:
            self.checkpoint_id = checkpoint["id"]
            self.versions = dict(checkpoint["channel_versions"])
            self.seen = dict(checkpoint["versions_seen"])
            stored = checkpoint["channel_values"]
            self.changed = None
        self.tick = max(self.versions.values(), default=0)
        # Most channels are blank, and shared as they are: a call costs what it holds, not how large the graph is.
        self.channels = channels = dict(program.channels)
        made = [name for name in dict.fromkeys((*program.unshared, *stored)) if name in channels]
        for name in made:
            channels[name] = channels[name].from_checkpoint(stored.get(name, MISSING))
        # Channels that react to an empty step and hold something: the only ones `apply` must look at unasked.
        self.expiring = {name for name in made if name in program.step_scoped and channels[name].is_available()}

    def copy(self) -> Machine:
        """A machine of its own in the same state."""
        twin = copy(self)
        twin.channels, twin.views = dict(self.channels), {reader: dict(view) for reader, view in self.views.items()}
        twin.versions, twin.seen = dict(self.versions), dict(self.seen)
        twin.expiring, twin.held = set(self.expiring), set(self.held)
        twin.unsaved, twin.unsaved_seen = set(self.unsaved), set(self.unsaved_seen)
        return twin

    # -- plan -----------------------------------------------------------------------------------------------

    def plan(self, *, coerce: bool = True) -> list[Task]:
        """The tasks of the next superstep: Sends by index, then triggered nodes by name.

        Args:
            coerce: apply the nodes' mappers; False when nobody will run the tasks.
        """
        program, changed = self.program, self.changed
        tasks: list[Task] = []
        if TASKS in self.expiring:
            nodes = program.nodes
            for index, send in enumerate(self.channels[TASKS].get()):
                node = nodes.get(send.node)
                if node is None:
                    if not coerce:
                        continue  # left by another graph: who only looks need not stumble over it
                    raise InvalidUpdateError(
                        f"step {self.step}: a Send goes to unknown node {send.node!r}; {nearest(send.node, nodes)}"
                    )
                task = Task(node, index, send.arg)
                task.send = send
                tasks.append(task)
        for name in self._candidates(self.versions if changed is None else changed):
            node = program.nodes[name]
            if self._is_triggered(node):
                self._pull(node, tasks, coerce)
        return tasks

    def _candidates(self, changed: Iterable[str]) -> Sequence[str]:
        """The nodes behind a changed channel, in name order; nobody else is looked at."""
        triggers = self.program.triggers
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
                version is not None
                and (seen is None or version > seen.get(trigger, 0))
                and self.channels[trigger].is_available()
            ):
                return True
        return False

    def _pull(self, node: CompiledNode, tasks: list[Task], coerce: bool) -> None:
        """Add the task of a triggered node; one whose only input is empty is held back until that is filled."""
        reads = node.reads
        if reads.__class__ is str:
            try:
                value = self.channels[reads].get()
            except EmptyChannelError:
                self.held.add(node.name)
                return
        else:
            value = self.read(reads)  # type: ignore[arg-type]
        if self.held:
            self.held.discard(node.name)
        if coerce and node.mapper is not None:
            try:
                value = node.mapper(value)
            except Exception as error:
                error.add_note(f"Before task with name {node.name!r} and path {node.path!r}, in step {self.step}")
                raise
        tasks.append(Task(node, node.path, value))

    # -- apply ----------------------------------------------------------------------------------------------

    def apply(self, tasks: Sequence[Task]) -> None:
        """End a superstep: fold all writes in, in path order. If one cannot be taken, nothing has happened.

        Raises:
            InvalidUpdateError: naming channel, step and writers.
        """
        if len(tasks) > 1:
            tasks = in_path_order(tasks)
        fresh: dict[str, Channel] = {}
        changed: set[str] = set()
        moved = self._consumed(tasks, fresh, changed) if self.program.consuming else []
        writes = grouped(tasks[0].writes) if len(tasks) == 1 else _merged(tasks)
        self._update(writes, fresh, (moved, changed), tasks)
        if self.program.finishers and not self._has_work(fresh, changed):
            self._finish(fresh, moved, changed, self.program.finishers)
        # Everything below cannot fail for reasons of the user's.
        self._see(tasks)
        self._swap(fresh, moved, changed)
        if self.kept:
            self.kept = {}
        self.step += 1

    def apply_input(self, writes: Sequence[Pair], discarded: Sequence[Task]) -> None:
        """Start over with new input: what was pending is dropped, step-scoped channels are emptied, the input
        comes in. It takes a step number but runs nothing."""
        fresh: dict[str, Channel] = {}
        changed: set[str] = set()
        moved = self._consumed(discarded, fresh, changed)
        self._update(grouped(writes), fresh, (moved, changed), ())
        self._see(discarded)
        self.seen.setdefault(INPUT, {})
        self.unsaved_seen.add(INPUT)
        self.held.clear()
        self._swap(fresh, moved, changed)
        self.kept = {}
        self.step += 1

    def apply_edit(self, tasks: Sequence[Task], keep: Sequence[Task]) -> None:
        """`apply` for an update from outside, in the order given: the tasks in `keep` stay pending."""
        fresh: dict[str, Channel] = {}
        changed: set[str] = set()
        awake = [name for name in self.program.finishers if self.channels[name].is_available()]
        moved = self._consumed(tasks, fresh, changed)
        writes = _merged(tasks)
        sends = [task.send for task in keep if task.send is not None]
        if sends:
            writes[TASKS] = [*sends, *writes.get(TASKS, ())]
        held = {trigger for task in keep for trigger in task.node.triggers}
        before, self.expiring = self.expiring, self.expiring - held
        try:
            self._update(writes, fresh, (moved, changed), tasks)
        finally:
            self.expiring = before
        self._see(tasks)
        self._swap(fresh, moved, changed)
        self.changed = None  # what was pending before is found by looking at all that has a version
        if self.program.finishers:
            # Those that had been woken stay awake, though the update wrote to them once more.
            due = awake if keep or self.plan(coerce=False) else self.program.finishers
            woken: tuple[dict[str, Channel], list[str], set[str]] = {}, [], set()
            self._finish(*woken, due)
            self._swap(*woken)
            self.changed = None
        self.kept = {}
        self.step += 1

    def forget(self, names: Iterable[str]) -> None:
        """Let the next checkpoint say that these channels, which the program does not have, hold nothing."""
        self.unsaved.update(names)

    def mark_all_unsaved(self) -> None:
        """Let the next checkpoint hold everything, as one that builds on another parent must."""
        self.unsaved = set(self.versions)
        self.unsaved_seen = set(self.seen)

    def replace(self, stored: Checkpoint) -> None:
        """Let the next checkpoint hold everything, in place of all that the stored one holds."""
        for name, version in stored["channel_versions"].items():
            self.versions.setdefault(name, version)
        self.mark_all_unsaved()

    def apply_writes(self, writes: Sequence[Pair]) -> None:
        """Fold in writes that belong to no superstep (a `Command` given as input): nothing expires, no step is
        taken."""
        fresh: dict[str, Channel] = {}
        moved: list[str] = []
        before = self.changed
        found = grouped(writes)
        if TASKS in found and TASKS in self.expiring:
            # Sends that wait already keep their places before the new ones.
            found[TASKS] = [*self.channels[TASKS].get(), *found[TASKS]]
        changed: set[str] = set()
        self._update(found, fresh, (moved, changed), (), expire=False)
        self._swap(fresh, moved, changed)
        self.changed = None if before is None else {*before, *(self.changed or ())}

    def _consumed(self, tasks: Sequence[Task], fresh: dict[str, Channel], changed: set[str]) -> list[str]:
        """Tell the channels that want to know that their nodes ran."""
        moved: list[str] = []
        for task in tasks:
            for name in task.node.consumes:
                if name not in fresh and task.send is None:  # a Send waits for no channel
                    channel = self.channels[name].copy()
                    if channel.consume():
                        fresh[name] = channel
                        moved.append(name)
                        if channel.is_available():
                            changed.add(name)
        return moved

    def _update(
        self,
        writes: Mapping[str, list[Any]],
        fresh: dict[str, Channel],
        noted: tuple[list[str], set[str]],
        tasks: Sequence[Task],
        *,
        expire: bool = True,
    ) -> None:
        """Update copies of the written channels, and of those that an empty step changes; note which moved, and
        which of these hold a value."""
        channels = self.channels
        moved, changed = noted
        for name, values in writes.items():
            channel = fresh.get(name)
            if channel is None:
                try:
                    channel = channels[name].copy()
                except KeyError:
                    raise InternalError(f"step {self.step}: write to unknown channel {name!r}") from None
            try:
                if channel.update(values):
                    moved.append(name)
                    if channel.is_available():
                        changed.add(name)
                    else:
                        changed.discard(name)
            except Exception as error:
                writers = ", ".join(sorted({t.name for t in tasks if any(c == name for c, _ in t.writes)}))
                error.add_note(
                    f"At step {self.step}, key {name!r}"
                    + (f", written by {writers}" if writers else "")
                    + ". Nothing of this superstep was applied."
                )
                raise
            if channel.dropped:
                warn(_replaced(name, tasks))
            fresh[name] = channel
        if expire:
            self._expire(writes, fresh, noted)

    def _expire(
        self, writes: Mapping[str, list[Any]], fresh: dict[str, Channel], noted: tuple[list[str], set[str]]
    ) -> None:
        """Give channels that live for one step, and got no writes in this one, their empty update."""
        moved, changed = noted
        blank = self.program.blank
        for name in self.expiring:
            if name in writes:
                continue
            if name in blank and name not in fresh:  # one of ours: an empty step leaves it as it began
                moved.append(name)
                fresh[name] = blank[name]
                continue
            used = fresh.get(name)
            channel = self.channels[name].copy() if used is None else used
            if channel.update(()):
                moved.append(name)
                fresh[name] = channel
                if channel.is_available():
                    changed.add(name)
                else:
                    changed.discard(name)

    def _see(self, tasks: Sequence[Task]) -> None:
        """Remember what each node that ran had seen of its triggers."""
        versions, seen = self.versions, self.seen
        for task in tasks:
            node = task.node
            name = node.name
            if task.send is not None:
                if name not in seen:
                    seen[name] = {}
                    self.unsaved_seen.add(name)
                continue
            seen[name] = mine = {}
            for trigger in node.triggers:
                if trigger in versions:
                    mine[trigger] = versions[trigger]
            self.unsaved_seen.add(name)

    def _swap(self, fresh: Mapping[str, Channel], moved: Sequence[str], changed: set[str]) -> None:
        """Make the updated channels the live ones, with a new version for those that moved."""
        self.changed = changed
        self.channels.update(fresh)
        if not moved:
            return
        tick = self.tick = self.tick + 1
        versions, expiring = self.versions, self.expiring
        scoped, readers = self.program.step_scoped, self.program.readers
        for name in moved:
            versions[name] = tick
            holds = name in changed
            if name in scoped:
                if holds:
                    expiring.add(name)
                else:
                    expiring.discard(name)
            if name in readers:
                self.refresh(name, fresh[name] if holds else None)
        self.unsaved.update(moved)

    def _has_work(self, fresh: Mapping[str, Channel], changed: set[str]) -> bool:
        """Whether anything can run without waking the channels that wait for the end."""
        if TASKS in changed:
            return True
        nodes, triggers, channels = self.program.nodes, self.program.triggers, self.channels
        for name in [n for channel in changed for n in triggers.get(channel, ())] + [*self.held]:
            reads = nodes[name].reads
            if reads.__class__ is not str or fresh.get(reads, channels[reads]).is_available():
                return True
        return False

    def _finish(self, fresh: dict[str, Channel], moved: list[str], changed: set[str], finishers: Iterable[str]) -> None:
        """Nothing is left to run: wake the channels that wait for just that."""
        for name in finishers:
            channel = fresh.get(name)
            if channel is None:
                channel = self.channels[name].copy()
            if channel.finish():
                fresh[name] = channel
                moved.append(name)
                if channel.is_available():
                    changed.add(name)

    # -- keep -----------------------------------------------------------------------------------------------

    def checkpoint(self, ts: str) -> Checkpoint:
        """The whole state, for a saver that stores nothing less."""
        values = {name: self.channels[name].checkpoint() for name in self.versions if name in self.channels}
        return Checkpoint(
            v=CHECKPOINT_FORMAT,
            id=self.checkpoint_id,
            ts=ts,
            channel_values={k: v for k, v in values.items() if v is not MISSING},
            channel_versions=dict(self.versions),
            versions_seen=dict(self.seen),
            updated_channels=None if self.changed is None else sorted(self.changed),
        )


def _replaced(key: str, tasks: Sequence[Task]) -> str:
    """No count and no step: a text that differs each time would be shown each time."""
    writers = ", ".join(sorted({repr(task.name) for task in tasks if any(name == key for name, _ in task.writes)}))
    return (
        f"key {key!r}: an Overwrite replaced the value, and the other writes of its superstep were dropped"
        f"{f'; they came from {writers}' if writers else ''}. Overwrite it in a superstep of its own"
    )


def _merged(tasks: Iterable[Task]) -> dict[str, list[Any]]:
    return grouped(pair for task in tasks for pair in task.writes)
