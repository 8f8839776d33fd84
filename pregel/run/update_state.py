"""Changing a stored thread from outside: update it as a node, give it input, clear it, copy it.

A second generator for the same drivers: the writers of the named node run over the given values,
its body does not.

Theory of operation: an update ends the open superstep for the tasks that it stands for, and for
those that have finished; the others stay pending. One that stands for no pending task replaces all
that was pending; without `as_node` only that to which the routers of its node do not lead any more.
Tasks to which it leads again go on under their old ids (`OpenWork`), so that a
person who has a question on the screen can still answer it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from ...checkpoint.base import CONTINUES, OF_TASK, REWOUND, TaskWrites
from ..errors import GraphChangedError, InvalidUpdateError, warn
from ..names import COPY, END, INPUT, TASKS
from ..program.writes import list_sends
from ..schedule.machine import Machine
from ..task.task import Task, in_path_order
from ..types import StateUpdate
from .effects import Effect, Effects, Load, Save, Work
from .ledger import TaskRecord, known_only
from .load import forget_lost, load_machine, lost_work
from .nested import find_made_on, load_under_way
from .resume import upcoming
from .run import Run
from .start import input_writes, was_made_for_this
from .update_tasks import OpenWork, is_outside, make_tasks, match, paths_of, says_where

ALONE = (END, INPUT, COPY)
"""What `as_node` may say besides a node's name; such an update is the only one of its superstep."""


def edits(run: Run, supersteps: Sequence[Sequence[StateUpdate]]) -> Effects:
    """Each list of updates becomes one checkpoint on top of the one before; nothing is stored
    before all of them have been made. Afterwards the run's position is at the last."""
    load = Load()
    yield load
    yield from load_under_way(load)
    # An update of a nested graph from outside has no run around it, from which the parents would
    # come.
    if run.ns and load.found is not None:
        run.commits.stay_inside(load.found)
        run.commits.describe(OF_TASK, load.found.metadata.get(OF_TASK))
    machine = load_machine(run, load, edits=True)
    found = run.position.found
    lost = [] if found is None else lost_work(machine, found, run.ledger)
    saves = []
    for updates in supersteps:
        # Both drop pending work, so what this graph cannot do any more does not stand in their way.
        drops_pending = updates[0].as_node in (END, INPUT)
        if lost and not drops_pending:
            raise GraphChangedError(str(run.thread), lost)
        if lost and found is not None:
            forget_lost(machine, found)
            lost = []
        for effect in _superstep(run, machine, updates):
            if not isinstance(effect, Save):
                yield effect
                continue
            # Stored only after all have been made: by then the live state is that of the last.
            if effect.commit is not None and len(supersteps) > 1:
                run.commits.freeze(effect.commit)
            saves.append(effect)
    yield from saves


def store_migrated(run: Run) -> Effects:
    """Store what the graph's `migrate` makes of the thread, as an edit that changes nothing else:
    all pending tasks go on in it. Nothing is stored if there is nothing to convert."""
    load = Load()
    yield load
    yield from load_under_way(load)
    stored = load.found
    if stored is None:
        return
    if run.ns:
        run.commits.stay_inside(stored)
        run.commits.describe(OF_TASK, stored.metadata.get(OF_TASK))
    machine = load_machine(run, load, edits=True)
    found = run.position.found
    if found is not None and found.checkpoint is not stored.checkpoint:
        pending = upcoming(run, machine)
        left = OpenWork(run, pending, pending)
        machine.apply_edit((), keep=pending)
        yield from cut(run, "update", [], left)


def _superstep(run: Run, machine: Machine, updates: Sequence[StateUpdate]) -> Effects:
    only = updates[0]
    if only.as_node == END:
        _clear(run, machine)
        yield from cut(run, "update", [])
    elif only.as_node == INPUT:
        _feed(run, machine, only.values)
        yield from cut(run, "input", [])
    elif only.as_node == COPY:
        yield from _duplicate(run, machine, only.values)
    else:
        yield from _update(run, machine, updates)


def read_supersteps(supersteps: Sequence[Sequence[Any]]) -> list[list[StateUpdate]]:
    """Check a bulk update's shape.

    Raises:
        ValueError: there is nothing in it.
        InvalidUpdateError: something is not an update; or an update lacks its `as_node`, or must be
            alone in its superstep and is not.
    """
    if not supersteps:
        raise ValueError(
            "supersteps must be a list of lists of StateUpdate, got none: give at least one update"
        )
    read = [[_read_update(update) for update in updates] for updates in supersteps]
    for number, updates in enumerate(read):
        if not updates:
            raise ValueError(f"superstep {number} of the bulk update has no updates")
        for update in updates:
            if len(updates) > 1 and update.as_node in ALONE:
                raise InvalidUpdateError(
                    f"an update with as_node={update.as_node!r} must be alone in its superstep"
                )
            if len(updates) > 1 and update.as_node is None:
                raise InvalidUpdateError("as_node is required when a superstep has several updates")
        if updates[0].as_node == END and updates[0].values is not None:
            raise InvalidUpdateError(
                "with as_node=END, which drops all pending work, values must be None, "
                f"got {updates[0].values!r}"
            )
    return read


