"""A compiled graph as Mermaid text, read from the very table that runs. No user code is called, nothing is fetched.

Only the drawing's text is made here; turning it into a picture is for whoever shows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..channels import NamedBarrierValue, NamedBarrierValueAfterFinish
from ..graph.branch import Branch
from ..graph.compile import CompiledStateGraph
from ..pregel.app import Pregel
from ..pregel.program import Node
from ..pregel.types import END, START, TASKS, Send
from ..pregel.writes import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry, StateWriter

# Words that Mermaid takes for its own, in any case.
_WORDS = {"end", "graph", "subgraph", "flowchart", "class", "classdef", "click", "style", "linkstyle"}
_WORDS |= {"default", "direction", "call", "href"}
_ANYWHERE = "|anywhere"  # no node can have this name
_SHAPES = {START: '(["{}"])', END: '(["{}"])', _ANYWHERE: '{{"{}"}}'}
_TEXTS = {START: "START", END: "END", _ANYWHERE: "?"}

Edge = tuple[str, str, bool, str]
"""From, to, whether something decides if it is taken, label."""


def draw_mermaid(app: Pregel) -> str:
    """Draw a compiled graph; the same graph gives the same text.

    Solid arrows are always taken, dashed ones if a router, a `Command` or a `Send` says so. A router that does not
    declare where it goes leads to "?". A join is a small circle that waits for all who lead to it. Deferred nodes
    have a dashed border. In a raw `Pregel` an arrow bears the name of its channel.

    >>> from stategraph import START, StateGraph
    >>> graph = StateGraph(int).add_node("twice", lambda n: 2 * n).add_edge(START, "twice")
    >>> print(draw_mermaid(graph.compile()), end="")
    graph TD
        __start__(["START"])
        twice["twice"]
        __end__(["END"])
        __start__ --> twice
        twice --> __end__
    """
    edges = list(dict.fromkeys(_state_edges(app) if isinstance(app, CompiledStateGraph) else _raw_edges(app)))
    used = {name for start, end, _, _ in edges for name in (start, end)}
    names = [START, *(n for n in app.program.nodes if n != START)]
    joins = sorted(name for name in used if _is_join(app, name))
    ids = _ids([*names, *joins, END, _ANYWHERE])
    lines = ["graph TD"]
    for name in (*names, *joins, *(n for n in (_ANYWHERE, END) if n in used)):
        shape = '(("{}"))' if name in joins else _SHAPES.get(name, '["{}"]')
        lines.append(f"    {ids[name]}{shape.format('all' if name in joins else _escaped(_TEXTS.get(name, name)))}")
    for start, end, chosen, label in edges:
        arrow = ("-.->" if chosen else "-->") + (f'|"{_escaped(label)}"|' if label else "")
        lines.append(f"    {ids[start]} {arrow} {ids[end]}")
    deferred = [ids[node.name] for node in app.program.nodes.values() if node.defer]
    if deferred:
        lines.append("    classDef deferred stroke-dasharray: 5 5")
        lines.append(f"    class {','.join(deferred)} deferred")
    return "\n".join(lines) + "\n"


# -- the edges of a StateGraph --------------------------------------------------------------------------------


def _state_edges(app: CompiledStateGraph) -> Iterator[Edge]:
    """In the order of the nodes; of each node fixed edges first, then its routers', then where its commands go."""
    builder = app.builder
    for node in app.program.nodes.values():
        declared = builder.nodes[node.name].ends if node.name in builder.nodes else {}
        mine = [*_written(app, node), *((node.name, end, True, label) for end, label in declared.items())]
        if (node.name, END) in builder.edges or not mine:
            mine.append((node.name, END, False, ""))
        yield from mine
    for name in app.program.channels:
        if _is_join(app, name):
            yield from ((name, end, False, "") for end in app.program.triggers.get(name, ()))


def _written(app: Pregel, node: Node) -> Iterator[Edge]:
    """Where a node's own writers lead: to the nodes whose trigger they write, or to a join."""
    for writer in node.writers:
        if isinstance(writer, StateWriter):
            for channel, _ in writer.fixed:
                ends = (channel,) if _is_join(app, channel) else app.program.triggers[channel]
                yield from ((node.name, end, False, "") for end in ends)
        elif isinstance(writer, Branch):
            if writer.ends is None:
                yield node.name, _ANYWHERE, True, writer.name
            else:
                yield from ((node.name, end, True, _label(key, end)) for key, end in writer.ends.items())


def _label(key: Any, end: str) -> str:
    """What the router answers, where that is not just the name of the node."""
    return "" if key == end else str(key)


def _is_join(app: Pregel, name: str) -> bool:
    channel = app.program.channels.get(name)
    return isinstance(channel, NamedBarrierValue | NamedBarrierValueAfterFinish) and name.startswith("join:")


# -- the edges of a raw Pregel --------------------------------------------------------------------------------


def _raw_edges(app: Pregel) -> Iterator[Edge]:
    """Through channels: from the input, between nodes, to the output."""
    program = app.program
    for channel in _several(program.inputs):
        yield from ((START, end, False, channel) for end in program.triggers.get(channel, ()))
    outputs = set(_several(program.outputs))
    for node in program.nodes.values():
        for writer in node.writers:
            if not isinstance(writer, ChannelWrite):
                yield node.name, _ANYWHERE, True, ""
                continue
            for entry in writer.writes:
                if isinstance(entry, Send):
                    yield node.name, entry.node, True, ""
                elif isinstance(entry, ChannelWriteTupleEntry):
                    yield node.name, _ANYWHERE, True, ""
                elif entry.channel != TASKS:
                    yield from _through(app, node, entry, outputs)


def _through(app: Pregel, node: Node, entry: ChannelWriteEntry, outputs: set[str]) -> Iterator[Edge]:
    maybe = entry.skip_none or entry.mapper is not None
    for end in app.program.triggers.get(entry.channel, ()):
        yield node.name, end, maybe, entry.channel
    if entry.channel in outputs:
        yield node.name, END, maybe, entry.channel


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


# -- text -----------------------------------------------------------------------------------------------------


def _ids(names: Iterable[str]) -> dict[str, str]:
    """A word that Mermaid accepts for every name: the name itself where that can be."""
    names = list(dict.fromkeys(names))
    ids = {name: name for name in names if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) and name.lower() not in _WORDS}
    for position, name in enumerate(names):
        if name not in ids:
            word = f"node_{position}"
            while word in ids.values():
                word += "_"
            ids[name] = word
    return ids


def _escaped(text: str) -> str:
    """Text that can stand in double quotes in Mermaid."""
    for mark, word in (("#", "#35;"), ("&", "#amp;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;"), ("\n", "<br/>")):
        text = text.replace(mark, word)
    return text
