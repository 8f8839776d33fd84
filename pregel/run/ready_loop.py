"""The generator of a call with schedule="ready", in the place of `loop._loop`: tasks start when
their own inputs are there, and what has ended is a step of its own.

Theory of operation: `Machine` says what starts and folds in what has ended; only `_end_step`
moves the state. Tasks that have failed or wait for an answer stay under way, and the others go on.
They are recorded when nothing else can run, each beside the checkpoint at which it has started:
there a later call finds its questions, its answers and the results of its `@task` calls.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ...checkpoint.base import TaskWrites
from ..errors import ConcurrentUpdateError, DrainSignal
from ..superstep.machine import Machine, handler_of, in_path_order
from ..superstep.outcome import end_with_error
from ..superstep.race import has_ended
from ..superstep.ready_races import find_winners
from ..superstep.rules import (
    always,
    choose,
    find_begun,
    find_conflict,
    has_more,
    open_of,
    refuses_again,
    start,
)
from ..superstep.task import Task
from .effects import Abandon, Effect, Effects
from .failures import choose_error, limit_reached
from .output import Breakpoint
from .ready_progress import LoopProgress
from .resume import pause, restore, upcoming
from .run import Run
from .showing import show_checkpoint, show_ends, show_starts
from .stream import identify_messages


def ready_steps(run: Run, machine: Machine, passed_tick: int) -> Effects:
    """Step after step, until nothing is left, or nothing can run before an answer comes.

    Args:
        passed_tick: the machine's tick up to which breakpoints count as passed.
    """
    progress = LoopProgress(run, machine, passed_tick)
    try:
        yield from _run_steps(run, machine, progress)
    except GeneratorExit:
        raise
    except BaseException:
        # Also while a step is stored: others are at work meanwhile, and may have finished.
        yield from _end_by_force(run, machine, progress)
        raise
    yield from _end(run, machine, progress)


def _run_steps(run: Run, machine: Machine, progress: LoopProgress) -> Effects:
    effect, at_work = progress.effect, progress.at_work
    starting = yield from _take_up(run, machine, progress)
    moved = True  # nothing has started in this state yet
    while True:
        if moved:
            starting += _choose_starts(run, machine, progress)
        ended = (yield from _start(run, starting, progress)) if starting else []
        starting = []
        if not ended:
            if not at_work and not effect.open:  # losers are given a moment to clean up
                return
            if progress.serial_queue is not None and not effect.open:
                effect.tasks = progress.take_next()
            yield effect
            ended = [*effect.finished]
            if not ended and not effect.open:
                return  # after a failure tasks that have not begun do not begin
        if ended and run.commits.inbox is not None:
            # Before anything is applied: if the call is cut short here, these count as at work.
            progress.posts = yield from run.commits.inbox.read()
        take = _take_ended if progress.races is None else _take_raced
        moved = yield from take(run, machine, progress, ended)


def _take_up(
    run: Run, machine: Machine, progress: LoopProgress
) -> Generator[Effect, None, list[Task]]:
    """Go on where the thread stands. Returns the tasks that are under way there."""
    under_way = list(open_of(machine))
    yield from progress.store.begin()
    if run.position.found is not None:
        record_of = run.position.record_of
        open_of(machine).begun = find_begun(
            machine, run, lambda id: record_of(id).begun, lambda id: record_of(id).kept is not None
        )
    if run.settings.interrupt_before:
        progress.not_reached = choose(machine, always).held
    return under_way


def _choose_starts(run: Run, machine: Machine, progress: LoopProgress) -> list[Task]:
    """The tasks that start in a new state. If they cannot, what runs ends and is applied."""
    starting: list[Task] = []
    may_start = progress.decide_starts(run)
    try:
        starting = start(machine, run.pin_to, run.settings.limit, may_start)
    except Exception as error:
        progress.stop_starting(error)
    if open_of(machine).over_limit and progress.start_error is None:
        progress.stop_starting(limit_reached(run, upcoming(run, machine)))
    # Also if nothing starts: readers are owed the last checkpoint.
    if any(stream.wants("checkpoints", "debug") for stream in run.output.streams):
        show_checkpoint(run, upcoming(run, machine))
    return starting


def _start(
    run: Run, tasks: Sequence[Task], progress: LoopProgress
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
        _restore_refused(run, tasks)
    known = [task for task in tasks if task.restored]
    new = [task for task in tasks if not task.restored] if known else tasks
    if run.output.streams:
        yield from show_starts(run, new)
        show_ends(run, known)
    finished = [task for task in known if task.finished]
    progress.at_work.update(dict.fromkeys([*new, *finished]))
    if run.machine.racing:
        progress.enter_races(tasks)
    progress.enqueue(new)
    progress.note_ends(run, (task for task in known if not task.finished))
    return finished


def _restore_refused(run: Run, tasks: Sequence[Task]) -> None:
    """Give tasks their error back whose writes were refused and would be refused again, so that
    nothing that they do is repeated for that."""
    for task in tasks:
        error = run.position.record_of(task.id).error
        if isinstance(error, ConcurrentUpdateError) and refuses_again(run.machine, task, error):
            task.restore_end(error)


def _is_handled(task: Task) -> bool:
    """Whether an error handler takes the place of a task."""
    return task.error is not None and not task.fatal


def _take_ended(
    run: Run, machine: Machine, progress: LoopProgress, tasks: Sequence[Task]
) -> Generator[Effect, None, bool]:
    """Apply the tasks that finished, as one step, and note how the others ended. If that is
    refused, apply them one by one.

    Returns:
        Whether there is a new state.
    """
    applied, failed = _sort_ends(run, machine, progress, tasks)
    apart: Sequence[Task] = ()
    identify_messages(run.output.streams, applied, machine.channels)
    try:
        writes = progress.store.apply(applied) if applied else []
    except Exception as error:
        # One bad write must not undo the others.
        if len(applied) > 1:
            apart = applied
            progress.at_work.update(dict.fromkeys(apart))  # until each has its turn
        else:
            for task in applied:
                task.fail(error)
            progress.note_ends(run, applied)
        applied = []
    if applied:
        progress.lost += open_of(machine).lost
        yield from _end_step(run, machine, progress, applied, writes)
    if run.output.streams:
        show_ends(run, [task for task in tasks if task not in apart] if apart else tasks)
        if run.commits.inbox is not None:
            run.commits.inbox.show(run.output.streams)
        if applied:
            run.output.show_values(machine)
    if failed:
        yield from _hand_over(run, progress, failed)
    moved = bool(applied)
    for task in apart:
        moved = (yield from _take_ended(run, machine, progress, [task])) or moved
    return moved


def _sort_ends(
    run: Run, machine: Machine, progress: LoopProgress, tasks: Sequence[Task]
) -> tuple[list[Task], list[Task]]:
    """What becomes of tasks that have ended. They are at work no more.

    Returns:
        Those to be applied, and those whose error handlers take over. How the others have ended is
        noted.
    """
    applied: list[Task] = []
    failed: list[Task] = []
    written: dict[str, str] = {}
    for task in in_path_order(tasks) if len(tasks) > 1 else tasks:
        progress.at_work.pop(task, None)
        conflict = find_conflict(machine, task, written) if task.finished else None
        if conflict is not None:
            end_with_error(task, conflict)
        if task.finished:
            applied.append(task)
            written.update((name, task.name) for name, _ in task.writes)
        elif conflict is None and _is_handled(task):
            failed.append(task)
        else:
            progress.note_ends(run, (task,))
    return applied, failed


def _take_raced(
    run: Run, machine: Machine, progress: LoopProgress, tasks: Sequence[Task]
) -> Generator[Effect, None, bool]:
    """`_take_ended` where there are races.

    Returns:
        Whether there is a new state.
    """
    races, moved = progress.races, False
    assert races is not None
    # Who is not at work any more has lost before.
    rest: Sequence[Task] = [task for task in tasks if task in progress.at_work]
    not_begun = [task for task in rest if not has_ended(task)]
    while rest:
        chosen, behind = races.choose(rest)
        for task in races.aside:
            progress.at_work.pop(task, None)
        if chosen:
            moved = (yield from _take_ended(run, machine, progress, chosen)) or moved
        winners = find_winners(chosen)
        if winners:
            # Nothing is applied of one that has left by a command for the graph around.
            lost = [*progress.lost, *machine.find_losers(winners)]
            progress.lost = []
            yield from _stop(run, progress, lost)
        rest = [task for task in behind if task in progress.at_work]
    # They gave way to one that has finished. It has won, or could not be applied.
    again = [task for task in not_begun if task in progress.at_work]
    progress.enqueue(again)
    over = races.take_over(progress.at_work)
    show_ends(run, over)
    handled = [task for task in over if _is_handled(task)]
    progress.note_ends(run, (task for task in over if not _is_handled(task)))
    if handled:
        yield from _hand_over(run, progress, handled)
    return moved


def _stop(run: Run, progress: LoopProgress, losers: Sequence[Task]) -> Effects:
    """Stop those that have lost their races, once that is stored."""
    at_work = progress.drop(losers)
    for stream in run.output.streams:
        for task in losers:
            stream.lost(task)
    if at_work:
        yield Abandon(progress.effect, at_work)


def _hand_over(run: Run, progress: LoopProgress, failed: Sequence[Task]) -> Effects:
    """Let error handlers take the places of tasks that have failed."""
    # Before the handlers run: after a crash the handler goes on and the node is not repeated.
    yield from progress.store.hand_over(failed)
    yield from _start(run, [handler_of(task) for task in failed], progress)


def _end_step(
    run: Run,
    machine: Machine,
    progress: LoopProgress,
    tasks: Sequence[Task],
    writes: list[TaskWrites],
) -> Effects:
    """Store the step that these tasks have ended."""
    inbox = run.commits.inbox
    if inbox is not None and progress.posts and has_more(machine):
        inbox.fold(machine, progress.posts)
        progress.posts = ()
    yield from progress.store.end_step(tasks, writes)
    if run.settings.interrupt_after:
        progress.note_breakpoints(run, tasks)
    if run.output.keeps_view and not run.output.streams:
        run.output.show_values(machine)


# -- the end of a call -----------------------------------------------------------------------------


def _end(run: Run, machine: Machine, progress: LoopProgress) -> Effects:
    """End a call in which nothing can run: record how far tasks have come; then raise, or pause."""
    unfinished = in_path_order(progress.list_unfinished())
    # Before it is recorded: with durability="exit" all that is under way waits to start then.
    drained = progress.drained if progress.is_cut_short(run, machine) else None
    yield from progress.store.record(unfinished)
    failed = [task for task in unfinished if task.error is not None]
    if progress.races is not None:
        failed = [task for task in failed if progress.races.has_failed(task)]
    if failed:
        raise choose_error(failed)
    if progress.start_error is not None:
        raise progress.start_error
    if drained is not None:
        raise DrainSignal(drained)
    if unfinished:
        pause(run, unfinished)
    elif machine.held or open_of(machine).waiting_sends:  # at a breakpoint
        kind: Breakpoint = "interrupt_after" if progress.held_back else "interrupt_before"
        run.output.stop(kind, upcoming(run, machine))
    elif machine.program.flow is not None:
        machine.program.flow.warn_of_unmet(machine.channels)


def _end_by_force(run: Run, machine: Machine, progress: LoopProgress) -> Effects:
    """Keep what has finished when the reader leaves or the driver fails."""
    # What an abandoned run has done must not move the thread: nobody waits for it any more.
    if run.abandoned or progress.store.has_open_step:
        return
    # Nor may what has lost its race by a step that is applied.
    progress.drop([*progress.lost, *open_of(machine).lost])
    finished = [task for task in progress.at_work if task.finished]
    if finished:
        take = _take_ended if progress.races is None else _take_raced
        yield from take(run, machine, progress, finished)
    unfinished = [task for task in progress.at_work if not task.finished]
    yield from progress.store.record(in_path_order([*progress.list_unfinished(), *unfinished]))
