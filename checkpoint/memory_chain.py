"""How the checkpointer in memory keeps a chain of checkpoints: records, their links, and rebuilding
when some go.

A record holds what its step changed and a link to the record it builds on; every `KEYFRAME` links
one holds everything, so that reading walks few records and a thread grows with what changed. Once
in a namespace a record is never changed, only replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import chain as chained
from typing import Any, NamedTuple

from .labels import labels_of
from .records import CHECKPOINT_FORMAT, Commit, TaskWrites
from .retention import RetentionLimits, find_origins, nearest_kept
from .serde import Blob
from .serde.delta import (
    LEAST,
    SharedBlob,
    apply_deltas,
    extends,
    find_delta,
    is_outweighed,
    join_run,
    opening_length,
)

KEYFRAME = 32
"""The most records that have to be walked to read a checkpoint."""


class DeltaBlob(NamedTuple):
    """A long value as deltas on an older one, oldest first; `size` is the length of that."""

    base: Blob | SharedBlob
    size: int
    deltas: Sequence[bytes]


StoredBlob = Blob | SharedBlob | DeltaBlob
"""A value as it is stored."""


def read_blob(stored: StoredBlob) -> Blob:
    """Return a stored value's bytes, in a bytearray if that saves a copy (benchmark P40)."""
    if isinstance(stored, SharedBlob):
        return stored.read()
    if isinstance(stored, DeltaBlob):
        form, payload = read_blob(stored.base)
        return form, apply_deltas(payload, stored.deltas)
    return stored


def shrink_blob(old: tuple[StoredBlob, Blob], new: Blob) -> StoredBlob:
    """Return a new value by what it has beyond the old one, where that saves.

    Args:
        old: as it is stored, and whole.
    """
    stored, (old_form, whole) = old
    form, payload = new  # without what a `GrownBlob` knows of the value before
    if old_form != form:
        return form, payload
    if not isinstance(stored, DeltaBlob):
        start, opening = opening_length(whole), payload[: opening_length(payload)]
        if extends(whole, new, start, len(opening)):
            shared = stored if isinstance(stored, SharedBlob) else SharedBlob.share((form, whole))
            return shared.extend(opening, memoryview(payload)[len(opening) + len(whole) - start :])
        stored = DeltaBlob(stored, len(whole), ())
    delta = find_delta((form, whole), new)
    if delta is None:
        return form, payload
    deltas = [*stored.deltas, delta]
    while run := join_run(stored.size, deltas):
        deltas[run[0] :] = run[1:]
    if is_outweighed(sum(map(len, deltas)), len(deltas), len(payload)):
        return form, payload
    return stored._replace(deltas=tuple(deltas))


@dataclass(slots=True, eq=False)
class ChainRecord:
    """One stored checkpoint.

    Attributes:
        sequence: its place among all commits of the checkpointer.
        link: what it builds on; None if it holds everything.
        distance: how many links lie behind it.
        values, versions, seen: what changed since `link`, or everything. A value None: the channel
            is empty.
    """

    sequence: int
    id: str
    parent_id: str | None
    link: ChainRecord | None
    distance: int
    ts: float | str
    metadata: dict[str, Any]
    values: dict[str, StoredBlob | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    updated: list[str] | None
    v: int = CHECKPOINT_FORMAT


def make_record(commit: Commit, link: ChainRecord | None) -> ChainRecord:
    """The record of a commit, which builds on another or holds everything."""
    return ChainRecord(
        0,
        commit.id,
        commit.parent_id,
        link,
        link.distance + 1 if link else 0,
        commit.ts,
        commit.metadata,
        {**commit.values},  # the record's own: `shrink` changes them
        commit.versions,
        commit.seen,
        commit.updated,
        commit.v,
    )


@dataclass(slots=True, eq=False)
class ChainState:
    """Everything that is true at a record, in dicts of its own. Values are as they are stored."""

    values: dict[str, StoredBlob | None] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=dict)

    def held(self) -> Collection[str]:
        """The channels that hold something."""
        return {name for name, stored in self.values.items() if stored is not None}

    def blob(self, channel: str) -> Blob:
        """What such a channel holds."""
        stored = self.values[channel]
        assert stored is not None
        form, payload = read_blob(stored)
        return form, bytes(payload)


