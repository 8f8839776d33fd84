"""Ctrl-C at critical moments: what is stored is complete, no thread hangs, and the next call resumes."""

from __future__ import annotations

import inspect
import operator
import queue
import sys
import threading
import time
from itertools import count
from typing import Annotated, TypedDict

import pytest
from kit import cluster
from kit.drive import each_schedule
from kit.graphs import CONFIG, EMPTY, Log, graph_of

from stategraph import START, InMemorySaver, Send, StateGraph, get_runtime
from stategraph.checkpoint.sql.sqlite_database import Database
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.drivers import journal
from stategraph.pregel.drivers.batch import Batch
from stategraph.pregel.drivers.pool import POOL, ThreadBatch
from stategraph.pregel.drivers.threads import ThreadDriver
from stategraph.pregel.run import loop, progress
from stategraph.pregel.schedule.machine import Machine

postgres = cluster.emptied


@pytest.fixture
def app():
    with SqliteSaver.from_conn_string(":memory:", synchronous="off") as saver:
        graph = StateGraph(Log)
        for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
            graph.add_node(name, lambda state, name=name: {"log": [name]}).add_edge(before, name)
        yield graph.compile(saver)


def once(method, number, *, after):
    """The method; at its n-th call Ctrl-C comes, before it or just as it is done."""
    calls = [0]

    def call(*args):
        calls[0] += 1
        if calls[0] == number and not after:
            raise KeyboardInterrupt
        done = method(*args)
        if calls[0] == number:
            raise KeyboardInterrupt
        return done

    return call


@pytest.mark.parametrize("method", ["_mark_seen", "_swap"])
@pytest.mark.parametrize("after", [False, True])
def test_a_superstep_that_is_half_applied_is_not_stored(
    app, monkeypatch, method, after
):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        real = getattr(Machine, method)
        patch.setattr(Machine, method, once(real, 3, after=after))
        app.invoke({"log": ["in"]}, CONFIG, durability="exit")
    found = app.get_state(CONFIG).values
    assert app.invoke(None if found else {"log": ["in"]}, CONFIG)["log"] == ["in", "a", "b", "c"]


@pytest.mark.parametrize("after", [False, True])
def test_no_thread_waits_for_a_save_that_never_started(app, monkeypatch, after):
    class Pool:
        submit = staticmethod(once(POOL.submit, 2, after=after))

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(journal, "POOL", Pool)
        app.invoke({"log": ["in"]}, CONFIG, durability="async")
    assert app.invoke(None, CONFIG)["log"] == ["in", "a", "b", "c"]


def test_a_transaction_that_was_left_open_is_undone_by_the_next(tmp_path):
    database = Database(tmp_path / "a.db", ("CREATE TABLE t (x)",))
    database.execute("BEGIN IMMEDIATE")  # as when Ctrl-C comes between a transaction and its `with` block
    database.execute("INSERT INTO t VALUES (1)")
    with database.session(write=True):
        database.execute("INSERT INTO t VALUES (2)")
    assert database.execute("SELECT x FROM t").fetchall() == [(2,)]
    database.close()


class Stop(BaseException):
    """Ends the program, as KeyboardInterrupt does."""


def test_what_stops_a_save_in_the_background_is_raised_by_the_run_alone(
    drive, monkeypatch
):
    """And not by the thread that saves as well, which would print it."""
    stopped, printed = threading.Event(), []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    class Saver(SqliteSaver):
        def commit(self, commits):
            commit = commits[-1]
            if commit.metadata["step"] == 1:
                stopped.set()
                raise Stop
            super().commit(commits)

    def waits(state):
        assert stopped.wait(5.0)  # so it is the thread which saves that meets it
        return {"log": ["b"]}

    with Saver.from_conn_string(":memory:", synchronous="off") as saver:
        app = graph_of(Log, "S>a>b", a=lambda state: {"log": ["a"]}, b=waits).compile(saver)
        with pytest.raises(Stop):
            drive.invoke(app, {"log": ["in"]}, CONFIG, durability="async")
    assert not printed


