"""What `InMemorySaver` keeps while a thread stays where it is: records beside checkpoints, and the
posts that wait for its next run."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from .builtin import BuiltinSaver
from .errors import CheckpointConflictError
from .memory_chain import Chain
from .records import Expected, Place, Post, TaskWrites, check_names
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
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        thread_id, checkpoint_ns = where
        with self._lock:
            chain = self._chain(*where) or Chain()
            head = chain.head or ""
            if expected is not None:
                known = chain.revisions.get(head, 0)
                if expected.head != chain.head or expected.revision not in (None, known):
                    raise CheckpointConflictError(*where, expected.head, chain.head)
                writes = {head: (), **writes}  # it counts there, too
            for id, tasks in writes.items():
                chain.record(id, [*tasks])
            self._threads.setdefault(thread_id, {})[checkpoint_ns] = chain
            return chain.revisions.get(head, 0)
