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

from collections.abc import Collection, Generator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from ...channels.base import check_kind
from ...checkpoint.base import (
    CONTINUES,
    NULL_TASK_ID,
    OF_TASK,
    REWOUND,
    CheckpointTuple,
    TaskWrites,
)
from ..errors import GraphChangedError, InvalidUpdateError, nearest, warn
from ..names import COPY, END, INPUT, RAN, SPENT, TASKS
from ..program.node import give_back
from ..program.program import CompiledNode, NodeCall
from ..program.writes import list_sends
from ..schedule.machine import Machine
from ..task.ids import Carried
from ..task.task import Task, handler_of, in_path_order
from ..types import Command, Send, StateUpdate
from .effects import Claim, Effect, Effects, Load, Save, Work
from .ledger import ClaimRecord, TaskRecord, describe_kept, known_only
from .load import find_undoing, forget_lost, load_machine, lost_kinds, lost_work
from .nested import find_made_on, load_under_way
from .resume import upcoming
from .run import Run
from .start import input_writes, was_made_for_this

ALONE = (END, INPUT, COPY)
"""What `as_node` may say besides a node's name; such an update is the only one of its superstep."""


def edits(run: Run, supersteps: Sequence[Sequence[StateUpdate]]) -> Effects:
    """Each list of updates becomes one checkpoint on top of the one before; nothing is stored
    before all of them have been made. Afterwards the run's position is at the last."""
    yield from load_to_edit(run)
    found = run.position.found
    lost: list[str] = []
    if found is not None:
        stored = run.machine, found, run.ledger
        given = {f"key {name!r}" for each in chain(*supersteps) for name in _keys(each.values)}
        lost = [*lost_work(*stored), *(name for name in lost_kinds(*stored) if name not in given)]
    saves = []
    for updates in supersteps:
        # Both drop pending work, so what this graph cannot do any more does not stand in their way.
        drops_pending = updates[0].as_node in (END, INPUT)
        if lost and not drops_pending:
            raise GraphChangedError(str(run.thread), lost)
        if lost and found is not None:
            forget_lost(run.machine, found)
            lost = []
        for effect in _superstep(run, updates):
            if not isinstance(effect, Save):
                yield effect
                continue
            # Stored only after all have been made: by then the live state is that of the last.
            if effect.commit is not None and len(supersteps) > 1:
                run.commits.freeze(effect.commit)
            saves.append(effect)
    yield from saves


def _keys(values: Any) -> Collection[str]:
    return values.keys() if isinstance(values, Mapping) else ()


def store_migrated(run: Run) -> Effects:
    """Store what the graph's `migrate` makes of the thread, as an edit that changes nothing else:
    all pending tasks go on in it. Nothing is stored if there is nothing to convert."""
    stored, found = (yield from load_to_edit(run)), run.position.found
    if stored is not None and found is not None and found.checkpoint is not stored.checkpoint:
        pending = upcoming(run)
        # What a run at work has recorded since, and what it records from here on, conflicts.
        yield Claim(None, [], run.position.head or "", found.revision)
        left = OpenWork(run, pending, pending, whole=True)
        run.machine.apply_edit((), keep=pending)
        yield from cut(run, "update", [], left)


def load_to_edit(run: Run) -> Generator[Effect, None, CheckpointTuple | None]:
    """Load the checkpoint that an edit starts from. Returns it as it is stored."""
    load = Load()
    yield load
    yield from find_undoing(run, load)
    yield from load_under_way(load)
    # An update of a nested graph from outside has no run around it, from which the parents would
    # come.
    if run.ns and load.found is not None:
        run.commits.stay_inside(load.found)
        run.commits.describe(OF_TASK, load.found.metadata.get(OF_TASK))
    load_machine(run, load, edits=True)
    if run.position.at_head and run.ledger:  # its records are left behind
        keep_spent(run, run.calls.find_meter().total)
    return load.found


def keep_spent(run: Run, total: Mapping[str, float]) -> None:
    """Let the thread have spent so much, if it has a budget. No edit takes back what was paid."""
    if total and SPENT in run.machine.channels:
        run.machine.apply_writes([(SPENT, total)])


