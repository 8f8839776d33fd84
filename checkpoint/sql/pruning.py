"""Deletes checkpoints of a thread, in one transaction or, if there are many, in several, so that
others can work in between. Those that stay are complete after each, deltas included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from ..labels import labels_of
from ..records import SLOT
from ..retention import RetentionLimits, add_continued, add_origins, find_origins, nearest_kept
from ..serde import Blob
from .queries import NEWEST, Row, SqlSession, TailReader, read_chain
from .read_rows import materialize, read_writes
from .rows import (
    CheckpointBody,
    CheckpointRow,
    NamespaceRow,
    StoredCheckpoint,
    ThreadKey,
    pack_body,
    pack_writes,
    unpack_body,
)

CHUNK = 500
"""How many rows one statement deletes."""

AT_ONCE = 50
"""How many checkpoints of a long namespace are deleted in one transaction."""

PAGE = 256
"""How many rows are read at once to choose what to delete."""

Choose = Callable[[Sequence[Row]], Collection[str]]
"""Takes checkpoints, oldest first; returns the ids of those to keep."""


def choose_by_limits(
    limits: RetentionLimits,
    kept: dict[str, Collection[str]],
    checkpoint_ns: str,
    loads: Callable[[Blob], Any],
) -> Choose:
    """Return a function that chooses which checkpoints of a namespace stay; `kept` has those of the
    enclosing namespaces, and gets these."""

    def choose(rows: Sequence[Row]) -> Collection[str]:
        # The newest decides: a nested graph is deleted with the last checkpoint in which it ran.
        parents = loads(rows[-1][1].metadata).get("parents", {}) if rows else {}
        made = [(row.checkpoint_id, body.ts) for row, body in rows]
        left = limits.choose_kept(checkpoint_ns, made, parents, kept)
        bodies = {row.checkpoint_id: body for row, body in rows}

        @cache
        def metadata_of(id: str) -> Mapping[str, Any]:
            return loads(bodies[id].metadata)  # type: ignore[no-any-return]

        staying = add_origins(left, metadata_of, lambda id: _find_origins(rows, id) & bodies.keys())
        kept[checkpoint_ns] = add_continued(staying, metadata_of)
        return staying

    return choose


def _find_origins(rows: Sequence[Row], id: str) -> set[str]:
    """Return the checkpoints at which the tasks were started that are still running at this one."""
    tables = []
    link: int | None = None
    for row, body in reversed(rows):
        if row.checkpoint_id == id or row.seq == link:
            tables.append(body.seen)
            link = row.link
    return find_origins(tables)


def keep_only(
    session: SqlSession,
    namespace: NamespaceRow,
    key: ThreadKey,
    choose: Choose,
    loads: Callable[[Blob], Any] | None,
    replaced: str | None = None,
) -> None:
    """Delete all checkpoints of a namespace except those chosen, in one transaction.

    Args:
        loads, replaced: see `Pruning`.
    """
    rows = [(row, unpack_body(key, row)) for row in read_rows(session, key, namespace.id)]
    kept = choose(rows)
    if len(kept) < len(rows):
        pruning = Pruning(key, namespace.id, rows, kept, loads, replaced)
        pruning.drop(session, namespace, len(rows))


def read_light(session: SqlSession, key: ThreadKey, namespace_id: int, edge: int) -> list[Row]:
    """Return a page of the checkpoints of a namespace below a sequence, newest first, without their
    values and tables, except what these say about running tasks.

    Raises:
        DamagedError: they are not what was written.
    """
    found = []
    for row in map(CheckpointRow._make, session.rows("page", [namespace_id], edge, PAGE)):
        if row.namespace_id != namespace_id or row.seq >= edge:
            raise key.damage_error("the index leads to checkpoints of another thread")
        body = unpack_body(key, row)
        slots = {name: seen for name, seen in body.seen.items() if name.startswith(SLOT)}
        light = body._replace(values={}, versions={}, seen=slots, parent_writes=())
        found.append((row._replace(body=b""), light))
    return found


class Pruning:
    """Deletes checkpoints of one namespace with their writes, and the values that none of the
    others needs, all at once or some in each transaction.

    The first transaction makes the remaining checkpoints independent of those to be deleted: a
    checkpoint whose parent is deleted gets its nearest remaining ancestor as parent. Then the
    newest of those to be deleted go first: the others build only on older ones, so the thread can
    be read and continued whenever this stops. What others have stored meanwhile stays.

    Args:
        rows: all checkpoints when the choice was made, oldest first; see `read_light`.
        kept: the ids of those that stay. If not all are dropped at once, these include the newest.
        loads: decodes metadata, to delete labels that no checkpoint has any more; None if the
            checkpointer keeps no labels.
        replaced: the id of a deleted checkpoint that is stored again at once: it stays the parent
            of its children, and keeps the writes beside it.
    """

    def __init__(
        self,
        key: ThreadKey,
        namespace_id: int,
        rows: Sequence[Row],
        kept: Collection[str],
        loads: Callable[[Blob], Any] | None,
        replaced: str | None = None,
    ) -> None:
        self._key, self._namespace_id, self._loads = key, namespace_id, loads
        self._replaced = replaced
        self._parents = {row.checkpoint_id: row.parent_id for row, _ in rows}
        self._kept = {*kept}
        self._going = [row for row, _ in rows if row.checkpoint_id not in kept]
        staying = [(row, body) for row, body in rows if row.checkpoint_id in kept]
        self._staying = {row.seq: row.checkpoint_id for row, _ in staying}
        self._metadata = [body.metadata for _, body in staying]
        # Checkpoints that stay and may build on some that go.
        self._roots = [row for row, _ in staying if self._is_root(row)]
        # The (owner, channel) of values that stay although their checkpoints go, since others build
        # on them.
        self._needed: set[tuple[int, str]] = set()
        self._newest = rows[-1][0]
        self._last = self._newest.seq
        self._has_begun = False

    @property
    def is_done(self) -> bool:
        """Whether everything to be deleted is deleted."""
        return not self._going

    def step(self, session: SqlSession, namespace: NamespaceRow) -> None:
        """Delete some more. The namespace, as it is now, is locked.

        Raises:
            DamagedError: some checkpoints are missing.
        """
        # Another session has deleted what was to stay, and may have created the thread again,
        # reusing sequences.
        if _find(session, self._newest) is None:
            self._going.clear()
            return
        if not self._has_begun:
            ((size, there),) = session.rows("count", namespace.id)
            if there < size:
                raise self._key.damage_error(f"{size - there} of its checkpoints are missing")
            self._has_begun = True
        self._add_new(session)
        self.drop(session, namespace, AT_ONCE)

    def drop(self, session: SqlSession, namespace: NamespaceRow, most: int) -> None:
        """Delete the newest ones."""
        block = self._going[-most:]
        del self._going[-most:]
        gone = {row.checkpoint_id for row in block}
        roots, self._roots = self._roots, []
        for root in roots:
            self._free(session, root, gone)
        for row in block:
            self._keep_parent_writes(session, row, gone)
        id, owners = namespace.id, [row.seq for row in block]
        drop(session, "drop_rows", id, owners)
        # Last also those that an earlier choice has left without a checkpoint, for others that
        # built on them then.
        done = self.is_done
        left = session.rows("orphans", id) if done else session.rows("values_of", id, owners)
        unneeded = [each for each in left if (each[0], each[1]) not in self._needed]
        drop(session, "drop_values", id, unneeded)
        drop(session, "drop_writes", id, [*gone - {self._replaced}])
        if self._loads is not None and done and session.rows("has_labels", id):
            labels = {label for each in self._metadata for label in labels_of(self._loads(each))}
            session.run("keep_labels", id, sorted(labels))
        head, head_id = namespace.head, namespace.head_id
        if head in owners:
            head = max(self._staying, default=None)
            head_id = None if head is None else self._staying[head]
        set_head(session, id, head, head_id)
        # A namespace may have writes before its first checkpoint.
        if head is None and self._replaced is None and not session.rows("all_writes", id):
            session.run("forget_labels", id)
            session.run("drop_namespace", id)

    def _is_root(self, row: CheckpointRow) -> bool:
        if row.parent_id not in self._kept:
            return True
        return row.link is not None and row.link not in self._staying

    def _add_new(self, session: SqlSession) -> None:
        """Read what others have stored since: it stays, and may build on what goes."""
        new: list[CheckpointRow] = []
        edge = NEWEST
        while edge > self._last:
            page = session.rows("page", [self._namespace_id], edge, PAGE)
            found = [row for row in map(CheckpointRow._make, page) if row.seq > self._last]
            new += found
            edge = found[-1].seq if len(found) == PAGE else 0
        for row in reversed(new):
            self._parents[row.checkpoint_id] = row.parent_id
            self._kept.add(row.checkpoint_id)
            self._staying[row.seq] = row.checkpoint_id
            self._last = row.seq
            self._metadata.append(unpack_body(self._key, row).metadata)
            if self._is_root(row):
                self._roots.append(row)

    def _free(self, session: SqlSession, root: CheckpointRow, gone: Collection[str]) -> None:
        """Rewrite a row that stays, so that it builds on none that goes.

        Args:
            gone: the ids of those that go in this transaction.
        """
        row = _find(session, root)
        if row is None:
            return  # another session has deleted it
        state, body = materialize(self._key, read_chain(session, row))
        owners = [(v.owner, name) for name, v in state.values.items() if v.owner is not None]
        # Statements do not take an empty list of pairs.
        if owners:
            self._needed.update(session.rows("value_chains", self._namespace_id, sorted(owners)))
        parent, is_left = row.parent_id, row.parent_id in self._kept
        # Its parent still exists, and is deleted later or stored again.
        is_replaced = parent is not None and parent == self._replaced
        stays = parent in self._parents and (parent not in gone or is_replaced)
        if body.parent_writes and parent is not None and stays and not is_left:
            record_beside(session, self._key, self._namespace_id, parent, body)
        loses_link = row.link is not None and row.link not in self._staying
        new_parent = find_parent_left(row, self._parents, {*self._kept, self._replaced})
        if loses_link or is_replaced or new_parent != parent:
            stored = StoredCheckpoint(row, body, state, [])
            write_complete(session, self._key, stored, new_parent, has_parent_writes=is_left)

    def _keep_parent_writes(
        self, session: SqlSession, going: CheckpointRow, gone: Collection[str]
    ) -> None:
        """Move the writes of the parent's tasks that a row holds to a record beside the parent, if
        that is left."""
        parent_id = going.parent_id
        if parent_id is None or parent_id in gone or parent_id not in self._parents:
            return
        row = _find(session, going)
        if row is None or not session.rows("by_id", self._namespace_id, parent_id):
            return
        body = unpack_body(self._key, row)
        if body.parent_writes:
            record_beside(session, self._key, self._namespace_id, parent_id, body)


def _find(session: SqlSession, wanted: CheckpointRow) -> CheckpointRow | None:
    """Return a row as it is now; None if it is gone."""
    found = session.rows("by_id", wanted.namespace_id, wanted.checkpoint_id)
    rows = map(CheckpointRow._make, found)
    return next((row for row in rows if row.seq == wanted.seq), None)


def record_beside(
    session: SqlSession,
    key: ThreadKey,
    namespace_id: int,
    checkpoint_id: str,
    after: CheckpointBody,
) -> None:
    """Record beside a checkpoint the writes of its tasks that the next row holds."""
    batches = [data for _, data in session.rows("writes", namespace_id, [checkpoint_id])]
    tails = TailReader(session, key, namespace_id, after)
    tasks = read_writes(key, checkpoint_id, batches, after, tails.read)
    session.run("drop_writes", namespace_id, [checkpoint_id])
    for position in range(max(len(batches), 1)):  # as many rows as before, since they are counted
        data = pack_writes(key, checkpoint_id, position, tasks if position == 0 else ())
        session.run("add_writes", namespace_id, checkpoint_id, data)


def find_parent_left(
    row: CheckpointRow, parents: Mapping[str, str | None], kept: Collection[str | None]
) -> str | None:
    """Return the new parent of a row: its nearest ancestor that stays.

    Args:
        parents: id → id of the parent, for all existing checkpoints.
        kept: the ids of the checkpoints that stay.
    """
    if row.parent_id not in parents:
        return row.parent_id
    return nearest_kept(parents, row.checkpoint_id, kept)


def write_complete(
    session: SqlSession,
    key: ThreadKey,
    stored: StoredCheckpoint,
    parent: str | None,
    *,
    has_parent_writes: bool,
) -> None:
    """Rewrite a row with this parent so that it builds on no other row.

    Args:
        has_parent_writes: whether the row still holds what the tasks of its parent wrote. Otherwise
            that was deleted with the parent, or is recorded beside it.
    """
    row, body, state = stored.row, stored.body, stored.state
    revision = body.parent_revision
    if parent != row.parent_id and revision is not None:
        revision = None if parent is None else 0  # an ancestor's number of records is unknown
    body = body._replace(
        parent_writes=body.parent_writes if has_parent_writes else (),
        parent_revision=revision,
        values={**state.values},
        versions=state.versions,
        seen=state.seen,
    )
    data = pack_body(key, row.checkpoint_id, parent, body, complete=True)
    session.run("rewrite", parent, data, row.seq)


def read_rows(session: SqlSession, key: ThreadKey, namespace_id: int) -> list[CheckpointRow]:
    """Return the rows of a namespace, oldest first.

    Raises:
        DamagedError: rows are missing, or belong to another namespace.
    """
    rows = [CheckpointRow(*row) for row in session.rows("all_rows", namespace_id)]
    ((size, _),) = session.rows("count", namespace_id) or ((0, 0),)
    if len(rows) < size or any(row.namespace_id != namespace_id for row in rows):
        raise key.damage_error(
            "some of its checkpoints are missing, or the index leads to those of another thread"
        )
    return rows


def set_head(
    session: SqlSession, namespace_id: int, seq: int | None, checkpoint_id: str | None
) -> None:
    """Make a checkpoint the head of its namespace, and count the records beside it."""
    revision = 0
    if checkpoint_id is not None:
        ((revision,),) = session.rows("count_writes", namespace_id, checkpoint_id)
    session.run("set_head", seq, checkpoint_id, revision, namespace_id)


def drop(session: SqlSession, statement: str, namespace_id: int, gone: Sequence[Any]) -> None:
    """Delete rows by a statement that takes a list of them, a limited number at a time."""
    for start in range(0, len(gone), CHUNK):
        session.run(statement, namespace_id, [*gone[start : start + CHUNK]])
