"""What a call means before its first superstep: new input, an answer, an update, a fork, or simply going on.

The meaning is decided once, by `decide`, from what is given and what is stored; nothing has been done by then. The rest
of this file carries it out. Generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...channels.base import MISSING
from ...checkpoint.base import CONTINUES, CheckpointTuple
from ..errors import EmptyInputError, GraphChangedError, InvalidUpdateError
from ..names import DELIVERED, GRAPH
from ..program.results import refuse_lookalike
from ..program.version import apply_migration
from ..program.writes import Pair
from ..superstep.machine import Machine
from ..superstep.task import new_checkpoint_id
from ..types import Command
from .effects import Effect, Effects, Load, Save
from .graph_changes import lost_kinds, lost_triggers, lost_work
from .nested import find_route, load_around, load_seed, note_route, ns_of, rewind_point, starts_from, stopped_here
from .resume import (
    command_writes,
    move_answers,
    note_deliveries,
    open_questions,
    pending_tasks,
    record_command,
    take_answers,
    take_over,
    was_taken,
)
from .run import Run, run_of
from .snapshots import plan_to_look
from .task_records import TaskRecord, kept_ids, known_only, read_records


class Given(Enum):
    """What the caller has given."""

    NOTHING = "None"
    INPUT = "an input"
    ANSWERS = "Command(resume=...)"
    COMMAND = "Command(update=..., goto=...)"


class Stored(Enum):
    """Where the thread stands."""

    NOTHING = "nothing is stored"
    NEWEST = "at its newest checkpoint"
    EARLIER = "at an earlier checkpoint, or one that the config names"


class Delivery(Enum):
    """Whether a call with a `run_id` came before."""

    FIRST = "it comes for the first time"
    TAKEN = "it was taken before, and nothing has followed"
    FOLLOWED = "it was taken before, and other calls have followed"


class Meaning(Enum):
    """What a call means."""

    NEW_INPUT = "what is pending is dropped; the input makes a checkpoint, from which the graph starts"
    GO_ON = "what is pending runs; answers of a call that did not come to its end are still used"
    TAKE_COMMAND = "answers are bound to the questions that wait, updates are applied; then what is pending runs"
    START_BY_COMMAND = "its update and goto make the first checkpoint, from which the graph starts"
    SHOW_AGAIN = "nothing is done; the result that the call had is shown again"
    REFUSE = "there is nothing to go on with: an error"


@dataclass(frozen=True, slots=True)
class Start:
    """What a call means, decided before anything is done.

    Attributes:
        branches: what follows the checkpoint is done anew, on a branch of its own. A question that was answered there
            can be answered otherwise.
    """

    meaning: Meaning
    branches: bool = False


def decide(given: Given, stored: Stored, delivery: Delivery, *, stopped: bool) -> Start:
    """What a call means. docs/architecture.md has all of it as a table.

    Args:
        stopped: the call is that of a nested graph, which stopped here when the task around it ran before.
    """
    if delivery is Delivery.FOLLOWED:
        return Start(Meaning.SHOW_AGAIN)
    branches = stored is Stored.EARLIER
    if delivery is Delivery.TAKEN or stopped:
        return Start(Meaning.GO_ON, branches)
    if given is Given.INPUT:
        return Start(Meaning.NEW_INPUT, branches)
    if stored is not Stored.NOTHING:
        return Start(Meaning.GO_ON if given is Given.NOTHING else Meaning.TAKE_COMMAND, branches)
    return Start(Meaning.START_BY_COMMAND if given is Given.COMMAND else Meaning.REFUSE)


def classify_call(run: Run, *, followed: bool) -> Start:
    """What this call means, now that its checkpoint is loaded.

    Args:
        followed: it came before, and other calls have followed.
    """
    given = _given(run)
    if followed:
        delivery = Delivery.FOLLOWED
    elif run.thread.run_id is not None and _was_delivered(run, given):
        delivery = Delivery.TAKEN
    else:
        delivery = Delivery.FIRST
    stopped = run.parent is not None and given in (Given.NOTHING, Given.INPUT) and _stopped(run)
    return decide(given, _stored(run, given), delivery, stopped=stopped)


def _given(run: Run) -> Given:
    """What the caller has given.

    Raises:
        InvalidUpdateError: a command that is for a graph around this one.
        EmptyInputError: a command that says nothing.
    """
    given = run.settings.given
    if given is None:
        return Given.NOTHING
    if not isinstance(given, Command):
        return Given.INPUT
    if given.graph is not None:
        raise InvalidUpdateError("Command(graph=Command.PARENT) was given as input, but there is no parent graph")
    if given.resume is not MISSING:
        return Given.ANSWERS
    if given.update is None and not given.steps():
        raise EmptyInputError("the Command given as input is empty: it has no update, no goto and no resume")
    return Given.COMMAND


def _stored(run: Run, given: Given) -> Stored:
    """Where the thread stands. A checkpoint that the caller names is done anew, but an answer to a question that waits
    is for the checkpoint that asks it."""
    thread, replay = run.thread, run.replay
    if run.position.found is None:
        return Stored.NOTHING
    if not run.position.at_head or replay.seeded:
        return Stored.EARLIER
    if not thread.names_checkpoint or thread.ns:
        return Stored.NEWEST
    route = replay.route
    answered_before = route is not None and not route.stored and not route.waits
    return Stored.NEWEST if given is Given.ANSWERS and not answered_before else Stored.EARLIER


def _was_delivered(run: Run, given: Given) -> bool:
    """Whether this very call was taken before: it has the run id of the checkpoint, or of a command beside it."""
    found = run.position.found
    if found is None or given is Given.NOTHING:
        return False
    if given is Given.INPUT:
        return not run.ns and found.metadata.get("run_id") == run.thread.run_id
    return was_taken(run)


def _stopped(run: Run) -> bool:
    return run.replay.seeded or stopped_here(run, run.position.found)


# -- loading --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Loaded:
    """What was found in the thread.

    Attributes:
        head: the newest checkpoint of this part of the thread.
        followed: the call came before, and others have followed; `found` is where it had come to.
    """

    found: CheckpointTuple | None = None
    head: str | None = None
    followed: bool = False


def load_checkpoint(run: Run) -> Generator[Effect, None, Loaded]:
    """Find what the run starts from, and the newest checkpoint of its namespace."""
    around: Any = None
    if run.thread.nested is not None:
        around = yield from load_around(run)
    if run.parent is not None:
        done = run_of(run.parent).commits.inner.pop(run.thread.ns, None)
        if done is not None:  # the task tries again, and finds what this graph has done
            yield Save(done[1])
        seed = yield from load_seed(run)
        if seed is not None:
            return Loaded(seed.found, seed.head)
    load = starts_from(run) if around is None else Load(at=around)
    yield load
    if load.found is None or not _may_have_followed(run, load.found):
        return Loaded(load.found, load.head)
    delivered: Any = load.found.metadata.get(DELIVERED, ())
    if run.thread.run_id in delivered:
        return Loaded(load.found, load.head, followed=True)
    again = Load(made_by=run.thread.run_id)
    yield again
    return Loaded(again.found or load.found, load.head, followed=again.found is not None)


def _may_have_followed(run: Run, head: CheckpointTuple) -> bool:
    """Whether the call may be one that came before, and that others have followed since."""
    thread = run.thread
    if thread.run_id is None or run.settings.given is None or thread.ns:
        return False
    return not thread.names_checkpoint and head.metadata.get("run_id") != thread.run_id


def load_machine(run: Run, loaded: Loaded) -> Machine:
    """The state that the run starts from; the run's position is there from now on."""
    found, program = loaded.found, run.program
    if found is None:
        if loaded.head is not None:
            run.position.find_head(loaded.head)
        machine = Machine(program)
        sign(machine)
        if run.thread.saver is None and run.ns:
            machine.checkpoint_id = run.ns  # the same when the task around it runs again, so ids are the same too
        run.start(machine)
        return machine
    mine = apply_migration(found, program.fingerprint, run.settings.migrate)
    records = read_records(mine.pending_writes or ())
    machine = Machine(program, mine.checkpoint, mine.metadata["step"] + 1)
    machine.carried_ids = kept_ids(records)
    in_place = ns_of(mine.config) == run.ns
    if not in_place:  # it goes on in a namespace of its own, where nothing is stored yet
        machine.mark_all_unsaved()
    if mine is not found:
        machine.replace(found.checkpoint)
    sign(machine)
    run.position.load(mine, records, loaded.head, in_place=in_place)
    run.start(machine)
    return machine


