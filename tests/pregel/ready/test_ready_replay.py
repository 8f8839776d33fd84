"""Recordings of graphs with schedule="ready": a replay takes the recorded steps, however long the tasks took."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.drive import forget_modules
from kit.graphs import CONFIG
from kit.ready_graphs import build, ends_by, ends_in, ends_together, ready, sends
from kit.ready_random import EMPTY, Died, MortalSaver, by_chance, make_graph
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    ConcurrentUpdateError,
    GraphDrained,
    InMemorySaver,
    RunControl,
    Send,
    SqliteSaver,
    StateGraph,
    interrupt,
)
from stategraph.__main__ import main
from stategraph.testing import (
    CheckFailed,
    Recording,
    ReplayDiffers,
    ThreadError,
    arecord,
    areplay,
    measure_coverage,
    read_thread,
    record,
    replay,
    survives,
)

pytestmark = pytest.mark.filterwarnings("ignore::stategraph.GraphWarning")


def ask(state):
    return {"log": [interrupt("which?")]}


def steps_of(recording: Recording):
    return [" ".join(task.node for task in step) for run in recording.runs for step in run.steps]


def check(drive, app, *expected):
    """A thread of this graph has these steps; its replays, with its nodes and without, take the same."""
    recording = Recording.from_json(json.loads(json.dumps(read_thread(app, CONFIG).to_json())))
    assert steps_of(recording) == list(expected)
    for recorded in ((), "*"):
        if drive.is_async:
            again = asyncio.run(areplay(recording, app, recorded=recorded))
        else:
            again = replay(recording, app, recorded=recorded)
        assert steps_of(again) == list(expected)


def call(app, given, *order):
    with ends_in(*order):
        return app.invoke(given, CONFIG)


# -- the order of ends ---------------------------------------------------------------------------------------------


def test_several_inputs_have_their_orders(drive):
    app = ready("S>a>c S>b>d")
    call(app, EMPTY, "a", "b", "c", "d")
    call(app, EMPTY, "b", "d", "a", "c")
    check(drive, app, "a", "b", "c", "d", "b", "d", "a", "c")


@pytest.mark.parametrize("outer", ["ready", "supersteps"])
def test_graphs_inside_have_their_orders(drive, outer):
    inner = build("S>x>y S>w>z").compile(schedule="ready")
    twice = build("S>p>q S>r", nodes={"p": inner, "r": inner})
    app = twice.compile(InMemorySaver(), schedule=outer)

    def rank(task):
        return ("wzxy" if task.run.ns.startswith("p") else "xywz").find(task.name)

    with ends_by(rank):
        app.invoke(EMPTY, CONFIG)
    (run,) = read_thread(app, CONFIG).runs
    inside = {task.node: [step[0].node for step in task.steps] for step in run.steps for task in step if task.steps}
    assert sorted(inside) == ["p", "r"]
    assert inside["p"] != inside["r"]
    check(drive, app, *steps_of(read_thread(app, CONFIG)))


# -- pauses, failures, races ---------------------------------------------------------------------------------------


def test_a_question_is_asked_and_answered_where_it_was(drive):
    app = ready("S>a>b>c S>d>e [c,e]>f", nodes={"a": ask})
    call(app, EMPTY, "d", "e")
    call(app, Command(resume="this"), "a")
    check(drive, app, "d", "e", "a", "b", "c", "f")


def test_questions_that_are_open_stay_open(drive):
    app = ready("S>a>b S>c>d S>x>y", nodes={"a": ask, "c": ask})
    result = call(app, EMPTY)
    first = next(q for q in result["__interrupt__"])
    call(app, Command(resume={first.id: "this"}))
    check(drive, app, "x", "y", "a", "b", "c")


def test_what_ended_with_an_answered_task_after_ctrl_c_ends_with_it(drive):
    """It was cut off beside the question, and ended in the call with the answer. Here it ends in the first call."""
    ran = []

    def cut_off(state):
        ran.append("b")
        if len(ran) == 1:
            raise KeyboardInterrupt
        return {"log": ["b"]}

    app = ready("S>a>c S>b>d", nodes={"a": ask, "b": cut_off})
    with pytest.raises(KeyboardInterrupt):
        call(app, EMPTY, "a", "b")
    with ends_together():
        app.invoke(Command(resume="this"), CONFIG)
    check(drive, app, "a b", "c d")
    assert len(ran) == 3, "twice there, and once in the replay that runs it"


def test_a_failure_holds_back_the_recorded_tasks(drive):
    def fail(state):
        raise ArithmeticError("never")

    app = ready("S>a>b S>bad S>c>d", nodes={"bad": fail})
    with pytest.raises(ArithmeticError):
        call(app, EMPTY, "a", "b", "bad")  # c is at work, and ends; d does not start
    check(drive, app, "a", "b", "c", "bad")


@pytest.mark.parametrize("inside", [False, True])
def test_tasks_held_back_by_a_failure_start_where_they_started(drive, inside):
    """b could have started after a. It did so in the second call, and has read what c wrote."""
    ran = []

    def flaky(state):
        ran.append("bad")
        if len(ran) == 1:
            raise ArithmeticError("once")
        return {"log": ["bad"]}

    graph = build("S>a>b S>bad S>c>d", nodes={"bad": flaky, "c": build("S>x").compile()})
    app = ready(build("S>p>q", nodes={"p": graph.compile(schedule="ready")}) if inside else graph)
    with pytest.raises(ArithmeticError):
        call(app, EMPTY, "bad", "a", "c")
    call(app, None, "b", "d", "bad")
    (run,) = read_thread(app, CONFIG).runs
    found = run.steps[0][0] if inside else run
    assert ([step[0].node for step in found.steps], found.held) == (["a", "c", "b", "d", "bad"], (1,))
    check(drive, app, *(["p", "q"] if inside else ["a", "c", "b", "d", "bad"]))


def test_tasks_held_back_by_a_drain_start_where_they_started(drive):
    control = RunControl()

    def stop(state):
        control.request_drain()
        return {"log": ["a"]}

    app = ready("S>a>b S>c>d", nodes={"a": stop})
    with ends_in("a", "c"), pytest.raises(GraphDrained):
        app.invoke(EMPTY, CONFIG, control=control)
    call(app, None, "d", "b")
    check(drive, app, "a", "c", "d", "b")


def test_only_what_could_have_started_was_kept_back(drive):
    app = ready("S>a>c S>b>c S>z r:b=w w>c", {"b": sends("w", 1, 2)}, nodes={"b": ask}, deferred="z")
    call(app, EMPTY, "a")
    call(app, Command(resume="this"), "b", "w", "c", "z")
    assert "held" not in json.dumps(read_thread(app, CONFIG).to_json())
    check(drive, app, "a", "b", "w", "w", "c", "z")


def test_a_write_that_was_refused_is_refused_again(drive):
    class Plain(TypedDict, total=False):
        key: int

    graph = StateGraph(Plain)
    for name, value in (("a", 1), ("b", 2)):
        graph.add_node(name, lambda state, value=value: {"key": value}).add_edge(START, name)
    app = ready(graph)
    with pytest.raises(ConcurrentUpdateError):
        call(app, {}, "a", "b")
    check(drive, app, "a", "b")


def test_an_error_handler_ends_where_it_ended(drive):
    def fail(state):
        raise ArithmeticError("never")

    graph = build("S>a>b S>c>d")
    graph.add_node("bad", fail, error_handler=lambda state: {"log": ["handled"]}).add_edge(START, "bad")
    app = ready(graph)
    call(app, EMPTY, "c", "a", "bad", "__error_handler__bad", "d")
    check(drive, app, "c", "a", "bad __error_handler__bad", "d", "b")


@pytest.mark.parametrize("winner", [0, 2])
def test_the_recorded_racer_wins_and_no_other_runs(drive, winner):
    ran = []

    def run(state):
        ran.append(state["n"])
        return {"log": [str(state["n"])]}

    race = {"S": lambda _: [Send("w", {"n": each}, race="r") for each in range(3)]}
    app = ready("r:S=w w>e", race, nodes={"w": run})
    with ends_by(lambda task: task.send is not None and task.send.arg["n"] != winner):
        app.invoke(EMPTY, CONFIG)
    check(drive, app, "w", "e")
    assert ran == [winner, winner], "in the call, and in the replay that runs it"


# -- where the graph has changed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("S>a>c S>b>d S>n", r"step 1: the list of tasks differs\n  recorded: \['b'\]\n  now:      \['a'\]|step 5"),
        ("S>a>b>d a>c", "step 1: the list of tasks differs"),
    ],
)
def test_the_first_difference_is_named(drive, changed, message):
    app = ready("S>a>c S>b>d")
    call(app, EMPTY, "b", "d", "a", "c")
    recording = read_thread(app, CONFIG)
    with pytest.raises(ReplayDiffers, match=message):
        if drive.is_async:
            asyncio.run(areplay(recording, ready(changed)))
        else:
            replay(recording, ready(changed))


def test_a_run_that_stores_nothing_raises_its_error():
    app = ready("S>a")
    call(app, EMPTY)
    recording = read_thread(app, CONFIG)

    def refuse(given):
        raise ArithmeticError("refused")

    broken = app.copy({"check_input": refuse})
    with pytest.raises(ArithmeticError):
        replay(recording, broken)


# -- what else reads recordings ------------------------------------------------------------------------------------


def test_a_run_that_is_recorded_in_parallel_is_replayed(drive):
    app = build("S>a>c>e S>b>d>e").compile(schedule="ready")
    with ends_in("b", "d", "a", "c"):
        options = {"config": {"max_concurrency": 4}}
        recording = asyncio.run(arecord(app, EMPTY, **options)) if drive.is_async else record(app, EMPTY, **options)
    assert steps_of(recording) == ["b", "d", "a", "c", "e"]
    for config in ({}, {"max_concurrency": 1}, {"max_concurrency": 4}):
        replay(recording, app, config=config)


def test_a_graph_inside_supersteps_is_recorded_one_task_at_a_time():
    """Which of its tasks ends first would be chance."""
    most = [0, 0]

    def note(name):
        def run(state):
            most[0] += 1
            most[1] = max(most)
            time.sleep(0.001)
            most[0] -= 1
            return {"log": [name]}

        return run

    inner = build("S>x S>y", nodes={"x": note("x"), "y": note("y")}).compile(schedule="ready")
    app = build("S>p", nodes={"p": inner}).compile()
    replay(record(app, EMPTY), app)
    survives(app, EMPTY)
    assert most[1] == 1


def test_survives_names_the_setting_by_which_steps_depend_on_chance():
    runs = []

    def begin(state):
        runs.append(state)
        return ["a", "b"]

    app = build("r:S=a|b a>c b>d", {"S": begin}).compile(schedule="ready")
    with (
        ends_by(lambda task: "abcd".find(task.name) * (-1) ** len(runs)),
        pytest.raises(CheckFailed, match="unless max_concurrency is 1"),
    ):
        survives(app, EMPTY, config={"max_concurrency": 2})


def test_coverage_counts_what_a_thread_ran_in_parallel():
    app = ready("S>a>c>e S>b>d>e", nodes={"c": build("S>x S>y").compile(schedule="ready")})
    call(app, EMPTY, "b", "y", "a", "d")
    with measure_coverage(app) as coverage:
        coverage.add_thread(app, CONFIG)
    assert coverage.percent == 100


def test_a_thread_stored_at_its_exit_is_refused():
    app = ready("S>a S>b")
    app.invoke(EMPTY, CONFIG, durability="exit")
    with pytest.raises(ThreadError, match=r'durability="exit"'):
        read_thread(app, CONFIG)


PROGRAM = """
from kit.ready_graphs import build
app = build("S>a>c>e S>b>d>e").compile(schedule="ready")
"""


def test_the_test_that_the_command_writes_passes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command adds to it
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    with SqliteSaver.from_conn_string("t.db") as saver:
        call(ready("S>a>c>e S>b>d>e", saver=saver), EMPTY, "b", "d", "a", "c")
    main(["pytest", "--db", "t.db", "--thread", "t", "program.py:app"])
    assert "1. b" in capsys.readouterr().out
    found = {"__file__": str(tmp_path / "test_thread_t.py")}
    exec(Path("test_thread_t.py").read_text(), found)
    found["test_thread_t"]()
    forget_modules(tmp_path)


# -- all of it -----------------------------------------------------------------------------------------------------

seeds = st.integers(0, 10**6)


@given(seeds, seeds, st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["one", "together", "killed", "failed"]))
def test_every_run_can_be_replayed(graph, order, waves, races, is_async, ends):
    saver = MortalSaver()
    failed = set()

    def fail_once(name):
        if ends == "failed" and crc32(f"{order}{name}".encode()) % 3 == 0 and name not in failed:
            failed.add(name)
            raise ArithmeticError(name)

    app = ready(make_graph(graph, defers=waves, waves=waves, races=races, wait=fail_once), saver=saver)
    todo = EMPTY
    for number in range(200):
        saver.left = 2 if ends == "killed" else -1
        try:
            with ends_together() if ends == "together" else ends_by(by_chance(order + number)):
                app.invoke(todo, CONFIG)
        except (Died, ArithmeticError):
            todo = None
            continue
        waiting = app.get_state(CONFIG).interrupts
        if not waiting:
            break
        todo = Command(resume={question.id: "!" for question in waiting[: 1 + order % 2]})
    recording = Recording.from_json(read_thread(app, CONFIG).to_json())
    for recorded in ((), "*"):
        if is_async:
            asyncio.run(areplay(recording, app, recorded=recorded))
        else:
            replay(recording, app, recorded=recorded)
