"""What a saver may do without: transactions for nodes, and posts to threads. Who wants one says so
when it is missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .opening import Closable
from .records import Post, TaskWrites, Transacted, TransactionPlace
from .serde import Blob


class OptionalMethods(Closable):
    """The part of `BaseCheckpointSaver` that a saver of one's own may leave as it is."""

    keeps_posts = False
    """Whether it has `store_post` and `read_posts`, and deletes what a commit has taken."""

    def transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        """Call a function with a connection in a transaction on the saver's database, and record
        what it returns beside the checkpoint of `place` in this same transaction: what it has
        written and the record are both there, or neither. It counts as recorded beside the head,
        as with `record`. `runtime.transaction` needs it; a saver may do without.

        Raises:
            CheckpointConflictError: the head is another than `place` says, or somebody else has
                recorded something beside it. The function was not called.
            Exception: whatever the function raised; the transaction was undone.
        """
        raise NotImplementedError(f"{type(self).__name__} has no transactions of its own")

    def store_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """Keep what was posted to a thread, which need not exist, until a commit takes it. It
        conflicts with nobody, and its id is higher than that of all before it."""
        raise NotImplementedError(f"{type(self).__name__} must define store_post()")

    def read_posts(self, thread_id: str) -> Sequence[Post]:
        """What was posted to a thread and no commit has taken, in the order of ids."""
        raise NotImplementedError(f"{type(self).__name__} must define read_posts()")

    async def atransact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        """`transact` for coroutines. The function is called on a thread."""
        return await self._acall(self.transact, place, function)

    async def astore_post(self, thread_id: str, writes: Sequence[tuple[str, Blob]]) -> None:
        """`store_post` for coroutines."""
        await self._acall(self.store_post, thread_id, writes)

    async def aread_posts(self, thread_id: str) -> Sequence[Post]:
        """`read_posts` for coroutines."""
        return await self._acall(self.read_posts, thread_id)
