"""A compiled graph → the Shape of its drawing, read from the very table that runs. No user code is called.

What cannot be known is not guessed: a router that does not say where it goes leads to a node of kind `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..graph.branch import BranchWriter, literals, sends, sends_anywhere
from ..graph.compile import CompiledStateGraph
from ..graph.functional import EntryWriter
from ..pregel.app import Pregel
from ..pregel.names import END, NS_END, NS_SEP, START, TASKS, split_number, triggered_node
from ..pregel.program.program import CompiledNode
from ..pregel.program.writes import ChannelWrite, ChannelWriteEntry, ChannelWriteTupleEntry, StateWriter
from ..pregel.types import Send
from .shape import Edge, EdgeKind, Node, Shape
from .words import ANY_NODE, PERHAPS, visible

_LABELS = {START: "START", END: "END"}


def outline(app: Pregel, xray: bool | int = False) -> Shape:
    """What a drawing of this graph shows.

    Args:
        xray: show the graphs inside nodes: True for all, a number for so many levels. A graph that a function runs is
            known once it has run in this process.

    Raises:
        ValueError: `xray` is none of these.
    """
    levels = -1 if xray is True else xray
    if not isinstance(xray, int) or (xray is not True and levels < 0):
        raise ValueError(f"xray is False, True or a number of levels, not {xray!r}")
    nodes: list[Node] = []
    edges: list[Edge] = []
    for part in _level(app, "", levels, (app.program,)):
        nodes.extend((part,) if isinstance(part, Node) else ())
        edges.extend((part,) if isinstance(part, Edge) else ())
    edges = [edge._replace(label=visible(edge.label)) for edge in _merged(edges)]
    inside = [Edge(node.id, node.inside) for node in nodes if node.kind in ("start", "cluster") and node.inside]
    reached = _reached([*edges, *inside])
    nodes = [node._replace(label=visible(node.label)) for node in nodes]
    nodes = [node if node.id in reached or node.kind == "cluster" else node._replace(reached=False) for node in nodes]
    clusters = tuple(node for node in nodes if node.kind == "cluster")
    return Shape(visible(app.program.name), tuple(n for n in nodes if n.kind != "cluster"), tuple(edges), clusters)


def _level(app: Pregel, inside: str, levels: int, above: tuple[Any, ...]) -> Iterator[Node | Edge]:
    """One graph, and the graphs inside it so far as `levels` goes; `inside` is the id of the node that holds it."""
    program, place = app.program, inside or None
    edges = [*_edges(app)]
    edges += _perhaps(program.nodes.values(), edges)
    used = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
    entries: dict[str, list[str]] = {}
    exits: dict[str, list[str]] = {}
    yield Node(_id(inside, START), _LABELS[START], "start", place)
    for node in program.nodes.values():
        if node.name == START:
            continue
        shown = _node(app, node, inside)
        nested = _nested(app, node.name) if levels else []
        nested = [(key, graph) for key, graph in nested if graph.program not in above]
        if not nested:
            yield shown
            continue
        yield shown._replace(kind="cluster")
        for key, graph in nested:
            holder = _id(inside, key)
            if key != node.name:
                yield shown._replace(id=holder, label=key, kind="cluster", inside=shown.id)
            yield from _level(graph, holder, levels - 1, (*above, graph.program))
            entries.setdefault(node.name, []).append(f"{holder}{NS_END}{START}")
            exits.setdefault(node.name, []).append(f"{holder}{NS_END}{END}")
    joins = {join.channel: join for join in program.joins}
    for name in used:
        if name in joins:
            yield Node(_id(inside, name), joins[name].kind, "join", place)
        elif name.endswith(_ANYWHERE):
            yield Node(_id(inside, name), ANY_NODE, "unknown", place)
    if END in used or inside:
        yield Node(_id(inside, END), _LABELS[END], "end", place)
    for edge in edges:
        ends = exits.get(edge.source, ()) if edge.kind != "error" else ()  # what fails does not come to its end
        for source in ends or (_id(inside, edge.source),):
            for target in entries.get(edge.target, (_id(inside, edge.target),)):
                yield edge._replace(source=source, target=target)


def _node(app: Pregel, node: CompiledNode, inside: str) -> Node:
    return Node(
        _id(inside, node.name),
        _handler_label(node) if _handles(node) else node.name,
        "subgraph" if getattr(node.source, "is_stategraph", False) is True else "node",
        inside or None,
        deferred=node.defer,
        handler=_handles(node),
        before=_listed(node.name, app.interrupt_before),
        after=_listed(node.name, app.interrupt_after),
        metadata=node.metadata,
    )


def _handles(node: CompiledNode) -> bool:
    """Whether the node is there for the errors of others only: nothing triggers it."""
    return not node.triggers and node.name != START


def _handler_label(node: CompiledNode) -> str:
    name = getattr(node.source, "__name__", "")
    return name if name.isidentifier() else "on error"


def _listed(name: str, names: str | Sequence[str]) -> bool:
    return names == "*" or name in names


def _nested(app: Pregel, name: str) -> list[tuple[str, Pregel]]:
    """The graphs that a node holds, or has been seen to run."""
    found = app.program.nested
    return [(key, graph) for key, graph in found.items() if split_number(key)[0] == name]


def _id(inside: str, name: str) -> str:
    return f"{inside}{NS_END}{name}" if inside else name


_ANYWHERE = f"{NS_SEP}?"  # no node can have such a name


def _anywhere(source: str) -> str:
    return source + _ANYWHERE


def _perhaps(nodes: Iterable[CompiledNode], edges: Sequence[Edge]) -> Iterator[Edge]:
    """From wherever routers may go to what nothing else leads to: as likely as to any other, but else it hung loose."""
    led_to = {edge.target for edge in edges}
    lost = [node.name for node in nodes if node.name not in {START, *led_to} and not _handles(node)]
    kinds: dict[str, set[EdgeKind]] = {}
    for edge in edges:
        if edge.target.endswith(_ANYWHERE):
            kinds.setdefault(edge.target, set()).add(edge.kind)
    for anywhere, found in kinds.items():
        kind: EdgeKind = "send" if found == {"send"} else "conditional"
        ends = [END] if kind != "send" and END not in led_to else []  # nothing is sent to END
        yield from (Edge(anywhere, name, kind, PERHAPS) for name in (*lost, *ends))


def _reached(edges: Iterable[Edge]) -> set[str]:
    """The ids that arrows from the start lead to; the start itself."""
    onward: dict[str, list[str]] = {}
    for edge in edges:
        onward.setdefault(edge.source, []).append(edge.target)
    found, waiting = {START}, [START]
    while waiting:
        for target in onward.get(waiting.pop(), ()):
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _merged(edges: Iterable[Edge]) -> list[Edge]:
    """One edge per pair and kind, with the labels of all."""
    found: dict[tuple[str, str, str], Edge] = {}
    for edge in edges:
        key = edge[:3]
        known = found.setdefault(key, edge)
        if edge.label and edge.label not in known.label.split(" / "):
            found[key] = known._replace(label=" / ".join(filter(None, (known.label, edge.label))))
    return list(found.values())


# -- the edges of one graph -----------------------------------------------------------------------------------


def _edges(app: Pregel) -> Iterator[Edge]:
    yield from _state_edges(app) if isinstance(app, CompiledStateGraph) else _raw_edges(app)
    for node in app.program.nodes.values():
        if node.handler is not None:
            yield Edge(node.name, node.handler.name, "error")


def _state_edges(app: CompiledStateGraph) -> Iterator[Edge]:
    """In the order of the nodes; of each node fixed edges first, then its routers', then where its commands go."""
    to_end, destinations, joins = app.spec.ending_nodes(), app.spec.command_ends(), app.program.joins
    order = {name: place for place, name in enumerate(app.program.nodes)}
    for node in app.program.nodes.values():
        # Plain edges are kept by name; as declared, part_2 comes before part_10. Joins and routers keep their places.
        mine = sorted(_written(node), key=lambda edge: order[edge.target] if edge.kind == "plain" else len(order))
        mine += [Edge(node.name, end, "goto", label) for end, label in destinations.get(node.name, {}).items()]
        to_join = [join for join in joins if join.target == END and node.name in join.sources]
        mine += [Edge(node.name, join.channel, "join") for join in to_join]
        if node.name in to_end or not (mine or _handles(node)):
            mine.append(Edge(node.name, END))
        yield from mine
    for join in joins:
        yield Edge(join.channel, join.target, "join")


