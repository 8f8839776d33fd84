"""Loads the tasks that are under way in a stored checkpoint (schedule="ready"), with what is
recorded beside their origins: the checkpoints at which they have started. For calls, and for the
history of a thread.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ...checkpoint.base import (
    CONTINUES,
    KEPT,
    MADE_BY,
    NULL_TASK_ID,
    UNDER_WAY,
    Checkpoint,
    CheckpointTuple,
    PendingWrite,
    RunnableConfig,
    TaskWrites,
    address,
    coordinates,
)
from ...checkpoint.serde import Blob
from ..names import GRAPH, under_way_number
from ..program.writes import Pair
from ..schedule.machine import Machine
from ..schedule.rules import open_of
from ..schedule.slots import UnderWayRecord, find_origin, find_under_way
from ..schedule.state import assign_slots
from ..task.task import Task, handler_of
from .effects import Effect, Effects, Load, Save
from .ledger import Ledger, revive
from .run import Run, run_of


def load_origins(load: Load) -> Generator[Effect, None, None]:
    """Load the origins of what is under way, and put what is recorded there beside what was
    found."""
    assert load.found is not None
    origins: dict[str, CheckpointTuple] = {}
    for where in origins_of(load.found):
        origin = Load(at=where, saver=load.saver, may_be_gone=True)
        yield origin
        if origin.found is not None:
            origins[origin.found.checkpoint["id"]] = origin.found
    if origins:
        load.found = with_origins(load.found, [*origins.values()])


def origins_of(found: CheckpointTuple) -> list[RunnableConfig]:
    """The configs of the origins of the tasks that are under way in a checkpoint."""
    if UNDER_WAY not in found.metadata:
        return []
    thread_id, ns, _ = coordinates(found.config)
    origins = [find_origin(found.checkpoint, slot) for slot in find_under_way(found.checkpoint)]
    return [address(thread_id, ns, id) for id in dict.fromkeys(origins)]


def with_origins(found: CheckpointTuple, origins: Sequence[CheckpointTuple]) -> CheckpointTuple:
    """A checkpoint with what is recorded beside the origins of the tasks under way in it, and with
    these origins."""
    pending: list[PendingWrite] = []
    graph = found.checkpoint["versions_seen"].get(GRAPH)
    for origin in origins:
        before = origin.checkpoint["versions_seen"].get(GRAPH)
        if before is not None and before != graph:  # see `Migration.convert`; the last counts
            ids = dict.fromkeys(id for id, _, _ in origin.pending_writes or ())
            pending += ((id, MADE_BY, before) for id in ids if id != NULL_TASK_ID)
        for write in origin.pending_writes or ():
            task_id, name, value = write
            if name == KEPT:  # the place is one in the origin, not in this checkpoint
                pending.append((task_id, name, {**value, "path": None}))
            elif task_id != NULL_TASK_ID:
                pending.append(write)
    # A `@task` call that has returned there may have failed beside this checkpoint before.
    returned = {id for id, known in Ledger(pending).items() if known.finished}
    pending += (write for write in found.pending_writes or () if write[0] not in returned)
    merged = found._replace(pending_writes=pending)
    merged.origins = tuple(origins)
    if hasattr(found, "saver_state"):
        merged.saver_state = found.saver_state  # type: ignore[attr-defined]
    return merged


def take_up(run: Run, found: CheckpointTuple) -> None:
    """Give the machine of a run, or of an edit, the tasks that are under way. One whose origin was
    deleted starts anew."""
    machine, checkpoint = run.machine, found.checkpoint
    origins = {origin.checkpoint["id"]: origin for origin in found.origins}
    # Origins may themselves continue earlier checkpoints: those continue here, too.
    continued: list[Any] = [origin.metadata.get(CONTINUES, ()) for origin in origins.values()]
    run.position.note_continued([*chain(*continued), *origins])
    if machine.open is None:
        run.position.note_unqueued(machine.copy())
        requeue_stored(machine, checkpoint)
        return
    rebuild = {id: _rebuilder(run, origin) for id, origin in origins.items()}
    tasks: dict[int, Task] = {}
    without_origin: dict[str, UnderWayRecord] = {}
    for slot, known in _find_known(machine, checkpoint).items():
        make_task = rebuild.get(find_origin(checkpoint, slot))
        if make_task is not None:
            tasks[under_way_number(slot)] = make_task(known)
        else:
            without_origin[slot] = known
    if without_origin:
        machine.requeue(without_origin)
    machine.load_open(tasks)


def bring_in(run: Run, writes: Sequence[Pair]) -> None:
    """Apply what a `Command` brings, where supersteps run tasks that had been under way. Its Sends
    come before these tasks, so that they have the same ids in both schedules, and after the thread
    is loaded again."""
    state, found = run.position.unqueued, run.position.found
    assert state is not None and found is not None
    state.apply_writes(writes)
    requeue_stored(state, found.checkpoint)
    assign_slots(run.machine, state)
    run.position.note_unqueued(None)


def keep_strays(run: Run) -> Effects:
    """Supersteps may have run what is under way, and recorded it beside the head. With this
    schedule the head moves on while those tasks stay, so their records go to their origins."""
    machine = run.machine
    found = run.position.found
    origins = {task.run.machine.checkpoint_id for task in open_of(machine)}
    if found is None or not origins or run.position.saved_id is None:
        return
    waiting = machine.copy().plan(run, coerce=False)
    known = {NULL_TASK_ID, *(task.id for task in _with_handlers(waiting))}
    # What has finished is applied in the next step.
    under_way = (task.id for task in _with_handlers(open_of(machine)))
    known.update(id for id in under_way if run.ledger.of(id).finished)
    # Records of `@task` calls are among these: they do not say which task made them.
    strays: dict[str, list[tuple[str, Blob]]] = {}
    for task_id, name, value in _list_beside_head(machine, found):
        if task_id not in known:
            strays.setdefault(task_id, []).append((name, run.settings.serde.dumps(value)))
    records = [TaskWrites(task_id, "", pairs) for task_id, pairs in strays.items()]
    if records:
        yield Save(None, [], run.position.saved_id, others=dict.fromkeys(origins, records))


def find_beside_head(run: Run) -> set[str]:
    """The ids of tasks that have records beside the head. While it is the head, these take
    precedence over records beside an origin."""
    found = run.position.found
    if found is None or run.position.saved_id != found.checkpoint["id"]:
        return set()
    return {task_id for task_id, _, _ in _list_beside_head(run.machine, found)}


def _list_beside_head(machine: Machine, found: CheckpointTuple) -> list[PendingWrite]:
    """What is recorded beside the head itself, and not beside the origins."""
    origins = [run_of(task).position.found for task in open_of(machine)]
    known_there = (origin.pending_writes or () for origin in origins if origin is not None)
    theirs = {id(write) for write in chain.from_iterable(known_there)}
    pending = found.pending_writes or ()
    return [write for write in pending if id(write) not in theirs and write[1] != KEPT]


def _with_handlers(tasks: Iterable[Task]) -> Iterator[Task]:
    """Tasks, each with that of its error handler."""
    for task in tasks:
        yield task
        if task.node.handler is not None:
            yield handler_of(task)


def requeue_stored(machine: Machine, checkpoint: Checkpoint) -> None:
    """Let what is under way wait to be started, in the state of this checkpoint."""
    known = _find_known(machine, checkpoint)
    if known:
        machine.requeue(known, {slot: find_origin(checkpoint, slot) for slot in known})


def _find_known(machine: Machine, checkpoint: Checkpoint) -> dict[str, UnderWayRecord]:
    """Slot → what is under way there, of the nodes that the graph has."""
    found = find_under_way(checkpoint).items()
    return {slot: each for slot, each in found if each["node"] in machine.program.nodes}


def _rebuilder(run: Run, origin: CheckpointTuple) -> Callable[[UnderWayRecord], Task]:
    """What rebuilds the tasks that have started at a checkpoint."""
    machine, _ = revive(run.program, origin)
    return partial(machine.rebuild_task, run.pin_to(machine, origin), run.settings.limit)
