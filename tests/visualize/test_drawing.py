"""The Drawing object: what it contains, how it is saved, and how notebooks show graphs, builders, drawings."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import socket
import warnings
from importlib.util import find_spec
from typing import Literal, NoReturn
from xml.etree import ElementTree

import pytest
from example_graphs import (
    DRAWN,
    State,
    graph,
    joined,
    metadata,
    nested,
    node,
    router,
    subgraph_two_levels,
    tool_agent,
)
from kit.drive import each_case

from stategraph import END, START, Command, StateGraph, entrypoint
from stategraph.visualize import dot
from stategraph.visualize.draft import find_mistakes, make_draft
from stategraph.visualize.drawing import Drawing
from stategraph.visualize.layout.pixels import arrange
from stategraph.visualize.svg import draw_svg

HTML, SVG, MERMAID, PLAIN = "text/html", "image/svg+xml", "text/vnd.mermaid", "text/plain"
needs_graphviz = pytest.mark.skipif(
    shutil.which("dot") is None and find_spec("pygraphviz") is None, reason="no Graphviz"
)


@pytest.fixture
def no_graphviz(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(dot, "find_spec", lambda name: None)


# -- what it tells --------------------------------------------------------------------------------------------


def test_nodes_edges_and_clusters_are_accessible():
    drawing = nested().compile(name="outer").get_graph(xray=1)
    assert (drawing.name, repr(drawing)) == ("outer", "Drawing('outer', 8 nodes, 7 edges)")
    assert drawing.nodes["sub:before"].inside == "sub" and list(drawing.clusters) == ["sub"]
    assert ("z", END) in [edge[:2] for edge in drawing.edges] and drawing.nx.has_edge("a", "sub:__start__")


def test_to_json_contains_everything_as_plain_data():
    data = json.loads(json.dumps(metadata().to_json()))
    (told,) = [record for record in data["nodes"] if record["id"] == "a"]
    assert told["metadata"] == {
        "owner": "Ada", "level": 3, "tags": ["x", "y"], "model": "<object>", "note": "long " * 20,
    }  # fmt: skip
    assert data["edges"][0] == {"source": START, "target": "a", "kind": "plain", "label": ""}
    assert set(data) == {"name", "nodes", "edges", "clusters"}


@each_case("name", DRAWN)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_json_takes_every_drawing(name):
    drawing = DRAWN[name]()
    data = json.loads(json.dumps(drawing.to_json()))
    assert [record["id"] for record in data["nodes"]] == list(drawing.nodes)


class Loud:
    """A value whose every method is code of the user's."""

    def __repr__(self) -> NoReturn:
        raise AssertionError("code of the user's was called")

    __str__ = __eq__ = __bool__ = __len__ = __iter__ = __repr__  # type: ignore[assignment]
    __hash__ = object.__hash__


def test_metadata_of_any_kind_is_drawn_without_running_its_code():
    drawing = graph("a", metadata={"loud": Loud(), "in a list": [Loud()], "in a dict": {"x": Loud()}}).compile().get_graph()
    for draw in (drawing.draw_mermaid, drawing.draw_dot, drawing.draw_ascii, drawing.draw_svg, drawing.draw_html, drawing.to_json):
        assert draw()


def test_drawing_opens_no_connection(monkeypatch):
    def refuse(*_, **__) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    drawing = subgraph_two_levels()
    assert len(drawing._repr_mimebundle_()) == 4 and drawing.draw_html()


# -- how it is drawn ------------------------------------------------------------------------------------------


def test_without_graphviz_our_own_layout_is_drawn(no_graphviz):
    drawing = tool_agent()
    own = draw_svg(drawing.model, arrange(drawing.model))
    assert drawing.draw_svg() == own
    with pytest.raises(dot.GraphvizMissingError, match="apt install graphviz"):
        drawing.draw_png()


@needs_graphviz
def test_a_png_is_a_picture_and_goes_to_a_file_too(tmp_path):
    small, large = tool_agent().draw_png(tmp_path / "x.png"), tool_agent().draw_png(dpi=192)
    assert (tmp_path / "x.png").read_bytes() == small and small.startswith(b"\x89PNG\r\n")
    assert int.from_bytes(large[16:20], "big") > 1.8 * int.from_bytes(small[16:20], "big")


