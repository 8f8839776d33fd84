"""A thread as rows, for savers on databases: what each row holds, as records and as bytes. No SQL.

A namespace of a thread has a row that names its head. A checkpoint's row holds what its step
changed and links to the row it builds on; every `KEYFRAME` links one holds a complete table, so
that reading walks few rows. Short values stand in the checkpoint's row; long ones have a row of
their own, whole or as a delta on an older one. They are named by their owner (the checkpoint that
wrote them) and the last bytes of their row, so that nothing can take its place unseen. So it is
with what the tasks of a superstep wrote: if short, it stands in the row of the checkpoint that came
of it; else in a row beside their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import DamagedError
from ..integrity import Integrity
from ..records import TaskWrites, check_names
from ..serde import Blob
from ..serde.msgpack import packb, unpackb

KEYFRAME = 32
"""The most rows that have to be read for the table of a checkpoint."""

SELF = 0
"""As an owner: the checkpoint in whose row this stands."""


# -- rows as the database has them -----------------------------------------------------------------


@dataclass(slots=True)
class NamespaceRow:
    """A namespace of a thread. `head` is the sequence of its newest checkpoint, `revision` how
    often something was recorded beside that, `size` the number of all."""

    id: int
    thread_id: str
    checkpoint_ns: str
    head: int | None
    head_id: str | None
    revision: int
    size: int

    def key(self, integrity: Integrity) -> ThreadKey:
        """Its names, to read and write rows with."""
        return ThreadKey(self.thread_id, self.checkpoint_ns, integrity)


class CheckpointRow(NamedTuple):
    """A checkpoint. `link` is the sequence of the row it builds on, None if its table is
    complete."""

    namespace_id: int
    seq: int
    checkpoint_id: str
    parent_id: str | None
    link: int | None
    run_id: str | None
    body: bytes


class ValueRow(NamedTuple):
    """A long value. `base` is the owner of the value that it is a delta on, None if it is whole."""

    owner: int
    channel: str
    base: int | None
    data: bytes


# -- what they mean --------------------------------------------------------------------------------


@dataclass(slots=True)
class ChannelValue:
    """The value of one channel at one checkpoint.

    Attributes:
        blob: its bytes, whole; None until they are read.
        owner: whose value row holds it; None if it stands in the checkpoint's row.
        digest: the last bytes of that value row.
        delta_size, delta_count: bytes and number of the deltas it is made of.
    """

    blob: Blob | None
    owner: int | None = None
    digest: bytes = b""
    delta_size: int = 0
    delta_count: int = 0


@dataclass(slots=True, weakref_slot=True)
class MaterializedState:
    """Everything that is true at one checkpoint. It belongs to a run, and is changed in place as
    that goes on.

    Attributes:
        id: of the checkpoint; empty before the first, and if the rows it was read from have
            changed.
        distance: how many links lie behind it; -1 before the first checkpoint.
        revision: how often something was recorded beside it.
    """

    key: ThreadKey
    namespace_id: int
    seq: int = 0
    id: str = ""
    distance: int = -1
    revision: int = 0
    values: dict[str, ChannelValue] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=dict)

    def held(self) -> Collection[str]:
        """The channels that hold something."""
        return self.values

    def blob(self, channel: str) -> Blob:
        """What such a channel holds, once it was read."""
        blob = self.values[channel].blob
        assert blob is not None
        return blob


class CheckpointBody(NamedTuple):
    """What a checkpoint's row holds, unpacked. A value None: the channel is empty.

    Attributes:
        parent_revision: how often something had been recorded beside the parent when this was made,
            so that it is seen if that is missing; None without a parent.
        parent_writes: what the parent's tasks wrote, where it is not recorded beside the parent.
    """

    ts: float | str
    v: int
    metadata: Blob
    parent_revision: int | None
    updated: list[str] | None
    values: Mapping[str, ChannelValue | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    parent_writes: Sequence[TaskWrites] = ()


@dataclass(slots=True)
class StoredCheckpoint:
    """A checkpoint as read, with what its tasks wrote."""

    row: CheckpointRow
    body: CheckpointBody
    state: MaterializedState
    tasks: list[TaskWrites]


# -- bytes -----------------------------------------------------------------------------------------

_KINDS = {
    "checkpoint": "checkpoint",
    "value": "the value of",
    "writes": "what was recorded beside checkpoint",
}


class ThreadKey:
    """A namespace of a thread by its names: what its rows are bound to."""

    __slots__ = ("_prefix", "checkpoint_ns", "integrity", "thread_id")

    def __init__(self, thread_id: str, checkpoint_ns: str, integrity: Integrity) -> None:
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.integrity = integrity
        check_names(thread_id, checkpoint_ns)
        self._prefix = packb([thread_id, checkpoint_ns])

    def pack(self, kind: str, names: Sequence[Any], content: Any) -> bytes:
        """Content as the protected bytes of a row.

        Raises:
            ValueError: a name in it is no text.
        """
        try:
            return self.integrity.protect(packb(content), self._prefix + packb([kind, *names]))
        except TypeError as error:
            raise ValueError(
                f"a name in the {kind} of {names[0]!r} is not valid Unicode: {error}. Nothing was "
                "stored"
            ) from error

    def unpack(self, kind: str, names: Sequence[Any], data: bytes) -> Any:
        """The content of a row.

        Raises:
            DamagedError: says where.
        """
        try:
            if not isinstance(data, bytes):  # a database may hold anything
                raise ValueError(f"it must be bytes, got {type(data).__name__}")
            return unpackb(self.integrity.unprotect(data, self._prefix + packb([kind, *names])))
        except ValueError as error:
            raise self.damage_error(f"{_KINDS[kind]} {names[0]!r}: {error}") from error

    def digest(self, data: bytes) -> bytes:
        """The last bytes of a row, which tell it from all others."""
        return data[-self.integrity.digest_size :]

    def damage_error(self, what: str) -> DamagedError:
        """An error that names this thread and namespace."""
        where = f"thread {self.thread_id!r}"
        if self.checkpoint_ns:
            where += f", namespace {self.checkpoint_ns!r}"
        return DamagedError(
            f"{where}: {what}. Restore it from a backup, or delete the damaged part"
        )


def pack_body(
    key: ThreadKey, checkpoint_id: str, parent_id: str | None, body: CheckpointBody, complete: bool
) -> bytes:
    """A checkpoint's body as the protected bytes of its row; `complete`: it builds on no other."""
    ts, v, metadata, parent_revision, updated, values, versions, seen, writes = body
    entries: dict[str, Any] = {}
    for name, value in values.items():  # a loop: until Python 3.12 a comprehension is a call
        if value is None:
            entries[name] = None
        elif value.owner is not None:
            entries[name] = [value.owner, value.digest]
        else:
            entries[name] = value.blob
    tasks = [*map(tuple, writes)]
    content = [ts, v, metadata, parent_revision, updated, entries, versions, seen, tasks]
    return key.pack("checkpoint", [checkpoint_id, parent_id, complete], content)


