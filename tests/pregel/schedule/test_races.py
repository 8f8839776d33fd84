"""`Send(..., race=...)`: the first that finishes wins, and only its writes are applied."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partialmethod
from pathlib import Path
from typing import Annotated, TypedDict

import pytest
from kit import cluster
from kit.crash_points import Killed, killing
from kit.drive import Drive
from kit.graphs import CONFIG

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    Limit,
    RetryPolicy,
    RunControl,
    Runtime,
    Send,
    StateGraph,
    interrupt,
)
from stategraph.checkpoint import Serializer
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.drivers import racing
from stategraph.pregel.drivers.pool import POOL
from stategraph.pregel.errors import NodeTimeoutError
from stategraph.visualize import report, timeline

postgres = cluster.emptied
WAIT = 20


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    after: Annotated[list[str], operator.add]


class Item(TypedDict):
    name: str


class Lost(Exception):
    """A racer that fails."""


@pytest.fixture(params=["supersteps", "ready"], autouse=True)
def schedule(request, monkeypatch):
    """All holds with each schedule."""
    monkeypatch.setattr(StateGraph, "compile", partialmethod(StateGraph.compile, schedule=request.param))
    return request.param  # type: ignore[no-any-return]


in_supersteps = pytest.mark.parametrize("schedule", ["supersteps"], indirect=True)


class Track:
    """What racers do: "win" ends at once, "hang" ends when the test does, "follow" wins once that has begun, "fail", "ask"."""

    def __init__(self):
        self.began = []
        self.ended = []
        self.stopped = []
        self.hanging = threading.Event()
        self.release = threading.Event()
        self.plans = {}

    def plan(self, name):
        self.began.append(name)
        steps = self.plans.get(name)
        return steps.pop(0) if steps else name.rstrip("0123456789")

    def act(self, what, name):
        if what == "fail":
            raise Lost(name)
        answer = interrupt(name) if what == "ask" else ""
        self.ended.append(name)
        return {"log": [f"{name}{answer}"]}

    def run(self, item: Item):
        what = self.plan(item["name"])
        if what == "hang":
            self.hanging.set()
            assert self.release.wait(WAIT)
        if what == "follow":  # otherwise it might win before "hang" begins, which then never does
            assert self.hanging.wait(WAIT)
        return self.act(what, item["name"])

    async def arun(self, item: Item):
        what = self.plan(item["name"])
        if what == "hang":
            self.hanging.set()
            try:
                await asyncio.sleep(WAIT)
            except asyncio.CancelledError:
                self.stopped.append(item["name"])
                raise
        assert self.hanging.is_set() or what != "follow"
        return self.act(what, item["name"])


@pytest.fixture
def track():
    made = Track()
    yield made
    made.release.set()


def race_of(builder, names):
    """Let START race these, in a node `run`."""
    return builder.add_conditional_edges(START, lambda state: [Send("run", {"name": n}, race="r") for n in names], ["run"])


def make_app(drive, track, racers, saver=None, *, more=(), **policies):
    """START races `racers`, and sends `more` beside; what comes after says so."""
    sends = [each if isinstance(each, Send) else Send("run", {"name": each}, race="r") for each in racers]
    builder = StateGraph(State)
    builder.add_node("run", track.arun if drive.is_async else track.run, **policies)
    builder.add_node("after", lambda state: {"after": [",".join(state.get("log", []))]})
    builder.add_conditional_edges(START, lambda state: [*sends, *more], ["run"])
    builder.add_edge("run", "after")
    return builder.compile(saver)


# -- who wins -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [True, False])
def test_the_first_that_finishes_wins_and_the_run_does_not_wait_for_the_others(drive, saver, track, stored):
    app = make_app(drive, track, ["hang1", "win", "hang2"], saver if stored else None)
    assert drive.invoke(app, {}, CONFIG if stored else None) == {"log": ["win"], "after": ["win"]}
    assert track.ended == ["win"]
    if drive.is_async:
        assert sorted(track.stopped) == ["hang1", "hang2"], "coroutines are cancelled"


def test_what_an_abandoned_thread_writes_late_is_fenced_off(saver, track):
    app = make_app(Drive(False), track, ["hang", "follow"], saver)
    assert app.invoke({}, CONFIG)["log"] == ["follow"]
    track.release.set()
    for _ in range(500):
        if "hang" in track.ended:
            break
        threading.Event().wait(0.01)
    assert "hang" in track.ended
    assert app.get_state(CONFIG).values == {"log": ["follow"], "after": ["follow"]}
    assert app.invoke({}, CONFIG)["log"][0] == "follow"


def test_a_racer_whose_thread_comes_after_the_race_does_not_begin(saver, track, monkeypatch):
    late = []

    class Pool:
        """Holds the first job back."""

        def submit(self, job):
            POOL.submit(job) if late else late.append(job)

    monkeypatch.setattr(racing, "POOL", Pool())
    app = make_app(Drive(False), track, ["win1", "win2"], saver)
    [winner] = app.invoke({}, CONFIG)["log"]
    late[0]()
    assert track.began == [winner]


def test_of_several_found_finished_together_the_first_in_path_order_wins(drive, saver):
    ready = threading.Barrier(3)

    def run(item: Item):
        ready.wait(WAIT)
        return {"log": [item["name"]]}

    async def arun(item: Item):
        return {"log": [item["name"]]}

    builder = StateGraph(State).add_node("run", arun if drive.is_async else run)
    race_of(builder, "abc")
    result = drive.invoke(builder.compile(saver), {}, CONFIG)["log"]
    assert len(result) == 1 and (result == ["a"] or not drive.is_async)


def test_sends_without_a_race_and_of_other_races_are_not_touched(drive, saver, track):
    racers = [Send("run", {"name": n}, race=r) for n, r in [("hang1", "x"), ("win1", "x"), ("win2", "y"), ("hang2", "y")]]
    app = make_app(drive, track, racers, saver, more=[Send("run", {"name": "win3"})])
    assert sorted(drive.invoke(app, {}, CONFIG)["log"]) == ["win1", "win2", "win3"]


def test_the_sends_of_two_tasks_are_two_races(drive, saver):
    builder = StateGraph(State)
    for name in "ab":
        builder.add_node(name, lambda state, name=name: [Send("run", {"name": name + n}, race="r") for n in "12"], destinations=("run",))
        builder.add_edge(START, name)
    builder.add_node("run", lambda item: {"log": [item["name"][0]]})
    app = builder.compile(saver)
    assert sorted(drive.invoke(app, {}, CONFIG)["log"]) == ["a", "b"]


def test_a_command_given_as_input_races_too(drive, saver, track):
    app = make_app(drive, track, ["win"], saver)
    goto = [Send("run", {"name": name}, race="r") for name in ("hang", "win")]
    assert drive.invoke(app, Command(goto=goto), CONFIG)["log"] == ["win"]


def test_with_max_concurrency_one_the_other_racers_are_not_started(drive, saver, track):
    app = make_app(drive, track, ["fail", "win1", "win2"], saver)
    assert drive.invoke(app, {}, {**CONFIG, "max_concurrency": 1})["log"] == ["win1"]
    assert track.began == ["fail", "win1"]


# -- failures and questions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_failure", ["stop", "finish"])
def test_a_failure_neither_wins_nor_stops_the_others(drive, saver, track, on_failure):
    app = make_app(drive, track, ["fail", "win"], saver)
    assert drive.invoke(app, {}, CONFIG, on_failure=on_failure)["log"] == ["win"]


def test_if_all_fail_the_first_in_path_order_is_raised_with_the_others_in_its_notes(drive, saver, track):
    app = make_app(drive, track, ["fail1", "fail2"], saver)
    with pytest.raises(Lost, match="fail1") as failure:
        drive.invoke(app, {}, CONFIG)
    assert any("fail2" in note for note in failure.value.__notes__)
    track.plans = {"fail2": ["win"]}
    assert drive.invoke(make_app(drive, track, ["fail1", "fail2"], saver), None, CONFIG)["log"] == ["fail2"]


def test_a_question_does_not_win(drive, saver, track):
    thread = drive.on(make_app(drive, track, ["ask", "win"], saver))
    assert thread.invoke({}) == {"log": ["win"], "after": ["win"]}
    assert not thread.state.interrupts


def test_if_none_wins_questions_pause_and_the_answered_one_may_win(drive, saver, track):
    racers = ["fail", "ask1", "ask2"]
    asked = drive.invoke(make_app(drive, track, racers, saver), {}, CONFIG)["__interrupt__"]
    assert [question.value for question in asked] == ["ask1", "ask2"]
    state = drive.get_state(make_app(drive, track, racers, saver), CONFIG)
    assert [task.lost for task in state.tasks] == [False] * 3 and len(state.interrupts) == 2
    done = drive.invoke(make_app(drive, track, racers, saver), Command(resume={asked[1].id: "!"}), CONFIG)
    assert done == {"log": ["ask2!"], "after": ["ask2!"]}
    assert not drive.get_state(make_app(drive, track, racers, saver), CONFIG).next


def test_the_error_handler_of_a_racer_takes_its_place(drive, saver, track):
    def mend(item: Item):
        return {"log": [f"mended {item['name']}"]}

    app = make_app(drive, track, ["fail1", "win"], saver, error_handler=mend)
    assert drive.invoke(app, {}, CONFIG)["log"] == ["win"]
    app = make_app(drive, track, ["fail1", "fail2"], InMemorySaver(), error_handler=mend)
    assert len(drive.invoke(app, {}, CONFIG)["log"]) == 1


def test_a_failure_outside_the_race_fails_the_superstep(drive, saver, track):
    app = make_app(drive, track, ["win", "win2"], saver, more=[Send("run", {"name": "fail"})])
    with pytest.raises(Lost, match="fail"):
        drive.invoke(app, {}, {**CONFIG, "max_concurrency": 1})
    state = drive.get_state(app, CONFIG)
    ran = [s for s in drive.history(app, CONFIG) if len(s.tasks) == 3]
    assert [task.lost for task in ran[0].tasks] == [False, True, False] and "run" in state.next
    track.plans = {"fail": ["win"]}
    track.began.clear()
    fresh = make_app(drive, track, ["win", "win2"], saver)
    assert drive.invoke(fresh, None, CONFIG)["log"] == ["win", "fail"]
    assert track.began == ["fail"], "neither the winner nor the loser runs again"


# -- policies -----------------------------------------------------------------------------------------------------


def test_retries_and_timeouts_belong_to_each_racer(drive, saver, track):
    track.plans = {"fail": ["fail", "fail", "win"]}
    retry = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=Lost)
    app = make_app(drive, track, ["hang", "fail"], saver, retry_policy=retry)
    assert drive.invoke(app, {}, CONFIG)["log"] == ["fail"] and track.began.count("fail") == 3
    slow = [Send("run", {"name": "hang"}, race="r", timeout=0.05), "fail1"]
    app = make_app(drive, track, slow, InMemorySaver())
    with pytest.raises(NodeTimeoutError):
        drive.invoke(app, {}, CONFIG)


def test_a_limit_does_not_delay_the_winner(drive, saver, track):
    """Racers that wait for a place leave the queue; places that losers held are given back."""
    limit = Limit(1)
    app = make_app(drive, track, ["win1", "win2", "win3"], saver, limit=limit)
    for turn in (1, 2):
        assert drive.invoke(app, {}, CONFIG)["log"] == ["win1"] * turn
    app = make_app(drive, track, ["hang", "win"], InMemorySaver(), limit=Limit(2))
    for _ in range(3):
        assert drive.invoke(app, {}, CONFIG)["log"][-1] == "win"


def test_a_loser_keeps_its_recorded_effects(drive, saver):
    charged = []
    had, over = threading.Event(), threading.Event()

    def run(item: Item, runtime: Runtime):
        if item["name"] == "slow":
            runtime.once("charge", charged.append, "slow")
            had.set()
            over.wait(WAIT)
        else:
            assert had.wait(WAIT)
        return {"log": [item["name"]]}

    builder = StateGraph(State).add_node("run", run)
    race_of(builder, ("slow", "quick"))
    app = builder.compile(saver)
    log = drive.invoke(app, {}, CONFIG)["log"]
    over.set()
    assert log == ["quick"] and charged == ["slow"]


def test_graphs_race_as_well(drive, saver, track):
    body = track.arun if drive.is_async else track.run
    inner = StateGraph(State, input_schema=Item).add_node("step", body, input_schema=Item).add_edge(START, "step")
    for memory in (None, True):
        builder = StateGraph(State).add_node("run", inner.compile(memory))
        keys = [(name, name if memory else None) for name in ("hang", "win")]
        builder.add_conditional_edges(
            START, lambda state, keys=keys: [Send("run", {"name": n}, race="r", key=k) for n, k in keys], ["run"]
        )
        app = builder.compile(InMemorySaver() if memory else saver)
        assert drive.invoke(app, {}, CONFIG)["log"] == ["win"]


# -- history ------------------------------------------------------------------------------------------------------


def test_history_shows_losers(drive, saver, track):
    app = make_app(drive, track, ["hang", "win", "fail"], saver)
    drive.invoke(app, {}, CONFIG)
    step = next(s for s in drive.history(app, CONFIG) if len(s.tasks) == 3)
    assert [task.lost for task in step.tasks] == [True, False, True]
    assert [task.result for task in step.tasks] == [None, {"log": ["win"]}, None]


def test_a_replay_and_a_fork_race_again(drive, saver, track):
    track.plans = {"win1": ["win", "fail"]}
    app = make_app(drive, track, ["win1", "hang" if drive.is_async else "ask"], saver)
    assert drive.invoke(app, {}, CONFIG)["log"] == ["win1"]
    step = next(s for s in drive.history(app, CONFIG) if len(s.tasks) == 2)
    track.plans["hang"] = ["win"]
    track.plans["ask"] = ["win"]
    assert drive.invoke(app, None, step.config)["log"] in (["hang"], ["ask"])


def test_streams_show_winners_and_losers(drive, saver, track):
    app = make_app(drive, track, ["ask", "win", "hang"], saver)
    chunks = drive.stream(app, {}, CONFIG, stream_mode=["updates", "tasks"])
    assert [chunk for mode, chunk in chunks if mode == "updates"] == [{"run": {"log": ["win"]}}, {"after": {"after": ["win"]}}]
    ends = [chunk for mode, chunk in chunks if mode == "tasks" and "result" in chunk and chunk["name"] == "run"]
    assert sorted(chunk.get("lost", False) for chunk in ends) == [False, True, True]


def test_a_racer_survives_serialization():
    serde = Serializer()
    send = Send("a", 1, race="r").sent_by("2 ~x")
    again = serde.loads(serde.dumps(send))
    assert again == send and again.sender == "2 ~x" and repr(again) == "Send(node='a', arg=1, race='r')"
    with pytest.raises(TypeError, match="race must be a string"):
        Send("a", 1, race=7)  # type: ignore[arg-type]


# -- killed and resumed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(1, 9))
def test_killed_before_any_storing_call_and_resumed(drive, tmp_path, track, stop, monkeypatch):
    """Once the win is stored nobody else ever wins."""
    monkeypatch.setattr(sys.modules[__name__], "WAIT", 0.2)  # a run that dies waits for functions on threads
    path = str(tmp_path / "threads.db")
    racers = ["win1", "win2", "hang"]
    with SqliteSaver.from_conn_string(path, synchronous="off") as dying, suppress(Killed), killing(dying, stop, stores_first=False):
        drive.invoke(make_app(drive, track, racers, dying), {}, CONFIG)
    with SqliteSaver.from_conn_string(path, synchronous="off") as saver:
        thread = drive.on(make_app(drive, track, racers, saver))
        started = thread.state.metadata is not None
        result = thread.invoke(None if started and thread.state.next else {})
        if not result.get("after"):
            result = thread.state.values
        assert result["log"][0] in ("win1", "win2") and len(result["log"]) == len(result["after"])


@pytest.mark.filterwarnings("ignore:.*has ended without asking")  # a racer that had asked wins when it runs again
@pytest.mark.parametrize("seed", range(12))
def test_random_races_have_one_winner_each_and_the_state_is_that_of_the_winners(drive, seed, track):
    chance = random.Random(seed)
    saver = InMemorySaver()
    races = {f"race{n}": [chance.choice(["win", "fail", "ask"]) for _ in range(chance.randint(1, 4))] for n in range(3)}
    names = {race: [f"{what}{n}{race[-1]}" for n, what in enumerate(whats)] for race, whats in races.items()}
    racers = [Send("run", {"name": name}, race=race) for race, group in names.items() for name in group]
    chance.shuffle(racers)
    for racer in racers:
        track.plans[racer.arg["name"]] = [racer.arg["name"][: -2]] + ["win"] * 3
    config = {**CONFIG, "max_concurrency": chance.choice([1, 2, 8])}
    result = None
    for _ in range(30):
        thread = drive.on(make_app(drive, track, racers, saver))
        given = {} if result is None else None
        state = thread.state
        if result is not None and state.interrupts:
            given = Command(resume={question.id: "" for question in state.interrupts})
        try:
            result = thread.invoke(given, config)
        except Lost:
            result = {}
        if not thread.state.next:
            break
    log = thread.log
    won = {race: [name for name in log if name in group] for race, group in names.items()}
    assert all(len(winners) == 1 for winners in won.values()) and len(log) == len(names), (races, log)


# -- edits --------------------------------------------------------------------------------------------------------


@in_supersteps
def test_an_edit_keeps_the_winner(drive, saver, track):
    """The superstep waits for an answer beside the race; the winner's work is not done again, nor that of the losers."""
    more = [Send("run", {"name": "ask"})]
    thread = drive.on(make_app(drive, track, ["hang", "follow"], saver, more=more))
    assert thread.invoke({})["__interrupt__"]
    thread.update({"after": ["edited"]}, as_node=START)  # whose router leads to all of them again
    assert [task.lost for task in thread.state.tasks] == [True, False, False]
    track.began.clear()
    result = drive.invoke(make_app(drive, track, ["hang", "follow"], saver, more=more), Command(resume="!"), CONFIG)
    assert result["log"] == ["follow", "ask!"] and track.began == ["ask"]