def test_wrong_options_are_refused():
    for draw in ("draw_svg", "draw_html", "draw_mermaid", "draw_dot"):
        with pytest.raises(ValueError, match="direction must be one of TB, LR, got 'RL'"):
            getattr(tool_agent(), draw)(direction="RL")
    with pytest.raises(ValueError, match="theme must be one of auto, light, dark, got 'blue'"):
        tool_agent().draw_svg(theme="blue")  # type: ignore[arg-type]


@needs_graphviz
def test_the_peers_picture_is_drawn_here(tmp_path):
    drawing, path = tool_agent(), tmp_path / "graph.png"
    picture = drawing.draw_mermaid_png(output_file_path=path, background_color="yellow", draw_method="api", max_retries=5)
    assert picture.startswith(b"\x89PNG") and path.read_bytes() == picture
    wide = drawing.draw_mermaid_png(padding=100)
    assert int.from_bytes(wide[16:20], "big") >= int.from_bytes(picture[16:20], "big") + 170


def test_an_argument_that_the_peer_does_not_have_is_refused():
    with pytest.raises(TypeError, match="draw_mermaid_png has no argument 'max_retry'; did you mean 'max_retries'"):
        tool_agent().draw_mermaid_png(max_retry=1)


def test_each_ending_of_a_file_is_a_form(tmp_path):
    drawing = tool_agent()
    for ending, drawn in {
        "svg": drawing.draw_svg(theme="dark"), "html": drawing.draw_html(theme="dark"), "mmd": drawing.draw_mermaid(),
        "dot": drawing.draw_dot(), "txt": drawing.draw_ascii(),
    }.items():  # fmt: skip
        drawing.save(tmp_path / f"x.{ending}", theme="dark")
        assert (tmp_path / f"x.{ending}").read_text(encoding="utf-8") == drawn
    with pytest.raises(ValueError, match=r"x\.gif: a drawing's file must end with \.png, \.svg"):
        drawing.save(tmp_path / "x.gif")


def test_plain_text_can_be_printed(capsys):
    tool_agent().print_ascii()
    assert capsys.readouterr().out == tool_agent().draw_ascii()


# -- notebooks ------------------------------------------------------------------------------------------------


def test_a_graph_its_builder_and_its_drawing_are_displayed_identically():
    builder = joined(graph("a", "b"), ("a", "b"))
    app = builder.compile()
    assert app._repr_mimebundle_() == builder._repr_mimebundle_() == app.get_graph()._repr_mimebundle_()


def test_a_builder_has_a_drawing_of_what_there_is_so_far():
    builder = joined(graph("a", "b"), ("a", "b"))
    assert builder.get_graph().model == make_draft(builder.snapshot()).model
    assert {"c"} == {node.id for node in joined(builder, ("b", "c")).get_graph().model.node_records if node.kind == "unknown"}
    assert len(nested().get_graph(xray=True).clusters) == len(nested().compile().get_graph(xray=True).clusters) > 0


def test_a_builder_with_an_error_handler_that_goes_somewhere_has_no_unknown_node():
    builder = StateGraph(State).add_node("a", node, error_handler=router("mend", Command[Literal["b"]])).add_node("b", node)
    assert "unknown" not in {drawn.kind for drawn in builder.add_edge(START, "a").get_graph().model.node_records}


def test_showing_a_builder_leaves_it_as_it_was():
    builder = graph("a")
    builder._repr_mimebundle_()
    assert builder.compiled is False
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        joined(builder.add_node("b", node), ("a", "b")).compile()


def test_all_forms_are_offered_the_picture_first():
    drawing = tool_agent()
    shown = drawing._repr_mimebundle_()
    assert list(shown) == [HTML, SVG, MERMAID, PLAIN]
    picture = re.fullmatch(r'<img alt="(.*?)" .*src="data:image/svg\+xml;base64,(.*)"/>', shown[HTML])
    inside = base64.b64decode(picture[2]).decode() if picture else ""
    assert shown[SVG] == drawing.draw_svg() and inside.startswith(shown[SVG].removesuffix("</svg>\n"))
    ElementTree.fromstring(shown[SVG])
    assert shown[MERMAID] == drawing.draw_mermaid() and shown[PLAIN] == drawing.draw_ascii().rstrip()


