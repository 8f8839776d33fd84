"""Graphs that are too wide to be read are drawn with similar nodes as one, with their count; narrower ones are drawn
completely.
"""

from __future__ import annotations

import operator
import re
from itertools import pairwise
from typing import Annotated, TypedDict

import pytest
from example_graphs import node
from kit.graphs import CONFIG, chain_of, graph_of

from stategraph import END, START, StateGraph
from stategraph.checkpoint.memory import MemorySaver
from stategraph.visualize import timeline
from stategraph.visualize.fold import FEWEST, WIDEST, fit, fold, fold_rows
from stategraph.visualize.svg import Mark, draw_svg, fold_marks
from stategraph.visualize.trace.changes import changes


class State(TypedDict, total=False):
    seen: Annotated[list[int], operator.add]


def fan(count, depth=1, work=node):
    """So many branches of so many nodes each, between `plan` and `gather`."""
    builder = graph_of(State, "S>plan", plan=work, gather=work)
    for number in range(count):
        way = ["plan", *(f"{'abc'[place]}{number}" for place in range(depth)), "gather"]
        for name in way[1:-1]:
            builder.add_node(name, work)
        for pair in pairwise(way):
            builder.add_edge(*pair)
    return builder.add_edge("gather", END)


def drawing(builder):
    return builder.compile().get_graph()


def words(svg):
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def test_a_wide_fan_out_is_one_node_with_its_count_and_names():
    folded, homes = fold(drawing(fan(200)).model)
    assert [n.id for n in folded.node_records] == ["__start__", "plan", "gather", "a0 … a199", "__end__"]
    assert [tuple(edge[:2]) for edge in folded.edge_records] == [
        ("__start__", "plan"), ("plan", "a0 … a199"), ("gather", "__end__"), ("a0 … a199", "gather")
    ]  # fmt: skip
    assert len(homes) == 200 and set(homes.values()) == {"a0 … a199"}
    label = next(n.label for n in folded.node_records if n.kind == "folded").split("\n")
    assert label[0] == "200 nodes" and label[1].startswith("a0, a1, a2, a3") and label[-1] == "... a199"


def test_names_are_sorted_by_their_numbers():
    label = next(n.label for n in fold(drawing(fan(12)).model)[0].node_records if n.kind == "folded")
    assert label == "12 nodes\na0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10,\na11"


def test_branches_of_several_nodes_are_folded_layer_by_layer():
    folded, _ = fold(drawing(fan(40, depth=3)).model)
    assert ("a0 … a39", "b0 … b39") in [edge[:2] for edge in folded.edge_records]
    assert len(folded.node_records) == 7


def test_what_has_an_edge_of_its_own_stays_by_itself():
    builder = fan(30).add_edge("a7", END)
    folded, homes = fold(drawing(builder).model)
    assert "a7" not in homes and len(homes) == 29
    assert ("plan", "a7") in [edge[:2] for edge in folded.edge_records]


def test_a_long_chain_has_no_two_nodes_in_the_same_place():
    builder = chain_of(State, n0=node)
    for number in range(1, 400):
        builder.add_node(f"n{number}", node).add_edge(f"n{number - 1}", f"n{number}")
    assert fold(drawing(builder).model)[1] == {}


def test_few_nodes_are_never_folded():
    assert fold(drawing(fan(FEWEST - 1)).model)[1] == {}


def test_labels_that_differ_are_left_out_and_common_ones_stay():
    builder = chain_of(State, route=node)
    for number in range(20):
        builder.add_node(f"tool{number}", node).add_edge(f"tool{number}", "route")
    builder.add_conditional_edges("route", node, {f"use {n}": f"tool{n}" for n in range(20)} | {"done": END})
    folded, _ = fold(drawing(builder).model)
    assert [(e.target, e.kind, e.label) for e in folded.edge_records if e.source == "route"] == [
        ("tool0 … tool19", "conditional", ""), ("__end__", "conditional", "done")
    ]  # fmt: skip


def test_a_picture_that_fits_shows_every_node():
    svg = drawing(fan(10)).draw_svg()
    assert {f"a{n}" for n in range(10)} <= set(words(svg))


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_a_picture_of_a_wide_graph_fits_a_notebook_cell(theme):
    wide = drawing(fan(200))
    assert fit(wide.model).layout.width <= WIDEST
    assert "200 nodes" in words(wide.draw_svg(theme=theme))
    assert "a17" in words(wide.draw_svg(theme=theme, fold=False))


def test_a_page_to_move_about_in_has_every_node():
    assert "a17" in words(drawing(fan(200)).draw_html())


def test_the_model_of_a_drawing_is_never_folded():
    wide = drawing(fan(200))
    wide.draw_svg()
    assert len(wide.nodes) == 204 and "a17" in wide.draw_mermaid()