def sign(machine: Machine) -> None:
    """Let the next checkpoint say which graph has cut it, unless the one before has said so."""
    mine = machine.program.fingerprint
    if mine and machine.seen.get(GRAPH) != mine:
        machine.seen[GRAPH] = dict(mine)
        machine.unsaved_seen.add(GRAPH)


# -- carrying it out ------------------------------------------------------------------------------------------


def begin(run: Run, machine: Machine, *, followed: bool) -> Generator[Effect, None, int | None]:
    """Take the input, or make ready to go on.

    Returns:
        The machine's tick up to which breakpoints count as passed; None if there is nothing to do.
    """
    found = run.position.found
    if found is not None and not followed:
        null = run.position.command
        if null is not None:
            machine.apply_writes(known_only(null.writes, machine))
        find_route(run, machine)
    start = classify_call(run, followed=followed)
    if start.meaning is Meaning.SHOW_AGAIN:
        _show_again(run, machine)
        return None
    if start.branches and found is not None and not run.ns:
        run.replay.rewind_to("", rewind_point(run, found))
    if start.meaning is Meaning.NEW_INPUT:
        yield from _take_input(run, machine)
        return -1
    if start.meaning is Meaning.START_BY_COMMAND:
        machine.apply_input(command_writes(run, run.settings.given), ())
        yield from save(run, machine, "input")
        return -1
    if start.meaning is Meaning.REFUSE:
        _refuse(run)
    yield from _go_on(run, machine, start)
    return machine.tick


