"""How checkpointers on SQL databases read: which statements implement which method, how metadata is
searched by an index, and how a list of checkpoints is found to be complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

from ..builtin import BuiltinSaver
from ..errors import DamagedError
from ..integrity import Integrity
from ..labels import has_metadata, label_choices, names_thread
from ..records import (
    Checkpoint,
    CheckpointTuple,
    LoadedTuple,
    RunnableConfig,
    address,
    check_names,
    check_search,
    collect_writes,
    coordinates,
    iso,
    spans_of,
)
from ..retention import Retention
from ..serde import Serializer
from ..serde.list_decoder import ListDecoder
from .pages import MOST_BYTES, MOST_ROWS, MOST_STATES, MOST_VALUES, Fits, Listed, Page, read_page
from .queries import (
    NEWEST,
    LookUp,
    SqlSession,
    find_edge,
    find_namespace,
    find_row,
    read_checkpoint,
    select_namespaces,
)
from .read_rows import RecentValues
from .rows import CheckpointBody, CheckpointRow, NamespaceRow, StoredCheckpoint, ThreadKey

FIRST_THREADS = 100
"""How many threads are listed before all others are queried."""


class SqlReader(BuiltinSaver):
    """The reading half of a checkpointer on rows. Subclasses provide the connection.

    Args:
        serde: serializes values.
        integrity: guards the stored rows; a checksum by default.
        retention: which checkpoints to forget as runs go on; None keeps all.
    """

    def __init__(
        self,
        *,
        serde: Serializer | None = None,
        integrity: Integrity | None = None,
        retention: Retention | None = None,
    ) -> None:
        super().__init__(serde=serde, retention=retention)
        self._integrity = integrity or Integrity()
        self._recent: RecentValues | None = None
        # Decodes metadata for the index of labels. None with encryption, since an index would
        # reveal too much.
        self._loads_for_labels = self.serde.loads if type(self._integrity) is Integrity else None

    def _session(self, *, write: bool) -> AbstractContextManager[SqlSession]:
        """Open a transaction that sees one state of the database; writes are stored all or none."""
        raise NotImplementedError

    def _statements(self) -> AbstractContextManager[SqlSession]:
        """Return a session in which each statement is a transaction of its own."""
        raise NotImplementedError

    def _key(self, thread_id: str, checkpoint_ns: str) -> ThreadKey:
        check_names(thread_id, checkpoint_ns)
        return ThreadKey(thread_id, checkpoint_ns, self._integrity)

    # -- one checkpoint -----------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names by `checkpoint_id`, by default the thread's
        head; None if there is none.

        Raises:
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        found = self._find(thread_id, checkpoint_ns, checkpoint_id)
        if found is None:
            return None
        decoded = self._decode(self._lists, found)
        decoded.saver_state = found.state  # from now on the run's commits may change it
        found.state.metadata = dict(decoded.metadata)
        return decoded

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """Return a checkpoint of a thread, the head by default: mostly by one statement, two where
        values are long. If somebody prunes between them, all is read once more, as of one moment:
        the digests of the head miss what is gone. Those of older checkpoints would not.
        """
        where = thread_id, checkpoint_ns, checkpoint_id
        if checkpoint_id is None:
            try:
                with self._statements() as session:
                    return self._find_in(session, *where)
            except DamagedError:
                pass
        with self._session(write=False) as session:
            return self._find_in(session, *where)

    def _find_in(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        found = self._look_up(session, thread_id, checkpoint_ns, checkpoint_id)
        if found is None:
            return None
        return read_checkpoint(session, found, checkpoint_id, self._integrity, self._recent)

    def _look_up(
        self, session: SqlSession, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> LookUp | None:
        """Return what one query finds of a checkpoint, the head by default; None if there is no
        such namespace."""
        raise NotImplementedError

    def head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of the thread and namespace in `config`, or None.

        Raises:
            DamagedError: the checkpoint with this id is missing.
        """
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._session(write=False) as session:
            namespace = find_namespace(session, thread_id, checkpoint_ns)
            if namespace is None or namespace.head_id is None:
                return None
            key = namespace.key(self._integrity)
            row = find_row(session, namespace, namespace.head_id, key)
        if row is None or row.seq != namespace.head:
            raise key.damage_error(f"its newest checkpoint, {namespace.head_id!r}, is missing")
        return namespace.head_id

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of the thread and namespace in `config` that a run with this
        id made, or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._session(write=False) as session:
            namespace = find_namespace(session, thread_id, checkpoint_ns)
            rows = session.rows("by_run", namespace.id, run_id) if namespace is not None else ()
        if not rows:
            return None
        return self.get_tuple(address(thread_id, checkpoint_ns, rows[0][0]))

    def _decode(self, lists: ListDecoder, found: StoredCheckpoint) -> LoadedTuple:
        """Decode a checkpoint."""
        row, body, state, loads = found.row, found.body, found.state, self._loads
        value_loads = self._value_loads(lists)
        where = state.key.thread_id, state.key.checkpoint_ns
        checkpoint: Checkpoint = {
            "v": body.v,
            "id": row.checkpoint_id,
            "ts": iso(body.ts),
            "channel_values": {
                name: value_loads((*where, name), value.blob or state.stored(name))
                for name, value in state.values.items()
            },
            "channel_versions": dict(state.versions),
            "versions_seen": {node: dict(each) for node, each in state.seen.items()},
            "updated_channels": body.updated,
        }
        return LoadedTuple(
            address(*where, row.checkpoint_id),
            checkpoint,
            loads(body.metadata),
            None if row.parent_id is None else address(*where, row.parent_id),
            [(task_id, name, loads(blob)) for task_id, name, blob in collect_writes(found.tasks)],
            spans=spans_of(found.tasks),
            paths={task.task_id: task.task_path for task in found.tasks},
            revision=state.revision,
            head=found.head,
        )

    # -- many checkpoints ---------------------------------------------------------------------

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first, of all namespaces of the thread, unless `config`
        names one.

        Raises:
            ValueError: `config` names no thread, `before` no stored checkpoint, or `limit` is
                negative.
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        check_search(filter, before, limit)
        found = self._list(config, filter, before, limit)
        return map(partial(self._decode, self._choose_lists(limit)), found)

    def _list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[StoredCheckpoint]:
        """Yield what `list` yields, not yet decoded."""
        if config is not None and limit == 1 and not filter and before is None:
            where = coordinates(config)
            if config["configurable"].get("checkpoint_ns") is not None:
                found = self._find(*where)
                return iter(()) if found is None else iter((found,))
        listed, edge = self._begin_list(config, filter, before)
        fits = self._fits(filter)
        only = coordinates(config)[2] if config is not None else None
        if only is None:
            return self._newest_first(listed, edge, fits, limit)
        return islice(self._named(listed.namespaces, edge, only, fits), limit)

    def _fits(self, wanted: Mapping[str, Any] | None) -> Fits | None:
        """Return a function that checks whether a checkpoint has the wanted metadata; None if all
        fit."""
        if not wanted:
            return None
        loads = self.serde.loads
        return lambda body: has_metadata(loads(body.metadata), wanted)

    def threads(self, *, filter: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Return the ids of all threads, the most recently used first; see
        `BaseCheckpointSaver.threads`."""
        if filter:
            check_search(filter, None, None)
            found = (each.state.key.thread_id for each in self._list(None, filter))
            return iter(dict.fromkeys(found))
        return self._threads()

    def _threads(self) -> Iterator[str]:
        # Most callers read only the first ones.
        seen: dict[str, None] = {}
        for most in (FIRST_THREADS, NEWEST):
            with self._session(write=False) as session:
                rows = session.rows("threads", most)
            for thread_id, _ in rows:
                if thread_id not in seen:
                    seen[thread_id] = None
                    yield thread_id
            if len(rows) < most:
                return

    def namespaces(self, thread_id: str) -> Collection[str]:
        """Return the namespaces in which a thread has checkpoints.

        Raises:
            StorageError: the database cannot be read.
        """
        with self._session(write=False) as session:
            found = select_namespaces(session, {"configurable": {"thread_id": thread_id}})
        return [each.checkpoint_ns for each in found if each.head_id is not None]

    def stored_bytes(self, thread_ids: Collection[str]) -> int:
        """Return how many bytes the values of some threads take; see
        `BaseCheckpointSaver.stored_bytes`.

        Raises:
            StorageError: the database cannot be read.
        """
        with self._session(write=False) as session:
            ((size,),) = session.rows("stored_bytes", [*map(str, thread_ids)])
        return int(size)

    def _begin_list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
    ) -> tuple[Listed, int]:
        """Return the namespaces to list, and the sequence below which to begin."""
        choices: Sequence[Collection[int]] = ()
        # Among all threads, those are found by their labels that can have the wanted metadata.
        if config is None and self._loads_for_labels is not None and names_thread(before):
            choices = label_choices(filter)
        with self._session(write=False) as session:
            found = find_labelled(session, choices) if choices else None
            everything = config is None and found is None
            if everything and names_thread(before):
                found = []
            if found is None:
                found = select_namespaces(session, config)
            listed = Listed({each.id: each for each in found}, everything, self._integrity)
            if before is None:
                return listed, NEWEST
            return listed, find_edge(session, before, found, self._integrity)

    def _newest_first(
        self,
        listed: Listed,
        edge: int,
        fits: Fits | None,
        limit: int | None,
    ) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints that fit, at most `limit`. The list is checked for completeness
        before the last one."""
        if limit == 0:
            return
        check = ListingCheck(listed, edge)
        left, most = limit, MOST_VALUES
        size = most if limit is None else min(limit, most)
        while True:
            wanted = most if left is None else min(left, most)
            page = self._read_page(listed, edge, size, fits, wanted)
            for row, body in page.rows:
                found = page.wanted.get(row.seq)
                check.add(row, body, found)
                if found is None:
                    continue
                left = None if left is None else left - 1
                if left == 0:
                    with self._session(write=False) as session:
                        check.stop(session)
                yield found
                if left == 0:
                    return
            if page.is_last:
                break
            edge = page.edge
            # As many rows as the last page has read; more, if too few of them fit.
            size = len(page.rows) if len(page.wanted) == wanted else 2 * size
            if page.bytes <= MOST_BYTES:
                most = min(2 * most, MOST_STATES)
            size = min(max(size, most), MOST_ROWS)
        with self._session(write=False) as session:
            check.end(session)

    def _named(
        self,
        namespaces: Mapping[int, NamespaceRow],
        edge: int,
        checkpoint_id: str,
        fits: Fits | None,
    ) -> Iterator[StoredCheckpoint]:
        """Yield the checkpoints with one id, newest first: each namespace may have one."""
        found: list[StoredCheckpoint] = []
        with self._session(write=False) as session:
            for namespace in namespaces.values():
                where = namespace.thread_id, namespace.checkpoint_ns
                each = self._find_in(session, *where, checkpoint_id)
                if each is None or each.row.seq >= edge:
                    continue
                if fits is None or fits(each.body):
                    found.append(each)
        yield from sorted(found, key=lambda each: each.row.seq, reverse=True)

    def _read_page(
        self,
        listed: Listed,
        edge: int,
        size: int,
        fits: Fits | None,
        most: int,
    ) -> Page:
        """Return the next checkpoints of some namespaces that are older than a sequence."""
        with self._session(write=False) as session:
            return read_page(session, listed, edge, size, fits, most, self._recent)


# -- label index -----------------------------------------------------------------------------------
# The index of labels in a database: which namespaces have checkpoints with which metadata, so that
# a search reads only a few of them. A commit adds, in its own transaction, the labels that the
# checkpoint before it lacks. Labels that no checkpoint has any more are dropped when the namespace
# is pruned. So a namespace may have too many labels, but never too few. Those that version 0.1.0
# has written have none and are marked; each search reads them.

MOST_FOUND = 10_000
"""A label with this many namespaces narrows the search too little: reading all checkpoints in order
is as fast."""


def find_labelled(
    session: SqlSession, choices: Sequence[Collection[int]]
) -> list[NamespaceRow] | None:
    """Return the namespaces that may have one label of each choice; None if these are too many."""
    wanted: set[int] | None = None
    for choice in choices:
        # At most two labels, see `label_choices`.
        rows = session.rows("labelled", min(choice), max(choice), MOST_FOUND)
        if len(rows) < MOST_FOUND:
            found = {id for (id,) in rows}
            wanted = found if wanted is None else wanted & found
    if wanted is None:
        return None
    unlabelled = session.rows("unlabelled", MOST_FOUND)
    if len(unlabelled) == MOST_FOUND:
        return None
    namespaces = {row[0]: NamespaceRow(*row) for row in unlabelled}
    for row in session.rows("namespaces_of", sorted(wanted - namespaces.keys())):
        namespaces[row[0]] = NamespaceRow(*row)
    return [namespaces[id] for id in sorted(namespaces)]


# -- listing ---------------------------------------------------------------------------------------
# Checks that a list of checkpoints is complete, by comparing the listed rows with what other rows
# say about them.


class ListingCheck:
    """Checks the checkpoints of some namespaces as they are listed, newest first.

    Args:
        listed: the namespaces as they were when their first checkpoint was read, or before. If all
            are listed, those of which no checkpoint is read are not among them.
        edge: the sequence below which the list begins.
    """

    def __init__(self, listed: Listed, edge: int) -> None:
        self._listed = listed
        self._whole = edge == NEWEST
        self._last = edge
        self._count: Counter[int] = Counter()
        # (namespace, id) of a checkpoint that must follow → how many records it must have, and a
        # child of it.
        self._owed: dict[tuple[int, str], tuple[int, str]] = {}

    def add(
        self, row: CheckpointRow, body: CheckpointBody, found: StoredCheckpoint | None
    ) -> None:
        """Check the next checkpoint, and the records beside it if they were read.

        Raises:
            DamagedError: it is out of order, or a record is missing.
        """
        key = self._listed[row.namespace_id]
        if row.seq >= self._last:
            raise key.damage_error(
                "the index lists checkpoints in another order than they were stored"
            )
        self._last = row.seq
        self._count[row.namespace_id] += 1
        due, _ = self._owed.pop((row.namespace_id, row.checkpoint_id), (0, ""))
        namespace = self._listed.namespaces[row.namespace_id]
        if self._whole and namespace.head_id == row.checkpoint_id:
            due = namespace.revision
        if found is not None and found.state.revision < due:
            raise key.damage_error(
                f"a write recorded after checkpoint {row.checkpoint_id!r} is missing"
            )
        revision = body.parent_revision
        if revision is not None and row.parent_id is not None:
            parent = row.namespace_id, row.parent_id
            self._owed[parent] = max(self._owed.get(parent, (0, "")), (revision, row.checkpoint_id))

    def stop(self, session: SqlSession) -> None:
        """Check for checkpoints that should have come before the last one. It is no damage if
        another session has deleted or replaced them meanwhile.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        for (id, checkpoint_id), (_, child) in self._owed.items():
            namespace, key = self._listed.namespaces[id], self._listed[id]
            now = find_row(session, namespace, child, key)
            # The child has since been deleted or got another parent: then nothing is missing.
            if now is None or now.parent_id != checkpoint_id:
                continue
            parent = find_row(session, namespace, checkpoint_id, key)
            if parent is None:
                raise key.damage_error(
                    f"checkpoint {checkpoint_id!r} is missing, which {child!r} follows"
                )
            if self._last < parent.seq < now.seq:
                raise key.damage_error(
                    f"the index skips checkpoint {checkpoint_id!r}, which {child!r} follows"
                )

    def end(self, session: SqlSession) -> None:
        """Check for checkpoints that are still missing at the end of the list; see `stop`.

        Raises:
            DamagedError: a checkpoint is missing, or the index passes over one.
        """
        self._last = 0
        self.stop(session)
        listed = self._listed
        if self._whole and listed.everything:
            listed.namespaces.update((each.id, each) for each in select_namespaces(session, None))
        for id, namespace in listed.namespaces.items() if self._whole else ():
            count = self._count[id]
            if count < namespace.size:
                # Of all namespaces, some may have grown since the first page was read.
                missing = _count_missing(session, namespace, None if listed.everything else count)
                if missing > 0:
                    raise listed[id].damage_error(f"{missing} of its checkpoints are missing")


def _count_missing(session: SqlSession, namespace: NamespaceRow, listed: int | None) -> int:
    """Return how many checkpoints are missing. If the namespace has changed since the list began,
    or may have, its current rows are counted.

    Args:
        listed: how many were listed; None if the namespace may have changed.
    """
    now = find_namespace(session, namespace.thread_id, namespace.checkpoint_ns)
    if listed is not None and now == namespace:
        return namespace.size - listed
    # No rows: it was deleted, and may have been made again.
    ((size, there),) = session.rows("count", namespace.id) or ((0, 0),)
    missing: int = size - there
    return missing
