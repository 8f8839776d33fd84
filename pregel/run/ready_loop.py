"""The generator of a call with schedule="ready", in the place of `loop._loop`: tasks start when
their own inputs are there, and what has ended is a step of its own.

Theory of operation: `ReadyMachine` says what starts and folds in what has ended; only `_end_step`
moves the state. Tasks that have failed or wait for an answer stay under way, and the others go on.
They are recorded when nothing else can run, each beside the checkpoint at which it has started:
there a later call finds what it has asked, was answered, and has called.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from typing import Any, Literal

from ...checkpoint.base import BIRTHS, CLAIM, CONTINUES, TaskWrites
from ..errors import GraphDrained
from ..names import START
from ..superstep.machine import in_path_order
from ..superstep.ready_machine import ReadyMachine
from ..superstep.task import Task
from .effects import Effect, Effects, Save, StartTasks
from .failures import find_loudest, limit_reached
from .loop import restore, show_checkpoint, show_ends, show_starts
from .resume import claim_end, claim_of, pause, upcoming
from .run import Run, run_of


class Progress:
    """What the loop knows of a call beside the state.

    Attributes:
        effect: by which tasks start and end.
        at_work: the tasks that run.
        stuck: those that have ended and not finished; they stay under way.
        failed: one of these holds back all that has not started.
        limit: the error of a call that has come to its recursion limit, or None.
        drained: why the call is to end early, or None.
        continued: checkpoint → the earlier ones of which tasks go on there after an edit.
    """

    __slots__ = ("at_work", "continued", "drained", "effect", "failed", "limit", "stuck")

    def __init__(self, run: Run, machine: ReadyMachine) -> None:
        self.effect: StartTasks = StartTasks()
        self.at_work: dict[Task, None] = {}
        self.stuck: list[Task] = []
        self.failed: bool = False
        self.limit: Exception | None = None
        self.drained: str | None = None
        loaded = [run.position.found, *(run_of(task).position.found for task in machine.under_way)]
        self.continued: dict[str, Any] = {
            found.checkpoint["id"]: found.metadata.get(CONTINUES, ())
            for found in loaded
            if found is not None
        }

    def note_ends(self, run: Run, tasks: Iterable[Task]) -> None:
        """These have ended without having finished."""
        for task in tasks:
            self.stuck.append(task)
            if task.error is not None and (
                run.settings.on_failure == "stop" or not isinstance(task.error, Exception)
            ):
                self.failed = True


def ready_steps(run: Run, machine: ReadyMachine, passed: int) -> Effects:
    """Step after step, until nothing is left, or nothing can run before an answer comes.

    Args:
        passed: the machine's tick up to which breakpoints count as passed; there are none.
    """
    progress = Progress(run, machine)
    effect, at_work = progress.effect, progress.at_work
    starting = list(machine.under_way)
    moved = True  # nothing has started in this state yet
    while True:
        if moved:
            starting += machine.start(run.stand_at, run.settings.limit, _find_held(run, progress))
            if machine.beyond and progress.limit is None:
                progress.limit = limit_reached(run, upcoming(run, machine))
            show_checkpoint(run, [*machine.under_way, *machine.born])
        ended = (yield from _start(run, starting, progress)) if starting else []
        starting = []
        if not ended:
            if not at_work:
                break
            try:
                yield effect
            except GeneratorExit:
                raise
            except BaseException:
                yield from _end_by_force(run, machine, progress)
                raise
            ended = [*effect.finished]
            if not ended and not effect.open:
                break  # after a failure those that had not begun do not begin
        moved = yield from _take_ended(run, machine, progress, ended)
    yield from _end(run, machine, progress)


def _find_held(run: Run, progress: Progress) -> Collection[str] | Literal["*"]:
    """The nodes that must not start now; "*" for all."""
    settings, machine = run.settings, run.machine
    progress.drained = settings.control.drain_reason
    if progress.drained is None and START not in machine.expiring:  # the input comes in
        progress.drained = settings.ending.reason
    stops = progress.failed or progress.limit is not None or progress.drained is not None
    return "*" if stops else ()


def _start(
    run: Run, tasks: Sequence[Task], progress: Progress
) -> Generator[Effect, None, list[Task]]:
    """Let tasks start, but for those whose end is known.

    Returns:
        Those that have finished before.
    """
    if run.position.records:
        restore(run, tasks)
    known = [task for task in tasks if task.restored]
    new = [task for task in tasks if not task.restored] if known else tasks
    if run.output.streams:
        yield from show_starts(run, new)
        show_ends(run, known)
    progress.at_work.update(dict.fromkeys(new))
    progress.effect.tasks = [*progress.effect.tasks, *new]
    progress.note_ends(run, (task for task in known if not task.finished))
    return [task for task in known if task.finished]


def _take_ended(
    run: Run, machine: ReadyMachine, progress: Progress, tasks: Sequence[Task]
) -> Generator[Effect, None, bool]:
    """Apply what has finished, as one step; note the rest.

    Returns:
        Whether there is a new state.
    """
    applied: list[Task] = []
    for task in in_path_order(tasks) if len(tasks) > 1 else tasks:
        progress.at_work.pop(task, None)
        conflict = machine.find_conflict(task, applied) if task.finished else None
        if conflict is not None:
            task.fail(conflict)
        if task.finished:
            applied.append(task)
        else:
            progress.note_ends(run, (task,))
    if applied:
        yield from _end_step(run, machine, progress, applied)
    if run.output.streams:
        show_ends(run, tasks)
        if applied:
            run.output.show_values(machine)
    return bool(applied)


def _end_step(
    run: Run, machine: ReadyMachine, progress: Progress, tasks: Sequence[Task]
) -> Effects:
    """Apply what these tasks wrote, and store the step."""
    commits = run.commits
    if run.thread.saver is None:
        machine.apply(tasks)
    else:
        # Encoded before they are applied: a reducer that works in place must not reach the history.
        writes = [commits.encode_writes(task) for task in tasks]
        machine.apply(tasks)
        births = machine.under_way.births
        continues = {each: None for id in births for each in (id, *progress.continued.get(id, ()))}
        commits.describe(BIRTHS, [*births] or None)
        commits.describe(CONTINUES, [*continues] or None)
        commit = commits.build(machine, "loop", writes)
        commit.carried = _move_claim(run, tasks, commit.id)
        yield Save(commit)
    if run.output.keeps_view and not run.output.streams:
        run.output.show_values(machine)


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
