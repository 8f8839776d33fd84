"""Nodes are replaced for a test: in a copy of the graph, or in the graph itself for a while."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from kit.graphs import EMPTY, Log, chain_of, graph_of

from stategraph import (
    END,
    START,
    CachePolicy,
    Command,
    InMemoryCache,
    NodeError,
    RetryPolicy,
    Runtime,
    StateGraph,
)
from stategraph.testing import replace, replaced


def forbidden(state):
    raise AssertionError("the real node has run")


def end(state):
    return {"log": ["end"]}


def build(**options):
    graph = StateGraph(Log).add_node("model", forbidden, **options).add_node(end)
    return graph.add_edge(START, "model").add_edge("model", "end").compile(cache=InMemoryCache())


APP = build()


def test_a_node_returns_a_value_instead(drive):
    assert drive.invoke(replace(APP, model={"log": ["fake"]}), {})["log"] == ["fake", "end"]


def test_a_function_is_called_as_the_node_was(drive):
    def fake(state, runtime: Runtime[str]):
        return {"log": [f"{len(state['log'])} {runtime.context}"]}

    assert drive.invoke(replace(APP, model=fake), {"log": ["x"]}, context="c")["log"] == ["x", "1 c", "end"]


def test_an_async_function_may_replace_a_sync_one():
    import asyncio

    async def fake(state):
        return {"log": ["async"]}

    assert asyncio.run(replace(APP, model=fake).ainvoke({}))["log"] == ["async", "end"]


def test_a_mock_remembers_its_calls(drive):
    mock = Mock(side_effect=[{"log": ["one"]}, {"log": ["two"]}])
    app = replace(APP, model=mock)
    assert [drive.invoke(app, {})["log"][0] for _ in range(2)] == ["one", "two"]
    assert mock.call_count == 2


def test_an_exception_is_raised_and_meets_the_policies_of_the_node(drive):
    def handle(state, error: NodeError):
        return {"log": [f"handled {error.error}"]}

    fake = Mock(side_effect=[ConnectionError("down"), ConnectionError("still down")])
    policy = RetryPolicy(max_attempts=2, initial_interval=0, jitter=False)
    app = build(retry_policy=policy, error_handler=handle)
    assert "handled still down" in drive.invoke(replace(app, model=fake), {})["log"]
    assert fake.call_count == 2
    with pytest.raises(TimeoutError, match="slow"):
        drive.invoke(replace(APP, model=TimeoutError("slow")), {})


def test_an_error_handler_may_be_kept_with_other_fakes(drive):
    def handle(state, error: NodeError) -> Command:
        return Command(update={"log": ["handled"]}, goto="end")

    app = replace(build(error_handler=handle), {"model": ValueError("no"), "end": {"log": ["fake end"]}})
    assert drive.invoke(app, {})["log"] == ["handled", "fake end"]


def test_a_router_behind_a_fake_is_asked(drive):
    graph = graph_of(Log, "S>model", model=forbidden, end=end)
    app = graph.add_conditional_edges("model", lambda state: END if "stop" in state["log"] else "end", ["end", END])
    assert drive.invoke(replace(app.compile(), model={"log": ["stop"]}), {})["log"] == ["stop"]


def test_a_fake_is_never_answered_from_the_cache_of_the_node(drive):
    app = replace(build(cache_policy=CachePolicy()), model=Mock(side_effect=[{"log": ["1"]}, {"log": ["2"]}]))
    assert [drive.invoke(app, {})["log"][0] for _ in range(2)] == ["1", "2"]


def test_a_node_of_a_nested_graph_is_replaced_by_its_path(drive):
    middle = chain_of(Log, inner=APP).compile()
    outer = chain_of(Log, middle=middle).compile()
    app = replace(outer, {"middle:inner:model": {"log": ["deep"]}, "middle:inner:end": {"log": ["down"]}})
    assert drive.invoke(app, {})["log"] == ["deep", "down"]
    assert [node.id for node in app.get_graph(xray=True).nodes.values()] == [
        node.id for node in outer.get_graph(xray=True).nodes.values()
    ]


def test_a_whole_nested_graph_is_replaced(drive):
    outer = chain_of(Log, inner=APP).compile()
    assert drive.invoke(replace(outer, inner={"log": ["flat"]}), {})["log"] == ["flat"]


def test_the_graph_itself_stays_as_it_is():
    program = APP.program
    replace(APP, model={"log": []})
    assert APP.program is program


def test_the_graph_itself_is_changed_for_a_while(drive):
    program = APP.program
    with pytest.raises(RuntimeError, match="stop"), replaced(APP, model={"log": ["fake"]}) as app:
        assert app is APP
        assert drive.invoke(APP, {})["log"] == ["fake", "end"]
        raise RuntimeError("stop")
    assert APP.program is program


def test_debug_watches_fakes(drive):
    from stategraph import InPlaceEditError

    def careless(state):
        state["log"].append("oops")
        return {}

    graph = chain_of(Log, model=forbidden)
    with pytest.raises(InPlaceEditError):
        drive.invoke(replace(graph.compile(debug=True), model=careless), EMPTY)


def test_mistakes_are_reported():
    with pytest.raises(ValueError, match="has no node 'modle'; did you mean 'model'"):
        replace(APP, modle={})
    with pytest.raises(ValueError, match="holds no graph"):
        replace(APP, {"model:inner": {}})
