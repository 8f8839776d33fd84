"""How savers on SQL databases read: which statements answer which call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast
from weakref import WeakValueDictionary

from ...channels.base import MISSING
from ..builtin import BuiltinSaver
from ..integrity import Integrity
from ..records import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    LoadedTuple,
    RunnableConfig,
    address,
    collect_writes,
    coordinates,
    iso,
    spans_of,
)
from ..retention import Retention
from ..serde import Serializer
from .listing import ListingCheck
from .queries import (
    NEWEST,
    PAGE,
    SqlSession,
    find_checkpoint,
    find_edge,
    find_namespace,
    find_row,
    read_page,
    select_namespaces,
)
from .rows import MaterializedState, NamespaceRow, StoredCheckpoint, ThreadKey


class SqlReader(BuiltinSaver):
    """The half of a saver on rows that reads. Subclasses give the connection.

    Args:
        serde: turns values into bytes and back.
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
        # (thread id, namespace) → the state that a run holds. It lives as long as that run: here it
        # is only told when something else changes what it was read from.
        self._states: WeakValueDictionary[tuple[str, str], MaterializedState] = (
            WeakValueDictionary()
        )

    def _session(self, *, write: bool) -> AbstractContextManager[SqlSession]:
        """A transaction that sees one state of the database; a writing one is kept whole or not at
        all."""
        raise NotImplementedError

    def _key(self, thread_id: str, checkpoint_ns: str) -> ThreadKey:
        return ThreadKey(thread_id, checkpoint_ns, self._integrity)

    # -- the states that runs hold ------------------------------------------------------------

    def _watch_state(self, state: MaterializedState) -> None:
        """Let a state that is given to a run be told what changes."""
        self._states[state.key.thread_id, state.key.checkpoint_ns] = state

    def _outdate_state(self, thread_id: str, checkpoint_ns: str) -> None:
        """The run that holds the state of this thread reads it anew."""
        state = self._states.pop((thread_id, checkpoint_ns), None)
        if state is not None:
            state.id = ""

    def _held_state(self, key: ThreadKey, checkpoint_id: str) -> MaterializedState | None:
        """The state of this checkpoint, if a run holds it."""
        state = self._states.get((key.thread_id, key.checkpoint_ns))
        return state if state is not None and state.id == checkpoint_id else None

    # -- one checkpoint -----------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names by `checkpoint_id`, else the thread's head; None if
        there is none.

        Raises:
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        found = self._find(thread_id, checkpoint_ns, checkpoint_id)
        if found is None:
            return None
        decoded = self._decode(found)
        if checkpoint_id is None:
            decoded.saver_state = found.state  # from now on the run's commits may change it
            self._watch_state(found.state)
        return decoded

    def _find(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None
    ) -> StoredCheckpoint | None:
        """A checkpoint of a thread, the head by default."""
        with self._session(write=False) as session:
            namespace = find_namespace(session, thread_id, checkpoint_ns)
            if namespace is None:
                return None
            return find_checkpoint(session, namespace, checkpoint_id, self._integrity)

    def head(self, config: RunnableConfig) -> str | None:
        """The id of the newest checkpoint of the thread and namespace in `config`, or None.

        Raises:
            DamagedError: there should be one of this id, and is not.
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
        """The newest checkpoint of the thread and namespace in `config` that a run of this id made,
        or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._session(write=False) as session:
            namespace = find_namespace(session, thread_id, checkpoint_ns)
            rows = session.rows("by_run", namespace.id, run_id) if namespace is not None else ()
        if not rows:
            return None
        return self.get_tuple(address(thread_id, checkpoint_ns, rows[0][0]))

    def _decode(self, found: StoredCheckpoint) -> LoadedTuple:
        """A checkpoint as read, decoded."""
        row, body, state, loads = found.row, found.body, found.state, self.serde.loads
        where = state.key.thread_id, state.key.checkpoint_ns
        checkpoint: Checkpoint = {
            "v": body.v,
            "id": row.checkpoint_id,
            "ts": iso(body.ts),
            "channel_values": {name: loads(state.blob(name)) for name in state.values},
            "channel_versions": dict(state.versions),
            "versions_seen": {node: dict(each) for node, each in state.seen.items()},
            "updated_channels": body.updated,
        }
        return LoadedTuple(
            address(*where, row.checkpoint_id),
            checkpoint,
            cast(CheckpointMetadata, loads(body.metadata)),
            None if row.parent_id is None else address(*where, row.parent_id),
            [(task_id, name, loads(blob)) for task_id, name, blob in collect_writes(found.tasks)],
            spans_of(found.tasks),
            state.revision,
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
        """Checkpoints, the newest first. All namespaces of the thread, unless `config` names one.

        Raises:
            ValueError: `config` names no thread, `before` no stored checkpoint, or `limit` is
                negative.
            DamagedError: what is stored is not what was written.
            StorageError: the database cannot be read.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be an integer >= 0, got {limit}")
        wanted = coordinates(config)[2] if config is not None else None

        def fits(found: StoredCheckpoint) -> bool:
            return wanted in (None, found.row.checkpoint_id) and self._matches(found, filter)

        namespaces, edge = self._begin_list(config, before)
        return map(self._decode, self._newest_first(namespaces, edge, fits, limit))

    def threads(self) -> Iterator[str]:
        """The ids of all threads, the most recently used first."""
        with self._session(write=False) as session:
            namespaces = select_namespaces(session, None)
        newest = sorted(namespaces, key=lambda each: each.head or 0, reverse=True)
        return iter(dict.fromkeys(each.thread_id for each in newest))

    def _begin_list(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> tuple[dict[int, NamespaceRow], int]:
        """The namespaces to list, and the sequence below which to begin."""
        with self._session(write=False) as session:
            namespaces = {each.id: each for each in select_namespaces(session, config)}
            if before is None:
                return namespaces, NEWEST
            return namespaces, find_edge(session, before, namespaces.values(), self._integrity)

    def _newest_first(
        self,
        namespaces: Mapping[int, NamespaceRow],
        edge: int,
        fits: Callable[[StoredCheckpoint], bool],
        limit: int | None,
    ) -> Iterator[StoredCheckpoint]:
        """The checkpoints that fit, at most so many. Before the last one the list is checked: it
        must be whole."""
        check, left = ListingCheck(namespaces, edge), limit
        if left == 0:
            return
        while True:
            page = self._read_page(namespaces, edge)
            for found in page:
                check.add(found)
                if not fits(found):
                    continue
                left = None if left is None else left - 1
                if left == 0:
                    with self._session(write=False) as session:
                        check.stop(session, self._integrity)
                yield found
                if left == 0:
                    return
            if len(page) < PAGE:
                break
            edge = page[-1].row.seq
        with self._session(write=False) as session:
            check.end(session, self._integrity)

    def _read_page(
        self, namespaces: Mapping[int, NamespaceRow], edge: int
    ) -> Sequence[StoredCheckpoint]:
        """The next checkpoints of some namespaces that are older than a sequence."""
        with self._session(write=False) as session:
            return read_page(session, namespaces, edge, self._integrity)

    def _matches(self, found: StoredCheckpoint, wanted: Mapping[str, Any] | None) -> bool:
        if not wanted:
            return True
        metadata = self.serde.loads(found.body.metadata)
        return all(metadata.get(key, MISSING) == value for key, value in wanted.items())
