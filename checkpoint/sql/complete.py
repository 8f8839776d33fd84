"""Complete checkpoints: those that `put` is given, as the commits they amount to; those that were found, as
`get_tuple` gives them. Pure but for the encoding, which is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

from ..records import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    Commit,
    address,
    iso,
    merged,
    spans_of,
)
from ..serde import Blob
from .reading import Found
from .rows import Image, Place

Dumps = Callable[[str, Any], Blob]
"""Encodes a value; the text says where it lies, for the error."""


class Given(NamedTuple):
    """What `put` was given, beside the config."""

    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: Mapping[str, int]


def commit_of(
    place: Place, parent_id: str | None, image: Image | None, given: Given, dumps: Dumps
) -> tuple[Commit, Image | None]:
    """A complete checkpoint as a commit, and the image of its parent to build on."""
    checkpoint, metadata, new_versions = given
    old, found = image.cells if image else {}, checkpoint["channel_values"]
    versions, seen = checkpoint["channel_versions"], checkpoint["versions_seen"]
    values: dict[str, Blob | None] = {}
    for name in versions:
        if name in found and (name in new_versions or name not in old):
            values[name] = dumps(f"[{name!r}]", found[name])
        elif name in new_versions and name in old:
            values[name] = None
    if image is not None and (image.versions.keys() - versions.keys() or image.seen.keys() - seen.keys()):
        # A row cannot say that something is gone, so this one holds everything that is left.
        values = {**{name: cell.blob for name, cell in old.items() if name in versions}, **values}
        image = None
    changed = {name: each for name, each in versions.items() if image is None or image.versions.get(name) != each}
    viewed = {node: dict(each) for node, each in seen.items() if image is None or image.seen.get(node) != each}
    updated = checkpoint.get("updated_channels")
    commit = Commit(
        place.thread_id, place.checkpoint_ns, checkpoint["id"], None, parent_id, checkpoint["ts"],
        dict(metadata), values, changed, viewed, updated, [], lambda: checkpoint, checkpoint["v"],
    )  # fmt: skip
    return commit, image


def completed(commit: Commit, dumps: Dumps) -> Commit:
    """A commit whose parent is gone, with everything that is true after it."""
    checkpoint = commit.whole()
    values = checkpoint["channel_values"]
    return replace(
        commit,
        values={name: dumps(f"[{name!r}]", value) for name, value in values.items()},
        versions=dict(checkpoint["channel_versions"]),
        seen=dict(checkpoint["versions_seen"]),
    )


def tuple_of(found: Found, loads: Callable[[Blob], Any]) -> CheckpointTuple:
    """A checkpoint as read, decoded."""
    place, row, image, body = found.place, found.row, found.image, found.body
    kept = merged(found.tasks)
    ordered = sorted((path, task_id, index) for (task_id, index), (path, _, _) in kept.items())
    checkpoint: Checkpoint = {
        "v": body.v,
        "id": row.checkpoint_id,
        "ts": iso(body.ts),
        "channel_values": {name: loads(cast(Blob, cell.blob)) for name, cell in image.cells.items()},
        "channel_versions": dict(image.versions),
        "versions_seen": {node: dict(each) for node, each in image.seen.items()},
        "updated_channels": body.updated,
    }
    writes = [(task_id, *kept[task_id, index][1:]) for _, task_id, index in ordered]
    return CheckpointTuple(
        address(place.thread_id, place.checkpoint_ns, row.checkpoint_id),
        checkpoint,
        cast(CheckpointMetadata, loads(body.metadata)),
        None if row.parent_id is None else address(place.thread_id, place.checkpoint_ns, row.parent_id),
        [(task_id, channel, loads(blob)) for task_id, channel, blob in writes],
        spans_of(found.tasks),
        image.revision,
    )
