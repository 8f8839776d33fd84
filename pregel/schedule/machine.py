"""The state of a run, pure: `plan` says which tasks are due, `apply` ends a step and folds in what
its tasks wrote.

No await, no lock, no clock, no checkpointer: give it the same writes and it makes the same history.
Work follows what changed: the channels written, the nodes they trigger, the few channels that react
to an empty step.

Theory of operation: a channel that changes gets a version, the tick of its superstep. A node is due
if one of its triggers has a newer version than the node had seen when it last ran; `apply` notes
what its tasks have seen, so no change triggers a node twice. Both tables are stored. So a machine
that was loaded plans the same tasks as the one that stored it, with the same ids (made of
checkpoint and path), and by these the records of an unfinished superstep find their tasks.

In supersteps all that is due starts, and a step ends when all of it has. With schedule="ready" it
starts by `rules.choose`, and what ended together is a step: the other tasks stay open (`slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...channels.base import MISSING, Channel, EmptyChannelError, stored_of
from ...checkpoint.base import CHECKPOINT_FORMAT, Checkpoint
from ..errors import COMMAND, GraphChangedError, InvalidUpdateError, nearest
from ..names import GRAPH, INPUT, RAN, TASKS, trigger_name
from ..program.program import CompiledNode, Program, Reader
from ..program.version import find_retyped
from ..program.writes import Pair
from ..task.context import TaskContext
from ..task.ids import NONE_CARRIED, Carried, new_checkpoint_id
from ..task.task import Task, handler_of, in_path_order
from ..types import without_keys
from .state import (
    Grouped,
    LiveState,
    StepChanges,
    copy_slots,
    group_by_channel,
    no_changes,
)

if TYPE_CHECKING:
    from .rules import Choice, MayStart
    from .slots import OpenTasks, UnderWayRecord

PinRun = Callable[["Machine"], TaskContext[Task]]
NO_ORIGINS: Mapping[str, str] = {}


class Machine(LiveState):
    """The live state of one run of one program: what runs next, and what came of it.

    Attributes:
        checkpoint_id: the checkpoint from which the next superstep runs; "" for none yet.
        carried: path → what the next tasks take along that were begun beside an earlier
            checkpoint and go on in this one.
        racing: some of the tasks planned last, or open, are in a race.
    """

    __slots__ = ("carried", "checkpoint_id", "racing")

    def __init__(
        self,
        program: Program,
        checkpoint: Checkpoint | None = None,
        step: int = -1,
        carried: Mapping[tuple[Any, ...], Carried] = NONE_CARRIED,
        open: OpenTasks | None = None,
    ) -> None:
        self.program = program
        self.open = open
        self.step: int = step
        self.remaining: int = 0
        self.changed: Iterable[str] | None = ()
        self.held: set[str] = set()
        self.unsaved: set[str] = set()
        self.unsaved_seen: set[str] = set()
        self.cache: dict[Reader, dict[str, Any]] = {}
        self.carried: Mapping[tuple[Any, ...], Carried] = carried
        self.checkpoint_id: str = ""
        self.racing: bool = False
        self.versions: dict[str, int] = {}
        self.seen: dict[str, dict[str, int]] = {}
        stored: Mapping[str, Any] = {}
        if checkpoint is not None:
            self.checkpoint_id = checkpoint["id"]
            self.versions = dict(checkpoint["channel_versions"])
            self.seen = dict(checkpoint["versions_seen"])
            stored = checkpoint["channel_values"]
            # Not `updated_channels`: a node that was held, or pending before an edit, may wait for
            # a change that is older.
            self.changed = None
        self.tick: int = max(self.versions.values(), default=0)
        # Most channels are blank and shared with the program as they are: a call costs what its
        # thread holds, not how large the graph is (benchmark P2, and the curves of nodes and keys
        # that rest).
        channels = dict(program.channels)
        self.channels: dict[str, Channel] = channels
        kinds = program.kinds
        made = [name for name in dict.fromkeys((*kinds.unshared, *stored)) if name in channels]
        for name in made:
            try:
                channels[name] = channels[name].from_checkpoint(stored.get(name, MISSING))
            except Exception as error:
                known = find_retyped(self.seen.get(GRAPH, {}), program.fingerprint)
                if f"key {name!r}" not in known:
                    raise
                where = f"checkpoint {self.checkpoint_id!r}"
                raise GraphChangedError(where, [f"key {name!r}"]) from error
        # The only channels that `apply` must look at though nobody wrote to them.
        self.expiring: set[str] = {
            name for name in made if name in kinds.step_scoped and channels[name].is_available()
        }

    def copy(self) -> Machine:
        """Return a machine of its own in the same state."""
        other = self.pin()
        other.open = None if self.open is None else self.open.copy()
        return other

    def pin(self) -> Machine:
        """Return this state as the tasks see it that start in it, without what is open."""
        other: Machine = copy_slots(self)
        other.open = None
        # Channels are never changed in place, only replaced, so both machines can share them.
        other.channels = dict(self.channels)
        other.cache = {reader: dict(values) for reader, values in self.cache.items()}
        other.versions, other.seen = dict(self.versions), dict(self.seen)
        other.expiring, other.held = set(self.expiring), set(self.held)
        other.unsaved, other.unsaved_seen = set(self.unsaved), set(self.unsaved_seen)
        return other

    # -- plan --------------------------------------------------------------------------------------

    def plan(
        self,
        run: TaskContext[Task] | None = None,
        *,
        coerce: bool = True,
        remaining: int = 0,
    ) -> list[Task]:
        """The tasks of the next superstep: Sends by index, then triggered nodes by name.

        A superstep costs what changed: no node is looked at that no changed channel triggers.

        Args:
            run: the call to which the tasks belong.
            coerce: apply the nodes' mappers; False when nobody will run the tasks.
            remaining: how many supersteps the call may still take, this one counted.
        """
        self.remaining = remaining
        program, changed = self.program, self.changed
        tasks: list[Task] = []
        self.racing = False
        if TASKS in self.expiring:
            nodes = program.nodes
            for index, send in enumerate(self.channels[TASKS].get()):
                node = nodes.get(send.node)
                if node is None:
                    if not coerce:
                        # Another graph has left this Send. `get_state` shows the rest of the
                        # thread.
                        continue
                    raise InvalidUpdateError(
                        f"step {self.step}: a Send goes to the unknown node {send.node!r}; "
                        f"{nearest(send.node, nodes)}"
                    )
                tasks.append(Task(node, index, send.arg, run, send))
                if send.race is not None:
                    self.racing = True
        # After loading it is not known what changed last, so all that ever changed is a candidate:
        # the versions that each node has seen tell which of these it has run for.
        for name in self._candidates(self.versions if changed is None else changed):
            node = program.nodes[name]
            if self._is_triggered(node):
                self._add_pulled(node, tasks, run, coerce)
        return tasks

    # -- start, with schedule="ready" --------------------------------------------------------------

    def start(self, pin_to: PinRun, limit: int, may_start: MayStart) -> list[Task]:
        """Return the tasks that start now; see `rules.choose`.

        Args:
            pin_to: makes the run as these tasks see it; see `Run.pin_to`.
            limit: how many generations the call may take. Where they are more, nothing starts, and
                `OpenTasks.over_limit` says what would.
            may_start: whether a node may.

        Raises:
            Exception: the schema of a node refuses its input. Nothing has started.
        """
        from .rules import choose, never

        held, open_ = self.held, self.open
        assert open_ is not None
        choice = choose(self, may_start)
        if open_.exceeds(limit, self.program.nodes, choice.nodes, choice.sends.values()):
            choice = choose(self, never)
        self._adopt(choice)
        try:
            open_.start(self._make_tasks(choice, pin_to, limit))
        except BaseException:  # a schema refuses an input, or Ctrl-C
            self.held, open_.starting = held, []
            self._adopt(choose(self, never))
            raise
        self.racing = self.racing or any(send.race is not None for send in choice.sends.values())
        return open_.starting

    def _make_tasks(self, choice: Choice, pin_to: PinRun, limit: int) -> list[Task]:
        """Make the tasks of nodes and Sends that start now."""
        assert self.open is not None
        nodes, next_generation = self.program.nodes, self.open.next_generation
        runs: dict[int, TaskContext[Task]] = {}

        def run_of(generation: int) -> TaskContext[Task]:
            self.remaining = limit - generation + 1
            if generation not in runs:
                # They read this state as long as they run, while this machine goes on.
                runs[generation] = pin_to(self.pin())
            return runs[generation]

        tasks: list[Task] = []
        for place, send in choice.sends.items():
            run = run_of(next_generation(nodes[send.node], send))
            tasks.append(Task(nodes[send.node], place, send.arg, run, send))
        for name in choice.nodes:
            run = run_of(next_generation(nodes[name]))
            self._add_pulled(nodes[name], tasks, run, coerce=True)
        return tasks

    def _adopt(self, choice: Choice) -> None:
        """Note what waits, so that it stays."""
        assert self.open is not None
        # Not who was held before: a deferred node sleeps again while something else is open.
        self.held, self.open.waiting_sends = choice.held, choice.waiting_sends

    def has_more(self) -> bool:
        """Return whether something is open, or pending."""
        return bool(self.open or self.copy().plan(coerce=False))

    def load_open(self, tasks: Mapping[int, Task]) -> None:
        """Go on with the tasks that are open in the loaded checkpoint.

        Args:
            tasks: by the numbers of their slots.
        """
        assert self.open is not None
        self.channels.update(self.open.load(tasks))  # type: ignore[arg-type]
        sends = [task.send for task in tasks.values() if task.send is not None]
        self.racing = self.racing or any(send.race is not None for send in sends)

    def rebuild_task(self, run: TaskContext[Task], limit: int, known: UnderWayRecord) -> Task:
        """Make a task that has started in this state, as it was.

        Args:
            run: as it sees it.
            limit: how many generations the call may take, in which it is of the first.
        """
        self.remaining = limit
        node, send = self.program.nodes[known["node"]], known["send"]
        tasks: list[Task] = []
        if send is not None:
            tasks.append(Task(node, known["path"][1], send.arg, run, send))
        else:
            self._add_pulled(node, tasks, run, coerce=True)
        tasks[0].carry_id(known["id"])
        return tasks[0]

    def find_begun(
        self,
        run: TaskContext[Task],
        has_begun: Callable[[str], bool],
        began_earlier: Callable[[str], bool],
    ) -> None:
        """Find the waiting tasks that have started before; see `OpenTasks.begun`.

        Args:
            has_begun: whether one has, by its id.
            began_earlier: whether it had in an earlier checkpoint.
        """
        assert self.open is not None
        found: dict[str | int, bool] = {}
        for task in self.copy().plan(run, coerce=False):
            if task.send is not None:
                if has_begun(task.id):
                    found[task.path[1]] = False
            # One that is open, and was triggered again, starts again when it has ended.
            elif not self.open.is_pulled(task.name):
                again = self.find_restart(task.node) is not None
                if again or has_begun(task.id):
                    found[task.name] = again or began_earlier(task.id)
        self.open.begun = found

    def as_superstep(self) -> Machine:
        """Return a state in which all that is open is pending, under the ids that it has: to look
        at it, or to drop it. In supersteps nothing is open."""
        if self.open is None:
            return self
        # A copy, because here other tasks may get those places.
        other = self.copy()
        other.requeue_all()
        return other

    def find_joined(self, task: Task) -> tuple[str, ...]:
        """The nodes that opened the joins which made a task run, in the order of the joins."""
        node = task.node
        carried = self.carried.get(task.path)
        before = (self.find_restart(node) or ()) if carried is None else carried.joined
        found: dict[str, None] = {}
        for join in self.program.joins if task.send is None else ():
            if join.channel in node.triggers:
                due = self.is_due(node, join.channel)
                now = self.channels[join.channel].seen if due else ()  # type: ignore[attr-defined]
                found.update({name: None for name in join.sources if name in now or name in before})
        return tuple(found)

    def _add_pulled(
        self, node: CompiledNode, tasks: list[Task], run: TaskContext[Task] | None, coerce: bool
    ) -> None:
        """Add the task of a triggered node; one whose only input is empty waits until that is
        filled."""
        reads = node.reads
        if reads.__class__ is str:  # a bare value instead of a dict: a raw Pregel's node, or START
            try:
                value = self.channels[reads].get()
            except EmptyChannelError:
                # Triggered by one channel, reading another. `held` makes it a candidate again even
                # if its trigger does not change any more.
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
                where = f"name {node.name!r} and path {node.path!r}, in step {self.step}"
                error.add_note(f"Before task with {where}")
                raise
        tasks.append(Task(node, node.path, value, run))

    # -- apply -------------------------------------------------------------------------------------

    def apply(self, tasks: Sequence[Task]) -> None:
        """End a step: fold in what these tasks wrote, in path order.

        All or nothing: only copies of channels are updated, and all of them become the live ones at
        once in `_swap`. If a write cannot be taken, the machine is as it was.

        Raises:
            InvalidUpdateError: naming channel, step and writers.
        """
        program, open_ = self.program, self.open
        started, expiring = tasks, self.expiring
        lost: Sequence[Task] = ()
        # With one task there is nothing to sort or to collect (benchmark P1).
        if len(tasks) > 1:
            tasks = in_path_order(tasks if open_ is None else sorted(tasks, key=open_.order))
        if open_ is not None:
            if open_.waiting_sends is None:  # no start since the last step: a race, or a cut
                from .rules import choose, never

                self._adopt(choose(self, never))
            started, lost = open_.starting, self.find_losers(tasks)
            expiring = expiring.difference(self.held_triggers())
        fresh = StepChanges()  # not `no_changes` (benchmark P1)
        fresh.holding = set()
        # Consumed before the writes: a join that a task of this step writes again starts over, and
        # must not lose that write.
        if program.consuming:
            self._consume(started, fresh)
        writes: dict[str, list[Any]] = {}
        for task in tasks:
            for name, value in task.writes:
                if name in writes:
                    writes[name].append(value)
                else:
                    writes[name] = [value]
        if open_ is not None and open_.waiting_sends:
            writes[TASKS] = [*open_.waiting_sends.values(), *writes.get(TASKS, ())]
        if program.flow is None:
            self._update(writes, fresh, tasks, expiring)
        else:
            self._update_joins(writes, fresh, tasks, expiring, lost=lost)
        if (
            program.kinds.finishers
            and (open_ is None or not open_.stay_without([*tasks, *lost]))
            and not self._has_work(fresh)
        ):
            # Deferred nodes run when nothing else can, so this is decided with the writes folded
            # in.
            self._finish(fresh)
        # From here on no code of the user's runs, and nothing can fail.
        if open_ is None:
            self._mark_seen(tasks)
        else:
            self._move_slots(open_, tasks, lost, fresh)
        self._swap(fresh)
        if self.carried:
            self.carried = NONE_CARRIED
        self.step += 1

    def _move_slots(
        self,
        open_: OpenTasks,
        tasks: Sequence[Task],
        lost: Sequence[Task],
        fresh: StepChanges,
    ) -> None:
        """Note what has started and ended: empty the slots of these tasks, and fill some."""
        # A node has seen its triggers when it starts. A Send counts as a run when it has ended, as
        # all others do: see `requeue`.
        self._mark_seen([task for task in open_.starting if task.send is None])
        for task in tasks:
            task = task.cause or task
            if task.send is not None:
                self._note_send(task.name, task.run.machine.tick)
        for name, channel in open_.end(tasks, lost, self.program.triggers).items():
            fresh[name] = channel  # type: ignore[assignment]
            start = channel.task
            self.seen[name] = {} if start is None else {start.run.machine.checkpoint_id: self.tick}
            self.unsaved_seen.add(name)

    def find_losers(self, winners: Sequence[Task]) -> Sequence[Task]:
        """Return the open tasks that have lost their races if these have ended."""
        if self.open is None or not self.racing:
            return ()
        from .races import find_losers

        return find_losers(winners, chain(self.open, self.open.starting))

    def _update_joins(
        self,
        writes: Grouped,
        fresh: StepChanges,
        tasks: Sequence[Task],
        expiring: Collection[str],
        **about: Any,
    ) -> None:
        """`_update`; joins that gather in waves are judged on the result.

        Args:
            about: what else `BarrierTransition` has to know.
        """
        flow = self.program.flow
        if flow is None or not flow.joins:
            self._update(writes, fresh, tasks, expiring)
            return
        from .joins import BarrierTransition

        transition = BarrierTransition(self, tasks, consumed=[*fresh], **about)
        self._update(transition.drop_late(writes), fresh, tasks, expiring)
        transition.settle(fresh)

    def _finish(self, fresh: StepChanges) -> None:
        """Wake the channels that wait until nothing else is left to run."""
        if self.program.flow is None:
            self.finish_channels(fresh, self.program.kinds.finishers)
        else:
            from .joins import finish

            finish(self, fresh)

    def apply_input(self, writes: Sequence[Pair], discarded: Sequence[Task]) -> None:
        """Start over with new input: what was pending is dropped, step-scoped channels are emptied,
        and the input comes in. It takes a step number but runs nothing.

        Args:
            writes: the input, as writes of channels.
            discarded: the tasks that were pending. They count as run, so that nothing triggers them
                again.
        """
        if self.open is not None:
            self.requeue_all()
        fresh = no_changes()
        self._consume(discarded, fresh)
        self._update(group_by_channel(writes), fresh, (), self.expiring)
        if self.program.flow is not None:
            from .joins import restart

            restart(self, fresh)
        if discarded:
            self._mark_seen(discarded)
        self.seen.setdefault(INPUT, {})
        self.unsaved_seen.add(INPUT)
        # They are pending work, too.
        self.held.clear()
        self._swap(fresh)
        self.carried = NONE_CARRIED
        self.step += 1

    def apply_edit(self, tasks: Sequence[Task], keep: Sequence[Task]) -> None:
        """`apply` for an update from outside, in the order given; it arrives at joins, or starts
        their targets, as its node does.

        Args:
            tasks: what the update writes, as tasks of the nodes that it speaks for.
            keep: the pending tasks that stay pending.
        """
        fresh = no_changes()
        flow = self.program.flow
        waves = set() if flow is None else {join.channel for join in flow.joins}
        awake = [
            name
            for name in self.program.kinds.finishers
            if name not in waves and self.channels[name].is_available()
        ]
        # Not an update as a node that stays pending: what that waits for is still to come.
        waiting = {task.name for task in keep if task.send is None}
        ended = [task for task in tasks if task.send is not None or task.name not in waiting]
        self._consume(ended, fresh)
        writes = group_by_channel(pair for task in tasks for pair in task.writes)
        # The Sends that stay come before new ones: a Send's index is part of its task's id.
        sends = [task.send for task in keep if task.send is not None]
        if sends:
            writes[TASKS] = [*sends, *writes.get(TASKS, ())]
        # An update is no superstep of the tasks that stay, so what triggers them does not expire.
        # Where another version of the graph is stored, nothing does.
        kept = (t for task in keep for t in task.node.triggers)
        expiring = self.expiring.difference(kept) if tasks else ()
        self._update_joins(writes, fresh, tasks, expiring, keep=keep)
        self._mark_seen(ended)
        for name in waiting.intersection(task.name for task in tasks):
            self.seen[name] = {**self.seen.get(name, {}), RAN: self.tick}
            self.unsaved_seen.add(name)
        self._swap(fresh)
        # What is pending from before did not change just now: `plan` has to look at all that has a
        # version.
        self.changed = None
        if self.program.kinds.finishers:
            # If nothing else can run, all deferred nodes are woken. Else only those stay awake that
            # had been woken before: the update's writes have put them back to sleep.
            fresh = no_changes()
            if keep or self.plan(coerce=False):
                self.finish_channels(fresh, awake)
            else:
                self._finish(fresh)
            self._swap(fresh)
            self.changed = None
        self.begin_anew()

    def clear(self, pending: Sequence[Task]) -> None:
        """End the open superstep with nothing to follow: what its tasks wrote is applied, and what
        that would start is dropped. On a new thread there is nothing to end."""
        if self.step < 0:
            self.skip_input()
            self.apply_edit((), keep=())
            return
        self.apply(pending)
        step = self.step
        # Dropped tasks count as run, with no writes. That may open another superstep (deferred
        # nodes), which is dropped in turn.
        while dropped := self.plan(coerce=False):
            self.apply(dropped)
        # Nothing ran in these rounds, so they take no numbers.
        self.step = step

    def skip_input(self) -> None:
        """Skip the superstep of the input: a thread that begins with an update has none."""
        self.step = max(self.step, 0)

    def begin_anew(self) -> None:
        """Begin a superstep of its own: none of its tasks goes on from an earlier one, and what is
        open starts again."""
        if self.open is not None:
            self.requeue_all()
        self.carried = NONE_CARRIED
        self.step += 1

    def carry(self, carried: Mapping[tuple[Any, ...], Carried]) -> None:
        """Let the next tasks of these paths go on as what they were."""
        self.carried = carried

    def forget(self, names: Iterable[str]) -> None:
        """Let the next checkpoint say that these channels, which the program does not have, hold
        nothing."""
        self.unsaved.update(names)

    def mark_all_unsaved(self) -> None:
        """Let the next checkpoint hold everything, as one that builds on another parent must."""
        self.unsaved = set(self.versions)
        self.unsaved_seen = set(self.seen)

    def replace(self, stored: Checkpoint) -> None:
        """Let the next checkpoint hold everything, in place of all that the stored one holds."""
        # A channel that a migration has dropped keeps its version, so that the next checkpoint can
        # say that it holds nothing.
        for name, version in stored["channel_versions"].items():
            self.versions.setdefault(name, version)
        self.mark_all_unsaved()

    def requeue_all(self) -> None:
        """Make all that is open pending work of this state."""
        open_ = self.open
        assert open_ is not None
        # What made these start is still there, and may have waited since an earlier state.
        self.held.update(task.name for task in open_.starting if task.send is None)
        known = open_.clear()
        for slot in known:
            del self.channels[slot]
        self.requeue(known)

    def requeue(
        self, known: Mapping[str, UnderWayRecord], origins: Mapping[str, str] = NO_ORIGINS
    ) -> None:
        """Make open tasks pending work of this state, under the ids that they have: as after an
        edit. So they are looked at, edited, and run in supersteps.

        Args:
            known: slot → the task in it.
            origins: slot → the checkpoint at which it has started, if it goes on from there.
        """
        from .joins import is_pending, late_work, rename_late

        # What is pending already.
        nodes, carried = self.program.nodes, dict(self.carried)
        sends = self.pending_sends()
        triggers: list[str] = []
        places: dict[str, str | int] = {}  # id → the trigger, or the place of the Send, behind it
        writes: list[Pair] = []
        for slot, each in known.items():
            node, joined = nodes[each["node"]], tuple(each.get("joined", ()))
            if each["send"] is None:
                task = Task(node, node.path, None)
                triggers.append(trigger_name(node.name))
                # The trigger's value marks a restart: an edge writes None, this writes what had
                # opened the task's joins. A fork begins without records, and this is all that tells
                # it who had started (see `find_restart`).
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
        waited = {name for name in triggers if is_pending(self.channels[name])}
        late = late_work(self)
        if writes:
            self.apply_writes(writes)
        self.wake(name for name in triggers if not self.channels[name].is_available())
        rename_late(self, late, places, waited)
        # The slots are empty. None of these nodes has finished here, so an update without `as_node`
        # must not be attributed to them.
        self.forget(known)
        pulled = [each["node"] for each in known.values() if each["send"] is None]
        self.forget_seen([*known, *pulled])
        self.carried = carried

    def apply_writes(self, writes: Sequence[Pair]) -> None:
        """Fold in writes that belong to no superstep (a `Command` given as input, or a post):
        nothing expires, and no step is taken."""
        fresh = no_changes()
        found = group_by_channel(writes)
        if TASKS in found:  # Sends that wait already keep their places before the new ones
            found[TASKS] = [*self.pending_sends(), *found[TASKS]]
        self._update_joins(found, fresh, (), (), added=True)
        self.put(fresh)
        if self.open is not None:
            self.open.writers.update(dict.fromkeys((name for name, _ in writes), COMMAND))

    # -- store -------------------------------------------------------------------------------------

    def identify(self, checkpoint_id: str | None = None) -> str:
        """Give the state the id of the checkpoint that holds it; returns it. Without one it is new:
        where nothing is stored, the ids of tasks must differ between runs all the same."""
        self.checkpoint_id = checkpoint_id or new_checkpoint_id()
        return self.checkpoint_id

    def mark_saved(self, checkpoint_id: str) -> None:
        """Note that this checkpoint holds all that has changed by now."""
        self.checkpoint_id = checkpoint_id
        self.unsaved = set()
        self.unsaved_seen = set()

    def sign(self) -> None:
        """Let the next checkpoint say which graph made it, unless the one before has said so."""
        mine = self.program.fingerprint
        if mine and self.seen.get(GRAPH) != mine:
            self.seen[GRAPH] = dict(mine)
            self.unsaved_seen.add(GRAPH)

    def checkpoint(self, ts: str) -> Checkpoint:
        """The whole state, for a checkpointer that stores nothing less."""
        channels = self.channels
        values = {name: stored_of(channels[name]) for name in self.versions if name in channels}
        if (untracked := self.program.kinds.untracked) and TASKS in values:
            values[TASKS] = without_keys(values[TASKS], untracked)
        return Checkpoint(
            v=CHECKPOINT_FORMAT,
            id=self.checkpoint_id,
            ts=ts,
            channel_values={k: v for k, v in values.items() if v is not MISSING},
            channel_versions=dict(self.versions),
            versions_seen=dict(self.seen),
            updated_channels=None if self.changed is None else sorted(self.changed),
        )