def test_an_edit_distinguishes_racers_and_keys():
    from types import SimpleNamespace

    from stategraph.pregel.run.update_state import match
    from stategraph.pregel.task.task import Task

    run = SimpleNamespace(settings=SimpleNamespace(serde=Serializer()))
    node = SimpleNamespace(name="a")

    def goes_on(before, after):
        old, new = (Task(node, 0, 1, send=Send("a", 1, **each)) for each in (before, after))
        return bool(match(run, [old], [new]))

    assert goes_on({}, {}) and goes_on({"race": "r", "key": "k"}, {"race": "r", "key": "k"})
    assert not goes_on({"race": "r"}, {}) and not goes_on({"key": "k"}, {"key": "j"})


# -- on executors -------------------------------------------------------------------------------------------------


def run_elsewhere(item: Item):
    """In a worker process: "hang" leaves no trace of its end."""
    if item["name"] == "hang":
        time.sleep(WAIT)
    return {"log": [item["name"]]}


@pytest.mark.trial
@in_supersteps  # the executor is told by the driver, which is the same for each schedule
def test_losers_on_processes_are_cancelled(drive):
    from stategraph.executors import ProcessExecutor

    with ProcessExecutor(2) as executor:
        builder = StateGraph(State).add_node("run", run_elsewhere, executor=executor)
        race_of(builder, ("hang", "win"))
        app = builder.compile(InMemorySaver())
        for turn in (1, 2, 3):  # more hanging calls than there are workers: each was stopped
            assert drive.invoke(app, {}, CONFIG)["log"] == ["win"] * turn


