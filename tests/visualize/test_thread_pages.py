"""A thread read in pages has the content of the whole report, and costs in proportion to what is shown."""

import json

import pytest
from kit import stored_threads as threads
from kit.graphs import CONFIG, EMPTY, chain_of, parallel_of

from stategraph import START, Command, InMemorySaver, StateGraph, interrupt
from stategraph.visualize.render.report import gather
from stategraph.visualize.render.thread_pages import NotThereError, ThreadPages
from stategraph.visualize.trace.index import ThreadIndex


def dropped():
    """A question that nobody answers: a new input comes instead."""
    app, thread = threads.asked()
    app.invoke({"log": ["anew"]}, thread)
    return app, thread


def paused_beside():
    """A question on one branch; another branch, which has ended, is the newest."""
    app, thread = threads.asked()
    _, before, *_ = app.get_state_history(thread)
    app.invoke(None, app.update_state(before.config, {"log": ["another draft"]}, as_node="draft"))
    app.invoke(Command(resume="yes"), thread)
    return app, thread


THREADS = [
    threads.map_reduce, threads.asked, threads.failed, threads.forked, threads.nested, threads.rescued,
    lambda: threads.asked("yes"), lambda: threads.long(30), lambda: threads.renamed(threads.declined), dropped, paused_beside,
]  # fmt: skip


def pages_of(app, thread):
    index = ThreadIndex(thread["configurable"]["thread_id"])
    index.refresh(app)
    return ThreadPages(app, index)


def bare(step):
    """What a step says in a list and in a report alike; nested graphs are read for the report only."""
    return {key: step.get(key) for key in "nhslcamf"}


@pytest.mark.parametrize("make", THREADS)
def test_pieces_put_together_are_the_steps_of_the_report(make):
    app, thread = make()
    pages = pages_of(app, thread)
    for branch in pages.branches()["branches"]:
        tip = branch["tip"]
        whole = gather(app, {"configurable": {**thread["configurable"], "checkpoint_id": tip}})
        count, opened = (pages.steps(tip, count=0)[name] for name in ("count", "open"))
        steps = [step for first in range(count) for step in pages.steps(tip, first, 1)["steps"]]
        found = [*steps, *([opened] if opened else [])]
        assert [bare(step) for step in found] == [bare(step) for step in whole.steps]


@pytest.mark.parametrize("make", THREADS)
def test_one_step_by_itself_says_what_the_report_says_of_it(make):
    app, thread = make()
    pages = pages_of(app, thread)
    for step in gather(app, thread).steps:
        found = pages.step(step.get("c", "open"))
        assert found is not None
        assert found.get("d") == step.get("d", []) and found.get("w") == step.get("w")
        rows = [task["row"] for task in pages.tasks(step.get("c", "open"))["tasks"]]
        told_rows = [row for row in step.get("k", ()) if "\u00d7" not in row[2]]
        assert all(row in rows for row in told_rows)


def test_a_page_of_a_long_thread_reads_only_its_own_checkpoints():
    read = []

    class Counting(InMemorySaver):
        def list(self, config, **kwargs):
            for found in super().list(config, **kwargs):
                read.append(found)
                yield found

    app, thread = threads.long(300)
    saver = Counting()
    app = app.copy({"checkpointer": saver})
    app.invoke({"count": 0}, thread)
    index = ThreadIndex(thread["configurable"]["thread_id"])
    index.refresh(app)
    read.clear()
    index.refresh(app)
    assert len(read) == 1, "the newest again"
    read.clear()
    steps = ThreadPages(app, index).steps(first=100, count=10)["steps"]
    assert [step["n"] for step in steps] == [*range(100, 110)]
    assert len(read) <= 12


def test_an_index_forgets_rolled_back_and_deleted_checkpoints():
    app, thread = threads.asked("yes")
    id = thread["configurable"]["thread_id"]
    index = ThreadIndex(id)
    index.refresh(app)
    app.checkpointer.delete_thread(id)
    index.refresh(app)
    assert index.head == "" and not index.points
    app.invoke(EMPTY, thread)
    index.refresh(app)
    fresh = ThreadIndex(id)
    fresh.refresh(app)
    assert index.points == fresh.points


def test_what_a_thread_does_not_have_is_said():
    pages = pages_of(*threads.asked("yes"))
    for ask in (
        lambda: pages.steps("other"), lambda: pages.task("open", "other"), lambda: pages.step("other"),
        lambda: pages.tasks("other"), lambda: pages.compare("other", "another"),
        lambda: pages.value(pages.steps()["head"], "other"), lambda: pages.task(pages.steps()["head"], "other"),
    ):  # fmt: skip
        with pytest.raises(NotThereError, match="has no|has ended"):
            ask()


