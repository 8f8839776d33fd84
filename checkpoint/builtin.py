"""What the checkpointers shipped here have in common: retention, and values encoded before they are
stored."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from ..channels.base import check_kind
from .base import BaseCheckpointSaver
from .errors import UnserializableError
from .records import Expected, Place, RunnableConfig, TaskWrites, check_names, coordinates
from .retention import Retention
from .serde import Blob, Serializer
from .serde.delta import SharedBlob
from .serde.list_decoder import MOST_BYTES, MOST_LISTED, ListDecoder

FEW = 16
"""How many checkpoints may be listed with the lists that the checkpointer keeps. Of more, larger
lists are kept, until all are listed."""


class BuiltinSaver(BaseCheckpointSaver):
    """A checkpointer that stores encoded values.

    Args:
        serde: turns values into bytes and back.
        retention: which checkpoints to forget as runs go on; None keeps all.

    Raises:
        TypeError: `retention` is something else; raised here, not by a commit in the middle of a
            run.
    """

    keeps_posts = True

    def __init__(
        self, *, serde: Serializer | None = None, retention: Retention | None = None
    ) -> None:
        super().__init__(serde=serde)
        words = "a Retention, such as Retention(keep_last=10)"
        check_kind("retention", retention, Retention | None, words)
        self._retention = retention
        self._lists = ListDecoder(MOST_BYTES)

    def record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int | None:
        """Store what tasks have left beside checkpoints; see `BaseCheckpointSaver.record`.

        Raises:
            CheckpointConflictError: another was first. Nothing is stored.
            StorageError: the database refused; nothing is stored.
        """
        return self._record(where, expected, writes)

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
            StorageError: the database refused; nothing is stored.
        """
        thread_id, checkpoint_ns, checkpoint_id = coordinates(config)
        if checkpoint_id is None:
            raise ValueError("put_writes(): the config must have a checkpoint_id")
        check_names(task_id, task_path, *(channel for channel, _ in writes))
        encoded = [(channel, self._dumps(f"[{channel!r}]", value)) for channel, value in writes]
        task = TaskWrites(task_id, task_path, encoded)
        self._record((thread_id, checkpoint_ns), None, {checkpoint_id: [task]})

    def _record(
        self, where: Place, expected: Expected | None, writes: Mapping[str, Sequence[TaskWrites]]
    ) -> int:
        """Do what `record` does. Of `put_writes`, the checkpoint may not be there yet."""
        raise NotImplementedError

    def _prune_by_retention(self, thread_id: str) -> None:
        if self._retention is not None:
            limits = self._retention
            self.prune([thread_id], keep_last=limits.keep_last, older_than=limits.older_than)

    def _dumps(self, where: str, value: Any) -> Blob:
        try:
            return self.serde.dumps(value)
        except UnserializableError as exc:
            raise exc.inside(where) from exc.__cause__

    @property
    def _loads(self) -> Callable[[Blob], Any]:
        """What decodes values that were read as bytes, a bytearray or a view. A serializer of a
        user's own is given bytes."""
        loads = self.serde.loads
        if type(self.serde).loads is Serializer.loads:
            return loads
        return lambda blob: loads((blob[0], bytes(blob[1])))

    def _choose_lists(self, limit: int | None) -> ListDecoder:
        """Return what keeps the lists of some checkpoints as they are listed."""
        few = limit is not None and limit <= FEW
        return self._lists if few else ListDecoder(MOST_LISTED)

    def _value_loads(
        self, lists: ListDecoder
    ) -> Callable[[Hashable, Blob | SharedBlob], Any]:
        """Return what decodes the values of channels, each with what tells its channel from
        others."""
        loads = self._loads
        if type(self.serde).loads is Serializer.loads:
            return partial(lists.loads, loads)
        return lambda _, stored: loads(stored.read() if isinstance(stored, SharedBlob) else stored)
