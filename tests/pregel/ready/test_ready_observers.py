"""Observers, traces, logs and `progress=` of a graph with schedule="ready"."""

from __future__ import annotations

import threading

import pytest
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import ask, beside_a_chain, build, by_order, ends_by, ends_in, ready, times
from kit.recording_view import Log, Seen

from stategraph import (
    START,
    InMemorySaver,
    Observer,
    RetryPolicy,
)
from stategraph.visualize.live import view as live_view

HANDLER = "__error_handler__flaky"
QUICK = RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=2)
CHAIN_FIRST = by_order("a", "b", "c", "long")


def steps_of(log: Log):
    return [event[1:] for event in log.events if event[0] == "step"]


# -- observers -----------------------------------------------------------------------------------------------------


def test_a_step_begins_with_started_tasks_and_ends_with_what_is_stored(drive):
    log = Log()
    app = ready("S>a>b S>long")
    with ends_in("a", "b", "long"):
        drive.invoke(app, EMPTY, CONFIG, observer=log)
    assert log.events == [
        ("run", "StateGraph"),
        ("committed", -1),
        ("committed", 0),
        ("step", 1, ("a", "long")),
        ("task", "a"),
        ("task ended", "a", "finished", 1),
        ("committed", 1),
        ("step ended", 1),
        ("step", 2, ("b",)),
        ("task", "b"),
        ("task ended", "b", "finished", 1),
        ("committed", 2),
        ("step ended", 2),
        ("step", 3, ()),
        ("task", "long"),  # the driver of this test runs one task per wait
        ("task ended", "long", "finished", 1),
        ("committed", 3),
        ("step ended", 3),
        ("run ended", "finished", "NoneType"),
    ]


def test_every_task_belongs_to_the_step_in_which_it_starts(drive):
    class Steps(Observer):
        def __init__(self):
            self.steps = {}

        def task_ended(self, task, status, seconds, error):
            self.steps[task.node] = task.step

    steps = Steps()
    app = beside_a_chain(InMemorySaver(), observer=steps)
    with ends_by(CHAIN_FIRST):
        drive.invoke(app, EMPTY, CONFIG)
    assert steps.steps == {"a": 1, "b": 2, "c": 3, "long": 1, "d": 5}


def test_tasks_resumed_by_a_call_start_with_its_first_step(drive):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask))
    first, second = Log(), Log()
    with ends_by(CHAIN_FIRST):
        thread.invoke(EMPTY, observer=first)
    thread.resume("yes", observer=second)
    assert steps_of(first) == [(1, ("a", "long")), (2, ("b",)), (3, ("c",)), (4, ())]
    assert ("asked", "long", "?") in first.events and first.events[-1] == ("run ended", "paused", "NoneType")
    assert steps_of(second) == [(4, ("long",)), (5, ("d",))]
    assert ("answered", "long") in second.events


def test_attempts_handlers_and_restored_tasks_are_observed(drive):
    tried = []

    def flaky(state):
        tried.append(1)
        raise ConnectionError(f"try {len(tried)}")

    graph = build("S>a>b")
    graph.add_node("flaky", flaky, retry_policy=QUICK, error_handler=lambda state: {"log": ["handled"]})
    graph.add_edge(START, "flaky")
    log = Log()
    result = drive.invoke(ready(graph), EMPTY, CONFIG, observer=log)
    assert sorted(result["log"]) == ["a", "b", "handled"]
    assert [event for event in log.events if event[1] in ("flaky", HANDLER)] == [
        ("task", "flaky"),
        ("failed", "flaky", 1, "ConnectionError"),
        ("retried", "flaky", 1, 0.001),
        ("failed", "flaky", 2, "ConnectionError"),
        ("task ended", "flaky", "failed", 2),
        ("task", HANDLER),
        ("task ended", HANDLER, "finished", 1),
    ]
    assert [name for _, names in steps_of(log) for name in names] == ["a", "flaky", "b"]


def test_a_failed_task_starts_again_in_the_next_call(drive):
    app = ready("S>a>b S>long", on_failure="finish")
    log = Log()

    def fail(state):
        raise ValueError("no luck")

    failing = build("S>a>b S>long", nodes={"long": fail})
    broken = failing.compile(app.checkpointer, schedule="ready", on_failure="finish")
    with pytest.raises(ValueError, match="no luck"):
        drive.invoke(broken, EMPTY, CONFIG)
    drive.invoke(app, None, CONFIG, observer=log)
    assert log.events[:2] == [("run", "StateGraph"), ("loaded", 2)]
    assert steps_of(log) == [(3, ("long",))]


# -- progress= -----------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    view = Seen()
    monkeypatch.setitem(live_view.VIEWS, "lines", (lambda: view, "", ""))
    return view


def test_progress_counts_the_tasks_of_the_whole_call(drive, seen):
    routes = {"b": times(2, "a", node="b")}
    app = build("S>a>b r:b=a|E S>long", routes).compile(schedule="ready")
    assert len(drive.invoke(app, EMPTY, progress="lines")["log"]) == 5
    step = seen.progress.supersteps[0]
    assert (len(seen.progress.supersteps), step.total, step.done) == (1, 5, 5)
    assert seen.states == {"a": "done", "b": "done", "long": "done"}
    assert seen.headlines[-1].startswith("done · 5 tasks · ")


def test_progress_says_how_many_are_known_while_it_runs(drive, seen):
    """b, which starts a step later, runs while long does."""
    looked = threading.Event()

    def look(view: Seen):
        if view.headlines[-1].startswith("1 of 3 tasks"):
            assert view.marks[-1]["long"][0] == view.marks[-1]["b"][0] == "running"
            looked.set()

    def wait(state):
        assert looked.wait(10)
        return {"log": ["waited"]}

    seen.on_draw = look
    app = build("S>a>b S>long", nodes={"b": wait, "long": wait}).compile(schedule="ready")
    drive.invoke(app, EMPTY, progress="lines")
    assert looked.is_set()


def test_progress_of_a_call_that_asks_and_of_one_that_fails(drive, seen):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask))
    thread.invoke(EMPTY, progress="lines")
    assert seen.progress.state == "paused"
    assert seen.headlines[-1].startswith("paused · 4 of 4 tasks · 1 question · ")
    assert seen.states == {"a": "done", "b": "done", "c": "done", "d": "waiting", "long": "paused"}
    thread.resume("yes", progress="lines")
    assert seen.headlines[-1].startswith("done · 2 tasks · ")
