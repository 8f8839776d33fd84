"""A graph's drawing as its user holds it: faces of a few lines; the renderers are behind them.

What it shows was read when it was made. No user code runs, and nothing here touches the network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .dot import draw_dot, draw_png
from .mermaid import draw_mermaid
from .shape import Edge, Node, Shape
from .text import draw_ascii
from .words import plain

if TYPE_CHECKING:
    import networkx

Made = TypeVar("Made", str, bytes)


class Drawing:
    """What `app.get_graph()` returns: nodes and edges to look at, and to draw in many forms.

    Attributes:
        shape: what all forms are made from.

    >>> from stategraph import START, StateGraph
    >>> drawing = StateGraph(int).add_node("twice", lambda n: 2 * n).add_edge(START, "twice").compile().get_graph()
    >>> drawing
    Drawing('StateGraph', 3 nodes, 2 edges)
    >>> [edge[:2] for edge in drawing.edges]
    [('__start__', 'twice'), ('twice', '__end__')]
    >>> drawing.print_ascii()
    ( START )
        |
        v
    +-------+
    | twice |
    +-------+
        |
        v
     ( END )
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.shape.name

    @cached_property
    def nodes(self) -> dict[str, Node]:
        """By id, in the order of declaration; without clusters."""
        return {node.id: node for node in self.shape.nodes}

    @property
    def edges(self) -> list[Edge]:
        """In the order of the nodes they start from."""
        return list(self.shape.edges)

    @cached_property
    def clusters(self) -> dict[str, Node]:
        """By id: the nodes whose graphs are shown inside them, outer ones first."""
        return {cluster.id: cluster for cluster in self.shape.clusters}

    @property
    def nx(self) -> networkx.MultiDiGraph[str]:
        """The same as a `networkx.MultiDiGraph`; see `Shape.nx`."""
        return self.shape.nx

    def to_json(self) -> dict[str, Any]:
        """The same as a dict that `json.dumps` takes: name, nodes, edges, clusters."""
        return {
            "name": self.name,
            "nodes": [_record(node) for node in self.shape.nodes],
            "edges": [edge._asdict() for edge in self.shape.edges],
            "clusters": [_record(cluster) for cluster in self.shape.clusters],
        }

    # -- text -----------------------------------------------------------------------------------------------

    def draw_mermaid(self) -> str:
        """The drawing as Mermaid text, for Markdown pages and JupyterLab."""
        return draw_mermaid(self.shape)

    def draw_dot(self) -> str:
        """The drawing as DOT text, for Graphviz, which need not be installed."""
        return draw_dot(self.shape)

    def draw_ascii(self, *, unicode: bool = False) -> str:
        """The drawing in plain characters; with line characters if `unicode`."""
        return draw_ascii(self.shape, unicode=unicode)

    def print_ascii(self, *, unicode: bool = False) -> None:
        """Print `draw_ascii`."""
        print(self.draw_ascii(unicode=unicode), end="")

    # -- pictures -------------------------------------------------------------------------------------------

    def draw_png(self, path: str | Path | None = None, *, dpi: int = 96) -> bytes:
        """The drawing as a PNG picture, also written to `path` if that is given.

        Raises:
            GraphvizMissingError: no Graphviz is installed; `draw_svg` and `draw_html` need none.
        """
        return _kept(draw_png(self.shape, dpi), path)

    def draw_mermaid_png(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: it would have to ask a server.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "draw_mermaid_png would send the graph over the network; draw_png() makes a picture right here, and "
            "draw_mermaid() gives the text"
        )

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """How Jupyter shows it."""
        return bundle(lambda: self, include, exclude)

    def __repr__(self) -> str:
        return f"Drawing({self.name!r}, {len(self.nodes)} nodes, {len(self.edges)} edges)"


# -- in notebooks ---------------------------------------------------------------------------------------------


def bundle(
    drawing: Callable[[], Drawing],
    include: Collection[str] | None = None,
    exclude: Collection[str] | None = None,
    remark: str = "",
) -> dict[str, str]:
    """The drawing in the forms that notebooks choose from. A form that fails is left out: showing never raises.

    Of what is here JupyterLab, VS Code, GitHub and nbconvert all take HTML first, which is an image only, so that it is
    shown in notebooks which are not trusted, too.

    Args:
        include, exclude: MIME types.
        remark: text that goes before the drawing.
    """
    found: dict[str, str] = {}
    for mime, draw in FORMS.items():
        if (not include or mime in include) and (not exclude or mime not in exclude):
            with suppress(Exception):
                found[mime] = draw(drawing(), remark)
    return found


def _as_text(drawing: Drawing, remark: str) -> str:
    return (f"{remark}\n\n" if remark else "") + drawing.draw_ascii().rstrip()


FORMS: dict[str, Callable[[Drawing, str], str]] = {
    "text/vnd.mermaid": lambda drawing, remark: drawing.draw_mermaid(),
    "text/plain": _as_text,
}


def _kept(made: Made, path: str | Path | None) -> Made:
    """What was made, also written to the file if one is named."""
    if path is not None:
        Path(path).write_bytes(made if isinstance(made, bytes) else made.encode())
    return made


def _record(node: Node) -> dict[str, Any]:
    return {**node._asdict(), "metadata": plain(dict(node.metadata))}
