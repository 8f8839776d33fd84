"""ONE generator that owns the order of effects: load, plan, run, keep, apply, save, emit.

It asks for effects and never performs one: no await, no thread, no I/O. A driver fills each effect's answer slots
and resumes it; a driver that fails throws the exception in here, so that what was done is still kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from ...checkpoint.base import (
    ERROR,
    ERROR_SOURCE,
    CheckpointTuple,
)
from ..errors import GraphDrained, GraphRecursionError, ParentCommand
from ..names import has_task_ids
from ..superstep.interrupts import listed, questions
from ..superstep.machine import Machine
from ..superstep.task import Task, handler_of, in_path_order, new_checkpoint_id
from .commits import cut, encode, encode_marks, marks_of_unfinished
from .effects import Effect, Effects, GiveWay, RunTasks, Save
from .resume import claim_end, end_claim
from .run import Run, run_of
from .snapshots import given_answers, live_snapshot, still_asked, upcoming
from .start import first_phase, load_checkpoint, load_machine, show_values

WIDE = 256
"""After so many tasks at a stretch a driver may give way: each may take the loop some microseconds."""


def supersteps(run: Run) -> Effects:
    """All of one call. Afterwards `run.machine` holds the final state and `run.paused` the open questions."""
    found: CheckpointTuple | None = None
    if run.saver is not None:
        found = yield from load_checkpoint(run)
    if run.deadline is not None:
        run.deadline.check()
    machine = run.machine = load_machine(run, found)
    yield from first_phase(run, machine, found)
    if run.repeated:
        return
    try:
        yield from _loop(run, machine)
    except GeneratorExit:
        raise  # closed by hand: nobody is there to save
    except BaseException:
        # Whatever ends the run, the last finished superstep is kept.
        yield from _save_at_exit(run)
        yield from end_claim(run)
        raise
    yield from _save_at_exit(run, finished=run.paused is None)
    yield from end_claim(run)


# -- the loop -------------------------------------------------------------------------------------------------


def _loop(run: Run, machine: Machine) -> Effects:
    """Superstep after superstep, until nothing is left, a question is open, or the limit is reached."""
    effect, taken, streams = RunTasks(), 0, run.streams
    unsaved = run.saver is None and not streams and not run.keep_view
    seen, watched = bool(streams) or run.live, run.watched
    while True:
        machine.remaining = run.limit - taken
        tasks = machine.plan()
        for task in tasks:
            task.run = run
        if streams:
            _show_checkpoint(run, tasks)
        if not tasks:
            return
        if len(tasks) > 1 or not tasks[0].node.hidden:
            if taken >= run.limit:
                raise _limit_reached(run, tasks)
            taken += 1
        if (run.before or run.control.drain_reason is not None) and _held_back(run, machine, tasks):
            run.paused = ()
            return
        if run.stored:
            _restore(run, tasks)
        try:
            if seen or run.stored or (watched and len(tasks) > 1):
                yield from _run_tasks(run, tasks, effect)
            else:
                effect.tasks = tasks  # nobody looks until all have ended
                yield effect
            if run.deadline is not None:
                run.deadline.check()
            ended = _all_finished(tasks)
            if not ended:
                tasks = yield from _handle_errors(run, tasks, effect)
                ended = _all_finished(tasks)
        except GeneratorExit:
            raise
        except BaseException:
            # The reader left or the driver failed: what had finished by then is not run again. If that is everything,
            # the superstep has ended: left half-way, nothing would be seen to come next, though its writes may lead on.
            if _all_finished(tasks) and not run.abandoned:
                yield from _end_superstep(run, machine, tasks)
            else:
                yield from _keep_ends(run, tasks)
            raise
        if not ended:
            yield from _end_badly(run, machine, tasks)
            return
        if unsaved:
            machine.apply(tasks)
        else:
            yield from _end_superstep(run, machine, tasks)
        if run.after and listed(tasks, run.after):
            if streams:
                following = upcoming(run, machine)
                _show_checkpoint(run, following)
                for stream in streams:
                    stream.breakpoint(following)
            run.paused = ()
            return
        if len(tasks) > WIDE:
            yield GiveWay()


def _all_finished(tasks: Sequence[Task]) -> bool:
    for task in tasks:  # noqa: SIM110  # all() with a generator costs more than the loop it runs in
        if not task.finished:
            return False
    return True


def _show_checkpoint(run: Run, tasks: Sequence[Task]) -> None:
    """The checkpoint just made, or from which the run goes on, now that the tasks that follow it are known."""
    if run.committed is not None and any(s.wants("checkpoints", "debug") for s in run.streams):
        state = live_snapshot(run, tasks)
        for stream in run.streams:
            stream.checkpoint(state)
        run.committed = None


def _limit_reached(run: Run, tasks: Sequence[Task]) -> GraphRecursionError:
    names = ", ".join(sorted({t.name for t in tasks}))
    return GraphRecursionError(
        f"{run.program.name}: recursion limit of {run.limit} supersteps reached with work left: {names}. "
        'Raise it with config={"recursion_limit": ...}, or invoke(None) on the thread to go on '
        "(GRAPH_RECURSION_LIMIT)"
    )


def _held_back(run: Run, machine: Machine, tasks: Sequence[Task]) -> bool:
    """Whether a breakpoint stops this superstep before it starts; or a drain, which raises."""
    if run.before and machine.tick > run.passed and listed(tasks, run.before):
        for stream in run.streams:
            stream.breakpoint(tasks)
        return True
    if run.control.drain_requested:
        raise GraphDrained(run.control.drain_reason or "")
    return False


def _restore(run: Run, tasks: Sequence[Task]) -> None:
    """Give tasks that had finished before, in an earlier attempt at this superstep, what they wrote then."""
    given = given_answers(run.stored)
    for task in tasks:
        known = run.stored.get(task.id)
        if known is None:
            continue
        if known.finished:
            task.writes = known.writes
            task.finished = task.restored = task.recorded = True
        elif known.error is not None:
            if known.routed and task.node.handler is not None and isinstance(known.error, Exception):
                task.error, task.restored = known.error, True  # its handler had taken over
        else:
            task.interrupts = still_asked(run, known, given)
            task.paused = task.restored = bool(task.interrupts)


def _run_tasks(run: Run, tasks: Sequence[Task], effect: RunTasks) -> Effects:
    """Run what has not been run before, showing and recording each task as it ends."""
    streams, step = run.streams, run.machine.step
    for stream in streams:
        for number, task in enumerate(tasks, 1):
            stream.started(task, step)
            if number % WIDE == 0:
                yield GiveWay()
        for task in tasks:
            if task.restored:
                stream.ended(task, step)
                if task.interrupts:
                    stream.question(run.machine, task.interrupts)
    effect.tasks = [t for t in tasks if not t.restored]
    effect.batch = None
    if not effect.tasks:
        return
    early = run.records_early
    unseen = set(effect.tasks) if streams else set()
    while True:
        try:
            yield effect
        except BaseException:
            # Cut short, perhaps by a failure in the graph around: what has ended is kept, so it is shown now or never.
            for stream in streams:
                for task in effect.tasks:
                    if task.finished and task in unseen:
                        stream.ended(task, step)
            raise
        unseen.difference_update(effect.finished)
        for stream in streams:
            for task in effect.finished:
                stream.ended(task, step)
                if task.interrupts:
                    stream.question(run.machine, task.interrupts)
        if not effect.open:
            return
        if early:
            yield from _record(run, [t for t in effect.finished if t.finished])


def _handle_errors(run: Run, tasks: Sequence[Task], effect: RunTasks) -> Generator[Effect, None, list[Task]]:
    """Let error handlers take the places of the tasks that failed, in the same superstep; returns its tasks."""
    failed = [t for t in tasks if t.error is not None and not t.fatal]
    if not failed:
        return list(tasks)
    if run.saver is not None:
        marks = [encode_marks(run, t, {ERROR: t.error, ERROR_SOURCE: t.name}) for t in failed if not t.restored]
        if run.durability == "exit":
            run.late += marks
        elif marks and run.saved_id is not None:
            yield Save(None, marks, run.saved_id)
    handlers = [handler_of(task) for task in failed]
    if run.stored:
        _restore(run, handlers)
    yield from _run_tasks(run, handlers, effect)
    for handler in handlers:
        if handler.error is not None and handler.cause is not None and handler.error is not handler.cause.error:
            handler.error.__cause__ = handler.error.__cause__ or handler.cause.error
    return [*(t for t in tasks if t not in failed), *handlers]


def _record(run: Run, tasks: Sequence[Task]) -> Effects:
    """Keep what early finishers of a superstep wrote while the others still run."""
    if tasks and run.saved_id is not None:
        yield Save(None, [encode(run, t) for t in tasks], run.saved_id)
        for task in tasks:
            task.recorded = True


def _end_superstep(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """The barrier: apply all writes, store the step, show the state."""
    run.inner_commits.clear()  # the tasks that ran those graphs are done
    if run.saver is None:
        machine.apply(tasks)
    elif run.durability == "exit":
        run.torn = True  # until all of it is done: Ctrl-C may come in between
        try:
            machine.apply(tasks)
        except Exception:
            run.torn = False  # nothing has happened
            raise
        machine.checkpoint_id = new_checkpoint_id()
        run.source = "loop"
        run.late.clear()
        run.torn = False
    else:
        # Encoded before they are applied: a reducer that works in place must not reach the history.
        writes = [encode(run, t) for t in tasks if not t.recorded]
        try:
            machine.apply(tasks)
        except Exception as error:
            yield from _disown(run, tasks, error)
            raise
        machine.checkpoint_id = new_checkpoint_id()
        yield Save(cut(run, "loop", writes))
    if run.streams or run.keep_view:
        show_values(run, machine)


def _disown(run: Run, tasks: Sequence[Task], error: Exception) -> Effects:
    """The writes could not be applied together: no task of the superstep counts as finished, so a resume runs them
    again instead of meeting the same writes for ever."""
    error.add_note(f"Thread {run.thread_id!r} is as it was before this superstep.")
    known = [t for t in tasks if t.recorded]
    if known and run.saved_id is not None:
        yield Save(None, [encode_marks(run, t, {ERROR: error}) for t in known], run.saved_id)


# -- when a superstep does not reach its barrier --------------------------------------------------------------


def _end_badly(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """Nothing is applied. Finished siblings are kept, errors and questions recorded; then raise, or pause."""
    tasks = in_path_order(tasks)
    failed = [t for t in tasks if t.error is not None]
    yield from _keep_ends(run, tasks)
    if failed:
        raise _loudest(failed)
    rejected = next((task.rejected for task in tasks if task.rejected is not None), None)
    if rejected is not None:
        if run.parent is None:
            raise rejected
        run.parent.rejected_inside = rejected  # told at the end of the outermost run, when all is recorded
    run.paused, run.only_asked = questions(tasks), not any(task.raised for task in tasks)
    finished = [pair for t in tasks if t.finished for pair in t.writes]
    for stream in run.streams:
        stream.preview(machine, finished)
    run.last_view, run.shown, run.keep_view = machine.output_with(run.output_keys, finished), True, True


def _keep_ends(run: Run, tasks: Sequence[Task]) -> Effects:
    """Record how far each task of an unfinished superstep has come."""
    if run.saver is None or run.abandoned:
        return
    yield from _save_at_exit(run)
    for task, commit in [*run.inner_commits.values()]:
        if not task.finished:
            yield Save(commit)
    records = list(run.late)
    for task in tasks:
        if task.finished:
            if not task.recorded:
                records.append(encode(run, task))
            continue
        if task.restored and task.paused:
            continue
        marks = marks_of_unfinished(run, task)
        if marks:
            records.append(encode_marks(run, task, marks))
    if records and run.saved_id is not None:
        yield Save(None, [*records, *claim_end(run, tasks)], run.saved_id)


def _loudest(failed: Sequence[Task]) -> BaseException:
    """The error to raise: the first in path order that is a failure, with the others named in its notes."""
    errors = [t for t in failed if isinstance(t.error, Exception)]
    signals = [t for t in failed if not isinstance(t.error, (Exception, ParentCommand, GraphDrained))]
    first, *others = [*(t for t in signals if not _is_cancelled(t)), *errors, *failed]
    assert first.error is not None
    named = {t.path: t for t in others if t in errors and t is not first}
    for task in named.values():
        first.error.add_note(f"Task {task.name!r} of the same superstep failed as well: {_shown(task.error)}")
    return first.error


def _shown(error: BaseException | None) -> str:
    try:
        return repr(error)
    except Exception:  # no mistake of an error's own may hide another
        return type(error).__name__


def _is_cancelled(task: Task) -> bool:
    return type(task.error).__name__ in ("CancelledError", "GraphAbandoned")


def _save_at_exit(run: Run, *, finished: bool = False) -> Effects:
    """With durability "exit": the one checkpoint of this call, if it changed anything. That of a nested graph which has
    finished is left to the run around it."""
    machine = run.machine
    if run.saver is None or run.durability != "exit" or run.abandoned or run.torn:
        return
    if machine.unsaved or machine.unsaved_seen or run.source == "fork":
        source, run.source = run.source, "loop"
        commit = cut(run, source, [])
        if finished and run.parent is not None and _lasts_with_its_task(run, run_of(run.parent)):
            run_of(run.parent).inner_commits[run.ns] = run.parent, commit
            return
        yield Save(commit)
        if run.streams:
            _show_checkpoint(run, upcoming(run, machine))


def _lasts_with_its_task(run: Run, around: Run) -> bool:
    """Whether a nested graph that has finished needs its checkpoint only until the task that ran it is done: the run
    around it stores in the same place at its own end, and no later task goes on from there, as from a history."""
    return around.saver is run.saver and around.durability == "exit" and has_task_ids(run.ns)