def read_state(record: ChainRecord) -> ChainState:
    """Everything that is true at a record."""
    chain = [record]
    while (link := chain[-1].link) is not None:
        chain.append(link)
    state = ChainState()
    for each in reversed(chain):
        state.values.update(each.values)
        state.versions.update(each.versions)
        state.seen.update(each.seen)
    return state


def choose_kept(
    records: Mapping[str, ChainRecord],
    checkpoint_ns: str,
    limits: RetentionLimits,
    kept: dict[str, Mapping[str, int]],
) -> Collection[str]:
    """The checkpoints of a namespace that stay; see `RetentionLimits.choose_kept`."""
    made = [(record.id, record.ts, record.sequence) for record in records.values()]

    def origins_of(id: str) -> Collection[str]:
        return find_origins([read_state(records[id]).seen])

    return limits.choose_kept(
        checkpoint_ns, made, kept, lambda id: records[id].metadata, origins_of
    )


def make_keyframe(record: ChainRecord) -> ChainRecord:
    """The same record, holding everything."""
    state = read_state(record)
    return replace(
        record,
        link=None,
        distance=0,
        values={name: stored for name, stored in state.values.items() if stored is not None},
        versions=state.versions,
        seen=state.seen,
    )


@dataclass(slots=True, eq=False)
class Chain:
    """The checkpoints of one namespace in the order of their commits, and what was recorded beside
    each: an item for each time."""

    records: dict[str, ChainRecord] = field(default_factory=dict)
    writes: dict[str, list[Sequence[TaskWrites]]] = field(default_factory=dict)
    head: str | None = None
    long: dict[str, tuple[StoredBlob, Blob]] = field(default_factory=dict)
    """The long values that the head's last steps wrote: as stored, and whole."""
    labels: set[int] = field(default_factory=set)
    """The labels of all records; see `labels`."""

    def newest(self) -> int:
        """The sequence of the newest record; 0 if there is none."""
        record = next(reversed(self.records.values()), None)
        if record is None:
            return 0
        return record.sequence

    def shrink(self, record: ChainRecord) -> None:
        """Store a new record's long values as deltas on those of the head, if it builds on that."""
        # A fork, or a record that holds everything: the values known here are of another line.
        if record.link is None or record.link.id != self.head:
            self.long.clear()
        for name, blob in record.values.items():
            if blob is None or isinstance(blob, (SharedBlob, DeltaBlob)) or len(blob[1]) < LEAST:
                self.long.pop(name, None)
                continue
            old = self.long.get(name)
            stored = blob if old is None else shrink_blob(old, blob)
            record.values[name] = stored
            # A plain pair: a `GrownBlob` would hold on to the value before it.
            self.long[name] = (stored, (blob[0], blob[1]))

    def add(self, record: ChainRecord) -> None:
        """Make this record the newest and the head, in place of one with the same id."""
        # Records stand in the order of their commits, so one that comes again goes to the end.
        self.records.pop(record.id, None)
        self.records[record.id] = record
        self.head = record.id

    def record(self, checkpoint_id: str, tasks: Sequence[TaskWrites]) -> None:
        """Keep what tasks wrote beside a checkpoint, as it came."""
        self.writes.setdefault(checkpoint_id, []).append(tasks)

    def revision(self, checkpoint_id: str) -> int:
        """How often something was recorded beside a checkpoint."""
        return len(self.writes.get(checkpoint_id, ()))


