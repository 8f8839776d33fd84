"""When a task ran: a saver keeps each attempt's beginning and length, for snapshots and drawings of a run."""

import time
from contextlib import suppress
from itertools import pairwise

import pytest
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, graph_of
from kit.pausing_graphs import asks, fails, graph

import stategraph
from stategraph import START, InMemorySaver, RetryPolicy, StateGraph, interrupt


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
    app = graph("S>x>y")
    drive.invoke(app, EMPTY, CONFIG)
    assert spans(drive, app) == {"__start__": 1, "x": 1, "y": 1}


def test_each_attempt_has_a_span_and_spans_do_not_overlap(drive):
    policy = RetryPolicy(initial_interval=0, jitter=False, max_attempts=3, retry_on=Exception)
    builder = StateGraph(dict).add_node("x", fails("x", 2), retry_policy=policy).add_edge(START, "x")
    thread = drive.on(builder.compile(InMemorySaver()))
    thread.invoke(EMPTY)
    kept = next(t.spans for s in thread.history() for t in s.tasks if t.name == "x")
    assert len(kept) == 3
    assert all(began + took <= after for (began, took), (after, _) in pairwise(kept))


def test_a_paused_task_has_a_span_for_before_and_after_the_answer(drive):
    app = graph("S>x>y", x=asks("x"))
    thread = drive.on(app)
    thread.invoke(EMPTY)
    assert spans(drive, app)["x"] == 1
    thread.resume(1)
    assert spans(drive, app) == {"__start__": 1, "x": 2, "y": 1}


def test_a_failed_task_has_its_span(drive):
    app = graph("S>x>y", x=fails("x", 1))
    try:
        drive.invoke(app, EMPTY, CONFIG)
    except Exception:
        pass
    assert spans(drive, app)["x"] == 1


@stategraph.task
def add_one(n):
    return n + 1


@stategraph.task(name="twice, 0000000001, or more")
def add_two(n):
    return add_one(add_one(n).result()).result()


def adding(state):
    added = add_two(1).result() + add_one(10).result()
    if state.get("fails"):
        raise ValueError(added)
    return {"log": [f"{added}"]}


@each_schedule
def test_a_snapshot_shows_the_calls_of_a_task_with_their_spans(drive, saver, schedule):
    app = graph_of(dict, "S>x", x=adding).compile(saver, schedule=schedule)
    drive.invoke(app, EMPTY, CONFIG)
    [x] = [task for snapshot in drive.history(app, CONFIG) for task in snapshot.tasks if task.name == "x" and task.result]
    outer, last = x.calls
    assert [(call.name, call.result, len(call.spans)) for call in x.calls] == [(add_two.name, 3, 1), ("add_one", 11, 1)]
    assert [(call.name, call.result) for call in outer.calls] == [("add_one", 2), ("add_one", 3)] and not last.calls
    assert all(sum(call.spans[0]) <= sum(x.spans[0]) for call in x.calls)


def test_a_snapshot_says_where_an_error_was_raised_and_gives_the_error_as_it_was(drive, saver):
    app = graph_of(dict, "S>x", x=adding).compile(saver)
    with pytest.raises(ValueError, match="14") as raised:
        drive.invoke(app, {"fails": True}, CONFIG)
    [x] = drive.on(app).state.tasks
    assert (type(x.error), x.error.args, x.error.__notes__) == (ValueError, (14,), raised.value.__notes__)
    assert "in adding\n    raise ValueError(added)\n" in x.traceback and x.traceback.count("File") == 1
    assert [call.result for call in x.calls] == [3, 11]


def test_where_an_error_was_raised_goes_along_with_an_edit(drive):
    app = graph_of(dict, "S>x", x=adding).compile(InMemorySaver())
    with pytest.raises(ValueError, match="14"):
        drive.invoke(app, {"fails": True}, CONFIG)
    before = drive.on(app).state.tasks[0]
    drive.update_state(app, CONFIG, {"other": 1})
    found = [task for snapshot in drive.history(app, CONFIG) for task in snapshot.tasks if task.error]
    assert all(task.traceback == before.traceback for task in found) and found


def test_what_has_succeeded_since_says_no_more_where_its_error_was_raised(drive, saver):
    failing = ["node", "call"]

    @stategraph.task
    def call(n):
        if failing and failing[-1] == "call":
            raise ValueError(failing.pop())
        return n

    def body(state):
        call(1).result()
        if failing:
            raise ValueError(failing.pop())
        return {"log": [interrupt("which?")]}

    app = graph_of(dict, "S>x", x=body).compile(saver)
    shown = []
    for given in (EMPTY, None, None):
        with suppress(ValueError):
            drive.invoke(app, given, CONFIG)
        [x] = drive.on(app).state.tasks
        shown.append([(each.error is not None, bool(each.traceback)) for each in (x, *x.calls)])
    assert shown == [[(True, True)] * 2, [(True, True), (False, False)], [(False, False)] * 2]
