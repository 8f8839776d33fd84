"""A complete checkpoint, as `put` is given it, as the commit it amounts to: what changed since the
parent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from .records import Checkpoint, CheckpointMetadata, Commit
from .serde import Blob

Entry = TypeVar("Entry")

Dumps = Callable[[str, Any], Blob]
"""(where it lies, value) → blob. The error of a value that cannot be stored says where."""


class ParentState(Protocol):
    """What is true at the parent, as a checkpointer holds it."""

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
    versions = dict(checkpoint["channel_versions"])
    seen = {node: dict(each) for node, each in checkpoint["versions_seen"].items()}
    values = _diff_values(parent, checkpoint, new_versions, dumps)
    if parent is not None and not (
        parent.versions.keys() <= versions.keys() and parent.seen.keys() <= seen.keys()
    ):
        # A delta cannot say that a name is gone, so this one holds everything that is left.
        kept = {name: parent.blob(name) for name in parent.held() if name in versions}
        values, parent = {**kept, **values}, None
    if parent is not None:
        versions = _keep_changed(parent.versions, versions)
        seen = _keep_changed(parent.seen, seen)
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
        versions=versions,
        seen=seen,
        updated=None if updated is None else [*updated],
        writes=[],
        whole=lambda: checkpoint,
        v=checkpoint["v"],
    )
    return commit, parent is not None


def _diff_values(
    parent: ParentState | None,
    checkpoint: Checkpoint,
    new_versions: Mapping[str, int],
    dumps: Dumps,
) -> dict[str, Blob | None]:
    found = checkpoint["channel_values"]
    held = parent.held() if parent else ()
    values: dict[str, Blob | None] = {}
    for name in checkpoint["channel_versions"]:
        if name in found and (name in new_versions or name not in held):
            values[name] = dumps(f"[{name!r}]", found[name])
        elif name in new_versions and name in held:
            values[name] = None  # it holds nothing any more
    return values


def _keep_changed(old: Mapping[str, Any], new: dict[str, Entry]) -> dict[str, Entry]:
    return {name: each for name, each in new.items() if old.get(name) != each}


def complete_commit(commit: Commit, dumps: Dumps) -> Commit:
    """A commit whose parent is gone, with everything that is true after it."""
    whole = commit.whole()
    return replace(
        commit,
        values={name: dumps(f"[{name!r}]", each) for name, each in whole["channel_values"].items()},
        versions=dict(whole["channel_versions"]),
        seen=dict(whole["versions_seen"]),
    )
