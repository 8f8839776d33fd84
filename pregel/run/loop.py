"""ONE generator that owns the order of effects: load, plan, run, keep, apply, save, emit.

It asks for effects and never performs one: no await, no thread, no I/O. A driver fills each
effect's answer slots and resumes it; if it fails, it throws the exception in here, to keep work.

Theory of operation: only `_end_superstep` moves the state, as the last thing. So wherever a run
ends before that, the state is the one of the last commit, and what tasks have done stands beside it
as records. A superstep that fails or pauses leaves by `_end_unfinished`, one that is cut short by
`_end_by_force`; both store first, since a later call goes on from what is stored and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...checkpoint.base import ERROR
from ..errors import DrainSignal
from ..superstep.interrupts import is_listed
from ..superstep.machine import Machine, handler_of, in_path_order
from ..superstep.task import Task
from .begin import begin
from .effects import WIDE, Abandon, Effect, Effects, GiveWay, Load, RunTasks, Save
from .load import load_checkpoint, load_machine
from .nested import load_under_way, save_kept
from .resume import claim_end, end_claim, pause, restore, upcoming
from .run import Run, run_of
from .showing import show_checkpoint, show_ends, show_racers, show_starts
from .task_records import marks_of_unfinished

if TYPE_CHECKING:
    from ..superstep.race import Races


def supersteps(run: Run) -> Effects:
    """Carry out one call. Afterwards `run.machine` holds the final state and `run.output` the open
    questions."""
    loaded = Load()
    if run.thread.saver is not None:
        loaded = yield from load_checkpoint(run)
        yield from load_under_way(loaded)
    if run.deadline is not None:
        run.deadline.check()
    machine = load_machine(run, loaded)
    passed_tick = yield from begin(run, machine, loaded)
    if passed_tick is None:
        return
    flow = run.program.flow
    loop = _loop if flow is None or flow.loop is None else flow.loop
    try:
        yield from loop(run, machine, passed_tick)
    except GeneratorExit:
        raise  # closed by hand: nobody is there to save
    except BaseException:
        # Whatever ends the run, the last finished superstep is kept.
        if run.thread.saver is not None:
            yield from _end(run, finished=False)
        raise
    if run.thread.saver is not None:
        yield from _end(run, finished=run.output.questions is None)


def _end(run: Run, *, finished: bool) -> Effects:
    """Store what was put off, and say that the run is over."""
    # The commit first: it moves the head, and then nobody reads the claim any more.
    if run.settings.durability == "exit":
        yield from _save_at_exit(run, finished=finished)
    yield from end_claim(run)


# -- the loop --------------------------------------------------------------------------------------


def _loop(run: Run, machine: Machine, passed_tick: int) -> Effects:
    """Superstep after superstep, until nothing is left, a question is open, or the limit is met.

    What a run does not use costs one look per superstep here, and no call (benchmarks P1, P2).

    Args:
        passed_tick: the machine's tick up to which breakpoints count as passed.
    """
    settings, output, position = run.settings, run.output, run.position
    streams, before, after = output.streams, settings.interrupt_before, settings.interrupt_after
    shown, kept, watched = bool(streams) or output.live, run.keeps_steps, run.watched
    # One effect for the whole run: the hot path makes nothing that it can use again.
    effect, taken = RunTasks(), 0
    while True:
        # Plan.
        tasks = machine.plan(run, remaining=settings.limit - taken)
        # Also when the plan is empty: readers are owed the last checkpoint.
        if streams:
            show_checkpoint(run, tasks)
        if not tasks:
            if machine.program.flow is not None:
                machine.program.flow.warn_of_unmet(machine.channels)
            return
        # Stop before it starts?
        # A hidden node (START) alone is no superstep that users count.
        taken += len(tasks) > 1 or not tasks[0].node.hidden
        if taken > settings.limit:
            from .failures import limit_reached

            raise limit_reached(run, tasks)
        # Who goes on from a breakpoint gets past it; the next change makes it count again.
        if before and machine.tick > passed_tick and _stops_before(run, tasks):
            return
        if settings.control.drain_reason is not None:
            raise DrainSignal(settings.control.drain_reason)
        if settings.ending.reason is not None and not tasks[0].node.hidden:  # the input comes in
            raise DrainSignal(settings.ending.reason)
        # Run. The records are of the checkpoint that was loaded; later tasks find none there.
        if position.records:
            restore(run, tasks)
        races = effect.races = _find_races(run, tasks) if machine.racing else None
        ended = True
        try:
            if shown or position.records or races or (watched and len(tasks) > 1):
                yield from _run_tasks(run, tasks, effect)
            else:
                effect.tasks = tasks  # nobody looks until all have ended
                yield effect
            if run.deadline is not None:
                run.deadline.check()
            tasks = tasks if races is None else races.leave_out_losers(tasks)
            for task in tasks:  # all() with a generator would call once for each task (P8)
                if not task.finished:
                    tasks, ended = yield from _handle_errors(run, tasks, effect)
                    break
        except GeneratorExit:
            raise
        except BaseException:
            tasks = tasks if races is None else races.leave_out_losers(tasks)
            yield from _end_by_force(run, machine, tasks)
            raise
        # End.
        if not ended:
            yield from _end_unfinished(run, machine, tasks, races)
            return
        if kept:
            yield from _end_superstep(run, machine, tasks)
        else:
            machine.apply(tasks)
        if after and _stops_after(run, machine, tasks):
            return
        if len(tasks) > WIDE:
            yield GiveWay()


def _find_races(run: Run, tasks: Sequence[Task]) -> Races:
    from ..superstep.race import Races

    return Races(tasks, run.position.records)


def _end_by_force(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """Keep what has finished when the reader leaves or the driver fails amid a superstep. If all
    tasks have, the superstep ends: otherwise `get_state` would not show what their writes lead to.
    """
    # Looked at once: Ctrl-C in this loop leaves threads at work, whose tasks may finish meanwhile.
    finished = {task for task in tasks if task.finished}
    # What an abandoned run has done must not move the thread: nobody waits for it any more.
    if len(finished) == len(tasks) and not run.abandoned:
        yield from _end_superstep(run, machine, tasks)
    else:
        yield from _record_unfinished(run, tasks, finished)


def _stops_before(run: Run, tasks: Sequence[Task]) -> bool:
    """Whether a breakpoint stops the run before this superstep starts."""
    if not is_listed(tasks, run.settings.interrupt_before):
        return False
    run.output.stop("interrupt_before", tasks)
    return True


def _stops_after(run: Run, machine: Machine, tasks: Sequence[Task]) -> bool:
    """Whether a breakpoint stops the run after this superstep."""
    if not is_listed(tasks, run.settings.interrupt_after):
        return False
    following: Sequence[Task] = ()
    if run.output.streams or run.settings.observing is not None:
        following = upcoming(run, machine)
        show_checkpoint(run, following)
    run.output.stop("interrupt_after", following)
    return True


def _run_tasks(run: Run, tasks: Sequence[Task], effect: RunTasks) -> Effects:
    """Run what has not been run before, showing and recording each task as it ends."""
    if run.output.streams:
        yield from show_starts(run, tasks)
        show_ends(run, [task for task in tasks if task.restored])
    races = effect.races
    effect.tasks = [
        task for task in tasks if not task.restored and not (races and races.has_lost(task))
    ]
    unseen = set(effect.tasks)
    while unseen:
        try:
            yield effect
        except BaseException:
            # Cut short, perhaps by a failure in the graph around: what has ended is kept, so it is
            # shown now or never.
            show_ends(run, [task for task in effect.tasks if task.finished and task in unseen])
            raise
        unseen.difference_update(effect.finished)
        ended = effect.finished if races is None else races.decide(effect.finished)
        show_ends(run, ended)
        # The writes of the last ones go with the commit, or with what `_end_unfinished` records.
        if effect.open:
            yield from _take_early(run, effect, ended, unseen)
        if not effect.open:
            break
    if races and run.output.streams:
        show_racers(run, races, effect.tasks)


def _take_early(
    run: Run, effect: RunTasks, ended: Sequence[Task], at_work: Collection[Task]
) -> Effects:
    """Record what has finished while others are at work, and stop those that have lost their
    races by it."""
    if run.records_early:
        yield from _record(run, [task for task in ended if task.finished])
    # The win is recorded before the losers are stopped.
    if effect.races and (losers := effect.races.take_losers(at_work)):
        yield Abandon(effect, losers)


def _handle_errors(
    run: Run, tasks: list[Task], effect: RunTasks
) -> Generator[Effect, None, tuple[list[Task], bool]]:
    """Let error handlers take the places of the tasks that failed, in the same superstep.

    Returns:
        The tasks of the superstep now, and whether all of them have finished.
    """
    failed = [task for task in tasks if task.error is not None and not task.fatal]
    if effect.races is not None:
        failed = effect.races.leave_out_open(failed, tasks)
    if not failed:
        return tasks, False
    # Before the handlers run: after a crash the handler goes on and the node is not repeated.
    if run.thread.saver is not None:
        yield from _record_failures(run, [task for task in failed if not task.restored])
    handlers = [handler_of(task) for task in failed]
    if run.position.records:
        restore(run, handlers)
    yield from _run_tasks(run, handlers, effect)
    from .failures import keep_cause

    for handler in handlers:
        keep_cause(handler)
    now = [*(task for task in tasks if task not in failed), *handlers]
    if effect.races is not None:
        now = effect.races.leave_out_losers(now)
    return now, all(task.finished for task in now)


def _record_failures(run: Run, failed: Sequence[Task]) -> Effects:
    """Keep that handlers have taken over from these tasks."""
    commits, saved_id = run.commits, run.position.saved_id
    marks = [commits.encode_failure(task) for task in failed]
    if run.settings.durability == "exit":
        commits.put_off(marks)
    elif marks and saved_id is not None:
        yield Save(None, marks, saved_id)


def _record(run: Run, tasks: Sequence[Task]) -> Effects:
    """Keep what early finishers of a superstep wrote while the others still run."""
    saved_id = run.position.saved_id
    if tasks and saved_id is not None:
        yield Save(None, [run.commits.encode_writes(task) for task in tasks], saved_id)
        for task in tasks:
            task.mark_recorded()


def _end_superstep(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """Pass the barrier: apply all writes, store the step, show the state."""
    commits, output = run.commits, run.output
    if run.thread.saver is None:
        machine.apply(tasks)
    elif run.settings.durability == "exit":
        commits.apply_unstored(machine, tasks)
        if commits.inbox is not None:
            yield from commits.inbox.take(machine, run.output.streams)
    else:
        # Encoded before they are applied: a reducer that works in place must not reach the history.
        writes = []
        for task in tasks:  # until Python 3.12 a comprehension is a call (P4, P5)
            if not task.recorded:
                writes.append(commits.encode_writes(task))
        try:
            machine.apply(tasks)
        except Exception as error:
            yield from _record_refused(run, tasks, error)
            raise
        if commits.inbox is not None:
            build = partial(commits.build, machine, "loop", writes)
            yield from commits.inbox.take_after(machine, output.streams, build)
        held = commits.holds_start and tasks[0].node.hidden
        saved = Save(commits.build(machine, "loop", writes))
        yield saved.hold(for_task=True) if held else saved
    if output.streams or output.keeps_view:
        output.show_values(machine)


def _record_refused(run: Run, tasks: Sequence[Task], error: Exception) -> Effects:
    """Record that no task of the superstep counts as finished, since their writes could not be
    applied together: a resume runs them again instead of failing on the same writes for ever."""
    error.add_note(f"Thread {run.thread.thread_id!r} is as it was before this superstep.")
    recorded, saved_id = [task for task in tasks if task.recorded], run.position.saved_id
    if recorded and saved_id is not None:
        yield Save(
            None, [run.commits.encode_marks(task, {ERROR: error}) for task in recorded], saved_id
        )


# -- when a superstep does not reach its barrier ---------------------------------------------------


def _end_unfinished(
    run: Run, machine: Machine, tasks: Sequence[Task], races: Races | None
) -> Effects:
    """Apply nothing. Record finished siblings, errors and questions; then raise, or pause."""
    # Tasks end in any order. Which error is raised must not depend on it, nor how questions stand.
    tasks = in_path_order(tasks)
    failed = [t for t in tasks if t.error is not None]
    if races is not None:
        failed = [t for t in failed if races.has_failed(t, tasks)]
    yield from _record_unfinished(run, tasks, {t for t in tasks if t.finished})
    if failed:
        from .failures import choose_error

        raise choose_error(failed)
    pause(run, tasks)
    run.output.keep_preview(machine, [pair for t in tasks if t.finished for pair in t.writes])


def _record_unfinished(run: Run, tasks: Sequence[Task], finished: Collection[Task]) -> Effects:
    """Record how far each task of an unfinished superstep has come; of those at work, nothing."""
    if run.thread.saver is None or run.abandoned:
        return
    # With durability "exit" the checkpoint beside which the records stand is not stored yet.
    yield from _save_at_exit(run)
    commits, saved_id = run.commits, run.position.saved_id
    # Their tasks run again, and the graphs inside must find where they had come to.
    for commit in commits.left_by_unfinished():
        yield Save(commit)
    records = list(commits.exit_records)
    for task in tasks:
        if task in finished:
            if not task.recorded:
                records.append(commits.encode_writes(task))
        # What was only restored stands in the store as it is.
        elif not (task.restored and task.paused):
            marks = marks_of_unfinished(task, run.position.record_of(task.id))
            if marks:
                records.append(commits.encode_marks(task, marks))
    # One transaction: between the questions and the end of the claim another call could answer.
    if records and saved_id is not None:
        yield Save(None, [*records, *claim_end(run, tasks)], saved_id)


def _save_at_exit(run: Run, *, finished: bool = False) -> Effects:
    """With durability "exit", store the one checkpoint of this call, and those of the memories
    inside. A nested graph which has finished leaves it to the run around it, where that is
    enough."""
    if run.settings.durability != "exit" or run.abandoned:
        return
    commit = run.commits.build_at_exit(run.machine)
    if commit is None:
        yield from save_kept(run)
        return
    parent = run.parent
    if finished and parent is not None:
        around = run_of(parent).commits
        if run.commits.leave_to(around, parent, commit):
            return
    yield Save(commit, inside=run.take_kept())
    if run.output.streams:
        show_checkpoint(run, upcoming(run, run.machine))
