"""A compiled graph as a LangChain Runnable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import new_class
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import merge_configs, var_child_runnable_config
from langchain_core.runnables.graph import Edge, Graph, Node
from pydantic import create_model

from ...pregel.app import Pregel
from ...pregel.names import END
from ...pregel.program.program import Program
from ...pregel.run.config import COORDINATES
from ...pregel.running import RUNNING

_INHERITED = ("tags", "metadata", "configurable", "max_concurrency")
_RESERVED = "__pregel_"


class RunnableGraph(Runnable[Any, Any]):
    """Mixed into a compiled graph, it makes it a Runnable: `|`, `bind`, `with_retry`, ..."""

    program: Program
    spec: Any
    context_schema: Any

    @property
    def InputType(self) -> Any:  # the name is LangChain's
        """The input schema; the type of the input if that is one value."""
        return self._type(self.program.inputs, "input_schema")

    @property
    def OutputType(self) -> Any:
        """The output schema; the type of the output if that is one value."""
        return self._type(self.program.outputs, "output_schema")

    def _type(self, keys: Any, schema: str) -> Any:
        if self.spec is not None:
            return getattr(self.spec, schema)
        return self.program.channels[keys].ValueType if isinstance(keys, str) else Any

    def get_output_schema(self, config: Any = None) -> Any:
        """A model of what `invoke` returns; any of its keys may be missing."""
        outputs, channels = self.program.outputs, self.program.channels
        if isinstance(outputs, str):
            return super().get_output_schema(config)
        fields: Any = {key: (channels[key].ValueType, None) for key in outputs}
        return create_model(self.get_name("Output"), **fields)

    def config_schema(self, *, include: Any = None) -> Any:
        """A model of the config; `configurable` has the keys of the context schema."""
        found = super().config_schema(include=include)
        if self.context_schema is None:
            return found
        fields: Any = {"configurable": (self.context_schema, None)}
        fields |= {name: (field.annotation, field) for name, field in found.model_fields.items()}
        return create_model(found.__name__, **fields)


class RunnableParts:
    """Laid over a compiled graph: what a Runnable's methods expect of it."""

    name: str
    config: Any

    def _run(self, input: Any, config: Any, call: Any) -> Any:
        own, given = (part and part.get("callbacks") for part in (self.config, config))
        if own and given:
            both = merge_configs({"callbacks": own}, {"callbacks": given})
            config = {**config, "callbacks": both["callbacks"]}
        return super()._run(input, inherit_config(config), call)  # type: ignore[misc]

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """The graph's name, or the one given, with a suffix in LangChain's spelling."""
        return str(Runnable.get_name(self, suffix, name=name))

    def get_graph(self, config: Any = None, *, xray: bool | int = False) -> GraphDrawing:
        """A drawing of the graph as LangChain's `Graph`, so that chains can be drawn.

        Args:
            config: ignored; the drawing is the same for all.
            xray: whether graphs inside nodes are drawn: True for all, a number for that many
                levels.
        """
        return draw(self, xray)

    async def aget_graph(self, config: Any = None, *, xray: bool | int = False) -> GraphDrawing:
        """`get_graph` for coroutines."""
        return self.get_graph(config, xray=xray)


def as_runnable(graph: Any) -> Any:
    """A copy of a compiled graph that is a LangChain Runnable: it can stand in a chain, and be a
    node of another engine's graph. What a Runnable around it lends (handlers, tags, metadata,
    `configurable`) it takes over."""
    cls: Any = type(graph)
    twin: Any = object.__new__(_runnable_class(cls))
    twin.__dict__.update(vars(graph.copy()))
    return twin


@cache
def _runnable_class(cls: type) -> type:
    if issubclass(cls, RunnableGraph):
        return cls
    return new_class(f"Runnable{cls.__name__}", (RunnableParts, cls, RunnableGraph))


def inherit_config(config: Any) -> Any:
    """The config of a call with what it takes over from the Runnable around it.

    Inside a node of ours the run around it says the rest. A node of another engine lends its own
    thread; of that only the name counts here.
    """
    outer = var_child_runnable_config.get()
    given = dict(config or {})
    if RUNNING.get() is not None:
        return given
    if outer:
        for key in _INHERITED:
            value = outer.get(key)
            if not value:
                continue
            if isinstance(value, dict):
                given[key] = {**value, **(given.get(key) or {})}
            elif key == "tags":
                own = given.get("tags") or []
                given["tags"] = [*value, *(tag for tag in own if tag not in value)]
            else:
                given.setdefault(key, value)
    configurable = given.get("configurable")
    if configurable and any(key.startswith(_RESERVED) for key in configurable):
        given["configurable"] = {
            key: value
            for key, value in configurable.items()
            if not key.startswith(_RESERVED) and (key not in COORDINATES or key == "thread_id")
        }
    return given


