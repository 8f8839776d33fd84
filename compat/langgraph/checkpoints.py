"""Functions of the peer that make and read checkpoints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from ...checkpoint import CHECKPOINT_FORMAT, Checkpoint, CheckpointMetadata, RunnableConfig


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
            name: channel.checkpoint()
            for name, channel in channels.items()
            if channel.is_available()
        }
    return new


def get_checkpoint_id(config: RunnableConfig) -> str | None:
    """The checkpoint that a config names."""
    return config.get("configurable", {}).get("checkpoint_id")


def get_checkpoint_metadata(
    config: RunnableConfig, metadata: CheckpointMetadata
) -> CheckpointMetadata:
    """Metadata with the plain values of a config's metadata."""
    merged: Any = {**config.get("metadata", {}), **metadata}
    return merged  # type: ignore[no-any-return]
