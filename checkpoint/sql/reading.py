"""Finding checkpoints in the rows of a database: from named statements to images. Decodes no user's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ..base import RunnableConfig, TaskWrites, coordinates
from ..errors import DamagedError
from ..integrity import Integrity
from .pruning import Session
from .rows import (
    BlobRow,
    Body,
    CheckpointRow,
    Image,
    Place,
    Values,
    image_after,
    image_of_chain,
    read_body,
    read_writes,
)

PAGE = 16
"""Checkpoints read at once when a thread is listed."""

NEWEST = 2**62
"""A sequence beyond all."""


@dataclass(slots=True)
class Space:
    """A namespace of a thread, as the database has it now. `head` is the sequence of its newest checkpoint, `revision`
    how often something was recorded beside that, `size` the number of all."""

    id: int
    thread_id: str
    checkpoint_ns: str
    head: int | None
    head_id: str | None
    revision: int
    size: int

    def place(self, integrity: Integrity) -> Place:
        """Its names, to open and close rows with."""
        return Place(self.thread_id, self.checkpoint_ns, integrity)


class Look(NamedTuple):
    """The rows of one checkpoint: its own and those it builds on, none if it is not there; and, if they were read with
    it, those of what its tasks wrote."""

    space: Space
    chain: Sequence[CheckpointRow]
    written: list[bytes] | None = None


@dataclass(slots=True)
class Found:
    """A checkpoint as read, with what its tasks wrote."""

    place: Place
    row: CheckpointRow
    body: Body
    image: Image
    tasks: list[TaskWrites]


def space_of(session: Session, thread_id: str, checkpoint_ns: str) -> Space | None:
    """The space of these names."""
    rows = session.rows("space", thread_id, checkpoint_ns)
    return Space(*rows[0]) if rows else None


def spaces_of(session: Session, config: RunnableConfig | None) -> list[Space]:
    """The namespaces that a config may mean; None means all of all threads."""
    if config is None:
        return [Space(*row) for row in session.rows("every_space")]
    thread_id = coordinates(config)[0]
    only = config["configurable"].get("checkpoint_ns")
    spaces = [Space(*row) for row in session.rows("spaces", thread_id)]
    return [space for space in spaces if only is None or space.checkpoint_ns == only]


def own_spaces(session: Session, thread_id: str) -> list[Space]:
    """A thread's spaces; nobody else changes them before this transaction ends."""
    return [Space(*row) for row in session.rows("own_spaces", thread_id)]


def edge_of(session: Session, before: RunnableConfig, spaces: Iterable[Space], integrity: Integrity) -> int:
    """The sequence of the checkpoint that `before` names, by its thread or among what is listed.

    Raises:
        ValueError: there is none.
        DamagedError: there is, but not where it is looked for.
    """
    configurable = before.get("configurable") or {}
    wanted = configurable.get("checkpoint_id")
    if "thread_id" in configurable:
        thread_id, checkpoint_ns, wanted = coordinates(before)
        space = space_of(session, thread_id, checkpoint_ns)
        spaces = () if space is None else (space,)
    for space in spaces:
        row = row_of(session, space, wanted or space.head_id or "", space.place(integrity))
        if row is not None:
            return row.seq
    raise ValueError(f"before: there is no checkpoint {wanted!r} here")


