"""A thread as rows, for savers on databases: what a commit adds, and what rows mean when they are read. No SQL.

A *space* is one namespace of one thread. A checkpoint's row holds what its step changed and links to the row it builds
on; every `KEYFRAME` links one holds a complete table, so that reading walks few rows. Short values stand in the row;
long ones have a row of their own, whole or as a delta on an older one, and are pointed to by its owner (the checkpoint
that wrote it) and the last bytes of its row, so that nothing can take its place unseen. So it is with what the tasks
of a superstep wrote: if short, it stands in the row of the checkpoint that came of it; else in one beside their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from ..base import Commit, TaskWrites
from ..errors import DamagedError
from ..integrity import Integrity
from ..records import check_names
from ..serde import Blob
from ..serde.delta import delta_of, outweighed, patched
from ..serde.msgpack import packb, unpackb

KEYFRAME = 32
"""The most rows that have to be read for the table of a checkpoint."""

INLINE = 64
"""Values of so many bytes stand in the checkpoint's row."""

SHORT = 2048
"""Writes of so many bytes stand in the row of the checkpoint that they led to."""

SELF = 0
"""As an owner: the checkpoint in whose row this stands."""


class CheckpointRow(NamedTuple):
    """A checkpoint as stored. `link` is the sequence of the row it builds on, None if its table is complete."""

    space: int
    seq: int
    checkpoint_id: str
    parent_id: str | None
    link: int | None
    run_id: str | None
    body: bytes


class BlobRow(NamedTuple):
    """A long value as stored: `base` is the owner of the value it is a delta on, None if it is whole."""

    owner: int
    channel: str
    base: int | None
    data: bytes


class Pointer(NamedTuple):
    """Names a blob row, and knows what it must end with."""

    owner: int
    mark: bytes


@dataclass(slots=True)
class Cell:
    """The value of one channel at one checkpoint.

    Attributes:
        blob: its bytes, whole; None until they are read.
        at: its row; None if it stands in the checkpoint's.
        size, count: bytes and number of the deltas it is made of.
    """

    blob: Blob | None
    at: Pointer | None = None
    size: int = 0
    count: int = 0


@dataclass(slots=True)
class Image:
    """Everything that is true at one checkpoint. Changed in place as its run goes on. `revision` is how often something
    was recorded beside it."""

    seq: int
    id: str
    distance: int
    revision: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=dict)


