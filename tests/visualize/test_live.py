"""`watch` returns what `invoke` returns, and shows the run meanwhile."""

from __future__ import annotations

import asyncio
import io
import itertools
import sys
import threading
import time
import warnings
from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from kit.drive import cancel, each_case
from kit.graph_specs import Described, build, history, plain
from kit.graph_specs import given as taken
from kit.graphs import CONFIG, EMPTY, Log, chain_of, graph_of, thread_config
from kit.programs import printed
from kit.random_graphs import graphs
from kit.recording_view import Seen

import stategraph
from stategraph import (
    END,
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    RetryPolicy,
    RunControl,
    Send,
    StateGraph,
    entrypoint,
    interrupt,
    task,
    visualize,
)
from stategraph.visualize.extract import extract
from stategraph.visualize.labels import TIMES
from stategraph.visualize.live import view as live_view
from stategraph.visualize.live.progress import Progress, TaskEnded, TaskStarted
from stategraph.visualize.live.view import PERIOD
from stategraph.visualize.live.watch import awatch, watch

PATIENCE = 10.0  # seconds until a test that waits for a view gives up


def graph(*names, **bodies):
    """A chain of nodes in the order of the alphabet: those that have no body log their name."""
    builder = StateGraph(Log)
    chain = sorted([*names, *bodies])
    for name in chain:
        builder.add_node(name, bodies.get(name, lambda state, name=name: {"log": [name]}))
    for start, end in zip([START, *chain], [*chain, END], strict=True):
        builder.add_edge(start, end)
    return builder


def shown(drive, app, value, config=None, **options):
    """What `watch` returns, and what the view has seen."""
    seen = options.setdefault("view", Seen())
    return drive.call(visualize, "watch", app, value, config, **options), seen


# -- the run is the same --------------------------------------------------------------------------------------


def format_error(drive, described: Described, owner, method, **options):
    """How each input ends on one thread, up to the first error, and the thread's history."""
    app = build(described, stategraph, is_async=drive.is_async, saver=InMemorySaver())
    config = {**CONFIG, "recursion_limit": 7}  # nested graphs double what they are given
    ends = []
    for value in described["inputs"]:
        call = (owner or app, method, *([app] if owner else []), taken(value, stategraph), config)
        try:
            ends.append(plain(drive.call(*call, **options)))
        except Exception as error:
            ends.append((type(error).__name__, str(error)))
            break
    return ends, history(app, config)