def rebuild(chain: Chain, kept: Collection[str]) -> Chain:
    """The chain with only the checkpoints in `kept`, which no longer hold on to the others.

    A checkpoint whose parent is gone gets its nearest ancestor that is left. Writes that wait for a
    checkpoint not yet stored stay.
    """
    new = Chain()
    parents = {record.id: record.parent_id for record in chain.records.values()}
    renewed: dict[int, ChainRecord] = {}
    for record in chain.records.values():
        if record.id not in kept:
            continue
        link = renewed.get(id(record.link))
        if link is None and record.link is not None:  # what it builds on goes
            fresh = make_keyframe(record)
        else:
            distance = link.distance + 1 if link else 0
            fresh = replace(record, link=link, distance=distance, values={**record.values})
        # A parent that was never in this chain is left as it is named.
        if record.parent_id in chain.records:
            fresh.parent_id = nearest_kept(parents, record.id, kept)
        renewed[id(record)] = fresh
        new.add(fresh)
        if chain.labels:
            new.labels |= labels_of(fresh.metadata)
    _cut_buffers(new)
    new.writes = {
        checkpoint_id: [*writes]
        for checkpoint_id, writes in chain.writes.items()
        if checkpoint_id in kept or checkpoint_id not in chain.records
    }
    return new


def _cut_buffers(chain: Chain) -> None:
    """Let the values of a rebuilt chain share buffers that are no longer than the longest of
    them."""
    shared = [
        (record.values, name, stored, base)
        for record in chain.records.values()
        for name, stored in record.values.items()
        if isinstance(base := _base_of(stored), SharedBlob)
    ]
    ends: dict[int, int] = {}
    for *_, base in shared:
        ends[id(base.buffer)] = max(ends.get(id(base.buffer), 0), base.end)
    cut: dict[int, bytearray] = {}
    for values, name, stored, base in shared:
        old = base.buffer
        if id(old) not in cut:
            cut[id(old)] = old[: ends[id(old)]]
        new = base._replace(buffer=cut[id(old)])
        values[name] = stored._replace(base=new) if isinstance(stored, DeltaBlob) else new


def _base_of(stored: StoredBlob | None) -> Blob | SharedBlob | None:
    """The value on which a stored one is a delta; itself if it is whole."""
    return stored.base if isinstance(stored, DeltaBlob) else stored


def count_bytes(chain: Chain) -> int:
    """Return how many bytes all values of a chain take; what several share counts once."""
    shared: dict[int, int] = {}
    tasks = (task for records in chain.writes.values() for each in records for task in each)
    size = sum(len(payload) for task in tasks for _, (_, payload) in task.writes)
    for record in chain.records.values():
        for stored in record.values.values():
            if isinstance(stored, DeltaBlob):
                size += sum(map(len, stored.deltas))
            base = _base_of(stored)
            if isinstance(base, SharedBlob):
                shared[id(base.buffer)] = len(base.buffer)
            elif base is not None:
                shared[id(base[1])] = len(base[1])
    return size + sum(shared.values())


Found = tuple[str, str, ChainRecord]
"""(thread id, namespace, record)"""

Namespace = tuple[str, str, Chain]
"""(thread id, namespace, its checkpoints)"""


def merge_newest(namespaces: Iterable[tuple[int, Iterator[Found]]]) -> Iterator[Found]:
    """Merge the records of namespaces, newest first. No more namespaces are looked at than have
    newer records than the last one yielded.

    Args:
        namespaces: the sequence of the newest record of each, the highest first; and its records.
    """
    waiting: list[tuple[int, Found, Iterator[Found]]] = []
    for newest, records in chained(namespaces, [(0, iter(()))]):
        while waiting and -waiting[0][0] > newest:
            _, found, rest = heappop(waiting)
            yield found
            _push_next(waiting, rest)
        _push_next(waiting, records)


def _push_next(waiting: list[tuple[int, Found, Iterator[Found]]], records: Iterator[Found]) -> None:
    for found in records:
        heappush(waiting, (by_age(found), found, records))
        return


def by_age(found: Found) -> int:
    """The newest first."""
    return -found[2].sequence


def newest_first(thread_id: str, name: str, chain: Chain, wanted: str | None) -> Iterator[Found]:
    """A namespace's records, or only the wanted one."""
    if wanted is None:
        return ((thread_id, name, record) for record in reversed(chain.records.values()))
    return iter([(thread_id, name, chain.records[wanted])] if wanted in chain.records else ())
