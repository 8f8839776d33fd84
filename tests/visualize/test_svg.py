"""SVG drawings: one well-formed text that needs nothing from outside, safe with any name, and the same each time."""

from __future__ import annotations

import re
from copy import deepcopy
from xml.etree import ElementTree

import pytest
from example_graphs import graph, router
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.drive import each_case
from kit.graph_specs import build
from kit.random_graphs import graphs

import stategraph
from stategraph.visualize.extract import extract
from stategraph.visualize.layout.measure import title_size
from stategraph.visualize.layout.pixels import arrange
from stategraph.visualize.model import GraphEdge, GraphModel, GraphNode
from stategraph.visualize.svg import ANYWHERE, UNREACHED, Mark, draw_svg
from stategraph.visualize.theme import DARK, LIGHT, style_sheet

NS = "{http://www.w3.org/2000/svg}"
KINDS = ["plain", "join", "conditional", "goto", "send", "error"]
HOSTILE = [
    "a\"b'c",
    "<script>alert(1)</script>",
    "]]><!-- &amp; -->",
    "two\nlines\tand tabs",
    "\N{PARROT} emoji",
    "مرحبا بالعالم",
    "",
    "\x00\x1b\ud800\uffff",
    "long " * 60,
]

SHAPE = GraphModel(
    "all kinds",
    (
        GraphNode("S", "START", "start"),
        GraphNode("a", "a", before=True, metadata={"team": "blue", "tries": 3}),
        GraphNode("b", "b", deferred=True, after=True),
        GraphNode("j", "all", "join"),
        GraphNode("sub", "sub", "subgraph"),
        GraphNode("h", "recover", handler=True),
        GraphNode("q", "any node", "unknown"),
        GraphNode("x", "x", reached=False),
        GraphNode("c:S", "START", "start", "c"),
        GraphNode("c:E", "END", "end", "c"),
        GraphNode("E", "END", "end"),
    ),
    (
        GraphEdge("S", "a"),
        GraphEdge("a", "b", "conditional", "yes"),
        GraphEdge("a", "h", "error"),
        GraphEdge("a", "sub", "send"),
        GraphEdge("b", "j", "join"),
        GraphEdge("sub", "j", "join"),
        GraphEdge("j", "q", "join"),
        GraphEdge("q", "c:S", "conditional"),
        GraphEdge("c:S", "c:E"),
        GraphEdge("c:E", "E", "goto"),
        GraphEdge("x", "E"),
    ),
    (GraphNode("c", "inner graph", "cluster"),),
)


def parsed(text):
    return ElementTree.fromstring(text)


def groups(root: ElementTree.Element, name):
    return (g for g in root.iter(f"{NS}g") if name in g.get("class", "").split())


def of_node(root: ElementTree.Element, node):
    return next(g for g in root.iter(f"{NS}g") if g.get("data-node") == node)


def title(element: ElementTree.Element):
    return element.findtext(f"{NS}title", "")


def texts(element: ElementTree.Element):
    return [text.text for text in element.iter(f"{NS}text")]


# -- what is in it --------------------------------------------------------------------------------------------


def check(model: GraphModel):
    """Each node, cluster and edge is there once, and can be found."""
    root = parsed(draw_svg(model))
    assert [g.get("data-node") for g in groups(root, "node")] == [node.id for node in model.node_records]
    assert [g.get("data-node") for g in groups(root, "cluster")] == [node.id for node in model.clusters]
    drawn = [(g.get("data-source"), g.get("data-target"), g.get("data-kind")) for g in groups(root, "edge")]
    assert drawn == [edge[:3] for edge in model.edge_records]


def test_each_node_and_edge_can_be_found():
    check(SHAPE)


@pytest.mark.trial
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
@given(graphs())
def test_each_node_and_edge_of_a_compiled_graph_can_be_found(described):
    check(extract(build(described, stategraph), xray=True))


def test_each_kind_of_edge_has_its_own_style():
    looks = set()
    for kind in KINDS:
        root = parsed(draw_svg(GraphModel("", (GraphNode("a", "a"), GraphNode("b", "b")), (GraphEdge("a", "b", kind),))))  # type: ignore[arg-type]
        edge = next(groups(root, "edge"))
        marks = tuple(sorted(part.get("class", "") for part in edge if part.tag != f"{NS}title"))
        looks.add((marks, edge.find(f"{NS}path").get("stroke-dasharray")))  # type: ignore[union-attr]
    assert len(looks) == len(KINDS) - 1  # a join is told by its circle


