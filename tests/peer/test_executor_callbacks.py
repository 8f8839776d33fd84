"""LangChain's models and tools in nodes on worker processes: callback handlers get the events they get on threads."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from typing import Annotated

import pytest
from side_by_side import IDS, PROGRAMS, ROOT
from typing_extensions import TypedDict

sys.path[:0] = [str(PROGRAMS), str(ROOT / ".types")]

import remote_nodes  # noqa: E402
from program_cases import Handler  # noqa: E402

from stategraph import START, StateGraph, add_messages, add_observer  # noqa: E402
from stategraph.executors import ProcessExecutor  # noqa: E402


class State(TypedDict, total=False):
    messages: Annotated[list, add_messages]
    pid: int


@pytest.fixture(scope="module")
def workers():
    with ProcessExecutor(1) as executor:
        yield executor


def one_node(function, executor):
    graph = StateGraph(State)
    graph.add_node("a", function, executor=executor)
    return graph.add_edge(START, "a").compile()


def told(function, executor):
    """What a handler hears of a run."""
    heard = []
    handler = Handler(lambda *words: heard.append(" ".join(map(str, words))))
    app, config = one_node(function, executor), {"callbacks": [handler], "metadata": {"mine": 1}}
    try:
        state = asyncio.run(app.ainvoke({}, config)) if function is remote_nodes.aask else app.invoke({}, config)
        assert (state["pid"] == os.getpid()) is (executor == "threads")
    except ZeroDivisionError:
        heard.append("failed")
    return [IDS.sub("ID", re.sub(r"'pid': \d+", "", line)) for line in heard]


@pytest.mark.parametrize("node", [remote_nodes.ask, remote_nodes.aask, remote_nodes.fail])
def test_callback_handlers_get_events_of_workers(node, workers):
    there, here = told(node, workers), told(node, "threads")
    assert any("model" in line or "broken" in line for line in here)
    assert there == here


def test_tokens_of_a_worker_are_streamed(workers):
    def chunks(executor):
        return [(m.content, m.id, meta["stategraph_node"]) for m, meta in one_node(remote_nodes.ask, executor).stream({}, stream_mode="messages")]

    assert chunks(workers) == chunks("threads")
    assert ("a", "i0", "a") in chunks(workers)


def test_events_of_a_worker_reach_astream_events(workers):
    from stategraph.compat.langchain.runnable import as_runnable

    async def names(executor):
        app = as_runnable(one_node(remote_nodes.aask, executor))
        return [(e["event"], e["name"], len(e["parent_ids"])) async for e in app.astream_events({}, version="v2")]

    assert asyncio.run(names(workers)) == asyncio.run(names("threads"))


def test_callback_handlers_work_with_an_observer(workers):
    from side_by_side import Quiet

    alone = told(remote_nodes.ask, workers)
    remove = add_observer(Quiet())
    try:
        beside = told(remote_nodes.ask, workers)
    finally:
        remove()
    assert beside == alone


def test_unrequested_events_are_not_sent(workers, monkeypatch):
    from stategraph.compat.langchain import spans

    monkeypatch.setattr(spans, "RemoteCallbacks", lambda *a, **k: pytest.fail("somebody listens"))
    assert one_node(remote_nodes.plain, workers).invoke({})["pid"] != os.getpid()
