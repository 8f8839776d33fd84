"""Finds checkpoints in a database: from named statements to states. Does not decode users'
values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..errors import DamagedError
from ..integrity import Integrity
from ..records import RunnableConfig, coordinates
from ..serde import Blob
from ..serde.delta import SharedBlob
from .read_rows import RecentValues, ValueReader, materialize, read_writes
from .rows import (
    OLDEST,
    ChannelValue,
    CheckpointBody,
    CheckpointRow,
    NamespaceRow,
    StoredCheckpoint,
    ThreadKey,
    unpack_body,
)

NEWEST = 2**62
"""A sequence higher than all others."""

NEAR = 1024
"""Values of at most this many bytes are read together with the checkpoint that wrote them."""

Row = tuple[CheckpointRow, CheckpointBody]
"""A checkpoint's row and its unpacked body."""

Values = Mapping[tuple[int, str], bytes]
"""The rows of values, by owner and channel."""

NO_VALUES: Values = {}

Next = tuple[CheckpointRow | None, Values]
"""The checkpoint that came after one in its namespace, and the short values that it wrote."""

LookUp = tuple[NamespaceRow, Sequence[CheckpointRow], Sequence[bytes], Next]
"""A namespace; the rows of a checkpoint and of those it builds on, newest first, or none if it does
not exist; the rows of what its tasks wrote, in order; and, unless it is the head, what came next.
All as of one moment."""


