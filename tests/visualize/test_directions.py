"""Drawings from left to right, tall ones in several columns, and edges to END as marks."""

from __future__ import annotations

import pytest
from example_graphs import DRAWN
from hypothesis import given
from kit.graph_specs import build
from kit.random_graphs import graphs

import stategraph
from stategraph.visualize.fold import MOST_ENDS, fit, mark_ends
from stategraph.visualize.layout.geometry import TALLEST, Box, GraphLayout
from stategraph.visualize.layout.measure import node_size
from stategraph.visualize.layout.pixels import arrange
from stategraph.visualize.model import GraphEdge, GraphModel, GraphNode
from stategraph.visualize.svg import draw_svg


def chain(count):
    names = [f"n{number}" for number in range(count)]
    return GraphModel("", map(GraphNode, names, names), map(GraphEdge, names, names[1:]))


def star(count):
    """A hub with so many nodes, each of which leads back and to END."""
    names = [f"n{number}" for number in range(count)]
    nodes = [GraphNode("s", "START", "start"), GraphNode("hub", "hub"), *map(GraphNode, names, names), GraphNode("e", "END", "end")]
    edges = [GraphEdge("s", "hub"), *(GraphEdge("hub", name) for name in names)]
    edges += [GraphEdge(name, end, "conditional") for name in names for end in ("hub", "e")]
    return GraphModel("", nodes, edges)


def inside(inner: Box, outer: Box):
    return outer.x <= inner.x and inner.right <= outer.right and outer.y <= inner.y and inner.bottom <= outer.bottom


def apart(one: Box, other: Box):
    return one.right <= other.x or other.right <= one.x or one.bottom <= other.y or other.bottom <= one.y


def check(model: GraphModel, layout: GraphLayout):
    """Everything has a place, in its cluster and beside the others; each edge ends at its node."""
    assert list(layout.boxes) == [node.id for node in model.node_records]
    assert [route.edge for route in layout.routes] == list(model.edge_records)
    whole = Box("", 0, 0, layout.width, layout.height)
    boxes = list(layout.boxes.values())
    for number, (node, box) in enumerate(zip(model.node_records, boxes, strict=True)):
        assert box.width >= node_size(node).width and box.height >= node_size(node).height
        assert inside(box, layout.clusters[node.inside] if node.inside else whole)
        assert all(apart(box, other) for other in boxes[:number])
    for route in layout.routes:
        assert all(inside(Box("", x, y, 0, 0), whole) for x, y in route.points)


@pytest.mark.trial
@given(graphs())
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_a_drawing_to_the_right_has_a_place_for_everything(described):
    model = build(described, stategraph).get_graph(xray=True).model
    check(model, arrange(model, "LR"))


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_every_kind_of_graph_is_drawn_to_the_right(name):
    drawing = DRAWN[name]()
    check(drawing.model, arrange(drawing.model, "LR"))
    assert drawing.draw_svg(direction="LR") and drawing.draw_html(direction="LR")
    assert "graph LR" in drawing.draw_mermaid(direction="LR") and "rankdir=LR" in drawing.draw_dot(direction="LR")


def test_edges_lead_to_the_right():
    layout = arrange(chain(4), "LR")
    assert [box.y for box in layout.boxes.values()] == [layout.boxes["n0"].y] * 4
    assert all(route.points[0][0] < route.points[-1][0] for route in layout.routes)


@pytest.mark.parametrize("count", [30, 40, 100])
@pytest.mark.parametrize("direction", ["TB", "LR"])
def test_a_long_chain_is_broken_into_columns_or_rows(count, direction):
    layout = arrange(chain(count), direction)  # type: ignore[arg-type]
    check(chain(count), layout)
    length = layout.height if direction == "TB" else layout.width
    assert length < TALLEST and len({box.x if direction == "TB" else box.y for box in layout.boxes.values()}) > 2
    for route in layout.routes:
        (x, y), box = route.points[-1], layout.boxes[route.edge.target]
        assert abs((y - box.y) if direction == "TB" else (x - box.x)) < 0.1


def test_a_chain_that_fits_stays_one_column():
    assert len({box.x for box in arrange(chain(15)).boxes.values()}) == 1


def test_many_edges_to_end_become_marks():
    marked = mark_ends(star(MOST_ENDS))
    assert [node.id for node in marked.node_records if node.ends] == [f"n{n}" for n in range(MOST_ENDS)]
    assert "e" not in marked and all(edge.target != "e" for edge in marked.edge_records)
    assert draw_svg(star(MOST_ENDS)).count('class="to-end"') == len(fit(star(MOST_ENDS)).model.node_records) - 2
    few = star(MOST_ENDS - 1)
    assert mark_ends(few) is few


def test_marimo_shows_graphs_and_drawings():
    app = stategraph.StateGraph(int).add_node("a", lambda n: n).add_edge("__start__", "a").compile()
    for shown in (app, app.get_graph()):
        mime, text = shown._mime_()
        assert mime == "text/html" and "<img" in text