def _read_update(given: Any) -> StateUpdate:
    """A `StateUpdate`, also from a tuple like one: another library's has the same fields.

    Raises:
        InvalidUpdateError: it is none.
    """
    names = StateUpdate._fields
    fits = isinstance(given, (tuple, list)) and 0 < len(given) <= len(names)
    if fits and tuple(getattr(given, "_fields", names)) == names:
        return StateUpdate(*given)
    raise InvalidUpdateError(
        f"an update must be StateUpdate(values, as_node), got {type(given).__name__}: {given!r}"
    )


def cut(run: Run, source: str, writes: list[TaskWrites], left: OpenWork | None = None) -> Effects:
    """Make the checkpoint of an edit.

    Args:
        left: what goes on in it; None: nothing does.
    """
    machine, found = run.machine, run.position.found
    carried: list[TaskWrites] = []
    continues: list[str] | None = None
    undone = _find_undone(run)
    if left is None:
        run.ledger.replace({})
    else:
        carried = left.carry(run, machine)
    # What graphs inside these tasks have stored names the checkpoint in which the tasks began.
    if carried and found is not None:
        continues = [*run.position.continued, found.checkpoint["id"]]
    run.commits.describe(CONTINUES, continues)
    run.commits.describe(REWOUND, undone)
    commit = run.commits.build(machine, source, writes)
    commit.carried = carried
    yield Save(commit)


def _find_undone(run: Run) -> str:
    """From which checkpoint on an edit undoes what was done; "" if it undoes nothing. What an edit
    below it has undone, and nothing has run since, stays undone."""
    found = run.position.found
    below = run.commits.metadata.get(REWOUND)  # an edit of this call
    if below is not None or found is None:
        return below or ""
    if not run.position.at_head:
        return find_made_on(found) or found.checkpoint["id"]
    return (find_made_on(found) or "") if was_made_for_this(run) else ""


# -- as a node -------------------------------------------------------------------------------------


def _update(run: Run, machine: Machine, updates: Sequence[StateUpdate]) -> Effects:
    """Run the writers of the named nodes over the values. What the open superstep has done is
    kept: a task to which the update leads again goes on as it is, with its questions and results;
    what others had finished is applied."""
    if run.position.found is None:
        machine.skip_input()
    at_head = run.position.at_head
    open_ = _look_at_open(run, machine)
    mine = make_tasks(run, machine, updates, open_.standing, open_.finished)
    yield from _run_writers(mine)
    outcome = _decide(run, machine, open_, mine)
    only = updates[0]
    if only.as_node is None and machine.program.scope.triggers and not says_where(only.values):
        kept = yield from _find_kept(run, machine, open_, mine, outcome)
        outcome = _decide(run, machine, open_, mine, kept) if kept else outcome
    _tell_closed(run, mine, outcome.left, outcome.lost, named=only.as_node is not None)
    # History shows the update as the tasks' result, unless the checkpoint has a future of its own
    # already.
    shown = [task for task in mine if at_head and not is_outside(task)]
    writes = [run.commits.encode_writes(task) for task in shown]
    left = OpenWork(run, open_.pending, outcome.again)
    machine.apply_edit(_in_turn(outcome.done, mine), keep=outcome.staying)
    yield from cut(run, "update", writes, left)


class OpenTasks(NamedTuple):
    """The tasks of the open superstep as an update finds them.

    Attributes:
        pending: all that are pending.
        finished: those whose writes are stored.
        beaten: those that have lost a race: they run no more, so nobody speaks for them.
        standing: those for which an update may speak, error handlers among them.
    """

    pending: list[Task]
    finished: list[Task]
    beaten: list[Task]
    standing: list[Task]


def _look_at_open(run: Run, machine: Machine) -> OpenTasks:
    pending = upcoming(run, machine)
    finished = _finished(run, pending)
    # At the head an update may speak for an error handler that has taken over.
    now = run.ledger.with_handlers(pending) if run.position.at_head else pending
    return OpenTasks(
        pending,
        finished,
        beaten=[task for task in pending if task not in now],
        standing=[task for task in now if task in pending or task not in finished],
    )