def loses_its_worker(item: Item):
    """In a worker process: "late" kills it when the race is over."""
    folder = Path(item["name"]).parent
    if item["name"].endswith("late"):
        with (folder / "tries").open("a") as tries:
            tries.write("x")
        while not (folder / "over").exists():
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    while not (folder / "tries").exists():
        time.sleep(0.001)
    return {"log": ["win"]}


@pytest.mark.trial
def test_a_loser_whose_worker_dies_does_not_run_again(drive, tmp_path, caplog):
    from stategraph.executors import ProcessExecutor

    names = [str(tmp_path / name) for name in ("late", "win")]

    def stay(state):
        (tmp_path / "over").touch()
        time.sleep(0.5)  # the loser's thread looks every 0.5 s whether anybody waits for it
        return {"log": [(tmp_path / "tries").read_text()]}

    with ProcessExecutor(2) as executor:
        builder = StateGraph(State).add_node("run", loses_its_worker, executor=executor).add_node(stay)
        race_of(builder, names)
        app = builder.add_edge("run", "stay").compile()
        assert drive.invoke(app, {}, CONFIG)["log"] == ["win", "x"]
    assert not caplog.records


# -- shown --------------------------------------------------------------------------------------------------------


def test_a_timeline_and_a_report_show_losers(track, tmp_path):
    app = make_app(Drive(False), track, ["hang", "win"], InMemorySaver())
    app.invoke({}, CONFIG)
    shown = timeline(app, CONFIG)
    assert "lost its race" in shown.draw_svg()
    page = report(app, CONFIG, tmp_path / "report.html").read_text()
    assert '"lost"' in page


