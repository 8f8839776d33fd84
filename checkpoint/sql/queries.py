"""Finding checkpoints in a database: from named statements to states. Decodes no user's value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ..errors import DamagedError
from ..integrity import Integrity
from ..records import RunnableConfig, coordinates
from .read_rows import ValueReader, materialize, next_state, read_writes
from .rows import (
    CheckpointBody,
    CheckpointRow,
    NamespaceRow,
    StoredCheckpoint,
    ThreadKey,
    ValueRow,
    unpack_body,
)

PAGE = 16
"""Checkpoints read at once when a thread is listed."""

NEWEST = 2**62
"""A sequence beyond all."""


class SqlSession(Protocol):
    """Named statements with their values bound, mostly those of one transaction. A value may be a
    list, of names, numbers or pairs."""

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """All rows of a query."""

    def run(self, statement: str, *values: Any) -> int:
        """Execute; how many rows it touched."""

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row; its sequence."""


# -- namespaces ------------------------------------------------------------------------------------


def find_namespace(session: SqlSession, thread_id: str, checkpoint_ns: str) -> NamespaceRow | None:
    """The namespace of these names."""
    rows = session.rows("namespace", thread_id, checkpoint_ns)
    return NamespaceRow(*rows[0]) if rows else None


def select_namespaces(session: SqlSession, config: RunnableConfig | None) -> list[NamespaceRow]:
    """The namespaces that a config may mean; None means all of all threads."""
    if config is None:
        return [NamespaceRow(*row) for row in session.rows("all_namespaces")]
    thread_id = coordinates(config)[0]
    only = config["configurable"].get("checkpoint_ns")
    namespaces = [NamespaceRow(*row) for row in session.rows("namespaces", thread_id)]
    return [each for each in namespaces if only is None or each.checkpoint_ns == only]


def lock_namespaces(session: SqlSession, thread_id: str) -> list[NamespaceRow]:
    """A thread's namespaces; nobody else changes them before this transaction ends."""
    return [NamespaceRow(*row) for row in session.rows("lock_namespaces", thread_id)]


# -- one checkpoint --------------------------------------------------------------------------------


def find_row(
    session: SqlSession, namespace: NamespaceRow, checkpoint_id: str, key: ThreadKey
) -> CheckpointRow | None:
    """The row of a checkpoint. One that is not found is looked for once more, without the index.

    Raises:
        DamagedError: the index leads to another row, or to none though there is one.
    """
    for row in (CheckpointRow(*row) for row in session.rows("by_id", namespace.id, checkpoint_id)):
        if (row.namespace_id, row.checkpoint_id) != (namespace.id, checkpoint_id):
            raise key.damage_error(
                f"the index leads from checkpoint {checkpoint_id!r} to {row.checkpoint_id!r}"
            )
        return row
    if session.rows("by_id_unindexed", namespace.id, checkpoint_id):
        raise key.damage_error(f"the index does not lead to checkpoint {checkpoint_id!r}")
    return None


def find_edge(
    session: SqlSession,
    before: RunnableConfig,
    namespaces: Iterable[NamespaceRow],
    integrity: Integrity,
) -> int:
    """The sequence of the checkpoint that `before` names, by its thread or among what is listed.

    Raises:
        ValueError: there is none.
        DamagedError: there is, but not where it is looked for.
    """
    configurable = before.get("configurable") or {}
    wanted = configurable.get("checkpoint_id")
    if "thread_id" in configurable:
        thread_id, checkpoint_ns, wanted = coordinates(before)
        namespace = find_namespace(session, thread_id, checkpoint_ns)
        namespaces = () if namespace is None else (namespace,)
    for each in namespaces:
        row = find_row(session, each, wanted or each.head_id or "", each.key(integrity))
        if row is not None:
            return row.seq
    raise ValueError(f"before must name a checkpoint of the thread, got {wanted!r}")