def _written(node: CompiledNode) -> Iterator[Edge]:
    """Where a node's own writers lead: to the nodes whose trigger they write, or to a join."""
    for writer in node.writers:
        if isinstance(writer, StateWriter):
            for channel, _ in writer.fixed:
                end = triggered_node(channel)
                yield Edge(node.name, channel, "join") if end is None else Edge(node.name, end)
        elif isinstance(writer, BranchWriter):
            yield from _chosen(node.name, writer)


def _chosen(source: str, router: BranchWriter) -> Iterator[Edge]:
    """Where a router may go: as declared, else anywhere."""
    hint = router.body.returns
    names, sent = set(literals(hint)), sends(hint)
    if router.ends is None:
        yield Edge(source, _anywhere(source), "send" if sent == "only" else "conditional", router.name)
        return
    for answer, end in router.ends.items():
        is_send = sent == "only" or (sent == "some" and bool(names) and answer not in names)
        kind: EdgeKind = "send" if is_send and end != END else "conditional"
        yield Edge(source, end, kind, "" if answer == end else str(answer))
    if sends_anywhere(router.ends, hint):
        yield Edge(source, _anywhere(source), "send", router.name)


# -- the edges of a raw Pregel --------------------------------------------------------------------------------


def _raw_edges(app: Pregel) -> Iterator[Edge]:
    """Through channels, whose names they bear: from the input, between nodes, to the output."""
    program = app.program
    for channel in _several(program.inputs):
        label = "" if channel == START else channel
        yield from (Edge(START, end, label=label) for end in program.triggers.get(channel, ()))
    outputs = set(_several(program.outputs))
    for node in program.nodes.values():
        for writer in node.writers:
            if isinstance(writer, EntryWriter):
                yield Edge(node.name, END)
                continue
            if not isinstance(writer, ChannelWrite):
                yield Edge(node.name, _anywhere(node.name), "conditional")
                continue
            for entry in writer.writes:
                if isinstance(entry, Send):
                    yield Edge(node.name, entry.node, "send")
                elif isinstance(entry, ChannelWriteTupleEntry):
                    yield Edge(node.name, _anywhere(node.name), "conditional")
                elif entry.channel != TASKS:
                    yield from _through(app, node, entry, outputs)


def _through(app: Pregel, node: CompiledNode, entry: ChannelWriteEntry, outputs: set[str]) -> Iterator[Edge]:
    kind: EdgeKind = "conditional" if entry.skip_none or entry.mapper is not None else "plain"
    for end in app.program.triggers.get(entry.channel, ()):
        yield Edge(node.name, end, kind, entry.channel)
    if entry.channel in outputs:
        yield Edge(node.name, END, kind, entry.channel)


def _several(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