def _superstep(run: Run, updates: Sequence[StateUpdate]) -> Effects:
    only = updates[0]
    if only.as_node == END:
        _clear(run)
        yield from cut(run, "update", [])
    elif only.as_node == INPUT:
        _feed(run, only.values)
        yield from cut(run, "input", [])
    elif only.as_node == COPY:
        yield from _duplicate(run, only.values)
    else:
        yield from _update(run, updates)


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
    check_kind("supersteps", supersteps, Sequence, "a list of lists of StateUpdate")
    for updates in supersteps:
        check_kind("a superstep", updates, Sequence, "a list of StateUpdate")
    read = [[_read_update(update) for update in updates] for updates in supersteps]
    for number, updates in enumerate(read):
        if not updates:
            raise ValueError(f"superstep {number} of the bulk update has no updates")
        for update in updates:
            check_kind("as_node", update.as_node, str | None, "the name of a node")
            check_kind("task_id", update.task_id, str | None, "the id of a task")
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
        carried = left.carry(run)
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


def _update(run: Run, updates: Sequence[StateUpdate]) -> Effects:
    """Run the writers of the named nodes over the values. What the open superstep has done is
    kept: a task to which the update leads again goes on as it is, with its questions and results;
    what others had finished is applied."""
    machine = run.machine
    if run.position.found is None:
        machine.skip_input()
    at_head = run.position.at_head
    open_ = _look_at_open(run)
    mine = make_tasks(run, updates, open_)
    yield from _run_writers(mine)
    outcome = _decide(run, open_, mine)
    only = updates[0]
    if only.as_node is None and machine.program.scope.triggers and not says_where(only.values):
        kept = yield from _find_kept(run, open_, mine, outcome)
        outcome = _decide(run, open_, mine, kept) if kept else outcome
    _tell_closed(run, mine, outcome, named=only.as_node is not None)
    # History shows the update as the tasks' result, unless the checkpoint has a future of its own
    # already.
    shown = [task for task in mine if at_head and not is_outside(task)]
    writes = [run.commits.encode_writes(task) for task in shown]
    left = OpenWork(run, open_.pending, outcome.again)
    machine.apply_edit(_in_turn(outcome.done, mine), keep=outcome.staying)
    yield from cut(run, "update", writes, left)


class PendingTasks(NamedTuple):
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


def _look_at_open(run: Run) -> PendingTasks:
    pending = upcoming(run)
    finished = _finished(run, pending)
    # At the head an update may speak for an error handler that has taken over.
    now = run.ledger.with_handlers(pending) if run.position.at_head else pending
    return PendingTasks(
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
    open_: PendingTasks,
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
    paths = {task.path for task in mine}
    rest = [t for t in open_.pending if t.path not in paths and t not in dealt_with]
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
    again = _led_to(run, mine, staying, rest) if run.position.at_head else []
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
    run: Run, open_: PendingTasks, mine: Sequence[Task], outcome: Outcome
) -> Generator[Effect, None, list[Task]]:
    """Find what an update without `as_node` keeps of that which it would drop: all to which the
    edges and routers of its node do not lead, with the update or without it. It has come by a goto,
    or from another node."""
    dropped = [task for task in outcome.left if task not in outcome.again]
    if dropped:
        led = _led_to(run, mine, outcome.staying, outcome.left)
        dropped = [task for task in dropped if task not in led]
    if not dropped:
        return []
    usual = make_tasks(run, [StateUpdate(None)], open_)
    yield from _run_writers(usual)
    led = _led_to(run, usual, outcome.staying, outcome.left)
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


def _tell_closed(run: Run, mine: Sequence[Task], outcome: Outcome, *, named: bool) -> None:
    """Say that an update closes questions: warn if it names its node, refuse it otherwise.

    Args:
        mine: the tasks for which it stands.
        named: the update has an `as_node`.

    Raises:
        InvalidUpdateError: it closes questions and has no `as_node`.
    """
    # An old checkpoint keeps its questions: the update goes beside what followed.
    if not run.position.at_head:
        return
    record_of = run.ledger.of
    asking = sorted({task.name for task in outcome.lost if record_of(task.id).waiting})
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
        for task in run.ledger.with_handlers(outcome.left)
        if task.cause is not None and record_of(task.id).waiting
    }
    if failed:
        warn(
            f"{run.thread}: after the update as {actors} nodes that have failed start over, and so "
            f"it closes the question that the error handler of {min(failed)!r} asks; answer it "
            f"first, or act as the node: as_node={min(failed)!r}"
        )