def test_marks_of_folded_nodes_add_up():
    homes = {f"a{n}": "a0 … a9" for n in range(10)}
    states = ["failed", "failed", *["done"] * 6, "waiting", "running"]
    marks = {f"a{n}": Mark(state) for n, state in enumerate(states)}  # type: ignore[arg-type]
    assert fold_marks(marks | {"plan": Mark("done")}, homes) == {
        "plan": Mark("done"), "a0 … a9": Mark("failed", "2 of 10 failed")
    }  # fmt: skip
    del marks["a0"], marks["a1"]
    assert fold_marks(marks, homes)["a0 … a9"] == Mark("running", "6/10")


def test_marks_by_the_ids_of_nodes_are_painted_on_a_folded_picture():
    marks = {f"a{n}": Mark("done") for n in range(200)}
    assert "200/200" in words(draw_svg(drawing(fan(200)).model, marks=marks))


# -- text ----------------------------------------------------------------------------------------------------


@pytest.mark.trial
@pytest.mark.parametrize("width", [20, 33, 60, 100, 250])
@pytest.mark.parametrize("unicode", [False, True])
def test_no_line_is_longer_than_asked(width, unicode):
    for graph in (fan(200), fan(9, depth=2), fan(3).add_edge("a1", "plan"), fan(1)):
        text = drawing(graph).draw_ascii(width=width, unicode=unicode)
        assert max(map(len, text.split("\n"))) <= width


def test_nested_graphs_fit_the_width_too():
    inner = fan(8).compile()
    builder = fan(2)
    builder.add_node("a-holder-with-a-rather-long-name", inner).add_edge("a0", "a-holder-with-a-rather-long-name")
    whole = builder.compile().get_graph(xray=True)
    for width in (20, 50, 80):
        text = whole.draw_ascii(width=width)
        assert max(map(len, text.split("\n"))) <= width
    assert "8 nodes" in whole.draw_ascii(width=60)


def test_characters_that_take_two_columns_count_as_two():
    builder = StateGraph(State).add_node("計画" * 30, node).add_edge(START, "計画" * 30)
    lines = drawing(builder).draw_ascii(width=40).split("\n")
    assert max(sum(2 if c in "計画" else 1 for c in line) for line in lines) <= 40


def test_print_asks_the_terminal_for_its_width(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    drawing(fan(8)).print_ascii()
    assert max(map(len, capsys.readouterr().out.split("\n"))) <= 60
    monkeypatch.setenv("COLUMNS", "200")
    drawing(fan(8)).print_ascii()
    assert "8 nodes" not in capsys.readouterr().out


def test_a_width_that_fits_nothing_is_refused():
    with pytest.raises(ValueError, match="width must be an integer >= 20, got 7"):
        drawing(fan(1)).draw_ascii(width=7)


# -- runs ----------------------------------------------------------------------------------------------------


def ran(count):
    app = fan(count, work=lambda state: {"seen": [1]}).compile(MemorySaver())
    config = CONFIG
    app.invoke({}, config)
    return app, config


def test_rows_of_a_timeline_are_sorted_by_their_numbers():
    assert timeline(*ran(12)).rows == ("plan", *(f"a{n}" for n in range(12)), "gather")


def test_many_rows_that_ran_in_the_same_steps_are_one():
    found = timeline(*ran(200))
    assert found.rows == ("plan", "a0 … a199", "gather")
    assert f"{chr(215)}200" in words(found.draw_svg()) and f"{chr(215)}200" in found.draw_text()


def test_rows_that_ran_in_other_steps_or_hold_others_stay():
    rows = ["p", "p:x", *(f"n{n}" for n in range(8))]
    steps = {row: frozenset([2]) for row in rows} | {"n3": frozenset([2, 4])}
    assert fold_rows(rows, steps) == {f"n{n}": "n0 … n7" for n in range(8) if n != 3}


def test_printing_a_timeline_or_changes_shows_them(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    app, config = ran(3)
    assert str(timeline(app, config)) == timeline(app, config).draw_text(100)
    assert str(changes(app, config)) == changes(app, config).draw_text()
    assert repr(timeline(app, config)).startswith("<Timeline of ")


def test_a_headline_names_few_of_many_nodes():
    app, config = ran(30)
    assert "step 2: a0, a1, a2, a3, a4, a5, a6, a7, 22 more" in str(changes(app, config))


def test_a_wide_badge_hides_no_tip_of_an_arrow():
    model = drawing(fan(2)).model
    layout = fit(model).layout
    box = layout.boxes["a0"]
    tops = {}
    for text in ("2/9", "12 of 30 failed"):
        svg = draw_svg(model, layout, marks={"a0": Mark("failed", text)})
        [(x, y)] = re.findall(r'<g class="badge"><rect x="([\d.]+)" y="([\d.]+)"', svg)
        tops[text] = float(y)
        assert float(y) > box.y or float(x) > box.middle[0] + 3
    assert tops == {"2/9": round(box.y - 8, 1), "12 of 30 failed": round(box.bottom - 8, 1)}
