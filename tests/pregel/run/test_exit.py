"""durability="exit": one save at the end, of the run and of the graphs inside it; and streams show what was stored."""

import pytest
from kit.drive import each_durability
from kit.graphs import CONFIG, EMPTY, thread_config
from kit.pausing_graphs import Ran, State, asked, asks, fails, graph, says

from stategraph import START, InMemorySaver, RetryPolicy, Send, StateGraph

EXIT = {"durability": "exit"}


def inner(ran=None, **options):
    return graph("S>i1>i2", i1=says("i1", ran), i2=says("i2", ran), **options)


def namespaces(app):
    """The names of the graphs that have rows in the thread, one for each row."""
    rows = app.checkpointer.list(CONFIG)
    return sorted("|".join(level.split(":")[0] for level in _ns(row.config).split("|")) for row in rows)


def _ns(config):
    return config["configurable"].get("checkpoint_ns", "")


def as_node():
    return graph("S>sub", sub=inner(checkpointer=None))


def two_levels():
    middle = graph("S>inner", inner=inner(checkpointer=None), checkpointer=None)
    return graph("S>sub", sub=middle)


def called(state):
    return {"log": inner(checkpointer=None).invoke({})["log"]}


def in_functions():
    def sends(_):
        return [Send("call", {}) for _ in range(3)]

    graph = StateGraph(State).add_node("call", called).add_conditional_edges(START, sends, ["call"])
    return graph.compile(InMemorySaver())


@pytest.mark.parametrize("build", [as_node, two_levels, in_functions])
def test_finished_nested_graphs_leave_no_checkpoints(drive, build):
    app = build()
    drive.invoke(app, EMPTY, CONFIG, **EXIT)
    assert namespaces(app) == [""]


@each_durability
@pytest.mark.parametrize("build", [as_node, two_levels, in_functions])
@pytest.mark.parametrize("mode", ["checkpoints", "debug"])
def test_streams_show_just_what_is_stored(drive, durability, build, mode):
    app = build()
    chunks = drive.stream(app, EMPTY, CONFIG, stream_mode=mode, subgraphs=True, durability=durability)
    if mode == "debug":
        chunks = [(ns, chunk["payload"]) for ns, chunk in chunks if chunk["type"] == "checkpoint"]
    shown = [chunk["config"]["configurable"] for _, chunk in chunks]
    stored = [row.config["configurable"] for row in app.checkpointer.list(CONFIG)]
    assert sorted(c["checkpoint_id"] for c in shown) == sorted(c["checkpoint_id"] for c in stored)
    last = [chunk for ns, chunk in chunks if not ns][-1]
    assert last["values"] == drive.get_state(app, CONFIG).values and last["next"] == []


def test_a_stream_that_pauses_shows_the_checkpoint_that_is_stored(drive):
    thread = drive.on(graph("S>a>b", b=asks("b")))
    [chunk] = thread.stream(EMPTY, stream_mode="checkpoints", **EXIT)
    assert (chunk["next"], chunk["values"]) == (["b"], {"log": ["a"]})
    assert chunk["config"] == thread.state.config


def test_a_stream_that_fails_shows_the_checkpoint_that_is_stored(drive):
    thread, shown = drive.on(graph("S>a>b", b=fails("b", 1))), []
    with pytest.raises(ValueError, match="b failed"):
        thread.stream(EMPTY, stream_mode="checkpoints", each=shown.append, **EXIT)
    assert [(chunk["config"], chunk["next"]) for chunk in shown] == [(thread.state.config, ["b"])]


def test_a_nested_graph_that_paused_is_stored_and_resumes(drive):
    ran = Ran()
    sub = graph("S>s>i", s=says("s", ran), i=asks("i", ran), checkpointer=None)
    thread = drive.on(graph("S>sub", sub=sub))
    assert asked(thread.invoke(EMPTY, **EXIT)) == ["i?"]
    assert namespaces(thread.app) == ["", "sub"]
    thread.resume("x", **EXIT)
    assert sorted(ran) == ["i", "i", "s"]


def test_a_task_that_paused_finds_the_graphs_it_had_run_to_their_end(drive):
    ran = Ran()
    first, second = inner(ran, checkpointer=None), graph("S>q", q=asks("q"), checkpointer=None)

    def node(state):
        return {"log": [*first.invoke(EMPTY)["log"], *second.invoke(EMPTY)["log"]]}

    thread = drive.on(graph("S>call", call=node))
    assert asked(thread.invoke(EMPTY, **EXIT)) == ["q?"]
    assert thread.resume(1, **EXIT)["log"] == ["i1", "i2", ("q", 1)]
    assert ran.take() == ["i1", "i2"]


def fails_after(child):
    """A node that runs a graph to its end, and fails once after that."""
    fail = [True]

    def node(state):
        log = child.invoke(EMPTY)["log"]
        if fail:
            fail.pop()
            raise ValueError("later")
        return {"log": log}

    return node


def test_a_task_that_failed_finds_the_graphs_it_had_run_to_their_end(drive):
    ran = Ran()
    thread = drive.on(graph("S>call", call=fails_after(inner(ran, checkpointer=None))))
    with pytest.raises(ValueError, match="later"):
        thread.invoke(EMPTY, **EXIT)
    assert thread.invoke(None, **EXIT)["log"] == ["i1", "i2"]
    assert ran.take() == ["i1", "i2"]


def test_a_retried_task_finds_the_graphs_it_had_run_to_their_end(drive):
    ran = Ran()
    node = fails_after(inner(ran, checkpointer=None))
    policy = RetryPolicy(initial_interval=0, jitter=False, retry_on=ValueError)
    app = StateGraph(State).add_node("call", node, retry_policy=policy).add_edge(START, "call")
    assert drive.invoke(app.compile(InMemorySaver()), EMPTY, CONFIG, **EXIT)["log"] == ["i1", "i2"]
    assert ran.take() == ["i1", "i2"]


def test_a_history_inside_is_kept_for_the_next_call(drive):
    app = graph("S>sub", sub=inner(checkpointer=True))
    drive.invoke(app, EMPTY, CONFIG, **EXIT)
    assert namespaces(app) == ["", "sub"]
    drive.invoke(app, EMPTY, CONFIG, **EXIT)
    assert namespaces(app) == ["", "", "sub", "sub"]
    child = thread_config(checkpoint_ns="sub")
    assert [row.parent_config is None for row in drive.history(app, child)] == [False, True]