def test_what_is_special_about_a_node_can_be_seen():
    root = parsed(draw_svg(SHAPE))
    classes = {g.get("data-node"): g.get("class", "").split()[1:] for g in groups(root, "node")}
    assert classes["b"] == ["deferred"]
    assert classes["h"] == ["handler"]
    assert classes["x"] == ["unreached"]
    assert classes["sub"] == ["subgraph"]
    assert classes["S"] == ["start"]
    assert len(of_node(root, "sub").findall(f"{NS}rect")) == 2
    assert of_node(root, "b").find(f"{NS}path[@class='sign']") is not None
    assert len(of_node(root, "j").findall(f"{NS}circle")) == 1


def test_each_role_has_a_sign_and_room_for_it():
    bare, marked = (GraphNode("tools", "tools", roles=roles) for roles in ((), ("tool", "person")))
    drawn = {len(each.roles): GraphModel("", (each,)) for each in (bare, marked)}
    root = parsed(draw_svg(drawn[2]))
    assert of_node(root, "tools").get("class") == "node tool person"
    assert len(of_node(root, "tools").findall(f"{NS}path[@class='sign']")) == 2
    assert "calls tools\nasks a person" in str(of_node(root, "tools").findtext(f"{NS}title"))
    assert arrange(drawn[2]).boxes["tools"].width > arrange(drawn[0]).boxes["tools"].width


def test_breakpoints_are_marked_above_or_below():
    root, boxes = parsed(draw_svg(SHAPE)), arrange(SHAPE).boxes
    for node, above in (("a", True), ("b", False)):
        (stop,) = groups(of_node(root, node), "stop")
        circle = stop.find(f"{NS}circle")
        assert circle is not None
        assert (float(circle.get("cy", "")) < boxes[node].middle[1]) is above
    assert not list(groups(of_node(root, "h"), "stop"))


def test_an_edge_from_an_unreached_node_is_faded_too():
    faded = [g.get("data-source") for g in groups(parsed(draw_svg(SHAPE)), "edge") if "unreached" in g.get("class", "")]
    assert faded == ["x"]


def test_tooltips_say_what_is_known():
    root = parsed(draw_svg(SHAPE))
    assert "team = blue" in title(of_node(root, "a")) and "stops before" in title(of_node(root, "a"))
    assert "deferred" in title(of_node(root, "b"))
    assert ANYWHERE in title(of_node(root, "q"))
    assert UNREACHED in title(of_node(root, "x"))
    assert "waits for all" in title(of_node(root, "j"))
    edges = [title(edge) for edge in groups(root, "edge")]
    assert "a → b [yes]: a router decides" in edges
    assert "a → recover: taken on failure" in edges  # by its label: its id in a compiled graph is for machines
    assert "b → all: waits for all" in edges


def test_a_deferred_cluster_has_an_hour_glass_and_room_for_it():
    (cluster,) = SHAPE.clusters
    late = cluster._replace(deferred=True)
    root = parsed(draw_svg(GraphModel("", SHAPE.node_records, SHAPE.edge_records, [late])))
    assert of_node(root, "c").find(f"{NS}path[@class='sign']") is not None
    assert title_size(late).width > title_size(cluster).width


def test_the_tooltip_of_an_arrow_to_any_node_says_so():
    drawn = graph("a", "b").add_conditional_edges("a", router("f")).compile().get_graph().draw_svg()
    edges = [title(edge) for edge in groups(parsed(drawn), "edge")]
    assert "a → any node [f]: a router decides" in edges
    assert "any node → b [perhaps]: a router decides" in edges
    assert "|?" not in "".join(edges)


def test_a_label_is_placed_on_its_edge():
    edge = next(g for g in groups(parsed(draw_svg(SHAPE)), "edge") if g.get("data-target") == "b")
    assert texts(edge) == ["yes"]


# -- names ----------------------------------------------------------------------------------------------------


@each_case("name", HOSTILE)
def test_any_name_is_safe(name):
    nodes = (GraphNode("S", "START", "start"), GraphNode(name or "-", name, metadata={name: name}), GraphNode("c:n", name, inside="c"))
    clusters = (GraphNode("c", name, "cluster"),)
    text = draw_svg(GraphModel(name, nodes, (GraphEdge("S", name or "-", "conditional", name), GraphEdge("S", "c:n")), clusters))
    root = parsed(text)
    text.encode()
    assert not list(root.iter(f"{NS}script"))
    for shown in texts(root):
        assert shown is None or "\n" not in shown


@settings(max_examples=2 * settings.default.max_examples)
@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_makes_an_svg_that_parses(name, label):
    root = parsed(draw_svg(GraphModel(name, (GraphNode("a", name), GraphNode("b", label)), (GraphEdge("a", "b", "send", label),))))
    assert len(list(groups(root, "node"))) == 2


def test_a_long_name_is_wrapped_then_cut_and_whole_in_its_tooltip():
    name = "gather " * 20
    root = parsed(draw_svg(GraphModel("", (GraphNode("a", name),), (GraphEdge("a", "a", "conditional", name),))))
    *lines, last = texts(of_node(root, "a"))
    assert len(lines) == 2 and all(line and len(line) < 50 for line in lines)
    assert last is not None and last.endswith("…") and len(last) < 50
    assert name.strip() in title(of_node(root, "a"))
    assert name.strip() in title(next(groups(root, "edge")))


