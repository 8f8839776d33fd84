"""Commits of coroutines that wait together, sent to Postgres as one transaction in one round trip.

The server flushes its log once for all of them, and neither side switches threads or processes for
each. Commits that cannot be stored together are stored one by one on the threads of the
checkpointer's other calls, so that one that fails or waits for another session's lock holds up no
other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..records import Commit
from ..threads import CallThreads
from .group_commit import MOST, QueuedWrite, WriteQueue, answer
from .postgres_server import ConnectionLostError


class CommitPipeline(WriteQueue):
    """Stores commits that wait together.

    Args:
        store: stores as many of these commits as it can, in one transaction; returns which ones.
        after_loss: stores one commit after the connection of its group was lost, when it may
            already be stored.
        threads: returns the threads of the checkpointer's other calls.
    """

    def __init__(
        self,
        store: Callable[[list[Sequence[Commit]]], list[bool]],
        after_loss: Callable[[ConnectionLostError, Sequence[Commit]], None],
        threads: Callable[[], CallThreads],
    ) -> None:
        super().__init__()
        self._store, self._after_loss, self._call_threads = store, after_loss, threads

    def _make_next(self) -> list[QueuedWrite]:
        writes = [write for write in self._take(MOST) if write.is_awaited]
        stored = [False] * len(writes)
        try:
            stored = self._store([write.args[0] for write in writes])
        except ConnectionLostError as lost:
            for write in writes:
                # A separate error for each, since each is raised elsewhere.
                own = ConnectionLostError(str(lost), lost.late)
                write.function = partial(self._after_loss, own)
        except BaseException:
            pass  # None is stored. Each is retried alone, so that a bad one cannot fail the others.
        ended = []
        for write, is_stored in zip(writes, stored, strict=True):
            if is_stored or not self._make_alone(write):
                ended.append(write)
        return ended

    def _make_alone(self, write: QueuedWrite) -> bool:
        """Make a write on a thread of its own; return whether there is one."""
        try:
            self._call_threads().submit(partial(_make, write))
        except RuntimeError as error:
            write.fail(error)
            return False
        return True


def _make(write: QueuedWrite) -> None:
    write.make()
    answer([write])
