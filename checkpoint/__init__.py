"""Stores threads and reads them back: the checkpointer contract, values ↔ bytes, and the
checkpointer in memory.

Independent of the engine. The checkpointers on databases are separate modules: `.sqlite` and
`.postgres`."""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names
from .base import (
    CHECKPOINT_FORMAT,
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointConflictError,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    PendingWrite,
    RunnableConfig,
    TaskWrites,
)
from .errors import DamagedError, StorageError, StoredError, UnknownTypeError, UnserializableError
from .serde import Blob, Serializer
from .serde.registry import Registry, register

if TYPE_CHECKING:
    from .memory import InMemorySaver, MemorySaver
    from .retention import Retention

__all__ = [
    # the contract
    "BaseCheckpointSaver",
    "Checkpoint",
    "CheckpointMetadata",
    "CheckpointTuple",
    "CheckpointConflictError",
    "Commit",
    "TaskWrites",
    "PendingWrite",
    "RunnableConfig",
    "CHECKPOINT_FORMAT",
    # the saver in memory
    "InMemorySaver",
    "MemorySaver",
    # values and bytes
    "Serializer",
    "Blob",
    "Registry",
    "register",
    "UnserializableError",
    "UnknownTypeError",
    "DamagedError",
    "StoredError",
    "StorageError",
    "Retention",
]

# Many programs use no checkpointer, or another one.
__getattr__ = _lazy_names(
    __name__,
    {"InMemorySaver": ".memory", "MemorySaver": ".memory", "Retention": ".retention"},
)