def _show_again(run: Run, machine: Machine) -> None:
    if run.position.at_head:
        questions = open_questions(run, machine)
        if questions:
            run.output.pause(questions)
    for stream in run.output.streams:
        stream.values(machine, always=True)


def _refuse(run: Run) -> None:
    """Say why there is nothing to go on with."""
    if run.settings.given is None:
        raise EmptyInputError(f"nothing to do: the input is None and {run.thread} has nothing stored to go on with")
    take_answers(run, (), run.settings.given.resume, branches=False)


def _go_on(run: Run, machine: Machine, start: Start) -> Effects:
    """Go on from what is stored; on a branch, if what follows it is done anew."""
    position, replay = run.position, run.replay
    assert position.found is not None
    check_unchanged(run, machine)
    if start.meaning is Meaning.TAKE_COMMAND:
        yield from _take_command(run, machine, run.settings.given, branches=start.branches)
    elif not replay.seeded:
        take_over(run)
    if not run.ns:
        note_deliveries(run)
    if start.branches:
        yield from _fork(run, machine)
    replay.enter(machine.step)
    run.commits.go_on_from(position.found)
    for stream in run.output.streams:
        stream.resumed(machine)


def check_unchanged(run: Run, machine: Machine) -> None:
    """Refuse to go on with what another graph has left and this one cannot do.

    Raises:
        GraphChangedError: naming it.
    """
    found = run.position.found
    if found is not None:
        lost = [*lost_work(machine, found, run.position.records), *lost_kinds(machine, found)]
        if lost:
            raise GraphChangedError(str(run.thread), lost)


def _fork(run: Run, machine: Machine) -> Effects:
    """Do anew what follows a checkpoint, on a branch of its own: nothing is written beside the old one, and what its
    tasks had left counts no more. Answers that are brought along reach the questions they name, in the branch; those
    given before the open questions stay."""
    position = run.position
    assert position.found is not None
    tasks = plan_to_look(machine, ns_of(position.found.config))
    nothing_new = not machine.unsaved and not run.replay.seeded
    if nothing_new and (not tasks or _made_for_this(run)):
        return
    before = [(position.records.get(task.id, TaskRecord()), task.ns) for task in tasks]
    position.replace_records({})
    machine.step += 1
    machine.carried_ids = {}
    with note_route(run):
        yield from save(run, machine, "fork")
    whole = run.outermost
    if isinstance(whole.settings.given, Command) and whole.settings.given.resume is not MISSING:
        move_answers(run, whole.answers, before, machine.plan(coerce=False))


def _made_for_this(run: Run) -> bool:
    """Whether the checkpoint is the head, made by an update or a fork to go on from, and nothing was recorded beside it
    but what an update has carried over."""
    position = run.position
    found = position.found
    assert found is not None
    if not position.at_head or found.metadata.get("source") not in ("update", "fork"):
        return False
    return not position.records or (bool(found.metadata.get(CONTINUES)) and found.revision == 1)


def _take_input(run: Run, machine: Machine) -> Effects:
    """Start over: what was pending is dropped, the input becomes a checkpoint of its own."""
    given, found = run.settings.given, run.position.found
    writes = input_writes(run, given)
    if not writes:
        raise EmptyInputError(f"the input holds none of the input channels {run.program.inputs!r}: {given!r}")
    if found is not None:
        run.position.replace_records({})
        run.replay.follow(None)
        lost = [name for name in lost_kinds(machine, found) if name.startswith("key ")]
        if lost:
            raise GraphChangedError(str(run.thread), lost)
        machine.forget(lost_triggers(machine, found))
    machine.apply_input(writes, machine.plan(coerce=False) if found is not None else ())
    yield from save(run, machine, "input")


def input_writes(run: Run, given: Any) -> list[Pair]:
    """The input as writes to the input channels.

    Raises:
        TypeError: several input channels want a dict and it is none.
    """
    inputs = run.program.inputs
    if isinstance(inputs, str):
        run.settings.check_input(given)
        return [(inputs, given)]
    if not isinstance(given, dict):
        refuse_lookalike(given)
        raise TypeError(f"expected a dict with the input channels {list(inputs)}, got {type(given).__name__}")
    return [(key, value) for key, value in given.items() if key in inputs]


def _take_command(run: Run, machine: Machine, command: Command[Any], *, branches: bool) -> Effects:
    """Apply a command's update and goto at once, and keep its answer for the task that asks."""
    if command.resume is not MISSING:
        take_answers(run, pending_tasks(run, machine), command.resume, branches=branches)
    writes = command_writes(run, command)
    machine.apply_writes(writes)
    if not branches:
        yield from record_command(run, writes)


def save(run: Run, machine: Machine, source: str) -> Effects:
    """Make a checkpoint before the first superstep, unless all saving waits for the end of the call."""
    if run.thread.saver is not None:
        if run.settings.durability == "exit":
            run.commits.postpone(machine, source)
        else:
            machine.checkpoint_id = new_checkpoint_id()
            yield Save(run.commits.build(machine, source, []))
    output = run.output
    if source == "input" and (output.streams or output.keeps_view):
        output.show_values(machine)
