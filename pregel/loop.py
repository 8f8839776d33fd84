"""ONE generator that owns the order of effects: load, plan, run, keep, apply, save, emit.

It asks for effects and never performs one: no await, no thread, no I/O. A driver fills each effect's answer slots
and resumes it; a driver that fails throws the exception in here, so that what was done is still kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from ..channels.base import MISSING
from ..checkpoint.base import ERROR, INTERRUPT, NULL_TASK_ID, RESUME, CheckpointTuple, Commit, TaskWrites
from .errors import (
    EmptyInputError,
    GraphDrained,
    GraphRecursionError,
    InvalidUpdateError,
    ParentCommand,
    UnknownInterruptError,
)
from .history import Stored, live_snapshot, read_stored
from .interrupts import listed, questions
from .machine import Machine
from .run import Run
from .task import Task, in_path_order
from .types import START, TAG_HIDDEN, Command
from .writes import Pair, StateWriter

# -- effects --------------------------------------------------------------------------------------------------


class Load:
    """Find the checkpoint that the run's config names. Fills `found`, and `head` with the thread's newest id."""

    __slots__ = ("found", "head")

    def __init__(self) -> None:
        self.found: CheckpointTuple | None = None
        self.head: str | None = None


class RunTasks:
    """Run tasks. Asked the first time, the driver starts them; asked again, it waits for more.

    Each time it fills `finished` with the tasks that have ended since, at least one of them unless chunks are
    waiting for the reader, and `open` with how many have not. Outcomes are kept on the tasks.
    """

    __slots__ = ("batch", "finished", "open", "tasks")

    def __init__(self) -> None:
        self.tasks: Sequence[Task] = ()
        self.finished: Sequence[Task] = ()
        self.open = 0
        self.batch: Any = None


class Save:
    """Store a commit, or record writes beside a checkpoint."""

    __slots__ = ("checkpoint_id", "commit", "writes")

    def __init__(self, commit: Commit | None, writes: Sequence[TaskWrites] = (), checkpoint_id: str = "") -> None:
        self.commit = commit
        self.writes = writes
        self.checkpoint_id = checkpoint_id


Effect = Load | RunTasks | Save
Effects = Generator[Effect, None, None]


# -- the run --------------------------------------------------------------------------------------------------


def supersteps(run: Run) -> Effects:
    """All of one call. Afterwards `run.machine` holds the final state and `run.paused` the open questions."""
    found: CheckpointTuple | None = None
    if run.saver is not None:
        load = Load()
        yield load
        found, run.head = load.found, load.head
    machine = run.machine = _machine(run, found)
    yield from _first_phase(run, machine, found)
    try:
        yield from _loop(run, machine)
    except BaseException:
        # Whatever ends the run, the last finished superstep is kept.
        yield from _save_at_exit(run)
        raise
    yield from _save_at_exit(run)


def _machine(run: Run, found: CheckpointTuple | None) -> Machine:
    if found is None:
        return Machine(run.program)
    run.found = found
    run.saved_id = found.checkpoint["id"]
    run.stored = read_stored(found.pending_writes or ())
    return Machine(run.program, found.checkpoint, found.metadata["step"] + 1)


# -- before the first superstep -------------------------------------------------------------------------------


def _first_phase(run: Run, machine: Machine, found: CheckpointTuple | None) -> Effects:
    """Take the input, or make ready to go on."""
    given = run.input
    null = run.stored.get(NULL_TASK_ID)
    if null is not None:
        machine.apply_writes(null.writes)
    if isinstance(given, Command):
        yield from _take_command(run, machine, given)
    elif given is None or _is_reconnect(run, found):
        if found is None:
            raise EmptyInputError(
                f"nothing to do: the input is None and {_where(run)} has nothing stored to go on with"
            )
    else:
        yield from _take_input(run, machine, given)
        return
    if found is None:
        return
    run.passed = machine.tick
    if run.saved_id != run.head or _is_time_travel(run):
        run.stored = {}
    if _is_time_travel(run) and not isinstance(given, Command):
        yield from _save(run, machine, "fork", [])
    for stream in run.streams:
        stream.values(machine, always=True)


def _where(run: Run) -> str:
    return f"thread {run.thread_id!r}" if run.saver is not None else "a graph without a checkpointer"


def _is_reconnect(run: Run, found: CheckpointTuple | None) -> bool:
    """The same run id again is the same run again: its input was taken before."""
    return found is not None and not run.ns and run.run_id is not None and found.metadata.get("run_id") == run.run_id


def _is_time_travel(run: Run) -> bool:
    """The config names a checkpoint and no answer is brought to it: what follows is done anew."""
    addressed = "checkpoint_id" in (run.config.get("configurable") or {})
    return addressed and not run.ns and not _answers(run)


def _answers(run: Run) -> bool:
    return isinstance(run.input, Command) and run.input.resume is not MISSING


def _take_input(run: Run, machine: Machine, given: Any) -> Effects:
    """Start over: what was pending is dropped, the input becomes a checkpoint of its own."""
    writes = input_writes(run, given)
    if not writes:
        raise EmptyInputError(f"the input holds none of the input channels {run.program.inputs!r}: {given!r}")
    run.stored = {}
    machine.apply_input(writes, machine.plan(coerce=False) if run.found is not None else ())
    yield from _save(run, machine, "input", [])
    _show_values(run, machine)


def input_writes(run: Run, given: Any) -> list[Pair]:
    """The input as writes to the input channels.

    Raises:
        TypeError: several input channels want a dict and it is none.
    """
    inputs = run.program.inputs
    if isinstance(inputs, str):
        if run.check_input is not None:
            run.check_input(given)
        return [(inputs, given)]
    if not isinstance(given, dict):
        raise TypeError(f"expected a dict with the input channels {list(inputs)}, got {type(given).__name__}")
    return [(key, value) for key, value in given.items() if key in inputs]


class _CommandTask:
    """Stands in for a task where a command's update and goto are turned into writes."""

    name = START

    def __init__(self) -> None:
        self.writes: list[Pair] = []


