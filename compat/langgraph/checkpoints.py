"""Functions of LangGraph that make and read checkpoints."""

from __future__ import annotations

import secrets
import time
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import UUID, uuid4

from ...channels.base import MISSING, stored_of
from ...checkpoint import CHECKPOINT_FORMAT, Checkpoint, CheckpointMetadata, RunnableConfig
from ...checkpoint.records import CONTROL_WRITES

ChannelVersions: TypeAlias = dict[str, str | int | float]
LATEST_VERSION: Final = 2
SCHEDULED: Final = "__scheduled__"
WRITES_IDX_MAP: Final = {**CONTROL_WRITES, SCHEDULED: min(CONTROL_WRITES.values()) - 1}
EXCLUDED_METADATA_KEYS: Final = {
    *("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "langgraph_node"),
    *("langgraph_path", "langgraph_step", "langgraph_triggers", "langgraph_checkpoint_ns"),
}


def empty_checkpoint() -> Checkpoint:
    """A checkpoint of a thread that has not begun."""
    return Checkpoint(
        v=CHECKPOINT_FORMAT,
        id=str(uuid4()),
        ts=datetime.now(UTC).isoformat(),
        channel_values={},
        channel_versions={},
        versions_seen={},
        updated_channels=None,
    )


def copy_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """A copy whose dicts may be changed."""
    copied: Any = {
        key: value.copy() if isinstance(value, dict) else value for key, value in checkpoint.items()
    }
    return copied  # type: ignore[no-any-return]


def create_checkpoint(
    checkpoint: Checkpoint, channels: Any, step: int, *, id: str | None = None
) -> Checkpoint:
    """The checkpoint that follows another one, with the values of `channels`."""
    new = copy_checkpoint(checkpoint)
    new["id"] = id or str(uuid4())
    new["ts"] = datetime.now(UTC).isoformat()
    if channels is not None:
        new["channel_values"] = {
            name: stored
            for name, channel in channels.items()
            if (stored := stored_of(channel)) is not MISSING
        }
    return new


def get_checkpoint_id(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names."""
    return config.get("configurable", {}).get("checkpoint_id")


def get_checkpoint_metadata(
    config: RunnableConfig, metadata: CheckpointMetadata
) -> CheckpointMetadata:
    """Metadata with the plain values of a config's metadata and `configurable`."""
    found: Any = {
        key: value.replace("\0", "") if isinstance(value, str) else value
        for key, value in metadata.items()
    }
    for part in (config.get("metadata", {}), config.get("configurable", {})):
        for key, value in part.items():
            if isinstance(value, str | int | float) and not (
                key in found or key in EXCLUDED_METADATA_KEYS or key.startswith("__")
            ):
                found[key] = value.replace("\0", "") if isinstance(value, str) else value
    return found  # type: ignore[no-any-return]


def get_serializable_checkpoint_metadata(
    config: RunnableConfig, metadata: CheckpointMetadata
) -> CheckpointMetadata:
    """Metadata for a column of a database, without `writes`."""
    found: Any = get_checkpoint_metadata(config, metadata)
    found.pop("writes", None)
    return found  # type: ignore[no-any-return]


def writes_sort_key(task_path: str, task_id: str = "", idx: int = 0) -> tuple[str, str, int]:
    """The order in which writes apply."""
    return task_path, task_id, idx


def uuid6(node: int | None = None, clock_seq: int | None = None) -> UUID:
    """A new id that sorts by the time at which it was made."""
    ticks = time.time_ns() // 100 + 0x01B21DD213814000  # since 1582, as RFC 9562 counts
    seq = (secrets.randbits(14) if clock_seq is None else clock_seq) & 0x3FFF
    node = secrets.randbits(48) if node is None else node
    high = (ticks >> 12 << 16) | 0x6000 | (ticks & 0xFFF)
    return UUID(int=high << 64 | (0x8000 | seq) << 48 | node)
