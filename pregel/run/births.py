"""The tasks that are under way in a stored checkpoint (schedule="ready"): found again, with what is
recorded beside the checkpoints at which they have started.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ...checkpoint.base import (
    CONTINUES,
    NULL_TASK_ID,
    UNDER_WAY,
    Checkpoint,
    CheckpointTuple,
    PendingWrite,
    RunnableConfig,
    address,
    coordinates,
)
from ..names import under_way_number
from ..superstep.machine import Machine
from ..superstep.ready_machine import ReadyMachine, bear_anew
from ..superstep.task import Task
from ..superstep.under_way import UnderWay, find_birth, find_under_way
from .effects import Effect, Load
from .run import Run
from .task_records import kept_ids, read_records


def load_births(load: Load) -> Generator[Effect, None, None]:
    """Load the births of what is under way, and put what is recorded there beside what was
    found."""
    assert load.found is not None
    births: dict[str, CheckpointTuple] = {}
    for where in births_of(load.found):
        birth = Load(at=where, saver=load.saver)
        yield birth
        assert birth.found is not None  # the driver has refused an unknown one
        births[birth.found.checkpoint["id"]] = birth.found
    if births:
        # An edit says which checkpoints go on in it, and so which do in these.
        told: list[Any] = [birth.metadata.get(CONTINUES, ()) for birth in births.values()]
        continues = dict.fromkeys([*chain(*told), *births])
        metadata: Any = {**load.found.metadata, CONTINUES: [*continues]}
        load.found = with_births(load.found, [*births.values()], metadata)
        load.births = births


def find_births(
    found: CheckpointTuple,
) -> Generator[RunnableConfig, CheckpointTuple | None, CheckpointTuple]:
    """A checkpoint with what tasks that are under way in it have left where they have started; asks
    for what it must load."""
    births = []
    for where in births_of(found):
        birth = yield where
        if birth is not None:
            births.append(birth)
    return with_births(found, births)


def births_of(found: CheckpointTuple) -> list[RunnableConfig]:
    """The configs of the checkpoints at which those tasks have started that are under way in this
    one."""
    if UNDER_WAY not in found.metadata:
        return []
    thread_id, ns, _ = coordinates(found.config)
    births = [find_birth(found.checkpoint, slot) for slot in find_under_way(found.checkpoint)]
    return [address(thread_id, ns, id) for id in dict.fromkeys(births)]


def with_births(
    found: CheckpointTuple, births: Sequence[CheckpointTuple], metadata: Any = None
) -> CheckpointTuple:
    """A checkpoint with what tasks that are under way in it have left where they have started.

    Args:
        metadata: in place of its own.
    """
    pending: list[PendingWrite] = []
    for birth in births:
        pending += (each for each in birth.pending_writes or () if each[0] != NULL_TASK_ID)
    pending += found.pending_writes or ()
    merged = found._replace(pending_writes=pending, metadata=metadata or found.metadata)
    if hasattr(found, "saver_state"):
        merged.saver_state = found.saver_state  # type: ignore[attr-defined]
    return merged


def take_up(
    run: Run, machine: Machine, checkpoint: Checkpoint, births: Mapping[str, CheckpointTuple]
) -> None:
    """Let the machine of a run, or of an edit, know what is under way."""
    if not isinstance(machine, ReadyMachine):
        wait_anew(machine, checkpoint)
        return
    born = {id: _stand_at(run, birth) for id, birth in births.items()}
    tasks: dict[int, Task] = {}
    for slot, known in _find_known(machine, checkpoint).items():
        make_again = born[find_birth(checkpoint, slot)]
        tasks[under_way_number(slot)] = make_again(known)
    machine.take_up(tasks)


def wait_anew(machine: Machine, checkpoint: Checkpoint) -> None:
    """Let what is under way wait to be started, in the state of this checkpoint."""
    known = _find_known(machine, checkpoint)
    if known:
        bear_anew(machine, known, [*known.values()])


def _find_known(machine: Machine, checkpoint: Checkpoint) -> dict[str, UnderWay]:
    """Slot → what is under way there, of the nodes that the graph has."""
    found = find_under_way(checkpoint).items()
    return {slot: each for slot, each in found if each["node"] in machine.program.nodes}


def _stand_at(run: Run, birth: CheckpointTuple) -> Callable[[UnderWay], Task]:
    """Makes tasks again that have started at a checkpoint."""
    records = read_records(birth.pending_writes or ())
    step = birth.metadata["step"] + 1
    machine = ReadyMachine(run.program, birth.checkpoint, step, kept_ids(records))
    return partial(machine.make_again, run.stand_at(machine, birth))
