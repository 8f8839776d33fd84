"""What a drawing contains, on random graphs and on each kind of part: exactly what was declared, and no user code is
run.
"""

from __future__ import annotations

import asyncio
import operator
import pickle
from collections.abc import Sequence
from typing import Annotated, Literal, NoReturn, TypedDict

import networkx
import pytest
from example_graphs import DRAWN, State, graph, inner, joined, nested, node, router
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.drive import each_case
from kit.graph_specs import Described, build
from kit.graphs import chain_of
from kit.random_graphs import graphs

import stategraph
from stategraph import (
    END,
    START,
    Command,
    InMemorySaver,
    Pregel,
    Send,
    StateGraph,
    interrupt,
)
from stategraph.graph import call_model
from stategraph.prebuilt import create_agent
from stategraph.pregel.program.flow import Join
from stategraph.testing import ScriptedModel
from stategraph.visualize.extract import extract
from stategraph.visualize.model import GraphEdge, GraphModel

Edges = set[tuple[str, str, str, str]]


def refuse(name, given) -> NoReturn:
    raise AssertionError("a node was called")


# -- the whole ------------------------------------------------------------------------------------------------


def declared(described: Described, levels, inside=""):
    """The ids and edges that a drawing of the described graph must have; thought out anew, from the description alone."""
    names = [node["name"] for node in described["nodes"]]
    edges = {(start, end, "plain", "") for start, end in described["edges"]}
    for starts, end in described["joins"]:
        gate = f"join:{'+'.join(starts)}:{end}"
        edges |= {(start, gate, "join", "") for start in starts} | {(gate, end, "join", "")}
    guesses = {}
    for number, asked in enumerate(described["routers"]):
        if asked["mapped"]:
            edges |= {(asked["source"], end, "conditional", f"to {end}") for end in (*names, END)}
        else:
            guesses.setdefault(asked["source"], []).append(f"route{number}")
    for source, labels in guesses.items():
        edges.add((source, f"{source}|?", "conditional", " / ".join(labels)))
    edges |= {(name, END, "plain", "") for name in names if not any(source == name for source, *_ in edges)}
    led_to = {end for _, end, *_ in edges}
    lost = [name for name in (*names, END) if name not in led_to]
    edges |= {(f"{source}|?", name, "conditional", "perhaps") for source in guesses for name in lost}
    subs = {node["name"]: node["sub"] for node in described["nodes"] if node["sub"] is not None} if levels else {}
    ids = {START, *names, *(END for _, end, *_ in edges if end == END), *(end for ends in edges for end in ends[:2])}
    ids |= {END} if inside else set()
    prefix = f"{inside}:" if inside else ""

    def begin(name):
        return f"{prefix}{name}:{START}" if name in subs else prefix + name

    def finish(name):
        return f"{prefix}{name}:{END}" if name in subs else prefix + name

    found = {(finish(source), begin(end), kind, label) for source, end, kind, label in edges}
    within = {prefix + name for name in ids if name not in subs}
    for name, sub in subs.items():
        more_ids, more_edges = declared(sub, levels - 1, prefix + name)
        within |= more_ids
        found |= more_edges
    return within, found


@pytest.mark.trial
@given(graphs(), st.sampled_from([False, True, 0, 1, 2]))
@settings(max_examples=2 * settings.default.max_examples)
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_a_drawing_shows_what_was_declared_and_nothing_else(described, xray):
    drawing = build(described, stategraph, probe=refuse).get_graph(xray=xray)
    ids, edges = declared(described, -1 if xray is True else xray)
    assert set(drawing.nodes) == ids and len(drawing.model.node_records) == len(ids)
    assert {tuple(edge) for edge in drawing.edges} == edges and len(drawing.edges) == len(edges)
    assert set(drawing.clusters) == {holder for name in ids for holder in holders(name)}
    assert {node.inside for node in drawing.model.node_records} <= {None, *drawing.clusters}


def holders(name):
    if name.startswith("join:"):
        return []
    above = name.split(":join:")[0] + ":join" if ":join:" in name else name
    parts = above.split(":")[:-1]
    return [":".join(parts[: n + 1]) for n in range(len(parts))]


