"""The steps of the built-in layout, each by itself: loops, layers, order, columns, ports, and how much room text takes."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stategraph.visualize.layout.arrange import count_crossings, order_rows
from stategraph.visualize.layout.geometry import Box, Route
from stategraph.visualize.layout.grid import (
    GridItem,
    GridLink,
    assign_layers,
    build_grid,
    find_loops,
    find_returns,
)
from stategraph.visualize.layout.measure import (
    FONT,
    LONGEST,
    fit_text,
    label_size,
    node_size,
    text_width,
)
from stategraph.visualize.layout.routes import border_y, spread
from stategraph.visualize.model import GraphEdge, GraphNode

COUNT = 12
pairs = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(0, COUNT - 1)), max_size=40)


def without(edges, dropped):
    return [edge for number, edge in enumerate(edges) if number not in dropped]


def grid_of(edges, count=COUNT):
    links = [GridLink(GraphEdge(str(a), str(b)), a, b, label_size("")) for a, b in edges]
    return build_grid([GridItem(30, 30, 40) for _ in range(count)], links, None, None), links


# -- loops and layers -----------------------------------------------------------------------------------------


@given(pairs)
def test_where_there_is_no_circle_there_is_no_loop(edges):
    forward = [(min(pair), max(pair)) for pair in edges if pair[0] != pair[1]]
    assert find_loops(COUNT, forward) == set()


def test_the_edge_that_leads_back_is_the_loop():
    assert find_loops(4, [(0, 1), (2, 1), (1, 2), (2, 3)]) == {1}
    assert find_loops(2, [(0, 0), (0, 1)]) == {0}


@given(pairs, st.sets(st.integers(0, 39)))
def test_without_its_loops_a_graph_has_no_circle_wherever_it_is_rather_cut(edges, soft):
    found = find_loops(COUNT, edges, soft={number for number in soft if number < len(edges)})
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph(without(edges, found)))


def test_a_circle_is_cut_where_it_rather_should():
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 1), (3, 2)]
    assert find_loops(4, edges) != {4, 5}
    assert find_returns(0, 4, edges) == {4, 5} and find_loops(4, edges, soft={4, 5}) == {4, 5}
    assert find_loops(3, [(0, 1), (1, 2), (0, 2)], soft={2}) == set()  # it closes none


@given(pairs)
def test_every_edge_leads_to_a_lower_layer(edges):
    rest = without(edges, find_loops(COUNT, edges))
    found = assign_layers(COUNT, rest)
    assert all(found[source] < found[target] for source, target in rest)
    assert min(found) == 0


def test_a_node_is_placed_near_its_successors():
    assert assign_layers(5, [(0, 1), (1, 2), (2, 3), (4, 3)]) == [0, 1, 2, 3, 2]


# -- rows and columns -----------------------------------------------------------------------------------------


def test_a_label_has_a_row_below_its_source():
    links = [GridLink(GraphEdge("a", "b", label="yes"), 0, 1, label_size("yes")), GridLink(GraphEdge("b", "c"), 1, 2, label_size(""))]
    grid = build_grid([GridItem(30, 30, 40) for _ in range(3)], links, None, None)
    assert grid.row[:3] == [0, 2, 3]
    assert links[0].label_cell is not None and grid.row[links[0].label_cell] == 1


def test_crossings_that_can_be_avoided_are():
    grid, _ = grid_of([(0, 3), (1, 2), (0, 4), (1, 5), (6, 2)], 7)
    order_rows(grid, lambda: 0)
    assert count_crossings(grid, grid.rows) == 0


# -- ports ----------------------------------------------------------------------------------------------------


def test_what_can_be_straight_is_and_the_rest_is_next_to_it():
    assert spread([0.0, 900.0], [16.0, 16.0], 50) == pytest.approx([0, 16], abs=0.1)
    assert spread([0.0, 0.0], [16.0, 16.0], 50) == [-8, 8]
    assert spread([-900.0, 900.0], [16.0, 16.0], 50) == [-8, 8]


def test_an_edge_meets_a_join_on_its_circle():
    box, node = Box("j", 0, 0, 32, 32), GraphNode("j", "all", "join")
    assert border_y(node, box, 16, top=True) == 0
    assert 0 < border_y(node, box, 24, top=True) < 16 < border_y(node, box, 24, top=False) < 32


# -- room -----------------------------------------------------------------------------------------------------


@given(st.text())
def test_text_is_cut_to_one_line_that_fits(text):
    shown = fit_text(text)
    assert text_width(shown, FONT) <= LONGEST
    assert "\n" not in shown and shown == shown.strip()


def test_a_short_text_stays_whole():
    assert fit_text("agent") == "agent"
    assert fit_text("two\n words\x00") == "two words"


def test_a_node_has_room_for_its_text_and_its_marks():
    plain, deferred = node_size(GraphNode("a", "a long name")), node_size(GraphNode("a", "a long name", deferred=True))
    assert plain.width > text_width("a long name", FONT) + 16
    assert deferred.width > plain.width


def test_wide_letters_take_more_room():
    assert text_width("WWW") > text_width("iii") and text_width("日本") > text_width("ab")
    assert text_width("e\N{COMBINING ACUTE ACCENT}") == text_width("e")


def test_a_route_is_followed_from_end_to_end():
    way = Route(GraphEdge("a", "b"), ((0, 0), (0, 3), (0, 6), (0, 9), (3, 9), (6, 9), (9, 9)))
    assert [(round(x, 6), round(y, 6)) for x, y in way.line(3)] == list(way.points)