@in_supersteps
def test_explain_names_losers(drive, track):
    builder = StateGraph(State)
    for name in ("win", "hang", "ask"):
        builder.add_node(name, track.arun if drive.is_async else track.run)
    racers = [Send("win", {"name": "win"}, race="r"), Send("hang", {"name": "hang"}, race="r")]
    builder.add_conditional_edges(START, lambda state: [*racers, Send("ask", {"name": "ask"})], ["win", "hang", "ask"])
    thread = drive.on(builder.compile(InMemorySaver()))
    assert thread.invoke({})["__interrupt__"]
    told = thread.call("explain")
    assert (told["hang"].state, told["win"].state, told["ask"].state) == ("idle", "waiting", "next")
    assert "won the race" in told["hang"].why


# -- beside other features ----------------------------------------------------------------------------------------


def test_losers_arrive_at_no_join(drive, saver, track):
    body = track.arun if drive.is_async else track.run

    def join(state, runtime: Runtime):
        return {"after": ["+".join(runtime.joined)]}

    builder = StateGraph(State).add_node("a", body).add_node("b", body).add_node("any", join)
    racers = [Send("a", {"name": "hang"}, race="r"), Send("b", {"name": "win"}, race="r")]
    builder.add_conditional_edges(START, lambda state: racers, ["a", "b"])
    builder.add_edge(["a", "b"], "any", wait="any")
    assert drive.invoke(builder.compile(saver), {}, CONFIG) == {"log": ["win"], "after": ["b"]}


