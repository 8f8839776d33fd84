"""What a graph with schedule="ready" stores when several runs continue one thread, and when a run is cancelled or
killed.
"""

import pytest
from kit import cluster
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import (
    beside_a_chain,
    build,
    by_order,
    elsewhere,
    ends_by,
    ends_in,
    ready,
    writer,
)
from kit.ready_random import Died, MortalSaver
from kit.savers import opened_saver

from stategraph import (
    END,
    START,
    CheckpointConflictError,
    Command,
    InMemorySaver,
    interrupt,
    task,
)
from stategraph.pregel.drivers.journal import Journal
from stategraph.testing import read_thread, record, survives

postgres = cluster.emptied
CHAIN_FIRST = by_order("a", "b", "c", "long")


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.trial)])
def saver(request, tmp_path):
    with opened_saver(request.param, request, tmp_path) as opened:
        yield opened


def test_an_outdated_run_records_nothing_at_an_origin(drive, saver):
    """Another one has asked a question since, which has not moved the thread."""
    first = [True]

    def long(state):
        if first and first.pop():
            elsewhere(lambda: thread.invoke(None))
            raise ValueError("late")
        return {"log": [interrupt("?")]}

    thread = drive.on(beside_a_chain(saver, long))
    with ends_by(CHAIN_FIRST), pytest.raises(CheckpointConflictError):
        thread.invoke(EMPTY)
    asked = {each.name: each for each in thread.state.tasks}["long"]
    assert (asked.error, [each.value for each in asked.interrupts]) == (None, ["?"])


def test_of_two_runs_from_one_checkpoint_one_records_the_calls_of_a_task(drive, saver):
    first, called = [True], []

    @task
    def call():
        called.append(len(called))
        return called[-1]

    def long(state):
        if first and first.pop():
            elsewhere(lambda: thread.invoke(None))
        return {"log": [f"{call().result()} {interrupt('?')}"]}

    thread = drive.on(beside_a_chain(saver, long))
    with ends_by(CHAIN_FIRST):
        with pytest.raises(CheckpointConflictError):
            thread.invoke(EMPTY)
        result = thread.resume("yes")
    assert result["log"] == ["a", "b", "c", "0 yes", "d"]


def asking_at_two_origins(saver):
    """p asks beside the first step, q beside the next; z ends both."""
    nodes = {name: lambda state, name=name: {"log": [interrupt(f"{name}?")]} for name in "pq"}
    return ready("S>p>z S>a>q>z", nodes=nodes, saver=saver)


@pytest.mark.parametrize("stored", [True, False])
def test_a_kill_leaves_all_questions_asked_or_none(drive, saver, monkeypatch, stored):
    calls = []
    for face in ("record", "arecord"):
        record = getattr(saver, face)

        def dies(*given, record=record):
            calls.append(given)
            waited = record(*given) if stored else None
            if not hasattr(waited, "__await__"):
                raise Died

            async def wait():
                await waited
                raise Died

            return wait()

        monkeypatch.setattr(saver, face, dies)
    with pytest.raises(Died):
        drive.invoke(asking_at_two_origins(saver), EMPTY, CONFIG)
    monkeypatch.undo()
    assert len(calls) <= 2, "one call, and the one below it"
    thread = drive.on(asking_at_two_origins(saver))
    asked = [each.value for each in thread.state.interrupts]
    assert asked == (["p?", "q?"] if stored else [])
    again = thread.invoke(None)["__interrupt__"]
    assert [each.value for each in again] == ["p?", "q?"]
    end = thread.resume({each.id: each.value[0] for each in again})
    assert sorted(end["log"]) == ["a", "p", "q", "z"]


def test_of_two_runs_from_one_checkpoint_one_records_its_interrupts(drive, saver):
    """Neither has moved the thread, nor recorded anything beside its head."""
    first = [True]

    def ask(state):
        if first and first.pop():
            elsewhere(lambda: thread.invoke(None))
        return {"log": [interrupt(f"late {len(first)}?")]}

    thread = drive.on(beside_a_chain(saver, ask))
    with ends_by(CHAIN_FIRST), pytest.raises(CheckpointConflictError):
        thread.invoke(EMPTY)
    revision = saver.get_tuple(CONFIG).revision
    assert revision == 1, "what the other has recorded beside an origin counts beside the head"


class ByParts(InMemorySaver):
    """Sees each record."""

    def put_writes(self, *args, **named):
        super().put_writes(*args, **named)


