"""A saver that keeps threads in this process, for tests and for work that need not outlive it.

What a checkpoint holds is kept as bytes, so that nothing done to the live state reaches the history.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple, cast

from ..channels.base import MISSING
from .base import (
    Checkpoint,
    CheckpointConflictError,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    address,
    coordinates,
)
from .errors import UnserializableError
from .inline import InlineSaver
from .memory_chain import (
    KEYFRAME,
    Kept,
    Namespace,
    Record,
    anchored,
    changed_values,
    image_of,
    rebuilt,
    record_of,
    whole,
)
from .overrides import check_expected
from .records import KeptWrites, check_checkpoint, check_names, iso, merged, spans_of
from .retention import EVERY, Limits, Retention, check_retention, several, with_continued
from .serde import Blob, Serializer


class _Place(NamedTuple):
    """Where a record was found."""

    thread_id: str
    checkpoint_ns: str
    record: Record


_Space = tuple[str, str, Namespace]
"""(thread id, namespace's name, namespace)"""


class InMemorySaver(InlineSaver):
    """Keeps threads in this process. Safe to share between threads and event loops.

    Args:
        serde: turns values into bytes and back.
        retention: which checkpoints to forget as runs go on; None keeps all.

    >>> from stategraph.checkpoint import InMemorySaver
    >>> saver = InMemorySaver()
    >>> print(saver.get({"configurable": {"thread_id": "1"}}))
    None
    """

    in_memory = True

    def __init__(self, *, serde: Serializer | None = None, retention: Retention | None = None) -> None:
        super().__init__(serde=serde)
        self._retention = check_retention(retention)
        self._lock = threading.Lock()  # held for dict work only, never while a value is decoded
        self._threads: dict[str, dict[str, Namespace]] = {}
        self._sequence = 0

    # -- read ---------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names by `checkpoint_id`, else the thread's head; None if there is none."""
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        with self._lock:
            record = self._record(thread_id, checkpoint_ns, checkpoint_id)
        return self._read(_Place(thread_id, checkpoint_ns, record)) if record else None

    def head(self, config: RunnableConfig) -> str | None:
        """The id of the newest checkpoint of the thread and namespace in `config`, or None."""
        thread_id, checkpoint_ns, _ = coordinates(config)
        with self._lock:
            space = self._space(thread_id, checkpoint_ns)
            return space.head if space else None

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
            ValueError: `config` names no thread, `before` no stored checkpoint, or `limit` is negative.
        """
        with self._lock:
            spaces = self._spaces(config)
            wanted = coordinates(config)[2] if config is not None else None
            found = merge(*(_newest_first(space, wanted) for space in spaces), key=lambda place: -place.record.sequence)
            edge = self._edge(before, spaces) if before is not None else None
            chosen = (
                place
                for place in found
                if (edge is None or place.record.sequence < edge) and _matches(place.record.metadata, filter)
            )
            places = tuple(islice(chosen, limit))
        return map(self._read, places)

    def _space(self, thread_id: str, checkpoint_ns: str) -> Namespace | None:
        spaces = self._threads.get(thread_id)
        return spaces.get(checkpoint_ns) if spaces else None

    def _record(self, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None) -> Record | None:
        space = self._space(thread_id, checkpoint_ns)
        if space is None:
            return None
        wanted = checkpoint_id or space.head
        return space.records.get(wanted) if wanted else None

    def _spaces(self, config: RunnableConfig | None) -> Sequence[_Space]:
        """The namespaces that `config` may mean."""
        threads, only = self._threads, None
        if config is not None:
            thread_id = coordinates(config)[0]
            threads = {thread_id: self._threads.get(thread_id, {})}
            only = config["configurable"].get("checkpoint_ns")
        return [
            (thread_id, name, space)
            for thread_id, spaces in threads.items()
            for name, space in spaces.items()
            if only is None or name == only
        ]

    def _edge(self, before: RunnableConfig, spaces: Sequence[_Space]) -> int:
        """The sequence of the checkpoint that `before` names, by its thread or among what is listed."""
        configurable = before.get("configurable") or {}
        wanted = configurable.get("checkpoint_id")
        if "thread_id" in configurable:
            record = self._record(*coordinates(before))
        else:
            record = next((space.records[wanted] for _, _, space in spaces if wanted in space.records), None)
        if record is None:
            raise ValueError(f"before: there is no checkpoint {wanted!r} here")
        return record.sequence

    def _read(self, place: _Place) -> CheckpointTuple:
        thread_id, checkpoint_ns, record = place
        with self._lock:
            space = self._space(thread_id, checkpoint_ns)
            tasks = [*space.writes.get(record.id, ())] if space else []
            revision = space.revisions.get(record.id, 0) if space else 0
        parent_id = record.parent_id
        return CheckpointTuple(
            address(thread_id, checkpoint_ns, record.id),
            self._checkpoint(record),
            cast(CheckpointMetadata, _own(record.metadata)),
            None if parent_id is None else address(thread_id, checkpoint_ns, parent_id),
            self._pending(merged(tasks)),
            spans_of(tasks),
            revision,
        )

    def _checkpoint(self, record: Record) -> Checkpoint:
        loads = self.serde.loads
        values, versions, seen = image_of(record)
        return {
            "v": record.v,
            "id": record.id,
            "ts": iso(record.ts),
            "channel_values": {name: loads(whole(kept)) for name, kept in values.items() if kept is not None},
            "channel_versions": versions,
            "versions_seen": {node: dict(each) for node, each in seen.items()},
            "updated_channels": None if record.updated is None else [*record.updated],
        }

    def _pending(self, kept: KeptWrites) -> Any:
        ordered = sorted((path, task_id, index) for (task_id, index), (path, _, _) in kept.items())
        found = [(task_id, *kept[task_id, index][1:]) for _, task_id, index in ordered]
        return [(task_id, channel, self.serde.loads(blob)) for task_id, channel, blob in found]

    # -- write --------------------------------------------------------------------------------------------

    def commit(self, commit: Commit) -> None:
        """Store one superstep: the parent's writes, the checkpoint and the new head, whole or not at all.

        Raises:
            CheckpointConflictError: the head is not the one the commit names.
        """
        thread_id, checkpoint_ns, parent_id = commit.thread_id, commit.checkpoint_ns, commit.parent_id
        with self._lock:
            space = self._space(thread_id, checkpoint_ns) or Namespace()
            if space.head != commit.head:
                raise CheckpointConflictError(thread_id, checkpoint_ns, commit.head, space.head)
            parent = space.records.get(parent_id) if parent_id is not None else None
            if parent is None and parent_id is not None:
                # Pruned meanwhile: what changed since is not enough, the record must hold everything.
                record = self._whole(parent_id, None, commit.whole(), commit.metadata, {})
            else:
                record = Record(
                    0,
                    commit.id,
                    parent_id,
                    parent,
                    parent.distance + 1 if parent else 0,
                    commit.ts,
                    commit.metadata,
                    cast("dict[str, Kept | None]", commit.values),
                    commit.versions,
                    commit.seen,
                    commit.updated,
                )
            if parent_id is not None and commit.writes:
                space.keep(parent_id, commit.writes)
            self._add(thread_id, checkpoint_ns, space, record)
            if commit.carried:
                space.keep(commit.id, [*commit.carried])
        if self._retention is not None:
            self._retain(thread_id, checkpoint_ns)

    def _retain(self, thread_id: str, checkpoint_ns: str) -> None:
        limits, space = self._retention, self._space(thread_id, checkpoint_ns)
        if limits is not None and space is not None and len(space.records) % EVERY == 0:
            self.prune([thread_id], keep_last=limits.keep_last, older_than=limits.older_than)

    def commit_writes(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        """Record tasks that ended while their superstep goes on, or that failed or paused."""
        self._record_beside(thread_id, checkpoint_ns, checkpoint_id, writes)

    def _record_beside(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        with self._lock:
            space = self._space(thread_id, checkpoint_ns) or Namespace()
            revision = space.revisions.get(checkpoint_id, 0)
            check_expected(self, "commit_writes", (thread_id, checkpoint_ns), space.head, revision)
            self._threads.setdefault(thread_id, {})[checkpoint_ns] = space
            space.keep(checkpoint_id, [*writes])

    def claim(self, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]) -> None:
        """Record that a run is about to answer the head's questions; see `BaseCheckpointSaver.claim`."""
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        with self._lock:
            space = self._space(thread_id, checkpoint_ns) or Namespace()
            known = space.revisions.get(checkpoint_id or "", 0)
            if checkpoint_id is None or space.head != checkpoint_id or known != revision:
                raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, space.head)
            space.keep(checkpoint_id, [*writes])

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head, whoever moved it last.

        A value is stored if it is in `new_versions` or the parent has none; else the parent's is kept.

        Raises:
            UnserializableError: names the channel and the place in its value.
        """
        thread_id, checkpoint_ns, parent_id = coordinates(config)
        check_checkpoint(checkpoint, metadata)
        with self._lock:
            parent = self._record(thread_id, checkpoint_ns, parent_id) if parent_id is not None else None
        record = self._whole(parent_id, parent, checkpoint, metadata, new_versions)
        with self._lock:
            space = self._space(thread_id, checkpoint_ns) or Namespace()
            check_expected(self, "put", (thread_id, checkpoint_ns), space.head)
            self._add(thread_id, checkpoint_ns, space, record)
        return address(thread_id, checkpoint_ns, record.id)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote beside the checkpoint that `config` names, which may arrive later.

        Raises:
            ValueError: `config` names no checkpoint.
            UnserializableError: names the channel and the place in its value.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        if checkpoint_id is None:
            raise ValueError("put_writes() needs a checkpoint_id in the config")
        check_names(task_id, task_path, *(channel for channel, _ in writes))
        encoded = [(channel, self._dumps(channel, value)) for channel, value in writes]
        self._record_beside(thread_id, checkpoint_ns, checkpoint_id, [TaskWrites(task_id, task_path, encoded)])

    def _add(self, thread_id: str, checkpoint_ns: str, space: Namespace, record: Record) -> None:
        """Make a record the head of its namespace. The last thing a commit does, and it cannot fail."""
        space.shrink(record)
        if record.distance >= KEYFRAME:
            record = anchored(record)
        self._sequence += 1
        record.sequence = self._sequence
        space.add(record)
        self._threads.setdefault(thread_id, {})[checkpoint_ns] = space

    def _whole(
        self,
        parent_id: str | None,
        parent: Record | None,
        checkpoint: Checkpoint,
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, int],
    ) -> Record:
        changed = changed_values(parent, checkpoint, new_versions, self._dumps)
        return record_of(parent_id, parent, checkpoint, _own(metadata), changed)

    def _dumps(self, channel: str, value: Any) -> Blob:
        try:
            return self.serde.dumps(value)
        except UnserializableError as exc:
            raise exc.inside(f"[{channel!r}]") from exc.__cause__

    # -- forget and copy ----------------------------------------------------------------------------------

    def delete_thread(self, thread_id: str) -> None:
        """Forget a thread with all its namespaces; an unknown one is no error."""
        check_names(thread_id)
        with self._lock:
            self._threads.pop(str(thread_id), None)

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Forget the checkpoints, with their writes, whose metadata names one of these runs.

        Where the head goes, the newest checkpoint left becomes the head.
        """
        runs = several(run_ids, "run_ids")
        with self._lock:
            for thread_id in tuple(self._threads):
                for checkpoint_ns, space in tuple(self._threads[thread_id].items()):
                    kept = {r.id for r in space.records.values() if r.metadata.get("run_id") not in runs}
                    self._keep_only(thread_id, checkpoint_ns, kept)

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Forget old checkpoints, with their writes; see `BaseCheckpointSaver.prune`."""
        limits = Limits(keep_last, older_than)
        with self._lock:
            for thread_id in several([*self._threads] if thread_ids is None else thread_ids, "thread_ids"):
                kept: dict[str, Collection[str]] = {}
                for name, space in sorted(self._threads.get(thread_id, {}).items(), key=lambda each: len(each[0])):
                    newest = next(reversed(space.records.values()), None)
                    parents = newest.metadata.get("parents", {}) if newest else {}
                    stamped = [(record.id, record.ts) for record in space.records.values()]
                    left = limits.kept(name, stamped, parents, kept)
                    kept[name] = with_continued(left, {r.id: r.metadata for r in space.records.values()})
                    self._keep_only(thread_id, name, left)

    def copy_thread(self, source: str, target: str) -> None:
        """Copy a thread whole: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: there is no such thread, or the target is one already.
        """
        check_names(source, target)
        with self._lock:
            spaces = self._threads.get(source)
            if not spaces:
                raise ValueError(f"there is no thread {source!r} to copy")
            if self._threads.get(target):
                raise ValueError(f"thread {target!r} exists already")
            copies = {name: rebuilt(space, space.records) for name, space in spaces.items()}
            records = (record for space in copies.values() for record in space.records.values())
            for record in sorted(records, key=attrgetter("sequence")):
                self._sequence += 1
                record.sequence = self._sequence
            self._threads[target] = copies

    def _keep_only(self, thread_id: str, checkpoint_ns: str, kept: Collection[str]) -> None:
        spaces = self._threads[thread_id]
        if len(kept) < len(spaces[checkpoint_ns].records):
            spaces[checkpoint_ns] = rebuilt(spaces[checkpoint_ns], kept)
        if not spaces[checkpoint_ns].records and not spaces[checkpoint_ns].writes:
            del spaces[checkpoint_ns]
        if not spaces:
            del self._threads[thread_id]


MemorySaver = InMemorySaver
"""The same saver under its other name."""


def _newest_first(found: _Space, wanted: str | None) -> Iterator[_Place]:
    """A namespace's records, or only the wanted one."""
    thread_id, name, space = found
    if wanted is None:
        return (_Place(thread_id, name, record) for record in reversed(space.records.values()))
    return (_Place(thread_id, name, space.records[each]) for each in (wanted,) if each in space.records)


def _own(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata that belongs to the caller, down to what is nested in it."""
    return {k: copy.deepcopy(v) if isinstance(v, (dict, list)) else v for k, v in metadata.items()}


def _matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    return not wanted or all(metadata.get(key, MISSING) == value for key, value in wanted.items())
