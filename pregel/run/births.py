"""The tasks that are under way in a stored checkpoint (schedule="ready"): found again, with what is
recorded beside the checkpoints at which they have started.

Part of the loop: generators that ask for effects and perform none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

from ...checkpoint.base import (
    BIRTHS,
    NULL_TASK_ID,
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
from ..superstep.under_way import UnderWay, find_under_way
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
        load.found, load.births = with_births(load.found, [*births.values()]), births


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
    if BIRTHS not in found.metadata:
        return []
    thread_id, ns, _ = coordinates(found.config)
    known = find_under_way(found.checkpoint).values()
    return [address(thread_id, ns, id) for id in dict.fromkeys(each["birth"] for each in known)]


def with_births(found: CheckpointTuple, births: Sequence[CheckpointTuple]) -> CheckpointTuple:
    """A checkpoint with what tasks that are under way in it have left where they have started."""
    pending: list[PendingWrite] = []
    for birth in births:
        pending += (each for each in birth.pending_writes or () if each[0] != NULL_TASK_ID)
    merged = found._replace(pending_writes=[*pending, *(found.pending_writes or ())])
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
    known = _find_known(machine, checkpoint).items()
    machine.take_up({under_way_number(slot): born[each["birth"]](each) for slot, each in known})


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
