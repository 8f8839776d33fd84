"""The generator of a call with schedule="ready", in the place of `loop._loop`: tasks start when
their own inputs are there, and what has ended is a step of its own.

Theory of operation: `ReadyMachine` says what starts and folds in what has ended; only `_end_step`
moves the state. Tasks that have failed or wait for an answer stay under way, and the others go on.
They are recorded when nothing else can run, each beside the checkpoint at which it has started:
there a later call finds what it has asked, was answered, and has called.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappop, heappush

from ...checkpoint.base import CLAIM, ERROR, ERROR_SOURCE, UNDER_WAY, TaskWrites
from ..errors import GraphDrained
from ..names import START, TASKS
from ..superstep.interrupts import is_listed
from ..superstep.machine import handler_of, in_path_order
from ..superstep.ready_machine import ReadyMachine
from ..superstep.task import Task
from .effects import Effect, Effects, Save, StartTasks
from .failures import find_loudest, limit_reached
from .loop import restore, show_checkpoint, show_ends, show_starts
from .output import Breakpoint
from .resume import claim_end, claim_of, pause, upcoming
from .run import Run


class Progress:
    """What the loop knows of a call beside the state.

    Attributes:
        effect: by which tasks start and end.
        at_work: the tasks that run, or wait for a free place.
        alone: where one task runs at a time, those that wait for their turn; else None.
        stuck: those that have ended and not finished; they stay under way.
        failed: one of these holds back all that has not started.
        limit: the error of a call that has come to its recursion limit, or None.
        drained: why the call is to end early, or None.
        order: a number by which tasks are sorted as they have started.
        passed: the machine's tick up to which breakpoints count as passed.
        after: the nodes that wait because one before them has a breakpoint behind it.
    """

    __slots__ = (
        "after", "alone", "at_work", "drained", "effect", "failed", "limit", "order", "passed",
        "stuck",
    )  # fmt: skip

    def __init__(self, machine: ReadyMachine, passed: int, *, alone: bool) -> None:
        self.order: Callable[[Task], int] = machine.starts.order
        self.passed: int = passed
        self.after: set[str] = set()
        self.effect: StartTasks = StartTasks()
        self.at_work: dict[Task, None] = {}
        self.alone: list[tuple[int, Task]] | None = [] if alone else None
        self.stuck: list[Task] = []
        self.failed: bool = False
        self.limit: Exception | None = None
        self.drained: str | None = None

    def note_ends(self, run: Run, tasks: Iterable[Task]) -> None:
        """These have ended without having finished."""
        for task in tasks:
            self.stuck.append(task)
            # A handler that raises hides what it was called for, unless that stays as the cause.
            error = task.error
            if task.cause is not None and error is not None and error is not task.cause.error:
                error.__cause__ = error.__cause__ or task.cause.error
            if task.error is not None and (
                run.settings.on_failure == "stop" or not isinstance(task.error, Exception)
            ):
                self.failed = True


def ready_steps(run: Run, machine: ReadyMachine, passed: int) -> Effects:
    """Step after step, until nothing is left, or nothing can run before an answer comes.

    Args:
        passed: the machine's tick up to which breakpoints count as passed.
    """
    alone = run.settings.config.get("max_concurrency") == 1
    progress = Progress(machine, passed, alone=alone)
    try:
        yield from _run_steps(run, machine, progress)
    except GeneratorExit:
        raise
    except BaseException:
        # Also while a step is stored: others are at work meanwhile, and may have finished.
        yield from _end_by_force(run, machine, progress)
        raise
    yield from _end(run, machine, progress)


def _run_steps(run: Run, machine: ReadyMachine, progress: Progress) -> Effects:
    effect, at_work = progress.effect, progress.at_work
    starting = list(machine.under_way)
    if run.position.records:
        machine.note_begun(run, lambda id: run.position.record_of(id).begun)
    moved = True  # nothing has started in this state yet
    while True:
        if moved:
            may_start = _decide_starts(run, progress)
            starting += machine.start(run.stand_at, run.settings.limit, may_start)
            if machine.beyond and progress.limit is None:
                progress.limit = limit_reached(run, upcoming(run, machine))
            if run.output.streams:
                show_checkpoint(run, [*machine.under_way, *machine.born])
        ended = (yield from _start(run, starting, progress)) if starting else []
        starting = []
        if not ended:
            if not at_work:
                return
            if progress.alone is not None and not effect.open:
                effect.tasks = _next_alone(progress, progress.alone)
            yield effect
            ended = [*effect.finished]
            if not ended and not effect.open:
                return  # after a failure those that had not begun do not begin
        moved = yield from _take_ended(run, machine, progress, ended)


def _decide_starts(run: Run, progress: Progress) -> Callable[[str, int], bool]:
    """Whether a node may start now, by its name and the version of what starts it."""
    settings, machine, passed = run.settings, run.machine, progress.passed
    progress.drained = settings.control.drain_reason
    if progress.drained is None and START not in machine.expiring:  # the input comes in
        progress.drained = settings.ending.reason
    stops = progress.failed or progress.limit is not None or progress.drained is not None
    nodes, before = run.program.nodes, settings.interrupt_before

    def may_start(node: str, version: int) -> bool:
        if stops or node in progress.after:
            return False
        listed = node in before or (before == "*" and not nodes[node].hidden)
        # Who goes on from a breakpoint gets past it; the next change makes it count again.
        return not listed or version <= passed

    return may_start


def _start(
    run: Run, tasks: Sequence[Task], progress: Progress
) -> Generator[Effect, None, list[Task]]:
    """Let tasks start, but for those whose end is known.

    Returns:
        Those that have finished before.
    """
    if run.position.records:
        restore(run, tasks)
        routed = [task for task in tasks if task.restored and _is_handled(task)]
        if routed:
            show_ends(run, routed)
            handlers = [handler_of(task) for task in routed]
            restore(run, handlers)
            tasks = [*(task for task in tasks if task not in routed), *handlers]
    known = [task for task in tasks if task.restored]
    new = [task for task in tasks if not task.restored] if known else tasks
    if run.output.streams:
        yield from show_starts(run, new)
        show_ends(run, known)
    progress.at_work.update(dict.fromkeys(new))
    if progress.alone is None:
        progress.effect.tasks = [*progress.effect.tasks, *new]
    else:
        for task in new:
            heappush(progress.alone, (progress.order(task), task))
    progress.note_ends(run, (task for task in known if not task.finished))
    return [task for task in known if task.finished]


def _next_alone(progress: Progress, waiting: list[tuple[int, Task]]) -> Sequence[Task]:
    """The task that runs next where one runs at a time: the one that has started first. An error
    handler has the place of its task, so that the order is the same after a crash."""
    return () if progress.failed or not waiting else [heappop(waiting)[1]]


def _is_handled(task: Task) -> bool:
    """Whether an error handler takes the place of a task."""
    return task.error is not None and not task.fatal


def _take_ended(
    run: Run, machine: ReadyMachine, progress: Progress, tasks: Sequence[Task]
) -> Generator[Effect, None, bool]:
    """Apply what has finished, as one step; note the rest.

    Returns:
        Whether there is a new state.
    """
    applied: list[Task] = []
    failed: list[Task] = []
    written: dict[str, str] = {}
    for task in in_path_order(tasks) if len(tasks) > 1 else tasks:
        progress.at_work.pop(task, None)
        conflict = machine.find_conflict(task, written) if task.finished else None
        if conflict is not None:
            task.fail(conflict)
        if task.finished:
            applied.append(task)
            written.update((name, task.name) for name, _ in task.writes)
        elif conflict is None and _is_handled(task):
            failed.append(task)
        else:
            progress.note_ends(run, (task,))
    try:
        writes = _fold(run, machine, applied) if applied else []
    except Exception as error:
        for task in applied:
            task.fail(error)
        progress.note_ends(run, applied)
        applied = []
    if applied:
        yield from _end_step(run, machine, progress, applied, writes)
    if run.output.streams:
        show_ends(run, tasks)
        if applied:
            run.output.show_values(machine)
    if failed:
        yield from _hand_over(run, progress, failed)
    return bool(applied)


def _hand_over(run: Run, progress: Progress, failed: Sequence[Task]) -> Effects:
    """Let error handlers take the places of tasks that have failed."""
    # Before the handlers run: after a crash the handler goes on and the node is not repeated.
    if run.thread.saver is not None:
        for task in failed:
            marks = {ERROR: task.error, ERROR_SOURCE: task.name}
            birth = task.run.machine.checkpoint_id
            yield Save(None, [run.commits.encode_marks(task, marks)], birth)
    yield from _start(run, [handler_of(task) for task in failed], progress)


def _fold(run: Run, machine: ReadyMachine, tasks: Sequence[Task]) -> list[TaskWrites]:
    """Apply what these tasks wrote; what is to be stored of it.

    Raises:
        Exception: it cannot be stored or applied. Nothing has changed.
    """
    # Encoded before they are applied: a reducer that works in place must not reach the history.
    saves = run.thread.saver is not None
    writes = [run.commits.encode_writes(task) for task in tasks] if saves else []
    machine.apply(tasks)
    return writes


def _end_step(
    run: Run,
    machine: ReadyMachine,
    progress: Progress,
    tasks: Sequence[Task],
    writes: list[TaskWrites],
) -> Effects:
    """Store the step that these tasks have ended."""
    commits = run.commits
    if run.thread.saver is not None:
        commits.describe(UNDER_WAY, bool(machine.under_way) or None)
        commit = commits.build(machine, "loop", writes)
        commit.carried = _move_claim(run, tasks, commit.id)
        yield Save(commit)
    else:
        machine.identify()  # tasks of one path may be under way at once
    if run.settings.interrupt_after:
        _note_breakpoints(run, progress, tasks)
    if run.output.keeps_view and not run.output.streams:
        run.output.show_values(machine)


def _note_breakpoints(run: Run, progress: Progress, tasks: Sequence[Task]) -> None:
    """What tasks with a breakpoint behind them lead to does not start in this call."""
    triggers = run.program.triggers
    for task in tasks:
        if is_listed((task,), run.settings.interrupt_after):
            for name, value in task.writes:
                progress.after.update(triggers.get(name, ()))
                if name == TASKS:
                    sends = value if isinstance(value, list) else [value]
                    progress.after.update(send.node for send in sends)


def _move_claim(run: Run, tasks: Sequence[Task], checkpoint_id: str) -> list[TaskWrites]:
    """The answers that have not reached their task go along to the next checkpoint."""
    claim = claim_of(run)
    if run.answers.claimed is None or claim is None:
        return []
    delivered = {q for task in tasks for q in (*(task.answers or ()), *task.passed_on)}
    left = run.answers.move_claim(delivered, checkpoint_id)
    if not left:
        run.answers.end_claim()
        return []
    return [run.commits.encode_command([(CLAIM, {**claim, "answers": left})])]


# -- the end of a call -----------------------------------------------------------------------------


def _end(run: Run, machine: ReadyMachine, progress: Progress) -> Effects:
    """Nothing can run: record how far all has come that is under way; then raise, or pause."""
    stuck = in_path_order(progress.stuck)
    yield from _record(run, stuck)
    failed = [task for task in stuck if task.error is not None]
    if failed:
        raise find_loudest(failed)
    if progress.limit is not None:
        raise progress.limit
    waits = machine.held or machine.kept_sends
    if progress.drained is not None and (stuck or waits):
        raise GraphDrained(progress.drained)
    if stuck:
        pause(run, stuck)
    elif waits:  # at a breakpoint
        kind: Breakpoint = "interrupt_after" if progress.after else "interrupt_before"
        run.output.stop(kind, upcoming(run, machine))
    elif machine.program.flow is not None:
        machine.program.flow.warn_of_unmet(machine.channels)


def _record(run: Run, tasks: Sequence[Task]) -> Effects:
    """Record how far tasks have come that stay under way, each beside its birth; then that the call
    which has answered them has ended."""
    if run.thread.saver is None or run.abandoned:
        return
    records: dict[str, list[TaskWrites]] = {}
    for task in tasks:
        # What was only restored stands in the store as it is.
        marks = {} if task.restored else run.commits.marks_of_unfinished(task)
        if marks:
            birth = task.run.machine.checkpoint_id
            records.setdefault(birth, []).append(run.commits.encode_marks(task, marks))
    for birth, found in records.items():
        yield Save(None, found, birth)
    ended = claim_end(run, tasks)
    if ended:
        yield Save(None, ended, run.position.saved_id or "")


def _end_by_force(run: Run, machine: ReadyMachine, progress: Progress) -> Effects:
    """The reader left, or the driver failed: what had finished by then is not run again."""
    # What an abandoned run has done must not move the thread: nobody waits for it any more.
    if run.abandoned:
        return
    finished = [task for task in progress.at_work if task.finished]
    unfinished = [task for task in progress.at_work if not task.finished]
    if finished:
        yield from _take_ended(run, machine, progress, finished)
    yield from _record(run, in_path_order([*progress.stuck, *unfinished]))