def test_a_task_that_finishes_while_ctrl_c_is_stored_runs_again(monkeypatch):
    """Otherwise all tasks would be recorded as finished, and nobody would end their superstep: the thread would stand."""
    saver, gate, held = InMemorySaver(), threading.Event(), []
    commit, end_by_force = saver.commit, loop._end_by_force

    def slow(state):
        gate.wait(20)
        return {"log": ["slow"]}

    def interrupt(run, tasks):
        if any(task.name == "quick" for task in tasks):
            raise KeyboardInterrupt

    def end(progress):
        held.extend(progress.states)
        return end_by_force(progress)

    def store(given):
        gate.set()
        until = time.monotonic() + 20
        while held and not all(task.finished for task in held) and time.monotonic() < until:
            time.sleep(0.001)
        commit(given)

    graph = graph_of(Log, "S>quick S>slow [quick,slow]>last", slow=slow)
    app = graph.compile(saver)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "show_ends", interrupt)
        patch.setattr(loop, "_end_by_force", end)
        patch.setattr(saver, "commit", store)
        with pytest.raises(KeyboardInterrupt):
            [*app.stream(EMPTY, CONFIG, durability="exit")]
    assert len(held) == 2 and app.get_state(CONFIG).next == ("slow",)
    assert app.invoke(None, CONFIG) == {"log": ["quick", "slow", "last"]}


@pytest.mark.parametrize(
    "codes",
    [{Batch.take.__code__}, {ThreadBatch._drain.__code__, ThreadBatch.call_worker.__code__, ThreadDriver.end.__code__}],
    ids=["ends are taken", "jobs are done here"],
)
def test_ctrl_c_ends_a_wait(codes):
    """At each call that is made there, in turn."""

    def interrupt(number):
        """Whether there is such a call."""
        seen = [0]

        def profile(frame, event, arg):
            if frame.f_code in codes and event in ("call", "c_return"):
                seen[0] += 1
                if seen[0] == number:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

        graph = StateGraph(Log)
        for name in ("a", "b", "c"):
            graph.add_node(name, lambda state: {"log": ["x"]}).add_edge(START, name)
        app = graph.compile()

        def run():
            sys.setprofile(profile)
            try:
                app.invoke(EMPTY)
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), f"it waits for ever after call {number}"
        return seen[0] == number

    number = 1
    while interrupt(number):
        number += 1
    assert number > 2


LINES = {
    found.__code__
    for place in (loop, progress, progress.LoopProgress)
    for found in vars(place).values()
    if inspect.isfunction(found) and found.__module__ in (loop.__name__, progress.__name__)
} - {loop._end_by_force.__code__, loop.carry_out.__code__, loop._end.__code__}


def cut_at_line(number, run):
    """Raise Ctrl-C at the n-th line of the loop while something runs; whether there were so many."""
    seen = [0]

    def lines(frame, event, argument):
        if event == "line":
            seen[0] += 1
            if seen[0] == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return lines

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: lines if frame.f_code in LINES else None)
    try:
        run()
    except KeyboardInterrupt:
        return True
    except ValueError:
        pass
    finally:
        sys.settrace(before)
    return False


def fail(state):
    raise ValueError("failed")


def side_by_side():
    graph = StateGraph(Log)
    for name in "abc":
        graph.add_node(name, lambda state, name=name: {"log": [name]}).add_edge(START, name)
    return graph.compile(InMemorySaver()), ["a", "b", "c"], False


def beside_a_handler():
    graph = graph_of(Log, "S>a")
    graph.add_node("b", fail, error_handler=lambda state: {"log": ["handled"]}).add_edge(START, "b")
    return graph.compile(InMemorySaver()), ["a", "handled"], False