class SqlSession(Protocol):
    """Executes named statements with their values bound, usually within one transaction. A value
    may be a list of names, numbers or pairs."""

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Execute a query, and return its rows."""

    def run(self, statement: str, *values: Any) -> int:
        """Execute a statement, and return how many rows it affected."""

    def add(self, statement: str, *values: Any) -> int:
        """Insert one row, and return its sequence."""


# -- namespaces ------------------------------------------------------------------------------------


def find_namespace(session: SqlSession, thread_id: str, checkpoint_ns: str) -> NamespaceRow | None:
    """Return the namespace with these names; None if there is none."""
    rows = session.rows("namespace", thread_id, checkpoint_ns)
    if not rows:
        return None
    return NamespaceRow(*rows[0])


def select_namespaces(session: SqlSession, config: RunnableConfig | None) -> list[NamespaceRow]:
    """Return the namespaces that a config selects; None selects those of all threads."""
    if config is None:
        return [NamespaceRow(*row) for row in session.rows("all_namespaces")]
    thread_id = coordinates(config)[0]
    only = config["configurable"].get("checkpoint_ns")
    namespaces = [NamespaceRow(*row) for row in session.rows("namespaces", thread_id)]
    return [each for each in namespaces if only is None or each.checkpoint_ns == only]


def namespaces_after(session: SqlSession, id: int, most: int) -> list[NamespaceRow]:
    """Return the next namespaces of all threads, ordered by id."""
    return [NamespaceRow(*row) for row in session.rows("namespaces_after", id, most)]


def lock_namespaces(session: SqlSession, thread_id: str) -> list[NamespaceRow]:
    """Lock and return a thread's namespaces; nobody else can change them before this transaction
    ends."""
    return [NamespaceRow(*row) for row in session.rows("lock_namespaces", thread_id)]


# -- one checkpoint --------------------------------------------------------------------------------


def find_row(
    session: SqlSession, namespace: NamespaceRow, checkpoint_id: str, key: ThreadKey
) -> CheckpointRow | None:
    """Return the row of a checkpoint. If it is not found, search again without the index.

    Raises:
        DamagedError: the index leads to another row, or to none although there is one.
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
    """Return the sequence of the checkpoint that `before` names, by its thread or among the listed
    namespaces.

    Raises:
        ValueError: there is none.
        DamagedError: the index does not lead to it.
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


def read_checkpoint(
    session: SqlSession,
    found: LookUp,
    checkpoint_id: str | None,
    integrity: Integrity,
    recent: RecentValues | None,
) -> StoredCheckpoint | None:
    """Return a checkpoint, the head by default, from what one query has found of it.

    Args:
        recent: values that need not be read.

    Raises:
        DamagedError: what is stored is not what was written.
    """
    namespace, chain, writes, after = found
    key, head = namespace.key(integrity), namespace.head
    wanted = checkpoint_id or namespace.head_id
    if not chain and wanted is not None:  # check that it is not merely missing from the index
        find_row(session, namespace, wanted, key)
    # The namespace names its head, so a missing head has been lost, not pruned.
    if checkpoint_id is None and head is not None and (not chain or chain[0].seq != head):
        raise key.damage_error(f"its newest checkpoint, {namespace.head_id!r}, is missing")
    if not chain:
        return None
    # A database's index can be damaged as well as a row, so the row it leads to is checked by name.
    if chain[0].namespace_id != namespace.id or chain[0].checkpoint_id != wanted:
        raise key.damage_error(f"another checkpoint is stored in place of {wanted!r}")
    state, body = materialize(key, chain)
    state.size = namespace.size
    row, unread = chain[0], [each for each in state.values.items() if each[1].blob is None]
    is_head = row.seq == head
    if unread and recent is not None:
        unread = recent.fill(namespace.id, unread)
    if unread:
        fill_values(session, key, namespace.id, unread, recent)
        for name, value in unread:
            if is_head or not isinstance(value.base, SharedBlob):
                state.settled(name)
        if recent is not None:
            recent.keep(namespace.id, dict(unread), of_head=is_head)
    stored = StoredCheckpoint(row, body, state, [], namespace.head_id)
    following = () if is_head else unpack_next(session, namespace, stored, after[0])
    if writes or not is_head:
        add_tasks(session, [stored], {row.checkpoint_id: writes}, following, after[1])
    if is_head and state.revision != namespace.revision:
        raise key.damage_error(
            f"a write recorded after its newest checkpoint, {namespace.head_id!r}, is missing"
        )
    return stored


def read_chain(session: SqlSession, row: CheckpointRow) -> list[CheckpointRow]:
    """Return a row and those it builds on, back to a complete one."""
    if row.link is None:
        return [row]
    found = session.rows("chain", row.namespace_id, row.link)
    return [row, *(CheckpointRow(*each) for each in found)]


def fill_values(
    session: SqlSession,
    key: ThreadKey,
    namespace_id: int,
    unread: Sequence[tuple[str, ChannelValue]],
    recent: RecentValues | None = None,
) -> int:
    """Read the rows of channels' values, oldest first, all in one query. Values that have their
    `base` are passed over. Return how many bytes the rows had.

    Args:
        recent: values that need not be read.
    """
    if not unread:
        return 0
    known = {} if recent is None else recent.openings(namespace_id, unread)
    wanted: set[tuple[int, str]] = set()
    after = NEWEST  # nothing is read that is older than what is known of all of them
    for name, value in unread:
        openings: Iterable[tuple[int, bytes]] = known.get(name, ())
        if value.base is None and value.place not in openings:
            owner, _ = value.place
            wanted.add((owner, name))
            after = min(after, max([each for each, _ in openings if each < owner], default=OLDEST))
    found: list[Any] = []
    if wanted:
        found = session.rows("values", namespace_id, sorted(wanted), after)
    reader = ValueReader(key, {(owner, channel): data for owner, channel, _, data in found}, known)
    try:
        for name, value in unread:
            reader.fill(name, value)
    except DamagedError:
        if not known:
            raise
        return fill_values(session, key, namespace_id, unread)  # they are of a fork
    return sum([len(data) for *_, data in found])


def add_tasks(
    session: SqlSession,
    wanted: Sequence[StoredCheckpoint],
    written: Mapping[str, Sequence[bytes]],
    following: Sequence[Row],
    known: Values,
) -> None:
    """Add to checkpoints what their tasks wrote.

    Args:
        written: the rows recorded beside each checkpoint, by checkpoint id.
        following: later checkpoints, including the next one after each.
        known: value rows that have been read.

    Raises:
        DamagedError: a record is missing, or is not what was written.
    """
    came_of: dict[str | None, CheckpointBody] = {}
    owed: dict[str | None, int] = {}
    for row, body in following:
        owed[row.parent_id] = max(owed.get(row.parent_id, 0), body.parent_revision or 0)
        if body.parent_writes:  # at most one row holds the writes of each: a fork's row holds none
            came_of[row.parent_id] = body
    for each in wanted:
        checkpoint_id, key = each.row.checkpoint_id, each.state.key
        batches = written.get(checkpoint_id, ())
        # The next row has the count of records beside its parent, so that a lost one is noticed.
        if len(batches) < owed.get(checkpoint_id, 0):
            raise key.damage_error(
                f"a write recorded after checkpoint {checkpoint_id!r} is missing"
            )
        after = came_of.get(checkpoint_id)
        read_tail = tail_reader(session, key, each.row.namespace_id, after, known)
        each.tasks = read_writes(key, checkpoint_id, batches, after, read_tail)
        each.state.revision = len(batches)


def tail_reader(
    session: SqlSession,
    key: ThreadKey,
    namespace_id: int,
    body: CheckpointBody | None,
    known: Values = NO_VALUES,
) -> Callable[[str, int], Blob]:
    """Return what reads the last bytes of the values that a checkpoint wrote, which what the tasks
    of its parent wrote ends with.

    Args:
        known: value rows that have been read.
    """

    def read_tail(name: str, size: int) -> Blob:
        """Return the format and the last bytes of a channel's value.

        Raises:
            DamagedError: the value is shorter than this, or is not what was written.
        """
        value = None if body is None else body.values.get(name)
        if value is not None and value.owner is not None and not (value.base or value.blob):
            # Mostly the delta in the value's own row has these bytes.
            rows = known
            if (value.owner, name) not in rows:
                found = session.rows("one_value", namespace_id, value.owner, name)
                rows = {(owner, channel): data for owner, channel, _, data in found}
            tail = ValueReader(key, rows).read_tail(name, value, size)
            if tail is not None:
                return tail
            fill_values(session, key, namespace_id, [(name, value)])
        try:
            tail = None if value is None else value.read_tail(size)
        except ValueError:
            tail = None
        if tail is None or not 0 < size == len(tail[1]):
            raise key.damage_error(f"what was written to {name!r} is missing")
        return tail

    return read_tail


def read_next(session: SqlSession, namespace_id: int, seq: int) -> Next:
    """Return what came after a checkpoint in its namespace."""
    rows = session.rows("next", namespace_id, seq, NEAR)
    if not rows:
        return None, NO_VALUES
    return CheckpointRow(*rows[0][:7]), {(rows[0][1], name): data for *_, name, data in rows[1:]}


def unpack_next(
    session: SqlSession, namespace: NamespaceRow, found: StoredCheckpoint, row: CheckpointRow | None
) -> list[Row]:
    """Return the checkpoint that came after one that is not the head. If it is damaged, return
    none: reading that one reports it, and this one is complete without it.

    Raises:
        DamagedError: there is none, although this one is not the newest, or the index skips one
            between the two.
    """
    this, key = found.row, found.state.key
    if row is None or row.namespace_id != namespace.id or row.seq <= this.seq:
        # The namespace may have changed since it was read.
        now = find_namespace(session, namespace.thread_id, namespace.checkpoint_ns)
        if now is not None and now.head is not None and now.head > this.seq:
            raise key.damage_error(f"the checkpoint after {this.checkpoint_id!r} is missing")
        return []
    if row.parent_id not in (None, this.checkpoint_id):  # a fork continues something older
        parent = session.rows("by_id", namespace.id, row.parent_id)
        if parent and this.seq < CheckpointRow(*parent[0]).seq < row.seq:
            raise key.damage_error(f"the index skips checkpoint {row.parent_id!r}")
    try:
        return [(row, unpack_body(key, row))]
    except DamagedError:
        return []
