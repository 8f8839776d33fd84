"""The async faces of a saver that never waits: they call the sync ones where they are, on no other thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

from .base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
)


class InlineSaver(BaseCheckpointSaver):
    """A base for savers whose sync methods are quick enough to be called on the event loop."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple` for coroutines."""
        return self.get_tuple(config)

    async def ahead(self, config: RunnableConfig) -> str | None:
        """`head` for coroutines."""
        return self.head(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: Mapping[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list` for coroutines."""
        for found in self.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: Mapping[str, int],
    ) -> RunnableConfig:
        """`put` for coroutines."""
        return self.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """`put_writes` for coroutines."""
        self.put_writes(config, writes, task_id, task_path)

    async def acommit(self, commit: Commit) -> None:
        """`commit` for coroutines."""
        self.commit(commit)

    async def acommit_writes(
        self, thread_id: str, checkpoint_ns: str, checkpoint_id: str, writes: Sequence[TaskWrites]
    ) -> None:
        """`commit_writes` for coroutines."""
        self.commit_writes(thread_id, checkpoint_ns, checkpoint_id, writes)

    async def aclaim(self, config: RunnableConfig, revision: int | None, writes: Sequence[TaskWrites]) -> None:
        """`claim` for coroutines."""
        self.claim(config, revision, writes)

    async def arun_of(self, config: RunnableConfig, run_id: str) -> CheckpointTuple | None:
        """`run_of` for coroutines."""
        return self.run_of(config, run_id)

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread` for coroutines."""
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Collection[str]) -> None:
        """`delete_for_runs` for coroutines."""
        self.delete_for_runs(run_ids)

    async def aprune(
        self,
        thread_ids: Collection[str] | None = None,
        *,
        keep_last: int | None = None,
        older_than: timedelta | None = None,
    ) -> None:
        """`prune` for coroutines."""
        self.prune(thread_ids, keep_last=keep_last, older_than=older_than)

    async def acopy_thread(self, source: str, target: str) -> None:
        """`copy_thread` for coroutines."""
        self.copy_thread(source, target)