def resumed_beside_what_finished():
    failing = [True]

    def b(state):
        return fail(state) if failing.pop() else {"log": ["b"]}

    app = graph_of(Log, "S>a S>b", a=lambda state: {"log": ["a"]}, b=b).compile(InMemorySaver())
    with pytest.raises(ValueError, match="failed"):
        failing.append(True), app.invoke(EMPTY, CONFIG)
    failing[:] = [False] * 3
    return app, ["a", "b"], True


@pytest.mark.trial
@pytest.mark.parametrize("make", [side_by_side, beside_a_handler, resumed_beside_what_finished])
def test_ctrl_c_at_any_line_of_the_loop_loses_no_task(make):
    for number in count(1):
        app, expected, resumed = make()
        if not cut_at_line(number, lambda: [*app.stream(None if resumed else EMPTY, CONFIG)]):  # noqa: B023
            break
        assert sorted(app.invoke(None, CONFIG)["log"]) == expected, number
    assert number > 100


class Named(TypedDict):
    log: Annotated[list[str], operator.add]
    name: str


@pytest.mark.parametrize("names", [("quick", "slow"), ("slow", "quick")])
def test_who_is_recorded_as_the_winner_of_a_race_stays_it_after_ctrl_c(names):
    slow_has_begun, quick_is_done, slow_is_done = threading.Event(), threading.Event(), threading.Event()

    class Cut(InMemorySaver):
        in_memory = False

        def record(self, *records):
            stored = super().record(*records)
            if quick_is_done.is_set() and not slow_is_done.is_set():
                recorded.set()
                assert slow_is_done.wait(20)
                raise KeyboardInterrupt
            return stored

    recorded = threading.Event()

    def racer(state):
        if state["name"] == "slow":
            slow_has_begun.set()
            assert recorded.wait(20)
            slow_is_done.set()
        else:
            assert slow_has_begun.wait(20)  # else the race is over before there are two, and nothing is recorded
            quick_is_done.set()
        return {"log": [state["name"]]}

    graph = StateGraph(Named).add_node(racer)
    graph.add_conditional_edges(START, lambda state: [Send("racer", {"name": name}, race="r") for name in names], ["racer"])
    app = graph.compile(Cut())
    with pytest.raises(KeyboardInterrupt):
        app.invoke(EMPTY, CONFIG, durability="sync")  # so that it is this thread that stores
    state = app.get_state(CONFIG)
    assert state.values["log"] == ["quick"] or app.invoke(None, CONFIG)["log"] == ["quick"]


@each_schedule
@pytest.mark.parametrize("inside", [False, True], ids=["node", "graph"])
def test_a_function_left_on_its_thread_by_a_second_ctrl_c_has_no_further_effects(monkeypatch, inside, schedule, saver):
    """The first waits until it ends, and keeps its result."""
    paid, doors, left = [], queue.SimpleQueue(), []

    def pay(state):
        door = threading.Event()
        doors.put(door)
        assert door.wait(10)
        get_runtime().once("pay", paid.append, "book")

    def node(state):
        try:
            (child.invoke if inside else pay)({})
        finally:
            doors.put(None)

    def press(batch, seconds=None):
        if len(left) < 2:
            left.append(doors.get(timeout=10) if not left else None)
            raise KeyboardInterrupt
        return wait(batch, seconds)

    wait = ThreadBatch.wait
    child = graph_of(Log, "S>pay", pay=pay).compile(checkpointer=False)
    app = graph_of(Log, "S>a S>z", z=node).compile(checkpointer=saver, schedule=schedule)
    monkeypatch.setattr(ThreadBatch, "wait", press)
    with pytest.raises(KeyboardInterrupt):
        app.invoke(EMPTY, CONFIG, stream_mode="updates")
    left[0].set()
    assert doors.get(timeout=10) is None
    assert paid == []
    threading.Thread(target=lambda: doors.get(timeout=10).set()).start()
    assert app.invoke(None, CONFIG, multitask="reject") == {"log": ["a"]}
    assert paid == ["book"]