def _led_to(
    run: Run, mine: Sequence[Task], others: Sequence[Task], rest: Sequence[Task]
) -> list[Task]:
    """Those of the pending tasks that the update leads to as well."""
    # Only the machine knows what leads where, so it is tried on a copy.
    trial = run.machine.copy()
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


# -- the tasks that an update stands for -----------------------------------------------------------


def make_tasks(run: Run, updates: Sequence[StateUpdate], found: PendingTasks) -> list[Task]:
    """A task for each update; it stands for a pending one of its node if there is one: first of all
    for one that is open and that no other update stands for."""
    pending = found.standing
    open_ = [task for task in pending if task not in found.finished]
    mine: list[Task] = []
    for place, update in enumerate(updates):
        taken = {task.path for task in mine}
        free = [task for task in open_ if task.path not in taken]
        mine.append(_task(run, update, place, [*free, *open_, *pending]))
    return mine


def _task(
    run: Run, update: StateUpdate, place: int, pending: Sequence[Task]
) -> Task:
    """A task that does nothing but write `update.values` as its node would.

    Args:
        pending: the tasks it may stand for, the best first.
    """
    machine = run.machine
    name = update.as_node if update.as_node is not None else infer_node(machine, pending)
    if update.as_node is None and pending and machine.program.inputs not in machine.program.nodes:
        # In a graph made by hand and in an entrypoint no node stands for the input.
        raise InvalidUpdateError(
            f"node {name!r} has not run yet, and no node brings the input: specify "
            f"as_node={name!r} to act in its place, or let it run first"
        )
    node = machine.program.nodes.get(name)
    if node is None:
        known = _find_own_nodes(machine)
        raise InvalidUpdateError(f"as_node: node {name!r} does not exist; {nearest(name, known)}")
    if not node.writers:
        raise InvalidUpdateError(
            f"as_node: node {name!r} has no writers, so it cannot write an update"
        )
    here = None
    if update.as_node is not None or name == machine.program.inputs:
        here = next((task for task in pending if task.name == name), None)
    node = _writers_only(node)
    if here is None:
        task = Task(node, (INPUT, place), update.values, run)
    else:
        # With its Send: then the node has not seen its triggers, by which it may be pending too.
        task = Task(node, here.path, update.values, run, here.send)
        task.carry_id(here.id)
        if here.cause is not None:
            task.take_place_of(here.cause)
    if update.task_id:
        task.carry_id(update.task_id)
    return task


def _writers_only(node: CompiledNode) -> CompiledNode:
    """The node with a body that returns its input."""
    # A retry policy would run an update again that a writer has refused.
    stand_in = copy(node)
    stand_in.call = NodeCall(give_back, inline=True)
    stand_in.policies = node.policies._replace(retry=())
    return stand_in


def infer_node(machine: Machine, pending: Sequence[Task]) -> str:
    """The node that an update without `as_node` is from: the one that ran last; on a new thread,
    the only one; START, as long as it has an input to take.

    Args:
        pending: the tasks of the open superstep.

    Raises:
        InvalidUpdateError: several ran last, or none has run and the input is not a node's.
    """
    nodes = machine.program.nodes
    own = _find_own_nodes(machine)
    inputs = machine.program.inputs
    if any(task.name == inputs for task in pending):
        return str(inputs)
    found = {name: _last_run(seen) for name, seen in machine.seen.items() if name in nodes}
    ran = {name: version for name, version in found.items() if version}
    if not ran:
        if len(own) == 1:
            return own[0]
        if isinstance(inputs, str) and inputs in nodes:
            return inputs
        raise InvalidUpdateError("no node has run on this thread yet: specify as_node")
    last = [name for name, version in ran.items() if version == max(ran.values())]
    if len(last) > 1:
        raise InvalidUpdateError(
            f"the update is ambiguous, specify as_node: {', '.join(sorted(last))} ran last together"
        )
    return last[0]