def test_only_the_forms_asked_for_are_made():
    app = graph("a").compile()
    assert list(app._repr_mimebundle_(include={PLAIN, MERMAID})) == [MERMAID, PLAIN]
    assert list(app._repr_mimebundle_(exclude=[HTML, SVG])) == [MERMAID, PLAIN]
    assert list(app._repr_mimebundle_(include=[SVG, PLAIN], exclude=[SVG])) == [PLAIN]


def test_mistakes_are_reported_with_the_valid_choices():
    builder = graph("a", "b").add_edge("a", "bee").add_conditional_edges("b", router("r"), {"x": "sea"})
    shown = builder._repr_mimebundle_()
    assert list(shown) == [HTML, PLAIN]
    for sentence in ("'a' -> 'bee' leads to an unknown node", "its router 'r' leads to unknown node 'sea'"):
        assert sentence in shown[PLAIN] and sentence.replace("'", "&#x27;").replace(">", "&gt;") in shown[HTML]
    assert "< bee? >" in shown[PLAIN] and "<img" in shown[HTML]
    assert [n.id for n in make_draft(builder.snapshot()).model.node_records if n.kind == "unknown"] == ["bee", "sea"]
    assert len(find_mistakes(builder.snapshot())) == 2


def test_an_empty_builder_can_be_shown():
    assert "the graph has no entry point" in StateGraph(State)._repr_mimebundle_()[PLAIN]
    assert [edge.target for edge in make_draft(StateGraph(State).add_node("a", node).snapshot()).edges] == [END]


def test_a_builder_of_which_nothing_can_be_drawn_shows_its_mistakes():
    builder = graph("a")
    builder.edges.add(("a", "no:such"))
    shown = builder._repr_mimebundle_()
    assert "'no:such'" in shown[PLAIN] and "( START )" not in shown[PLAIN]


def test_showing_never_raises(monkeypatch):
    app = graph("a").compile()
    monkeypatch.setattr(app, "program", None)
    assert app._repr_mimebundle_() == {PLAIN: "a graph that cannot be drawn"}


def test_a_functional_graph_shows_itself():
    @entrypoint()
    def work(x) -> NoReturn:
        raise AssertionError("an entrypoint was called")

    assert "| work |" in work._repr_mimebundle_()[PLAIN]


@pytest.mark.trial
def test_ipython_takes_every_form():
    formatters = pytest.importorskip("IPython.core.formatters")
    formatter = formatters.DisplayFormatter()
    for shown in (graph("a").compile(), graph("a"), tool_agent()):
        data, _ = formatter.format(shown)
        assert {HTML, SVG, MERMAID, PLAIN} <= set(data) and data[PLAIN].lstrip().startswith("( START )")
    data, _ = formatter.format(graph("a"), include={PLAIN})
    assert list(data) == [PLAIN]


@pytest.mark.trial
def test_a_notebook_shows_a_graph():
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [
        "from stategraph import *\nbuilder = StateGraph(int).add_node('twice', lambda n: 2 * n)",
        "builder",
        "builder.add_edge(START, 'twice').compile()",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client's own
        nbclient.NotebookClient(book, kernel_name="python3", timeout=60).execute()
    wrong, right = book.cells[1].outputs[0].data, book.cells[2].outputs[0].data
    assert "no entry point" in wrong[PLAIN] and "no entry point" in wrong[HTML]
    assert {HTML, SVG, MERMAID, PLAIN} <= set(right) and "| twice |" in right[PLAIN]


def test_a_plain_interpreter_shows_one_line():
    assert "\n" not in repr(graph("a").compile())


def test_get_graph_takes_a_config_like_the_others():
    app = graph("a").compile()
    assert isinstance(asyncio.run(app.aget_graph({"configurable": {}})), Drawing)