def test_a_step_that_is_open_no_more_is_none():
    pages = pages_of(*threads.asked("yes"))
    assert pages.step("open") is None and pages.steps()["open"] is None and pages.tasks("open")["tasks"] == []


def test_two_branches_side_by_side():
    app, thread = threads.forked()
    pages = pages_of(app, thread)
    first, second = (branch["tip"] for branch in pages.branches()["branches"])
    found = pages.compare(first, second)
    assert found["both"] == 2 and [len(steps) for steps in found["steps"]] == found["own"] == [2, 3]
    assert pages.compare(first, first)["own"] == [0, 0] and pages.compare(first, first)["d"] == []


def test_drawings_bring_no_styles_of_their_own():
    pages = pages_of(*threads.forked())
    for svg in (pages.timeline(), pages.tree()):
        assert "<style" not in svg and "style=" not in svg
    json.dumps(pages.branches())


def test_the_newest_steps_of_a_long_thread_are_shown_before_all_are_known():
    app, thread = threads.long(300)
    index = ThreadIndex(thread["configurable"]["thread_id"])
    index.refresh(app, 50)
    assert not index.is_whole and len(index.points) == 50
    pages, whole = ThreadPages(app, index), pages_of(app, thread)
    found, wanted = pages.steps(count=20), whole.steps(count=20)
    assert found.pop("whole") is False and wanted.pop("whole") is True
    assert (found.pop("runs"), wanted.pop("runs")) == ([], [0]), "runs are counted once all are known"
    assert found == wanted, "the steps count up from 0, so the estimate is right"
    assert pages.step(found["head"]) == whole.step(found["head"])
    index.refresh(app)
    assert index.is_whole and ThreadPages(app, index).steps() == whole.steps()


def test_an_open_step_is_read_again_when_new_writes_were_recorded():
    graph = parallel_of(threads.Log, dict.fromkeys(("one", "two"), lambda state: {"log": [interrupt("?")]}))
    app = threads.compiled(graph, "questions")
    app.invoke(EMPTY, CONFIG)
    index = ThreadIndex("t")
    index.refresh(app)
    pages = ThreadPages(app, index)
    assert (pages.step("open") or {})["u"] == {"one": {"paused": 1}, "two": {"paused": 1}}
    first = next(each for each in app.get_state(CONFIG).tasks if each.name == "one").interrupts[0]
    app.invoke(Command(resume={first.id: "yes"}), CONFIG)
    index.refresh(app)
    assert (pages.step("open") or {})["u"] == {"one": {"done": 1}, "two": {"paused": 1}}
    assert [task["row"][1] for task in pages.tasks("open")["tasks"]] == ["done", "paused"]


def standing(app, busy_since):
    """How each task of the open step stands, while a run is in progress that began then."""
    pages = pages_of(app, CONFIG)
    pages.busy_since = busy_since
    return {task["node"]: task["row"][1] for task in pages.tasks("open")["tasks"]}


def test_a_task_of_a_run_in_progress_is_running_unless_it_has_ended_or_asked_in_it():
    failing, asking, lost = threads.failed()[0], threads.asked()[0], threads.renamed(threads.declined)[0]
    later = 1e12
    assert standing(failing, None) == standing(failing, 0.0) == {"aside": "done", "bad": "failed"}
    assert standing(failing, later) == {"aside": "done", "bad": "running"}
    assert standing(asking, later) == {"ask": "paused", "check": "done"}
    assert standing(lost, later) == {"charge": "failed"}


def test_a_failure_that_a_handler_resolved_is_not_shown_as_running():
    graph = StateGraph(threads.Log).add_node("risky", threads.declined, error_handler=threads.rescue)
    graph.add_node("ask", threads.confirmed).add_edge(START, "risky").add_edge(START, "ask")
    app = threads.compiled(graph, "rescued")
    app.invoke(EMPTY, CONFIG)
    found = standing(app, 1e12)
    assert (found["risky"], found["ask"]) == ("failed", "paused")


def test_an_answered_question_of_a_nested_graph_runs_at_each_level():
    seen = []

    def ask(state):
        answer = interrupt("deep?")
        pages = pages_of(app, CONFIG)
        pages.busy_since = 1e12
        seen.append(standing(app, pages.busy_since))
        seen.append((pages.steps()["open"]["s"], pages.timeline().count('class="running"')))
        return {"log": [answer]}

    inner = chain_of(threads.Log, ask=ask).compile()
    app = threads.compiled(chain_of(threads.Log, holder=inner), "outer")
    app.invoke(EMPTY, CONFIG)
    app.invoke(Command(resume="yes"), CONFIG)
    assert seen == [{"holder": "running", "holder:ask": "running"}, ("running", 3)]  # two bars and the legend
