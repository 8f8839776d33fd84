"""What the loop knows of a call beside the state: what may start, what is at work, how the rest has
ended."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ..errors import DrainSignal, GraphRecursionError, ParentCommand, repr_of
from ..names import START, TASKS
from ..program.writes import list_sends
from ..schedule.machine import Machine
from ..schedule.states import TRANSITIONS, TaskEvent, TaskState, end_of
from ..task.interrupts import is_listed
from ..task.task import Task
from .effects import Work
from .recording import Recording
from .run import Run

if TYPE_CHECKING:
    from ..schedule.rules import MayStart


class LoopProgress:
    """What the loop knows of a call beside the state.

    Attributes:
        run, machine: the call, and its state.
        effect: by which tasks start and end.
        states: the tasks of the call that have started and are not folded in, each with its state.
            In supersteps these are the tasks of the open one.
        straight: a superstep whose tasks are not among these yet: nobody looks until all have ended
            (benchmark P1).
        recording: stores what is to be stored.
        passed_tick: the machine's tick up to which breakpoints count as passed.
        taken: how many supersteps the call has taken.
        stopped: a failure stops the call: nothing further starts.
        start_error: the error with which the call ends, as nothing more can start; None while tasks
            may start.
        drained: why the call is to end early, or None.
        serial_queue: with schedule="ready", where one task runs at a time, those that wait for
            their turn; else None.
        held_back: the nodes that must wait because a predecessor has stopped at a breakpoint behind
            it (`interrupt_after`).
        not_reached: the nodes that were held back when the call began. It has not stopped at their
            breakpoints yet, so it does not pass them.
    """

    # What few calls ever set is an attribute of the class (benchmark P2).
    drained: str | None = None
    held_back: frozenset[str] = frozenset()
    not_reached: Collection[str] = ()
    serial_queue: list[tuple[int, Task]] | None = None
    start_error: BaseException | None = None
    stopped: bool = False
    straight: Sequence[Task] = ()
    taken: int = 0

    def __init__(self, run: Run, passed_tick: int) -> None:
        self.run: Run = run
        self.machine: Machine = run.machine
        self.effect: Work = Work()
        self.states: dict[Task, TaskState] = {}
        self.recording: Recording = Recording(run)
        self.passed_tick: int = passed_tick

    # -- what starts -------------------------------------------------------------------------------

    def decide_starts(self) -> MayStart:
        """Decide what may start now, with schedule="ready"."""
        settings = self.run.settings
        self.drained = settings.control.drain_reason
        if self.drained is None and START not in self.machine.expiring:  # the input comes in
            self.drained = settings.ending.reason
        return self._decide(drained=self.drained is not None)

    def is_cut_short(self) -> bool:
        """Whether the call ends early, and something would start if it did not."""
        if self.drained is None:
            return False
        from ..schedule.rules import could_start

        return could_start(self.machine, self._decide(drained=False))

    def _decide(self, *, drained: bool) -> MayStart:
        settings, passed_tick = self.run.settings, self.passed_tick
        stops = self.stopped or self.start_error is not None or drained
        nodes, before = self.run.program.nodes, settings.interrupt_before
        # An edit may have left it pending: it comes in before anything else starts.
        has_input = START in self.machine.expiring
        # Open tasks go on, and move the state on. What has begun in this one would be lost there.
        goes_on = bool(self.machine.open)

        def may_start(node: str, version: int, sent: bool, begun: bool) -> bool:
            if stops and not (begun and goes_on):
                return False
            if node in self.held_back or (has_input and node != START):
                return False
            listed = node in before or (before == "*" and not nodes[node].hidden)
            # Who goes on from a breakpoint gets past it; the next change makes it count again.
            # What has held the node back holds no Send to it.
            reached = sent or node not in self.not_reached
            return not listed or (reached and version <= passed_tick)

        return may_start

    def enter(self, tasks: Sequence[Task]) -> None:
        """Note tasks that start.

        All at once, since Ctrl-C may come between any two lines: if only some of a superstep were
        known, the barrier would not wait for the others.
        """
        if self.machine.racing:
            if self.effect.races is None:
                from ..schedule.races import Races

                self.effect.races = Races()
            self.effect.races.enter(tasks)
        self.states.update(dict.fromkeys(tasks, "at work"))
        self.straight = ()

    def enqueue(self, tasks: Sequence[Task]) -> None:
        """Let tasks run, one at a time where that is wanted."""
        if self.serial_queue is None:
            self.effect.tasks = [*self.effect.tasks, *tasks]
            return
        assert self.machine.open is not None
        for task in tasks:
            heappush(self.serial_queue, (self.machine.open.order(task), task))

    def take_next(self) -> Sequence[Task]:
        """The task that runs next where one runs at a time: the one that has started first. An
        error handler has the place of its task, so that the order is the same after a crash."""
        return [heappop(self.serial_queue)[1]] if self.serial_queue and not self.stopped else ()

    def note_breakpoints(self, tasks: Sequence[Task]) -> None:
        """Hold back, in this call, what tasks lead to that have a breakpoint behind them."""
        triggers = self.run.program.triggers
        for task in tasks:
            if is_listed((task,), self.run.settings.interrupt_after):
                for name, value in task.writes:
                    names = list(triggers.get(name, ()))
                    if name == TASKS:
                        names += (send.node for send in list_sends(value))
                    self.held_back = self.held_back.union(names)

    # -- how it ends -------------------------------------------------------------------------------

    def note_ends(self, tasks: Iterable[Task]) -> None:
        """Note tasks that have ended without having finished."""
        for task in tasks:
            end = end_of(task)
            if end is None:
                continue  # a failure has kept it from beginning
            self.move((task,), end)
            keep_cause(task)
            if end == "fails":
                races = self.effect.races
                fails = races is None or races.note_failure(task)
                self.stopped = self.stopped or (fails and self.run.settings.on_failure == "stop")
            elif task.error is not None:
                self.stopped = True

    def move(self, tasks: Iterable[Task], event: TaskEvent) -> None:
        """Note what has happened to tasks: the only place where their states change."""
        states = self.states
        moved = {task: TRANSITIONS[states[task]][event] for task in tasks}
        if event == "is folded in" and len(moved) == len(states):
            states.clear()  # at once, as they have entered
            return
        for task, state in moved.items():
            if state in TRANSITIONS:
                states[task] = state
            else:
                del states[task]

    def replace(self, tasks: Sequence[Task], handlers: Sequence[Task]) -> None:
        """Let error handlers take the places of tasks; they are there before the tasks are gone."""
        self.states.update(dict.fromkeys(handlers, "at work"))
        self.move(tasks, "hands over")

    def list_in(self, *states: TaskState) -> list[Task]:
        """Return the tasks in one of these states."""
        return [task for task, state in self.states.items() if state in states]

    def find_losers(self, winners: Sequence[Task]) -> Sequence[Task]:
        """Return the tasks that have lost their races by these."""
        from ..schedule.races import find_losers

        return find_losers(winners, [task.cause or task for task in self.states])

    def drop(self, losers: Collection[Task]) -> list[Task]:
        """Drop tasks that have lost their races.

        Returns:
            What is at work for them.
        """
        gone = set(losers)
        for task in losers:
            task.lose()
        lost = [task for task in self.states if (task.cause or task) in gone]
        at_work = [task for task in lost if self.states[task] == "at work"]
        self.move(lost, "loses")
        self.effect.tasks = [task for task in self.effect.tasks if task in self.states]
        if self.serial_queue:
            self.serial_queue = [each for each in self.serial_queue if each[1] in self.states]
            heapify(self.serial_queue)
        return at_work


# -- the errors that a run raises ------------------------------------------------------------------

def choose_error(failed: Sequence[Task]) -> BaseException:
    """The error to raise for several tasks that have failed; its notes name the others.

    Ctrl-C comes first, then the first failure in path order, then the other signals.

    Args:
        failed: the tasks, in path order.
    """
    errors = [t for t in failed if isinstance(t.error, Exception)]
    signals = [
        t for t in failed if not isinstance(t.error, (Exception, ParentCommand, DrainSignal))
    ]
    # A cancellation is most often the consequence of a failure beside it.
    first, *others = [*(t for t in signals if not _is_cancelled(t)), *errors, *failed]
    assert first.error is not None
    for task in dict.fromkeys(others):
        if task in errors and task is not first:
            first.error.add_note(f"Task {task.name!r} failed as well: {repr_of(task.error)}")
    return first.error


def keep_cause(handler: Task) -> None:
    """Let the error of an error handler keep what it was called for, which it would hide."""
    error, cause = handler.error, handler.cause
    if error is not None and cause is not None and error is not cause.error:
        error.__cause__ = error.__cause__ or cause.error


def _is_cancelled(task: Task) -> bool:
    return type(task.error).__name__ in ("CancelledError", "GraphAbandoned")


def limit_reached(run: Run, tasks: Sequence[Task]) -> GraphRecursionError:
    """The error of a run that has taken all the steps that it may take."""
    unit = "generations" if run.program.starts_ready else "supersteps"
    names = ", ".join(sorted({t.name for t in tasks}))
    return GraphRecursionError(
        f"{run.program.name}: the recursion limit of {run.settings.limit} {unit} was reached "
        f'with work left: {names}. Raise it with config={{"recursion_limit": ...}}, or go on with '
        "invoke(None, config) (GRAPH_RECURSION_LIMIT)"
    )
