"""What `InMemorySaver` keeps while a thread stays where it is: records beside checkpoints, and the
posts that wait for its next run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from .builtin import BuiltinSaver
from .errors import CheckpointConflictError
from .memory_chain import Chain
from .overrides import check_expected
from .records import Post, RunnableConfig, TaskWrites, check_names, coordinates
from .retention import Retention
from .serde import Blob, Serializer


class PostTable:
    """The posts of all threads, by their ids. The saver's lock is held by whoever calls."""

    def __init__(self) -> None:
        self._threads: dict[str, dict[int, Post]] = {}
        self._last = 0

    def of(self, thread_id: str) -> Sequence[Post]:
        """The posts of a thread, in the order of ids."""
        return tuple(self._threads.get(thread_id, {}).values())

    def add(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """Add a post to a thread."""
        self._last += 1
        self._threads.setdefault(thread_id, {})[self._last] = Post(self._last, tuple(writes))

    def holds(self, thread_id: str, ids: Collection[int]) -> bool:
        """Whether all of these are there."""
        return self._threads.get(thread_id, {}).keys() >= set(ids)

    def take(self, thread_id: str, ids: Collection[int]) -> None:
        """Delete what a commit takes."""
        for id in ids:
            del self._threads[thread_id][id]

    def forget(self, thread_id: str) -> None:
        """Delete the posts of a thread."""
        self._threads.pop(thread_id, None)

    def copy(self, source: str, target: str) -> None:
        """Give a thread what waits for another."""
        for post in self.of(source):
            self.add(target, post.writes)


class MemoryRecords(BuiltinSaver):
    """The part of the saver that records, and keeps posts."""

    def __init__(
        self, *, serde: Serializer | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__(serde=serde, retention=retention)
        self._lock = threading.Lock()  # held for dict work only, never while a value is decoded
        self._threads: dict[str, dict[str, Chain]] = {}
        self._posts = PostTable()

    def store_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """Keep what was posted to a thread; see `BaseCheckpointSaver.store_post`."""
        check_names(thread_id)
        with self._lock:
            self._posts.add(thread_id, writes)

    def read_posts(self, thread_id: str) -> Sequence[Post]:
        """What was posted to a thread and no commit has taken, in the order of ids."""
        with self._lock:
            return self._posts.of(thread_id)

    def _chain(self, thread_id: str, checkpoint_ns: str) -> Chain | None:
        chains = self._threads.get(thread_id)
        if not chains:
            return None
        return chains.get(checkpoint_ns)

    def _record(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        where = thread_id, checkpoint_ns
        with self._lock:
            chain = self._chain(*where) or Chain()
            revision = chain.revisions.get(chain.head or "", 0)
            check_expected(self, "commit_writes", where, chain.head, revision)
            self._threads.setdefault(thread_id, {})[checkpoint_ns] = chain
            chain.record(checkpoint_id, [*writes])

    def claim(
        self, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]
    ) -> None:
        """Record that a run is about to answer the head's questions; see
        `BaseCheckpointSaver.claim`."""
        self._record_at_head(config, revision, {coordinates(config)[2] or "": writes})

    def commit_records(
        self,
        config: RunnableConfig,
        revision: int | None,
        records: Mapping[str, Sequence[TaskWrites]],
    ) -> None:
        """Record beside several checkpoints at once; see `BaseCheckpointSaver.commit_records`."""
        self._record_at_head(config, revision, records)

    def _record_at_head(
        self,
        config: RunnableConfig,
        revision: int | None,
        records: Mapping[str, Sequence[TaskWrites]],
    ) -> None:
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        with self._lock:
            chain = self._chain(thread_id, checkpoint_ns) or Chain()
            head, known = chain.head, chain.revisions.get(chain.head or "", 0)
            if checkpoint_id is None or head != checkpoint_id or revision not in (None, known):
                raise CheckpointConflictError(thread_id, checkpoint_ns, checkpoint_id, head)
            for id, writes in records.items():
                chain.record(id, [*writes])
            if checkpoint_id not in records:
                chain.record(checkpoint_id, [])  # it counts there, too
