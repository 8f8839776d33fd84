"""A thread as rows, for checkpointers on databases: what each row holds, as records and as bytes.
No SQL.

A namespace of a thread has a row that names its head. A checkpoint's row holds what its superstep
changed and links to the row it builds on; after some links, `KEYFRAME` at most, a row holds
complete tables, so that reading walks few rows. Short values are stored in the checkpoint's row; a
long one has its own row, whole or as a delta on an older value. Long values are identified by their
owner (the checkpoint that wrote them) and the last bytes of their row, so that no replacement goes
unnoticed. What the tasks of a superstep wrote is stored the same way: if short, in the row of the
checkpoint that resulted from it, otherwise in a row beside their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import DamagedError, UnknownKeyError
from ..integrity import Integrity
from ..records import TaskWrites
from ..serde import Blob
from ..serde.delta import OPENING, SharedBlob, apply_deltas, length_after, only_adds
from ..serde.msgpack import packb, unpack_view, unpackb
from ..serde.serializer import FORMAT

KEYFRAME = 32
"""How many rows must be read at most for the tables of a checkpoint."""

PackedBlob = tuple[str | int | None, bytes]
"""A blob as it is stored in a row. No format means the most common one. A number means that so many
last bytes of a write equal those of its channel's value: only the bytes before them are stored."""

_OLD_TAIL = "tail:"
"""What pruning in version 0.2.0 has put before such a number."""

PackedTask = tuple[str | bytes, str, Sequence[tuple[str, PackedBlob]], Sequence[float]]
"""What a task wrote, as it is stored in a row."""

OLDEST = -(2**62)
"""An owner lower than all others; those of pruned checkpoints are below zero."""

SELF = 0
"""The owner that means the checkpoint in whose row it is stored."""


# -- rows as the database has them -----------------------------------------------------------------


@dataclass(slots=True)
class NamespaceRow:
    """A namespace of a thread. `head` is the sequence of its newest checkpoint, `revision` the
    number of records beside that, `size` the number of checkpoints."""

    id: int
    thread_id: str
    checkpoint_ns: str
    head: int | None
    head_id: str | None
    revision: int
    size: int

    def key(self, integrity: Integrity) -> ThreadKey:
        """Return its names as a key, with which rows are read and written."""
        return ThreadKey(self.thread_id, self.checkpoint_ns, integrity)


class CheckpointRow(NamedTuple):
    """A checkpoint. `link` is the sequence of the row it builds on, None if its tables are
    complete."""

    namespace_id: int
    seq: int
    checkpoint_id: str
    parent_id: str | None
    link: int | None
    run_id: str | None
    body: bytes


class ValueRow(NamedTuple):
    """A long value. `base` is the owner of the value on which it is a delta, None if it is
    whole."""

    owner: int
    channel: str
    base: int | None
    data: bytes


# -- what rows represent ---------------------------------------------------------------------------


class ValueDelta(NamedTuple):
    """The row of a value that is a delta: the owner and the digest of the value it is based on."""

    base: int
    base_digest: bytes
    delta: bytes | memoryview