# -- drawing ---------------------------------------------------------------------------------------
# A graph's drawing as LangChain's `Graph`, with pictures of ours.

class GraphDrawing(Graph):
    """LangChain's nodes, edges and Mermaid texts. Pictures are drawn right here by our own
    renderers: nothing is sent over the network. What LangChain's has not (`draw_svg`, ...) is that
    of the native drawing.

    Args:
        native: the same drawing as graphs of ours return it.
    """

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native

    def __getattr__(self, name: str) -> Any:
        if name == "native":  # not set yet: a copy is being made
            raise AttributeError(name)
        return getattr(self.native, name)

    def draw_ascii(self) -> str:
        """The drawing as text."""
        return str(self.native.draw_ascii())

    def print_ascii(self) -> None:
        """Print the drawing as text."""
        self.native.print_ascii()

    def draw_png(
        self, output_file_path: str | None = None, fontname: Any = None, labels: Any = None
    ) -> Any:
        """The drawing as a PNG picture, also written to a file if one is given. Fonts and labels
        are those of our renderer.

        Raises:
            GraphvizMissingError: no Graphviz is installed.
        """
        return self.native.draw_png(output_file_path)

    def draw_mermaid_png(self, **options: Any) -> bytes:
        """`draw_png` with the arguments of Mermaid's server.

        Raises:
            GraphvizMissingError: no Graphviz is installed.
            TypeError: there is no such argument.
        """
        known: bytes = self.native.draw_mermaid_png(**options)
        return known


def draw(app: Any, xray: bool | int) -> GraphDrawing:
    """The drawing of a compiled graph.

    Args:
        xray: show the graphs inside nodes: True for all, a number for so many levels.
    """
    flat: Any = Pregel.get_graph(app).model
    drawing = GraphDrawing(Pregel.get_graph(app, xray=xray))
    for node in sorted(flat.node_records, key=lambda node: node.id == END):
        if node.kind not in ("join", "unknown"):
            name = node.id if node.kind in ("start", "end") else node.label
            drawing.nodes[node.id] = Node(node.id, name, node.data, _metadata(node))
    drawing.edges += _edges(flat)
    if xray:
        for name, inner in app.get_subgraphs():
            _unfold(drawing, name, draw(inner, xray if xray is True else xray - 1))
    return drawing


def _metadata(node: Any) -> dict[str, Any] | None:
    """What a drawing says about a node beside its name."""
    found = dict(node.metadata)
    if node.deferred:
        found["defer"] = True
    stops = [word for word, stop in (("before", node.before), ("after", node.after)) if stop]
    if stops:
        found["__interrupt"] = ",".join(stops)
    tools = getattr(node.data, "tools_by_name", None)
    if tools:
        found["__tools"] = list(tools)
    return found or None


def _edges(model: Any) -> Iterator[Edge]:
    """The edges in LangGraph's order: by their ends, but those that always lead to the end last.
    What passes a join or goes wherever a router may go is one edge."""
    between = {node.id for node in model.node_records if node.kind in ("join", "unknown")}
    onward: dict[str, list[str]] = {source: [] for source in between}
    for edge in model.edge_records:
        if edge.source in between:
            onward[edge.source].append(edge.target)
    found: dict[tuple[str, str], Edge] = {}
    for edge in model.edge_records:
        if edge.source in between:
            continue
        label = "" if edge.target in between else edge.label
        for target in onward.get(edge.target, [edge.target]):
            made = Edge(edge.source, target, label or None, edge.conditional)
            found.setdefault((edge.source, target), made)
    last = [edge for edge in found.values() if edge.target == END and not edge.conditional]
    others = [edge for edge in found.values() if edge not in last]
    yield from sorted(others, key=lambda edge: (edge.source, edge.target))
    yield from sorted(last, key=lambda edge: edge.source)


def _unfold(drawing: Graph, name: str, inner: Graph) -> None:
    """Draw the graph that a node is made of in place of the node."""
    inner.trim_first_node()
    inner.trim_last_node()
    first, last = inner.first_node(), inner.last_node()
    if name not in drawing.nodes or first is None or last is None:
        return
    del drawing.nodes[name]
    drawing.edges[:] = [
        edge._replace(
            source=f"{name}:{last.id}" if edge.source == name else edge.source,
            target=f"{name}:{first.id}" if edge.target == name else edge.target,
        )
        for edge in drawing.edges
    ]
    drawing.extend(inner, prefix=name)
