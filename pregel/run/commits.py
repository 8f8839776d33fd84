"""What a run hands to its saver: finished tasks and supersteps, encoded the moment they are done.

Encoding happens here, before anything is applied or goes on running, so that nothing that later changes a live
value can reach the history.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from ...channels.base import MISSING
from ...channels.last_value import LastValue
from ...checkpoint.base import (
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    NO_WRITES,
    RAISED,
    RESUME,
    Checkpoint,
    Commit,
    TaskWrites,
)
from ...checkpoint.overrides import stores_by_put
from ...checkpoint.records import iso
from ...checkpoint.serde import Blob
from ..superstep.task import Task, uuid_text

if TYPE_CHECKING:
    from .run import Run


def encode(run: Run, task: Task) -> TaskWrites:
    """A finished task's writes as a saver takes them."""
    dumps = run.saver.serde.dumps  # type: ignore[union-attr]
    skip, known_blobs = run.program.untracked, run.blobs
    writes = []
    for name, value in task.writes:
        if name not in skip:
            try:
                blob = dumps(value)
                writes.append((name, blob))
                known_blobs[name] = (value, blob)
            except Exception as error:
                error.add_note(f"while storing key {name!r} written by task {task.name!r} of thread {run.thread_id!r}")
                raise
    known = run.stored.get(task.id) if run.stored else None
    if known is not None and known.error is not None:
        writes.append((ERROR, dumps(None)))  # it failed before and has now succeeded
    writes = writes or [(NO_WRITES, dumps(None))]
    if task.answers or task.passed_on:
        writes.append((RESUME, dumps({**(task.answers or {}), **task.passed_on})))
    spans, task.spans = task.spans, ()
    return TaskWrites(task.id, task.path_text, writes, spans)


def encode_marks(run: Run, task: Task, marks: Mapping[str, Any]) -> TaskWrites:
    """Control writes of a task that failed or paused.

    Raises:
        UnserializableError: its question, result or answers cannot be stored; the notes say whose.
    """
    dumps = run.saver.serde.dumps  # type: ignore[union-attr]
    encoded = []
    for name, value in marks.items():
        try:
            encoded.append((name, dumps(value)))
        except Exception as error:
            what = _MARKS.get(name, "the result")
            error.add_note(f"while storing {what} of task {task.name!r} of thread {run.thread_id!r}")
            raise
    spans, task.spans = task.spans, ()
    return TaskWrites(task.id, task.path_text, encoded, spans)


def marks_of_unfinished(run: Run, task: Task) -> dict[str, Any]:
    """What a task leaves that has failed or paused, as control writes: its error or questions, and the answers that it
    has been given. An answer that was recorded and has been rejected since is no longer among them."""
    known = run.stored.get(task.id) if run.stored else None
    marks: dict[str, Any] = {}
    if isinstance(task.error, Exception):
        marks[ERROR] = task.error
    if task.interrupts:
        marks[INTERRUPT] = list(task.interrupts)
        if task.raised or (known is not None and known.raised):
            marks[RAISED] = task.raised
    if task.answers or (task.answers is not None and known is not None and known.answers):
        marks[RESUME] = task.answers
    return marks


_MARKS = {ERROR: "the error", ERROR_SOURCE: "the error", INTERRUPT: "what interrupt() asks", RESUME: "the answers"}


def cut(run: Run, source: str, writes: list[TaskWrites]) -> Commit:
    """The checkpoint of the superstep just applied, under the id the machine has for it (or, if it may be stored late,
    one that can be found again), ready to be stored.

    Raises:
        UnserializableError: a channel holds what cannot be stored, with key, step and thread in its notes.
    """
    machine = run.machine
    assert run.saver is not None and run.thread_id is not None
    dumps, channels, versions = run.saver.serde.dumps, machine.channels, machine.versions
    # Loops here and in `sql/rows` where a comprehension would do: until Python 3.12 that is a call.
    values: dict[str, Blob | None] = {}
    changed: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {}
    for name in machine.unsaved_seen:
        seen[name] = machine.seen[name]
    for name in machine.unsaved:
        changed[name] = versions[name]
        channel = channels.get(name)
        stored = channel.checkpoint() if channel is not None else MISSING
        known = run.blobs.get(name)
        try:
            if known is not None and stored is known[0] and channel.__class__ is LastValue:
                values[name] = known[1]  # just encoded as a task's write; no reducer has touched it since
            else:
                values[name] = None if stored is MISSING else dumps(stored)
        except Exception as error:
            error.add_note(f"while storing key {name!r} after step {machine.step - 1} of thread {run.thread_id!r}")
            raise
    if run.durability == "async" and (source == "loop" or (source == "input" and (run.ns or run.run_id))):
        origin = run.saved_id if source == "loop" else f"{run.saved_id}\0{run.ns}\0{run.run_id}"
        machine.checkpoint_id = successor_id(origin or "", values)
    now = time.time()
    run.committed = commit = Commit(
        run.thread_id,
        run.ns,
        machine.checkpoint_id,
        run.head,
        run.saved_id,
        now,
        {**run.metadata, "source": source, "step": machine.step - 1, "parents": run.parents},
        values,
        changed,
        seen,
        None if machine.changed is None else sorted(machine.changed),
        writes,
        lambda: machine.checkpoint(iso(now)),
    )
    # Written out, as a call less for every superstep: `run.lags`.
    if (
        run.durability == "async"
        and not run.saver.in_memory
        and (commit.head != commit.parent_id or stores_by_put(run.saver))
    ):
        freeze(run, commit)  # it may be asked for the whole state when the run has gone on
    machine.unsaved = set()
    machine.unsaved_seen = set()
    run.blobs.clear()
    run.head = run.saved_id = machine.checkpoint_id
    return commit


def successor_id(origin: str, values: Mapping[str, Blob | None]) -> str:
    """The id of a checkpoint by what it continues and what has changed. The superstep after it may run before it is
    stored; if it is lost and comes out the same again, the ids of that superstep's tasks are the same, too (R3)."""
    digest = blake2b(origin.encode(), digest_size=16)
    for name in sorted(values):
        form, payload = values[name] or ("", b"")
        digest.update(f"\0{name}\0{form}\0{len(payload)}\0".encode() + payload)
    return uuid_text(digest.hexdigest())


def freeze(run: Run, commit: Commit) -> None:
    """Make the whole checkpoint of a commit now, sharing nothing with the live state: it is stored later."""
    serde, checkpoint = run.saver.serde, commit.whole()  # type: ignore[union-attr]
    values = {name: serde.loads(serde.dumps(value)) for name, value in checkpoint["channel_values"].items()}
    copied = Checkpoint(**{**checkpoint, "channel_values": values})
    commit.whole = lambda: copied
