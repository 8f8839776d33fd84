"""With durability "exit": the checkpoints of nested graphs until they are stored, with that of the
graph around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...checkpoint.base import (
    Checkpoint,
    CheckpointTuple,
    Commit,
    RunnableConfig,
    TaskWrites,
    address,
)
from ...checkpoint.memory import InMemorySaver
from ...checkpoint.serde import Serializer


class KeptCheckpoints:
    """The checkpoints that nested graphs have made during one call, and that the outermost run
    stores with its own, in one transaction: those of memories (`checkpointer=True`), and those of
    graphs whose tasks will run again. Until then a task of the same call finds them here.

    Args:
        serde: the checkpointer's.
    """

    def __init__(self, serde: Serializer) -> None:
        self._commits: dict[str, Commit] = {}
        # What is kept, as a run loads it; its own heads count there.
        self._histories = InMemorySaver(serde=serde)

    def commit(self, commits: Sequence[Commit]) -> None:
        """Keep checkpoints."""
        for commit in commits:
            known = self._histories.head(address(commit.thread_id, commit.checkpoint_ns))
            self._histories.commit([replace(commit, head=known, values={**commit.values})])
            # The live state may change before it is stored.
            commit.whole = partial(self._read_whole, commit)
            self._commits[commit.id] = commit

    def _read_whole(self, commit: Commit) -> Checkpoint:
        at = address(commit.thread_id, commit.checkpoint_ns, commit.id)
        found = self._histories.get_tuple(at)
        assert found is not None
        return found.checkpoint

    def record(self, records: Mapping[str, Sequence[TaskWrites]]) -> bool:
        """Keep what is recorded beside these checkpoints; False if not all of them are kept here,
        so that it is to be stored."""
        if not records or not records.keys() <= self._commits.keys():
            return False
        for id, writes in records.items():
            commit = self._commits[id]
            commit.carried = [*commit.carried, *writes]
            where = (commit.thread_id, commit.checkpoint_ns)
            self._histories.record(where, None, {id: writes})
        return True

    def find(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest, if it is kept here."""
        return self._histories.get_tuple(config) if self._commits else None

    def head(self, config: RunnableConfig) -> str | None:
        """Return the id of the newest checkpoint of a nested graph, if one is kept here."""
        return self._histories.head(config) if self._commits else None

    def take(self) -> list[Commit]:
        """Return all checkpoints, in their order, and keep them no longer."""
        commits = [*self._commits.values()]
        self._commits.clear()
        return commits
