"""The contract of a checkpointer. Independent of the engine.

A thread is a chain of checkpoints with one head. The engine hands a checkpointer one `Commit` per
superstep: what changed, the writes of the tasks that changed it, and the head that it expects. A
checkpointer stores it atomically, and only while its head is still the one named
(compare-and-swap): one writer wins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import GenericAlias
from typing import Any, ClassVar

from .errors import CheckpointConflictError
from .overrides import (
    commit_by_parts,
    drive,
    head_by_parts,
    honour_overrides,
    namespaces_by_parts,
    record_by_parts,
    run_by_parts,
)
from .records import (
    CHECKPOINT_FORMAT,
    CLAIM,
    CONTINUES,
    CONTROL_WRITES,
    DIGEST,
    EDITED,
    ERROR,
    ERROR_SOURCE,
    INTERRUPT,
    KEPT,
    MADE_BY,
    NO_WRITES,
    NULL_TASK_ID,
    OF_TASK,
    POST,
    POST_TASK_ID,
    RAISED,
    RESUME,
    RETURN,
    REWOUND,
    SLEEP,
    TRACEBACK,
    UNDER_WAY,
    UNDOING,
    UNDONE,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    Expected,
    PendingWrite,
    Place,
    Post,
    RunnableConfig,
    Span,
    TaskWrites,
    Transacted,
    TransactionPlace,
    address,
    coordinates,
    write_index,
)
from .serde import Blob, Serializer
from .threads import Closable

__all__ = [
    "BaseCheckpointSaver", "CHECKPOINT_FORMAT", "CLAIM", "CONTINUES", "CONTROL_WRITES",
    "DIGEST", "EDITED", "ERROR", "ERROR_SOURCE", "INTERRUPT", "KEPT", "MADE_BY", "NO_WRITES",
    "NULL_TASK_ID", "OF_TASK", "POST", "POST_TASK_ID", "RAISED", "RESUME", "RETURN", "REWOUND",
    "SLEEP", "TRACEBACK", "UNDER_WAY", "UNDOING", "UNDONE", "Checkpoint", "CheckpointConflictError",
    "CheckpointMetadata", "CheckpointTuple", "Commit", "Expected", "PendingWrite", "Place", "Post",
    "RunnableConfig", "Span", "TaskWrites",
    "address", "coordinates", "write_index",
]  # fmt: skip


class BaseCheckpointSaver(Closable):
    """Stores threads and reads them back. Subclass it to store them elsewhere.

    Your own checkpointer needs `get_tuple`, `list`, `put`, `put_writes` and `delete_thread`; the
    async twins then call these on the checkpointer's own threads. Override `commit` and `record` as
    well to get one transaction per superstep and one writer per thread; the inherited ones check
    the head, then call `put_writes` and `put`.

    A subclass of a checkpointer that has all of these, such as `SqliteSaver`, may override any of
    them, and its overrides are called: a sync method in async runs too, an async one in async runs.
    A superstep then takes several transactions, one for each `put_writes` and `put`, in this order;
    one writer per thread still wins.

    Args:
        serde: turns values into bytes and back; the strict default refuses what it cannot return
            unchanged.
    """

    in_memory = False
    """Whether a commit is quick and dies with the process: then nothing is gained by recording
    early finishers of a superstep, or by storing in the background."""

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    """Some write `BaseCheckpointSaver[str]`, after the type of their versions."""

    keeps_posts = False
    """Whether it has `store_post` and `read_posts`, and deletes what a commit has taken."""

    def __init__(self, *, serde: Serializer | None = None) -> None:
        self.serde: Serializer = serde or Serializer()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        honour_overrides(cls)

    def for_call(self, config: RunnableConfig) -> BaseCheckpointSaver:
        """Return the checkpointer for a call of a graph with this config: itself, as what the
        engine passes names all that a checkpointer needs."""
        return self

    # -- read --------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that `config` names by `checkpoint_id`, else the thread's head;
        None if there is none."""
        raise NotImplementedError(f"{type(self).__name__} must define get_tuple()")

    def get(self, config: RunnableConfig) -> Checkpoint | None:
        """Like `get_tuple`, but only the checkpoint."""
        found = self.get_tuple(config)
        if not found:
            return None
        return found.checkpoint

    def head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of the thread and namespace in `config`, or
        None."""
        head: str | None = drive(self, head_by_parts(self, config))
        return head

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first.

        Args:
            config: the thread, optionally its namespace and checkpoint id; None for all threads.
            filter: metadata keys and the values they must equal.
            before: only checkpoints older than the one that this config names.
            limit: the maximum number; 0 gives nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} must define list()")

    def threads(self, *, filter: Mapping[str, Any] | None = None) -> Iterator[str]:
        """Return the ids of all threads, the most recently used first.

        Args:
            filter: only threads with a checkpoint whose metadata has these keys and values; the
                newest of such checkpoints counts for the order.
        """
        seen: set[str] = set()
        for found in self.list(None, filter=filter):
            thread_id = coordinates(found.config)[0]
            if thread_id not in seen:
                seen.add(thread_id)
                yield thread_id

    def namespaces(self, thread_id: str) -> Collection[str]:
        """Return the namespaces in which a thread has checkpoints: "" for the whole graph, and
        those of its subgraphs."""
        found: Collection[str] = drive(self, namespaces_by_parts(self, thread_id))
        return found

    # -- write -------------------------------------------------------------------------------------

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """Store a checkpoint as the new head.

        Args:
            config: thread, namespace and, as `checkpoint_id`, the *parent's* id (absent: no
                parent).
            new_versions: the channels that changed since the parent; only these must be stored
                again.

        Returns:
            The config that names the new checkpoint.
        """
        raise NotImplementedError(f"{type(self).__name__} must define put()")

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store a task's writes beside the checkpoint that `config` names, which may arrive later.

        Of an ordinary write sent twice the first is kept; a control write (`__error__`,
        `__interrupt__`, `__resume__`) replaces the one before it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define put_writes()")

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps of one thread in one transaction, in this order: of each its parent's
        writes, the checkpoint and the new head. Mostly it is one; several are the first of a run,
        or, with durability "exit", those of nested graphs and then the one around them. Each may
        build on those before it. The inherited method stores one after another.

        Raises:
            CheckpointConflictError: a head is not the one that a commit names or `requires`.
        """
        drive(self, commit_by_parts(self, commits))

    def keeps_input(self, thread_id: str, run_id: str | None) -> bool:
        """Return whether the input of this run is also kept elsewhere, so that a run whose
        checkpoints are lost begins again with it. Then the first checkpoints may wait for the first
        step, to be stored together with it by `commit`."""
        return False

    def record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int | None:
        """Store in one transaction what tasks have left beside checkpoints, if the thread is still
        as the caller has read it: tasks that ended while their superstep goes on, that failed or
        paused, and claims. Of several runs that work from the same head one goes on. It counts once
        beside the head, whatever else it stands beside, and also if there are no writes. The
        inherited method checks first, but not in the same transaction.

        Args:
            expected: the head, and how many records are beside it; None to store unchecked, which
                then counts only where it stands.
            writes: the writes, by the id of the checkpoint beside which they stand.

        Returns:
            How many records are beside the head now; None if it is not known.

        Raises:
            CheckpointConflictError: another was first. Nothing is stored.
        """
        revision: int | None = drive(self, record_by_parts(self, where, expected, writes))
        return revision

    def run_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """Return the newest checkpoint of the thread and namespace in `config` that the run with
        this id made, or None."""
        found: CheckpointTuple | None = drive(self, run_by_parts(self, config, run_id))
        return found

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces; an unknown thread is not an error."""
        raise NotImplementedError(f"{type(self).__name__} must define delete_thread()")

    def delete_for_runs(self, run_ids: Collection[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata names one of these runs.

        If the head is deleted, the newest remaining checkpoint becomes the head.
        """
        raise NotImplementedError(f"{type(self).__name__} must define delete_for_runs()")

    def prune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """Delete old checkpoints, with their writes. Without limits, keep only the newest of each
        namespace.

        The remaining checkpoints can be read and resumed as before. The history of a nested graph
        that one task ran is deleted with the enclosing checkpoint. Of a memory
        (`checkpointer=True`) what it was at each remaining checkpoint around it stays, too.

        Args:
            thread_ids: None for all threads.
            keep_last: the number of newest checkpoints to keep per namespace; 0 keeps none.
            older_than: delete older ones, except for the newest of each namespace.

        Raises:
            ValueError: `keep_last` is negative.
            DamagedError: a thread is damaged; it stays as it is. All others were pruned; the notes
                name further ones.
        """
        raise NotImplementedError(f"{type(self).__name__} must define prune()")

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread: all namespaces, checkpoints with their ids and order, and writes.

        Raises:
            ValueError: the source does not exist, or the target already does.
        """
        raise NotImplementedError(f"{type(self).__name__} must define copy_thread()")

    # -- optional ----------------------------------------------------------------------------------

    def stored_bytes(self, thread_ids: Collection[str]) -> int:
        """Return how many bytes the values of some threads take: those of all checkpoints and of
        the writes beside them, without what the database itself needs."""
        raise NotImplementedError(f"{type(self).__name__} does not implement stored_bytes()")

    def transact(
        self, place: TransactionPlace, function: Callable[[Any], TaskWrites]
    ) -> Transacted:
        """Call a function with a connection in a transaction on the checkpointer's database, and
        record what it returns beside the checkpoint of `place` in this same transaction: what it
        has written and the record are both there, or neither. It counts as recorded beside the
        head, as with `record`. `runtime.transaction` needs it; it is optional.

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

    # -- the same, async ---------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` for coroutines."""
        return await self._acall(self.get_tuple, config)

    async def aget(self, config: RunnableConfig) -> Checkpoint | None:
        """`get` for coroutines."""
        found = await self.aget_tuple(config)
        if not found:
            return None
        return found.checkpoint

    async def ahead(self, config: RunnableConfig) -> str | None:
        """`head` for coroutines."""
        return await self._acall(self.head, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` for coroutines."""

        read = partial(self._read_list, config, filter=filter, before=before, limit=limit)
        for found in await self._acall(read):
            yield found

    def _read_list(
        self, config: RunnableConfig | None, **options: Any
    ) -> Iterator[CheckpointTuple]:
        """What `alist` gives, read where `_acall` calls it."""
        return iter(tuple(self.list(config, **options)))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """`put` for coroutines."""
        return await self._acall(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes` for coroutines."""
        await self._acall(self.put_writes, config, writes, task_id, task_path)

    async def acommit(self, commits: Sequence[Commit]) -> None:
        """`commit` for coroutines."""
        await self._acall(self.commit, commits)

    async def arecord(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int | None:
        """`record` for coroutines."""
        return await self._acall(self.record, where, expected, writes)

    async def anamespaces(self, thread_id: str) -> Collection[str]:
        """`namespaces` for coroutines."""
        return await self._acall(self.namespaces, thread_id)

    async def arun_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """`run_of` for coroutines."""
        return await self._acall(self.run_of, config, run_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` for coroutines."""
        await self._acall(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Collection[str]) -> None:
        """`delete_for_runs` for coroutines."""
        await self._acall(self.delete_for_runs, run_ids)

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """`prune` for coroutines."""
        await self._acall(
            partial(self.prune, thread_ids, keep_last=keep_last, older_than=older_than)
        )

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

    async def astored_bytes(self, thread_ids: Collection[str]) -> int:
        """`stored_bytes` for coroutines."""
        return await self._acall(self.stored_bytes, thread_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread` for coroutines."""
        await self._acall(self.copy_thread, source_thread_id, target_thread_id)


honour_overrides(BaseCheckpointSaver)
