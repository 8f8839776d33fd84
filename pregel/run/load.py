"""Loads the checkpoint from which a call starts, and finds what another version of the graph has
left in it.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from ...checkpoint.base import (
    MADE_BY,
    OF_TASK,
    RETURN,
    UNDER_WAY,
    UNDOING,
    CheckpointTuple,
    address,
)
from ..errors import ThreadUndoingError
from ..names import (
    DELIVERED,
    GRAPH,
    UNDO,
    has_task_ids,
    is_routing,
    is_under_way,
    last_level,
    triggered_node,
)
from ..program.flow import parse_join
from ..program.version import apply_migration, find_retyped
from ..schedule.machine import Machine
from ..task.task import Task
from .effects import Effect, Load, Save
from .ledger import TaskRecord
from .nested import load_around, load_rewound, load_seed, ns_of, stopped_here
from .run import Run, run_of


def load_checkpoint(run: Run) -> Generator[Effect, None, Load]:
    """Find what the run starts from, and the newest checkpoint of its namespace.

    Raises:
        RuntimeError: the graph keeps one history, and another open task works on it.
    """
    task = run.parent
    if task is None or run.settings.graph.checkpointer is not True:
        load = yield from _load_checkpoint(run)
        yield from find_undoing(run, load)
        return load
    replay = run.outermost.replay
    contested = replay.claim_history(run.thread.ns, task)
    resumed = replay.find_resumed(task)  # first: one that ends meanwhile has changed the history
    load = yield from _load_checkpoint(run)
    # The task that has stopped in this history continues, even if another one came first.
    if not stopped_here(run, load.found):
        made_by: Any = () if load.found is None else load.found.metadata.get(OF_TASK, ())
        if contested or not resumed.isdisjoint(made_by):
            raise RuntimeError(
                f"two tasks that run at the same time run the graph of {run.thread.ns!r}, which "
                "keeps one history (checkpointer=True): compile it with checkpointer=None, run it "
                "in nodes of different names, or give each Send a key of its own: "
                "Send(..., key=...)"
            )
    return load


def _load_checkpoint(run: Run) -> Generator[Effect, None, Load]:
    around: Load | None = None
    if run.thread.nested is not None:
        around = yield from load_around(run)
    if run.parent is not None:
        done = run_of(run.parent).commits.take_left(run.thread.ns)
        if done is not None:  # the task tries again, and finds what this graph has done
            yield Save(done)
        seed = yield from load_seed(run)
        if seed is not None:
            return seed
        if done is None and _is_new(run, run.parent):
            return Load()  # nothing to look for (benchmark P23)
    if run.replay.rewind is not None and around is None:
        return (yield from load_rewound(run))
    load = around or Load()
    if around is None:
        yield load
    if load.found is None or not _may_have_followed(run, load.found):
        return load
    # A run that only brought an answer made no checkpoint by which it could be found.
    delivered: Any = load.found.metadata.get(DELIVERED, ())
    if run.thread.run_id in delivered:
        load.followed = True
        return load
    again = Load(made_by=run.thread.run_id)
    yield again
    if again.found is not None:
        load.found, load.followed = again.found, True
    return load


def _is_new(run: Run, parent: Task) -> bool:
    """Whether nothing can be stored yet where a nested graph works: its task, which is part of the
    name, follows a checkpoint that this very process has given a random id, and runs for the first
    time. A `@task` call may have run before, in an earlier attempt of its caller."""
    return (
        run_of(parent).commits.made_new
        and parent.attempt == 1
        and parent.path[-1] is not True
        and has_task_ids(last_level(run.thread.ns)[0])
    )


def find_undoing(run: Run, load: Load) -> Generator[Effect, None, None]:
    """Find out whether the thread is being undone, where a call does not go on from the newest
    checkpoint: on a branch beside it, what is undone already would be undone again."""
    found, head = load.found, load.head
    if head is None or (found is not None and found.checkpoint["id"] == head):
        return
    from ..undo import DECLARED  # few calls name an earlier checkpoint (benchmark P26)

    if not DECLARED or run.ns or UNDO in run.program.nodes:
        return
    newest = Load(at=address(run.thread.thread_id or "", "", head), may_be_gone=True)
    yield newest
    load.undoing = newest.found is not None and UNDOING in newest.found.metadata


def _may_have_followed(run: Run, head: CheckpointTuple) -> bool:
    """Whether the call may be one that came before, and that others have followed since."""
    thread = run.thread
    if thread.run_id is None or run.settings.given is None or thread.ns:
        return False
    # The head's own run id is looked at later: then nothing has followed.
    return not thread.names_checkpoint and head.metadata.get("run_id") != thread.run_id


def load_machine(run: Run, loaded: Load, *, edits: bool = False) -> None:
    """Give the run the state that it starts from, with what a `Command` has brought beside it; its
    position is there from now on.

    Args:
        edits: the thread is edited, not run.
    """
    found, program = loaded.found, run.program
    if UNDO not in program.nodes:
        _refuse_undoing(run, loaded)
    make_open: Any = None if edits or program.flow is None else program.flow.make_open
    open_tasks = None if make_open is None else make_open()
    if found is None:
        if loaded.head is not None:
            run.position.find_head(loaded.head)
        machine = Machine(program, open=open_tasks)
        if run.thread.saver is not None:
            machine.sign()
        elif run.ns:
            # The same when the task around it runs again, so that ids are the same too.
            machine.identify(run.ns)
        run.start(machine)
        return
    mine = apply_migration(found, program, run.settings.graph.migrate)
    ledger = run.ledger
    ledger.load(mine.pending_writes or ())
    find_former = getattr(run.settings.graph.migrate, "find_former_ids", None)
    if find_former is not None:
        ledger.follow(find_former(run.ns, ledger))
    step = mine.metadata["step"] + 1
    machine = Machine(program, mine.checkpoint, step, ledger.find_carried(), open_tasks)
    in_place = ns_of(mine.config) == run.ns
    if not in_place:  # it goes on in a namespace of its own, where nothing is stored yet
        machine.mark_all_unsaved()
    # A migrated state is not what the parent holds, so the next checkpoint cannot build on it.
    if mine is not found:
        machine.replace(found.checkpoint)
    machine.sign()
    run.position.load(mine, loaded.head, in_place=in_place)
    run.start(machine)
    if not loaded.followed:
        ledger.bring_back(machine)
    if UNDER_WAY in mine.metadata:
        from .origins import take_up

        take_up(run, mine)


def _refuse_undoing(run: Run, loaded: Load) -> None:
    found = loaded.found
    here = found.checkpoint["id"] if found is not None and UNDOING in found.metadata else None
    if loaded.undoing or (here is not None and here == loaded.head):
        raise ThreadUndoingError(
            f"{run.thread} is being undone: undo(config) or invoke(None, config) continues that"
        )
    if here is not None:
        raise ThreadUndoingError(
            f"{run.thread}: checkpoint {here!r} is that of an undo, which has ended: name another"
        )


# -- what another version of the graph has left, and this one has no place for ---------------------

def lost_work(
    machine: Machine, found: CheckpointTuple, stored: Mapping[str, TaskRecord]
) -> list[str]:
    """The pending work of a checkpoint that the machine's program lacks: another graph made it."""
    program = machine.program
    names = set(_lost_triggers(machine, found))
    for known in stored.values():
        written = {name for name, _ in known.writes} - {RETURN, MADE_BY}
        names.update(name for name in written if name not in program.channels)
    nodes = {send.node for send in machine.pending_sends() if send.node not in program.nodes}
    nodes.update(_lost_slots(machine, found).values())
    return sorted({_where_to(name) for name in names} | {f"node {name!r}" for name in nodes})


