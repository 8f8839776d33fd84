"""The built-in layout: nothing lies on anything else, edges begin and end at their nodes, and simple graphs are drawn
without a crossing. Looked at here as geometry, on random models and on typical graphs."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from kit.drive import each_case
from kit.graph_specs import build
from kit.random_graphs import graphs

import stategraph
from stategraph.visualize.extract import extract
from stategraph.visualize.layout.geometry import Box, GraphLayout, Point, Route
from stategraph.visualize.layout.measure import label_size
from stategraph.visualize.layout.pixels import ASIDE, arrange
from stategraph.visualize.model import GraphEdge, GraphModel, GraphNode

KINDS = ["plain", "conditional", "goto", "send", "error", "join"]
TOUCH = 0.6  # px; what is nearer than that counts as touching
HALF = settings.default.max_examples // 2


# -- random models --------------------------------------------------------------------------------------------


@st.composite
def models(draw: DrawFn, most=60):
    """Any nodes and edges, and graphs inside graphs: as `extract` makes them, edges lead to the start inside."""
    nodes = []
    edges = []
    _level(draw, "", draw(st.integers(1, most)), nodes, edges)
    unique = {edge[:3]: edge for edge in edges}
    clusters = tuple(node for node in nodes if node.kind == "cluster")
    return GraphModel("any", tuple(n for n in nodes if n.kind != "cluster"), tuple(unique.values()), clusters)


def _level(draw: DrawFn, inside, count, nodes, edges):
    holder = inside or None
    start, end = f"{inside}/start", f"{inside}/end"
    nodes.append(GraphNode(start, "START", "start", holder))
    ways = []  # where edges come in and go out
    while count > 0:
        count -= 1
        name = f"{inside}/{len(nodes)}"
        if inside.count("/") < 3 and draw(st.integers(0, 11)) == 11:
            nodes.append(GraphNode(name, draw(st.sampled_from(["sub", "a long name of a graph"])), "cluster", holder))
            size = draw(st.integers(0, min(6, count)))
            _level(draw, name, size, nodes, edges)
            count -= size
            ways.append((f"{name}/start", f"{name}/end"))
        else:
            kind = draw(st.sampled_from(["node", "node", "node", "subgraph", "join", "unknown"]))
            label = draw(st.sampled_from(["n", "a node", "a rather long name of a node"]))
            nodes.append(GraphNode(name, label, kind, holder, deferred=draw(st.booleans()) and kind == "node"))
            ways.append((name, name))
    nodes.append(GraphNode(end, "END", "end", holder))
    ends = st.integers(0, max(0, len(ways) - 1))
    for _ in range(draw(st.integers(0, len(ways) + len(ways) // 3)) if ways else 0):
        source, target = draw(ends), draw(ends)
        label = draw(st.sampled_from(["", "", "yes", "what decides"]))
        edges.append(GraphEdge(ways[source][1], ways[target][0], draw(st.sampled_from(KINDS)), label))
    edges.extend(GraphEdge(start, way[0]) for way in ways[:: draw(st.integers(1, 4))])
    edges.extend(GraphEdge(way[1], end, "conditional") for way in ways[:: draw(st.integers(2, 9))])


@settings(max_examples=settings.default.max_examples, deadline=None)
@given(models(12))
def test_nothing_lies_on_anything_else_in_small_drawings(model):
    check(model, arrange(model))


@pytest.mark.trial
@settings(max_examples=HALF, deadline=None, phases=[Phase.reuse, Phase.generate])  # too large to be made smaller
@given(models(60))
def test_nothing_lies_on_anything_else_in_drawings_of_60_nodes(model):
    check(model, arrange(model))


@pytest.mark.trial
@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
@settings(max_examples=HALF, deadline=None)
@given(graphs())
def test_nothing_lies_on_anything_else_in_drawings_of_compiled_graphs(described):
    app = build(described, stategraph)
    for xray in (False, True):
        model = extract(app, xray)
        check(model, arrange(model))


def check(model: GraphModel, layout: GraphLayout):
    """All that holds for any layout."""
    assert list(layout.boxes) == [node.id for node in model.node_records]
    assert list(layout.clusters) == [node.id for node in model.clusters]
    assert [route.edge for route in layout.routes] == list(model.edge_records)
    whole = Box("", 0, 0, layout.width, layout.height)
    for box in (*layout.boxes.values(), *layout.clusters.values()):
        assert holds(whole, box), f"{box} is outside of the drawing"
    for one, other in combinations(layout.boxes.values(), 2):
        assert not overlap(one, other), f"{one} lies on {other}"
    check_clusters(model, layout)
    check_labels(layout)
    check_routes(model, layout)


def check_clusters(model: GraphModel, layout: GraphLayout):
    around = {node.id: above(node, model) for node in (*model.node_records, *model.clusters)}
    everything = {**layout.boxes, **layout.clusters}
    for cluster, box in layout.clusters.items():
        for other, room in everything.items():
            if cluster in around[other]:
                assert holds(box, room), f"{other} is not in {cluster}"
            elif other != cluster and other not in around[cluster]:
                assert not overlap(box, room), f"{other} lies on {cluster}"


def check_labels(layout: GraphLayout):
    labels = [label_box(route) for route in layout.routes if route.edge.label]
    for label in labels:
        for box in layout.boxes.values():
            assert not overlap(label, box), f"a label lies on {box}"
    for one, other in combinations(labels, 2):
        assert not overlap(one, other), f"two labels lie on each other: {one}, {other}"


def check_routes(model: GraphModel, layout: GraphLayout):
    around = {node.id: above(node, model) for node in model.node_records}
    labels = [label_box(route) for route in layout.routes if route.label_at]
    for route in layout.routes:
        line = route.line(8)
        source, target = layout.boxes[route.edge.source], layout.boxes[route.edge.target]
        assert distance(source, line[0]) < TOUCH, f"{route.edge} begins away from its source"
        assert distance(target, line[-1]) < TOUCH, f"{route.edge} ends away from its target"
        mine = {*around[route.edge.source], *around[route.edge.target]}
        foreign = [*layout.boxes.values(), *(box for key, box in layout.clusters.items() if key not in mine)]
        foreign += [box for box in labels if box.id != str(route.edge)]
        for box in foreign:
            if box.id in (route.edge.source, route.edge.target):
                own = [point for point in line[1:-1] if distance(box, point) > TOUCH and inside(box, point)]
                assert not own or box.width == box.height, f"{route.edge} goes through its own node"
            else:
                hit = [point for point in line if inside(box, point)]
                assert not hit, f"{route.edge} goes through {box} at {hit[0]}"


def above(node: GraphNode, model: GraphModel):
    """The clusters that a node is in."""
    found = []
    known = {cluster.id: cluster for cluster in model.clusters}
    while node.inside is not None:
        found.append(node.inside)
        node = known[node.inside]
    return found


def label_box(route: Route):
    assert route.label_at, f"{route.edge} has no place for its label"
    (x, y), (width, height) = route.label_at, label_size(route.edge.label)
    return Box(str(route.edge), x - width / 2, y - height / 2, width, height)


def overlap(one: Box, other: Box):
    aside = min(one.x + one.width, other.x + other.width) - max(one.x, other.x)
    return aside > 0.01 and min(one.y + one.height, other.y + other.height) - max(one.y, other.y) > 0.01


def holds(outer: Box, inner: Box):
    right, low = outer.x + outer.width, outer.y + outer.height
    return (
        outer.x <= inner.x and inner.x + inner.width <= right and outer.y <= inner.y and inner.y + inner.height <= low
    )


def inside(box: Box, point: Point):
    x, y = point
    near_x = box.x + TOUCH < x < box.x + box.width - TOUCH
    return near_x and box.y + TOUCH < y < box.y + box.height - TOUCH


def distance(box: Box, point: Point):
    """From the border of a box; 0 for a point on the circle inside it, for joins."""
    x, y = point
    aside = max(box.x - x, 0, x - box.x - box.width)
    beyond = max(box.y - y, 0, y - box.y - box.height)
    if aside or beyond:
        return float(max(aside, beyond))
    depth = min(x - box.x, box.x + box.width - x, y - box.y, box.y + box.height - y)
    middle = box.middle
    round_ = abs(((x - middle[0]) ** 2 + (y - middle[1]) ** 2) ** 0.5 - box.width / 2)
    return min(depth, round_)


# -- crossings ------------------------------------------------------------------------------------------------


def crossings(layout: GraphLayout):
    """The pairs of edges that cross."""
    # Two numbers of steps, so that curves of one form do not meet just where their pieces end.
    lines = [(route.edge, route.line(9), route.line(11)) for route in layout.routes]
    return [(a, b) for (a, one, _), (b, _, other) in combinations(lines, 2) if lines_cross(one, other)]


def lines_cross(one, other):
    return any(cross(a, b, c, d) for a, b in pairwise(one) for c, d in pairwise(other))


def cross(a: Point, b: Point, c: Point, d: Point):
    def turn(p: Point, q: Point, r: Point):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return turn(a, b, c) * turn(a, b, d) < 0 and turn(c, d, a) * turn(c, d, b) < 0


def drawn(text, **kinds):
    """A model from "a b c, a d": each part a chain of nodes; `<name>=kind` for special nodes."""
    nodes = {}
    edges = {}
    for part in text.split(","):
        names = part.split()
        for name in names:
            kind = kinds.get(name) or {"S": "start", "E": "end", "?": "unknown"}.get(name, "node")
            nodes.setdefault(name, GraphNode(name, name * 3, kind))
        for pair in pairwise(names):
            edges.setdefault(pair, GraphEdge(*pair))
    for node in nodes.values():
        if node.kind == "join":
            edges = {k: e._replace(kind="join") if node.id in k else e for k, e in edges.items()}
    return GraphModel(text, tuple(nodes.values()), tuple(edges.values()))


def labelled(model: GraphModel, **labels):
    edges = [edge._replace(label=labels.get(edge.source + edge.target, "")) for edge in model.edge_records]
    return GraphModel(model.name, model.node_records, tuple(edges))


PLANAR = {
    "chain": drawn("S a b c d E"),
    "diamond": drawn("S a b d E, a c d"),
    "tree": drawn("S a, a b, a c, a d, b e, b f, d g, d h, d i"),
    "fan out and in": drawn("S a, a b z, a c z, a d z, a e z, a f z, z E"),
    "join": drawn("S a b j z E, a c j, a d j", j="join"),
    "tool agent": drawn("S agent tools agent E"),
    "tool agent with labels": labelled(drawn("S a t a E"), at="call a tool", aE="answer"),
    "loop": drawn("S a b c d E, d a"),
    "nested loops": drawn("S a b c d E, c b, d a"),
    "loops side by side": drawn("S a b c d E, b a, d c"),
    "to itself": drawn("S a a b b E"),
    "router with a loop back": labelled(drawn("S r x m E, r y m, r z m, m r"), rx="x", ry="y", rz="z", mr="again"),
    "supervisor": drawn("S s, s a s, s b s, s c s, s d s, s E"),
    "shortcut": drawn("S a b c d E, a d, b E"),
    "anywhere": drawn("S a ?, ? b E, ? c E"),
    "review": labelled(drawn("S d r p E, r f r, f d"), rp="ok", rf="minor"),
    "two parts": drawn("S a E, b c d, b d"),
    "unreached": drawn("S a b E, x b"),
    "ladder": drawn("S a b c E, S d e f E"),
    "butterfly": drawn("S a c E, S b c, c d E"),
}


@each_case("name", PLANAR)
def test_a_typical_graph_is_drawn_without_a_crossing(name):
    layout = arrange(PLANAR[name])
    check(PLANAR[name], layout)
    assert crossings(layout) == []


def test_crossings_are_counted_where_there_are_some():
    one = GraphEdge("a", "b"), GraphEdge("c", "d")
    ways = (((0, 0), (3, 3), (6, 6), (9, 9)), ((0, 9), (3, 6), (6, 3), (9, 0)))
    crossed = GraphLayout(9, 9, {}, {}, tuple(Route(edge, way) for edge, way in zip(one, ways, strict=True)))
    assert crossings(crossed) == [one]


# -- what a reader expects ------------------------------------------------------------------------------------


def test_a_chain_goes_straight_down():
    layout = arrange(PLANAR["chain"])
    middles = [box.middle for box in layout.boxes.values()]
    assert len({round(x, 3) for x, _ in middles}) == 1
    assert [y for _, y in middles] == sorted(y for _, y in middles)


def test_a_chain_with_loops_stays_straight():
    layout = arrange(PLANAR["nested loops"])
    assert len({round(layout.boxes[name].middle[0], 3) for name in "SabcdE"}) == 1


def test_edges_lead_down_and_loops_up():
    layout = arrange(PLANAR["loop"])
    up = [route.edge for route in layout.routes if route.points[0][1] > route.points[-1][1]]
    assert up == [GraphEdge("d", "a")]


def test_parallel_nodes_are_side_by_side_though_a_router_leads_back_to_some():
    model = drawn("S a j, S b j, S c j, j E", j="join")
    again = (GraphEdge("j", "a", "conditional"), GraphEdge("j", "b", "conditional"))
    layout = arrange(GraphModel("", model.node_records, (*model.edge_records, *again)))
    assert len({layout.boxes[name].middle[1] for name in "abc"}) == 1
    assert {route.edge for route in layout.routes if route.points[0][1] > route.points[-1][1]} == set(again)


def test_a_loop_goes_around_at_the_side():
    layout = arrange(PLANAR["loop"])
    way = next(route for route in layout.routes if route.edge == GraphEdge("d", "a"))
    right = max(box.x + box.width for box in layout.boxes.values())
    assert max(x for x, _ in way.line()) > right or min(x for x, _ in way.line()) < min(
        b.x for b in layout.boxes.values()
    )


def test_the_main_way_is_straight_and_what_leaves_it_is_not():
    boxes = arrange(PLANAR["shortcut"]).boxes
    assert len({round(boxes[name].middle[0], 3) for name in "SabcdE"}) == 1


def test_parallel_edges_do_not_overlap():
    edges = [GraphEdge("a", "b"), GraphEdge("a", "b", "conditional"), GraphEdge("a", "b", "send"), GraphEdge("b", "a", "goto")]
    layout = arrange(GraphModel("", (GraphNode("a", "a"), GraphNode("b", "b")), tuple(edges)))
    for one, other in combinations(layout.routes, 2):
        assert not lines_cross(one.line(9), other.line(11))
        assert abs(one.points[0][0] - other.points[0][0]) > 5 or abs(one.points[0][1] - other.points[0][1]) > 5


def test_an_error_handler_is_placed_next_to_its_node():
    nodes = (GraphNode("S", "START", "start"), GraphNode("a", "a"), GraphNode("h", "recover", handler=True), GraphNode("E", "END", "end"))
    layout = arrange(
        GraphModel("", nodes, (GraphEdge("S", "a"), GraphEdge("a", "E"), GraphEdge("a", "h", "error"), GraphEdge("h", "E", "goto")))
    )
    assert layout.boxes["a"].middle[1] == layout.boxes["h"].middle[1]
    assert layout.boxes["h"].x > layout.boxes["a"].x
    assert crossings(layout) == []


def test_the_error_handler_of_a_nested_graph_is_placed_next_to_its_box():
    nodes = (
        GraphNode("S", "START", "start"), GraphNode("c:S", "START", "start", "c"), GraphNode("c:a", "a", inside="c"),
        GraphNode("c:E", "END", "end", "c"), GraphNode("h", "rescue", handler=True), GraphNode("o", "other"), GraphNode("E", "END", "end"),
    )  # fmt: skip
    edges = (
        GraphEdge("S", "c:S"), GraphEdge("c:S", "c:a"), GraphEdge("c:a", "c:E"), GraphEdge("c:E", "E"), GraphEdge("c", "h", "error"),
        GraphEdge("h", "o", "goto"), GraphEdge("o", "E"),
    )  # fmt: skip
    layout = arrange(GraphModel("", nodes, edges, (GraphNode("c", "inner", "cluster"),)))
    box, handler = layout.clusters["c"], layout.boxes["h"]
    way = next(route for route in layout.routes if route.edge.kind == "error")
    assert way.points[0][0] == box.x + box.width and way.points[-1][0] == handler.x == box.x + box.width + ASIDE
    assert box.y < handler.middle[1] < box.y + box.height


def test_a_handler_of_several_nodes_is_placed_below_them():
    model = drawn("S a b E, a h, b h")
    edges = tuple(e._replace(kind="error") if e.target == "h" else e for e in model.edge_records)
    layout = arrange(GraphModel("", model.node_records, edges))
    assert layout.boxes["h"].y > layout.boxes["a"].y
    check(
        model,
        layout._replace(routes=tuple(Route(e, r.points) for e, r in zip(model.edge_records, layout.routes, strict=True))),
    )


def test_unconnected_nodes_are_placed_side_by_side():
    layout = arrange(PLANAR["two parts"])
    assert layout.boxes["b"].y == layout.boxes["S"].y
    assert layout.boxes["b"].x > layout.boxes["a"].x


def test_many_parts_begin_a_new_line():
    layout = arrange(GraphModel("", tuple(GraphNode(str(n), f"node {n}") for n in range(100)), ()))
    assert layout.width < 1300
    assert len({box.y for box in layout.boxes.values()}) > 3


def test_the_same_shape_gives_the_same_layout():
    model = big(60, 5)
    assert arrange(model) == arrange(model)


def test_an_empty_shape_has_an_empty_layout():
    layout = arrange(GraphModel("", (), ()))
    assert layout.boxes == {} and layout.routes == ()


def test_an_edge_without_its_node_is_refused():
    with pytest.raises(ValueError, match="the edge 'a' -> 'b' needs a node 'b'"):
        arrange(GraphModel("", (GraphNode("a", "a"),), (GraphEdge("a", "b"),)))


# -- size -----------------------------------------------------------------------------------------------------


def big(count, reach):
    """A graph that goes on from one or two of the last nodes each time."""
    nodes = [GraphNode("S", "START", "start"), *(GraphNode(str(n), f"node {n}") for n in range(count)), GraphNode("E", "END", "end")]
    edges = [GraphEdge("S", "0")]
    for n in range(1, count):
        edges.append(GraphEdge(str(max(0, n - 1 - n * 7 % reach)), str(n), "conditional", "yes" if n % 5 == 0 else ""))
        if n % 3 == 0:
            edges.append(GraphEdge(str(max(0, n - 1 - n * 11 % reach)), str(n), "goto"))
        if n % 12 == 0:
            edges.append(GraphEdge(str(n), str(n - 12)))
    sources = {edge.source for edge in edges}
    edges += [GraphEdge(node.id, "E") for node in nodes if node.id not in sources and node.kind == "node"]
    return GraphModel("big", tuple(nodes), tuple(edges))


def lasts(work):
    """Seconds of a machine that does a million plain turns in 0.05 s, however busy this one is."""
    plain = min(spent(lambda: sum(n * n for n in range(1_000_000))) for _ in range(3))
    return 0.05 * spent(work) / plain


def spent(work):
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.trial
@pytest.mark.parametrize("reach", [1, 20, 500])
def test_500_nodes_are_laid_out_within_two_seconds(reach):
    model = big(500, reach)
    assert lasts(lambda: arrange(model)) < 2
    assert len(arrange(model).routes) == len(model.edge_records)


def tangled(count, more):
    """A chain whose nodes also lead anywhere."""
    chance = random.Random(1)
    nodes = [GraphNode("S", "START", "start"), *(GraphNode(str(n), f"node {n}") for n in range(count))]
    edges = [GraphEdge("S", "0"), *(GraphEdge(str(n - 1), str(n)) for n in range(1, count))]
    edges += [GraphEdge(str(chance.randrange(count)), str(chance.randrange(count)), "conditional") for _ in range(more)]
    return GraphModel("tangled", tuple(nodes), tuple(edges))


@pytest.mark.trial
def test_500_nodes_with_200_edges_to_anywhere_are_laid_out_within_two_seconds():
    model = tangled(500, 200)
    assert lasts(lambda: arrange(model)) < 2
    assert len(arrange(model).routes) == len(model.edge_records)
