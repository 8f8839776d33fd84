"""What a call means before its first superstep: new input, an answer, an update, a fork, or simply going on.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ...channels.base import MISSING
from ...checkpoint.base import CONTINUES, NULL_TASK_ID, CheckpointTuple, TaskWrites
from ..errors import EmptyInputError, GraphChangedError, InvalidUpdateError
from ..names import DELIVERED, GRAPH
from ..program.results import refuse_lookalike
from ..program.version import apply_migration
from ..program.writes import Pair
from ..superstep.machine import Machine
from ..superstep.task import new_checkpoint_id
from ..types import Command
from .commits import cut
from .effects import Effect, Effects, Load, Save
from .nested import (
    answers,
    find_way,
    is_time_travel,
    noted_way,
    ns_of,
    outermost,
    rewind_point,
    start_inside,
    starts_from,
    stopped_here,
    take_seed,
)
from .resume import (
    command_writes,
    move_answers,
    note_deliveries,
    open_questions,
    record_command,
    take_answers,
    take_over,
    was_taken,
)
from .run import Rewind, Run, run_of
from .snapshots import Place, Stored, kept_ids, known_only, lost_kinds, lost_triggers, lost_work, read_stored


def load_checkpoint(run: Run) -> Generator[Effect, None, CheckpointTuple | None]:
    """Find what the run starts from, and the newest checkpoint of its namespace."""
    if run.way is not None:
        yield from start_inside(run)
    if run.parent is not None:
        done = run_of(run.parent).inner_commits.pop(run.ns, None)
        if done is not None:  # the task tries again, and finds what this graph has done
            yield Save(done[1])
    if run.parent is not None:
        seed = yield from take_seed(run)
        if seed is not None:
            return seed
    load = starts_from(run)
    yield load
    run.head = load.head
    if load.found is not None and _may_repeat(run, load.found):
        delivered: Any = load.found.metadata.get(DELIVERED, ())
        if run.run_id in delivered:
            run.repeated = True
            return load.found
        again = Load(made_by=run.run_id)
        yield again
        run.repeated = again.found is not None
        return again.found or load.found
    return load.found


def _may_repeat(run: Run, head: CheckpointTuple) -> bool:
    """Whether the call may be one that came before, and that others have followed since."""
    addressed = (run.config.get("configurable") or {}).get("checkpoint_id") is not None
    return run.run_id is not None and run.input is not None and not run.ns and not addressed and not _made(run, head)


def load_machine(run: Run, found: CheckpointTuple | None) -> Machine:
    """The state that the run starts from."""
    if found is None:
        machine = Machine(run.program)
        sign(machine)
        if run.saver is None and run.ns:
            machine.checkpoint_id = run.ns  # the same when the task around it runs again, so ids are the same too
        return machine
    mine = apply_migration(found, run.program.fingerprint, run.migrate)
    if mine is not found:
        run.migrated, found = found.checkpoint, mine
    run.found = found
    step = found.metadata["step"] + 1
    run.stored = read_stored(found.pending_writes or ())
    machine = Machine(run.program, found.checkpoint, step)
    machine.carried_ids = kept_ids(run.stored)
    if ns_of(found.config) == run.ns:
        run.saved_id = found.checkpoint["id"]
    else:  # it goes on in a namespace of its own, where nothing is stored yet
        machine.mark_all_unsaved()
    if run.migrated is not None:
        machine.replace(run.migrated)
    sign(machine)
    return machine


def sign(machine: Machine) -> None:
    """Let the next checkpoint say which graph has cut it, unless the one before has said so."""
    mine = machine.program.fingerprint
    if mine and machine.seen.get(GRAPH) != mine:
        machine.seen[GRAPH] = dict(mine)
        machine.unsaved_seen.add(GRAPH)


def first_phase(run: Run, machine: Machine, found: CheckpointTuple | None) -> Effects:
    """Take the input, or make ready to go on."""
    given = run.input
    if run.repeated:  # what it did is shown again, and nothing is done
        if run.saved_id == run.head:
            run.paused = open_questions(run, machine) or None
        for stream in run.streams:
            stream.values(machine, always=True)
        return
    null = run.stored.get(NULL_TASK_ID)
    if null is not None:
        machine.apply_writes(known_only(null.writes, machine))
    if found is not None:
        find_way(run, machine)
        if not run.ns and (run.saved_id != run.head or is_time_travel(run)):
            run.rewound = run.rewound or Rewind()
            run.rewound.points[""] = rewind_point(run, found)
    if isinstance(given, Command):
        check_unchanged(run, machine)
        yield from _take_command(run, machine, given)
    elif given is None or _is_reconnect(run, found) or _goes_on(run, found):
        if found is None:
            raise EmptyInputError(
                f"nothing to do: the input is None and {_where(run)} has nothing stored to go on with"
            )
        check_unchanged(run, machine)
        if not run.seeded:
            take_over(run, machine)
    else:
        yield from _take_input(run, machine, given)
        return
    if found is None:
        return
    run.passed = machine.tick
    if not run.ns:
        note_deliveries(run)
    if run.saved_id != run.head or run.seeded or is_time_travel(run):
        yield from _replay(run, machine)
    if run.way is not None:
        run.way.step = machine.step
    run.committed = run.committed or run.found
    for stream in run.streams:
        stream.resumed(machine)


def check_unchanged(run: Run, machine: Machine) -> None:
    """Refuse to go on with what another graph has left and this one cannot do.

    Raises:
        GraphChangedError: naming it.
    """
    if run.found is not None:
        lost = [*lost_work(machine, run.found, run.stored), *lost_kinds(machine, run.found)]
        if lost:
            raise GraphChangedError(_where(run), lost)


def _where(run: Run) -> str:
    return f"thread {run.thread_id!r}" if run.saver is not None else "a graph without a checkpointer"


def _is_reconnect(run: Run, found: CheckpointTuple | None) -> bool:
    """The same run id again is the same run again: its input was taken before."""
    return found is not None and not run.ns and run.run_id is not None and _made(run, found)


def _made(run: Run, found: CheckpointTuple) -> bool:
    return found.metadata.get("run_id") == run.run_id


def _goes_on(run: Run, found: CheckpointTuple | None) -> bool:
    """A nested run goes on where it stopped if the task around it runs again from the same checkpoint."""
    return run.parent is not None and (run.seeded or stopped_here(run, found))


def _replay(run: Run, machine: Machine) -> Effects:
    """Do anew what follows a checkpoint, on a branch of its own: nothing is written beside the old one, and what its
    tasks had left counts no more. Answers that are brought along reach the questions they name, in the branch; those
    given before the open questions stay."""
    tasks = machine.plan(coerce=False)
    if not machine.unsaved and not run.seeded and (not tasks or _made_for_this(run)):
        return
    stored, run.stored = run.stored, {}
    then: Any = Place(run.program, machine, ns_of(run.found.config))
    for task in tasks:
        task.run = then
    before = [(stored.get(task.id, Stored()), task.ns) for task in tasks]
    machine.step += 1
    machine.carried_ids = {}
    with noted_way(run):
        yield from save(run, machine, "fork", [])
    whole = outermost(run)
    if answers(whole):
        move_answers(run, whole.answers, before, machine.plan(coerce=False))


def _made_for_this(run: Run) -> bool:
    """Whether the checkpoint is the head, made by an update or a fork to go on from, and nothing was recorded beside it
    but what an update has carried over."""
    if run.saved_id != run.head or run.found.metadata.get("source") not in ("update", "fork"):
        return False
    return not run.stored or (bool(run.found.metadata.get(CONTINUES)) and run.found.revision == 1)


def _take_input(run: Run, machine: Machine, given: Any) -> Effects:
    """Start over: what was pending is dropped, the input becomes a checkpoint of its own."""
    writes = input_writes(run, given)
    if not writes:
        raise EmptyInputError(f"the input holds none of the input channels {run.program.inputs!r}: {given!r}")
    run.stored, run.way = {}, None
    if run.found is not None:
        lost = [name for name in lost_kinds(machine, run.found) if name.startswith("key ")]
        if lost:
            raise GraphChangedError(_where(run), lost)
        machine.forget(lost_triggers(machine, run.found))
    machine.apply_input(writes, machine.plan(coerce=False) if run.found is not None else ())
    yield from save(run, machine, "input", [])
    show_values(run, machine)


def input_writes(run: Run, given: Any) -> list[Pair]:
    """The input as writes to the input channels.

    Raises:
        TypeError: several input channels want a dict and it is none.
    """
    inputs = run.program.inputs
    if isinstance(inputs, str):
        run.check_input(given)
        return [(inputs, given)]
    if not isinstance(given, dict):
        refuse_lookalike(given)
        raise TypeError(f"expected a dict with the input channels {list(inputs)}, got {type(given).__name__}")
    return [(key, value) for key, value in given.items() if key in inputs]


def _take_command(run: Run, machine: Machine, command: Command[Any]) -> Effects:
    """Apply a command's update and goto at once, and keep its answer for the task that asks."""
    if command.graph is not None:
        raise InvalidUpdateError("Command(graph=Command.PARENT) was given as input, but there is no parent graph")
    if command.update is None and not command.steps() and command.resume is MISSING:
        raise EmptyInputError("the Command given as input is empty: it has no update, no goto and no resume")
    if was_taken(run):
        take_over(run, machine)
        return
    if command.resume is not MISSING:
        take_answers(run, machine, command.resume)
    writes = command_writes(run, command)
    if run.found is None:
        machine.apply_input(writes, ())
        yield from save(run, machine, "input", [])
        show_values(run, machine)
        return
    machine.apply_writes(writes)
    if run.saver is not None and run.saved_id is not None and run.saved_id == run.head and not is_time_travel(run):
        yield from record_command(run, writes)


def save(run: Run, machine: Machine, source: str, writes: list[TaskWrites]) -> Effects:
    """Cut a checkpoint, unless all saving waits for the end of the call."""
    run.source = source
    if run.saver is not None:
        machine.checkpoint_id = new_checkpoint_id()
        if run.durability != "exit":
            yield Save(cut(run, source, writes))


def show_values(run: Run, machine: Machine) -> None:
    """Show the state to readers; keep it if the output may be gone by the end of the call."""
    for stream in run.streams:
        stream.values(machine)
    if run.keep_view and not run.output_set.isdisjoint(machine.changed or ()):
        run.last_view = machine.output(run.output_keys)
        run.shown = True
