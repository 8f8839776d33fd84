"""A complete checkpoint, as `put` is given it, as the commit it amounts to: what changed since the
parent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from .records import Checkpoint, CheckpointMetadata, Commit
from .serde import Blob

Dumps = Callable[[str, Any], Blob]
"""(where it lies, value) → blob. The error of a value that cannot be stored says where."""


class ParentState(Protocol):
    """What is true at the parent, as a saver holds it."""

    @property
    def versions(self) -> Mapping[str, int]:
        """Channel → version."""

    @property
    def seen(self) -> Mapping[str, Mapping[str, int]]:
        """Node → the versions of its triggers that it has seen."""

    def held(self) -> Collection[str]:
        """The channels that hold something."""

    def blob(self, channel: str) -> Blob:
        """What such a channel holds."""


def diff_checkpoint(
    where: tuple[str, str, str | None],
    parent: ParentState | None,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: Mapping[str, int],
    dumps: Dumps,
) -> tuple[Commit, bool]:
    """The commit that a complete checkpoint amounts to, and whether it builds on the parent. If
    not, it holds everything.

    A value is stored if it is in `new_versions`, or if the parent has none.

    Args:
        where: thread id, namespace, id of the parent.
        parent: None if there is none, or nothing is to be built on it.
    """
    versions, found = checkpoint["channel_versions"], checkpoint["channel_values"]
    seen = {node: dict(each) for node, each in checkpoint["versions_seen"].items()}
    held = parent.held() if parent else ()
    values: dict[str, Blob | None] = {}
    for name in versions:
        if name in found and (name in new_versions or name not in held):
            values[name] = dumps(f"[{name!r}]", found[name])
        elif name in new_versions and name in held:
            values[name] = None
    if parent is not None and (
        parent.versions.keys() - versions.keys() or parent.seen.keys() - seen.keys()
    ):
        # A delta cannot say that a name is gone, so this one holds everything that is left.
        values = {**{name: parent.blob(name) for name in held if name in versions}, **values}
        parent = None
    if parent is not None:
        old_versions, old_seen = parent.versions, parent.seen
        versions = {name: each for name, each in versions.items() if old_versions.get(name) != each}
        seen = {node: each for node, each in seen.items() if old_seen.get(node) != each}
    updated = checkpoint.get("updated_channels")
    commit = Commit(
        thread_id=where[0],
        checkpoint_ns=where[1],
        id=checkpoint["id"],
        head=None,
        parent_id=where[2],
        ts=checkpoint["ts"],
        metadata=dict(metadata),
        values=values,
        versions=dict(versions),
        seen=seen,
        updated=None if updated is None else [*updated],
        writes=[],
        whole=lambda: checkpoint,
        v=checkpoint["v"],
    )
    return commit, parent is not None


def complete_commit(commit: Commit, dumps: Dumps) -> Commit:
    """A commit whose parent is gone, with everything that is true after it."""
    whole = commit.whole()
    return replace(
        commit,
        values={name: dumps(f"[{name!r}]", each) for name, each in whole["channel_values"].items()},
        versions=dict(whole["channel_versions"]),
        seen=dict(whole["versions_seen"]),
    )