@pytest.mark.trial
@given(graphs())
@pytest.mark.filterwarnings("ignore::stategraph.graph.GraphWarning")
def test_the_networkx_graph_is_the_same(described):
    drawing = build(described, stategraph, probe=refuse).get_graph(xray=True)
    assert list(drawing.nx.nodes) == list(drawing.nodes)
    triples = [(source, end, kind) for source, end, kind in drawing.nx.edges(keys=True)]
    assert sorted(triples) == sorted(edge[:3] for edge in drawing.edges)
    for name, fields in drawing.nx.nodes(data=True):
        assert {"id": name, **fields} == drawing.nodes[name]._asdict()


def test_the_model_is_a_networkx_graph():
    """Its algorithms run on it; it is frozen, but copies, pickled ones and views of parts work."""
    app = joined(graph("a", "b", "c"), ("a", "b"), ("b", "c"), ("c", "a")).compile()
    found = app.get_graph().model
    assert networkx.descendants(found, "b") == {"a", "c"}
    assert [sorted(part) for part in networkx.strongly_connected_components(found) if len(part) > 1] == [["a", "b", "c"]]
    assert pickle.loads(pickle.dumps(replaced(found))) == replaced(found) == found == found.copy()
    assert [node.id for node in found.subgraph("ab").node_records] == ["a", "b"]
    assert found.subgraph("ab").edge_records == (GraphEdge("a", "b"),)
    with pytest.raises(networkx.NetworkXError, match="Frozen"):
        found.remove_node("a")
    app.get_graph().nx.remove_node("a")
    assert found == app.get_graph().model != joined(graph("a"), ("a", "a")).compile().get_graph().model


def replaced(found: GraphModel):
    """The same without the user's functions, which cannot be pickled."""
    return GraphModel(found.name, [node._replace(data=None) for node in found.node_records], found.edge_records, found.clusters)


@each_case("name", DRAWN)
@pytest.mark.filterwarnings("ignore")
def test_drawing_twice_gives_the_same(name):
    assert DRAWN[name]().model == DRAWN[name]().model


# -- parts ----------------------------------------------------------------------------------------------------


def model(built: StateGraph | Pregel, xray=False, **options):
    return extract(built.compile(**options) if isinstance(built, StateGraph) else built, xray)


def edges(built: StateGraph | Pregel, xray=False):
    return list(model(built, xray).edge_records)


def kinds(built):
    """Of the edges, by their ends."""
    return {f"{edge.source} {edge.target}": edge.kind for edge in edges(built)}


def test_a_router_that_returns_nothing_but_sends():
    for hint in (Send, list[Send], tuple[Send, ...], Sequence[Send]):
        assert kinds(graph("a", "b").add_conditional_edges("a", router("r", hint), ["b"]))["a b"] == "send", hint


def test_a_router_that_returns_names_and_sends():
    built = graph("a", "b", "c")
    built.add_conditional_edges("a", router("r", list[Send] | Literal["c", "__end__"]), ["b", "c", END])
    assert kinds(built) == {
        "__start__ a": "plain", "a b": "send", "a c": "conditional", "a __end__": "conditional", "b __end__": "plain",
        "c __end__": "plain",
    }  # fmt: skip


def test_undeclared_sends_may_go_anywhere():
    for hint in (Literal["b"] | Send, Literal["b"] | list[Send]):
        drawn = model(graph("a", "b", "c").add_conditional_edges("a", router("r", hint)))
        assert [edge for edge in drawn.edge_records if edge.source != "__start__" and edge.target != END] == [
            GraphEdge("a", "b", "conditional"), GraphEdge("a", "a|?", "send", "r"), GraphEdge("a|?", "c", "send", "perhaps"),
        ], hint  # fmt: skip
        assert all(node.reached for node in drawn.node_records)


def test_where_a_router_may_go_that_does_not_say_so_is_a_guess():
    drawn = model(graph("a", "b").add_conditional_edges("a", router("r")))
    assert [node.label for node in drawn.node_records if node.kind == "unknown"] == ["any node"]
    assert [edge for edge in drawn.edge_records if edge.source == "a|?"] == [GraphEdge("a|?", "b", "conditional", "perhaps")]
    drawn = model(graph("a", "b").add_conditional_edges("a", router("r", list[Send])))
    assert [edge for edge in drawn.edge_records if edge.source == "a|?"] == [GraphEdge("a|?", "b", "send", "perhaps")]


def test_a_join_into_the_end():
    built = joined(graph("a", "b"), ("a", "b")).add_edge(["a", "b"], END)
    assert edges(built)[1:] == [
        GraphEdge("a", "b"), GraphEdge("a", "join:a+b:__end__", "join"), GraphEdge("b", "join:a+b:__end__", "join"),
        GraphEdge("join:a+b:__end__", END, "join"),
    ]  # fmt: skip