def _take_command(run: Run, machine: Machine, command: Command) -> Effects:
    """Apply a command's update and goto at once, and keep its answer for the task that asks."""
    if command.graph is not None:
        raise InvalidUpdateError("Command(graph=Command.PARENT) was given as input, but there is no parent graph")
    if command.update is None and not command.steps() and command.resume is MISSING:
        raise EmptyInputError("the Command given as input is empty: it has no update, no goto and no resume")
    if command.resume is not MISSING:
        _take_answers(run, machine, command.resume)
    target = _CommandTask()
    StateWriter(run.program.words).write(Command(update=command.update, goto=command.goto), target)
    if run.found is None:
        machine.apply_input(target.writes, ())
        yield from _save(run, machine, "input", [])
        _show_values(run, machine)
        return
    if not target.writes:
        return
    machine.apply_writes(target.writes)
    if run.saver is not None and run.saved_id is not None:
        known = run.stored.setdefault(NULL_TASK_ID, Stored())
        known.writes = [*known.writes, *target.writes]
        dumps = run.saver.serde.dumps
        encoded = TaskWrites(NULL_TASK_ID, "", [(name, dumps(value)) for name, value in known.writes])
        yield Save(None, [encoded], run.saved_id)


def _take_answers(run: Run, machine: Machine, answer: Any) -> None:
    """Bind an answer, or a map of answers, to the questions that wait for one.

    Raises:
        UnknownInterruptError: it fits none of them.
    """
    if run.saver is None:
        raise RuntimeError("Command(resume=...) needs a checkpointer: without one no run can be resumed")
    tasks = machine.plan(coerce=False)
    if not tasks:
        raise UnknownInterruptError("not_pending", (), ())
    pending: list[str] = []
    for task in tasks:
        task.run = run
        known = run.stored.get(task.id)
        if known is not None and not known.finished:
            pending.extend(q.id for q in known.interrupts)
    if isinstance(answer, dict) and answer and set(answer) <= set(pending):
        run.answers = dict(answer)
    elif len(pending) > 1:
        raise UnknownInterruptError("ambiguous", (), pending)
    elif pending:
        run.answers = {pending[0]: answer}
    else:
        run.answer = answer


# -- the loop -------------------------------------------------------------------------------------------------


def _loop(run: Run, machine: Machine) -> Effects:
    """Superstep after superstep, until nothing is left, a question is open, or the limit is reached."""
    effect, taken, streams = RunTasks(), 0, run.streams
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
        if (run.before or run.control) and _held_back(run, machine, tasks):
            run.paused = ()
            return
        if run.stored:
            _restore(run, tasks)
        yield from _run_tasks(run, tasks, effect)
        for task in tasks:
            if not task.finished:
                yield from _end_badly(run, machine, tasks)
                return
        yield from _end_superstep(run, machine, tasks)
        if run.after and listed(tasks, run.after):
            for stream in streams:
                stream.breakpoint()
            run.paused = ()
            return


def _show_checkpoint(run: Run, tasks: Sequence[Task]) -> None:
    """The checkpoint just made, now that the tasks that follow it are known."""
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
            stream.breakpoint()
        return True
    if run.control is not None and run.control.drain_requested:
        raise GraphDrained(run.control.drain_reason or "")
    return False


def _restore(run: Run, tasks: Sequence[Task]) -> None:
    """Give tasks that had finished before, in an earlier attempt at this superstep, what they wrote then."""
    for task in tasks:
        known = run.stored.get(task.id)
        if known is not None and known.finished:
            task.writes = known.writes
            task.finished = task.restored = task.recorded = True


