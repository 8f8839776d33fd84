"""What is wrong with a graph of nodes and channels, in sentences. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...channels.base import BaseChannel
from ...channels.topic import Topic
from ..errors import nearest
from ..names import NS_END, NS_SEP, TASKS, is_reserved
from ..types import Selection
from .node import PregelNode
from .writes import Writer


def find_mistakes(
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, Any],
    managed: Mapping[str, Any],
    selections: tuple[Selection, Selection, Selection],
) -> Iterator[str]:
    """A sentence for every mistake of a graph.

    Args:
        selections: the input, output and stream channels.
    """
    for name, channel in channels.items():
        yield from _check_channel(name, channel)
    for name in managed:
        if is_reserved(name):
            yield f"managed value {name!r}: the name is reserved"
    known = {**channels, **managed, TASKS: None}
    for name, node in nodes.items():
        if isinstance(node, PregelNode):
            mistakes = (*_check_name(name), *_check_node(node, channels, known))
            yield from (f"node {name!r} {mistake}" for mistake in mistakes)
        else:
            got = type(node).__name__
            yield f"node {name!r} must be a PregelNode or NodeBuilder, got {got}"
    yield from _check_selections(nodes, channels, selections)


def _check_channel(name: str, channel: Any) -> Iterator[str]:
    if "\0" in name:
        yield f"channel {name!r} has a NUL character in its name, which no database can store"
    elif not isinstance(channel, BaseChannel):
        yield f"channel {name!r} must be a channel instance, got {type(channel).__name__}"
    elif name == TASKS:
        if not isinstance(channel, Topic):
            yield f"channel {TASKS!r} is the engine's own and must be a Topic of Send"
    elif is_reserved(name):
        yield f"channel {name!r}: the name is reserved"


def _check_name(name: str) -> Iterator[str]:
    if is_reserved(name):
        yield "has a reserved name"
    elif "\0" in name:
        yield "has a NUL character in its name, which no database can store"
    elif NS_SEP in name or NS_END in name:
        yield f"has {NS_SEP!r} or {NS_END!r} in its name; both are separators in namespaces"


def _check_node(
    node: PregelNode, channels: Mapping[str, Any], known: Mapping[str, Any]
) -> Iterator[str]:
    for key in node.triggers:
        if key not in channels:
            yield f"subscribes to unknown channel {key!r}; {nearest(key, channels)}"
    if isinstance(node.channels, str):
        # A node that nothing triggers takes the input of the task that it replaces.
        if node.triggers and node.channels not in channels:
            near = nearest(node.channels, channels)
            yield f"reads {node.channels!r}, which is not a channel; {near}"
    else:
        for key in node.channels:
            if key not in known:
                yield f"reads unknown channel {key!r}; {nearest(key, known)}"
    for writer in node.writers:
        if isinstance(writer, Writer):
            yield from writer.check(channels)
        else:
            got = type(writer).__name__
            yield f"must have only Writers, got {got}; put entries into a ChannelWrite([...])"


def _check_selections(
    nodes: Mapping[str, PregelNode],
    channels: Mapping[str, Any],
    selections: tuple[Selection, Selection, Selection],
) -> Iterator[str]:
    inputs, outputs, stream = map(list_names, selections)
    for key in inputs:
        if key not in channels:
            yield f"input channel {key!r} does not exist; {nearest(key, channels)}"
    subscribed = {t for n in nodes.values() if isinstance(n, PregelNode) for t in n.triggers}
    if subscribed.isdisjoint(inputs):
        yield f"no node subscribes to the input channels {list(inputs)}"
    for kind, keys in (("output", outputs), ("stream", stream)):
        for key in keys:
            if key not in channels and key != TASKS:
                yield f"{kind} channel {key!r} does not exist; {nearest(key, channels)}"


def list_names(keys: Selection) -> tuple[str, ...]:
    """The names of a selection, which may be one bare name."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
