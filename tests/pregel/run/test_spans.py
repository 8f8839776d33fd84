"""When a task ran: a saver keeps each attempt's beginning and length, for snapshots and drawings of a run."""

import time
from itertools import pairwise

from kit.graphs import CONFIG, EMPTY
from kit.pausing_graphs import asks, fails, graph, says

from stategraph import START, InMemorySaver, RetryPolicy, StateGraph

CHAIN = ((START, "x"), ("x", "y"))


def spans(drive, app):
    """task name → how many attempts are kept, over the whole thread; each lies in the last minute."""
    found = {}
    for snapshot in drive.history(app, CONFIG):
        for task in snapshot.tasks:
            found[task.name] = found.get(task.name, 0) + len(task.spans)
            for began, took in task.spans:
                assert time.time() - 60 < began <= began + took <= time.time()
    return found


def test_every_finished_task_has_one_span(drive):
    app = graph({n: says(n) for n in "xy"}, *CHAIN)
    drive.invoke(app, EMPTY, CONFIG)
    assert spans(drive, app) == {"__start__": 1, "x": 1, "y": 1}


def test_each_attempt_has_a_span_and_spans_do_not_overlap(drive):
    policy = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=Exception)
    builder = StateGraph(dict).add_node("x", fails("x", 2), retry_policy=policy).add_edge(START, "x")
    thread = drive.on(builder.compile(checkpointer=InMemorySaver()))
    thread.invoke(EMPTY)
    kept = next(t.spans for s in thread.history() for t in s.tasks if t.name == "x")
    assert len(kept) == 3
    assert all(began + took <= after for (began, took), (after, _) in pairwise(kept))


def test_a_paused_task_has_a_span_for_before_and_after_the_answer(drive):
    app = graph({"x": asks("x"), "y": says("y")}, *CHAIN)
    thread = drive.on(app)
    thread.invoke(EMPTY)
    assert spans(drive, app)["x"] == 1
    thread.resume(1)
    assert spans(drive, app) == {"__start__": 1, "x": 2, "y": 1}


def test_a_failed_task_has_its_span(drive):
    app = graph({"x": fails("x", 1), "y": says("y")}, *CHAIN)
    try:
        drive.invoke(app, EMPTY, CONFIG)
    except Exception:
        pass
    assert spans(drive, app)["x"] == 1
