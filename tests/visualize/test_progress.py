"""The progress of a run: node states, counts, times and labels, from events alone."""

from __future__ import annotations

import pytest

from stategraph.visualize.labels import TIMES
from stategraph.visualize.live.progress import (
    BreakpointHit,
    NodeRow,
    Progress,
    Superstep,
    TaskEnded,
    TaskRetried,
    TaskStarted,
    split_mark,
)
from stategraph.visualize.model import GraphModel, GraphNode

FLAT = GraphModel(
    "flat", (GraphNode("__start__", "START", "start"), GraphNode("a", "a"), GraphNode("b", "b"), GraphNode("__end__", "END", "end")), ()
)
NESTED = GraphModel(
    "nested",
    (
        GraphNode("__start__", "START", "start"),
        GraphNode("a", "a"),
        GraphNode("sub:__start__", "START", "start", "sub"),
        GraphNode("sub:x", "x", inside="sub"),
        GraphNode("sub:y", "y", inside="sub"),
        GraphNode("b", "b"),
    ),
    (),
    (GraphNode("sub", "sub", "cluster"),),
)


def on(at, name, step=1, place=()):
    return TaskStarted(at, place, name, step)


def off(at, name, place=(), **more):
    return TaskEnded(at, place, name, **more)


AGAIN = TaskRetried(0.0, (), "a")


def after(*events, model: GraphModel = FLAT):
    progress = Progress(model, 0.0)
    for event in events:
        progress.take(event)
    return progress


def marked(progress: Progress):
    return {id: tuple(mark) for id, mark in progress.marks().items()}


def row(progress: Progress, label, now=0.0):
    return next(row for row in progress.rows(now) if row.label == label)


def test_what_was_kept_is_not_counted_as_run():
    progress = after(on(0, "a"), on(0, "a"), on(0, "b"), off(0, "a", kept=True), off(2, "a"), off(0, "b", kept=True))
    progress.end(3.0)
    assert marked(progress) == {"a": ("done", "2 s · 1 kept"), "b": ("done", "kept")}
    assert progress.headline(3.0) == "done · 1 superstep · 1 task · 2 kept · 3 s"


def test_the_bar_of_a_paused_run_is_not_full():
    asking = after(on(0, "a"), on(0, "b"), off(1, "a"), off(1, "b", paused=True, questions=(("q", "ok?"),)))
    held = after(on(0, "a"), off(1, "a"), BreakpointHit(1, (), ("b",)))
    asking.end(1.0)
    held.end(1.0)
    assert (asking.state, asking.share) == ("paused", 0.5)
    assert (held.state, held.share) == ("paused", 0.0)


def test_what_was_cut_off_is_said_to_be_stopped_not_failed():
    progress = after(on(0, "a"))
    progress.end(1.0, "stopped", "KeyboardInterrupt")
    assert split_mark(progress.marks()["a"]) == ("stopped", "")


def test_what_is_inside_a_node_that_an_earlier_call_has_finished_is_done():
    progress = Progress(NESTED, 0.0, frozenset(("sub",)))
    assert marked(progress)["sub:x"] == ("done", "earlier")


# -- states of nodes ------------------------------------------------------------------------------------------


def test_before_the_first_task_all_nodes_wait_and_start_and_end_are_not_marked():
    progress = after()
    assert marked(progress) == {"a": ("waiting", ""), "b": ("waiting", "")}
    assert progress.headline(0.5) == "starting · 500 ms"
    assert progress.share == 0.0


def test_a_node_is_running_from_its_first_task_to_its_last():
    events = [on(0.0, "a"), off(1.0, "a"), on(1.0, "b", 2)]
    assert marked(after(*events[:1]))["a"] == ("running", "")
    assert marked(after(*events))["a"] == ("done", "1.00 s")
    assert marked(after(*events))["b"] == ("running", "")