@in_supersteps
def test_a_superstep_with_a_limit_of_time_may_race(drive, saver, track):
    app = make_app(drive, track, ["hang", "win"], saver)
    app.step_timeout = WAIT
    assert drive.invoke(app, {}, CONFIG)["log"] == ["win"]


def fails(state):
    raise Lost


def handled(state):
    return {"log": ["handled"]}


@pytest.mark.parametrize("width", [None, 1])
def test_a_handler_does_not_win_while_a_racer_is_drained(drive, width):
    """It goes on in the next call, and may win."""
    control = RunControl()

    def begin(state):
        control.request_drain("deploy")
        return {}

    inner = StateGraph(State).add_node("begin", begin).add_node("end", lambda _: {"log": ["won"]})
    builder = StateGraph(State).add_node("bad", fails, error_handler=handled)
    builder.add_node("good", inner.add_edge(START, "begin").add_edge("begin", "end").compile())
    builder.add_conditional_edges(START, lambda _: [Send(n, {}, race="r") for n in ("bad", "good")], ["bad", "good"])
    app, config = builder.compile(InMemorySaver()), {**CONFIG, "max_concurrency": width}
    with pytest.raises(GraphDrained):
        drive.invoke(app, {}, config, control=control)
    assert drive.get_state(app, CONFIG).next == ("bad", "good")
    assert drive.invoke(app, None, config)["log"] == ["won"]


def test_a_handler_does_not_win_while_a_racer_has_not_started(drive):
    """After a failure that nobody handles nothing begins; the next call lets it race."""
    broken = [True]

    def other(state):
        if broken.pop() if broken else False:
            raise ValueError("other")
        return {"log": ["other"]}

    builder = StateGraph(State).add_node("bad", fails, error_handler=handled).add_node("other", other)
    builder.add_node("good", lambda _: {"log": ["won"]})
    sends = [Send("bad", {}, race="r"), Send("other", {}), Send("good", {}, race="r")]
    app = builder.add_conditional_edges(START, lambda _: sends, ["bad", "other", "good"]).compile(InMemorySaver())
    config = {**CONFIG, "max_concurrency": 1}
    with pytest.raises(ValueError, match="other"):
        drive.invoke(app, {}, config)
    assert sorted(drive.invoke(app, None, config)["log"]) == ["other", "won"]
