"""Forgetting and copying, on the rows of a thread: what stays is complete afterwards, deltas included. No SQL texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Protocol

from ..retention import Limits, with_continued
from ..serde import Blob
from .rows import (
    SELF,
    BlobRow,
    Body,
    Cell,
    CheckpointRow,
    Image,
    Place,
    Pointer,
    closed_body,
    image_after,
    packed_writes,
    read_batches,
    read_body,
    read_writes,
)

CHUNK = 500
"""Rows dropped by one statement."""


class Session(Protocol):
    """One transaction: named statements with their values bound. A value may be a list, of names, numbers or pairs."""

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """All rows of a query."""

    def run(self, statement: str, *values: Any) -> int:
        """Execute; how many rows it touched."""

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row; its sequence."""


# -- forgetting -----------------------------------------------------------------------------------------------


Choose = Callable[[Sequence[tuple[CheckpointRow, Body]]], Collection[str]]
"""Checkpoints, oldest first → the ids of those to keep."""


def chosen_by(
    limits: Limits, kept: dict[str, Collection[str]], checkpoint_ns: str, loads: Callable[[Blob], Any]
) -> Choose:
    """Which checkpoints of a namespace stay; `kept` has those of the namespaces around it, and gets these."""

    def choose(rows: Sequence[tuple[CheckpointRow, Body]]) -> Collection[str]:
        parents = loads(rows[-1][1].metadata).get("parents", {}) if rows else {}
        stamped = [(row.checkpoint_id, body.ts) for row, body in rows]
        left = limits.kept(checkpoint_ns, stamped, parents, kept)
        metadata = {row.checkpoint_id: loads(body.metadata) for row, body in rows if row.checkpoint_id in left}
        kept[checkpoint_ns] = with_continued(left, metadata)
        return left

    return choose


def keep_only(session: Session, place: Place, space: int, choose: Choose, replaced: str | None = None) -> None:
    """Forget all checkpoints of a space but those chosen, with their writes, and the values that none of them needs.

    A checkpoint whose parent goes gets its nearest ancestor that is left.

    Args:
        replaced: the id of one that goes and comes back at once: it stays the parent of its children, and keeps what
            was written beside it.
    """
    rows = _all_rows(session, place, space)
    kept = choose([(row, read_body(place, row)) for row in rows])
    staying = {row.seq: row for row in rows if row.checkpoint_id in kept}
    if len(staying) == len(rows):
        return
    parents = {row.checkpoint_id: row.parent_id for row in rows}
    names = {*kept, replaced}
    needed: set[tuple[int, str]] = set()
    for row, body, image in _images(place, rows):
        lasts = row.parent_id in kept or (row.parent_id is not None and row.parent_id == replaced)
        if body.wrote and lasts and (row.seq not in staying or row.parent_id == replaced):
            _set_beside(session, place, space, row.parent_id or "", body)
        if row.seq not in staying:
            continue
        needed.update((cell.at.owner, name) for name, cell in image.cells.items() if cell.at is not None)
        parent = _ancestor_left(parents, row, names) if row.parent_id in parents else row.parent_id
        if row.parent_id not in kept:
            body = body._replace(wrote=())  # gone with its parent, or kept beside it
        if parent != row.parent_id or row.parent_id == replaced or (row.link is not None and row.link not in staying):
            beside = body.beside
            if parent != row.parent_id and beside is not None:
                beside = None if parent is None else 0  # how much is beside an ancestor is not known
            whole = body._replace(beside=beside, cells=image.cells, versions=image.versions, seen=image.seen)
            data = closed_body(place, row.checkpoint_id, parent, whole, complete=True)
            session.run("rewrite", parent, data, row.seq)
    _drop_values(session, space, needed)
    going = [row for row in rows if row.seq not in staying]
    _drop(session, "drop_rows", space, [row.seq for row in going])
    _drop(session, "drop_writes", space, [row.checkpoint_id for row in going if row.checkpoint_id != replaced])
    last = max(staying, default=None)
    set_head(session, space, last, None if last is None else staying[last].checkpoint_id)
    if last is None and replaced is None and not session.rows("all_writes", space):
        session.run("drop_space", space)