def test_a_fan_out_is_one_node_with_a_count():
    progress = after(*[on(0.0, "a")] * 5000, *[off(1.0, "a")] * 3)
    assert marked(progress)["a"] == ("running", "3/5,000")
    assert row(progress, "a") == NodeRow("a", 0, progress.marks()["a"], 3, 4997, 0.0)
    assert progress.headline(1.0) == "superstep 1 · 3 of 5,000 tasks · 1.00 s"
    for _ in range(4997):
        progress.take(off(2.0, "a"))
    assert marked(progress)["a"] == ("done", f"{TIMES}5,000")


def test_a_loop_counts_runs_over_all_supersteps_and_progress_within_one():
    progress = after(on(0.0, "a", 1), on(0.0, "a", 1), off(1.0, "a"), off(1.0, "a"), on(1.0, "b", 2), off(2.0, "b"))
    progress.take(on(2.0, "a", 3))
    assert marked(progress)["a"] == ("running", "")
    assert progress.headline(2.0) == "superstep 3 · 0 of 1 task · 2 s"
    progress.take(off(3.0, "a"))
    assert marked(progress)["a"] == ("done", f"{TIMES}3")


def test_a_node_that_failed_says_with_what():
    progress = after(on(0.0, "a"), off(1.0, "a", failure="ValueError: no\nluck"))
    assert marked(progress)["a"] == ("failed", "ValueError")
    assert row(progress, "a").runs == 0


def test_a_failure_in_a_fan_out_is_seen_while_the_others_run_and_stays():
    progress = after(*[on(0.0, "a")] * 3, off(1.0, "a", failure="KeyError: 'k'"))
    assert marked(progress)["a"] == ("running", "1/3 · 1 failed")
    progress.take(off(1.0, "a"))
    progress.take(off(1.0, "a"))
    assert marked(progress)["a"] == ("failed", "3/3 · 1 failed · KeyError")


def test_a_failed_node_whose_handler_ran_stays_red_until_it_runs_again():
    progress = after(on(0.0, "a"), off(1.0, "a", failure="OSError"), on(1.0, "__error_handler__a"))
    progress.take(off(1.0, "__error_handler__a"))
    assert len(progress.supersteps) == 1  # the handler belongs to the same superstep
    progress.take(on(1.0, "b", 2))
    assert marked(progress)["a"] == ("failed", "OSError")
    progress.take(on(2.0, "a", 3))
    assert marked(progress)["a"] == ("running", "")


def test_a_paused_node_says_how_many_questions_it_asks():
    asked = (("1", "really?"), ("2", "why?"))
    progress = after(on(0.0, "a"), off(0.0, "a", paused=True, questions=asked))
    assert marked(progress)["a"] == ("paused", f"asks {TIMES}2")
    progress.end(1.0)
    assert progress.state == "paused"
    assert progress.headline(9.0) == "paused in superstep 1 · 1 task · 2 questions · 1.00 s"
    assert progress.notes() == ["a asks: really?", "a asks: why?"]


def test_a_node_stopped_by_a_breakpoint_is_paused_until_it_starts():
    progress = after(on(0.0, "a"), off(0.0, "a"), BreakpointHit(0.0, (), ("b",)))
    assert marked(progress)["b"] == ("paused", "breakpoint")
    progress.end(0.0)
    assert progress.state == "paused"
    assert marked(after(BreakpointHit(0.0, (), ("b",)), on(1.0, "b")))["b"] == ("running", "")


def test_what_was_still_running_when_the_run_ended_is_marked_as_stopped():
    progress = after(*[on(0.0, "a")] * 3, off(1.0, "a"), on(0.0, "b"), off(1.0, "b", failure="OSError: disk"))
    progress.end(1.0, "failed", "OSError: disk")
    assert marked(progress)["a"] == ("failed", "1/3 · stopped")
    assert progress.headline(1.0) == "failed in superstep 1 · 2 tasks · 1.00 s"
    assert progress.notes() == ["OSError: disk"]
    assert row(progress, "a").left == 0


