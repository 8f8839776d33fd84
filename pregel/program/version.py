"""What a graph looked like when it stored a checkpoint, so that a thread can be told from another
graph's: one number for each node and key. Pure functions; nothing is loaded or stored here."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from types import UnionType
from typing import Any, Final, Protocol
from zlib import crc32

from ...channels.aggregate import concrete_type
from ...channels.base import Channel
from ...checkpoint.base import MADE_BY, Checkpoint, CheckpointTuple
from .. import budgets
from ..names import GRAPH, SPENT, START, TASKS, is_internal, is_under_way, trigger_name
from .flow import parse_join
from .results import is_graph

Fingerprint = dict[str, int]
"""`node NAME` and `key NAME` → a number that changes with what it is; `version NAME` → 1"""

Migrate = Callable[[Checkpoint, Sequence[str]], Checkpoint]
"""Given a checkpoint that another version of the graph has made, and what has changed since: that
of this version."""


_GRAPH, _FUNCTION = crc32(b"graph"), crc32(b"function")


def fingerprint(
    nodes: Mapping[str, Any], channels: Mapping[str, Channel], version: str | None
) -> Fingerprint:
    """A graph's nodes, by what they read and whether they are graphs; its keys, by channel, kind of
    type and reducer. A function may change its code and a list what it holds: that is no other
    graph."""
    found = {}
    for name, node in nodes.items():
        # START belongs to every graph and tells nothing.
        if name != START:
            found[f"node {name!r}"] = _GRAPH if is_graph(node.source) else _FUNCTION
    for name, channel in channels.items():
        # Internal channels follow from the nodes and edges; an edge may change without losing
        # anything.
        if not is_internal(name):
            kind, *earlier = (crc32(each.encode()) for each in _kinds(channel))
            found[f"key {name!r}"] = kind
            _RESPELLED.update((each, kind) for each in earlier)
    if version is not None:
        found[version_row(version)] = 1
    return found


def version_row(version: str) -> str:
    """What stands in a fingerprint for the version that the user has named."""
    return f"{VERSION}{version}"


VERSION: Final = "version "


def find_version(known: Iterable[str]) -> str | None:
    """The version in a fingerprint; None if it has none.

    >>> find_version(["node 'a'", version_row("2026-11-26.1")])
    '2026-11-26.1'
    """
    return next((name.removeprefix(VERSION) for name in known if name.startswith(VERSION)), None)


_RESPELLED: set[tuple[int, int]] = set()
"""What an earlier version stored for a key, and what this one does."""


def _kinds(channel: Channel) -> Iterator[str]:
    """What a key is, and what earlier versions called it."""
    for spelling in _spellings(getattr(channel, "typ", None)):
        yield "\0".join((type(channel).__name__, spelling, _name(channel.reducer)))


def _spellings(hint: Any) -> Iterator[str]:
    unions = (typing.Union, UnionType)
    kind, earlier = concrete_type(hint), typing.get_origin(hint) or hint
    # `Optional[T]` and `T | None` are one type; from Python 3.14 on both are a `Union`.
    yield "UnionType" if kind in unions else _name(kind)
    yield "Union" if earlier in unions else _name(earlier)


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
        elif is_retyped(old[name], new[name]):
            yield f"{name} has changed its kind"


def find_retyped(old: Mapping[str, int], new: Mapping[str, int]) -> set[str]:
    """The nodes and keys that both graphs have, as different things."""
    return {name for name in old.keys() & new.keys() if is_retyped(old[name], new[name])}


def is_retyped(old: int | None, new: int) -> bool:
    """Whether two numbers of fingerprints stand for different things."""
    return old != new and (old, new) not in _RESPELLED


class Versioned(Protocol):
    """What a migration reads of a program."""

    @property
    def fingerprint(self) -> Mapping[str, int]: ...
    @property
    def nodes(self) -> Mapping[str, Any]: ...


def apply_migration(
    found: CheckpointTuple, program: Versioned, migrate: Migrate | None
) -> CheckpointTuple:
    """A checkpoint that another graph has made, and those at which tasks under way have started,
    as `migrate` makes them; else the same."""
    if migrate is None:
        return found
    converted = _convert(found, program, migrate)
    origins = tuple(_convert(each, program, migrate) for each in found.origins)
    if all(mine is each for mine, each in zip(origins, found.origins, strict=True)):
        return converted
    return converted._replace(origins=origins)


def _convert(found: CheckpointTuple, program: Versioned, migrate: Migrate) -> CheckpointTuple:
    old = found.checkpoint["versions_seen"].get(GRAPH)
    # A checkpoint without a fingerprint was made before there were any: what changed is not known.
    if old is None:
        return found
    changed = sorted(changes(old, program.fingerprint))
    if not changed:
        return _convert_writes(found, program, migrate)
    # A copy: `load_machine` still needs the checkpoint as it was stored.
    copied = found._replace(checkpoint=deepcopy(found.checkpoint))
    convert = getattr(migrate, "convert", None)  # converts what is recorded beside it as well
    if convert is not None:
        converted: CheckpointTuple = convert(copied, program)
    else:
        converted = copied._replace(checkpoint=migrate(copied.checkpoint, changed))
    # What it says of the old graph is settled.
    converted.checkpoint["versions_seen"].pop(GRAPH, None)
    return converted


def _convert_writes(
    found: CheckpointTuple, program: Versioned, migrate: Migrate
) -> CheckpointTuple:
    """The same checkpoint, with what another version has recorded of tasks under way in it
    converted."""
    made = (graph for _, name, graph in found.pending_writes or () if name == MADE_BY)
    convert = getattr(migrate, "convert", None)
    if convert is None or all(graph == program.fingerprint for graph in made):
        return found
    return found._replace(pending_writes=convert(found, program).pending_writes)


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
    rename = partial(rename_channel, old=old, new=new)

    def rename_keys(names: Mapping[str, Any]) -> dict[str, Any]:
        return {rename(name): value for name, value in names.items()}

    values = {}
    for name, value in checkpoint["channel_values"].items():
        if name == TASKS:
            value = [rename_send(send, old, new) for send in value]
        elif is_under_way(name):
            node = new if value["node"] == old else value["node"]
            value = {**value, "node": node, "send": rename_send(value["send"], old, new)}
        elif name == SPENT:
            value = budgets.rename_node(value, old, new)
        elif parse_join(name) is not None:
            value = rename_arrived(value, old, new)
        values[rename(name)] = value
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
        "updated_channels": updated and [rename(name) for name in updated],
    })  # fmt: skip


def rename_channel(name: str, old: str, new: str) -> str:
    """The channel that triggers a node, or joins several, after a node was renamed.

    >>> rename_channel("branch:to:a", "a", "x"), rename_channel("join:a+b:c", "a", "x")
    ('branch:to:x', 'join:x+b:c')
    """
    if name == trigger_name(old):
        return trigger_name(new)
    join = parse_join(name)
    if join is None or old not in (*join.sources, join.target):
        return name
    sources = tuple(new if source == old else source for source in join.sources)
    return replace(join, sources=sources, target=new if join.target == old else join.target).channel


def rename_arrived(arrived: Any, old: str, new: str) -> Any:
    """What the channel of a join holds, or is written, after a node was renamed."""
    if isinstance(arrived, str):
        return new if arrived == old else rename_channel(arrived, old, new)
    if isinstance(arrived, set | frozenset | list | tuple):
        return type(arrived)(rename_arrived(each, old, new) for each in arrived)
    return arrived


def rename_send(send: Any, old: str, new: str) -> Any:
    """A `Send` after a node was renamed."""
    if send is None or send.node != old:
        return send
    renamed = copy(send)
    renamed.node = new
    return renamed