def find(session: Session, space: Space, checkpoint_id: str | None, integrity: Integrity) -> Found | None:
    """A checkpoint of a space, the head by default.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    wanted = checkpoint_id or space.head_id
    if wanted is None:
        return None
    row = row_of(session, space, wanted, space.place(integrity))
    return found_in(session, Look(space, [] if row is None else _chain(session, row)), checkpoint_id, integrity)


def row_of(session: Session, space: Space, checkpoint_id: str, place: Place) -> CheckpointRow | None:
    """The row of a checkpoint. One that is not found is looked for once more, without the index.

    Raises:
        DamagedError: the index leads to another row, or to none though there is one.
    """
    for row in (CheckpointRow(*row) for row in session.rows("by_id", space.id, checkpoint_id)):
        if (row.space, row.checkpoint_id) != (space.id, checkpoint_id):
            raise place.damaged(f"the index leads from checkpoint {checkpoint_id!r} to {row.checkpoint_id!r}")
        return row
    if session.rows("by_id_unindexed", space.id, checkpoint_id):
        raise place.damaged(f"the index does not lead to checkpoint {checkpoint_id!r}")
    return None


def found_in(session: Session, look: Look, checkpoint_id: str | None, integrity: Integrity) -> Found | None:
    """The checkpoint of some rows, complete; see `find`."""
    space, chain, written = look
    place = space.place(integrity)
    if checkpoint_id is None and space.head is not None and (not chain or chain[0].seq != space.head):
        raise place.damaged(f"its newest checkpoint, {space.head_id!r}, is missing")
    if not chain:
        return None
    if chain[0].space != space.id or chain[0].checkpoint_id != (checkpoint_id or space.head_id):
        raise place.damaged(f"another checkpoint stands in the place of {checkpoint_id or space.head_id!r}")
    image, body = image_of_chain(place, chain)
    found = Found(place, chain[0], body, image, [])
    _fill(session, space, [found], written)
    if found.row.seq == space.head and image.revision != space.revision:
        raise place.damaged(f"something that was recorded beside its newest checkpoint, {space.head_id!r}, is missing")
    return found


def page(session: Session, spaces: Mapping[int, Space], edge: int, integrity: Integrity) -> list[Found]:
    """The next checkpoints of some spaces, newest first, that are older than a sequence: `PAGE` of them if there are.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    rows = [CheckpointRow(*row) for row in session.rows("page", [*spaces], edge, PAGE)]
    found: dict[int, Found] = {}
    for row in reversed(rows):
        if row.space not in spaces:
            raise next(iter(spaces.values())).place(integrity).damaged("the index leads to rows of another thread")
        place = spaces[row.space].place(integrity)
        before = found.get(row.link or 0)
        known = before is not None and (before.row.space, before.row.checkpoint_id) == (row.space, row.parent_id)
        if row.link is None or known:  # made from the one before, where that is among these
            body = read_body(place, row)
            image = image_after(before.image if before else None, row, body)
        else:
            image, body = image_of_chain(place, _chain(session, row))
        found[row.seq] = Found(place, row, body, image, [])
    for space in {row.space for row in rows}:
        _fill(session, spaces[space], [each for each in found.values() if each.row.space == space])
    return [found[row.seq] for row in rows]


def _chain(session: Session, row: CheckpointRow) -> list[CheckpointRow]:
    """A row and those it builds on, back to a complete one."""
    if row.link is None:
        return [row]
    return [row, *(CheckpointRow(*each) for each in session.rows("chain", row.space, row.link, row.space))]


def _fill(session: Session, space: Space, found: Sequence[Found], known: list[bytes] | None = None) -> None:
    """Read the long values of some checkpoints of one space that follow each other, oldest first, and the writes beside
    them, unless those of the only one are `known`."""
    place = found[0].place
    wanted = {
        (cell.at.owner, name)
        for each in found
        for name, cell in each.image.cells.items()
        if cell.blob is None and cell.at is not None
    }
    rows: Iterable[BlobRow] = ()
    if wanted:
        rows = (BlobRow(*row) for row in session.rows("values", space.id, sorted(wanted)))
    values = Values(place, rows)
    ids = [each.row.checkpoint_id for each in found]
    written: dict[str, list[bytes]] = {} if known is None else {ids[0]: known}
    for checkpoint_id, data in session.rows("writes", space.id, ids) if known is None else ():
        written.setdefault(checkpoint_id, []).append(data)
    following = [*((each.row, each.body) for each in found[1:]), *_next(session, space, found[-1])]
    came_of = {row.parent_id: body for row, body in following if body.wrote}  # one at most: a fork's row holds none
    owed: dict[str | None, int] = {}
    for row, body in following:
        owed[row.parent_id] = max(owed.get(row.parent_id, 0), body.beside or 0)
    for each in found:
        values.fill(each.image)
        checkpoint_id = each.row.checkpoint_id
        batches = written.get(checkpoint_id, ())
        after = came_of.get(checkpoint_id)
        if len(batches) < owed.get(checkpoint_id, 0):
            raise place.damaged(f"something that was recorded beside checkpoint {checkpoint_id!r} is missing")
        each.tasks = read_writes(place, checkpoint_id, batches, after)
        each.image.revision = len(batches)


def _next(session: Session, space: Space, found: Found) -> Iterator[tuple[CheckpointRow, Body]]:
    """The checkpoint that came after one in its space. If it is damaged, who reads that one is told; this one is
    whole without it.

    Raises:
        DamagedError: there is none, though this one is not the newest; or one between the two is passed over.
    """
    if found.row.seq == space.head:
        return
    row = next((CheckpointRow(*each) for each in session.rows("next", space.id, found.row.seq)), None)
    if row is None or row.space != space.id or row.seq <= found.row.seq:
        now = space_of(session, space.thread_id, space.checkpoint_ns)  # others may have changed it since it was read
        if now is not None and now.head is not None and now.head > found.row.seq:
            raise found.place.damaged(f"what came after checkpoint {found.row.checkpoint_id!r} is missing")
        return
    if row.parent_id not in (None, found.row.checkpoint_id):  # a fork continues something older
        parent = session.rows("by_id", space.id, row.parent_id)
        if parent and found.row.seq < CheckpointRow(*parent[0]).seq < row.seq:
            raise found.place.damaged(f"the index passes over checkpoint {row.parent_id!r}")
    with suppress(DamagedError):
        yield row, read_body(found.place, row)