@pytest.mark.trial
@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
@settings(max_examples=max(1, settings.default.max_examples // 2), suppress_health_check=[*HealthCheck])
@given(described=graphs(failures=True), xray=st.booleans())
def test_watching_any_graph_gives_the_same_result_and_the_same_history(drive, described, xray):
    seen = Seen()
    watched = format_error(drive, described, visualize, "watch", xray=xray, view=seen)
    assert watched == format_error(drive, described, None, "invoke")
    assert seen.progress.over and "running" not in seen.states.values()


@pytest.mark.trial
@pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")
@settings(max_examples=max(1, settings.default.max_examples // 2), suppress_health_check=[*HealthCheck])
@given(described=graphs(), xray=st.booleans())
def test_what_is_marked_as_done_is_what_was_called(drive, described, xray):
    """Each node as often as its body was called; nodes of graphs that are not shown, for the node around them."""
    calls = Counter()
    app = build(described, stategraph, is_async=drive.is_async, probe=lambda name, given: calls.update([name]))
    seen = Seen()
    try:
        shown(drive, app, taken(described["inputs"][0], stategraph), {"recursion_limit": 7}, view=seen, xray=xray)
    except Exception as error:
        event(f"ends with {type(error).__name__}")
    assume(seen.progress.state == "done")
    bodies = {name.replace("/", ":") if xray else name.split("/")[0] for name in calls}
    holders = {name.rpartition(":")[0] for name in bodies} - {""}
    assert {id for id, state in seen.states.items() if state == "done"} == bodies | holders
    rows = seen.progress.rows(0.0)
    assert all(row.runs == calls[row.label] for row in rows if row.depth == 0 and calls[row.label])
    assert not any(row.left for row in rows)


@each_case(
    "options",
    [
        {"stream_mode": "updates"},
        {"stream_mode": ["updates", "tasks"], "subgraphs": True, "version": "v2"},
        {"version": "v2"},
        {"output_keys": "log"},
        {"interrupt_before": ["b"]},
        {"durability": "exit"},
    ],
)
def test_options_of_invoke_mean_the_same(drive, options):
    watched, _ = shown(drive, graph("a", "b").compile(InMemorySaver()), {"log": []}, CONFIG, **options)
    plain_app = graph("a", "b").compile(InMemorySaver())
    invoked = drive.invoke(plain_app, EMPTY, CONFIG, **options)
    if "tasks" in options.get("stream_mode", ()):
        watched, invoked = [[(p["type"], p["ns"]) for p in parts] for parts in (watched, invoked)]
    assert watched == invoked


def test_a_lone_node_runs_on_the_thread_that_it_runs_on_without_a_view():
    threads = []
    app = graph(a=lambda state: threads.append(threading.current_thread())).compile()
    watch(app, {"log": []}, view=Seen())
    assert threads == [threading.current_thread()]


def test_an_interrupt_is_returned_as_from_invoke_and_shown(drive):
    app = graph("b", a=lambda state: {"log": [interrupt("really?")]}).compile(InMemorySaver())
    result, seen = shown(drive, app, {"log": []}, CONFIG)
    assert [question.value for question in result["__interrupt__"]] == ["really?"]
    assert seen.states == {"a": "paused", "b": "waiting"}
    assert seen.progress.notes() == ["a asks: really?"]
    result, seen = shown(drive, app, Command(resume="yes"), CONFIG)
    assert result == {"log": ["yes", "b"]}
    assert seen.states == {"a": "done", "b": "done"} and not seen.progress.notes()


def test_an_error_is_raised_as_it_is_and_shown(drive):
    wrong = ValueError("no luck")

    def fail(state):
        raise wrong

    seen = Seen()
    with pytest.raises(ValueError) as caught:
        shown(drive, graph("b", a=fail).compile(), {"log": []}, view=seen)
    assert caught.value is wrong
    assert seen.marks[-1] == {"a": ("failed", "ValueError"), "b": ("waiting", "")}
    assert seen.progress.state == "failed" and seen.progress.notes() == ["ValueError: no luck"]


def test_ctrl_c_in_a_node_ends_the_run_and_the_view_says_so():
    def stop(state):
        raise KeyboardInterrupt

    seen = Seen()
    with pytest.raises(KeyboardInterrupt):
        watch(graph("a", b=stop).compile(), {"log": []}, view=seen)
    assert seen.progress.state == "stopped" and seen.marks[-1]["b"] == ("failed", "stopped")
    assert seen.headlines[-1].startswith("stopped in superstep 2")
    assert seen.progress.supersteps[-1].halted == {"b": "stopped"}


async def test_a_cancelled_run_is_shown_as_stopped():
    seen = Seen()
    entered = asyncio.Event()

    async def hang(state):
        entered.set()
        await asyncio.Event().wait()

    watching = asyncio.create_task(awatch(graph(a=hang).compile(), {"log": []}, view=seen))
    await entered.wait()
    await cancel(watching)
    assert seen.progress.state == "stopped" and seen.marks[-1]["a"][0] == "failed"


def test_a_drained_run_is_shown_as_stopped(drive):
    control = RunControl()
    app = graph("b", a=lambda state: control.request_drain("enough")).compile()
    seen = Seen()
    with pytest.raises(GraphDrained):
        shown(drive, app, {"log": []}, control=control, view=seen)
    assert seen.progress.state == "stopped" and seen.states == {"a": "done", "b": "waiting"}


def test_a_graph_watched_inside_a_node_pauses_the_graph_around_it():
    inner = graph(ask=lambda state: {"log": [interrupt("really?")]}).compile()
    seen = Seen()
    outer = graph(a=lambda state: watch(inner, {"log": []}, view=seen)).compile(InMemorySaver())
    assert outer.invoke(EMPTY, CONFIG)["__interrupt__"][0].value == "really?"
    assert seen.progress.state == "paused" and seen.progress.notes() == ["ask asks: really?"]
    assert outer.invoke(Command(resume="yes"), CONFIG) == {"log": ["yes"]}


# -- what is shown --------------------------------------------------------------------------------------------


def test_a_view_sees_a_node_while_it_runs(drive):
    """The node waits until it has been drawn as running."""
    drawn = threading.Event()
    seen = Seen(lambda seen: drawn.set() if seen.marks[-1]["b"][0] == "running" else None)
    app = graph("a", b=lambda state: {"log": [str(drawn.wait(PATIENCE))]}).compile()
    result, _ = shown(drive, app, {"log": []}, view=seen)
    assert result == {"log": ["a", "True"]}
    assert {"a": ("done", seen.marks[-1]["a"][1]), "b": ("running", "")} in seen.marks


@pytest.mark.trial
def test_it_is_drawn_some_ten_times_a_second_and_no_more(drive):
    builder = chain_of(Log, a=lambda state: {"log": ["x"]}).add_conditional_edges(
        "a", lambda state: "a" if len(state["log"]) < 2000 else END, ["a", END]
    )
    started = time.monotonic()
    _, seen = shown(drive, builder.compile(), {"log": []})
    assert len(seen.progress.supersteps) == 2000
    assert len(seen.headlines) <= 3 + (time.monotonic() - started) / PERIOD


def test_a_view_that_is_slow_to_draw_is_drawn_less_often():
    def pause(seconds):
        clock = itertools.count(0.0, seconds).__next__
        show = live_view.ViewUpdater(extract(graph("a").compile()), Seen(), clock)
        show.start()
        show.end(None)
        return show.pause

    assert pause(0.001) == PERIOD
    assert pause(0.5) == 0.5 / live_view.SHARE


def test_the_first_picture_with_its_imports_does_not_hold_up_the_next():
    clock = itertools.count(0.0, 0.5).__next__
    seen = threading.Event()
    show = live_view.ViewUpdater(extract(graph("a").compile()), Seen(lambda _: seen.set()), clock)
    show._thread = threading.Thread()  # only the first picture
    show.start()
    assert seen.is_set() and show.pause == PERIOD


def test_a_resume_distinguishes_restored_tasks_from_those_it_runs(drive):
    lines = io.StringIO()
    failing = [True]

    def charge(state):
        if state["log"] == ["2"] and failing:
            raise ValueError("declined")
        return {"log": ["paid"]}

    builder = graph_of(Log, "S>plan", charge=charge)
    builder.add_conditional_edges("plan", lambda s: [Send("charge", {"log": [str(n)]}) for n in range(3)], ["charge"])
    app = builder.compile(InMemorySaver())
    with pytest.raises(ValueError, match="declined"):
        shown(drive, app, {"log": []}, CONFIG)
    failing.clear()
    _, seen = shown(drive, app, None, CONFIG)
    assert seen.marks[0] == {"plan": ("done", "earlier"), "charge": ("waiting", "")}
    marks = {name: (mark, note.rpartition(" · ")[2]) for name, (mark, note) in seen.marks[-1].items()}  # without the time it took
    assert marks == {"plan": ("done", "earlier"), "charge": ("done", "2 kept")}
    assert seen.headlines[-1].startswith("done · 1 superstep · 1 task · 2 kept")
    live_view.Lines(lines).draw(seen.progress, 0.0)
    assert lines.getvalue().startswith("superstep 1: charge (2 kept) (")


def test_a_new_input_starts_with_all_nodes_waiting(drive):
    app = graph("a").compile(InMemorySaver())
    app.invoke(EMPTY, CONFIG)
    assert shown(drive, app, {"log": []}, CONFIG)[1].marks[0] == {"a": ("waiting", "")}


def test_the_clock_of_the_view_advances_without_events():
    twice = threading.Event()
    seen = Seen(lambda seen: twice.set() if sum("superstep 1" in line for line in seen.headlines) > 2 else None)
    app = graph(a=lambda state: {"log": [str(twice.wait(PATIENCE))]}).compile()
    assert watch(app, {"log": []}, view=seen) == {"log": ["True"]}


NESTINGS = [(None, None), (True, None), (None, True), (True, True)]


@pytest.mark.parametrize(("outer", "inner"), NESTINGS, ids=str)
def test_nested_tasks_are_shown_in_their_place_whatever_keeps_their_history(drive, outer, inner):
    leaf = graph("leaf").compile(inner)
    middle = graph(middle=leaf).compile(outer)
    app = graph(top=middle).compile(InMemorySaver())
    result, seen = shown(drive, app, {"log": []}, CONFIG, xray=True)
    assert result == {"log": ["leaf"]}
    assert seen.states == {"top": "done", "top:middle": "done", "top:middle:leaf": "done"}
    assert seen.progress.tasks == 3
    again = thread_config("2")
    chunks = drive.stream(app, EMPTY, again, stream_mode="tasks", subgraphs=True)
    assert [live_view.place_of(ns) for ns, data in chunks if "triggers" in data] == [(), ("top",), ("top", "middle")]


def test_a_stream_can_be_watched_and_read_at_once(drive):
    events = []
    observer = live_view.RunEvents(events.append, lambda: 0.0)
    app = graph("a").compile()
    assert drive.stream(app, EMPTY, stream_mode="updates", observer=observer) == [{"a": {"log": ["a"]}}]
    assert events == [TaskStarted(0.0, (), "a", 1), TaskEnded(0.0, (), "a")]


def test_graphs_run_by_a_function_are_shown_once_known():
    first, second = graph("x").compile(), graph("y").compile()

    def both(state):
        return {"log": first.invoke(state)["log"] + second.invoke(state)["log"]}

    app = graph(both=both).compile()
    seen = Seen()
    watch(app, {"log": []}, xray=True, view=seen)
    assert seen.states == {"both": "done"} and seen.progress.tasks == 3
    watch(app, {"log": []}, xray=True, view=seen)
    assert {id: state for id, state in seen.states.items() if id in ("both:x", "both|1:y")} == {
        "both:x": "done",
        "both|1:y": "done",
    }


def test_a_breakpoint_inside_marks_the_node_around_it_too(drive):
    inner = graph("x", "y").compile(interrupt_before=["y"])
    app = graph(sub=inner).compile(InMemorySaver())
    _, seen = shown(drive, app, {"log": []}, CONFIG, xray=True)
    assert seen.states == {"sub": "paused", "sub:x": "done", "sub:y": "paused"}
    assert seen.progress.state == "paused"


def test_error_handlers_are_shown(drive):
    def fail(state):
        raise OSError("disk")

    builder = StateGraph(Log).add_node("fail", fail, error_handler=lambda state, error: {"log": ["handled"]})
    result, seen = shown(drive, builder.add_edge(START, "fail").compile(), {"log": []})
    assert result["log"] == ["handled"]
    assert seen.marks[-1]["fail"] == ("failed", "OSError")
    assert seen.states["__error_handler__fail"] == "done"
    assert seen.progress.state == "done" and len(seen.progress.supersteps) == 1


def test_functions_that_an_entrypoint_calls_are_counted(drive):
    if drive.is_async:

        @task
        async def square(n):
            return n * n

        @entrypoint()
        async def total(ns):
            return sum(await asyncio.gather(*(square(n) for n in ns)))
    else:

        @task
        def square(n):
            return n * n

        @entrypoint()
        def total(ns):
            return sum(future.result() for future in [square(n) for n in ns])

    result, seen = shown(drive, total, [1, 2, 3])
    assert result == 14
    assert [(row.label, row.runs) for row in seen.progress.rows(0.0)] == [("total", 1), ("square", 3)]


# -- when the view breaks -------------------------------------------------------------------------------------


def test_a_view_that_breaks_is_left_alone_with_one_warning(drive):
    def broken(seen: Seen):
        raise OSError("the screen is gone")

    seen = Seen(broken)
    with pytest.warns(RuntimeWarning, match="the view of this run failed.*OSError: the screen is gone") as caught:
        result, _ = shown(drive, graph("a", "b").compile(), {"log": []}, view=seen)
    assert result == {"log": ["a", "b"]}
    assert len(seen.headlines) == 1 and len(caught) == 1


def test_where_warnings_are_errors_a_broken_view_still_does_not_reach_the_run(drive):
    class Broken:
        def draw(self, progress: Progress, now):
            raise OSError

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert shown(drive, graph("a").compile(), {"log": []}, view=Broken())[0] == {"log": ["a"]}


class Unspeakable:
    """A value and an error that cannot be shown."""

    def __repr__(self):
        raise RuntimeError

    __str__ = __repr__


def test_values_and_errors_that_cannot_be_shown_are_named_by_their_type():
    assert "Unspeakable" in live_view.format_question(Unspeakable())
    assert live_view.format_error(type("Mute", (Exception,), {"__str__": Unspeakable.__repr__})()) == "Mute"


# -- mistakes -------------------------------------------------------------------------------------------------


def test_what_cannot_be_watched_is_refused_before_anything_runs():
    with pytest.raises(TypeError, match=r"app must be a compiled graph, got StateGraph: compile\(\) it first"):
        watch(graph("a"), {"log": []})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='view must be "notebook", "table", "lines" or an object with a draw method'):
        watch(graph("a").compile(), {"log": []}, view="picture")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown option 'streem_mode'"):
        watch(graph("a").compile(), {"log": []}, view=Seen(), streem_mode="values")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="watch has an observer of its own"):
        watch(graph("a").compile(), {"log": []}, view=Seen(), observer=live_view.RunEvents(lambda event: None))


def test_a_view_that_needs_what_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ModuleNotFoundError, match=r'view="table" needs rich: pip install -e "\.\[rich\]"'):
        watch(graph("a").compile(), {"log": []}, view="table")


def test_outside_a_notebook_and_a_terminal_the_view_is_plain_lines(capsys):
    assert watch(graph("a", "b").compile(), {"log": []}) == {"log": ["a", "b"]}
    out, err = capsys.readouterr()
    assert out == "" and "\x1b" not in err
    assert [line.split(" (")[0].split(" · ")[0] for line in err.splitlines()] == [
        "superstep 1: a",
        "superstep 2: b",
        "done",
    ]


# -- invoke(progress=) ----------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """A view that keeps what it was given, in the place of plain lines."""
    view = Seen()
    monkeypatch.setitem(live_view.VIEWS, "lines", (lambda: view, "", ""))
    return view


def test_a_call_with_progress_is_shown_and_returns_the_same(drive, seen):
    app = graph("a", "b").compile()
    assert drive.invoke(app, EMPTY, progress=True) == drive.invoke(app, EMPTY)
    assert seen.states == {"a": "done", "b": "done"}
    assert drive.stream(app, EMPTY, progress="lines", stream_mode="updates") == [{"a": {"log": ["a"]}}, {"b": {"log": ["b"]}}]
    assert drive.invoke(app, EMPTY, progress="lines", stream_mode="updates", debug=True)[0] == {"a": {"log": ["a"]}}


def test_a_map_reduce_shows_tasks_done_of_known_rate_and_remaining_time(drive, seen):
    """The last ten tasks wait until it has been seen that the others have ended."""
    told, paces = threading.Event(), []

    def look(view: Seen):
        if view.headlines[-1].startswith("superstep 1 · 40 of 50 tasks"):
            paces.append(view.progress.pace(time.monotonic()))
            if "left" in paces[-1]:
                told.set()

    def work(number):
        if number >= 40:
            assert told.wait(PATIENCE)
        return {"log": [str(number)]}

    seen.on_draw = look
    builder = StateGraph(Log).add_node("work", work)
    builder.add_conditional_edges(START, lambda state: [Send("work", n) for n in range(50)], ["work"])
    result = drive.invoke(builder.compile(), EMPTY, {"max_concurrency": 50}, progress=True)
    assert len(result["log"]) == 50
    assert "/s · about " in paces[-1] and paces[-1].endswith(" left")


def test_a_retry_is_counted_while_its_task_still_runs(drive, seen):
    told, tries = threading.Event(), itertools.count()

    def look(view: Seen):
        if view.progress.pace(time.monotonic()).endswith("1 retry"):
            told.set()

    def work(number):
        if number == 0 and next(tries) == 0:
            raise ConnectionError
        assert told.wait(PATIENCE)
        return {"log": [str(number)]}

    seen.on_draw = look
    builder = StateGraph(Log).add_node("work", work, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    builder.add_conditional_edges(START, lambda state: [Send("work", n) for n in range(2)], ["work"])
    assert len(drive.invoke(builder.compile(), EMPTY, progress=True)["log"]) == 2
    assert seen.marks[-1]["work"][1] == f"{TIMES}2 · 1 retry"


def test_other_observers_of_the_call_get_events_too(drive, seen):
    events = []
    other = live_view.RunEvents(events.append, lambda: 0.0)
    drive.invoke(graph("a").compile(), EMPTY, progress=True, observer=other)
    assert [type(event) for event in events] == [TaskStarted, TaskEnded] and seen.states == {"a": "done"}


def test_a_reader_that_leaves_early_ends_the_view(drive, seen):
    app = graph("a", "b").compile()
    assert drive.stream(app, EMPTY, progress=True, stream_mode="updates", take=1) == [{"a": {"log": ["a"]}}]
    assert seen.progress.state == "stopped"


def test_a_batch_is_shown_as_a_whole_with_its_inputs_counted(drive, seen):
    def choose(state):
        if state["log"] == ["7"]:
            raise ValueError("no luck")
        return {"log": ["x"]}

    app = graph("a", b=lambda state: choose({"log": state["log"][:1]})).compile()
    results = drive.batch(app, [{"log": [str(n)]} for n in range(20)], progress=True, return_exceptions=True)
    assert [type(each) for each in results].count(ValueError) == 1 and results[0] == {"log": ["0", "a", "x"]}
    assert seen.headlines[-1].startswith("done · 20 of 20 inputs · 1 failed · ")
    assert seen.states == {"inputs": "failed", "inputs:a": "done", "inputs:b": "failed"}
    assert seen.marks[-1]["inputs:a"][1].startswith(f"{TIMES}20")
    assert seen.progress.supersteps[0].failed == 1


def test_a_batch_of_graphs_with_graphs_inside_counts_its_inputs_only(drive, seen):
    inner = graph("x", "y").compile()
    app = chain_of(Log, sub=inner).compile()
    drive.batch(app, [{"log": []}] * 5, progress=True)
    assert seen.headlines[-1].startswith("done · 5 of 5 inputs · ")
    drive.batch(app, [], progress=True)
    assert seen.headlines[-1].startswith("done · ")


def test_the_questions_of_a_batch_are_shown(drive, seen):
    app = graph(a=lambda state: {"log": [interrupt("ok?")]}).compile(InMemorySaver())
    drive.batch(app, [{"log": []}] * 2, [thread_config(str(n)) for n in range(2)], progress=True)
    assert seen.headlines[-1].startswith("paused · 2 of 2 inputs · 2 questions · ")


def test_a_view_that_does_not_exist_is_refused_before_anything_runs(drive):
    app = graph("a").compile()
    for call in (drive.invoke, drive.batch):
        with pytest.raises(ValueError, match='progress must be True, False, "notebook", "table" or "lines", got \'bar\''):
            call(app, [{"log": []}], progress="bar")


def test_a_batch_in_a_terminal_is_a_table_of_rich(monkeypatch):
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    graph("a").compile().batch([{"log": []}] * 3, progress=True)
    text = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "done · 3 of 3 inputs" in text and "━" in text


def test_progress_that_is_off_loads_nothing():
    program = (
        "import sys; from stategraph import START, StateGraph; from typing import TypedDict\n"
        "S = TypedDict('S', {'n': int})\n"
        "app = StateGraph(S).add_node('a', lambda s: {'n': 1}).add_edge(START, 'a').compile()\n"
        "app.invoke({'n': 0}, progress=False); list(app.stream({'n': 0})); app.batch([{'n': 0}], progress=None)\n"
        "print([m for m in sys.modules if 'visualize.live' in m or 'visualize.trace' in m or 'observing' in m])"
    )
    assert printed(program) == "[]\n"
