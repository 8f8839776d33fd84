"""The posts of `InMemorySaver`: what waits for the next run of each thread."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence

from .builtin import BuiltinSaver
from .records import Post, check_names
from .retention import Retention
from .serde import Blob, Serializer


class PostTable:
    """The posts of all threads, by their ids. The saver's lock is held by whoever calls."""

    def __init__(self) -> None:
        self._threads: dict[str, dict[int, Post]] = {}
        self._last = 0

    def of(self, thread_id: str) -> Sequence[Post]:
        """Those of a thread, in the order of ids."""
        return tuple(self._threads.get(thread_id, {}).values())

    def add(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """One more."""
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
        """Delete those of a thread."""
        self._threads.pop(thread_id, None)

    def copy(self, source: str, target: str) -> None:
        """Give a thread what waits for another."""
        for post in self.of(source):
            self.add(target, post.writes)


class MemoryPosts(BuiltinSaver):
    """The part of the saver that keeps posts."""

    def __init__(
        self, *, serde: Serializer | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__(serde=serde, retention=retention)
        self._lock = threading.Lock()  # held for dict work only, never while a value is decoded
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
