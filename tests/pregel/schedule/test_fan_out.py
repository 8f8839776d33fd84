"""The siblings of a task that fails: which are started, which are kept, which run again."""

from __future__ import annotations

import asyncio
import operator
import threading
import time
from typing import Annotated, TypedDict

import pytest
from kit.graphs import CONFIG

from stategraph import START, InMemorySaver, Send, StateGraph

COUNT = 20


class State(TypedDict, total=False):
    number: int
    done: Annotated[list[int], operator.add]


def fan_out(node):
    sends = [Send("node", {"number": number}) for number in range(COUNT)]
    graph = StateGraph(State).add_node("node", node).add_conditional_edges(START, lambda _: sends, ["node"])
    return graph.compile(InMemorySaver())


class Fails:
    """The first fails at once, the first time; the others only note that they were started. If `slow`, they end
    after it: on a busy machine its thread may begin last.
    """

    def __init__(self, *, slow):
        self.started = []
        self.left = 1
        self.failed = threading.Event()
        self.slow = slow

    def __call__(self, state: State):
        self.started.append(state["number"])
        if state["number"] == 0 and self.left:
            self.left -= 1
            self.failed.set()
            raise ValueError("the first")
        if self.slow:
            assert self.failed.wait(30)
            time.sleep(0.02)
        return {"done": [state["number"]]}


def coroutine(body):
    async def node(state):
        return body(state)

    return node


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize("mode", [None, "updates"])
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_what_could_be_started_together_is_started_though_the_first_fails(drive, is_coroutine, mode, limit):
    """All of them, or the first `max_concurrency`: what they did is kept, and only the others run on a resume."""
    if is_coroutine and not drive.is_async:
        pytest.skip("a coroutine needs an async run")
    body = Fails(slow=not is_coroutine)
    thread = drive.on(fan_out(coroutine(body) if is_coroutine else body))
    config = CONFIG if limit is None else {**CONFIG, "max_concurrency": limit}
    with pytest.raises(ValueError, match="the first"):
        if mode is None:
            thread.invoke({}, config)
        else:
            thread.stream({}, config, stream_mode=mode)
    together = [*range(limit or COUNT)]
    assert sorted(body.started) == together
    assert [task.result is not None for task in thread.state.tasks].count(True) == len(together) - 1
    body.started.clear()
    assert thread.invoke(None)["done"] == [*range(COUNT)]
    assert sorted(body.started) == [0, *range(len(together), COUNT)]


def test_coroutines_that_wait_are_started_then_cancelled_and_run_again():
    body, cancelled = Fails(slow=False), []

    async def node(state):
        result = body(state)
        if body.left == 0 and len(body.started) <= COUNT:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(state["number"])
                raise
        return result

    app = fan_out(node)
    with pytest.raises(ValueError, match="the first"):
        asyncio.run(app.ainvoke({}, CONFIG))
    assert sorted(body.started) == [*range(COUNT)]
    assert sorted(cancelled) == [*range(1, COUNT)]
    assert asyncio.run(app.ainvoke(None, CONFIG))["done"] == [*range(COUNT)]


def test_ctrl_c_in_a_task_starts_nothing_more():
    started = []

    def node(state):
        started.append(state["number"])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(node).invoke({}, {**CONFIG, "max_concurrency": 1})
    assert started == [0]
