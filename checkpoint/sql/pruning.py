"""Deletes checkpoints of a thread, row by row. Those that stay are complete afterwards, deltas
included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from ..labels import labels_of
from ..retention import RetentionLimits, add_continued, add_origins, find_origins, nearest_kept
from ..serde import Blob
from .queries import SqlSession, fill_tails
from .read_rows import next_state, read_writes
from .rows import (
    CheckpointBody,
    CheckpointRow,
    MaterializedState,
    StoredCheckpoint,
    ThreadKey,
    pack_body,
    pack_writes,
    unpack_body,
)

CHUNK = 500
"""How many rows one statement deletes."""

Choose = Callable[[Sequence[tuple[CheckpointRow, CheckpointBody]]], Collection[str]]
"""Takes checkpoints, oldest first; returns the ids of those to keep."""


def choose_by_limits(
    limits: RetentionLimits,
    kept: dict[str, Collection[str]],
    checkpoint_ns: str,
    loads: Callable[[Blob], Any],
) -> Choose:
    """Return a function that chooses which checkpoints of a namespace stay; `kept` has those of the
    enclosing namespaces, and gets these."""

    def choose(rows: Sequence[tuple[CheckpointRow, CheckpointBody]]) -> Collection[str]:
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


def _find_origins(rows: Sequence[tuple[CheckpointRow, CheckpointBody]], id: str) -> set[str]:
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
    key: ThreadKey,
    namespace_id: int,
    choose: Choose,
    loads: Callable[[Blob], Any] | None,
    replaced: str | None = None,
) -> None:
    """Delete all checkpoints of a namespace except those chosen, with their writes, and the values
    that none of the others needs.

    A checkpoint whose parent is deleted gets its nearest remaining ancestor as parent.

    Args:
        loads: decodes metadata, to delete labels that no checkpoint has any more; None if the saver
            keeps no labels.
        replaced: the id of a deleted checkpoint that is stored again at once: it stays the parent
            of its children, and keeps the writes beside it.
    """
    rows = read_rows(session, key, namespace_id)
    bodies = [(row, unpack_body(key, row)) for row in rows]
    kept = frozenset(choose(bodies))
    if all(row.checkpoint_id in kept for row in rows):
        return
    pruning = _Pruning(session, key, namespace_id, rows, kept, replaced)
    needed: set[tuple[int, str]] = set()
    for row, body, state in _read_states(key, rows):
        pruning.keep_parent_writes(row, body)
        if row.checkpoint_id in kept:
            pruning.relink(row, body, state)
            needed |= {
                (value.owner, name)
                for name, value in state.values.items()
                if value.owner is not None
            }
    _drop_values(session, namespace_id, needed)
    if loads is not None and session.rows("has_labels", namespace_id):
        metadata = (loads(body.metadata) for row, body in bodies if row.checkpoint_id in kept)
        labels = {label for each in metadata for label in labels_of(each)}
        session.run("keep_labels", namespace_id, sorted(labels))
    pruning.drop_rows()


class _Pruning:
    """The checkpoints of a namespace that stay, and what must be rewritten for that."""

    def __init__(
        self,
        session: SqlSession,
        key: ThreadKey,
        namespace_id: int,
        rows: Sequence[CheckpointRow],
        kept: frozenset[str],
        replaced: str | None,
    ) -> None:
        self._session, self._key, self._namespace_id = session, key, namespace_id
        self._rows, self._kept, self._replaced = rows, kept, replaced
        self._names = {*kept, replaced}
        self._staying = {row.seq: row for row in rows if row.checkpoint_id in kept}
        self._parents = {row.checkpoint_id: row.parent_id for row in rows}

    def keep_parent_writes(self, row: CheckpointRow, body: CheckpointBody) -> None:
        """Move the writes of the parent's tasks that a row holds to records beside the parent, if
        the parent stays and the row does not, or if the parent is replaced."""
        parent_id = row.parent_id
        if not body.parent_writes or parent_id is None:
            return
        goes = row.seq not in self._staying and parent_id in self._kept
        if goes or parent_id == self._replaced:
            record_beside(self._session, self._key, self._namespace_id, parent_id, body)

    def relink(self, row: CheckpointRow, body: CheckpointBody, state: MaterializedState) -> None:
        """Rewrite a row that stays, if a row that it builds on or names is deleted."""
        loses_link = row.link is not None and row.link not in self._staying
        is_replaced = row.parent_id is not None and row.parent_id == self._replaced
        parent = find_parent_left(row, self._parents, self._names)
        if parent == row.parent_id and not (loses_link or is_replaced):
            return
        write_complete(
            self._session,
            self._key,
            StoredCheckpoint(row, body, state, []),
            parent,
            # If the parent is replaced, they were recorded beside it.
            has_parent_writes=row.parent_id in self._kept and not is_replaced,
        )

    def drop_rows(self) -> None:
        """Delete the rows, and make the newest remaining one the head."""
        session, id, replaced = self._session, self._namespace_id, self._replaced
        going = [row for row in self._rows if row.seq not in self._staying]
        drop(session, "drop_rows", id, [row.seq for row in going])
        ids = [row.checkpoint_id for row in going if row.checkpoint_id != replaced]
        drop(session, "drop_writes", id, ids)
        last = max(self._staying, default=None)
        set_head(session, id, last, None if last is None else self._staying[last].checkpoint_id)
        # A namespace may have writes before its first checkpoint.
        if last is None and replaced is None and not session.rows("all_writes", id):
            session.run("forget_labels", id)
            session.run("drop_namespace", id)


def record_beside(
    session: SqlSession,
    key: ThreadKey,
    namespace_id: int,
    checkpoint_id: str,
    after: CheckpointBody,
) -> None:
    """Record beside a checkpoint the writes of its tasks that the next row holds."""
    batches = [data for _, data in session.rows("writes", namespace_id, [checkpoint_id])]
    fill_tails(session, key, namespace_id, [after])
    tasks = read_writes(key, checkpoint_id, batches, after)
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
        values=state.values,
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


def _read_states(
    key: ThreadKey, rows: Sequence[CheckpointRow]
) -> Iterator[tuple[CheckpointRow, CheckpointBody, MaterializedState]]:
    """Yield the state of each row, in order; a state is dropped when no later row builds on it."""
    waiting = Counter(row.link for row in rows)
    states: dict[int, MaterializedState] = {}
    for row in rows:
        body = unpack_body(key, row)
        if row.link is not None and row.link not in states:
            raise key.damage_error(
                f"checkpoint {row.parent_id!r} is missing, and others depend on it"
            )
        state = next_state(states.get(row.link or 0), key, row, body)
        if waiting[row.seq]:
            states[row.seq] = state
        waiting[row.link] -= 1
        if row.link is not None and not waiting[row.link]:
            del states[row.link]
        yield row, body, state


def _drop_values(session: SqlSession, namespace_id: int, needed: set[tuple[int, str]]) -> None:
    """Delete the values that are not needed, and on which no needed ones build."""
    found = session.rows("all_values", namespace_id)
    bases: Mapping[tuple[int, str], int | None] = {
        (owner, channel): base for owner, channel, base in found
    }
    waiting = [*needed]
    while waiting:
        owner, channel = waiting.pop()
        base = bases.get((owner, channel))
        if base is not None and (base, channel) not in needed:
            needed.add((base, channel))
            waiting.append((base, channel))
    drop(session, "drop_values", namespace_id, [each for each in bases if each not in needed])


def drop(session: SqlSession, statement: str, namespace_id: int, gone: Sequence[Any]) -> None:
    """Delete rows by a statement that takes a list of them, a limited number at a time."""
    for start in range(0, len(gone), CHUNK):
        session.run(statement, namespace_id, [*gone[start : start + CHUNK]])
