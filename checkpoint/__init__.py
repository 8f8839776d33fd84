"""Keeping a thread and finding it again: the saver contract, values ↔ bytes, and the saver in
memory.

Knows nothing of the engine. The savers on databases are rooms of their own: `.sqlite` and
`.postgres`.
"""

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
from .memory import InMemorySaver, MemorySaver
from .retention import Retention
from .serde import Blob, Serializer
from .serde.registry import Registry, register

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