def test_plain_edges_are_in_the_order_their_nodes_were_added():
    names = [f"n{number}" for number in range(12)]
    built = joined(graph("a", *names), *(("a", name) for name in reversed(names)))
    assert [edge.target for edge in edges(built) if edge.source == "a"] == names


def test_labels_of_edges_between_the_same_nodes_are_put_together():
    built = graph("a", "b").add_conditional_edges("a", router("one"), {"x": "b", "y": "b"})
    built.add_conditional_edges("a", router("two"), {"y": "b", "z": "b"})
    assert GraphEdge("a", "b", "conditional", "x / y / z") in edges(built)


def test_an_edge_of_each_kind_may_lead_between_two_nodes():
    built = graph("b").add_node("a", node, destinations=["b"]).add_edge("b", "a").add_edge("a", "b")
    built.add_conditional_edges("a", router("r"), ["b"])
    assert [edge.kind for edge in edges(built) if edge[:2] == ("a", "b")] == ["plain", "conditional", "goto"]


def test_start_and_end_have_no_breakpoint():
    nodes = model(graph("a"), interrupt_before="*", interrupt_after="*").node_records
    assert [node.id for node in nodes if node.before or node.after] == ["a"]


def test_an_error_handler_is_drawn_next_to_its_node():
    def mend(state: State) -> NoReturn:
        raise AssertionError("a handler was called")

    drawn = model(StateGraph(State).add_node("a", node, error_handler=mend).add_edge(START, "a"))
    (handler,) = [node for node in drawn.node_records if node.handler]
    assert (handler.label, handler.reached) == ("mend", True)
    assert [edge for edge in drawn.edge_records if edge.target == handler.id] == [GraphEdge("a", handler.id, "error")]


def test_arrows_lead_to_where_an_error_handler_says_that_its_command_goes():
    rescue = router("rescue", Command[Literal["other"]])
    builder = StateGraph(State).add_node("a", node, error_handler=rescue).add_node("other", node).add_edge(START, "a")
    drawn = model(builder)  # without a warning that nothing leads to other
    assert GraphEdge("__error_handler__a", "other", "goto") in drawn.edge_records
    assert all(node.reached for node in drawn.node_records)
    builder = graph("a", "other")
    builder.set_node_defaults(error_handler=rescue)
    assert GraphEdge("__default_error_handler__", "other", "goto") in model(builder).edge_records


def test_an_error_handler_that_goes_to_no_node_is_refused():
    builder = StateGraph(State).add_node("a", node, error_handler=router("rescue", Command[Literal["ather"]]))
    with pytest.raises(stategraph.InvalidGraphError, match="declares the unknown destination 'ather'"):
        builder.add_edge(START, "a").compile()


def test_no_arrow_leads_from_an_error_handler_that_has_no_edges():
    built = joined(StateGraph(State).add_node("a", node, error_handler=router("mend")).add_node("b", node), (START, "a"), ("a", "b"))
    assert [edge[:2] for edge in edges(built) if edge.kind == "plain"] == [(START, "a"), ("a", "b"), ("b", END)]


def test_what_is_not_reached_is_marked():
    with pytest.warns(stategraph.graph.GraphWarning):
        drawn = model(joined(graph("a", "b", "c"), ("b", "c"), ("c", "b")))
    assert [node.id for node in drawn.node_records if not node.reached] == ["b", "c"]


class Talk(stategraph.MessagesState):
    seen: Annotated[list[str], operator.add]


def ask_person(state: State):
    return interrupt("ok?")


def ask_model(state: State):
    return call_model(ScriptedModel([]), [])


def test_what_a_node_is_for_is_known_by_its_code_its_object_or_its_metadata():
    agent = create_agent(ScriptedModel([]), [ask_something], approve=True, state_schema=Talk)
    built = (
        StateGraph(State)
        .add_node(ask_person)
        .add_node(ask_model)
        .add_node("said", node, metadata={"kind": "tool", "team": "blue"})
        .add_node("other", node, metadata={"kind": "etl"})
        .add_node("agent", agent)
    )
    for name in built.nodes:
        built.add_edge(START, name)
    found = {each.id: each.roles for each in model(built, xray=True).node_records if each.kind == "node"}
    assert found == {
        "ask_person": ("person",), "ask_model": ("model",), "said": ("tool",), "other": (),
        "agent:model": ("model",), "agent:tools": ("tool", "person"),
    }  # fmt: skip
    drawn = built.compile().get_graph().draw_mermaid()
    assert "said<br/><small>calls tools</small><br/><small>team = blue</small>" in drawn
    assert "other<br/><small>kind = etl</small>" in drawn


