"""The input and START are one step, or two where they are stored or streamed: a program sees no difference."""

import pytest
from kit.drive import each_case
from kit.graphs import Log, chain_of, graph_of, thread_config

from stategraph import END, START, InMemorySaver, StateGraph

WAYS = ["unseen", "stored", "streamed", "with a router"]


def note(name):
    """A node that notes its name, its superstep, and what it was given."""

    def node(state, config):
        return {"log": [(name, config["metadata"]["stategraph_step"], len(state["log"]))]}

    return node


def joined():
    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, note(name))
    graph.add_node("late", note("late"), defer=True)
    graph.add_edge(START, "a").add_edge(START, "b").add_edge(["a", "b"], "c").add_edge(START, "late")
    return graph


def only_deferred():
    graph = StateGraph(Log).add_node("late", note("late"), defer=True)
    return graph.add_edge(START, "late")


def straight_to_the_end():
    return graph_of(Log, "S>E a>E", a=note("a"))


def run(drive, graph, way):
    if way == "with a router":
        graph.add_conditional_edges(START, lambda state: END, [END])
    app = graph.compile(InMemorySaver() if way == "stored" else None)
    config = thread_config("1") if way == "stored" else None
    if way == "streamed":
        return drive.stream(app, {"log": ["given"]}, stream_mode="values")[-1]
    return drive.invoke(app, {"log": ["given"]}, config)


@pytest.mark.filterwarnings("ignore:node 'a' cannot be reached")
@pytest.mark.parametrize("make", [joined, only_deferred, straight_to_the_end])
def test_nodes_see_the_same_input_in_the_same_superstep(drive, make):
    first, *others = (run(drive, make(), way) for way in WAYS)
    assert first["log"][0] == "given" and others == [first] * 3


@each_case("way", WAYS)
def test_an_input_that_a_reducer_refuses_names_step_and_start(drive, way):
    graph = chain_of(Log, a=note("a"))
    if way == "with a router":
        graph.add_conditional_edges(START, lambda state: END, [END])
    app = graph.compile(InMemorySaver() if way == "stored" else None)
    config = thread_config("1") if way == "stored" else None
    options = {"stream_mode": ["values", "updates"]} if way == "streamed" else {}
    with pytest.raises(TypeError) as caught:
        drive.invoke(app, {"log": 5}, config, **options)
    if way != "with a router":  # it sees the writes before they are applied
        assert "At step 0, key 'log', written by __start__." in " ".join(caught.value.__notes__)
