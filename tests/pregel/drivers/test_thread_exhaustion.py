"""No further OS thread can be started: runs continue with fewer threads if they can, and none hangs."""

from __future__ import annotations

import operator
import threading
from contextlib import contextmanager
from typing import Annotated, TypedDict

import pytest
from kit.graphs import thread_config

from stategraph import START, Send, StateGraph
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.drivers.pool import POOL, HeldEntries

WAIT = 20


class State(TypedDict, total=False):
    done: Annotated[list[int], operator.add]


def spread(state):
    return [Send("work", n) for n in range(5)]


def build(saver=None):
    graph = StateGraph(State).add_node("work", lambda n: {"done": [n]})
    return graph.add_conditional_edges(START, spread, ["work"]).compile(saver)


@contextmanager
def no_new_threads(patch):
    """The pool has no idle thread, and none can be started."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    with patch.context() as inside:
        inside.setattr(POOL, "_idle", 0)
        inside.setattr(threading.Thread, "start", refuse)
        yield


def call_without_threads(patch, work):
    """What `work` returns or raises, called by a thread that was there before."""
    begin, ended = threading.Event(), []

    def run():
        begin.wait(WAIT)
        try:
            ended.append(work())
        except RuntimeError as error:
            ended.append(str(error))

    caller = threading.Thread(target=run, daemon=True)
    caller.start()
    with no_new_threads(patch):
        begin.set()
        caller.join(WAIT)
        assert not caller.is_alive()
    return ended[0]


def test_tasks_that_find_no_thread_run_on_the_callers(monkeypatch):
    app = build()
    assert call_without_threads(monkeypatch, lambda: app.invoke({})) == {"done": [0, 1, 2, 3, 4]}


def test_a_batch_that_gets_no_thread_at_all_fails(monkeypatch):
    app = build()
    assert call_without_threads(monkeypatch, lambda: app.batch([{}, {}])) == "can't start new thread"


def test_a_stream_that_gets_no_thread_at_all_fails(monkeypatch):
    app = build()
    given = call_without_threads(monkeypatch, lambda: [*app.stream({}, stream_mode="custom")])
    assert given == "can't start new thread"


def test_deferred_entries_are_stored_after_a_timer_thread_could_not_start(monkeypatch):
    held, stored = HeldEntries(), threading.Event()

    class Entry:
        done = False

    with no_new_threads(monkeypatch), pytest.raises(RuntimeError):
        held.submit(Entry(), stored.set)
    held.submit(Entry(), lambda: None)
    assert stored.wait(WAIT)


def test_a_run_with_a_saver_resumes_after_a_call_that_got_no_thread(tmp_path, monkeypatch):
    with SqliteSaver.from_conn_string(str(tmp_path / "db"), synchronous="off") as saver:
        app = build(saver)
        config = thread_config("1")
        with no_new_threads(monkeypatch):
            try:
                app.invoke({}, config)
            except RuntimeError:
                pass
        found = app.get_state(config)
        if not found.values.get("done"):
            app.invoke(None if found.next else {}, config)
        assert app.get_state(config).values == {"done": [0, 1, 2, 3, 4]}