class Body(NamedTuple):
    """What a checkpoint's row holds, opened. A cell None: the channel is empty. `beside` is how often something had
    been recorded beside its parent when it was cut, None if there was none: so it is seen if that is missing. `wrote`
    is what the parent's tasks wrote, where it is not recorded beside the parent."""

    ts: float | str
    v: int
    metadata: Blob
    beside: int | None
    updated: list[str] | None
    cells: Mapping[str, Cell | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    wrote: Sequence[TaskWrites] = ()


_NAMED = {"checkpoint": "checkpoint", "value": "the value of", "writes": "what was recorded beside checkpoint"}


class Place:
    """A space by its names: what its rows are bound to."""

    __slots__ = ("_prefix", "checkpoint_ns", "integrity", "thread_id")

    def __init__(self, thread_id: str, checkpoint_ns: str, integrity: Integrity) -> None:
        self.thread_id = thread_id
        self.checkpoint_ns = checkpoint_ns
        self.integrity = integrity
        check_names(thread_id, checkpoint_ns)
        self._prefix = packb([thread_id, checkpoint_ns])

    def close(self, kind: str, names: Sequence[Any], content: Any) -> bytes:
        """Content as the protected bytes of a row.

        Raises:
            ValueError: a name in it is no text.
        """
        try:
            return self.integrity.protect(packb(content), self._prefix + packb([kind, *names]))
        except TypeError as error:
            raise ValueError(f"a name in the {kind} of {names[0]!r} is no text: {error}. Nothing was stored") from error

    def open(self, kind: str, names: Sequence[Any], data: bytes) -> Any:
        """The content of a row.

        Raises:
            DamagedError: says where.
        """
        try:
            if not isinstance(data, bytes):  # a database may hold anything
                raise ValueError(f"it holds {type(data).__name__}, not bytes")
            return unpackb(self.integrity.unprotect(data, self._prefix + packb([kind, *names])))
        except ValueError as error:
            raise self.damaged(f"{_NAMED[kind]} {names[0]!r}: {error}") from error

    def damaged(self, what: str) -> DamagedError:
        """An error that names this space."""
        where = f"thread {self.thread_id!r}" + (f", namespace {self.checkpoint_ns!r}" if self.checkpoint_ns else "")
        return DamagedError(f"{where}: {what}. Restore it from a backup, or delete what is damaged")


# -- writing --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class NewRows:
    """What one commit adds, all but sequences, which the database gives.

    Attributes:
        link: the row it builds on, or None.
        blobs: long values: (channel, base, data).
        writes: what the parent's tasks wrote, protected, if it is long; else None.
        cells: the new values, for `amended`, which changes `image` in place.
    """

    checkpoint_id: str
    parent_id: str | None
    link: int | None
    run_id: str | None
    body: bytes
    blobs: list[tuple[str, int | None, bytes]]
    writes: bytes | None
    cells: dict[str, Cell | None]
    image: Image


def rows_of(place: Place, image: Image | None, commit: Commit, metadata: Blob) -> NewRows:
    """The rows of a commit.

    Args:
        image: of its parent; None if there is none, and then the commit must hold everything.
        metadata: encoded.
    """
    complete = image is None or image.distance + 1 >= KEYFRAME
    image = image or Image(0, "", -1)
    cells, blobs = _stored(place, image, commit.values)
    shown: Mapping[str, Cell | None] = cells
    versions, seen = commit.versions, commit.seen
    if complete:
        shown = {name: cell for name, cell in {**image.cells, **cells}.items() if cell is not None}
        versions, seen = {**image.versions, **versions}, {**image.seen, **seen}
    wrote: Sequence[TaskWrites] = commit.writes if image.id else ()
    writes = None
    if wrote and (commit.head != commit.parent_id or _length(wrote) > SHORT):
        # A checkpoint's tasks are looked for in the row that came next, which a fork's is not.
        writes, wrote = packed_writes(place, image.id, image.revision, wrote), ()
    beside = image.revision + (writes is not None) if image.id else None
    body = Body(commit.ts, commit.v, metadata, beside, commit.updated, shown, versions, seen, wrote)
    run_id = commit.metadata.get("run_id")
    if run_id is not None:
        check_names(run_id)
    return NewRows(
        commit.id,
        commit.parent_id,
        None if complete else image.seq,
        run_id if isinstance(run_id, str) else None,
        closed_body(place, commit.id, commit.parent_id, body, complete),
        blobs,
        writes,
        cells,
        image,
    )


def amended(new: NewRows, commit: Commit, seq: int) -> Image:
    """The parent's image brought to the commit that was stored under this sequence."""
    image, cells = new.image, new.cells
    for name, cell in cells.items():
        if cell is None:
            image.cells.pop(name, None)
        else:
            if cell.at is not None:
                cell.at = Pointer(seq, cell.at.mark)
            image.cells[name] = cell
    image.versions.update(commit.versions)
    image.seen.update(commit.seen)
    image.seq, image.id, image.revision = seq, commit.id, 1 if commit.carried else 0
    image.distance = 0 if new.link is None else image.distance + 1
    return image


def closed_body(place: Place, checkpoint_id: str, parent_id: str | None, body: Body, complete: bool) -> bytes:
    """A checkpoint's body as the protected bytes of its row; `complete`: it builds on no other."""
    entries = {}
    for name, cell in body.cells.items():
        entries[name] = _entry(cell)
    ts, v, metadata, beside, updated, _, versions, seen, wrote = body
    content = [ts, v, metadata, beside, updated, entries, versions, seen, [*map(tuple, wrote)]]
    return place.close("checkpoint", [checkpoint_id, parent_id, complete], content)


def _stored(
    place: Place, image: Image, values: Mapping[str, Blob | None]
) -> tuple[dict[str, Cell | None], list[tuple[str, int | None, bytes]]]:
    """New values as cells, and the rows of the long ones."""
    cells: dict[str, Cell | None] = {}
    blobs = []
    for name, blob in values.items():
        if blob is None:
            cells[name] = None
        elif len(blob[1]) <= INLINE:
            cells[name] = Cell(blob)
        else:
            cell, base, content = _long(image.cells.get(name), blob)
            data = place.close("value", [name], content)
            cell.at = Pointer(SELF, data[-place.integrity.digest_size :])
            cells[name] = cell
            blobs.append((name, base, data))
    return cells, blobs


def _long(old: Cell | None, blob: Blob) -> tuple[Cell, int | None, list[Any]]:
    """A long value as a cell, with its base and the content of its row: a delta on the old value where that saves."""
    form, payload = blob
    if old is not None and old.at is not None and old.blob is not None and old.blob[0] == form:
        delta = delta_of(old.blob[1], payload)
        if delta is not None and not outweighed(old.size + len(delta), old.count + 1, len(payload)):
            cell = Cell(blob, None, old.size + len(delta), old.count + 1)
            return cell, old.at.owner, [form, old.at.owner, old.at.mark, delta]
    return Cell(blob), None, [form, None, b"", payload]


def _entry(cell: Cell | None) -> Any:
    """A cell as it stands in a checkpoint's row."""
    if cell is None:
        return None
    if cell.at is not None:
        return [cell.at.owner, cell.at.mark]
    assert cell.blob is not None
    return [*cell.blob]


def _length(tasks: Iterable[TaskWrites]) -> int:
    """About how many bytes the writes of some tasks take."""
    length = 0
    for task in tasks:
        for _, (_, payload) in task.writes:
            length += 64 + len(payload)
    return length


def packed_writes(place: Place, checkpoint_id: str, position: int, tasks: Iterable[TaskWrites]) -> bytes:
    """What tasks wrote beside a checkpoint, as the bytes of one row; `position` is its place among those rows."""
    return place.close("writes", [checkpoint_id, position], [tuple(task) for task in tasks])


# -- reading --------------------------------------------------------------------------------------------------


def read_body(place: Place, row: CheckpointRow) -> Body:
    """Open a checkpoint's row.

    Raises:
        DamagedError: it is not what was written.
    """
    names = [row.checkpoint_id, row.parent_id, row.link is None]
    ts, v, metadata, beside, updated, entries, versions, seen, wrote = place.open("checkpoint", names, row.body)
    cells = {name: _cell(entry, row.seq) for name, entry in entries.items()}
    return Body(ts, v, (metadata[0], metadata[1]), beside, updated, cells, versions, seen, _tasks(wrote))


def _cell(entry: Any, seq: int) -> Cell | None:
    if entry is None:
        return None
    first, second = entry
    return Cell((first, second)) if isinstance(first, str) else Cell(None, Pointer(first or seq, second))


def image_after(before: Image | None, row: CheckpointRow, body: Body) -> Image:
    """The image of a checkpoint, from that of the row it links to; that one stays as it is."""
    image = Image(row.seq, row.checkpoint_id, 0)
    if before is not None:
        image.distance = before.distance + 1
        image.cells, image.versions, image.seen = dict(before.cells), dict(before.versions), dict(before.seen)
    for name, cell in body.cells.items():
        if cell is None:
            image.cells.pop(name, None)
        else:
            image.cells[name] = cell
    image.versions.update(body.versions)
    image.seen.update(body.seen)
    return image


def image_of_chain(place: Place, chain: Sequence[CheckpointRow]) -> tuple[Image, Body]:
    """The image of the first of some rows, each of which links to the next, and its body.

    Raises:
        DamagedError: a row is damaged, or the last one links to one that is not there.
    """
    image: Image | None = None
    if chain[-1].link is not None:
        raise place.damaged(f"checkpoint {chain[-1].parent_id!r} is missing, on which others build")
    for child, row in pairwise(chain):
        if child.parent_id != row.checkpoint_id:
            raise place.damaged(f"checkpoint {child.checkpoint_id!r} links to another than its parent")
    for row in reversed(chain):
        body = read_body(place, row)
        image = image_after(image, row, body)
    assert image is not None
    return image, body


class Values:
    """Reads long values; knows those of the rows it was given.

    Args:
        rows: all that the wanted ones build on must be among them.
    """

    def __init__(self, place: Place, rows: Iterable[BlobRow]) -> None:
        self._place = place
        self._rows = {(row.owner, row.channel): row for row in rows}
        self._known: dict[tuple[int, str], Cell] = {}

    def fill(self, image: Image) -> None:
        """Give every cell of an image its bytes.

        Raises:
            DamagedError: a value is missing or is not what was written.
        """
        for name, cell in image.cells.items():
            if cell.blob is None:
                assert cell.at is not None
                known = self._read(name, cell.at)
                cell.blob, cell.size, cell.count = known.blob, known.size, known.count

    def _read(self, channel: str, at: Pointer) -> Cell:
        start = at
        deltas: list[bytes] = []
        while True:
            known = self._known.get((at.owner, channel))
            if known is not None:
                assert known.blob is not None
                form, whole = known.blob
                break
            form, base, mark, payload = self._open(channel, at)
            if base is None:
                whole, known = payload, Cell(None)
                break
            deltas.append(payload)
            at = Pointer(base, mark)
        try:
            payload = patched(whole, reversed(deltas))
        except ValueError as error:
            raise self._place.damaged(f"the value of {channel!r}: {error}") from error
        size, count = known.size + sum(map(len, deltas)), known.count + len(deltas)
        cell = self._known[start.owner, channel] = Cell((form, payload), start, size, count)
        return cell

    def _open(self, channel: str, at: Pointer) -> Any:
        row = self._rows.get((at.owner, channel))
        if row is None:
            raise self._place.damaged(f"the value of {channel!r} is missing")
        data = row.data if isinstance(row.data, bytes) else b""
        if data[-len(at.mark) :] != at.mark:
            raise self._place.damaged(f"the value of {channel!r} is not the one that its checkpoint names")
        return self._place.open("value", [channel], data)


def read_writes(place: Place, checkpoint_id: str, rows: Iterable[bytes], after: Body | None) -> list[TaskWrites]:
    """What tasks wrote beside a checkpoint, in the order recorded.

    Args:
        rows: of what was recorded beside it.
        after: of the checkpoint that came of it, if one did.

    Raises:
        DamagedError: a row is not what was written, or one is missing before another.
    """
    batches = list(read_batches(place, checkpoint_id, rows))
    if after is not None and after.wrote:
        batches.insert(after.beside or 0, after.wrote)
    return [task for batch in batches for task in batch]


def read_batches(place: Place, checkpoint_id: str, rows: Iterable[bytes]) -> Iterator[Sequence[TaskWrites]]:
    """What was recorded beside a checkpoint, row by row; raises as `read_writes`."""
    for position, data in enumerate(rows):
        yield _tasks(place.open("writes", [checkpoint_id, position], data))


def _tasks(packed: Iterable[Any]) -> Sequence[TaskWrites]:
    return [
        TaskWrites(task_id, task_path, [(name, (form, payload)) for name, (form, payload) in writes], spans)
        for task_id, task_path, writes, spans in packed
    ]