def _run_tasks(run: Run, tasks: Sequence[Task], effect: RunTasks) -> Effects:
    """Run what has not been run before, showing and recording each task as it ends."""
    streams, step = run.streams, run.machine.step
    for stream in streams:
        for task in tasks:
            stream.started(task, step)
        for task in tasks:
            if task.restored:
                stream.ended(task, step)
    effect.tasks = [t for t in tasks if not t.restored]
    effect.batch = None
    if not effect.tasks:
        return
    early = run.saver is not None and not run.saver.in_memory and run.durability != "exit"
    while True:
        yield effect
        for stream in streams:
            for task in effect.finished:
                stream.ended(task, step)
                if task.interrupts:
                    stream.question(run.machine, task.interrupts)
        if not effect.open:
            return
        if early:
            yield from _record(run, [t for t in effect.finished if t.finished])


def _record(run: Run, tasks: Sequence[Task]) -> Effects:
    """Keep what early finishers of a superstep wrote while the others still run."""
    if tasks and run.saved_id is not None:
        yield Save(None, [run.encode(t) for t in tasks], run.saved_id)
        for task in tasks:
            task.recorded = True


def _end_superstep(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """The barrier: apply all writes, store the step, show the state."""
    if run.saver is None:
        machine.apply(tasks)
    elif run.durability == "exit":
        machine.apply(tasks)
        run.source = "loop"
    else:
        # Encoded before they are applied: a reducer that works in place must not reach the history.
        writes = [run.encode(t) for t in tasks if not t.recorded]
        try:
            machine.apply(tasks)
        except Exception as error:
            yield from _disown(run, tasks, error)
            raise
        yield Save(run.commit("loop", writes))
    if run.streams or run.keep_view:
        _show_values(run, machine)


def _disown(run: Run, tasks: Sequence[Task], error: Exception) -> Effects:
    """The writes could not be applied together: no task of the superstep counts as finished, so a resume runs them
    again instead of meeting the same writes for ever."""
    known = [t for t in tasks if t.recorded]
    if known and run.saved_id is not None:
        yield Save(None, [run.encode_marks(t, {ERROR: error}) for t in known], run.saved_id)


def _show_values(run: Run, machine: Machine) -> None:
    """Show the state to readers; keep it if the output may be gone by the end of the call."""
    for stream in run.streams:
        stream.values(machine)
    if run.keep_view and not run.output_set.isdisjoint(machine.changed or ()):
        run.last_view = machine.output(run.output_keys)
        run.shown = True


# -- when a superstep does not reach its barrier --------------------------------------------------------------


def _end_badly(run: Run, machine: Machine, tasks: Sequence[Task]) -> Effects:
    """Nothing is applied. Finished siblings are kept, errors and questions recorded; then raise, or pause."""
    tasks = in_path_order(tasks)
    failed = [t for t in tasks if t.error is not None]
    if run.saver is not None:
        yield from _save_at_exit(run)
        yield from _record_ends(run, tasks)
    if failed:
        raise _loudest(failed)
    run.paused = questions(tasks)
    finished = [pair for t in tasks if t.finished for pair in t.writes]
    for stream in run.streams:
        stream.preview(machine, finished)
    run.last_view, run.shown, run.keep_view = machine.output_with(run.output_keys, finished), True, True


def _record_ends(run: Run, tasks: Sequence[Task]) -> Effects:
    records = []
    for task in tasks:
        if task.finished:
            if not task.recorded:
                records.append(run.encode(task))
            continue
        marks: dict[str, Any] = {}
        if isinstance(task.error, Exception):
            marks[ERROR] = task.error
        if task.interrupts:
            marks[INTERRUPT] = list(task.interrupts)
        if task.answers:
            marks[RESUME] = task.answers
        if marks:
            records.append(run.encode_marks(task, marks))
    if records and run.saved_id is not None:
        yield Save(None, records, run.saved_id)


def _loudest(failed: Sequence[Task]) -> BaseException:
    """The error to raise: the first in path order that is a failure, with the others named in its notes."""
    errors = [t for t in failed if isinstance(t.error, Exception)]
    signals = [t for t in failed if not isinstance(t.error, (Exception, ParentCommand, GraphDrained))]
    first, *others = [*(t for t in signals if not _is_cancelled(t)), *errors, *failed]
    assert first.error is not None
    named = {t.path: t for t in others if t in errors and t is not first}
    for task in named.values():
        first.error.add_note(f"Task {task.name!r} of the same superstep failed as well: {task.error!r}")
    return first.error


def _is_cancelled(task: Task) -> bool:
    return type(task.error).__name__ == "CancelledError"


# -- saving ---------------------------------------------------------------------------------------------------


def _save(run: Run, machine: Machine, source: str, writes: list[TaskWrites]) -> Effects:
    """Cut a checkpoint, unless all saving waits for the end of the call."""
    run.source = source
    if run.saver is not None and run.durability != "exit":
        yield Save(run.commit(source, writes))


def _save_at_exit(run: Run) -> Effects:
    """With durability "exit": the one checkpoint of this call, if it changed anything."""
    if run.saver is not None and run.durability == "exit" and (run.machine.unsaved or run.machine.unsaved_seen):
        yield Save(run.commit(run.source, []))
