"""Stores threads and reads them back: the checkpointer contract, values ↔ bytes, and the
checkpointer in memory.

Independent of the engine. The checkpointers on databases are separate modules: `.sqlite` and
`.postgres`."""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

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

_LAZY = {
    "InMemorySaver": f"{__name__}.memory",
    "MemorySaver": f"{__name__}.memory",
    "Retention": f"{__name__}.retention",
}


def __getattr__(name: str) -> Any:
    """Load a checkpointer when it is first asked for: many programs use none, or another one."""
    if name in _LAZY:
        return getattr(_load(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
