"""What a call means: new input, an answer, an update, a fork, or simply going on.

Decided once, from what is given and what is stored, before anything is done: pure functions.
`begin` carries the decision out, as part of the loop: generators that ask for effects and perform
none.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any, NamedTuple

from ...channels.base import MISSING
from ...checkpoint.base import CONTINUES, REWOUND, CheckpointTuple, TaskWrites
from ...checkpoint.errors import CheckpointConflictError
from ..errors import EmptyInputError, GraphChangedError, InvalidUpdateError, UnknownInterruptError
from ..names import INSIDE, SPENT, START
from ..program.program import CompiledNode
from ..program.results import refuse_lookalike
from ..program.writes import Pair
from ..task.task import Task
from ..types import Command
from .effects import Effect, Effects, FirstSave, Load, Save
from .load import forget_lost, lost_kinds, lost_work
from .nested import find_made_on, find_route, noted_route, ns_of, rewind_point, stopped_here
from .resume import (
    claim_place,
    command_writes,
    move_answers,
    note_deliveries,
    open_questions,
    pending_tasks,
    record_command,
    take_answers,
    take_over,
    upcoming,
    was_taken,
)
from .run import Run
from .snapshots import plan_to_look


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
    """Whether the call was made before: by a task that runs again, or under the same `run_id`."""

    FIRST = "first call"
    STOPPED = "nested graph that stopped here"
    TAKEN = "came before, nothing followed"
    FOLLOWED = "came before, others followed"


class Meaning(Enum):
    """What a call means."""

    NEW_INPUT = (
        "pending work is dropped; the input is stored as a checkpoint, and the graph starts from it"
    )
    GO_ON = "pending tasks run; they get the answers that an unfinished call has claimed"
    TAKE_COMMAND = (
        "answers are bound to open questions, updates are applied; then pending tasks run"
    )
    START_BY_COMMAND = (
        "update and goto are stored as the first checkpoint; the graph starts from it"
    )
    SHOW_AGAIN = "nothing runs; the call returns the result that it had"
    REFUSE = "an error: there is nothing to go on with"


class Start(NamedTuple):
    """What a call means, decided before anything is done.

    Attributes:
        branches: what follows the checkpoint is done anew, on a branch of its own. A question that
            was answered there can be answered otherwise.
    """

    meaning: Meaning
    branches: bool = False


def decide(given: Given, stored: Stored, delivery: Delivery) -> Start:
    """What a call means. docs/explanation/architecture.md has all of it as a table."""
    if delivery is Delivery.FOLLOWED:
        return Start(Meaning.SHOW_AGAIN)
    branches = stored is Stored.EARLIER
    if delivery is not Delivery.FIRST:
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
    elif run.parent is not None and _stopped(run, given):
        delivery = Delivery.STOPPED
    else:
        delivery = Delivery.FIRST
    return decide(given, _stored(run, given), delivery)


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
        raise InvalidUpdateError(
            "Command(graph=Command.PARENT) was given as input, but there is no parent graph"
        )
    if given.resume is not MISSING:
        return Given.ANSWERS
    if given.update is None and not given.steps():
        raise EmptyInputError(
            "the Command given as input is empty: it has no update, no goto and no resume"
        )
    return Given.COMMAND


def _stored(run: Run, given: Given) -> Stored:
    """Where the thread stands. A checkpoint that the caller names is done anew, but an answer to a
    question that waits is for the checkpoint that asks it."""
    thread, replay = run.thread, run.replay
    if run.position.found is None:
        return Stored.NOTHING
    if not run.position.at_head or replay.seeded:
        return Stored.EARLIER
    if not thread.names_checkpoint or thread.ns:
        return Stored.NEWEST
    route = replay.route
    # Inside a nested graph it is the nested checkpoint that asks; its question may have been
    # answered since, and then the answer makes a branch.
    answered_before = route is not None and not route.stored and not route.waits
    return Stored.NEWEST if given is Given.ANSWERS and not answered_before else Stored.EARLIER


def _was_delivered(run: Run, given: Given) -> bool:
    """Whether this very call was taken before: it has the run id of the checkpoint, or of a command
    beside it."""
    found = run.position.found
    if found is None or given is Given.NOTHING:
        return False
    if given is Given.INPUT:
        # A nested graph has the run id of the call around it in all its checkpoints, so there it
        # says nothing about this call.
        return not run.ns and found.metadata.get("run_id") == run.thread.run_id
    return was_taken(run)


def _stopped(run: Run, given: Given) -> bool:
    """Whether this is the call of a nested graph that stopped here when its task ran before."""
    if given not in (Given.NOTHING, Given.INPUT):
        return False
    return run.replay.seeded or stopped_here(run, run.position.found)


# -- before the first superstep: carrying out what was decided -------------------------------------

def begin(run: Run, loaded: Load) -> Generator[Effect, None, int | None]:
    """Take the input, or make ready to go on.

    Returns:
        The machine's tick up to which breakpoints count as passed; None if there is nothing to do.
    """
    found = run.position.found
    if found is not None and not loaded.followed:
        find_route(run)
    start = classify_call(run, followed=loaded.followed)
    if start.meaning is Meaning.SHOW_AGAIN:
        _show_again(run)
        return None
    if found is not None and (start.branches or (find_made_on(found) and was_made_for_this(run))):
        _rewind(run, found)
    if start.meaning is Meaning.NEW_INPUT:
        yield from _take_input(run)
        return -1
    # No resume here: on a thread with nothing stored there is no question, and `decide` refuses it.
    if start.meaning is Meaning.START_BY_COMMAND:
        run.machine.apply_input(command_writes(run, run.settings.given), ())
        yield from save(run, "input")
        yield from _take_posts(run)
        return -1
    if start.meaning is Meaning.REFUSE:
        _refuse(run)
    if start.meaning is Meaning.GO_ON and loaded.delivered_live:
        thread, head = run.thread, run.position.head
        raise CheckpointConflictError(thread.thread_id or "", thread.ns, head, head)
    yield from _go_on(run, start)
    return run.machine.tick


def _show_again(run: Run) -> None:
    # Questions of an old checkpoint may have been answered in what followed it.
    if run.position.at_head:
        questions = open_questions(run)
        if questions:
            run.output.pause(questions)
    for stream in run.output.streams:
        stream.values(run.machine, always=True)


def _refuse(run: Run) -> None:
    """Say why there is nothing to go on with."""
    if run.settings.given is None:
        raise EmptyInputError(
            f"nothing to do: the input is None, and {run.thread} has no pending work to go on with"
        )
    # With no tasks this always raises: it has the error for an answer without a question.
    try:
        take_answers(run, (), run.settings.given.resume, branches=False)
    except UnknownInterruptError as error:
        error.add_note(f"Nothing has run on {run.thread} yet: is its thread_id right?")
        raise


def _go_on(run: Run, start: Start) -> Effects:
    """Go on from what is stored; on a branch, if what follows it is done anew."""
    position, replay = run.position, run.replay
    assert position.found is not None
    check_unchanged(run)
    if start.meaning is Meaning.TAKE_COMMAND:
        yield from _take_command(run, run.settings.given, branches=start.branches)
    # A seeded run does anew what another branch has done; a claim there is not its own.
    elif not replay.seeded:
        take_over(run)
        if run.may_come_twice and not start.branches:
            yield from claim_place(run)
    # Deliveries are known by the checkpoints of the whole graph only: it takes the command.
    if not run.ns:
        note_deliveries(run)
    # After the answers are bound: `_fork` moves them to the ids that the questions have there.
    if start.branches:
        yield from _fork(run)
    yield from _take_posts(run)
    replay.enter(run.machine.step)
    run.commits.go_on_from(position.found)
    for stream in run.output.streams:
        stream.resumed(run.machine)


def _take_posts(run: Run) -> Effects:
    """Take what was posted by now into the first superstep."""
    # With schedule="ready" what a task reads must be found at its origin when it runs again:
    # nothing comes in but with a step that is stored.
    if run.commits.inbox is not None and not run.program.starts_ready:
        yield from run.commits.inbox.take(run.machine, run.output.streams)


def check_unchanged(run: Run) -> None:
    """Refuse to go on with what another graph has left and this one cannot do.

    Raises:
        GraphChangedError: naming it.
    """
    found = run.position.found
    if found is not None:
        stored = run.machine, found, run.ledger
        lost = [*lost_work(*stored), *lost_kinds(*stored)]
        if lost:
            raise GraphChangedError(str(run.thread), lost)


def _fork(run: Run) -> Effects:
    """Do anew what follows a checkpoint, on a branch of its own: nothing is written beside the old
    one, and what its tasks had left is void. Answers that are brought along reach the
    questions they name, in the branch; those given before the open questions stay."""
    machine, position = run.machine, run.position
    assert position.found is not None
    tasks = plan_to_look(machine, ns_of(position.found.config))
    # Nothing to do anew: a fork would only add a checkpoint that says what its parent says.
    nothing_new = not machine.unsaved and not run.replay.seeded
    if nothing_new and (not tasks or was_made_for_this(run)):
        return
    # Taken down before the fork: the ids of tasks come from the checkpoint, which is another then.
    before = [(run.ledger.of(task.id), task.ns) for task in tasks]
    run.ledger.replace({})
    machine.begin_anew()
    run.commits.describe(INSIDE, noted_route(run))
    run.commits.describe(REWOUND, find_made_on(position.found))
    yield from save(run, "fork")
    # Only the fork leads there. The checkpoints after it have passed it.
    run.commits.describe(INSIDE, None)
    if run.settings.durability != "exit" or run.may_come_twice:  # else it is stored at the end
        run.commits.describe(REWOUND, None)
    # A nested graph may be the one that asks, but the call was made to the outermost.
    whole = run.outermost
    if isinstance(whole.settings.given, Command) and whole.settings.given.resume is not MISSING:
        move_answers(run, whole.ledger, before, upcoming(run))


def _rewind(run: Run, found: CheckpointTuple) -> None:
    """Let graphs inside that have a history of their own, and so a head, go back on a branch with
    the graph around them: they would remember what the branch has not done."""
    replay = run.replay
    if not run.ns:
        replay.rewind_to("", rewind_point(run, found))
    tasks = plan_to_look(run.machine, ns_of(found.config))
    replay.begin_anew(run.ledger.with_handlers(tasks))


def was_made_for_this(run: Run) -> bool:
    """Whether the checkpoint is the head, made by an update or a fork to go on from, and nothing
    was recorded beside it but what an update has carried over."""
    position = run.position
    found = position.found
    assert found is not None
    if not position.at_head or found.metadata.get("source") not in ("update", "fork"):
        return False
    # An update that carries tasks over records once, with its commit. A higher revision means that
    # somebody has worked here since. A fork that carries tasks over is a whole call, stored at its
    # end.
    updated = found.metadata["source"] == "update" and bool(found.metadata.get(CONTINUES))
    return not run.ledger or (updated and found.revision == 1)


def _take_input(run: Run) -> Effects:
    """Start over: what was pending is dropped, the input becomes a checkpoint of its own."""
    machine = run.machine
    given, found = run.settings.given, run.position.found
    writes = input_writes(run, given)
    if not writes:
        raise EmptyInputError(
            f"the input must have a value for an input channel, {run.program.inputs!r}, "
            f"got {given!r}"
        )
    start = run.program.nodes.get(START)
    if start is not None and start.plain and not run.keeps_steps:
        _run_start(run, start)
        return
    if found is not None:
        if SPENT in machine.channels and run.ledger:  # its records are left behind
            writes.append((SPENT, run.calls.find_meter().total))
        run.ledger.replace({})
        # New input starts over in nested graphs, too.
        run.replay.follow(None)
        # Pending nodes are dropped anyway, so only keys whose kind has changed stand in the way.
        kinds = lost_kinds(machine, found, run.ledger)
        lost = [name for name in kinds if name.startswith("key ")]
        if lost:
            raise GraphChangedError(str(run.thread), lost)
        forget_lost(machine, found)
    new = run.position.head is None
    # What was pending counts as run, or its triggers would start it beside the new input.
    machine.apply_input(
        writes, machine.as_superstep().plan(coerce=False) if found is not None else ()
    )
    yield from save(run, "input", held=new and _holds_input(run))


def _run_start(run: Run, start: CompiledNode) -> None:
    """Take the input and START's superstep at once, where nobody could see the state between them:
    START writes the input into the state, and what its edges lead to is triggered (benchmark
    P2)."""
    task = Task(start, start.path, run.settings.given, run)
    for writer in start.writers:
        writer.write(task.input, task)
    run.machine.skip_input()
    run.machine.apply((task,))


def _holds_input(run: Run) -> bool:
    """Whether the input is stored together with what comes next. No node of the user's may run
    before, nor a router, unless the input comes about again. A reader gets the chunks of both when
    they are stored."""
    machine = run.machine
    if not run.commits.holds_input or run.output.live:
        return False
    nodes, triggers = machine.program.nodes, machine.program.triggers
    following = [name for channel in machine.changed or () for name in triggers.get(channel, ())]
    if following != [START] or not nodes[START].hidden:
        return False
    if not run.output.streams and run.commits.hold_start():
        return True
    return nodes[START].plain


def input_writes(run: Run, given: Any) -> list[Pair]:
    """The input as writes to the input channels.

    Raises:
        TypeError: there are several input channels, and the input is not a dict.
    """
    inputs = run.program.inputs
    if isinstance(inputs, str):
        run.settings.graph.check_input(given)
        return [(inputs, given)]
    if not isinstance(given, dict):
        refuse_lookalike(given)
        raise TypeError(
            f"the input must be a dict with the input channels {list(inputs)}, "
            f"got {type(given).__name__}"
        )
    return [(key, value) for key, value in given.items() if key in inputs]


def _take_command(run: Run, command: Command[Any], *, branches: bool) -> Effects:
    """Apply a command's update and goto at once, and keep its answer for the task that asks."""
    reopened: list[TaskWrites] = []
    if command.resume is not MISSING:
        tasks = pending_tasks(run)
        try:
            reopened = take_answers(run, tasks, command.resume, branches=branches)
        except UnknownInterruptError as error:
            asks = {q.id: q.value for task in tasks for q in run.ledger.of(task.id).interrupts}
            open_ = [f"{id} {asks[id]!r:.200}" for id in error.pending_ids if id in asks]
            told = ": " + "; ".join(open_) if open_ else " nothing"
            error.add_note(f"Thread {run.thread.thread_id!r} asks{told}")
            raise
    writes = command_writes(run, command)
    if run.position.unqueued is None or branches:
        run.machine.apply_writes(writes)
    else:
        from .origins import bring_in

        bring_in(run, writes)
    # On a branch nothing is claimed: no other call can stand at a checkpoint that is new.
    if not branches:
        yield from record_command(run, writes, reopened)


def save(run: Run, source: str, *, held: bool = False) -> Effects:
    """Make a checkpoint before the first superstep, unless all saving waits for the end of the
    call. If the call may come twice, it is stored before the first node starts in any case: of two
    deliveries that begin at the same checkpoint one gets a conflict, and runs nothing.

    Args:
        held: store it together with the next one.
    """
    machine = run.machine
    if run.thread.saver is not None:
        if run.may_come_twice and not held:
            yield FirstSave(run.commits.build(machine, source, []))
        elif run.settings.durability == "exit":
            run.commits.postpone(machine, source)
        else:
            saved = Save(run.commits.build(machine, source, []))
            yield saved.hold(for_task=run.commits.holds_start) if held else saved
    output = run.output
    if source == "input" and (output.streams or output.keeps_view):
        output.show_values(machine)