class Outcome(NamedTuple):
    """What becomes of the open superstep by an update.

    Attributes:
        left: the tasks for which the update does not speak.
        staying: those of them that stay pending.
        again: those of them to which the update leads again.
        lost: those of them that are dropped.
        done: the tasks whose end is applied with the update.
    """

    left: list[Task]
    staying: list[Task]
    again: list[Task]
    lost: list[Task]
    done: list[Task]


def _decide(
    run: Run,
    machine: Machine,
    open_: OpenTasks,
    mine: Sequence[Task],
    kept: Sequence[Task] = (),
) -> Outcome:
    """What becomes of the open superstep by an update that these tasks have written.

    Args:
        kept: pending tasks, finished or not, that go on as they are.
    """
    finished, beaten = open_.finished, open_.beaten
    # As the error handler of a task an update deals with that task's failure.
    dealt_with = {cause: None for task in mine if (cause := task.cause) is not None}
    mine_by_path = paths_of(mine)
    rest = [t for t in open_.pending if t.path not in mine_by_path and t not in dealt_with]
    left = [task for task in rest if task not in beaten]
    # Acting for a pending node leaves the others pending; acting for another node replaces what it
    # had led to.
    outside = [task for task in mine if is_outside(task)]
    staying = [
        task
        for task in left
        if task in kept
        or (task not in finished and not any(_replaces(run, each, task) for each in outside))
    ]
    # At an old checkpoint the tasks have had their future; the update starts a branch.
    again = _led_to(run, machine, mine, staying, rest) if run.position.at_head else []
    lost = [task for task in left if task not in again and task not in finished]
    done = [task for task in finished if (task.cause or task) not in again and task not in again]
    return Outcome(left, staying, again, lost, [*done, *dealt_with])


def _run_writers(tasks: Sequence[Task]) -> Effects:
    """Let the updates be written, one after the other.

    Raises:
        Exception: what a writer or router has raised.
    """
    effect = Work()
    for task in tasks:
        effect.tasks = (task,)
        yield effect
        # Nothing has been applied yet, so the thread stays as it is.
        if task.error is not None:
            raise task.error


def _find_kept(
    run: Run, machine: Machine, open_: OpenTasks, mine: Sequence[Task], outcome: Outcome
) -> Generator[Effect, None, list[Task]]:
    """Find what an update without `as_node` keeps of that which it would drop: all to which the
    edges and routers of its node do not lead, with the update or without it. It has come by a goto,
    or from another node."""
    dropped = [task for task in outcome.left if task not in outcome.again]
    if dropped:
        led = _led_to(run, machine, mine, outcome.staying, outcome.left)
        dropped = [task for task in dropped if task not in led]
    if not dropped:
        return []
    usual = make_tasks(run, machine, [StateUpdate(None)], open_.standing, open_.finished)
    yield from _run_writers(usual)
    led = _led_to(run, machine, usual, outcome.staying, outcome.left)
    # A `Send` of the router may hold another value each time (`RemainingSteps`, a time). It counts
    # by its node: kept beside what the router sends now, the work would be done twice.
    sent = {
        send.node
        for each in (*mine, *usual)
        for name, value in each.writes
        if name == TASKS
        for send in list_sends(value)
    }
    return [
        task
        for task in dropped
        if task not in led and (task.send is None or task.name not in sent)
    ]


def _replaces(run: Run, update: Task, pending: Task) -> bool:
    """Whether an update that stands for no pending task replaces one. In supersteps all that is
    pending came from one barrier; with schedule="ready" branches go on for themselves."""
    flow = run.program.flow
    if flow is None or flow.holders is None:  # supersteps
        return True
    again = update.name == pending.name and pending.send is None  # it leads to itself
    return again or update.name in flow.holders.get(pending.name, ())


