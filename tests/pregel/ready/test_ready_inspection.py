"""How a thread with schedule="ready" is shown: explain, timelines, reports."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit.graphs import CONFIG, EMPTY
from kit.ready_graphs import beside_a_chain, build, ends_in, ready

from stategraph import END, Command, InMemorySaver, SqliteSaver, interrupt, task
from stategraph.checkpoint.base import UNDER_WAY
from stategraph.visualize.labels import TIMES
from stategraph.visualize.render.report import report
from stategraph.visualize.render.thread_pages import ThreadPages
from stategraph.visualize.render.timeline import timeline
from stategraph.visualize.render.timeline_model import ScaleRoom, build_scale
from stategraph.visualize.trace.changes import changes
from stategraph.visualize.trace.index import ThreadIndex
from stategraph.visualize.trace.reader import read_trace
from stategraph.visualize.trace.values import INSIDE

STARTED = "it has started and not ended: it is running, or goes on with the next call"
STARTS = "nothing holds it back: it is running already, or starts with the next call"


def ask(state):
    return {"log": [interrupt("really?")]}


def pages_of(app, **options):
    """The pages of the thread, as it stands now."""
    index = ThreadIndex("t")
    index.refresh(app)
    return ThreadPages(app, index, **options)


def test_explain_distinguishes_running_tasks_and_those_waiting_for_them(drive):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask, interrupt_before=["c"]))
    with ends_in("a", "b", "c", "long"):
        thread.invoke(EMPTY)
    found = thread.call("explain")
    assert found["long"].why == "it is paused: it asked 'really?' and waits for the answer"
    assert found["c"] == ("next", STARTS, ())
    assert found["a"].state == "idle"
    thread.invoke(None)
    found = thread.call("explain")
    assert found["d"] == ("waiting", "it was triggered and waits for what leads to it: long", ("long",))


def test_explain_reports_cancelled_tasks(drive):
    class Died(BaseException):
        pass

    def die(state):
        raise Died

    thread = drive.on(beside_a_chain(InMemorySaver(), die))
    with ends_in("a", "long"), pytest.raises(Died):
        thread.invoke(EMPTY)
    found = thread.call("explain")
    assert found["long"] == ("next", STARTED, ())
    assert found["c"] == ("next", STARTS, ())  # b was at work, and has ended


def test_explain_is_accurate_while_a_run_is_in_progress():
    """It reads what is stored: that b has started since the last checkpoint is not."""
    told = {}

    def b(state):
        look = threading.Thread(target=lambda: told.update(app.explain(CONFIG)))
        look.start()
        look.join()
        return {}

    app = ready("S>a>b S>long", nodes={"b": b})
    with ends_in("a", "b", "long"):
        app.invoke(EMPTY, CONFIG)
    assert (told["long"].why, told["b"].why) == (STARTED, STARTS)


def test_a_bar_spans_the_steps_in_which_its_task_was_running():
    def long(state):
        return {"log": ["long"]}

    app = beside_a_chain(InMemorySaver(), long)
    with ends_in("a", "b", "c", "long"):
        app.invoke(EMPTY, CONFIG)
    drawn = timeline(app, CONFIG)
    # The driver of this test runs the tasks one after the other: move the start of one as a real one would.
    bars = {bar.row: bar for bar in drawn.bars}
    scale = build_scale(drawn, ScaleRoom(100.0, 4.0, 3.0))
    first = scale.place(bars["long"].step, bars["a"].began)
    assert first == scale.place(bars["a"].step, bars["a"].began)
    assert scale.place(bars["long"].step, bars["long"].ended) >= scale.place(bars["c"].step, bars["c"].ended)
    starts = [scale.span(step)[0] for step in range(len(drawn.steps))]
    assert starts == sorted(starts)


def test_a_report_shows_the_graph_inside_of_a_task_that_started_some_steps_before(tmp_path):
    inner = build("S>p>q").compile(schedule="ready", name="inner")
    app = beside_a_chain(InMemorySaver(), inner)
    with ends_in("a", "b", "c", "p", "q", "long"):
        app.invoke(EMPTY, CONFIG)
    drawn = timeline(app, CONFIG)
    assert {bar.row: drawn.steps[bar.step].number for bar in drawn.bars if "long" in bar.row} == {
        "long": 4,
        "long:p": 4,
        "long:q": 4,
    }
    page = report(app, CONFIG, tmp_path / "run.html").read_text()
    assert "long:p" in page


def test_an_interrupt_is_drawn_in_the_steps_of_its_start_and_answer():
    app = beside_a_chain(InMemorySaver(), ask)
    with ends_in("a", "b", "c", "long"):
        app.invoke(EMPTY, CONFIG)
        app.invoke(Command(resume="yes"), CONFIG)
    drawn = timeline(app, CONFIG)
    assert [(drawn.steps[bar.step].number, bar.state) for bar in drawn.bars if bar.row == "long"][-1] == (4, "done")
    assert drawn.state == "done"


def test_a_report_shows_no_internal_marks_and_shows_nested_interrupts(tmp_path):
    app = beside_a_chain(InMemorySaver(), build("S>p", nodes={"p": ask}).compile(schedule="ready"))
    with ends_in("a", "p", "long", "b", "c"):
        app.invoke(EMPTY, {**CONFIG, "metadata": {"mine": 1}})
    assert UNDER_WAY in app.get_state(CONFIG).metadata
    page = report(app, CONFIG, tmp_path / "run.html").read_text()
    assert UNDER_WAY not in page and "{'mine': 1}" in page
    assert f"long{INSIDE}p" in page  # asks


@pytest.mark.parametrize("calls", [1, 2])
def test_a_task_that_several_steps_show_is_counted_once(tmp_path, calls):
    """The step in which it started and asked, and the one in which it waits or has ended."""
    app = beside_a_chain(InMemorySaver(), ask)
    with ends_in("a", "b", "c", "long"):
        for given in [EMPTY, Command(resume="yes")][:calls]:
            app.invoke(given, CONFIG)
    assert TIMES not in report(app, CONFIG, tmp_path / "run.html").read_text()
    found = pages_of(app).steps()
    steps = [*found["steps"], *([found["open"]] if found["open"] else [])]
    assert [step["u"]["long"] for step in steps if "long" in step.get("u", {})] == [{"paused": 1} if calls == 1 else {"done": 1}]


def test_a_page_that_was_read_while_a_task_ran_shows_what_it_has_asked_since():
    """The question stands beside the origin of its task; the newest checkpoint does not change with it."""
    index = ThreadIndex("t")

    @task
    def call():
        return 1

    def long(state):
        call().result()
        look = threading.Thread(target=lambda: (index.refresh(app), pages.steps()))
        look.start()
        look.join()
        return {"log": [interrupt("really?")]}

    app = beside_a_chain(InMemorySaver(), long)
    pages = ThreadPages(app, index)
    with ends_in("a", "b", "c", "long"):
        app.invoke(EMPTY, CONFIG)
    index.refresh(app)
    assert '"long": {"paused": 1}' in json.dumps(pages.steps())


def look_at_open_step(app):
    """What a page shows of it while a run is in progress, from another thread than that of the task that looks."""
    pages = pages_of(app, busy_since=1e12)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(pages.step, "open").result()


@pytest.mark.parametrize("nested", [False, True])
def test_a_blocked_node_is_not_shown_as_running(nested):
    """c has triggered d, and long, which leads to d as well, goes on with its answer."""
    seen = []

    def long(state):
        interrupt("really?")
        seen.append(look_at_open_step(app))
        return {"log": ["long"]}

    app = beside_a_chain(InMemorySaver(), long)
    if nested:
        app = ready("S>box", nodes={"box": app.copy({"checkpointer": None})})
    with ends_in("box", "a", "b", "c", "long"):
        app.invoke(EMPTY, CONFIG)
        app.invoke(Command(resume="yes"), CONFIG)
    before = "box:" if nested else ""
    [shown] = [step["u"] for step in seen]
    assert shown[f"{before}d"] == {"waiting": 1}
    assert shown[f"{before}long"] == {"running": 1}
    assert not nested or shown["box"] == {"running": 1}


def test_a_task_that_failed_some_steps_ago_is_shown_as_running_when_it_runs_again():
    seen = []

    def long(state):
        seen.append(look_at_open_step(app))
        if len(seen) == 1:
            raise ValueError("no luck")
        return {"log": ["long"]}

    app = beside_a_chain(InMemorySaver(), long, on_failure="finish")
    with ends_in("a", "long", "b", "c"):
        with pytest.raises(ValueError, match="no luck"):
            app.invoke(EMPTY, CONFIG)
        app.invoke(None, CONFIG)
    assert seen[1]["u"] == {"d": {"waiting": 1}, "long": {"running": 1}}


def test_the_steps_of_a_page_are_those_of_the_report_wherever_it_begins(tmp_path):
    inner = build("S>p>q").compile(schedule="ready", name="inner")
    app = beside_a_chain(InMemorySaver(), inner)
    with ends_in("a", "b", "c", "p", "q", "long"):
        app.invoke(EMPTY, CONFIG)
    whole = pages_of(app).steps(nested=True)["steps"]
    parts = [pages_of(app).steps(first=place, count=1, nested=True)["steps"] for place in range(len(whole))]
    nodes = [sorted(step.get("u", {})) for step in whole]
    assert [sorted(step.get("u", {})) for (step,) in parts] == nodes
    assert ["long", "long:p", "long:q"] in nodes, whole


def test_checkpoints_are_shown_with_all_that_is_pending(drive):
    thread = drive.on(ready("S>a>d S>long>d S>b"))
    with ends_in("a", "long", "d"):
        chunks = thread.stream(EMPTY, stream_mode=["checkpoints", "debug"], interrupt_before=["b"])
    shown = [data for mode, data in chunks if mode == "checkpoints"]
    history = thread.history()[::-1]
    assert [tuple(each["next"]) for each in shown] == [each.next for each in history]
    assert [[each["id"] for each in chunk["tasks"]] for chunk in shown] == [
        [each.id for each in snapshot.tasks] for snapshot in history
    ]
    assert shown[2]["next"] == ["b", "d", "long"]
    steps = [(data["payload"]["name"], data["step"]) for _, data in chunks if data.get("type", "").startswith("task")]
    assert steps == [("a", 1), ("long", 1), ("a", 1), ("long", 1), ("d", 3), ("d", 3)]


@pytest.mark.parametrize("stored", ["memory", "sqlite"])
def test_a_history_shows_what_each_state_shows(drive, tmp_path, stored):
    """Also the questions of tasks that have started at an earlier checkpoint."""
    saver = InMemorySaver() if stored == "memory" else SqliteSaver(str(tmp_path / "threads.db"))
    thread = drive.on(ready("S>a>b>c S>long", nodes={"long": ask}, saver=saver))
    with ends_in("a", "b", "c", "long"):
        thread.invoke(EMPTY)
    history = thread.history()
    assert [each.next for each in history[:-1]] == [("long",), ("c", "long"), ("b", "long"), ("a", "long")]
    assert all(each.interrupts == history[0].interrupts != () for each in history[:-1])
    assert [each.tasks for each in history] == [thread.get_state(each.config).tasks for each in history]


def test_checkpoints_are_shown_with_waiting_tasks_that_start_in_them(drive):
    """b waits for x, which then leads elsewhere."""
    app = ready("S>a>b r:x=b|E S>x", {"x": lambda _: END})
    with ends_in("a", "x", "b"):
        chunks = drive.stream(app, EMPTY, CONFIG, stream_mode=["checkpoints", "debug"])
    shown = [data["next"] for mode, data in chunks if mode == "checkpoints"]
    assert shown == [["__start__"], ["a", "x"], ["b", "x"], ["b"], []]


def test_a_resumed_stream_shows_the_stored_metadata(drive):
    thread = drive.on(beside_a_chain(InMemorySaver(), ask))
    thread.invoke(EMPTY)
    stored = thread.state.metadata
    chunks = thread.stream(Command(resume="yes"), stream_mode="checkpoints")
    assert chunks[0]["metadata"] == stored


def list_inputs(app, node):
    steps = read_trace(app, CONFIG, texts=True).steps
    return [task.input for step in steps for task in step.all_tasks() if task.node == node]


@pytest.mark.parametrize("looked_at_by", ["ready", "supersteps"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_task_is_shown_with_the_input_that_it_was_called_with(nested, looked_at_by):
    """It has read the state at its origin, also if it ends some steps later."""
    seen = []

    def long(state):
        seen.append(state)
        return {"log": ["long"]}

    saver = InMemorySaver()
    graph = build("S>a>b>c S>long", nodes={"long": long})
    if nested:
        graph = build("S>box", nodes={"box": graph.compile(schedule="ready")})
    with ends_in("box", "a", "b", "c", "long"):
        ready(graph, saver=saver).invoke(EMPTY, CONFIG)
    app = graph.compile(saver, schedule=looked_at_by)
    assert [str(each) for each in seen] == list_inputs(app, "box:long" if nested else "long") == ["{'log': []}"]


def test_a_task_that_failed_is_shown_with_the_input_that_it_was_called_with(tmp_path):
    def long(state):
        raise ValueError("no luck")

    app = beside_a_chain(InMemorySaver(), long, on_failure="finish")
    with ends_in("a", "b", "c", "long"), pytest.raises(ValueError, match="no luck"):
        app.invoke(EMPTY, CONFIG)
    assert {*list_inputs(app, "long")} == {"{'log': []}"}
    pages = pages_of(app)
    [shown] = [task for task in pages.tasks("open")["tasks"] if task["node"] == "long"]
    assert pages.task("open", shown["id"])["input"] == "{'log': []}"
    app.update_state(CONFIG, {"log": ["edit"]}, as_node="c")  # it starts again there
    with pytest.raises(ValueError, match="no luck"):
        app.invoke(None, CONFIG)
    assert list_inputs(app, "long")[-1] == "{'log': ['a', 'b', 'c', 'edit']}"


def test_a_task_whose_origin_was_deleted_is_shown_with_its_new_input():
    app = beside_a_chain(InMemorySaver(), ask)
    with ends_in("a", "b", "c", "long"):
        app.invoke(EMPTY, {**CONFIG, "run_id": "first"}, interrupt_before=["b"])
        app.invoke(None, {**CONFIG, "run_id": "second"})
    [shown] = [task for task in app.get_state(CONFIG).tasks if task.name == "long"]
    assert shown.input == EMPTY and list_inputs(app, "long")[-1] == "{'log': []}"
    app.checkpointer.delete_for_runs(["first"])
    assert list_inputs(app, "long")[-1] == "{'log': ['a', 'b', 'c']}"


@pytest.mark.parametrize("nested", [False, True])
def test_an_open_failure_is_shown_once(tmp_path, nested):
    """The step in which its task started shows only its bar; after the next call it is an earlier error."""
    luck = ["no", "no"]

    def long(state):
        if luck:
            raise ValueError(f"luck {luck.pop()}")
        return {"log": ["long"]}

    app = beside_a_chain(InMemorySaver(), build("S>p", nodes={"p": long}).compile() if nested else long, on_failure="finish")
    with ends_in("a", "p", "long", "b", "c"), pytest.raises(ValueError, match="luck no"):
        app.invoke(EMPTY, CONFIG)
    page = report(app, CONFIG, tmp_path / "run.html").read_text()
    assert "Earlier errors" not in page
    assert '"s":"handled"' not in page
    assert f"{TIMES}2" not in page
    assert str(changes(app, CONFIG)).count("raised") == 1
    assert "✗" in str(timeline(app, CONFIG))
    pages = pages_of(app)
    shown = pages.steps()
    [began] = [step for step in shown["steps"] if "long" in step.get("w", ())]
    assert [step.get("s") for step in (began, shown["open"])] == [None, "failed"]
    assert "long" not in began["u"]
    assert "s" not in (pages.step(began["c"]) or {})
    luck.clear()
    app.invoke(None, CONFIG)
    assert "Earlier errors" in report(app, CONFIG, tmp_path / "run.html").read_text()


def test_a_failure_that_an_error_handler_takes_stays_an_earlier_error(tmp_path):
    def long(state):
        raise ValueError("no luck")

    graph = build("S>a>b>c")
    graph.add_node("long", long, error_handler=lambda state: {"log": [interrupt("go on?")]})
    app = ready(graph.add_edge("__start__", "long"))
    app.invoke(EMPTY, CONFIG)
    app.invoke(Command(resume="yes"), CONFIG)
    assert "Earlier errors" in report(app, CONFIG, tmp_path / "run.html").read_text()
    assert str(changes(app, CONFIG)).count("long raised") == 1


def test_a_running_task_of_a_removed_node_is_shown_with_its_interrupt():
    saver = InMemorySaver()
    graph = build("S>a>b>c S>long S>other", nodes={"long": ask, "other": ask})
    with ends_in("a", "b", "c", "long", "other"):
        ready(graph, saver=saver).invoke(EMPTY, CONFIG)
    trace = read_trace(ready("S>a>b>c", saver=saver), CONFIG)
    told = [(task.name, task.state, [each.value for each in task.questions]) for task in trace.steps[-1].tasks]
    assert sorted(told) == [("long", "paused", ["really?"]), ("other", "paused", ["really?"])]
    [remark] = trace.remarks
    assert "pending work for parts of the graph that are gone" in remark


def test_a_task_that_has_ended_in_the_one_step_of_a_call_is_shown_as_done():
    """With durability "exit", its result is stored nowhere else than in the state."""
    app = beside_a_chain(InMemorySaver(), ask)
    with ends_in("a", "b", "c", "long"):
        app.invoke(EMPTY, CONFIG, durability="exit")
        app.invoke(Command(resume="yes"), CONFIG, durability="exit")
    assert app.get_state(CONFIG).next == ()
    shown = [(task.name, task.state) for step in read_trace(app, CONFIG).steps for task in step.tasks]
    assert ("long", "done") in shown and not any(state == "paused" for _, state in shown)