def test_retries_are_reported_when_the_task_has_ended():
    assert marked(after(on(0.0, "a"), AGAIN, AGAIN, off(3.0, "a")))["a"] == ("done", "3 s · 2 retries")


# -- nested graphs --------------------------------------------------------------------------------------------


def test_nested_tasks_count_towards_their_node_where_its_inside_is_not_shown():
    progress = after(on(0.0, "a"), on(0.0, "x", 1, ("a",)), off(1.0, "x", ("a",)), on(1.0, "y", 2, ("a", "deep")))
    assert marked(progress) == {"a": ("running", "1 task inside"), "b": ("waiting", "")}
    progress.take(off(2.0, "y", ("a", "deep")))
    progress.take(off(2.0, "a"))
    assert marked(progress)["a"] == ("done", "2 s")
    assert [row.label for row in progress.rows(2.0)] == ["a", "b"]
    assert progress.tasks == 3 and len(progress.supersteps) == 1


def test_nested_tasks_have_marks_of_their_own_where_the_inside_is_shown():
    progress = after(
        on(0.0, "sub"), on(0.0, "x", 1, ("sub",)), off(1.0, "x", ("sub",)), on(1.0, "y", 2, ("sub",)), model=NESTED
    )
    assert marked(progress) == {
        "a": ("waiting", ""), "sub": ("running", ""), "sub:x": ("done", "1.00 s"), "sub:y": ("running", ""), "b": ("waiting", ""),
    }  # fmt: skip
    assert [(row.label, row.depth) for row in progress.rows(2.0)] == [
        ("a", 0),
        ("sub", 0),
        ("x", 1),
        ("y", 1),
        ("b", 0),
    ]


def test_many_runs_of_one_nested_graph_are_counted_together():
    progress = after(*[on(0.0, "sub")] * 2, *[on(0.0, "x", 1, ("sub",))] * 2, off(1.0, "x", ("sub",)), model=NESTED)
    progress.take(on(1.0, "y", 2, ("sub",)))
    assert (marked(progress)["sub:x"], marked(progress)["sub"]) == (("running", "1/2"), ("running", "0/2"))


def test_a_question_from_inside_is_asked_once_and_marks_all_around_it():
    asked = (("id", "really?"),)
    progress = after(
        on(0.0, "sub"), on(0.0, "x", 1, ("sub",)),
        off(1.0, "x", ("sub",), paused=True, questions=asked), off(1.0, "sub", paused=True, questions=asked), model=NESTED,
    )  # fmt: skip
    assert marked(progress)["sub"] == marked(progress)["sub:x"] == ("paused", "asks")
    assert progress.notes() == ["x asks: really?"]


def test_a_nested_breakpoint_marks_its_node_and_the_subgraph_node():
    progress = after(on(0.0, "sub"), BreakpointHit(0.0, ("sub",), ("y",)), off(0.0, "sub", paused=True), model=NESTED)
    progress.end(0.0)
    assert progress.state == "paused"
    assert marked(progress)["sub"] == marked(progress)["sub:y"] == ("paused", "breakpoint")


def test_what_a_failed_attempt_left_open_inside_is_closed_with_the_node_around_it():
    progress = after(
        on(0.0, "sub"), on(0.0, "x", 1, ("sub",)), off(2.0, "sub", failure="NodeTimeoutError"), model=NESTED
    )
    assert marked(progress)["sub:x"] == ("failed", "stopped")
    assert row(progress, "x", 9.0).seconds == 2.0


def test_functions_called_by_a_node_have_rows_of_their_own_below_the_nodes():
    progress = after(on(0.0, "a"), *[on(0.1, "fetch")] * 3, off(1.0, "fetch"))
    assert [row.label for row in progress.rows(1.0)] == ["a", "b", "fetch"]
    assert tuple(row(progress, "fetch").mark) == ("running", "1/3")
    assert "fetch" not in marked(progress)


# -- the run as a whole ---------------------------------------------------------------------------------------