def lost_kinds(
    machine: Machine, found: CheckpointTuple, stored: Mapping[str, TaskRecord]
) -> list[str]:
    """The keys with a value, or with one that a task has written, and the pending nodes of a
    checkpoint that are of another kind in the machine's program."""
    changed = find_retyped(
        found.checkpoint["versions_seen"].get(GRAPH, {}), machine.program.fingerprint
    )
    if not changed:
        return []
    held = {f"key {name!r}" for name in found.checkpoint["channel_values"]}
    held.update(f"key {name!r}" for known in stored.values() for name, _ in known.writes)
    due = {f"node {task.name!r}" for task in machine.plan(coerce=False)}
    return sorted(changed & (held | due))


def forget_lost(machine: Machine, found: CheckpointTuple) -> None:
    """Drop the pending work of a checkpoint for which the machine's program has no node."""
    slots = _lost_slots(machine, found)
    machine.forget([*_lost_triggers(machine, found), *slots])
    machine.forget_seen(slots)  # else the origins of these tasks would be kept


def _lost_slots(machine: Machine, found: CheckpointTuple) -> dict[str, str]:
    """Slot → node of the tasks under way (schedule="ready") whose node the machine's program
    lacks."""
    stored = found.checkpoint["channel_values"].items()
    nodes = {name: value["node"] for name, value in stored if is_under_way(name)}
    return {name: node for name, node in nodes.items() if node not in machine.program.nodes}


def _lost_triggers(machine: Machine, found: CheckpointTuple) -> list[str]:
    """The channels that trigger a node in the graph that made the checkpoint, and that the
    machine's program lacks."""
    left = [name for name in found.checkpoint["channel_values"] if name not in machine.channels]
    if machine.program.scope.triggers:
        return [name for name in left if is_routing(name)]
    moved = found.checkpoint["updated_channels"] or ()
    return [name for name in left if name in moved]


def _where_to(channel: str) -> str:
    node = triggered_node(channel)
    if node is not None:
        return f"node {node!r}"
    join = parse_join(channel)
    if join is not None:
        return f"the join of {' and '.join(map(repr, join.sources))} before {join.target!r}"
    return f"channel {channel!r}"