def _last_run(seen: Mapping[str, int]) -> int:
    """The version of the state in which a node ran last; 0 if it never ran to its end.

    Args:
        seen: what it has seen.
    """
    ran = seen.get(RAN)
    if ran is None:
        ran = max((version for name, version in seen.items() if name != TASKS), default=0)
    return max(ran, seen.get(TASKS, 0))


def says_where(values: Any) -> bool:
    """Whether an update says itself where its node goes, beside the node's edges."""
    parts = values if isinstance(values, (list, tuple)) else (values,)
    return any(isinstance(p, Send) or (isinstance(p, Command) and bool(p.goto)) for p in parts)


def _find_own_nodes(machine: Machine) -> list[str]:
    """The nodes that the graph's author has named: no hidden ones, no error handlers."""
    nodes = machine.program.nodes
    # They run in the place of others and are due by no trigger, so no update is theirs by itself.
    handlers = {node.handler.name for node in nodes.values() if node.handler is not None}
    return [name for name, node in nodes.items() if not node.hidden and name not in handlers]


def is_outside(task: Task) -> bool:
    """Whether an update stands for no pending task."""
    return bool(task.path[0] == INPUT)


# -- what an edit keeps of a superstep that is open ------------------------------------------------
# Tasks to which the edit leads again go on in the checkpoint that it makes.

def match(run: Run, old: Sequence[Task], new: Sequence[Task]) -> list[tuple[Task, Task]]:
    """The tasks that are the same before and after an edit: of one node, and of Sends those that
    carry the same."""
    left, same = list(old), dict[Task, Task]()
    # Of equal Sends each goes on once: as itself, if it stays, and not as one that has finished.
    for fits in (_is_itself, partial(_is_equal, run)):
        for task in new:
            if task not in same:
                found = next((o for o in left if o.name == task.name and fits(o, task)), None)
                if found is not None:
                    same[task] = found
                    left.remove(found)
    return [(same[task], task) for task in new if task in same]


def _is_itself(old: Task, new: Task) -> bool:
    # A node is due once in a superstep, so its name tells the task.
    return old.send is new.send


def _is_equal(run: Run, old: Task, new: Task) -> bool:
    """Whether the Sends of two tasks carry the same."""
    if old.send is None or new.send is None:
        return False
    if (old.send.key, old.send.race) != (new.send.key, new.send.race):
        return False
    dumps = run.settings.serde.dumps
    try:
        return dumps(old.send.arg) == dumps(new.send.arg)
    except Exception:  # it could not be stored either
        return False