def test_the_bar_shows_the_superstep_since_their_total_is_unknown():
    progress = after(*[on(0.0, "a")] * 4, off(1.0, "a"))
    assert progress.share == 0.25
    progress.take(on(2.0, "b", 2))
    assert progress.share == 0.0
    progress.take(off(2.0, "b"))
    progress.end(2.0)
    assert progress.share == 1.0
    assert progress.headline(99.0) == "done · 2 supersteps · 2 tasks · 2 s"


def test_a_run_without_tasks_is_done():
    progress = after()
    progress.end(0.0)
    assert progress.headline(0.0) == "done · 0 supersteps · 0 tasks · 0 s"


def test_each_superstep_is_kept_with_its_tasks_and_its_time():
    progress = after(on(1.0, "a", 7), on(1.0, "b", 7), off(3.0, "a"), off(2.0, "b", failure="OSError"), on(3.0, "a", 8))
    assert progress.supersteps[0] == Superstep(7, 1.0, 2.0, 2, 2, {"a": 1, "b": 1}, {"b": "failed"}, good=1)  # type: ignore[arg-type]
    assert [step.number for step in progress.supersteps] == [7, 8]


def test_a_stopped_run_says_so():
    progress = after(on(0.0, "a"))
    progress.end(3.0, "stopped", "KeyboardInterrupt")
    assert progress.headline(9.0) == "stopped in superstep 1 · 0 tasks · 3 s"
    assert marked(progress)["a"] == ("failed", "stopped")


# -- how fast, and how long it will take ----------------------------------------------------------------------


def fan_out(count, ended, every=1.0, **more):
    """A superstep of so many tasks, of which one ends at each such time."""
    return after(*[on(0.0, "a")] * count, *(off((n + 1) * every, "a", **more) for n in range(ended)))


def test_many_tasks_show_rate_and_remaining_time():
    assert fan_out(1000, 100, 0.1).pace(10.0) == "10/s · about 1 min 30 s left"
    assert fan_out(100, 10, 30.0).pace(300.0) == "2/min · about 45 min left"


def test_before_the_first_end_and_with_one_task_no_rate_is_shown():
    assert fan_out(1000, 0).pace(10.0) == ""
    assert after(on(0.0, "a"), off(1.0, "a"), on(1.0, "b", 2)).pace(2.0) == ""


def test_what_is_left_is_reckoned_by_the_last_minute_and_not_by_an_hour_ago():
    progress = fan_out(4000, 2000, 0.1)  # ten a second, until 200
    for second in range(201, 301):
        progress.take(off(float(second), "a"))  # then one
    assert progress.pace(300.0) == "1/s · about 31 min 40 s left"


def test_restored_results_do_not_count_for_the_rate():
    progress = after(*[on(0.0, "a")] * 100, *[off(0.0, "a", kept=True)] * 90, off(2.0, "a"), off(4.0, "a"))
    assert progress.pace(4.0) == "30/min · about 16 s left"


def test_failures_and_retries_of_a_fan_out_are_counted_during_the_run():
    progress = after(*[on(0.0, "a")] * 12, off(1.0, "a", failure="E: x"), AGAIN, AGAIN, off(2.0, "a"))
    assert progress.pace(2.0) == "1/s · about 10 s left · 1 failed · 2 retries"
    progress.end(2.0, "failed")
    assert progress.pace(2.0) == ""


def test_where_one_node_runs_a_graph_of_many_tasks_these_are_counted():
    progress = after(on(0.0, "b"), *[on(0.0, "x", place=("b",))] * 4, off(1.0, "x", ("b",)), off(2.0, "x", ("b",)))
    assert progress.headline(2.0) == "superstep 1 · 0 of 1 task · 2 of 4 inside · 2 s"
    assert (progress.share, progress.pace(2.0)) == (0.5, "1/s · about 2 s left")


@pytest.mark.trial
def test_a_pace_keeps_few_samples_however_many_tasks_end():
    progress = fan_out(100_000, 100_000, 0.01)
    assert progress.supersteps[0].pace.sample_count <= 62