def test_a_saver_without_batches_records_at_each_origin(drive):
    thread = drive.on(asking_at_two_origins(ByParts()))
    asked = thread.invoke(EMPTY)["__interrupt__"]
    end = thread.resume({each.id: each.value[0] for each in asked})
    assert sorted(end["log"]) == ["a", "p", "q", "z"]


# -- the test kit --------------------------------------------------------------------------------------------------


@pytest.mark.trial
def test_a_graph_survives_with_questions_and_graphs_inside():
    inner = build("S>x>ask>z S>w>z", nodes={"ask": lambda state: {"log": [interrupt("inside?")]}})
    nodes = {"long": inner.compile(schedule="ready"), "b": lambda state: {"log": [interrupt("b?")]}}
    app = build("S>a>b>c>d S>long>d", nodes=nodes).compile(schedule="ready")
    done = survives(app, EMPTY, answers={"inside?": "in", "b?": "out"})
    assert done.stored.count("the record of an answer") == 1
    assert "the commit of step 2 of graph 'long'" in done.stored


def test_an_error_handler_has_the_place_of_its_task_also_after_a_crash():
    def fail(state):
        raise ValueError("no luck")

    graph = build("S>a S>b>y S>c", nodes={"b": lambda state: {"log": [str(len(state["log"]))]}})
    graph.add_node("fails", fail, error_handler=lambda state: {"log": ["handled"]})
    graph.add_edge("a", "fails")
    app = graph.compile(schedule="ready")
    steps = [[task.node for task in step] for step in record(app, EMPTY).runs[0].steps]
    assert steps == [["a"], ["b"], ["c"], ["fails", "__error_handler__fails"], ["y"]]
    assert survives(app, EMPTY).trials > 0


def test_a_thread_is_read_as_it_ran():
    """A step has what ended with it; each task has the input with which it started, its questions and its graph."""
    inner = build("S>x>y").compile(schedule="ready", name="inner")
    nodes = {"long": lambda state: {"log": [interrupt("?")]}, "b": inner}
    app = ready("S>a>b>c S>long>d", nodes=nodes)
    with ends_by(CHAIN_FIRST):
        app.invoke(EMPTY, CONFIG)
        app.invoke(Command(resume="yes"), CONFIG)
    (run,) = read_thread(app, CONFIG).runs
    assert [[task.node for task in step] for step in run.steps] == [["a"], ["b"], ["c"], ["long"], ["d"]]
    long, b = run.steps[3][0], run.steps[1][0]
    assert (long.input, long.questions) == (EMPTY, ({"asks": "?", "answer": "yes"},))
    assert [[task.node for task in step] for step in b.steps] == [["x"], ["y"]]


def test_what_is_stored_when_the_run_has_moved_on_is_expected_where_it_was_loaded(drive, monkeypatch):
    """The first that a call stores is that an error handler takes over; a step has ended before that is stored."""

    class Remote(InMemorySaver):
        in_memory = False

    def fail(state):
        raise ValueError

    graph = build("S>a>z").add_node("fail", fail, error_handler=writer("handler")).add_edge(START, "fail")
    thread = drive.on(graph.compile(Remote(), schedule="ready"))
    thread.invoke(EMPTY, interrupt_before="*")
    monkeypatch.setattr(Journal, "_start_draining", lambda journal: None)  # whoever stores next stores it
    with ends_in("fail", "a", "z"):
        assert thread.invoke(None, durability="async")["log"] == ["a", "z", "handler"]


@pytest.mark.parametrize("killed", [False, True])
def test_tasks_that_wait_for_each_other_start_together_also_where_one_has_left_a_record(drive, killed):
    """The process dies when an error handler has taken over."""

    def fail(state):
        raise ValueError

    saver = MortalSaver()
    graph = build("S>b", nodes={"b": lambda state: {"log": [f"b{len(state['log'])}"]}})
    graph.add_node("a", fail, error_handler=writer("handled")).add_edge(START, "a")
    for name, other in ("ab", "ba"):
        graph.add_conditional_edges(name, lambda _: END, [other, END])
    thread = drive.on(ready(graph, saver=saver))
    with ends_in("a", "__error_handler__a", "b"):
        if killed:
            saver.left = 2
            with pytest.raises(Died):
                thread.invoke(EMPTY)
            saver.left = -1
        assert thread.invoke(None if killed else EMPTY)["log"] == ["handled", "b0"]
