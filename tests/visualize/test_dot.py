"""DOT text that Graphviz accepts, and what happens if Graphviz is missing, broken or hangs."""

from __future__ import annotations

import shutil
import warnings
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from example_graphs import DRAWN, graph, joined, router
from hypothesis import given
from kit.graph_specs import build
from kit.random_graphs import graphs

import stategraph
from stategraph.visualize import dot
from stategraph.visualize.dot import (
    GraphvizMissingError,
    GraphvizWarning,
    arrange_with_graphviz,
    draw_dot,
    draw_png,
)
from stategraph.visualize.drawing import Drawing
from stategraph.visualize.layout.geometry import Box
from stategraph.visualize.layout.measure import node_size
from stategraph.visualize.model import GraphModel

HAS_DOT, HAS_PYGRAPHVIZ = shutil.which("dot") is not None, find_spec("pygraphviz") is not None
needs_dot = pytest.mark.skipif(not HAS_DOT, reason="no dot on the PATH")
needs_pygraphviz = pytest.mark.skipif(not HAS_PYGRAPHVIZ, reason="pygraphviz is not installed")
needs_any = pytest.mark.skipif(not (HAS_DOT or HAS_PYGRAPHVIZ), reason="no Graphviz")


def chain() -> GraphModel:
    return joined(graph("a", "b"), ("a", "b")).compile().get_graph().model