def _all_rows(session: Session, place: Place, space: int) -> list[CheckpointRow]:
    """The rows of a space, oldest first.

    Raises:
        DamagedError: there should be more, or some are another's.
    """
    rows = [CheckpointRow(*row) for row in session.rows("all_rows", space)]
    ((size, _),) = session.rows("count", space) or ((0, 0),)
    if len(rows) < size or any(row.space != space for row in rows):
        raise place.damaged("some of its checkpoints are missing, or the index leads to those of another thread")
    return rows


def _set_beside(session: Session, place: Place, space: int, checkpoint_id: str, after: Body) -> None:
    """Record what tasks wrote beside their checkpoint, because the one that came of it will not hold it any more."""
    batches = [data for _, data in session.rows("writes", space, [checkpoint_id])]
    tasks = read_writes(place, checkpoint_id, batches, after)
    session.run("drop_writes", space, [checkpoint_id])
    for position in range(max(len(batches), 1)):  # as many rows as before: others count them
        data = packed_writes(place, checkpoint_id, position, tasks if position == 0 else ())
        session.run("add_writes", space, checkpoint_id, data)


def set_head(session: Session, space: int, seq: int | None, checkpoint_id: str | None) -> None:
    """Make a checkpoint the head of its space, with what is recorded beside it."""
    ((revision,),) = session.rows("count_writes", space, checkpoint_id) if checkpoint_id is not None else ((0,),)
    session.run("set_head", seq, checkpoint_id, revision, space)


def _images(place: Place, rows: Sequence[CheckpointRow]) -> Iterator[tuple[CheckpointRow, Body, Image]]:
    """The image of each, in order; none is held longer than others build on it."""
    waiting = Counter(row.link for row in rows)
    images: dict[int, Image] = {}
    for row in rows:
        body = read_body(place, row)
        if row.link is not None and row.link not in images:
            raise place.damaged(f"checkpoint {row.parent_id!r} is missing, on which others build")
        image = image_after(images.get(row.link or 0), row, body)
        if waiting[row.seq]:
            images[row.seq] = image
        waiting[row.link] -= 1
        if row.link is not None and not waiting[row.link]:
            del images[row.link]
        yield row, body, image


def _ancestor_left(parents: Mapping[str, str | None], row: CheckpointRow, kept: Collection[str | None]) -> str | None:
    parent, passed = row.parent_id, {row.checkpoint_id}
    while parent is not None and parent not in kept:
        passed.add(parent)
        parent = parents.get(parent)
        if parent in passed:
            return None  # a circle: put by hand
    return parent


def _drop_values(session: Session, space: int, needed: set[tuple[int, str]]) -> None:
    """Drop the values that are not needed, nor built on by needed ones."""
    bases = {(owner, channel): base for owner, channel, base in session.rows("all_values", space)}
    waiting = [*needed]
    while waiting:
        owner, channel = waiting.pop()
        base = bases.get((owner, channel))
        if base is not None and (base, channel) not in needed:
            needed.add((base, channel))
            waiting.append((base, channel))
    gone = [each for each in bases if each not in needed]
    _drop(session, "drop_values", space, gone)


def _drop(session: Session, statement: str, space: int, gone: Sequence[Any]) -> None:
    for start in range(0, len(gone), CHUNK):
        session.run(statement, space, [*gone[start : start + CHUNK]])


# -- copying --------------------------------------------------------------------------------------------------


def copy_spaces(session: Session, pairs: Iterable[tuple[Place, int, Place, int]]) -> None:
    """Copy spaces whole, the order among all their checkpoints included.

    Args:
        pairs: (place, id) of each source and its target, which is empty.
    """
    copies = {source: _Copy(session, place, source, to, target) for place, source, to, target in pairs}
    work = [(owner, source) for source, copy in copies.items() for owner in copy.owners()]
    for owner, source in sorted(work, key=lambda each: (each[0] > 0, abs(each[0]))):  # what others build on first
        copies[source].move(owner)
    for copy in copies.values():
        copy.finish()


