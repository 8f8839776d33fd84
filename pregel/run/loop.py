"""ONE generator that owns the order of effects: load, plan, run, keep, apply, save, emit.

It asks for effects and never performs one: no await, no thread, no I/O. A driver fills each
effect's answer slots and resumes it; if it fails, it throws the exception in here, to keep work.

Theory of operation: two rules tell the schedules apart. What may start: in supersteps all that is
due, when the superstep before has ended (`_plan_round`); with schedule="ready" each task when its
own inputs are there (`_start_ready`). And whether what has ended may be folded in: a superstep
waits at its barrier until all of its tasks have finished (`_end_round`); with "ready" what ended
together is a step, and the others stay open (`_fold_ready`).

Only these two move the state, as the last thing. So wherever a run ends before that, the state is
the one of the last commit, and what tasks have done stands beside it as records: `_end` stores what
a call leaves open, `_end_by_force` what one that is cut short does. Both store first, since a later
call goes on from what is stored and nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from ..errors import ConcurrentUpdateError, DrainSignal
from ..schedule.machine import Machine
from ..schedule.states import end_of
from ..task.interrupts import is_listed
from ..task.outcome import end_with_error
from ..task.task import Task, handler_of, in_path_order
from .effects import WIDE, Effect, Effects, GiveWay, Load, Stop
from .load import load_checkpoint, load_machine
from .nested import load_under_way
from .output import Breakpoint
from .progress import LoopProgress, choose_error, limit_reached
from .recording import show_checkpoint
from .resume import pause, restore, upcoming
from .run import Run
from .start import begin
from .stream import identify_messages

if TYPE_CHECKING:
    from .inbox import Inbox


def carry_out(run: Run) -> Effects:
    """Carry out one call. Afterwards `run.machine` holds the final state and `run.output` the open
    questions."""
    loaded = Load()
    if run.thread.saver is not None:
        loaded = yield from load_checkpoint(run)
        yield from load_under_way(loaded)
    if run.deadline is not None:
        run.deadline.check()
    load_machine(run, loaded)
    passed_tick = yield from begin(run, loaded)
    if passed_tick is None:
        return
    progress = LoopProgress(run, passed_tick)
    steps, flow = _take_steps(progress), run.program.flow
    if flow is not None and flow.relay is not None:
        steps = flow.relay(run, steps)
    try:
        try:
            yield from steps
        except GeneratorExit:
            raise  # generator closed: no driver is left to perform a `Save`
        except BaseException:
            # Also while a step is stored: others may be at work meanwhile, and have finished.
            yield from _end_by_force(progress)
            raise
        yield from _end(progress)
    except GeneratorExit:
        raise
    except BaseException:
        # Whatever ends the run, the last finished superstep is kept.
        if run.thread.saver is not None:
            yield from progress.recording.finish(finished=False)
        raise
    if run.thread.saver is not None:
        yield from progress.recording.finish(finished=run.output.questions is None)


# -- the loop --------------------------------------------------------------------------------------


def _take_steps(progress: LoopProgress) -> Effects:
    """Step after step, until nothing is left, a question is open, or the limit is met.

    What a run does not use costs one look per superstep here, and no call (benchmarks P1, P2).
    """
    run, machine = progress.run, progress.machine
    effect, output = progress.effect, run.output
    rounds = machine.open is None
    choose = _plan_round if rounds else _start_ready
    bare = not (run.keeps_steps or run.settings.interrupt_after)
    # Where several run, somebody may look before all have ended.
    watched, straight = run.watched or output.live, rounds and not run.ledger
    shown = bool(output.streams)
    if not rounds and run.settings.one_at_a_time:
        progress.serial_queue = []
    starting = [] if rounds else (yield from _resume_open(progress))
    moved = True  # nothing has started in this state yet
    while True:
        if moved:
            chosen = choose(progress)
            if straight and chosen and (len(chosen) == 1 or not watched) and not machine.racing:
                progress.straight = effect.tasks = chosen
                if shown:
                    yield from show_starts(run, chosen)
                yield effect
                effect.tasks = ()
                if run.deadline is not None:
                    run.deadline.check()
                for task in chosen:  # all() with a generator would call once for each task (P8)
                    if not task.finished:
                        progress.enter(chosen)
                        moved = yield from _take(progress, chosen)
                        break
                else:
                    if bare:
                        progress.straight = ()
                        machine.apply(chosen)
                        if len(chosen) > WIDE:
                            yield GiveWay()
                        continue
                    if shown:
                        # Looking may raise: that the tasks have finished is known by then.
                        progress.enter(chosen)
                        progress.move(chosen, "finishes")
                        show_ends(run, chosen)
                    yield from _fold(progress, chosen)
                    if output.breakpoint:
                        return
                continue
            starting += chosen
        ended = (yield from _start(progress, starting)) if starting else []
        starting = []
        if not ended:
            if progress.serial_queue is not None and not effect.open:
                effect.tasks = progress.take_next()
            if effect.tasks or effect.open:
                yield effect
                effect.tasks = ()
                if run.deadline is not None:
                    run.deadline.check()
                ended = [*effect.finished]
            else:
                return  # after a failure, tasks that have not begun do not begin
        moved = yield from _take(progress, ended)
        if output.breakpoint:
            return


def _plan_round(progress: LoopProgress) -> list[Task]:
    """Return the tasks of the next superstep, all that is due; none if it must not start."""
    run, machine = progress.run, progress.machine
    settings, output = run.settings, run.output
    tasks = machine.plan(run, remaining=settings.limit - progress.taken)
    # Also when the plan is empty: always emit the final checkpoint.
    if output.streams:
        show_checkpoint(run, tasks)
    if not tasks:
        return tasks
    hidden = tasks[0].node.hidden
    # A hidden node (START) alone is no superstep that users count.
    progress.taken += len(tasks) > 1 or not hidden
    drained = settings.control.drain_reason
    if drained is None and not hidden:  # the input comes in
        drained = settings.ending.reason
    if progress.taken > settings.limit:
        progress.start_error = limit_reached(run, tasks)
    # A run that continues from a breakpoint gets past it; the next change makes it count again.
    elif (
        settings.interrupt_before
        and machine.tick > progress.passed_tick
        and is_listed(tasks, settings.interrupt_before)
    ):
        output.stop("interrupt_before", tasks)
    elif drained is not None:
        progress.start_error = DrainSignal(drained)
    else:
        return tasks
    return []


def _start(progress: LoopProgress, tasks: Sequence[Task]) -> Generator[Effect, None, list[Task]]:
    """Let tasks start, but for those whose end is known.

    Returns:
        Those that have finished before.
    """
    run, machine = progress.run, progress.machine
    rounds, known, routed = machine.open is None, [], []
    if rounds and machine.racing and run.ledger and not tasks[0].cause:
        from ..schedule.races import find_lost

        lost = find_lost(tasks, run.ledger)
        tasks = [task for task in tasks if task not in lost]
    if run.ledger:
        restore(run, tasks)
        routed = [task for task in tasks if task.restored and task.is_handled]
        if routed:  # their error handlers had taken over
            handlers = [handler_of(task) for task in routed]
            restore(run, handlers)
            tasks = [*(task for task in tasks if task not in routed), *handlers]
        if not rounds:
            _restore_refused(run, tasks)
        known = [task for task in tasks if task.restored]
    progress.enter(tasks)
    new, finished, left = tasks, known, known
    if known:
        new = [task for task in tasks if not task.restored]
        finished = [task for task in known if task.finished]
        left = [task for task in known if not task.finished]
    if run.output.streams:
        yield from show_starts(run, [*routed, *tasks] if rounds else new)
        if routed or known:
            show_ends(run, [*routed, *(known if rounds else left)])
    progress.enqueue(new)
    progress.note_ends(left)
    return finished


# -- what has ended --------------------------------------------------------------------------------


def _take(progress: LoopProgress, tasks: Sequence[Task]) -> Generator[Effect, None, bool]:
    """Find what becomes of tasks that have ended, and fold in what may be.

    Returns:
        Whether there is a new state.
    """
    effect = progress.effect
    take = _take_ended if effect.races is None else _take_raced
    moved = yield from take(progress, tasks)
    if progress.machine.open is None and not effect.open and not effect.tasks:
        moved = yield from _end_round(progress)
    return moved


def _take_ended(progress: LoopProgress, tasks: Sequence[Task]) -> Generator[Effect, None, bool]:
    """`_take` without a look at races, or at the barrier.

    Returns:
        Whether there is a new state.
    """
    finished, failed = _sort_ends(progress, tasks)
    if progress.machine.open is not None:
        return (yield from _fold_ready(progress, tasks, finished, failed))
    show_ends(progress.run, [task for task in tasks if not task.recorded])
    # The writes of the last ones go with the commit, or with what `_end` records.
    if progress.effect.open or failed:
        yield from progress.recording.record_early([t for t in finished if not t.recorded])
    return bool(failed) and (yield from _hand_over(progress, failed))


def _sort_ends(progress: LoopProgress, tasks: Sequence[Task]) -> tuple[list[Task], list[Task]]:
    """Find what becomes of tasks that have ended, and note it, but of those whose error handlers
    take over.

    Returns:
        Those that have finished, and those whose error handlers take over.
    """
    machine = progress.machine
    finished: list[Task] = []
    failed: list[Task] = []
    written: dict[str, str] = {}
    for task in in_path_order(tasks) if len(tasks) > 1 else tasks:
        conflict = None
        if task.finished and machine.open is not None:
            from ..schedule.rules import find_conflict

            conflict = find_conflict(machine, task, written)
            if conflict is not None:
                end_with_error(task, conflict)
            else:
                written.update((name, task.name) for name, _ in task.writes)
        if task.finished:
            finished.append(task)
        elif conflict is None and task.is_handled:
            failed.append(task)
        else:
            progress.note_ends((task,))
    progress.move(finished, "finishes")
    return finished, failed


def _take_raced(progress: LoopProgress, tasks: Sequence[Task]) -> Generator[Effect, None, bool]:
    """`_take_ended` where there are races.

    Returns:
        Whether there is a new state.
    """
    from ..schedule.races import find_winners

    races, states, moved = progress.effect.races, progress.states, False
    assert races is not None
    # Tasks that the loop does not know any more have already lost.
    rest: Sequence[Task] = [task for task in tasks if task in states and end_of(task)]
    not_begun = [task for task in tasks if task in states and not end_of(task)]
    while rest:
        chosen, behind, aside = races.choose(rest)
        progress.move(aside, "stands aside")
        if chosen:
            moved = (yield from _take_ended(progress, chosen)) or moved
        winners = find_winners(chosen)
        if winners:
            yield from _stop(progress, progress.find_losers(winners))
        rest = [task for task in behind if task in states]
    # They gave way to one that has finished. It has won, or could not be applied.
    progress.enqueue([task for task in not_begun if task in states])
    over = races.take_over(states)
    show_ends(progress.run, over)
    handled = [task for task in over if task.is_handled]
    progress.note_ends(task for task in over if not task.is_handled)
    if handled:
        moved = (yield from _hand_over(progress, handled)) or moved
    return moved


def _stop(progress: LoopProgress, losers: Sequence[Task]) -> Effects:
    """Stop those that have lost their races, once that is stored."""
    at_work = progress.drop(losers)
    for stream in progress.run.output.streams:
        for task in losers:
            stream.lost(task)
    if at_work:
        yield Stop(progress.effect, at_work)


def _hand_over(
    progress: LoopProgress, failed: Sequence[Task]
) -> Generator[Effect, None, bool]:
    """Let error handlers take the places of tasks that have failed, beside what is at work.

    Returns:
        Whether there is a new state: some had finished in an earlier call.
    """
    yield from progress.recording.record_failures(failed)
    handlers = [handler_of(task) for task in failed]
    progress.replace(failed, handlers)
    finished = yield from _start(progress, handlers)
    return bool(finished) and (yield from _take_ended(progress, finished))


# -- supersteps: the barrier -----------------------------------------------------------------------


def _end_round(progress: LoopProgress) -> Generator[Effect, None, bool]:
    """No task of the superstep is at work: pass the barrier if all have finished.

    Returns:
        Whether there is a new state.
    """
    tasks = progress.list_in("finished")
    if not tasks or len(tasks) < len(progress.states):
        return False
    yield from _fold(progress, tasks)
    return True


def _fold(
    progress: LoopProgress,
    tasks: Sequence[Task],
    unseen: Sequence[Task] = (),
) -> Generator[Effect, None, Exception | None]:
    """Apply what these tasks wrote, as the end of a step; store it, and show the state.

    Args:
        unseen: the tasks whose ends readers have not seen yet.

    Returns:
        With schedule="ready", why it cannot be applied. Nothing has changed then.

    Raises:
        Exception: why a superstep cannot be applied.
    """
    run, machine = progress.run, progress.machine
    recording, commits, output = progress.recording, run.commits, run.output
    rounds, inbox, writes = machine.open is None, commits.inbox, []
    if rounds:
        progress.straight = ()
        if progress.states:
            progress.move(tasks, "is folded in")
        progress.effect.races = None
    refused = False
    try:
        # Encoded before it is applied: a reducer that works in place must not reach the history.
        for task in tasks if recording.stores_steps else ():  # a comprehension is a call (P4, P5)
            if not task.recorded:
                writes.append(commits.encode_writes(task))
        recording.half_done = refused = True
        if recording.exits:
            commits.apply_unstored(machine, tasks)
        else:
            machine.apply(tasks)
    except Exception as error:
        recording.half_done = False
        if not rounds:
            return error
        if refused:
            yield from recording.record_refused(tasks, error)
        raise
    if not rounds:
        progress.move(tasks, "is folded in")
    cut = (yield from _take_posts(progress.machine, inbox)) if inbox is not None else None
    saved = recording.end_step(tasks, writes)
    if saved is not None:
        try:
            yield saved
        except BaseException:
            recording.note_unsaved(saved)
            raise
    recording.half_done = False
    if cut is not None:
        raise cut
    if unseen:
        show_ends(run, unseen)
    if inbox is not None:
        inbox.show(output.streams)
    if output.streams or output.keeps_view:
        output.show_values(machine)
    if run.settings.interrupt_after:
        _note_breakpoints(progress, tasks)
    if len(tasks) > WIDE:
        yield GiveWay()
    return None


def _take_posts(
    machine: Machine, inbox: Inbox
) -> Generator[Effect, None, BaseException | None]:
    """Fold what was posted into the state behind a step, if something runs there.

    Returns:
        What has cut it short; None for nothing. The step has ended all the same, so it is stored,
        and the posts wait on.
    """
    if machine.has_more():
        try:
            inbox.fold(machine, (yield from inbox.read()))
        except GeneratorExit:
            raise
        except BaseException as error:
            return error
    return None


def _note_breakpoints(progress: LoopProgress, tasks: Sequence[Task]) -> None:
    """Stop behind tasks that have a breakpoint there: the whole call in supersteps, with
    schedule="ready" what they lead to."""
    run, machine = progress.run, progress.machine
    if machine.open is not None:
        progress.note_breakpoints(tasks)
    elif is_listed(tasks, run.settings.interrupt_after):
        following: Sequence[Task] = ()
        if run.output.streams or run.observing is not None:
            following = upcoming(run)
            show_checkpoint(run, following)
        run.output.stop("interrupt_after", following)


# -- schedule="ready" ------------------------------------------------------------------------------


def _resume_open(progress: LoopProgress) -> Generator[Effect, None, list[Task]]:
    """Go on where the thread stands. Returns the tasks that are open there."""
    run, machine = progress.run, progress.machine
    tasks = list(machine.open or ())
    yield from progress.recording.begin()
    if run.position.found is not None:
        record_of = run.ledger.of
        machine.find_begun(
            run, lambda id: record_of(id).begun, lambda id: record_of(id).kept is not None
        )
    if run.settings.interrupt_before:
        from ..schedule.rules import always, choose

        progress.not_reached = choose(machine, always).held
    return tasks


def _start_ready(progress: LoopProgress) -> list[Task]:
    """Return the tasks that start in a new state. If they cannot, what runs ends and is applied."""
    run, machine = progress.run, progress.machine
    starting: list[Task] = []
    may_start = progress.decide_starts()
    try:
        starting = machine.start(run.pin_to, run.settings.limit, may_start)
    except Exception as error:
        progress.start_error = error
    assert machine.open is not None
    if machine.open.over_limit and progress.start_error is None:
        progress.start_error = limit_reached(run, upcoming(run))
    # Also if nothing starts: always emit the final checkpoint.
    show_checkpoint(run)
    return starting


def _restore_refused(run: Run, tasks: Sequence[Task]) -> None:
    """Give tasks their error back whose writes were refused and would be refused again, so that
    nothing that they do is repeated for that."""
    from ..schedule.rules import refuses_again

    for task in tasks:
        error = run.ledger.of(task.id).error
        if isinstance(error, ConcurrentUpdateError) and refuses_again(run.machine, task, error):
            task.restore_end(error)


def _fold_ready(
    progress: LoopProgress,
    tasks: Sequence[Task],
    finished: list[Task],
    failed: Sequence[Task],
) -> Generator[Effect, None, bool]:
    """Apply what finished together as one step. If that is refused, apply it one by one.

    Args:
        tasks: all that have ended.
        finished, failed: of these; see `_sort_ends`.

    Returns:
        Whether there is a new state.
    """
    run = progress.run
    apart: Sequence[Task] = ()
    identify_messages(run.output.streams, finished, progress.machine.channels)
    error = (yield from _fold(progress, finished, tasks)) if finished else None
    if error is not None:
        # One bad write must not undo the others.
        if len(finished) > 1:
            apart = finished
            progress.move(apart, "waits its turn")
        else:
            for task in finished:
                task.fail(error)
            progress.note_ends(finished)
        finished = []
    if not finished:
        show_ends(run, [task for task in tasks if task not in apart])
    moved = bool(finished)
    if failed:
        moved = (yield from _hand_over(progress, failed)) or moved
    for task in apart:
        moved = (yield from _take_ended(progress, [task])) or moved
    return moved


# -- the end of a call -----------------------------------------------------------------------------


def _end(progress: LoopProgress) -> Effects:
    """End a call in which nothing can run: record how far tasks have come; then raise, or pause."""
    run, machine = progress.run, progress.machine
    open_tasks, drained = machine.open, None
    # Those that are at work have not begun, and do not begin after a failure.
    tasks: Sequence[Task] = [task for task, s in progress.states.items() if s != "at work"]
    if tasks or open_tasks is not None:
        # Tasks end in any order. Which error is raised must not depend on it, nor how questions
        # stand.
        tasks = in_path_order(tasks)
        # Before it is recorded: with durability="exit" all that is open waits to start then.
        drained = progress.drained if progress.is_cut_short() else None
        yield from progress.recording.record(tasks)
    if tasks:
        failed = [task for task in tasks if task.error is not None]
        if progress.effect.races is not None:
            show_ends(run, progress.list_in("aside"))
            failed = [task for task in failed if progress.effect.races.has_failed(task)]
        if failed:
            raise choose_error(failed)
    if progress.start_error is not None:
        raise progress.start_error
    if drained is not None:
        raise DrainSignal(drained)
    if tasks:
        pause(run, tasks)
        if open_tasks is None:
            finished = [pair for task in tasks if task.finished for pair in task.writes]
            run.output.keep_preview(machine, finished)
    elif open_tasks is not None and (machine.held or open_tasks.waiting_sends):  # at a breakpoint
        kind: Breakpoint = "interrupt_after" if progress.held_back else "interrupt_before"
        run.output.stop(kind, upcoming(run))
    elif run.program.flow is not None and not run.output.breakpoint:
        run.program.flow.warn_of_unmet(machine.channels)


def _end_by_force(progress: LoopProgress) -> Effects:
    """Keep what has finished when the reader leaves or the driver fails. A superstep ends if all of
    its tasks have: otherwise `get_state` would not show what their writes lead to."""
    recording = progress.recording
    # What an abandoned run has done must not move the thread: nobody waits for it any more.
    if progress.run.abandoned or recording.half_done:
        return
    progress.effect.open, progress.effect.tasks = 0, ()
    if progress.straight:
        progress.enter(progress.straight)
    # Nor may what has lost its race by a step that is applied.
    progress.drop([each for task in progress.states if (each := task.cause or task).lost])
    if progress.effect.races is not None:  # by what is recorded already
        progress.drop(progress.find_losers(progress.list_in("finished", "left")))
    # Looked at once: Ctrl-C in this loop leaves threads at work, whose tasks may finish meanwhile.
    finished = [task for task in progress.list_in("at work") if task.finished]
    moved = yield from _take(progress, finished)
    if progress.machine.open is not None or not moved:
        yield from recording.record(in_path_order([*progress.states]))


# -- what readers see ------------------------------------------------------------------------------


def show_starts(run: Run, tasks: Sequence[Task]) -> Effects:
    """Tell the readers which tasks are about to run."""
    for stream in run.output.streams:
        for number, task in enumerate(tasks, 1):
            stream.started(task)
            if number % WIDE == 0:
                yield GiveWay()


def show_ends(run: Run, tasks: Sequence[Task]) -> None:
    """Tell the readers how tasks have ended, and what they ask."""
    machine, streams = run.machine, run.output.streams
    identify_messages(streams, tasks, machine.channels)
    for stream in streams:
        for task in tasks:
            stream.ended(task)
            if task.paused and (task.interrupts or task.wake_at is not None):
                stream.question(machine, task)
