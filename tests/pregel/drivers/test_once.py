"""`runtime.once`: effects that a task has once. What it has in common with `runtime.transaction`: `test_effects.py`."""

from __future__ import annotations

import asyncio
import queue
import threading

import pytest
from kit import cluster
from kit.bank import Till, one_node
from kit.drive import each_schedule
from kit.graphs import CONFIG, Log, chain_of

from stategraph import (
    START,
    RetryPolicy,
    Runtime,
    StateGraph,
    entrypoint,
    get_runtime,
    interrupt,
    task,
)

postgres = cluster.emptied
AGAIN = RetryPolicy(max_attempts=3, initial_interval=0, retry_on=ConnectionError)


def test_a_retry_without_a_saver_finds_it(drive):
    till, attempts = Till(None), []

    def body(state):
        receipt = yield "pay", till.pay
        attempts.append(receipt)
        if len(attempts) < 3:
            raise ConnectionError
        return {"log": [receipt]}

    assert drive.invoke(one_node(drive, body, None, "once", retry_policy=AGAIN), {}) == {"log": ["receipt 1"]}
    assert attempts == ["receipt 1"] * 3 and till.calls == ["book"]


def test_a_changed_result_is_as_it_was_recorded_when_the_task_runs_again(drive, saver):
    seen = []

    def body(state):
        items = yield "items", list, "ab"
        seen.append([*items])
        items.append("changed")
        if len(seen) < 3:
            raise ConnectionError
        return {"log": items}

    app = one_node(drive, body, saver, "once", retry_policy=AGAIN)
    drive.invoke(app, {}, CONFIG)
    assert seen == [["a", "b"]] * 3


def test_an_attempt_that_was_given_up_has_no_further_effects(saver):
    """And what it has had already, the next attempt finds."""
    till, given_up, ended = Till(saver), threading.Event(), threading.Event()

    def slow(state, runtime: Runtime):
        runtime.once("first", till.pay, "first")
        if not given_up.is_set():
            given_up.set()
            second.wait(10)
            try:
                runtime.once("late", till.pay, "late")
            finally:
                ended.set()
        else:
            second.set()
            assert ended.wait(10)
        return {"log": [runtime.once("second", till.pay, "second")]}

    second = threading.Event()
    again = RetryPolicy(max_attempts=2, initial_interval=0)
    builder = StateGraph(Log).add_node("pay", slow, timeout=0.2, retry_policy=again).add_edge(START, "pay")
    app = builder.compile(saver)
    try:
        app.invoke({}, CONFIG)
    except TimeoutError:
        pass  # the second attempt may be too slow, too; what it had is what counts
    assert "late" not in till.calls and till.calls[0] == "first" and till.calls.count("first") == 1


class Desk:
    """Where a plain function waits on its thread, and pays then, in one of several ways.

    Args:
        way: "node"; "call", "late call": a `@task` call that waits, or begins later; "graph", "memory": a graph inside.
    """

    def __init__(self, way, till):
        self.way, self.till = way, till
        self.calls = queue.SimpleQueue()
        self.child = chain_of(Log, wait=self.wait, pay=self.pay).compile(checkpointer=True if way == "memory" else None)
        self.call = task(self.wait_and_pay)

    def wait(self, state):
        go = threading.Event()
        self.calls.put(go)
        assert go.wait(10)

    def pay(self, state):
        get_runtime().once("pay", self.till.pay)

    def wait_and_pay(self, waits):
        if waits:
            self.wait({})
        self.pay({})

    def node(self, state):
        try:
            if self.way in ("graph", "memory"):
                self.child.invoke({})
            elif self.way == "call":
                self.call(True).result()
            elif self.way == "late call":
                self.wait({})
                self.call(False).result()
            else:
                self.wait_and_pay(True)
        finally:
            self.calls.put("ended")
        return {"log": ["paid"]}


@each_schedule
@pytest.mark.parametrize("way", ["node", "call", "late call", "graph", "memory"])
async def test_a_function_on_a_thread_whose_run_was_cancelled_has_no_further_effects(way, schedule, saver):
    """Nor does it get in the way of the call that continues the thread."""
    till = Till(saver)
    desk = Desk(way, till)
    app = chain_of(Log, node=desk.node).compile(checkpointer=saver, schedule=schedule)
    first = asyncio.create_task(app.ainvoke({}, CONFIG))
    left = await asyncio.to_thread(desk.calls.get)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(app.ainvoke(None, CONFIG))
    at_work = await asyncio.to_thread(desk.calls.get)
    left.set()
    assert await asyncio.to_thread(desk.calls.get) == "ended"
    assert till.calls == []
    at_work.set()
    assert await second == {"log": ["paid"]}
    assert till.calls == ["book"]


def test_an_effect_that_ends_after_its_event_loop_is_recorded(saver):
    till, begun, go, ended = Till(saver), threading.Event(), threading.Event(), threading.Event()

    def pay():
        begun.set()
        assert go.wait(10)
        return till.pay()

    def node(state):
        try:
            return {"log": [get_runtime().once("pay", pay)]}
        finally:
            ended.set()

    async def cancelled():
        call = asyncio.create_task(app.ainvoke({}, CONFIG))
        await asyncio.to_thread(begun.wait)
        call.cancel()
        await asyncio.wait([call])

    app = chain_of(Log, node=node).compile(checkpointer=saver)
    asyncio.run(cancelled())
    go.set()
    assert ended.wait(10)
    assert asyncio.run(app.ainvoke(None, CONFIG)) == {"log": ["receipt 1"]}
    assert till.calls == ["book"]


def test_a_task_of_the_functional_api_has_effects_of_its_own(drive, saver):
    till = Till(saver)

    def pay_body(what):
        return get_runtime().once("charge", till.pay, what)

    async def apay_body(what):
        return await get_runtime().aonce("charge", till.pay, what)

    pay = task(name="pay")(apay_body if drive.is_async else pay_body)

    @entrypoint(checkpointer=saver)
    def buy(what):
        found = [pay(each).result() for each in what]
        return [*found, interrupt("content?")]

    @entrypoint(checkpointer=saver)
    async def abuy(what):
        found = [await pay(each) for each in what]
        return [*found, interrupt("content?")]

    thread = drive.on(abuy if drive.is_async else buy)
    thread.invoke(["book", "pen"])
    assert thread.resume("yes") == ["receipt 1", "receipt 2", "yes"]
    assert till.calls == ["book", "pen"]


def test_a_coroutine_function_in_a_thread_says_what_to_await():
    async def effect(): ...

    def node(state, runtime: Runtime):
        runtime.once("k", effect)

    builder = chain_of(Log, pay=node)
    with pytest.raises(TypeError, match=r"await runtime.aonce\(...\)"):
        builder.compile().invoke({})


def test_side_by_side_in_one_node(saver):
    till, fails = Till(saver), [True]

    async def slow(what):
        await asyncio.sleep(0)
        return till.pay(what)

    async def node(state, runtime: Runtime):
        got = await asyncio.gather(*(runtime.aonce(what, slow, what) for what in "abc"))
        if fails:
            fails.clear()
            raise ConnectionError
        return {"log": got}

    builder = StateGraph(Log).add_node("pay", node, retry_policy=AGAIN).add_edge(START, "pay")
    got = asyncio.run(builder.compile(saver).ainvoke({}, CONFIG))
    assert got == {"log": ["receipt 1", "receipt 2", "receipt 3"]}
    assert till.calls == ["a", "b", "c"]