def _tell_closed(
    run: Run, mine: Sequence[Task], rest: Sequence[Task], lost: Sequence[Task], *, named: bool
) -> None:
    """Say that an update closes questions: warn if it names its node, refuse it otherwise.

    Args:
        rest: the pending tasks for which it does not stand.
        lost: those of them that do not go on.
        named: the update has an `as_node`.

    Raises:
        InvalidUpdateError: it closes questions and has no `as_node`.
    """
    # An old checkpoint keeps its questions: the update goes beside what followed.
    if not run.position.at_head:
        return
    record_of = run.ledger.of
    asking = sorted({task.name for task in lost if record_of(task.id).waiting})
    actors, names = ", ".join(repr(task.name) for task in mine), ", ".join(map(repr, asking))
    if asking and not named:
        raise InvalidUpdateError(
            f"the update would act as {actors}, which does not lead to {names}, and so close the "
            "questions asked there: specify as_node"
        )
    if asking:
        warn(
            f"{run.thread}: the update as {actors} does not lead to {names}, and so closes the "
            f"questions asked there; answer them first, or act as the node that asks: "
            f"as_node={asking[0]!r}"
        )
    # Their nodes run again, or do not go on: the update may have mended what they failed of.
    failed = {
        task.cause.name
        for task in run.ledger.with_handlers(rest)
        if task.cause is not None and record_of(task.id).waiting
    }
    if failed:
        warn(
            f"{run.thread}: after the update as {actors} nodes that have failed start over, and so "
            f"it closes the question that the error handler of {min(failed)!r} asks; answer it "
            f"first, or act as the node: as_node={min(failed)!r}"
        )


def _led_to(
    run: Run, machine: Machine, mine: Sequence[Task], others: Sequence[Task], rest: Sequence[Task]
) -> list[Task]:
    """Those of the pending tasks that the update leads to as well."""
    # Only the machine knows what leads where, so it is tried on a copy.
    trial = machine.copy()
    trial.apply_edit(_in_turn([], mine), keep=others)
    return [old for old, _ in match(run, rest, trial.plan(coerce=False))]


def _in_turn(finished: Sequence[Task], mine: Sequence[Task]) -> list[Task]:
    """Path order, as in any superstep; the updates among themselves in the order they were
    given."""
    given, updates = iter(mine), {id(task) for task in mine}
    return [
        next(given) if id(task) in updates else task for task in in_path_order([*finished, *mine])
    ]


def _finished(run: Run, pending: Sequence[Task]) -> list[Task]:
    """Tasks of the open superstep whose writes are stored already, if they are shown: at the
    thread's head."""
    found: list[Task] = []
    for task in run.ledger.with_handlers(pending):
        known = run.ledger.of(task.id)
        if known.finished and run.position.at_head:
            task.restore(known_only(known.writes, run.machine))
            found.append(task)
            if task.cause is not None:
                found.append(task.cause)  # it failed, but its handler has dealt with that
    return found


# -- the special ones ------------------------------------------------------------------------------


def _clear(run: Run, machine: Machine) -> None:
    """Keep what is done, drop what is pending."""
    pending = upcoming(run, machine)
    handled = [task for task in _finished(run, pending) if task not in pending]
    machine.clear([*pending, *handled])


def _feed(run: Run, machine: Machine, values: Any) -> None:
    """Take values as the input of a run that has not started."""
    writes = input_writes(run, values) if values is not None else []
    if not writes:
        raise InvalidUpdateError(
            f"as_node={INPUT!r} needs a value for the input channels {run.program.inputs!r}"
        )
    machine.apply_input(writes, machine.plan(coerce=False))


def copy_cleared(run: Run, machine: Machine, *, clears: bool) -> Effects:
    """Clone the checkpoint as a sibling of which nothing is done.

    Args:
        clears: drop what is pending in it.
    """
    run.ledger.replace({})
    yield from _duplicate(run, machine, None, clears=clears)


def _duplicate(run: Run, machine: Machine, values: Any, *, clears: bool = False) -> Effects:
    """Clone the checkpoint as a sibling.

    Args:
        values: (values, as_node) pairs to apply to the clone, if any.
        clears: drop what is pending in it.
    """
    found = run.position.found
    if found is None:
        raise InvalidUpdateError(f"as_node={COPY!r}: the thread has no checkpoint to copy")
    if clears:
        _clear(run, machine)
    finished = _finished(run, upcoming(run, machine))
    # A sibling of the checkpoint: it has the same parent, so the clone must hold everything itself.
    run.position.build_beside()
    machine.mark_all_unsaved()
    machine.identify()
    machine.begin_anew()
    # What `get_state` showed as done stays done; in the clone the same tasks have other ids.
    done = {task.path: task.writes for task in finished}
    clones = [task for task in upcoming(run, machine) if task.path in done]
    run.ledger.replace({})
    for task in clones:
        task.restore(done[task.path])
    carried = [run.commits.encode_writes(task) for task in clones]
    run.commits.describe(REWOUND, find_made_on(found) or found.checkpoint["id"])
    commit = run.commits.build(machine, "fork", [], machine.checkpoint_id)
    commit.carried = carried
    yield Save(commit)
    run.ledger.replace(
        {task.id: TaskRecord(writes=task.writes, wrote=True) for task in clones}
    )
    if values:
        yield from _update(run, machine, [StateUpdate(*pair) for pair in values])
