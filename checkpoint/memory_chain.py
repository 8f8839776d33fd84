"""How the saver in memory keeps a chain of checkpoints: records, their links, and rebuilding when some go.

A record holds what its step changed and a link to the record it builds on; every `KEYFRAME` links one holds
everything, so that reading walks few records and a thread grows with what changed. Once in a namespace a record
is never changed, only replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from .records import CHECKPOINT_FORMAT, Checkpoint, TaskWrites
from .serde import Blob
from .serde.delta import LEAST, delta_of, outweighed, patched

KEYFRAME = 32
"""The most records that have to be walked to read a checkpoint."""


class Grown(NamedTuple):
    """A long value kept as a delta on the one before it; `size` and `steps` are the bytes and number of its deltas."""

    base: Kept
    delta: bytes
    size: int
    steps: int


Kept = Blob | Grown
"""A value as it is kept."""


def whole(kept: Kept) -> Blob:
    """A kept value's bytes."""
    deltas = []
    while isinstance(kept, Grown):
        deltas.append(kept.delta)
        kept = kept.base
    return (kept[0], patched(kept[1], reversed(deltas))) if deltas else kept


@dataclass(slots=True)
class Record:
    """One stored checkpoint.

    Attributes:
        sequence: its place among all commits of the saver.
        link: what it builds on; None if it holds everything.
        distance: how many links lie behind it.
        values, versions, seen: what changed since `link`, or everything. A value None: the channel is empty.
    """

    sequence: int
    id: str
    parent_id: str | None
    link: Record | None
    distance: int
    ts: float | str
    metadata: dict[str, Any]
    values: dict[str, Kept | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    updated: list[str] | None
    v: int = CHECKPOINT_FORMAT


Image = tuple[dict[str, "Kept | None"], dict[str, int], dict[str, dict[str, int]]]
"""(values, versions, seen), complete"""

@dataclass(slots=True)
class Namespace:
    """The checkpoints of one graph in one thread, in the order of their commits, the writes beside each, and how often
    something was recorded there."""

    records: dict[str, Record] = field(default_factory=dict)
    writes: dict[str, list[TaskWrites]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)
    head: str | None = None
    long: dict[str, tuple[Kept, Blob]] = field(default_factory=dict)
    """The long values that the head's last steps wrote: as kept, and whole."""

    def shrink(self, record: Record) -> None:
        """Keep a new record's long values as deltas on those of the head, if it builds on that."""
        if record.link is None or record.link.id != self.head:
            self.long.clear()
        for name, blob in record.values.items():
            if blob is None or len(blob[1]) < LEAST or isinstance(blob, Grown):
                self.long.pop(name, None)
                continue
            old = self.long.get(name)
            kept: Kept = blob if old is None else _grown(*old, blob)
            record.values[name] = kept
            self.long[name] = (kept, blob)

    def add(self, record: Record) -> None:
        """Make this record the newest and the head, in place of one with the same id."""
        self.records.pop(record.id, None)
        self.records[record.id] = record
        self.head = record.id

    def keep(self, checkpoint_id: str, tasks: list[TaskWrites]) -> None:
        """Keep what tasks wrote beside a checkpoint, as it came; the list becomes the namespace's own."""
        self.revisions[checkpoint_id] = self.revisions.get(checkpoint_id, 0) + 1
        found = self.writes.setdefault(checkpoint_id, tasks)
        if found is not tasks:
            found.extend(tasks)


def _grown(kept: Kept, old: Blob, new: Blob) -> Kept:
    """A new value as a delta on the old one, where that saves."""
    delta = delta_of(old[1], new[1]) if old[0] == new[0] else None
    if delta is None:
        return new
    size, steps = (kept.size, kept.steps) if isinstance(kept, Grown) else (0, 0)
    grown = Grown(kept, delta, size + len(delta), steps + 1)
    return new if outweighed(grown.size, grown.steps, len(new[1])) else grown


def image_of(record: Record | None) -> Image:
    """Everything that was true at a record, in dicts that belong to the caller. Values are as they are kept."""
    chain = []
    while record is not None:
        chain.append(record)
        record = record.link
    values: dict[str, Kept | None] = {}
    versions: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {}
    for each in reversed(chain):
        values.update(each.values)
        versions.update(each.versions)
        seen.update(each.seen)
    return values, versions, seen


def anchored(record: Record) -> Record:
    """The same record, holding everything."""
    values, versions, seen = image_of(record)
    values = {name: blob for name, blob in values.items() if blob is not None}
    return replace(record, link=None, distance=0, values=values, versions=versions, seen=seen)


def changed_values(
    parent: Record | None,
    checkpoint: Checkpoint,
    new_versions: Mapping[str, int],
    dumps: Callable[[str, Any], Blob],
) -> dict[str, Blob | None]:
    """What to store of a complete checkpoint: values in `new_versions` or that the parent has not.

    Args:
        dumps: (channel, value) → blob.
    """
    old = image_of(parent)[0]
    values = checkpoint["channel_values"]
    changed: dict[str, Blob | None] = {}
    for name in checkpoint["channel_versions"]:
        known = old.get(name) is not None
        if name in values and (name in new_versions or not known):
            changed[name] = dumps(name, values[name])
        elif name in new_versions and known:
            changed[name] = None
    return changed


def record_of(
    parent_id: str | None,
    parent: Record | None,
    checkpoint: Checkpoint,
    metadata: dict[str, Any],
    changed: dict[str, Blob | None],
) -> Record:
    """A record from a complete checkpoint and its changed values; it builds on `parent` as far as it can."""
    _, old_versions, old_seen = image_of(parent)
    versions = checkpoint["channel_versions"]
    seen = {node: dict(each) for node, each in checkpoint["versions_seen"].items()}
    record = Record(
        0,
        checkpoint["id"],
        parent_id,
        parent,
        parent.distance + 1 if parent else 0,
        checkpoint["ts"],
        metadata,
        cast("dict[str, Kept | None]", changed),
        {name: version for name, version in versions.items() if old_versions.get(name) != version},
        {node: each for node, each in seen.items() if old_seen.get(node) != each},
        copy(checkpoint.get("updated_channels")),
        checkpoint["v"],
    )
    if old_versions.keys() - versions.keys() or old_seen.keys() - seen.keys():
        # A link cannot say that something is gone, so this record holds everything that is left.
        record = anchored(record)
        record.values = {name: blob for name, blob in record.values.items() if name in versions}
        record.versions, record.seen = dict(versions), seen
    return record


def rebuilt(space: Namespace, kept: Collection[str]) -> Namespace:
    """The namespace with only the checkpoints in `kept`, which no longer hold on to the others.

    A checkpoint whose parent is gone gets its nearest ancestor that is left. Writes that wait for a checkpoint
    not yet stored stay.
    """
    new = Namespace()
    renewed: dict[int, Record] = {}
    for record in space.records.values():
        if record.id in kept:
            link = renewed.get(id(record.link))
            if link is None and record.link is not None:
                fresh = anchored(record)
            else:
                fresh = replace(record, link=link, distance=link.distance + 1 if link else 0)
            if record.parent_id in space.records:
                fresh.parent_id = _ancestor_left(space, record, kept)
            renewed[id(record)] = fresh
            new.add(fresh)
    new.revisions = {each: revision for each, revision in space.revisions.items() if each in space.writes}
    new.writes = {
        checkpoint_id: [*writes]
        for checkpoint_id, writes in space.writes.items()
        if checkpoint_id in kept or checkpoint_id not in space.records
    }
    return new


def _ancestor_left(space: Namespace, record: Record, kept: Collection[str]) -> str | None:
    passed = {record.id}
    parent = record.parent_id
    while parent is not None and parent not in kept:
        passed.add(parent)
        ancestor = space.records.get(parent)
        parent = ancestor.parent_id if ancestor and ancestor.parent_id not in passed else None
    return parent