@pytest.fixture
def no_path(monkeypatch, tmp_path):
    """A PATH of one empty folder, which is returned."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(folder: Path, script: str) -> None:
    """Put a `dot` there."""
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# -- the text -------------------------------------------------------------------------------------------------


def test_the_text_needs_no_graphviz(no_path):
    assert "\ta -> b\n" in draw_dot(chain())


def test_names_without_special_characters_are_not_escaped():
    names = ["<b>bold</b>", "back\\nslash", 'say "hi"', "node", "edge", "a-b"]
    text = draw_dot(joined(graph(*names), *pairwise(names)).compile(name="<x>").get_graph().model)
    for label in ('"<b>bold</b>"', '"back\\\\nslash"', '"say \\"hi\\""', '"node"', '"edge"', '"a-b"'):
        assert f"[label={label}" in text, label


@needs_dot
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_graphviz_takes_the_text_of_every_kind_of_graph(name):
    model = DRAWN[name]().model
    assert dot.run_graphviz(draw_dot(model), "canon") is not None


# -- the layout -----------------------------------------------------------------------------------------------


def inside(inner: Box, outer: Box) -> bool:
    return (
        outer.x <= inner.x + 0.5 and inner.x + inner.width <= outer.x + outer.width + 0.5
        and outer.y <= inner.y + 0.5 and inner.y + inner.height <= outer.y + outer.height + 0.5
    )  # fmt: skip


def apart(one: Box, other: Box) -> bool:
    return (
        one.x + one.width <= other.x or other.x + other.width <= one.x
        or one.y + one.height <= other.y or other.y + other.height <= one.y
    )  # fmt: skip


@needs_any
@given(graphs())
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_a_layout_by_graphviz_has_a_place_for_everything(described):
    model = build(described, stategraph).get_graph(xray=True).model
    layout = arrange_with_graphviz(model)
    assert layout is not None
    assert list(layout.boxes) == [node.id for node in model.node_records]
    assert list(layout.clusters) == [cluster.id for cluster in model.clusters]
    assert [route.edge for route in layout.routes] == list(model.edge_records)
    whole = Box("", 0, 0, layout.width, layout.height)
    boxes = list(layout.boxes.values())
    for number, (node, box) in enumerate(zip(model.node_records, boxes, strict=True)):
        assert (box.width, box.height) == node_size(node)
        assert inside(box, layout.clusters[node.inside] if node.inside else whole)
        assert all(apart(box, other) for other in boxes[:number])
    for route in layout.routes:
        assert len(route.points) % 3 == 1 and (route.label_at is None) == (not route.edge.label)


@needs_any
def test_the_graph_goes_downwards():
    layout = arrange_with_graphviz(chain())
    assert layout is not None
    assert [name for name, _ in sorted(layout.boxes.items(), key=lambda item: item[1].y)] == ["__start__", "a", "b", "__end__"]
    for route in layout.routes:
        assert route.points[0][1] < route.points[-1][1]
        assert abs(route.points[-1][1] - layout.boxes[route.edge.target].y) < 1


@needs_any
def test_parallel_nodes_are_side_by_side_though_a_router_leads_back_to_some():
    built = joined(graph("a", "b", "c", "j"), ("__start__", "b"), ("__start__", "c"), (["a", "b", "c"], "j"))
    layout = arrange_with_graphviz(built.add_conditional_edges("j", router("again"), ["a", "b"]).compile().get_graph().model)
    assert layout is not None and len({layout.boxes[name].y for name in "abc"}) == 1


@needs_pygraphviz
def test_pygraphviz_does_where_there_is_no_dot(no_path):
    layout = arrange_with_graphviz(chain())
    assert layout is not None and list(layout.boxes) == ["__start__", "a", "b", "__end__"]
    assert draw_png(chain()).startswith(b"\x89PNG")


# -- without --------------------------------------------------------------------------------------------------


def test_without_any_graphviz_there_is_no_layout_and_no_warning(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    assert arrange_with_graphviz(chain()) is None


def test_a_png_without_any_graphviz_says_what_to_install(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    with pytest.raises(GraphvizMissingError, match=r'apt install graphviz.*pip install -e "\.\[graphviz\]"') as raised:
        draw_png(chain())
    assert isinstance(raised.value, RuntimeError) and "not installed" in str(raised.value)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo no fonts >&2; exit 3", "exit code 3: no fonts"),
        ("kill -9 $$", "exit code -9"),
        ("exit 0", "exit code 0"),
        ("while :; do :; done", "timed out"),
    ],
)
def test_a_broken_graphviz_warns_and_the_built_in_layout_is_used(no_path, monkeypatch, script, reason):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    monkeypatch.setattr(dot, "TIMEOUT", 0.2)
    program(no_path, script)
    with pytest.warns(GraphvizWarning, match=reason):
        assert arrange_with_graphviz(chain()) is None
    with pytest.warns(GraphvizWarning), pytest.raises(GraphvizMissingError, match="gives no result"):
        draw_png(chain())
    with pytest.raises(GraphvizMissingError), pytest.warns(GraphvizWarning):
        Drawing(chain()).draw_svg(layout="graphviz")


def test_graphviz_is_called_only_when_it_is_asked_for(no_path, monkeypatch):
    """So that a drawing is the same on every machine."""
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    program(no_path, f"echo called >>{no_path}/calls; exit 1")
    drawing = Drawing(chain())
    assert drawing.draw_svg() == drawing.draw_svg(layout="builtin")
    assert drawing.draw_html() and drawing._repr_mimebundle_() and drawing.draw_dot() and drawing.draw_ascii()
    drawing.save(no_path / "x.svg")
    assert not (no_path / "calls").exists()
    for ask in (lambda: drawing.draw_svg(layout="graphviz"), drawing.draw_png, drawing.draw_mermaid_png):
        with pytest.warns(GraphvizWarning), pytest.raises(GraphvizMissingError):
            ask()
    assert (no_path / "calls").read_text().count("called") == 3


def test_a_file_that_is_no_program_is_done_without(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    program(no_path, "")
    (no_path / "dot").write_bytes(b"\x00\x01")
    with pytest.warns(GraphvizWarning):
        assert arrange_with_graphviz(chain()) is None


@needs_pygraphviz
def test_pygraphviz_steps_in_for_a_broken_dot(no_path):
    program(no_path, "exit 1")
    with pytest.warns(GraphvizWarning):
        assert arrange_with_graphviz(chain()) is not None


def test_nonsense_from_graphviz_is_done_without(no_path, monkeypatch):
    monkeypatch.setattr(dot, "find_spec", lambda name: None)
    program(no_path, "echo nonsense")
    with pytest.warns(GraphvizWarning, match="cannot be read"):
        assert arrange_with_graphviz(chain()) is None


def test_a_graphviz_that_works_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrange_with_graphviz(chain())
