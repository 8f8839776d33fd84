"""Sends into graphs that store: threads that would only wait for the database are not called, until it has time again."""

from __future__ import annotations

import operator
import threading
from typing import Annotated, TypedDict

from kit.graphs import chain_of, graph_of, thread_config

from stategraph import START, Send
from stategraph.checkpoint.sqlite import SqliteSaver


class Inside(TypedDict):
    n: int
    items: Annotated[list[int], operator.add]


class Outside(TypedDict):
    sends: int
    items: Annotated[list[int], operator.add]


def fan_out(path, sends, last):
    inner = chain_of(Inside, first=lambda state: {"n": state["n"] + 1}, second=last)
    graph = graph_of(Outside, "inner>E", inner=inner.compile())
    graph.add_conditional_edges(START, lambda state: [Send("inner", {"n": n}) for n in range(state["sends"])], ["inner"])
    with SqliteSaver.from_conn_string(str(path / "threads.db")) as saver:
        app = graph.compile(saver)
        return app.invoke({"sends": sends, "items": []}, thread_config("1"))["items"]


def workers():
    return sum(thread.name == "stategraph-worker" for thread in threading.enumerate())


def test_many_sends_into_a_graph_on_sqlite_call_few_threads(tmp_path):
    before, seen = workers(), [0]

    def last(state):
        seen[0] = max(seen[0], workers() - before)
        return {"items": [state["n"]]}

    assert fan_out(tmp_path, 400, last) == list(range(1, 401))
    assert seen[0] < 300, "the database makes one write at a time, or a group of them"


def test_those_that_wait_for_each_other_in_such_graphs_all_get_a_thread(tmp_path):
    meeting = threading.Barrier(100, timeout=60)

    def last(state):
        meeting.wait()
        return {"items": [state["n"]]}

    assert fan_out(tmp_path, 100, last) == list(range(1, 101))