def unpack_body(key: ThreadKey, row: CheckpointRow) -> CheckpointBody:
    """The body of a checkpoint's row.

    Raises:
        DamagedError: it is not what was written.
    """
    names = [row.checkpoint_id, row.parent_id, row.link is None]
    content = key.unpack("checkpoint", names, row.body)
    ts, v, (form, payload), parent_revision, updated, entries, versions, seen, tasks = content
    values = {name: _value(entry, row.seq) for name, entry in entries.items()}
    writes = unpack_tasks(tasks)
    metadata = (form, payload)
    return CheckpointBody(ts, v, metadata, parent_revision, updated, values, versions, seen, writes)


def _value(entry: Any, seq: int) -> ChannelValue | None:
    if entry is None:
        return None
    first, second = entry
    if isinstance(first, str):
        return ChannelValue((first, second))
    return ChannelValue(None, first or seq, second)


def pack_writes(
    key: ThreadKey, checkpoint_id: str, position: int, tasks: Iterable[TaskWrites]
) -> bytes:
    """What tasks wrote beside a checkpoint, as the bytes of one row, which has this place among its
    rows."""
    return key.pack("writes", [checkpoint_id, position], [tuple(task) for task in tasks])


def unpack_tasks(content: Iterable[Any]) -> Sequence[TaskWrites]:
    """What tasks wrote, as it came from the packer."""
    return [
        TaskWrites(
            task_id, task_path, [(name, (form, payload)) for name, (form, payload) in writes], spans
        )
        for task_id, task_path, writes, spans in content
    ]