class _Copy:
    """One space on its way to another."""

    def __init__(self, session: Session, place: Place, source: int, to: Place, target: int) -> None:
        self._session, self._place, self._source, self._to, self._target = session, place, source, to, target
        self._rows = {row.seq: row for row in _all_rows(session, place, source)}
        self._owners: dict[int, list[str]] = {seq: [] for seq in self._rows}
        for owner, channel, _ in session.rows("all_values", source):
            self._owners.setdefault(owner, []).append(channel)
        # Values outlive the checkpoints that wrote them; such owners get numbers that no checkpoint has.
        self._lost = count(min([0, *self._owners]) - 1, -1)
        self._moved: dict[tuple[int, str], Pointer] = {}
        self._seqs: dict[int, int] = {}

    def owners(self) -> Iterable[int]:
        """The checkpoints, and the owners of values whose checkpoints are gone."""
        return self._owners

    def move(self, owner: int) -> None:
        """Copy one checkpoint with the values it wrote; all that they build on is there already."""
        values = [self._value(owner, channel) for channel in self._owners[owner]]
        row = self._rows.get(owner)
        seq = next(self._lost) if row is None else self._checkpoint(row)
        for value in values:
            self._session.run("add_value", self._target, seq, value.channel, value.base, value.data)
            self._moved[owner, value.channel] = Pointer(seq, value.data[-self._to.integrity.digest_size :])
        self._seqs[owner] = seq

    def _value(self, owner: int, channel: str) -> BlobRow:
        rows = self._session.rows("one_value", self._source, owner, channel)
        if not rows:
            raise self._place.damaged(f"the value of {channel!r} is missing")
        form, base, mark, payload = self._place.open("value", [channel], BlobRow(*rows[0]).data)
        if base is not None:
            base, mark = self._target_of(base, channel)
        data = self._to.close("value", [channel], [form, base, mark, payload])
        self._moved[owner, channel] = Pointer(SELF, data[-self._to.integrity.digest_size :])
        return BlobRow(0, channel, base, data)

    def _checkpoint(self, row: CheckpointRow) -> int:
        body = read_body(self._place, row)
        cells = {name: self._cell(name, cell) for name, cell in body.cells.items()}
        if row.link is not None and row.link not in self._seqs:
            raise self._place.damaged(f"checkpoint {row.parent_id!r} is missing, on which others build")
        link = None if row.link is None else self._seqs[row.link]
        data = closed_body(self._to, row.checkpoint_id, row.parent_id, body._replace(cells=cells), link is None)
        return self._session.add(
            "add_row", self._target, row.checkpoint_id, row.parent_id, link, row.run_id, data
        )

    def _cell(self, name: str, cell: Cell | None) -> Cell | None:
        if cell is None or cell.at is None:
            return cell
        return Cell(None, self._target_of(cell.at.owner, name))

    def _target_of(self, owner: int, channel: str) -> Pointer:
        """Where a value that was copied stands now."""
        if (owner, channel) not in self._moved:
            raise self._place.damaged(f"the value of {channel!r} is missing")
        return self._moved[owner, channel]

    def finish(self) -> None:
        """Copy the writes, and set the head."""
        session = self._session
        written: dict[str, list[bytes]] = {}
        for checkpoint_id, data in session.rows("all_writes", self._source):
            written.setdefault(checkpoint_id, []).append(data)
        for checkpoint_id, batches in written.items():
            for position, tasks in enumerate(read_batches(self._place, checkpoint_id, batches)):
                data = packed_writes(self._to, checkpoint_id, position, tasks)
                session.run("add_writes", self._target, checkpoint_id, data)
        if self._rows:
            last = max(self._rows)
            set_head(session, self._target, self._seqs[last], self._rows[last].checkpoint_id)