def find_checkpoint(
    session: SqlSession, namespace: NamespaceRow, checkpoint_id: str | None, integrity: Integrity
) -> StoredCheckpoint | None:
    """A checkpoint of a namespace, the head by default.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    wanted = checkpoint_id or namespace.head_id
    if wanted is None:
        return None
    row = find_row(session, namespace, wanted, namespace.key(integrity))
    chain = [] if row is None else _read_chain(session, row)
    return read_checkpoint(session, namespace, chain, checkpoint_id, integrity)


def read_checkpoint(
    session: SqlSession,
    namespace: NamespaceRow,
    chain: Sequence[CheckpointRow],
    checkpoint_id: str | None,
    integrity: Integrity,
    writes: list[bytes] | None = None,
) -> StoredCheckpoint | None:
    """The checkpoint whose row, and those that it builds on, were read; see `find_checkpoint`.

    Args:
        chain: none if it is not there.
        writes: the rows of what its tasks wrote, if they were read as well.
    """
    key, head = namespace.key(integrity), namespace.head
    if checkpoint_id is None and head is not None and (not chain or chain[0].seq != head):
        raise key.damage_error(f"its newest checkpoint, {namespace.head_id!r}, is missing")
    if not chain:
        return None
    wanted = checkpoint_id or namespace.head_id
    if chain[0].namespace_id != namespace.id or chain[0].checkpoint_id != wanted:
        raise key.damage_error(f"another checkpoint is stored in place of {wanted!r}")
    state, body = materialize(key, chain)
    found = StoredCheckpoint(chain[0], body, state, [])
    _fill(session, namespace, [found], writes)
    if found.row.seq == head and state.revision != namespace.revision:
        raise key.damage_error(
            f"a write recorded after its newest checkpoint, {namespace.head_id!r}, is missing"
        )
    return found


def _read_chain(session: SqlSession, row: CheckpointRow) -> list[CheckpointRow]:
    """A row and those it builds on, back to a complete one."""
    if row.link is None:
        return [row]
    found = session.rows("chain", row.namespace_id, row.link, row.namespace_id)
    return [row, *(CheckpointRow(*each) for each in found)]


# -- many checkpoints ------------------------------------------------------------------------------


def read_page(
    session: SqlSession, namespaces: Mapping[int, NamespaceRow], edge: int, integrity: Integrity
) -> list[StoredCheckpoint]:
    """The next checkpoints of some namespaces, newest first, that are older than a sequence: `PAGE`
    of them if there are.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    rows = [CheckpointRow(*row) for row in session.rows("page", [*namespaces], edge, PAGE)]
    keys = {id: namespace.key(integrity) for id, namespace in namespaces.items()}
    found: dict[int, StoredCheckpoint] = {}
    for row in reversed(rows):
        if row.namespace_id not in keys:
            key = next(iter(keys.values()))
            raise key.damage_error("the index leads to rows of another thread")
        key, before = keys[row.namespace_id], found.get(row.link or 0)
        if before is not None and _is_parent(before.row, row):  # made from one that was just read
            body = unpack_body(key, row)
            state = next_state(before.state, key, row, body)
        else:
            state, body = materialize(key, _read_chain(session, row))
        found[row.seq] = StoredCheckpoint(row, body, state, [])
    for id in {row.namespace_id for row in rows}:
        own = [each for each in found.values() if each.row.namespace_id == id]
        _fill(session, namespaces[id], own)
    return [found[row.seq] for row in rows]


def _is_parent(row: CheckpointRow, child: CheckpointRow) -> bool:
    return (row.namespace_id, row.checkpoint_id) == (child.namespace_id, child.parent_id)


def _fill(
    session: SqlSession,
    namespace: NamespaceRow,
    found: Sequence[StoredCheckpoint],
    known: list[bytes] | None = None,
) -> None:
    """Read the long values of some checkpoints of one namespace that follow each other, oldest
    first, and the writes beside them, unless those of the only one are `known`."""
    values = _value_reader(session, namespace, found)
    ids = [each.row.checkpoint_id for each in found]
    if known is not None:
        written = {ids[0]: known}
    else:
        written = {}
        for checkpoint_id, data in session.rows("writes", namespace.id, ids):
            written.setdefault(checkpoint_id, []).append(data)
    following = [(each.row, each.body) for each in found[1:]]
    following += _read_next(session, namespace, found[-1])
    # One at most holds the writes of each: a fork's row holds none.
    came_of = {row.parent_id: body for row, body in following if body.parent_writes}
    owed: dict[str | None, int] = {}
    for row, body in following:
        owed[row.parent_id] = max(owed.get(row.parent_id, 0), body.parent_revision or 0)
    for each in found:
        values.fill(each.state)
        checkpoint_id, key = each.row.checkpoint_id, each.state.key
        batches = written.get(checkpoint_id, ())
        if len(batches) < owed.get(checkpoint_id, 0):
            raise key.damage_error(
                f"a write recorded after checkpoint {checkpoint_id!r} is missing"
            )
        each.tasks = read_writes(key, checkpoint_id, batches, came_of.get(checkpoint_id))
        each.state.revision = len(batches)


def _value_reader(
    session: SqlSession, namespace: NamespaceRow, found: Sequence[StoredCheckpoint]
) -> ValueReader:
    """Reads the long values of some checkpoints, in one query for all."""
    wanted = {
        (value.owner, name)
        for each in found
        for name, value in each.state.values.items()
        if value.blob is None and value.owner is not None
    }
    rows = session.rows("values", namespace.id, sorted(wanted)) if wanted else ()
    return ValueReader(found[0].state.key, (ValueRow(*row) for row in rows))


def _read_next(
    session: SqlSession, namespace: NamespaceRow, found: StoredCheckpoint
) -> Iterator[tuple[CheckpointRow, CheckpointBody]]:
    """The checkpoint that came after one in its namespace. If it is damaged, who reads that one is
    told; this one is whole without it.

    Raises:
        DamagedError: there is none, though this one is not the newest; or one between the two is
            passed over.
    """
    this, key = found.row, found.state.key
    if this.seq == namespace.head:
        return
    rows = session.rows("next", namespace.id, this.seq)
    row = CheckpointRow(*rows[0]) if rows else None
    if row is None or row.namespace_id != namespace.id or row.seq <= this.seq:
        # Others may have changed it since it was read.
        now = find_namespace(session, namespace.thread_id, namespace.checkpoint_ns)
        if now is not None and now.head is not None and now.head > this.seq:
            raise key.damage_error(f"the checkpoint after {this.checkpoint_id!r} is missing")
        return
    if row.parent_id not in (None, this.checkpoint_id):  # a fork continues something older
        parent = session.rows("by_id", namespace.id, row.parent_id)
        if parent and this.seq < CheckpointRow(*parent[0]).seq < row.seq:
            raise key.damage_error(f"the index skips checkpoint {row.parent_id!r}")
    with suppress(DamagedError):
        yield row, unpack_body(key, row)
