"""The user's view of a graph's drawing: short methods that call the renderers.

Everything it shows was read when it was created. No user code runs, and nothing here uses the
network.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import networkx

from ..pregel.errors import nearest
from .assets import write_file
from .dot import draw_dot, draw_png
from .fold import FittedGraph, fit
from .image import as_image
from .labels import to_plain_data
from .layout.pixels import arrange
from .markup import fill
from .mermaid import MermaidStyle, draw_mermaid
from .model import Direction, GraphEdge, GraphModel, GraphNode
from .page import draw_html
from .svg import draw_svg
from .text import draw_ascii, terminal_width
from .theme import Theme

_OF_MERMAID = frozenset((
    "curve_style", "node_colors", "wrap_label_n_words", "draw_method", "max_retries", "retry_delay",
    "frontmatter_config", "base_url", "proxies",
))  # fmt: skip


class Drawing:
    """The result of `app.get_graph()`: nodes and edges to inspect, and to draw in many formats.

    Attributes:
        model: the source of all formats, a `networkx.MultiDiGraph`: all algorithms of networkx work
            on it, as in `networkx.descendants(drawing.model, "a")`.

    >>> from stategraph import START, StateGraph
    >>> builder = StateGraph(int).add_node("twice", lambda n: 2 * n).add_edge(START, "twice")
    >>> drawing = builder.compile().get_graph()
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

    def __init__(self, model: GraphModel) -> None:
        self.model = model

    @property
    def name(self) -> str:
        """The graph's name."""
        return self.model.name

    @cached_property
    def nodes(self) -> dict[str, GraphNode]:
        """The nodes by id, in the order of declaration; without clusters."""
        return {node.id: node for node in self.model.node_records}

    @property
    def edges(self) -> list[GraphEdge]:
        """The edges, in the order of the nodes they start from."""
        return list(self.model.edge_records)

    @cached_property
    def clusters(self) -> dict[str, GraphNode]:
        """The nodes whose graphs are shown inside them, by id, outer ones first."""
        return {cluster.id: cluster for cluster in self.model.clusters}

    @property
    def nx(self) -> networkx.MultiDiGraph[str]:
        """A copy of the model as a `networkx.MultiDiGraph`, to change: the fields of nodes and
        edges are attributes, see `GraphModel`."""
        return networkx.MultiDiGraph(self.model)

    def to_json(self) -> dict[str, Any]:
        """Return the drawing as a dict for `json.dumps`: name, nodes, edges, clusters."""
        return {
            "name": self.name,
            "nodes": [_record(node) for node in self.model.node_records],
            "edges": [edge._asdict() for edge in self.model.edge_records],
            "clusters": [_record(cluster) for cluster in self.model.clusters],
        }

    # -- text --------------------------------------------------------------------------------------

    def draw_mermaid(
        self,
        *,
        direction: Direction = "TB",
        with_styles: bool = True,
        curve_style: Any = None,
        node_colors: Any = None,
        wrap_label_n_words: int = 9,
        frontmatter_config: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the drawing as Mermaid text, for Markdown pages and JupyterLab. For the arguments
        see `MermaidStyle`."""
        style = MermaidStyle(
            with_styles=with_styles,
            curve_style=curve_style,
            node_colors=node_colors,
            wrap_label_n_words=wrap_label_n_words,
            frontmatter_config=frontmatter_config,
        )
        _check_direction(direction)
        return draw_mermaid(self.model, style, direction)

    def draw_dot(self, *, direction: Direction = "TB") -> str:
        """Return the drawing as DOT text, for Graphviz, which need not be installed."""
        _check_direction(direction)
        return draw_dot(self.model, direction)

    def draw_ascii(self, *, unicode: bool = False, width: int = 100) -> str:
        """Return the drawing in plain characters; with line characters if `unicode`.

        No line is longer than `width`: a wider drawing is folded as in `draw_svg`, or becomes a
        list of arrows.

        Raises:
            ValueError: the width is less than 20.
        """
        return draw_ascii(self.model, unicode=unicode, width=width)

    def print_ascii(self, *, unicode: bool = False, width: int | None = None) -> None:
        """Print `draw_ascii`, by default as wide as the terminal."""
        print(self.draw_ascii(unicode=unicode, width=width or terminal_width()), end="")

    # -- pictures ----------------------------------------------------------------------------------

    def draw_svg(
        self,
        path: str | Path | None = None,
        *,
        theme: Theme = "auto",
        direction: Direction = "TB",
        fold: bool = True,
    ) -> str:
        """Return the drawing as one SVG text; also write it to `path` if given. It is the same on
        every machine.

        Args:
            theme: light, dark, or auto: like the page or system that shows it.
            direction: "TB" for edges that lead downwards, "LR" for edges that lead to the right.
            fold: in a graph that is too wide for a page, draw six or more nodes with the same edges
                as one, with their count and names; and eight or more edges to END as marks.

        Raises:
            ValueError: there is no such theme or direction.
        """
        _check_direction(direction)
        if fold:
            fitted = self._fitted if direction == "TB" else fit(self.model, direction)
            model, places = fitted.model, fitted.layout
        else:
            model, places = self.model, arrange(self.model, direction)
        return write_file(draw_svg(model, places, theme=theme), path)

    def draw_html(
        self,
        path: str | Path | None = None,
        *,
        theme: Theme = "auto",
        direction: Direction = "TB",
    ) -> str:
        """Return the drawing as a web page with pan and zoom; also write it to `path`. The page is
        self-contained and works offline. It folds nothing.

        Args:
            theme, direction: as for `draw_svg`.

        Raises:
            ValueError: there is no such theme or direction.
        """
        svg = self.draw_svg(theme=theme, direction=direction, fold=False)
        return write_file(draw_html(self.model, svg, theme), path)

    @cached_property
    def _fitted(self) -> FittedGraph:
        return fit(self.model)

    @cached_property
    def _svg(self) -> str:
        return self.draw_svg()

    def draw_png(self, path: str | Path | None = None, *, dpi: int = 96) -> bytes:
        """Return the drawing as a PNG picture; also write it to `path` if given.

        Graphviz draws it with its own layout, so the picture may differ between machines.

        Raises:
            GraphvizMissingError: no Graphviz is installed; `draw_svg` and `draw_html` need none.
        """
        return write_file(draw_png(self._fitted.model, dpi), path)

    def save(self, path: str | Path, *, theme: Theme = "auto") -> None:
        """Write the drawing to a file, in the format of its suffix: svg, png, html, mmd, dot or
        txt.

        Raises:
            GraphvizMissingError: the format is PNG, and there is no Graphviz.
            ValueError: there is no such format or theme.
        """
        ending = Path(path).suffix.lower()
        if ending == ".png":
            self.draw_png(path)
            return
        texts: dict[str, Callable[[], str]] = {
            ".svg": lambda: self.draw_svg(theme=theme),
            ".html": lambda: self.draw_html(theme=theme),
            ".mmd": self.draw_mermaid,
            ".dot": self.draw_dot,
            ".txt": self.draw_ascii,
        }
        if ending not in texts:
            raise ValueError(f"{path}: a drawing's file must end with .png, {', '.join(texts)}")
        write_file(texts[ending](), path)

    def draw_mermaid_png(
        self,
        *,
        output_file_path: str | Path | None = None,
        background_color: str = "white",
        padding: int = 10,
        **others: Any,
    ) -> bytes:
        """`draw_png` under LangGraph's name and with its arguments. Graphviz draws the picture
        locally: nothing is sent over the network.

        Args:
            padding: pixels around the drawing.
            others: options for Mermaid and for a rendering server; they have no effect.

        Raises:
            GraphvizMissingError: no Graphviz is installed.
            TypeError: LangGraph has no such argument.
        """
        for name in others.keys() - _OF_MERMAID:
            raise TypeError(
                f"draw_mermaid_png has no argument {name!r}; {nearest(name, _OF_MERMAID)}"
            )
        flags = (f"-Gbgcolor={background_color}", f"-Gpad={padding / 96}")
        return write_file(draw_png(self._fitted.model, 96, *flags), output_file_path)

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """Return what Jupyter shows."""
        return bundle(lambda: self, include, exclude)

    def _mime_(self) -> tuple[str, str]:
        """Return what marimo shows."""
        return "text/html", self._repr_mimebundle_()["text/html"]

    def __str__(self) -> str:
        return self.draw_ascii(width=terminal_width()).rstrip()

    def __repr__(self) -> str:
        return f"Drawing({self.name!r}, {len(self.nodes)} nodes, {len(self.edges)} edges)"


# -- in notebooks ----------------------------------------------------------------------------------


def _check_direction(direction: str) -> None:
    if direction not in get_args(Direction):
        names = ", ".join(get_args(Direction))
        raise ValueError(f"direction must be one of {names}, got {direction!r}")


def bundle(
    draw: Callable[[], Drawing],
    include: Collection[str] | None = None,
    exclude: Collection[str] | None = None,
    remark: str = "",
) -> dict[str, str]:
    """Return the drawing in the formats that notebooks choose from. Formats that fail are left out,
    except plain text: never raises.

    JupyterLab prefers HTML to Mermaid, and Mermaid to SVG, and shows an SVG only in trusted
    notebooks. So the HTML is the SVG as an image, which JupyterLab, VS Code, nbconvert and GitHub
    all show.

    Args:
        include, exclude: MIME types.
        remark: text to show above the drawing; then only formats that can hold both are returned.
    """
    found: dict[str, str] = {}
    with suppress(Exception):
        drawing = draw()
        for mime in ("text/html", "text/plain") if remark else FORMS:
            if (not include or mime in include) and mime not in (exclude or ()):
                with suppress(Exception):
                    found[mime] = FORMS[mime](drawing, remark)
    if not found and (not include or "text/plain" in include):
        found["text/plain"] = remark or "a graph that cannot be drawn"
    return found


def _as_text(drawing: Drawing, remark: str) -> str:
    return (f"{remark}\n\n" if remark else "") + drawing.draw_ascii().rstrip()


def _as_image(drawing: Drawing, remark: str) -> str:
    said = fill("<pre>{}</pre>", remark) if remark else ""
    return said + as_image(drawing._svg, repr(drawing))


FORMS: dict[str, Callable[[Drawing, str], str]] = {
    "text/html": _as_image,
    "image/svg+xml": lambda drawing, _: drawing._svg,
    "text/vnd.mermaid": lambda drawing, _: drawing.draw_mermaid(),
    "text/plain": _as_text,
}


def _record(node: GraphNode) -> dict[str, Any]:
    fields = {**node._asdict(), "metadata": to_plain_data(dict(node.metadata))}
    del fields["data"]  # the user's object is not plain data
    return fields
