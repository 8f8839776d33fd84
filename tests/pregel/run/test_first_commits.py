"""The first checkpoints of a thread or a nested graph, which are deferred and stored with the next commit."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from time import monotonic
from types import SimpleNamespace
from typing import TypedDict

import pytest
from kit.graphs import CONFIG, chain_of, graph_of

from stategraph import (
    START,
    CheckpointConflictError,
    get_runtime,
    interrupt,
)
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.drivers.journal import Journal
from stategraph.pregel.drivers.pool import HELD


class State(TypedDict, total=False):
    text: str


def around(first, saver):
    """A graph with a graph as its only node: first, then last."""
    compiled = chain_of(State, first=first, last=lambda state: {"text": state["text"] + "!"}).compile()
    return chain_of(State, inner=compiled).compile(saver)


@pytest.fixture
def never_alone(monkeypatch):
    """What is held is stored with what comes next, however slow this machine is."""
    monkeypatch.setattr("stategraph.pregel.drivers.pool.HeldEntries.submit", lambda self, entry, store: None)


@pytest.mark.usefixtures("never_alone")
def test_a_process_killed_in_the_first_step_repeats_it_under_the_same_key(tmp_path):
    keys = []

    def first(state):
        keys.append(get_runtime().idempotency_key)
        if len(keys) == 1:  # what the disk holds now is what a kill would leave
            with closing(sqlite3.connect(tmp_path / "killed")) as killed, killed, closing(sqlite3.connect(tmp_path / "alive")) as alive, alive:
                alive.backup(killed)
        return {"text": state["text"] + "?"}

    with SqliteSaver.from_conn_string(str(tmp_path / "alive")) as saver:
        whole = around(first, saver)
        assert whole.invoke({"text": "a"}, CONFIG) == {"text": "a?!"}
        history = [each.values for each in whole.get_state_history(CONFIG)]
    with SqliteSaver.from_conn_string(str(tmp_path / "killed")) as saver:
        again = around(first, saver)
        state = again.get_state(CONFIG, subgraphs=True)
        assert state.next == ("inner",)
        assert again.invoke(None, CONFIG) == {"text": "a?!"}
        assert [each.values for each in again.get_state_history(CONFIG)] == history
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_held_checkpoint_that_is_being_stored_when_its_time_is_up_makes_no_thread_wait(monkeypatch):
    """PERFORMANCE P23: of many nested runs that wait for the database, each would."""
    held, asked = [], []
    monkeypatch.setattr(HELD, "submit", lambda entry, store: held.append(store))
    monkeypatch.setattr(Journal, "_start_draining", lambda journal: asked.append("stored"))
    with SqliteSaver.from_conn_string(":memory:") as saver:
        commit = saver.commit

        def time_is_up(commits):
            asked.extend("again" for store in held if store())
            held.clear()
            commit(commits)

        monkeypatch.setattr(saver, "commit", time_is_up)
        assert around(lambda state: {"text": "b"}, saver).invoke({"text": "a"}, CONFIG) == {"text": "b!"}
    assert asked
    assert set(asked) == {"again"}


def test_a_held_checkpoint_is_stored_once_nothing_else_is():
    answers, stored = [True, True, False], threading.Event()

    def store():
        again = answers.pop(0)
        if not again:
            stored.set()
        return again

    HELD.submit(SimpleNamespace(done=False), store)
    assert stored.wait(30)


def test_a_long_first_step_is_seen_from_outside_while_it_runs(tmp_path):
    seen = []

    def first(state):
        with SqliteSaver.from_conn_string(str(tmp_path / "file")) as other:
            end = monotonic() + 30
            while monotonic() < end:
                (task,) = around(first, other).get_state(CONFIG, subgraphs=True).tasks
                if task.state is not None and task.state.next == ("first",):
                    seen.append(task.state.values)
                    break
        return {"text": state["text"] + "?"}

    with SqliteSaver.from_conn_string(str(tmp_path / "file")) as saver:
        assert around(first, saver).invoke({"text": "a"}, CONFIG) == {"text": "a?!"}
    assert seen == [{"text": "a"}]


@pytest.mark.usefixtures("never_alone")
def test_an_interrupt_in_the_first_step_stores_the_deferred_checkpoints(drive):
    with SqliteSaver.from_conn_string(":memory:") as saver:
        thread = drive.on(around(lambda state: {"text": interrupt("text?")}, saver))
        assert [each.value for each in thread.invoke({"text": "a"})["__interrupt__"]] == ["text?"]
        (task,) = thread.app.get_state(CONFIG, subgraphs=True).tasks
        assert task.state.next == ("first",)
        assert thread.resume("b") == {"text": "b!"}


@pytest.mark.usefixtures("never_alone")
def test_an_error_in_the_first_step_stores_the_deferred_checkpoints(drive):
    tries = []

    def first(state):
        tries.append(1)
        if len(tries) == 1:
            raise LookupError("not yet")
        return {"text": "c"}

    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = around(first, saver)
        with pytest.raises(LookupError):
            drive.invoke(app, {"text": "a"}, CONFIG)
        (task,) = app.get_state(CONFIG, subgraphs=True).tasks
        assert task.state.next == ("first",)
        assert drive.invoke(app, None, CONFIG) == {"text": "c!"}


def test_the_input_is_stored_before_a_router_runs(tmp_path):
    seen = []

    def route(state):
        with SqliteSaver.from_conn_string(str(tmp_path / "file")) as other:
            seen.append(other.get_tuple(CONFIG) is not None)
        return "node"

    graph = graph_of(State, "node>E", node=lambda state: {"text": "b"})
    graph.add_conditional_edges(START, route, ["node"])
    with SqliteSaver.from_conn_string(str(tmp_path / "file")) as saver:
        graph.compile(saver).invoke({"text": "a"}, CONFIG)
    assert seen == [True]


def test_a_stream_shows_only_stored_checkpoints(tmp_path):
    graph = chain_of(State, node=lambda state: {"text": "b"})
    with SqliteSaver.from_conn_string(str(tmp_path / "file")) as saver:
        chunks = graph.compile(saver).stream({"text": "a"}, CONFIG, stream_mode="values")
        assert next(chunks) == {"text": "a"}
        with SqliteSaver.from_conn_string(str(tmp_path / "file")) as other:
            assert other.get_tuple(CONFIG) is not None
        assert list(chunks) == [{"text": "b"}]


def test_what_is_streamed_of_the_input_is_stored_with_start(drive, monkeypatch):
    stored = []
    store = SqliteSaver.commit

    def count(self, commits):
        stored.append(len(commits))
        store(self, commits)

    graph = chain_of(State, node=lambda state: {"text": "b"})
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = graph.compile(saver)
        monkeypatch.setattr(SqliteSaver, "commit", count)
        modes = ["values", "updates", "checkpoints"]
        chunks = drive.stream(app, {"text": "a"}, CONFIG, stream_mode=modes)
        assert stored == [2, 1]
        steps = [chunk["metadata"]["step"] for mode, chunk in chunks if mode == "checkpoints"]
        assert steps == [-1, 0, 1]
        assert [chunk for mode, chunk in chunks if mode != "checkpoints"] == [
            {"text": "a"}, {"node": {"text": "b"}}, {"text": "b"},
        ]  # fmt: skip


def test_a_reader_is_shown_nothing_that_could_not_be_stored(drive, monkeypatch):
    def refuse(self, commits):
        raise OSError("the disk is full")

    seen = []
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app = chain_of(State, node=lambda state: {"text": "b"}).compile(saver)
        monkeypatch.setattr(SqliteSaver, "commit", refuse)
        with pytest.raises(OSError, match="disk is full"):
            drive.stream(app, {"text": "a"}, CONFIG, each=seen.append)
        assert seen == []
        assert saver.get_tuple(CONFIG) is None


def test_of_two_runs_that_start_a_thread_one_wins_and_the_other_stores_nothing():
    with SqliteSaver.from_conn_string(":memory:") as saver:
        app, store = chain_of(State, node=lambda state: {"text": "b"}).compile(saver), saver.commit

        def come_second(commits):
            saver.commit = store  # type: ignore[method-assign]
            app.invoke({"text": "other"}, CONFIG)
            store(commits)

        saver.commit = come_second  # type: ignore[method-assign]
        with pytest.raises(CheckpointConflictError):
            app.invoke({"text": "mine"}, CONFIG)
        assert [each.values for each in app.get_state_history(CONFIG)] == [{"text": "b"}, {"text": "other"}, {}]