def ask_something(question):
    """Ask."""
    return question


def test_metadata_goes_along():
    (drawn,) = [node for node in model(graph("a", metadata={"owner": "Ada"})).node_records if node.id == "a"]
    assert drawn.metadata == {"owner": "Ada"}


def test_the_shape_does_not_change_with_the_builder():
    built = graph("a", "b")
    with pytest.warns(stategraph.graph.GraphWarning):
        app = built.compile()
    before = extract(app)
    built.edges.add(("a", "b"))
    built.joins.append(Join(("a",), "b"))
    assert extract(app) == before


# -- nested graphs --------------------------------------------------------------------------------------------


def test_a_graph_that_a_function_runs_is_known_once_it_has_run():
    class Numbers(TypedDict):
        seen: Annotated[list[int], operator.add]

    child = chain_of(Numbers, add=lambda state: {"seen": [1]}).compile(name="child")
    app = chain_of(Numbers, holder=lambda state: child.invoke({"seen": []})).compile()
    assert model(app, xray=True).clusters == ()
    app.invoke({"seen": []})
    assert [c.id for c in model(app, xray=True).clusters] == ["holder"]
    assert GraphEdge(START, "holder:__start__") in edges(app, xray=True)


def test_a_graph_that_runs_itself_is_opened_once():
    class Depth(TypedDict):
        n: int

    def again(state: Depth):
        return {"n": app.invoke({"n": state["n"] - 1})["n"]} if state["n"] else {"n": 0}

    app = chain_of(Depth, again=again).compile()
    app.invoke({"n": 2})
    assert len(model(app, xray=True).node_records) <= 5


def test_a_wrong_number_of_levels_is_refused():
    for wrong in (-1, None, "all", 1.5):
        with pytest.raises(ValueError, match=f"xray must be False, True or a number of levels, got {wrong!r}"):
            model(nested(), xray=wrong)  # type: ignore[arg-type]


# -- other graphs ---------------------------------------------------------------------------------------------


def test_a_functional_graph_is_its_one_function():
    @stategraph.entrypoint(checkpointer=InMemorySaver())
    def work(x: int) -> NoReturn:
        raise AssertionError("an entrypoint was called")

    assert edges(work) == [GraphEdge(START, "work"), GraphEdge("work", END)]


def test_get_graph_is_there_for_coroutines():
    app = graph("a").compile()
    assert asyncio.run(app.aget_graph(xray=True)).model == app.get_graph(xray=True).model


def test_a_copy_of_a_graph_is_drawn_identically():
    app = joined(graph("a").add_node("sub", inner()), ("a", "sub")).compile()
    assert app.with_config({"tags": ["x"]}).get_graph(xray=True).model == app.get_graph(xray=True).model


def test_bidi_marks_are_escaped_in_every_format():
    evil = "pay\u202eecila\u2066"
    built = joined(graph(evil, "b", metadata={"who": evil}), (evil, "b"))
    built.add_conditional_edges("b", router(evil), {evil: evil, "end": END})
    drawing = built.compile(name=evil).get_graph()
    forms = (drawing.draw_svg(), drawing.draw_html(), drawing.draw_mermaid(), drawing.draw_ascii(), drawing.draw_dot())
    for form in forms:
        assert not {"\u202e", "\u2066"} & set(form)
        assert "202eecila" in form


def test_the_edge_to_the_error_handler_of_a_graph_shown_inside_leaves_from_its_box():
    builder = graph("b").add_node("sub", inner(), error_handler=router("rescue", Command[Literal["b"]]))
    builder.set_node_defaults(error_handler=router("other")).add_edge("b", "sub")
    drawing = builder.compile().get_graph(xray=True)
    assert GraphEdge("sub", "__error_handler__sub", "error") in drawing.edges
    assert all(node.reached for node in drawing.model.node_records)
    assert drawing.nx.nodes["sub"]["kind"] == "cluster"
    for form in (drawing.draw_mermaid(), drawing.draw_ascii(), drawing.draw_svg(), drawing.draw_html()):
        assert "rescue" in form
    assert "ltail=cluster_sub" in drawing.draw_dot() or "lhead=cluster_sub" in drawing.draw_dot()