class OpenWork:
    """What the tasks of an open superstep have recorded, read before an edit. Tasks to which the
    edit leads again go on in its checkpoint: they keep their ids, and with them their questions,
    calls, idempotency keys and the namespaces of graphs inside them.

    Args:
        again: those tasks.
        whole: how they have failed goes on with them, and with it their error handlers.
    """

    def __init__(
        self, run: Run, pending: Sequence[Task], again: Sequence[Task], *, whole: bool = False
    ) -> None:
        ledger, self._whole = run.ledger, whole
        planned = {NULL_TASK_ID}
        self.tasks: list[tuple[Task, TaskRecord]] = []
        for task in ledger.with_handlers(pending):
            planned.add(task.id)
            before = ledger.of(task.id)
            if task in again or (whole and task.cause in again):
                self.tasks.append((task, before))
            elif task.cause in again and before.finished:  # its handler has dealt with its failure
                self.tasks[-1] = (task.cause, before)  # type: ignore[assignment]
        self.calls: dict[str, TaskRecord] = {
            task_id: before for task_id, before in ledger.items() if task_id not in planned
        }
        self.claim: ClaimRecord | None = ledger.claim
        machine = run.machine
        self.joined: dict[str, tuple[str, ...]] = {
            task.id: machine.find_joined(task) for task in pending
        }
        # Without a record, too: it may have stored something in a graph inside it.
        self.begun: set[str] = ledger.find_begun(each.id for each in machine.carried.values())
        # That it has failed is not carried over, so nothing else might tell.
        self.begun.update(task.id for task, before in self.tasks if before.error is not None)

    def carry(self, run: Run) -> list[TaskWrites]:
        """Their records for the checkpoint of the edit, which has been applied. From then on they
        are the run's."""
        before = {id(task): known for task, known in self.tasks}
        kept = match(run, [task for task, _ in self.tasks], upcoming(run))
        found = dict(kept)
        for task, _ in self.tasks:
            if task.cause is not None and task.cause in found:
                kept.append((task, handler_of(found[task.cause])))
        joined, begun = self.joined, self.begun
        run.machine.carry({new.path: Carried(old.id, joined.get(old.id, ())) for old, new in kept})
        records: dict[str, TaskRecord] = {}
        for old, new in kept:
            about = describe_kept(new.path, joined.get(old.id, ()), begun=old.id in begun)
            records[old.id] = _going_on(before[id(old)], about, whole=self._whole)
        # Calls have ids made of their parents': without any task that goes on nobody asks for them.
        if kept:
            calls = self.calls.items()
            about = describe_kept(None)
            records.update((id, _going_on(known, about, whole=self._whole)) for id, known in calls)
        if self.claim is not None:
            # What it brought has no questions here unless their tasks go on; but which calls were
            # taken stays known, so that a call which comes once more is not taken again.
            answers = self.claim["answers"] if kept else {}
            claim: ClaimRecord = {**self.claim, "answers": answers, "live": False}
            records[NULL_TASK_ID] = TaskRecord(claim=claim)
        run.ledger.replace(records)
        serde = run.settings.serde
        return [known.encode(serde, id) for id, known in records.items()]


def _going_on(before: TaskRecord, kept: Mapping[str, Any], *, whole: bool) -> TaskRecord:
    """What is known of a task in the checkpoint in which it goes on: what it has done, and how it
    failed only if that goes on too."""
    # Else the edit may have mended the cause of an error, so the task runs again.
    if before.error is not None and not whole:
        before = replace(
            before, writes=[], wrote=False, error=None, routed=False, wake_at=None
        )
    return replace(before, kept=kept, edited=True)


# -- the special ones ------------------------------------------------------------------------------


def _clear(run: Run) -> None:
    """Keep what is done, drop what is pending."""
    machine, pending = run.machine, upcoming(run)
    handled = [task for task in _finished(run, pending) if task not in pending]
    machine.clear([*pending, *handled])


def _feed(run: Run, values: Any) -> None:
    """Take values as the input of a run that has not started."""
    writes = input_writes(run, values) if values is not None else []
    if not writes:
        raise InvalidUpdateError(
            f"as_node={INPUT!r} needs a value for the input channels {run.program.inputs!r}"
        )
    run.machine.apply_input(writes, run.machine.plan(coerce=False))


def copy_cleared(run: Run, *, clears: bool) -> Effects:
    """Clone the checkpoint as a sibling of which nothing is done.

    Args:
        clears: drop what is pending in it.
    """
    run.ledger.replace({})
    yield from _duplicate(run, None, clears=clears)


def _duplicate(run: Run, values: Any, *, clears: bool = False) -> Effects:
    """Clone the checkpoint as a sibling.

    Args:
        values: (values, as_node) pairs to apply to the clone, if any.
        clears: drop what is pending in it.
    """
    machine = run.machine
    found = run.position.found
    if found is None:
        raise InvalidUpdateError(f"as_node={COPY!r}: the thread has no checkpoint to copy")
    if clears:
        _clear(run)
    finished = _finished(run, upcoming(run))
    # A sibling of the checkpoint: it has the same parent, so the clone must hold everything itself.
    run.position.build_beside()
    machine.mark_all_unsaved()
    machine.identify()
    machine.begin_anew()
    # What `get_state` showed as done stays done; in the clone the same tasks have other ids.
    done = {task.path: task.writes for task in finished}
    clones = [task for task in upcoming(run) if task.path in done]
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
        yield from _update(run, [StateUpdate(*pair) for pair in values])
