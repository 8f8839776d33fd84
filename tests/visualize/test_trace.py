"""A thread's stored history as plain records."""

from __future__ import annotations

import pytest
from kit import stored_threads as threads
from kit.graphs import CONFIG, EMPTY, chain_of, thread_config
from kit.stored_threads import Timeless

from stategraph import START, Command, RetryPolicy, StateGraph
from stategraph.visualize.trace.reader import read_trace


def lines(steps):
    """A step a line: number, source, each task with its state and number of attempts."""
    return [f"{s.number} {s.source}: " + " ".join(f"{t.node} {t.state} {len(t.spans)}" for t in s.tasks) for s in steps]


def every(steps):
    return [task for step in steps for t in step.tasks for task in (t, *every(t.steps))]


def trace(made: threads.StoredThread):
    return read_trace(*made)


def test_a_trace_goes_from_the_input_to_the_end():
    found = trace(threads.map_reduce(3, failing=()))
    assert lines(found.steps) == [
        "0 input: __start__ done 1",
        "1 loop: plan done 1",
        "2 loop: fetch done 1 fetch done 1 fetch done 1",
        "3 loop: gather done 1",
    ]
    assert (found.name, found.thread, found.state, found.next, found.branches) == (
        "map and reduce",
        "t",
        "done",
        (),
        (),
    )


def test_each_attempt_of_a_retried_task_is_in_the_trace():
    found = trace(threads.map_reduce(4, failing=(1, 1, 2)))
    assert [len(t.spans) for t in found.steps[2].tasks] == [1, 3, 2, 1]
    assert [t.state for t in found.steps[2].tasks] == ["done"] * 4


def test_how_long_a_task_may_wait_for_its_next_try_is_what_its_policy_says():
    app, thread = threads.asked()
    policy = RetryPolicy(initial_interval=2, backoff_factor=3, max_interval=10)
    node = app.program.nodes["ask"]
    node.policies = node.policies._replace(retry=(policy,))
    task = next(t for t in every(read_trace(app, thread).steps) if t.name == "ask")
    assert task.waits == (2.0,)


def test_values_are_included_only_on_request():
    """Large objects, and those of users, may take long to show themselves."""
    app, thread = threads.map_reduce(2, failing=())
    assert {(t.input, t.result) for t in every(read_trace(app, thread).steps)} == {("", "")}
    asked = [(t.input, t.result) for t in read_trace(app, thread, texts=True).steps[2].tasks]
    assert asked == [("{'page': 0}", "{'log': ['page 0']}"), ("{'page': 1}", "{'log': ['page 1']}")]


def test_a_paused_thread_ends_with_an_open_step():
    found = trace(threads.asked())
    assert lines(found.steps)[-1] == "2 open: ask paused 1 check done 1"
    assert (found.state, found.next) == ("paused", ("ask",))
    assert [q.value for q in found.questions] == [{"publish?": "draft"}]
    assert found.steps[-1].checkpoint is None


def test_an_answered_question_is_kept_with_its_task():
    found = trace(threads.asked("yes"))
    ask = found.steps[2].tasks[0]
    assert (ask.state, len(ask.spans), ask.wrote, found.state) == ("done", 2, ("log",), "done")
    assert [q.value for q in ask.questions] == [{"publish?": "draft"}]


def test_the_trace_of_a_failed_thread_ends_with_the_error_and_finished_siblings():
    found = trace(threads.failed())
    assert lines(found.steps)[-1] == "1 open: aside done 1 bad failed 1"
    assert isinstance(found.steps[-1].tasks[1].error, ValueError)
    assert found.state == "failed"


def test_the_trace_of_a_forked_thread_is_its_newest_branch_and_mentions_the_other():
    found = trace(threads.forked())
    assert lines(found.steps) == [
        "0 input: __start__ done 1",
        "1 loop: draft done 1",
        "2 update: ",
        "3 loop: ask done 2 check done 1",
        "4 loop: publish done 1",
    ]
    [branch] = found.branches
    assert (branch.parent, branch.source, branch.size) == (found.steps[1].checkpoint, "loop", 2)


def test_the_other_branch_is_traced_when_its_checkpoint_is_named():
    app, thread = threads.forked()
    [branch] = read_trace(app, thread).branches
    other = read_trace(app, {"configurable": {**thread["configurable"], "checkpoint_id": branch.tip}})
    assert [step.number for step in other.steps] == [0, 1, 2, 3]
    assert other.steps[-1].checkpoint == branch.tip
    assert [b.source for b in other.branches] == ["update"]
    assert other.whole


def test_a_trace_up_to_an_older_checkpoint_contains_nothing_later():
    app, thread = threads.asked("yes")
    second = read_trace(app, thread).steps[1].checkpoint
    found = read_trace(app, {"configurable": {**thread["configurable"], "checkpoint_id": second}})
    assert lines(found.steps) == ["0 input: __start__ done 1", "1 loop: draft done 1"]
    assert not found.whole


def test_tasks_cut_off_by_a_new_input_are_in_the_trace():
    app, thread = threads.asked()
    app.invoke({"log": ["again"]}, thread)
    assert lines(read_trace(app, thread).steps) == [
        "0 input: __start__ done 1",
        "1 loop: draft done 1",
        "2 dropped: ask paused 1 check done 1",
        "3 input: __start__ done 1",
        "4 loop: draft done 1",
        "5 open: ask paused 1 check done 1",
    ]


def test_nested_graphs_are_below_the_task_that_ran_them():
    found = trace(threads.nested())
    holder = found.steps[2].tasks[0]
    assert (holder.node, holder.state, len(holder.spans)) == ("holder", "done", 2)
    ran = [(t.node, len(t.spans)) for t in every(holder.steps) if t.name != START]
    assert ran == [("holder:first", 1), ("holder:deep", 2), ("holder:deep:ask", 2)]