@dataclass(slots=True)
class ChannelValue:
    """The value of one channel at one checkpoint.

    Attributes:
        blob: the whole value; None until it is read.
        owner: the owner of the value row that holds it; None if it is in the checkpoint's row.
        digest: the last bytes of that value row.
        whole: the length of the whole value on which the first delta is based.
        deltas: the deltas to apply, oldest first.
        base: if the rows are read, and `blob` is made each time it is needed: that whole value; or
            what it shares with newer and older values of the channel.
        known_openings: see `openings`.
    """

    blob: Blob | None
    owner: int | None = None
    digest: bytes = b""
    whole: int = 0
    deltas: Sequence[ValueDelta] = ()
    base: Blob | SharedBlob | None = None
    known_openings: Openings | None = None

    def read(self) -> Blob:
        """Return the whole value, after its rows were read.

        Raises:
            ValueError: a delta does not fit.
        """
        if self.blob is not None:
            return self.blob
        assert self.base is not None
        if isinstance(self.base, SharedBlob):
            return self.base.read()
        if not self.deltas:
            return self.base
        form, payload = self.base
        return form, apply_deltas(payload, [each.delta for each in self.deltas])

    @property
    def place(self) -> tuple[int, bytes]:
        """The owner and the digest of a long value."""
        assert self.owner is not None
        return self.owner, self.digest

    def openings(self, oldest: int) -> Openings:
        """Return the value itself and the older ones to which all deltas since have only added at
        the end, and those that were read with their help.

        Args:
            oldest: of values before the first that is older than this owner some may be missing.
        """
        known = self.known_openings
        if known is None or oldest < known.oldest:
            if known is not None:  # more and more is looked at: find all at once
                oldest = OLDEST
            self.known_openings = known = Openings(self._find_openings(oldest), oldest)
        return known

    def _find_openings(self, oldest: int) -> Iterator[ChannelValue]:
        assert self.blob is not None
        whole = SharedBlob.share(self.blob)
        whole.buffer.append(0)  # newer values are put into another: this one is kept, and counted
        yield ChannelValue(None, *self.place, self.whole, self.deltas, whole)
        opening, end, place = len(whole.opening), whole.end, self.place
        for number in range(len(self.deltas), 0, -1):
            base, base_digest, packed = self.deltas[number - 1]
            delta = unpack_view(packed)
            if length_after(delta) != opening + end - OPENING:
                break
            if end < whole.end and len(delta[1]) == opening:
                shared = SharedBlob(whole.form, delta[1], whole.buffer, end)
                yield ChannelValue(None, *place, self.whole, self.deltas[:number], shared)
            if place[0] < oldest or not only_adds(delta, opening):
                break
            end, place = OPENING + delta[2], (base, base_digest)

    def read_tail(self, size: int) -> Blob:
        """Return the format and the last bytes of the value, or all it has; see `read`."""
        if isinstance(self.base, SharedBlob) and size <= self.base.end - OPENING:
            return self.base.form, bytes(self.base.buffer[self.base.end - size : self.base.end])
        form, payload = self.read()
        return form, bytes(payload[-size:])


class Openings(dict[tuple[int, bytes], ChannelValue]):
    """Values that share their bytes with a longer one, by owner and digest.

    Args:
        oldest: see `ChannelValue.openings`.
    """

    def __init__(self, values: Iterable[ChannelValue], oldest: int) -> None:
        super().__init__((value.place, value) for value in values)
        self.oldest: int = oldest

    def share(self, value: ChannelValue) -> bool:
        """Return whether a value has its bytes in the buffer of these."""
        mine, other = next(iter(self.values())).base, value.base
        shared = isinstance(mine, SharedBlob) and isinstance(other, SharedBlob)
        return shared and mine.buffer is other.buffer  # type: ignore[union-attr]


@dataclass(slots=True)
class MaterializedState:
    """The complete state at one checkpoint. It belongs to a run, which changes it in place as it
    advances.

    Attributes:
        id: the id of the checkpoint; empty before the first.
        size: how many checkpoints the namespace had when it was read, and those made since.
        distance: how many links it is away from a complete row; -1 before the first checkpoint.
        reach: at what distance the next row is complete; 0 if that is not known.
        revision: how many records are beside it.
        metadata: its metadata, whose labels are in the index; None if that is not known.
    """

    key: ThreadKey
    namespace_id: int
    seq: int = 0
    id: str = ""
    size: int = 0
    distance: int = -1
    reach: int = 0
    revision: int = 0
    values: dict[str, ChannelValue] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=dict)
    metadata: Mapping[str, Any] | None = None

    def held(self) -> Collection[str]:
        """Return the channels that have a value."""
        return self.values

    def blob(self, channel: str) -> Blob:
        """Return the value of such a channel, after it was read."""
        try:
            return self.values[channel].read()
        except ValueError as error:
            raise self.key.damage_error(f"the value of {channel!r}: {error}") from error

    def stored(self, channel: str) -> Blob | SharedBlob:
        """Return the value of such a channel as it is held."""
        base = self.values[channel].base
        return base if isinstance(base, SharedBlob) else self.blob(channel)

    def settled(self, channel: str) -> ChannelValue | None:
        """Return the value of a channel with its bytes: a run that continues here needs them
        again."""
        value = self.values.get(channel)
        if value is not None and value.base is not None:
            value.blob, value.base = self.blob(channel), None
        return value