# -- on a page ------------------------------------------------------------------------------------------------


def test_nothing_is_fetched_and_nothing_is_named_by_an_id():
    text = draw_svg(SHAPE)
    assert not re.search(r"(?:href|src)=|url\(|@import|<script|<foreignObject", text)
    assert set(re.findall(r"https?://[^\"]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\sid=", text)


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_style_rules_apply_to_this_drawing_only(theme):
    root = parsed(draw_svg(SHAPE, theme=theme))
    name = style_sheet(theme).name
    assert name in root.get("class", "").split()
    css = re.sub(r"@media[^{]*\{(.*)\}\n", r"\1\n", root.findtext(f"{NS}style", ""))
    for selectors in re.findall(r"([^{}]+)\{[^{}]*\}", re.sub(r"@keyframes[^\n]*", "", css)):
        for selector in selectors.split(","):
            assert f".{name}" in selector, selector


def test_themes_do_not_share_a_class():
    assert len({style_sheet(theme).name for theme in ("auto", "light", "dark")}) == 3


def test_auto_follows_the_page():
    css = style_sheet("auto").css
    dark = f"--page:{DARK['page']}"
    pages = re.findall(r"([^{}]+)\{" + re.escape(f"--page:{DARK['page']}"), css)
    assert "prefers-color-scheme:dark" in css and css.count(dark) == 2
    for page in ('[data-jp-theme-light="false"]', "body.vscode-dark"):
        assert any(page in selectors for selectors in pages), page


def test_light_and_dark_are_complete_and_need_no_variables():
    assert LIGHT.keys() == DARK.keys()
    for theme, colours, other in (("light", LIGHT, DARK), ("dark", DARK, LIGHT)):
        css = style_sheet(theme).css  # type: ignore[arg-type]
        assert "var(" not in css and "$" not in css
        assert colours["ink"] in css and other["ink"] not in css


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_text_can_be_read(colours):
    pairs = [("ink", "page"), ("soft", "page"), ("pill-ink", "pill"), ("soft", "cluster"), ("send", "page")]
    pairs += [("ink", ground) for ground in ("node", "sub", "handler", "running", "done", "failed", "paused")]
    pairs += [("page", f"{state}-line") for state in ("running", "done", "failed", "paused")]
    for text, ground in pairs:
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in (
        "line",
        "goto",
        "send",
        "error",
        "sub-line",
        "running-line",
        "done-line",
        "failed-line",
        "paused-line",
    ):
        assert contrast(colours[line], colours["page"]) >= 3, line


def contrast(one, other):
    """After WCAG 2: 4.5 is enough for text, 3 for lines."""

    def light(colour):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


# -- a run ----------------------------------------------------------------------------------------------------


@each_case("state", ["waiting", "running", "done", "failed", "paused"])
def test_a_mark_colours_its_node(state):
    root = parsed(draw_svg(SHAPE, marks={"a": Mark(state, "3/200"), "not drawn": Mark(state)}))
    node = of_node(root, "a")
    assert f"is-{state}" in node.get("class", "").split()
    assert texts(node) == ["a", "3/200"]
    assert f".is-{state} " in style_sheet("auto").css
    assert not any("is-" in g.get("class", "") for g in groups(root, "node") if g is not node)


def test_a_cluster_can_be_marked():
    root = parsed(draw_svg(SHAPE, marks={"c": Mark("running", "2")}))
    assert "is-running" in of_node(root, "c").get("class", "").split()


def test_an_unknown_state_or_theme_is_refused():
    with pytest.raises(ValueError, match="state of 'a' must be one of waiting, running, .* got 'gone'"):
        draw_svg(SHAPE, marks={"a": Mark("gone")})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="theme must be one of auto, light, dark, got 'blue'"):
        draw_svg(SHAPE, theme="blue")  # type: ignore[arg-type]


# -- always the same ------------------------------------------------------------------------------------------


def test_equal_shapes_give_the_same_text():
    assert draw_svg(SHAPE) == draw_svg(deepcopy(SHAPE)) == draw_svg(SHAPE, arrange(SHAPE))


def test_a_layout_made_elsewhere_is_kept_to():
    layout = arrange(SHAPE)
    moved = layout._replace(boxes={key: box._replace(x=box.x + 1000) for key, box in layout.boxes.items()})
    rect = of_node(parsed(draw_svg(SHAPE, moved)), "a").find(f"{NS}rect")
    assert rect is not None and float(rect.get("x", "")) > 1000


def test_an_empty_graph_is_an_empty_picture():
    assert not list(groups(parsed(draw_svg(GraphModel("", (), ()))), "node"))
