"""The drawing in plain characters: readable boxes and lines, none of which overlap."""

import random
import re
import unicodedata
import warnings

import pytest
from example_graphs import State, graph, joined, node, router
from hypothesis import assume, given
from kit.graph_specs import build
from kit.random_graphs import graphs

import stategraph
from stategraph import START, StateGraph
from stategraph.visualize.model import GraphEdge, GraphModel, GraphNode
from stategraph.visualize.text import UNICODE, draw_ascii, draw_rows

# The ways out of a cell: to the right, down, left, up.
WAYS = {"E": (1, 0), "S": (0, 1), "W": (-1, 0), "N": (0, -1)}
LINES = {
    "│": "NS", "┆": "NS", "─": "EW", "┄": "EW", "┌": "ES", "┐": "SW", "└": "NE", "┘": "NW", "┼": "NESW",
    "▼": "N", "▲": "S", "◀": "E", "▶": "W",
}  # fmt: skip


def lines(built, xray=False, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return built.compile(**options).get_graph(xray=xray).draw_ascii().splitlines()


def test_several_ways_of_a_node_to_itself_are_one_line():
    built = StateGraph(State).add_node("a", node, destinations={"a": "retry"}).add_edge(START, "a").add_edge("a", "a")
    built.add_conditional_edges("a", router("r"), {"again": "a"})
    assert lines(built)[3:] == ["  +---+<-+", "  | a |  | again / retry", "  +---+--+"]


def test_an_unknown_node_may_lead_to_itself():
    model = GraphModel("", (GraphNode("x", "x", "unknown"),), (GraphEdge("x", "x", "conditional", "r"),))
    assert draw_ascii(model) == "< x ><.. r\n"


def test_lines_that_cross_are_drawn_as_a_bridge():
    built = joined(graph("a", "b", "c", "d", "e"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "e"), ("b", "e"), ("c", "d"))
    drawn = "\n".join(lines(built))
    assert "+|---" in drawn and "---+|" not in drawn


def test_wide_characters_take_two_columns():
    drawn = lines(joined(graph("数据", "b"), ("数据", "b")))
    box = [line for line in drawn[:6] if line.strip()[0] in "+|" and len(line.strip()) > 1]
    ends = {sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line) for line in box}
    assert len(ends) == 1


def test_a_graph_that_is_too_wide_is_written_as_a_list():
    many = [f"node_with_a_long_name_{number}" for number in (0, 2, 4, 6, 8)]  # too few to be folded
    built = joined(graph("a", *many), *(("a", name) for name in many[:-1]))
    built.add_conditional_edges("a", router("r"), {"last one": many[-1]})
    drawn = lines(built)
    assert drawn[:3] == ["START", "  --> a", "a"]
    assert "  ..> node_with_a_long_name_8  (last one)" in drawn
    assert max(map(len, drawn)) <= 100


def test_nested_graphs_in_a_list_are_indented():
    many = [f"node_with_a_long_name_{number}" for number in (0, 2, 4, 6, 8)]  # too few to be folded
    child = joined(graph("a", *many), *(("a", name) for name in many)).compile()
    drawn = lines(graph("x").add_node("sub", child).add_edge("x", "sub"), xray=True)
    assert drawn[:8] == ["START", "  --> x", "x", "  --> sub", "sub", "  --> END", "  inside:", "    START"]
    assert drawn[8:11] == ["      --> a", "    a", "      --> node_with_a_long_name_0"]


def test_an_empty_shape_is_an_empty_drawing():
    assert draw_ascii(GraphModel("nothing", (), ())) == ""


@pytest.mark.trial
@given(graphs())
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_every_line_leads_from_a_box_to_a_box(described):
    """Follows each line of the drawing from its arrow's tip, cell by cell, to where it comes from."""
    model = build(described, stategraph).get_graph(xray=1).model
    text = draw_ascii(model, unicode=True)
    assume("──▶" not in text and " nodes " not in text)  # told as a list, or folded
    cells = drawn_cells(text)
    tips = [place for place, c in cells.items() if c in "▼▲"]
    loops = [place for place, c in cells.items() if c == "◀"]
    assert len(tips) + len(loops) == len(model.edge_records)
    for place in tips:
        assert follow(cells, place) is not None, text


@pytest.mark.trial
def test_no_line_is_hidden_however_the_edges_run():
    """Shapes with any edges, which no builder would allow: circles, labels on all, many between the same nodes."""
    for seed in range(100):
        chance = random.Random(seed)
        names = [f"{'x' * chance.randint(1, 9)}{number}" for number in range(chance.randint(2, 12))]
        nodes = tuple(GraphNode(name, name, chance.choice(["node", "subgraph"])) for name in names)
        pairs = {(chance.choice(names), chance.choice(names)) for _ in range(chance.randint(1, 20))}
        lines = [(chance.choice(["plain", "send", "error"]), chance.choice(["", "yes", "a long label"])) for _ in pairs]
        model = GraphModel("", nodes, tuple(GraphEdge(*ends, *line) for ends, line in zip(sorted(pairs), lines, strict=True)))
        text = "\n".join("".join(row) for row in draw_rows(model, UNICODE, widest=10_000))
        cells = drawn_cells(text)
        tips = [place for place, c in cells.items() if c in "▼▲"]
        assert len(tips) + text.count("◀") == len(model.edge_records), text
        begins = [follow(cells, tip) for tip in tips]
        assert None not in begins and len(set(begins)) == len(begins), text


def drawn_cells(text):
    """The characters of a drawing; the blanks inside of ends, joins and the titles of nested graphs as dots."""
    text = re.sub(r"[(<] +(\S+|any node) +[)>]|[┌╔] \S+ [─═┄]", lambda found: found[0].replace(" ", "."), text)
    return {(x, y): c for y, line in enumerate(text.splitlines()) for x, c in enumerate(line)}


def follow(cells, tip):
    """Where the line of a tip comes from: the cell of a box, beyond its last one."""
    way = "N" if cells[tip] == "▼" else "S"
    x, y = tip
    for _ in range(10_000):
        x, y = x + WAYS[way][0], y + WAYS[way][1]
        here, back = cells.get((x, y), " "), {"N": "S", "S": "N", "E": "W", "W": "E"}[way]
        if here == " " or here not in LINES or back not in LINES[here]:
            return (x, y) if here != " " and way in "NS" else None
        if here == "┼":
            continue
        way = LINES[here].replace(back, "")
    return None
