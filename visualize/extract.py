"""Turns a compiled graph into the model of its drawing, read from the very table that runs. Calls
no user code.

It does not guess: a router that does not declare where it goes leads to a node of kind `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from inspect import getattr_static
from types import FunctionType, MethodType
from typing import Protocol, TypeGuard, TypeVar, get_args

from networkx.algorithms.traversal import breadth_first_search

from ..graph.branch import BranchWriter, literals, sends, sends_anywhere
from ..graph.spec import GraphSpec
from ..pregel.names import END, NS_SEP, START, TASKS, join_id, split_number, triggered_node
from ..pregel.program.program import CompiledNode, Program
from ..pregel.program.results import is_graph
from ..pregel.program.writes import (
    ChannelWrite,
    ChannelWriteEntry,
    ChannelWriteTupleEntry,
    StateWriter,
)
from ..pregel.types import All, Send
from .group import group
from .labels import ANY_NODE, PERHAPS, visible
from .model import EdgeKind, GraphEdge, GraphModel, GraphNode, NodeKind, Role


class CompiledGraph(Protocol):
    """What a drawing reads of a compiled graph.

    Attributes:
        program: the table that runs.
        spec: what a `StateGraph` was compiled from; None for other graphs.
        interrupt_before, interrupt_after: the nodes to stop at, or "*".
    """

    @property
    def program(self) -> Program: ...
    @property
    def spec(self) -> GraphSpec | None: ...
    @property
    def interrupt_before(self) -> All | Sequence[str]: ...
    @property
    def interrupt_after(self) -> All | Sequence[str]: ...


def extract(app: CompiledGraph, xray: bool | int = False) -> GraphModel:
    """Return the model of a graph's drawing.

    Args:
        xray: show the graphs inside nodes: True for all, a number for that many levels. A graph
            that a function calls is known once it has run in this process.

    Raises:
        ValueError: `xray` is none of these.
    """
    levels = -1 if xray is True else xray
    if not isinstance(xray, int) or (xray is not True and levels < 0):
        raise ValueError(f"xray must be False, True or a number of levels, got {xray!r}")
    found = _Extraction()
    found.add_graph(app, "", levels, (app.program,))
    nodes = group((node.kind == "cluster", _show_label(node)) for node in found.nodes)
    model = GraphModel(
        visible(app.program.name),
        nodes[False],
        map(_show_label, _merge(found.edges)),
        nodes.get(True, ()),
    )
    _mark_unreached(model)
    return model


Part = TypeVar("Part", GraphNode, GraphEdge)


def _show_label(part: Part) -> Part:
    """Return the part with a printable label; usually the same (benchmark P39-graph)."""
    label = visible(part.label)
    return part if label == part.label else part._replace(label=label)


def _mark_unreached(model: GraphModel) -> None:
    """Mark the nodes to which nothing leads from the start."""
    clusters = model.graph["clusters"]

    def find_next(id: str) -> Iterator[str]:
        yield from model.successors(id)
        # Edges leave from a cluster only to its error handler; the start inside it reaches it.
        inside = model.nodes[id]["kind"] == "start" and model.nodes[id]["inside"]
        while inside:
            if inside in model:
                yield inside
            inside = clusters[inside]["inside"]

    leads_to = find_next if clusters else model.successors
    ways = breadth_first_search.generic_bfs_edges(model, START, leads_to)
    for id in model.nodes - {START, *(end for _, end in ways)} - clusters.keys():
        model.nodes[id]["reached"] = False


class _Extraction:
    """Collects the nodes and edges of a graph and of its nested graphs."""

    def __init__(self) -> None:
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []

    def add_graph(
        self, app: CompiledGraph, inside: str, levels: int, above: tuple[Program, ...]
    ) -> None:
        """Add one graph and its nested graphs.

        Args:
            inside: the id of the node that holds it.
            levels: how many levels of nested graphs to add; -1 for all.
            above: the enclosing programs, so that a graph that contains itself ends the recursion.
        """
        nodes = app.program.nodes
        edges = list(_list_edges(app))
        edges += _guess_edges(nodes.values(), edges)
        ends = dict.fromkeys(end for edge in edges for end in (edge.source, edge.target))
        self._add_node(inside, START, "START", "start")
        holders: dict[str, list[str]] = {}
        for name, node in nodes.items():
            if name != START:
                nested = _list_nested(app.program, name, above) if levels else {}
                shown = _build_node(app, node, inside)
                self.nodes.append(shown._replace(kind="cluster") if nested else shown)
                for key, graph in nested.items():
                    holder = join_id(inside, key)
                    holders.setdefault(name, []).append(holder)
                    if key != name:
                        inner = shown._replace(id=holder, label=key, kind="cluster")
                        self.nodes.append(inner._replace(inside=shown.id))
                    self.add_graph(graph, holder, levels - 1, (*above, graph.program))
        joins = {join.channel: join.label for join in app.program.joins}
        for name in ends:
            if name in joins:
                self._add_node(inside, name, joins[name], "join")
            elif name.endswith(ANYWHERE):
                self._add_node(inside, name, ANY_NODE, "unknown")
        if END in ends or inside:
            self._add_node(inside, END, "END", "end")
        for edge in edges:
            self._add_edge(edge, inside, holders)

    def _add_node(self, inside: str, name: str, label: str, kind: NodeKind) -> None:
        """Add a node that is not a node of the program."""
        self.nodes.append(GraphNode(join_id(inside, name), label, kind, inside or None))

    def _add_edge(self, edge: GraphEdge, inside: str, holders: dict[str, list[str]]) -> None:
        """Add an edge. If a node is drawn as a cluster, its edges lead to the start and leave from
        the end inside."""
        if not inside and not holders.get(edge.source) and not holders.get(edge.target):
            self.edges.append(edge)
            return
        sources, targets = [join_id(inside, edge.source)], [join_id(inside, edge.target)]
        # A node that fails does not reach the end of the graph inside it.
        if holders.get(edge.source) and edge.kind != "error":
            sources = [join_id(holder, END) for holder in holders[edge.source]]
        if holders.get(edge.target):
            targets = [join_id(holder, START) for holder in holders[edge.target]]
        self.edges += [GraphEdge(a, b, *edge[2:]) for a in sources for b in targets]


def _build_node(app: CompiledGraph, node: CompiledNode, inside: str) -> GraphNode:
    return GraphNode(
        join_id(inside, node.name),
        _handler_label(node) if _handles(node) else node.name,
        "subgraph" if is_graph(node.source) else "node",
        inside or None,
        deferred=node.defer,
        handler=_handles(node),
        before=_is_listed(node.name, app.interrupt_before),
        after=_is_listed(node.name, app.interrupt_after),
        roles=find_roles(node),
        metadata=node.metadata,
        data=node.source,
    )


def find_roles(node: CompiledNode) -> tuple[Role, ...]:
    """Return what a node is for: as `metadata={"kind": ...}` says, else as its object says in
    `drawn_as`, else by the functions of this package that its own code names."""
    known: tuple[Role, ...] = get_args(Role)
    if (said := node.metadata.get("kind")) in known:
        return (said,)
    source = node.source
    said = getattr_static(source, "drawn_as", ())
    if not said and isinstance(source, FunctionType | MethodType):
        function = source.__func__ if isinstance(source, MethodType) else source
        given = map(function.__globals__.get, function.__code__.co_names)
        said = [_ASKING.get(each.__name__) for each in given if _is_ours(each)]
    return tuple(role for role in known if role in said)


_ASKING = {"call_model": "model", "acall_model": "model", "interrupt": "person"}
"""The functions by which a node asks, and whom."""


def _is_ours(value: object) -> TypeGuard[FunctionType]:
    package = __name__.partition(".")[0]
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == package


def _handles(node: CompiledNode) -> bool:
    """Return whether the node is only an error handler: nothing triggers it."""
    return not node.triggers and node.name != START


def _handler_label(node: CompiledNode) -> str:
    name = getattr(node.source, "__name__", "")
    return name if name.isidentifier() else "on error"


def _is_listed(name: str, names: str | Sequence[str]) -> bool:
    return names == "*" or name in names


def _list_nested(
    program: Program, name: str, above: tuple[Program, ...]
) -> dict[str, CompiledGraph]:
    """Return the graphs that a node contains, or has been seen to run, by key, without enclosing
    ones."""
    return {
        key: graph
        for key, graph in program.nested.items()
        if split_number(key)[0] == name and graph.program not in above
    }


ANYWHERE = f"{NS_SEP}?"  # no node can have such a name


def _anywhere(source: str) -> str:
    return source + ANYWHERE


def _guess_edges(nodes: Iterable[CompiledNode], edges: Sequence[GraphEdge]) -> Iterator[GraphEdge]:
    """Yield edges from the unknown targets of routers to each node that no other edge leads to,
    which would otherwise stand alone: any of them is possible."""
    led_to = {START, *(edge.target for edge in edges)}
    lost = [node.name for node in nodes if node.name not in led_to and not _handles(node)]
    kinds = group((edge.target, edge.kind) for edge in edges if edge.target.endswith(ANYWHERE))
    for anywhere, found in kinds.items():
        only_sends = set(found) == {"send"}
        # A Send cannot go to END.
        ends = lost if only_sends or END in led_to else [*lost, END]
        kind: EdgeKind = "send" if only_sends else "conditional"
        yield from (GraphEdge(anywhere, name, kind, PERHAPS) for name in ends)


def _merge(edges: Iterable[GraphEdge]) -> list[GraphEdge]:
    """Merge the edges of each pair and kind into one, with all labels."""
    found: dict[tuple[str, str, str], GraphEdge] = {}
    for edge in edges:
        key = edge[:3]
        known = found.setdefault(key, edge)
        if known is not edge and edge.label and edge.label not in known.label.split(" / "):
            found[key] = known._replace(label=" / ".join(filter(None, (known.label, edge.label))))
    return list(found.values())


# -- the edges of one graph ------------------------------------------------------------------------


def _list_edges(app: CompiledGraph) -> Iterator[GraphEdge]:
    if app.spec is not None:
        yield from _list_state_edges(app.program, app.spec)
    else:
        yield from _list_raw_edges(app.program)
    for node in app.program.nodes.values():
        if node.handler is not None:
            yield GraphEdge(node.name, node.handler.name, "error")


def _list_state_edges(program: Program, spec: GraphSpec) -> Iterator[GraphEdge]:
    """Yield the edges in the order of the nodes; for each node first plain edges, in that order
    too, then those of joins and routers as declared, then those of commands."""
    to_end, destinations = spec.ending_nodes(), spec.command_ends()
    joins = program.joins
    order = {name: place for place, name in enumerate(program.nodes)}

    def place(edge: GraphEdge) -> int:
        return order[edge.target] if edge.kind == "plain" else len(order)

    for name, node in program.nodes.items():
        mine = list(_list_written(node))
        if len(mine) > 1:
            mine.sort(key=place)
        goes_to = destinations.get(name, {})
        mine += [GraphEdge(name, end, "goto", label) for end, label in goes_to.items()]
        mine += [
            GraphEdge(name, join.channel, "join")
            for join in joins
            if join.target == END and name in join.sources
        ]
        if name in to_end or not (mine or _handles(node)):
            mine.append(GraphEdge(name, END))
        yield from mine
    for join in joins:
        yield GraphEdge(join.channel, join.target, "join")


def _list_written(node: CompiledNode) -> Iterator[GraphEdge]:
    """Yield the edges of a node's own writers: to the nodes whose trigger they write, or to a
    join."""
    for writer in node.writers:
        if isinstance(writer, StateWriter):
            for channel, _ in writer.fixed:
                end = triggered_node(channel)
                if end is None:
                    yield GraphEdge(node.name, channel, "join")
                else:
                    yield GraphEdge(node.name, end)
        elif isinstance(writer, BranchWriter):
            yield from _list_routed(node.name, writer)


def _list_routed(source: str, router: BranchWriter) -> Iterator[GraphEdge]:
    """Yield the edges of a router: to its declared ends, or to the unknown node."""
    hint = router.body.returns
    names, sent = set(literals(hint)), sends(hint)
    if router.ends is None:
        kind: EdgeKind = "send" if sent == "only" else "conditional"
        yield GraphEdge(source, _anywhere(source), kind, router.name)
        return
    for answer, end in router.ends.items():
        is_send = sent == "only" or (sent == "some" and bool(names) and answer not in names)
        kind = "send" if is_send and end != END else "conditional"
        yield GraphEdge(source, end, kind, "" if answer == end else str(answer))
    if sends_anywhere(router.ends, hint):
        yield GraphEdge(source, _anywhere(source), "send", router.name)


# -- the edges of a raw Pregel ---------------------------------------------------------------------


def _list_raw_edges(program: Program) -> Iterator[GraphEdge]:
    """Yield edges for channels, labelled with their names: from the input, between nodes, to the
    output."""
    for channel in _as_tuple(program.inputs):
        label = "" if channel == START else channel
        yield from (GraphEdge(START, end, label=label) for end in program.triggers.get(channel, ()))
    outputs = set(_as_tuple(program.outputs))
    for node in program.nodes.values():
        for writer in node.writers:
            if writer.writes_output:
                yield GraphEdge(node.name, END)
            elif isinstance(writer, ChannelWrite):
                for entry in writer.writes:
                    yield from _list_entry_edges(program, node.name, entry, outputs)
            else:
                yield GraphEdge(node.name, _anywhere(node.name), "conditional")


def _list_entry_edges(
    program: Program, source: str, entry: object, outputs: set[str]
) -> Iterator[GraphEdge]:
    """Yield the edges of one entry of a node's `ChannelWrite`."""
    if isinstance(entry, Send):
        yield GraphEdge(source, entry.node, "send")
    elif isinstance(entry, ChannelWriteTupleEntry):
        yield GraphEdge(source, _anywhere(source), "conditional")
    elif isinstance(entry, ChannelWriteEntry) and entry.channel != TASKS:
        maybe = entry.skip_none or entry.mapper is not None
        ends = list(program.triggers.get(entry.channel, ()))
        if entry.channel in outputs:
            ends.append(END)
        for end in ends:
            yield GraphEdge(source, end, "conditional" if maybe else "plain", entry.channel)


def _as_tuple(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