class CheckpointBody(NamedTuple):
    """The unpacked content of a checkpoint's row. A value of None means that the channel is empty.

    Attributes:
        parent_revision: how many records were beside the parent when this was made, so that a
            missing one is noticed; None without a parent.
        parent_writes: what the parent's tasks wrote, unless it is recorded beside the parent;
            without the bytes that values of this checkpoint end with, see `PackedBlob`.
    """

    ts: float | str
    v: int
    metadata: Blob
    parent_revision: int | None
    updated: list[str] | None
    values: dict[str, ChannelValue | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    parent_writes: Sequence[PackedTask] = ()


@dataclass(slots=True)
class StoredCheckpoint:
    """A checkpoint as read, with what its tasks wrote, and the id of the head if it is known."""

    row: CheckpointRow
    body: CheckpointBody
    state: MaterializedState
    tasks: list[TaskWrites]
    head: str | None = None


# -- bytes -----------------------------------------------------------------------------------------

_KINDS = {
    "checkpoint": "checkpoint",
    "post": "a post to",
    "value": "the value of",
    "writes": "what was recorded beside checkpoint",
}


class ThreadKey:
    """A namespace of a thread by its names, to which its rows are bound."""

    __slots__ = ("_prefix", "checkpoint_ns", "integrity", "thread_id")

    def __init__(self, thread_id: str, checkpoint_ns: str, integrity: Integrity) -> None:
        self.thread_id: str = thread_id
        self.checkpoint_ns: str = checkpoint_ns
        self.integrity: Integrity = integrity
        self._prefix = packb([thread_id, checkpoint_ns])

    def pack(self, kind: str, names: Sequence[Any], content: Any) -> bytes:
        """Return content as the protected bytes of a row.

        Raises:
            ValueError: a name in it is not valid Unicode.
        """
        try:
            return self.integrity.protect(packb(content), self.place(kind, names))
        except TypeError as error:
            raise ValueError(
                f"a name in the {kind} of {names[0]!r} is not valid Unicode: {error}. Nothing was "
                "stored"
            ) from error

    def unpack(self, kind: str, names: Sequence[Any], data: bytes) -> Any:
        """Return the content of a row.

        Raises:
            DamagedError: it is damaged; says where.
        """
        try:
            if not isinstance(data, bytes):  # a database may hold anything
                raise ValueError(f"it must be bytes, got {type(data).__name__}")
            place = self._prefix + packb([kind, *names])
            return unpackb(self.integrity.unprotect(data, place))
        except ValueError as error:
            raise self.damage_error(f"{_KINDS[kind]} {names[0]!r}: {error}", type(error)) from error

    def place(self, kind: str, names: Sequence[Any]) -> bytes:
        """Return the bytes that rows with these names are bound to."""
        return self._prefix + packb([kind, *names])

    def unpack_value(self, place: bytes, channel: str, data: bytes) -> list[Any]:
        """Return the content of a value's row, bound to this place; a long payload is a view into
        `data`. Raises the same errors as `unpack`."""
        given: Any = data
        # A subclass may change what it is given (encryption): only plain bytes are used in place.
        if type(self.integrity) is Integrity:
            given = memoryview(data)
        try:
            return unpack_view(self.integrity.unprotect(given, place))
        except ValueError as error:
            what = f"{_KINDS['value']} {channel!r}: {error}"
            raise self.damage_error(what, type(error)) from error

    def digest(self, data: bytes) -> bytes:
        """Return the last bytes of a row, which identify it."""
        return data[-self.integrity.digest_size :]

    def damage_error(self, what: str, cause: type | None = None) -> DamagedError:
        """Return an error that names this thread and namespace."""
        kind = UnknownKeyError if cause is UnknownKeyError else DamagedError
        where = f"thread {self.thread_id!r}"
        if self.checkpoint_ns:
            where += f", namespace {self.checkpoint_ns!r}"
        advice = "Restore it from a backup, or delete the damaged part"
        if kind is UnknownKeyError:
            advice = "Give the key of this row, or, if that was given, restore it from a backup"
        return kind(f"{where}: {what}. {advice}")


def pack_body(
    key: ThreadKey,
    checkpoint_id: str,
    parent_id: str | None,
    body: CheckpointBody,
    complete: bool,
    writes: Iterable[TaskWrites | PackedTask] | None = None,
) -> bytes:
    """Return a checkpoint's body as the protected bytes of its row.

    Args:
        complete: whether it builds on no other row.
        writes: stored instead of the body's own writes.
    """
    ts, v, metadata, parent_revision, channels, values, versions, seen, own_writes = body
    updated: Any = channels
    if channels is not None and channels == [*versions]:
        updated = True  # the channels whose versions changed, which are stored here anyway
    entries: dict[str, Any] = {}
    for name, value in values.items():  # a loop: before Python 3.12 a comprehension is a call
        if value is None:
            entries[name] = None
        elif value.owner is not None:
            entries[name] = [value.owner, value.digest]
        else:
            assert value.blob is not None
            form, payload = value.blob
            entries[name] = (None if form == FORMAT else form, payload)
    tasks = [*map(tuple, own_writes if writes is None else writes)]
    form, payload = metadata
    packed = (None if form == FORMAT else form, payload)  # a call less at each step
    content = [ts, v, packed, parent_revision, updated, entries, versions, seen, tasks]
    return key.pack("checkpoint", [checkpoint_id, parent_id, complete], content)


def unpack_body(key: ThreadKey, row: CheckpointRow) -> CheckpointBody:
    """Return the body of a checkpoint's row.

    Raises:
        DamagedError: it is not what was written.
    """
    names = [row.checkpoint_id, row.parent_id, row.link is None]
    content = key.unpack("checkpoint", names, row.body)
    ts, v, (form, payload), parent_revision, updated, entries, versions, seen, tasks = content
    if updated is True:
        updated = [*versions]
    values: dict[str, ChannelValue | None] = {}
    for name, entry in entries.items():
        if entry is None:
            values[name] = None
            continue
        first, second = entry
        if type(first) is int:
            values[name] = ChannelValue(None, first or row.seq, second)
        else:
            values[name] = ChannelValue((first or FORMAT, second))
    metadata = (form or FORMAT, payload)
    return CheckpointBody(ts, v, metadata, parent_revision, updated, values, versions, seen, tasks)


Tables = tuple[Mapping[str, ChannelValue | None], dict[str, int], dict[str, dict[str, int]]]
"""What a checkpoint's row says about values, versions, and versions seen."""


def find_reach(complete: Tables, own: Tables) -> int:
    """Return how far from a complete row the next one is: the rows between hold half as much
    again.

    Args:
        complete: the complete tables.
        own: what one checkpoint has changed of them.
    """
    values, versions, seen = complete
    entries = len(values) + len(versions) + sum(map(len, seen.values()))
    return min(KEYFRAME, 3 * entries // max(2 * sum(map(len, own)), 1))


def form_in_row(form: str) -> str | None:
    """Return a blob's format as it is stored in a row: the most common one is left out."""
    return None if form == FORMAT else form


def pack_writes(
    key: ThreadKey, checkpoint_id: str, position: int, tasks: Iterable[TaskWrites]
) -> bytes:
    """Return what tasks wrote beside a checkpoint, as the bytes of its row at this position."""
    return key.pack("writes", [checkpoint_id, position], [tuple(task) for task in tasks])


def unpack_tasks(
    content: Iterable[PackedTask], read_tail: Callable[[str, int], Blob] | None = None
) -> Sequence[TaskWrites]:
    """Convert unpacked content to what tasks wrote.

    Args:
        read_tail: returns the format and the last bytes of a channel's value.
    """
    tasks: list[TaskWrites] = []
    for task_id, task_path, packed, spans in content:
        writes: list[tuple[str, Blob]] = []
        for name, (form, payload) in packed:
            if isinstance(form, str) and form.startswith(_OLD_TAIL):
                form = int(form[len(_OLD_TAIL) :])
            if isinstance(form, int) and read_tail is not None:
                form, tail = read_tail(name, form)
                payload += tail
            writes.append((name, (str(form or FORMAT), payload)))
        tasks.append(TaskWrites(_unpack_id(task_id), task_path, writes, spans))
    return tasks


def pack_id(text: str) -> str | bytes:
    """Return the id of a task as it is stored in a row: a UUID as 16 bytes."""
    if len(text) == 36:
        try:
            number = bytes.fromhex(text.replace("-", ""))
        except ValueError:
            return text
        # Only if it is restored exactly: ids with capitals or misplaced dashes stay texts.
        if len(number) == 16 and _unpack_id(number) == text:
            return number
    return text


def _unpack_id(stored: str | bytes) -> str:
    if isinstance(stored, str):
        return stored
    text = stored.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