def test_a_nested_interrupt_is_in_the_trace_at_each_level():
    app = threads.nested()[0]
    thread = thread_config("other")
    app.invoke(EMPTY, thread)
    found = [(t.node, t.state) for t in every(read_trace(app, thread).steps) if t.state == "paused"]
    assert found == [("holder", "paused"), ("holder:deep", "paused"), ("holder:deep:ask", "paused")]


def test_states_are_shown_around_each_step_newest_first():
    seen = []
    read_trace(*threads.asked("yes"), visit=lambda step, before, after: seen.append((step.number, before, after)))
    assert seen == [
        (3, {"log": ["draft", "yes", "checked"]}, {"log": ["draft", "yes", "checked", "published"]}),
        (2, {"log": ["draft"]}, {"log": ["draft", "yes", "checked"]}),
        (1, {"log": []}, {"log": ["draft"]}),
        (0, {}, {"log": []}),
    ]


def test_around_an_open_step_the_state_gains_what_is_done_already():
    seen = []
    read_trace(*threads.asked(), visit=lambda step, before, after: seen.append((step.source, before, after)))
    assert seen[-1] == ("open", {"log": ["draft"]}, {"log": ["draft", "checked"]})


def test_a_step_behind_a_compiled_breakpoint_says_so():
    app = threads.compiled(
        chain_of(threads.Log, a=threads.note("a"), b=threads.note("b")), "stops", interrupt_before=["b"]
    )
    app.invoke(EMPTY, CONFIG)
    assert [step.stopped for step in read_trace(app, CONFIG).steps] == [False, False, True]
    assert read_trace(app, CONFIG).state == "waiting"
    app.invoke(None, CONFIG)
    assert [step.stopped for step in read_trace(app, CONFIG).steps] == [False, False, True]


def test_a_thread_started_by_an_update_has_a_trace():
    app = threads.asking()
    app.update_state(CONFIG, {"log": ["mine"]}, as_node="draft")
    app.invoke(None, CONFIG)
    app.invoke(Command(resume="y"), CONFIG)
    found = read_trace(app, CONFIG)
    assert [step.source for step in found.steps] == ["update", "loop", "loop"]
    assert found.state == "done"


LOST = "pending work for parts of the graph that are gone or have changed their kind: node 'charge'"


def test_a_failed_task_of_a_removed_node_is_in_the_trace_and_not_done():
    found = trace(threads.renamed(threads.declined))
    assert (found.state, lines(found.steps)[-1]) == ("failed", "2 open: charge failed 1")
    assert str(found.steps[-1].tasks[0].error) == "card declined"
    assert LOST in found.remarks[0]


def test_an_interrupted_task_of_a_removed_node_is_in_the_trace():
    found = trace(threads.renamed(threads.confirmed))
    assert (found.state, lines(found.steps)[-1]) == ("paused", "2 open: charge paused 1")
    assert [question.value for question in found.questions] == ["charge it?"]
    assert LOST in found.remarks[0]


def test_a_removed_node_that_never_started_is_pending():
    app, thread = threads.renamed(threads.note("b"), after="charge")
    app.update_state(thread, EMPTY, as_node="a")
    found = read_trace(threads.renamed(threads.note("b"))[0].copy({"checkpointer": app.checkpointer}), thread)
    assert (found.state, lines(found.steps)[-1]) == ("waiting", "4 open: charge waiting 0")


def test_a_graph_that_fits_its_thread_is_not_remarked_on():
    assert [trace(make()).remarks for make in (threads.asked, threads.failed, threads.map_reduce)] == [(), (), ()]


def test_nodes_of_an_unrelated_graph_that_made_the_thread_are_named():
    app, thread = threads.map_reduce(2, ())
    found = read_trace(threads.asking().copy({"checkpointer": app.checkpointer}), thread)
    assert any("does not have ran" in remark and "'plan'" in remark for remark in found.remarks)


def test_an_unknown_thread_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="nothing is stored for thread 't'"):
        read_trace(threads.asking(), CONFIG)


def test_a_trace_of_a_builder_asks_for_compile():
    with pytest.raises(TypeError, match=r"StateGraph: compile\(\) it first"):
        read_trace(StateGraph(threads.Log), CONFIG)  # type: ignore[arg-type]


def test_a_thread_that_cannot_be_read_is_an_error():
    app, _ = threads.asked()
    with pytest.raises(ValueError, match="no checkpoint 'x'"):
        read_trace(app, thread_config("t", checkpoint_id="x"))
    with pytest.raises(ValueError, match="thread"):
        read_trace(app, {})
    with pytest.raises(ValueError, match="no checkpointer"):
        read_trace(app.copy({"checkpointer": None}), CONFIG)


def test_a_saver_that_keeps_no_times_is_enough():
    app, thread = threads.asked("yes")
    found = read_trace(app.copy({"checkpointer": Timeless(app.checkpointer)}), thread)
    assert [len(t.spans) for t in every(found.steps)] == [0, 0, 0, 0, 0]
    assert found.state == "done"


def test_an_interrupt_on_an_older_branch_belongs_to_that_branch():
    app, thread = threads.asked()
    asking, before, *_ = app.get_state_history(thread)
    app.invoke(None, app.update_state(before.config, {"log": ["another draft"]}, as_node="draft"))
    app.invoke(Command(resume="yes"), thread)
    assert app.get_state(thread).next == ()
    opened = read_trace(app, asking.config).steps[-1]
    assert opened.source == "open"
    assert [(task.name, task.state) for task in opened.tasks] == [("ask", "paused"), ("check", "done")]
