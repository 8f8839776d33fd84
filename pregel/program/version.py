"""What a graph looked like when it stored a checkpoint, so that a thread can be told from another
graph's: one number for each node and key. Pure functions; nothing is loaded or stored here."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any
from zlib import crc32

from ...channels.base import Channel
from ...checkpoint.base import Checkpoint, CheckpointTuple
from ..names import GRAPH, START, TASKS, is_internal, is_under_way, trigger_name

Fingerprint = dict[str, int]
"""`node NAME` and `key NAME` → a number that changes with what it is"""

Migrate = Callable[[Checkpoint, Sequence[str]], Checkpoint]
"""Given a checkpoint that another version of the graph has made, and what has changed since: that
of this version."""


_GRAPH, _FUNCTION = crc32(b"graph"), crc32(b"function")


def fingerprint(nodes: Mapping[str, Any], channels: Mapping[str, Channel]) -> Fingerprint:
    """A graph's nodes, by what they read and whether they are graphs; its keys, by channel, kind of
    type and reducer. A function may change its code and a list what it holds: that is no other
    graph."""
    found = {}
    for name, node in nodes.items():
        # START belongs to every graph and tells nothing.
        if name != START:
            nested = getattr(node.source, "is_stategraph", False) is True
            found[f"node {name!r}"] = _GRAPH if nested else _FUNCTION
    for name, channel in channels.items():
        # Internal channels follow from the nodes and edges; an edge may change without losing
        # anything.
        if not is_internal(name):
            found[f"key {name!r}"] = crc32(_kind(channel).encode())
    return found


def _kind(channel: Channel) -> str:
    hint = getattr(channel, "typ", None)
    kind = typing.get_origin(hint) or hint
    return "\0".join((type(channel).__name__, _name(kind), _name(channel.reducer)))


def _name(thing: Any) -> str:
    return str(
        getattr(thing, "__qualname__", "") or getattr(thing, "__name__", "") or type(thing).__name__
    )


def changes(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[str]:
    """What is other in a new graph, each as a phrase: gone, new, or changed."""
    for name in old.keys() | new.keys():
        if name not in new:
            yield f"{name} is gone"
        elif name not in old:
            yield f"{name} is new"
        elif old[name] != new[name]:
            yield f"{name} has changed its kind"


def find_retyped(old: Mapping[str, int], new: Mapping[str, int]) -> set[str]:
    """The nodes and keys that both graphs have, as different things."""
    return {name for name in old.keys() & new.keys() if old[name] != new[name]}


def apply_migration(
    found: CheckpointTuple, mine: Mapping[str, int], migrate: Migrate | None
) -> CheckpointTuple:
    """A checkpoint that another graph has made, as `migrate` makes it; else the same."""
    if migrate is None:
        return found
    old = found.checkpoint["versions_seen"].get(GRAPH)
    # A checkpoint without a fingerprint was made before there were any: what changed is not known.
    changed = sorted(changes(old, mine)) if old is not None else []
    if not changed:
        return found
    # A copy: `load_machine` still needs the checkpoint as it was stored.
    checkpoint = migrate(deepcopy(found.checkpoint), changed)
    checkpoint["versions_seen"].pop(GRAPH, None)  # what it says of the old graph is settled
    return found._replace(checkpoint=checkpoint)


def rename_node(checkpoint: Checkpoint, old: str, new: str) -> Checkpoint:
    """The checkpoint as it would be if a node had had another name, for `compile(migrate=...)`:
    work that waited for the old name waits for the new one. The node starts over: questions it had
    asked are asked again. With schedule="ready" a task that was running goes on under its id, and
    its questions stay open.

    >>> old = {"channel_values": {"branch:to:a": None}, "versions_seen": {}}
    >>> old["channel_versions"] = {"branch:to:a": 2}
    >>> rename_node(old, "a", "b")["channel_values"]
    {'branch:to:b': None}
    """
    before, after = trigger_name(old), trigger_name(new)

    def rename_keys(names: Mapping[str, Any]) -> dict[str, Any]:
        return {after if name == before else name: value for name, value in names.items()}

    def rename_send(send: Any) -> Any:
        if send is None or send.node != old:
            return send
        renamed = copy(send)
        renamed.node = new
        return renamed

    values = rename_keys(checkpoint["channel_values"])
    for name, value in values.items():
        if name == TASKS:
            values[name] = [rename_send(send) for send in value]
        elif is_under_way(name):
            node = new if value["node"] == old else value["node"]
            values[name] = {**value, "node": node, "send": rename_send(value["send"])}
    seen = {
        new if node == old else node: rename_keys(each)
        for node, each in checkpoint["versions_seen"].items()
    }
    updated = checkpoint.get("updated_channels")
    return Checkpoint(**{
        **checkpoint,
        "channel_values": values,
        "channel_versions": rename_keys(checkpoint["channel_versions"]),
        "versions_seen": seen,
        "updated_channels": updated and [after if name == before else name for name in updated],
    })  # fmt: skip
