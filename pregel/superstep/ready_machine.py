"""The state of a run whose tasks start when their own inputs are there: schedule="ready".

Beside the superstep's machine, and as pure: `start` says which tasks start now, `apply` folds in
what has ended. A step is what ended together; its checkpoint also says what is under way.

Theory of operation: a task starts at a checkpoint, its origin: it reads the state there, and its id
is made of it. What starts follows from the checkpoint alone, so nothing is stored of a start. The
next checkpoint has consumed what made the task start, and holds the task in a channel of its own, a
slot, until it has ended. A trigger that must wait stays in its channel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

from ...channels.aggregate import is_overwrite
from ...channels.base import Channel
from ...channels.named_barrier import Late
from ...checkpoint.base import Checkpoint
from ..errors import COMMAND, ConcurrentUpdateError
from ..names import TASKS, under_way_name
from ..program.flow import find_free
from ..program.join import Join
from ..program.program import Program
from ..program.writes import Pair
from .context import TaskContext
from .flow_machine import Crossing, FlowMachine
from .ids import NONE_CARRIED, Carried
from .machine import Machine, in_path_order
from .race import race_of
from .ready_choice import Choice, MayStart, always, choose_sends, never
from .ready_joins import ReadyCrossing
from .ready_memories import Memories
from .ready_races import find_losers
from .requeue import requeue
from .state import Noted, collect_writes
from .task import Task
from .under_way import Slot, StartLog, TasksUnderWay, UnderWayRecord, describe

PinRun = Callable[[Machine], TaskContext[Task]]
"""Makes the run as the tasks see it that start in a state; see `Run.pin_to`."""


class ReadyMachine(FlowMachine):
    """A `FlowMachine` that starts tasks one by one, and applies what has ended.

    `held` has all nodes here that are due and have not started: what triggers them does not expire.

    Attributes:
        under_way: the tasks that have started and not ended, those of `just_started` aside.
        just_started: the tasks that have started in this state. The next checkpoint has their
            slots.
        decided: it has been decided what starts in this state, and so what waits.
        resumed_nodes, resumed_sends: the nodes, and the places of the Sends, whose tasks have
            started before, in this state or an earlier one, and go on. They wait for no other task.
        requeued_nodes: those of the nodes whose tasks have started in an earlier state: they count
            as running when it is decided who else may start.
        over_limit: the nodes that would have to start beyond the recursion limit.
        starts: when they have started.
        waiting_sends: the Sends of this state that have not been started, by their places.
        lost: the racers that have left with the step that was applied last: another one has won.
        racing: some of the tasks that are under way, or were in this call, are in a race.
        writers: key → the node that wrote it last; `COMMAND` if that was none.
    """

    __slots__ = (
        "decided",
        "just_started",
        "lost",
        "over_limit",
        "requeued_nodes",
        "resumed_nodes",
        "resumed_sends",
        "starts",
        "under_way",
        "waiting_sends",
        "writers",
    )  # fmt: skip

    def __init__(
        self,
        program: Program,
        checkpoint: Checkpoint | None = None,
        step: int = -1,
        carried: Mapping[tuple[Any, ...], Carried] = NONE_CARRIED,
    ) -> None:
        super().__init__(program, checkpoint, step, carried)
        self.under_way: TasksUnderWay = TasksUnderWay()
        self.just_started: list[Task] = []
        self.decided: bool = False
        self.resumed_nodes: Collection[str] = ()
        self.resumed_sends: Collection[int] = ()
        self.requeued_nodes: Collection[str] = ()
        self.over_limit: list[str] = []
        self.starts: StartLog = StartLog()
        self.waiting_sends: dict[int, Any] = {}
        self.lost: Sequence[Task] = ()
        self.writers: dict[str, str] = {}

    def take_up(self, tasks: Mapping[int, Task]) -> None:
        """Go on with the tasks that are under way in the loaded checkpoint.

        Args:
            tasks: by the numbers of their slots.
        """
        self.under_way.take_up(tasks)
        for number, task in tasks.items():
            self.starts.enter(task)
            self.racing = self.racing or race_of(task) is not None
            self.channels[under_way_name(number)] = cast(Channel, Slot(task))

    def note_started(
        self,
        run: TaskContext[Task],
        has_begun: Callable[[str], bool],
        began_earlier: Callable[[str], bool],
    ) -> None:
        """Find the waiting tasks that have started before: they wait for nobody now.

        Args:
            has_begun: whether one has, by its id.
            began_earlier: whether it had in an earlier checkpoint.
        """
        pending = Machine.plan(self.copy(), run, coerce=False)
        # One that is under way, and was triggered again, starts again when it has ended.
        waiting = [t for t in pending if t.send is None and not self.under_way.is_pulled(t.name)]
        again = {t.name for t in waiting if self.find_restart(t.node) is not None}
        begun = {t.name: began_earlier(t.id) for t in waiting if has_begun(t.id)}
        self.requeued_nodes = again.union(name for name, before in begun.items() if before)
        self.resumed_nodes = again.union(begun)
        self.resumed_sends = {t.path[1] for t in pending if t.send is not None and has_begun(t.id)}

    def rebuild_task(self, run: TaskContext[Task], limit: int, known: UnderWayRecord) -> Task:
        """A task that has started in this state, as it was.

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

    def copy(self) -> ReadyMachine:
        """A machine of its own in the same state."""
        other = cast(ReadyMachine, super().copy())
        other.under_way, other.just_started = self.under_way.copy(), list(self.just_started)
        return other

    # -- start -------------------------------------------------------------------------------------

    def start(self, pin_to: PinRun, limit: int, may_start: MayStart) -> list[Task]:
        """The tasks that start now: Sends, and the triggered nodes that nothing under way leads to.

        Args:
            pin_to: makes the run as these tasks see it.
            limit: how many generations the call may take. Where they are more, nothing starts, and
                `over_limit` says what would.
            may_start: whether a node may.

        Raises:
            Exception: the schema of a node refuses its input. Nothing has started.
        """
        held = self.held
        try:
            return self._start(pin_to, limit, may_start)
        except BaseException:  # a schema refuses an input, or Ctrl-C
            self.held, self.just_started = held, []
            self._adopt(self._choose(never))
            raise

    def _start(self, pin_to: PinRun, limit: int, may_start: MayStart) -> list[Task]:
        nodes, starts = self.program.nodes, self.starts
        choice = self._choose(may_start)
        found = [starts.next_generation(nodes[name]) for name in choice.nodes]
        sends = choice.sends.values()
        found += [starts.next_generation(nodes[send.node], send) for send in sends]
        if found and max(found) > limit:
            self.over_limit = sorted({*choice.nodes, *(send.node for send in sends)})
            self._adopt(self._choose(never))
            return []
        self._adopt(choice)
        if not found:
            return []
        tasks = self._make_tasks(choice, pin_to, limit)
        for task in tasks:
            starts.enter(task)
        self.racing = self.racing or any(send.race is not None for send in sends)
        starts.forget((nodes[name] for name in choice.nodes), sends)
        self.just_started = tasks
        return tasks

    def _make_tasks(self, choice: Choice, pin_to: PinRun, limit: int) -> list[Task]:
        """The tasks of nodes and Sends that start now."""
        nodes, next_generation = self.program.nodes, self.starts.next_generation
        runs: dict[int, TaskContext[Task]] = {}

        def run_of(generation: int) -> TaskContext[Task]:
            self.remaining = limit - generation + 1
            if generation not in runs:
                # They read this state as long as they run, while this machine goes on.
                runs[generation] = pin_to(Machine.copy(self))
            return runs[generation]

        tasks: list[Task] = []
        for place, send in choice.sends.items():
            run = run_of(next_generation(nodes[send.node], send))
            tasks.append(Task(nodes[send.node], place, send.arg, run, send))
        for name in choice.nodes:
            run = run_of(next_generation(nodes[name]))
            self._add_pulled(nodes[name], tasks, run, coerce=True)
        return tasks

    def _choose(self, may_start: MayStart) -> Choice:
        """Decide what starts in this state."""
        # What is due?
        nodes, versions = self.program.nodes, self.versions
        changed = versions if self.changed is None else self.changed
        due = [name for name in self._candidates(changed) if self._is_triggered(nodes[name])]
        pending = list(self.channels[TASKS].get()) if TASKS in self.expiring else []
        # What may start, and has its memory? A task that has started before comes first: it may
        # have paused in the middle of work that its memory holds.
        free = [
            name
            for name in due
            if may_start(name, max(versions.get(each, 0) for each in nodes[name].triggers), False)
        ]
        sent = {each.node for each in pending}
        may_be_sent = {node: may_start(node, versions[TASKS], True) for node in sent}
        memories = Memories(self.program.nested, self.under_way)
        resumed = {name for name in free if name in self.resumed_nodes}
        for name in resumed:
            memories.take((name, None))
        sends = choose_sends(pending, may_be_sent, memories, self.resumed_sends)
        free = [
            name
            for name in free
            if name not in self.requeued_nodes
            and (name in resumed or memories.take((name, None)))
        ]
        # Whom do others hold back?
        chosen = sorted(resumed.union(self._find_free(free, due, pending)))
        return Choice(
            nodes=chosen,
            sends=sends,
            held=set(due).difference(chosen),
            waiting_sends={i: each for i, each in enumerate(pending) if i not in sends},
        )

    def _adopt(self, choice: Choice) -> None:
        """Note what waits, so that it stays."""
        self.decided = True
        # Not who was held before: a deferred node sleeps again while something else is under way.
        self.held, self.waiting_sends = choice.held, choice.waiting_sends

    def find_held_back(self) -> Collection[str]:
        """The triggered nodes that other work holds back, breakpoints aside."""
        return self._choose(always).held

    def _find_free(
        self, names: Sequence[str], due: Sequence[str], sends: Sequence[Any]
    ) -> list[str]:
        """The nodes among these that nothing holds back: not what is under way, nor what is due."""
        flow = self.program.flow
        assert flow is not None
        if not names:
            return []
        # At a breakpoint, or without their memory: what comes behind them waits, too.
        stopped = set(due).difference(names)
        running = {*self.under_way.nodes, *(send.node for send in sends), *stopped}
        # A node that runs is started again only when it has ended.
        waiting = [name for name in names if not self.under_way.is_pulled(name)]
        return find_free(waiting, running, flow.find_holders_in(self.channels))

    def plan(
        self, run: TaskContext[Task] | None = None, *, coerce: bool = True, remaining: int = 0
    ) -> list[Task]:
        """All that is under way or waits, as tasks of one superstep, for dropping it."""
        return Machine.plan(self.as_superstep(), run, coerce=coerce, remaining=remaining)

    def as_superstep(self) -> Machine:
        """A copy in which all that is under way is pending, under the ids that it has. It is a copy
        because here other tasks may get those places."""
        other = self.copy()
        other.requeue_all()
        return other

    def could_start(self, may_start: MayStart) -> bool:
        """Whether something starts if it may."""
        choice = self._choose(may_start)
        return bool(choice.nodes or choice.sends)

    def has_more(self) -> bool:
        """Whether something is under way or waits to start."""
        return bool(self.under_way or Machine.plan(self.copy(), coerce=False))

    # -- joins that gather in waves ----------------------------------------------------------------

    def _cross(self, tasks: Sequence[Task], *, consumed: Sequence[str], expire: bool) -> Crossing:
        return ReadyCrossing(
            self,
            tasks,
            consumed=consumed,
            expire=expire,
            lost=self.find_losers(tasks),
            under_way=self.under_way,
            just_started=self.just_started,
            waiting_sends=self.waiting_sends,
        )

    def end_wave(self, join: Join, pending: Sequence[str], sends: Sequence[Any]) -> Late | None:
        """`FlowMachine.end_wave`: the wave of a join that is open ends when its target starts."""
        return None

    # -- apply -------------------------------------------------------------------------------------

    def find_losers(self, winners: Sequence[Task]) -> Sequence[Task]:
        """The tasks under way that have lost their races if these have ended."""
        return find_losers(winners, chain(self.under_way, self.just_started)) if self.racing else ()

    def find_conflict(self, task: Task, earlier: Mapping[str, str]) -> ConcurrentUpdateError | None:
        """Why what a task wrote cannot be applied beside what others wrote; None if it can.

        Args:
            task: has ended.
            earlier: key → the node that wrote it, of those that are applied before it in the same
                step.
        """
        started_at = task.run.machine.tick
        for name, value in task.writes:
            if name == TASKS:
                continue
            plain = self.channels[name].exclusive
            guarded = plain or is_overwrite(value)
            if guarded and (name in earlier or self.versions.get(name, 0) > started_at):
                by = earlier.get(name) or self.writers.get(name, "")
                return ConcurrentUpdateError(name, task.name, by, overwrites=not plain)
        return None

    def refuses_again(self, task: Task, error: ConcurrentUpdateError) -> bool:
        """Whether what this task wrote was refused (and not what one in a graph inside it did), and
        it has not started anew since."""
        changed = self.versions.get(error.key, 0) > task.run.machine.tick
        return changed and error.task == task.name and error.key in self.channels

    def apply(self, tasks: Sequence[Task]) -> None:
        """End a step: what these tasks wrote is folded in, in path order; what has started since
        the step before is under way, unless it is among them, or has lost its race to one of
        them.

        Raises:
            InvalidUpdateError: naming channel, step and writers. Nothing has changed.
        """
        if len(tasks) > 1:  # of equal paths the first is what started first
            tasks = in_path_order(sorted(tasks, key=self.starts.order))
        if not self.decided:  # no start since the last step: after a race, or if it is cut short
            self._adopt(self._choose(never))
        fresh: dict[str, Channel] = {}
        changed: set[str] = set()
        moved = self._consume(self.just_started, fresh, changed) if self.program.consuming else []
        writes = collect_writes(tasks)
        if self.waiting_sends:
            writes[TASKS] = [*self.waiting_sends.values(), *writes.get(TASKS, ())]
        self._update(writes, fresh, (moved, changed), tasks)
        lost = self.find_losers(tasks)
        goes_on = len(self.under_way) + len(self.just_started) > len(tasks) + len(lost)
        if self.program.kinds.finishers and not goes_on and not self._has_work(fresh, changed):
            self._finish(fresh, moved, changed)
        # From here on no code of the user's runs, and nothing can fail.
        # A node has seen its triggers when it starts. A Send counts as a run when it has ended, as
        # all others do: see `requeue`.
        self._mark_seen([task for task in self.just_started if task.send is None])
        for task in tasks:
            task = task.cause or task
            if task.send is not None:
                self._note_send(task.name, task.run.machine.tick)
        self._move_slots([*tasks, *lost], fresh, moved)
        for task in lost:
            self.starts.drop(task)
        for task in tasks:
            self.starts.leave(task, self.program.triggers)
            if not task.node.hidden:
                self.writers.update((name, task.name) for name, _ in task.writes)
        self._swap(fresh, moved, changed)
        self.just_started, self.waiting_sends, self.lost = [], {}, lost
        self.resumed_nodes = self.resumed_sends = self.requeued_nodes = ()
        self.decided = False
        self.carried = NONE_CARRIED
        self.step += 1

    def apply_writes(self, writes: Sequence[Pair]) -> None:
        """`Machine.apply_writes`, of a `Command` or a post."""
        super().apply_writes(writes)
        self.writers.update(dict.fromkeys((name for name, _ in writes), COMMAND))

    def _move_slots(
        self, ended: Sequence[Task], fresh: dict[str, Channel], moved: list[str]
    ) -> None:
        """Empty the slots of what has ended, and fill some with what has started."""
        slots: dict[int, Task | None] = {}
        gone = {task.cause or task for task in ended}
        for task in gone:
            number = self.under_way.leave(task)
            if number is not None:
                slots[number] = None
        for task in self.just_started:
            if task not in gone:
                slots[self.under_way.enter(task)] = task
        for number, start in slots.items():
            name = under_way_name(number)
            fresh[name] = cast(Channel, Slot(start))
            moved.append(name)
            self.seen[name] = {} if start is None else {start.run.machine.checkpoint_id: self.tick}
            self.unsaved_seen.add(name)

    def _expire(self, names: Iterable[str], fresh: dict[str, Channel], noted: Noted) -> None:
        """Keep what triggers a node that waits; end all else that lives for one step."""
        nodes = self.program.nodes
        kept = {trigger for name in self.held for trigger in nodes[name].triggers}
        super()._expire([name for name in names if name not in kept], fresh, noted)

    def stands_alone(self) -> bool:
        """Whether no task is under way that has started in an earlier state."""
        return not self.under_way

    # -- starting over -----------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Let all that is under way start again, in this state."""
        self.requeue_all()
        super().begin_anew()

    def apply_input(self, writes: Sequence[Pair], discarded: Sequence[Task]) -> None:
        """`Machine.apply_input`; what was under way is dropped with what was pending."""
        self.requeue_all()
        super().apply_input(writes, discarded)

    def requeue_all(self) -> None:
        """Make all that is under way pending work of this state."""
        known = {slot: describe(task) for slot, task in self.under_way.by_slot()}
        # What made these start is still there, and may have waited since an earlier state.
        self.held.update(task.name for task in self.just_started if task.send is None)
        self.under_way, self.just_started = TasksUnderWay(), []
        for slot in known:
            del self.channels[slot]
        requeue(self, known)
        pulled = {each["node"] for each in known.values() if each["send"] is None}
        self.resumed_nodes = self.requeued_nodes = pulled
