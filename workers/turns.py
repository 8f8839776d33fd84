"""What happens to a job that is submitted while other jobs of its thread are open:
`Queue.submit(multitask=)`.

One serializable transaction looks up the open jobs, cancels those in the way and stores the new
job: of two jobs submitted at the same time, one sees the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, get_args

from ..checkpoint.base import BaseCheckpointSaver, RunnableConfig
from ..checkpoint.errors import DamagedError, StorageError, UnknownTypeError
from ..checkpoint.sql.postgres_server import is_clash
from ..checkpoint.sql.postgres_wire import Wire, transaction
from ..pregel.errors import ThreadBusyError, nearest
from ..pregel.names import BEFORE_FIRST
from ..pregel.run.config import merge_configs
from ..pregel.types import Multitask
from .database import JobDatabase
from .delays import NOW
from .jobs import decode_name, hash_name
from .submission import Submitter
from .tables import STATEMENTS

TRIES = 20
"""How often a job is submitted that conflicts with another submission to its thread or a claim."""


def check_multitask(multitask: Any) -> None:
    """Check that a multitask strategy exists.

    Raises:
        ValueError: it is.
    """
    if multitask not in get_args(Multitask):
        close = nearest(str(multitask), get_args(Multitask))
        raise ValueError(f"multitask must be one of the four, got {multitask!r}; {close}")


def submit_in_turn(
    database: JobDatabase,
    submitter: Submitter,
    job: tuple[str, str, int, dict[str, Any]],
    multitask: Multitask,
) -> None:
    """Store a job, and cancel the jobs in its way if its strategy says so.

    Args:
        job: its thread, its run id, its priority, and its task.

    Raises:
        ThreadBusyError: the thread is busy, and the strategy is "reject".
        StorageError: it conflicted with other submissions at every attempt; nothing is stored.
    """
    for _ in range(TRIES):
        try:
            with database.statements() as wire:
                with transaction(wire, write=True, isolation="serializable"):
                    cancelled = _store(wire, submitter, job, multitask)
                wire.run(STATEMENTS["notify_waiters"], cancelled)
                submitter.notify(wire, NOW)
            return
        except StorageError as error:
            if not is_clash(error):
                raise
    raise StorageError(
        f"{TRIES} submissions to thread {job[0]!r} came between: nothing was submitted, submit it "
        "again"
    )


def _store(
    wire: Wire,
    submitter: Submitter,
    job: tuple[str, str, int, dict[str, Any]],
    multitask: Multitask,
) -> list[int]:
    """Store the job. Return the ids of the jobs that ended here and for whose end somebody
    waits."""
    thread_id, run_id, priority, given = job
    place = (submitter.graph, hash_name(thread_id), thread_id, run_id)
    rows = wire.rows(STATEMENTS["open_of_thread"], *place)
    found = [(id, decode_name(graph), decode_name(run)) for id, graph, run in rows]
    if any((graph, run) == (submitter.graph, run_id) for _, graph, run in found):
        return []  # already submitted: it runs once
    if found and multitask == "reject":
        raise ThreadBusyError(
            f"thread {thread_id!r} is busy: its job {found[0][2]!r} has not ended. "
            'multitask="enqueue" waits for it, "interrupt" stops it at its next step'
        )
    cancelled = []
    if multitask in ("interrupt", "rollback"):
        cancelled = [row for id, *_ in found for row in wire.rows(STATEMENTS["cancel"], id)]
    if multitask == "rollback":
        taken_back: list[str] = []
        for _, graph, name in found:
            if graph == submitter.graph:  # it may be a rollback itself, and not have begun
                with suppress(DamagedError, UnknownTypeError):  # else it could not have begun
                    rows = wire.rows(STATEMENTS["task"], graph, name, thread_id)
                    taken_back += submitter.read_instead_of(rows, thread_id, name)
            taken_back.append(name)
        given = {**given, "instead_of": [*dict.fromkeys(taken_back)]}
    submitter.store(wire, [submitter.row(thread_id, run_id, priority, given)], NOW)
    return list_awaited(cancelled)


def list_awaited(cancelled: Iterable[tuple[int, str, bool]]) -> list[int]:
    """Return the ids of those cancelled jobs that have ended, and for whose end somebody waits."""
    return [id for id, state, has_waiter in cancelled if has_waiter and state != "running"]


def find_start(
    saver: BaseCheckpointSaver, config: RunnableConfig, instead_of: list[str], was_begun: bool
) -> RunnableConfig:
    """Return the config with which a job begins that rolls others back: it names the checkpoint
    before the input of the first of them that has stored anything.

    Args:
        instead_of: the run ids of these jobs, in the order in which they were submitted.
        was_begun: whether the job may have stored a part itself, from which it then continues.
    """
    if was_begun and saver.run_of(config, str(config["run_id"])) is not None:
        return config
    for run_id in instead_of:
        steps = [*saver.list(config, filter={"run_id": run_id})]
        if steps:
            before = steps[-1].parent_config
            at = before["configurable"]["checkpoint_id"] if before else BEFORE_FIRST
            return merge_configs(config, {"configurable": {"checkpoint_id": at}})
    return config
