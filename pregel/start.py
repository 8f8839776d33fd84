"""What a call means before its first superstep: new input, an answer, an update, a fork, or simply going on.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..channels.base import MISSING
from ..checkpoint.base import CONTINUES, NULL_TASK_ID, CheckpointTuple, TaskWrites
from .effects import Effect, Effects, Load, Save
from .errors import EmptyInputError, GraphChangedError, InvalidUpdateError
from .fingerprint import GRAPH, migrated
from .history import Stored, kept_ids, known_only, lost_kinds, lost_triggers, lost_work, read_stored
from .keep import cut
from .machine import Machine
from .records import refuse_foreign
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
from .run import DELIVERED, Run
from .task import new_checkpoint_id
from .types import Command, RunnableConfig
from .writes import Pair


def load_checkpoint(run: Run) -> Generator[Effect, None, CheckpointTuple | None]:
    """Find what the run starts from, and the newest checkpoint of its namespace."""
    if run.inside is not None:
        if run.input is not None and not isinstance(run.input, Command):
            raise ValueError(
                f"{run.inside['configurable']['checkpoint_id']!r} is a checkpoint of a nested graph and takes no new "
                "input: go on from it with None or a Command, or give the input to a checkpoint of the whole graph"
            )
        inside = Load(at=run.inside)
        yield inside
        assert inside.found is not None  # the driver has refused an unknown one
        run.start_inside(inside.found)
    if run.parent is not None:
        done = run.parent.run.inner_commits.pop(run.ns, None)
        if done is not None:  # the task tries again, and finds what this graph has done
            yield Save(done[1])
    seed = run.take_seed()
    load = Load(run.starts_before() if seed is None else None, seed)
    yield load
    run.head = load.head
    if seed is not None and seed["configurable"]["checkpoint_ns"] != run.ns:
        run.head, run.seeded = None, True
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
    mine = migrated(found, run.program.fingerprint, run.migrate)
    if mine is not found:
        run.migrated, found = found.checkpoint, mine
    run.found = found
    step = found.metadata["step"] + 1
    if run.seeded:  # it goes on in a namespace of its own, where nothing is stored yet
        machine = Machine(run.program, found.checkpoint, step + 1)
        machine.mark_all_unsaved()
        sign(machine)
        return machine
    run.saved_id = found.checkpoint["id"]
    run.stored = read_stored(found.pending_writes or ())
    machine = Machine(run.program, found.checkpoint, step)
    machine.kept = kept_ids(run.stored)
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
    if found is not None and (run.saved_id != run.head or _is_time_travel(run)) and not run.ns:
        run.rewound = (_rewind_point(run), set())
    null = run.stored.get(NULL_TASK_ID)
    if null is not None:
        machine.apply_writes(known_only(null.writes, machine))
    if isinstance(given, Command):
        check_unchanged(run, machine)
        yield from _take_command(run, machine, given)
    elif given is None or _is_reconnect(run, found) or _goes_on(run, found):
        if found is None:
            raise EmptyInputError(
                f"nothing to do: the input is None and {_where(run)} has nothing stored to go on with"
            )
        check_unchanged(run, machine)
        take_over(run, machine)
        if run.seeded:
            yield from save(run, machine, "fork", [])
    else:
        yield from _take_input(run, machine, given)
        return
    if found is None:
        return
    run.passed = machine.tick
    if not run.ns:
        note_deliveries(run)
    if run.saved_id != run.head or _is_time_travel(run):
        yield from _replay(run, machine)
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
    if run.parent is None or found is None:
        return False
    if run.seeded:
        return True
    around = run.parent.run
    made_in = found.metadata.get("parents", {}).get(around.ns)
    if made_in == around.machine.checkpoint_id:
        return True
    here = around.found is not None and around.found.checkpoint["id"] == around.machine.checkpoint_id
    return here and made_in in around.found.metadata.get(CONTINUES, ())  # the thread around it was edited since


def _is_time_travel(run: Run) -> bool:
    """The config names a checkpoint and no answer is brought to it: what follows is done anew."""
    addressed = (run.config.get("configurable") or {}).get("checkpoint_id") is not None
    return addressed and not run.ns and not _answers(run)


def _replay(run: Run, machine: Machine) -> Effects:
    """Do anew what follows a checkpoint, on a branch of its own: nothing is written beside the old one, and what its
    tasks had left counts no more. Answers that are brought along reach the questions they name, in the branch; those
    given before the open questions stay."""
    stored, run.stored = run.stored, {}
    made = run.found.metadata.get("source") in ("update", "fork")
    tasks = machine.plan(coerce=False)
    if not machine.unsaved and (not tasks or (made and not stored and run.saved_id == run.head)):
        return  # nothing to do; or a head that was made for this, and is untouched
    for task in tasks:
        task.run = run
    before = [(stored.get(task.id, Stored()), task.ns) for task in tasks]
    machine.step += 1
    machine.kept = {}
    yield from save(run, machine, "fork", [])
    if _answers(run):
        move_answers(run, before, machine.plan(coerce=False))


def _rewind_point(run: Run) -> RunnableConfig:
    """The checkpoint done anew; of one made by an update or a fork, the one it was made from."""
    found: CheckpointTuple = run.found
    made = found.metadata.get("source") in ("update", "fork")
    return (found.parent_config if made else None) or found.config


def _answers(run: Run) -> bool:
    return isinstance(run.input, Command) and run.input.resume is not MISSING


def _take_input(run: Run, machine: Machine, given: Any) -> Effects:
    """Start over: what was pending is dropped, the input becomes a checkpoint of its own."""
    writes = input_writes(run, given)
    if not writes:
        raise EmptyInputError(f"the input holds none of the input channels {run.program.inputs!r}: {given!r}")
    run.stored = {}
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
        refuse_foreign(given)
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
    if run.saver is not None and run.saved_id is not None and run.saved_id == run.head and not _is_time_travel(run):
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
