"""Calls to a thread with a live run: rejected, queued, interrupting it, or rolling it back."""

from __future__ import annotations

import asyncio
import threading

import pytest
from kit import cluster
from kit.graphs import CONFIG, EMPTY, Log, chain_of, thread_config

from stategraph import (
    CheckpointConflictError,
    GraphDrained,
    InMemorySaver,
    RunControl,
    ThreadBusyError,
)
from stategraph.pregel.drivers.driver import LIVE, WATCHERS
from stategraph.pregel.drivers.turns import _LINES

postgres = cluster.emptied
WAITING = ["enqueue", "interrupt", "rollback"]


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert (len(LIVE), WATCHERS, _LINES) == (0, {}, {})


class Gate:
    """Holds the first node of runs whose input says "hold", until it is opened."""

    def __init__(self):
        self.reached, self.opened = threading.Event(), threading.Event()


def make(saver, gate: Gate | None = None, *, is_async=False):
    """Two nodes; the first may be held."""

    def first(state):
        if gate is not None and state["log"][-1] == "hold":
            gate.reached.set()
            assert gate.opened.wait(20)
        return {"log": [f"a{len(state['log'])}"]}

    async def afirst(state):
        if gate is not None and state["log"][-1] == "hold":
            gate.reached.set()
            while not gate.opened.is_set():
                await asyncio.sleep(0.001)
        return {"log": [f"a{len(state['log'])}"]}

    return chain_of(Log, a=afirst if is_async else first, b=lambda state: {"log": [f"b{len(state['log'])}"]}).compile(
        checkpointer=saver
    )


def started(work):
    """Work on a thread of its own, and where its outcome will stand."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def waits_in_line(count=1):
    """Until so many calls stand in line, and the last of them has looked."""
    while sum(map(len, _LINES.values())) < count or sum(map(len, WATCHERS.values())) < count:
        threading.Event().wait(0.001)


def collide(drive, saver, how, *, before=None, **options):
    """A run is held in its first node; another call comes with `multitask=how`; both outcomes."""
    gate = Gate()
    thread = drive.on(make(saver, gate, is_async=drive.is_async))
    if before is not None:
        thread.invoke({"log": before})
    live, first = started(lambda: thread.invoke({"log": ["hold"]}, **options))
    assert gate.reached.wait(20)
    late, second = started(lambda: thread.invoke({"log": ["new"]}, multitask=how, **options))
    if how in ("reject", None) or (how == "rollback" and drive.is_async):  # coroutines are cancelled at once
        late.join(20)
    else:
        waits_in_line()
    gate.opened.set()
    live.join(20)
    late.join(20)
    return first[0], second[0]


def test_reject_says_that_the_thread_is_busy(drive, saver):
    first, second = collide(drive, saver, "reject")
    assert isinstance(second, ThreadBusyError) and "thread 't' is busy" in str(second)
    assert first == {"log": ["hold", "a1", "b2"]} == drive.get_state(make(saver), CONFIG).values


def test_enqueue_waits_for_the_end(drive, saver):
    first, second = collide(drive, saver, "enqueue")
    assert first == {"log": ["hold", "a1", "b2"]}
    assert second == {"log": ["hold", "a1", "b2", "new", "a4", "b5"]}


def test_interrupt_ends_the_live_run_at_its_next_barrier(drive, saver):
    first, second = collide(drive, saver, "interrupt")
    assert isinstance(first, GraphDrained) and "multitask='interrupt'" in str(first)
    assert second == {"log": ["hold", "a1", "new", "a3", "b4"]}, "b was pending, and is dropped"


@pytest.mark.parametrize("before", [None, ["old"]])
def test_rollback_starts_from_before_the_input_of_the_live_run(drive, saver, before):
    first, second = collide(drive, saver, "rollback", before=before)
    assert isinstance(first, GraphDrained) and "rolled back" in str(first)
    old = [] if before is None else ["old", "a1", "b2"]
    assert second == {"log": [*old, "new", f"a{len(old) + 1}", f"b{len(old) + 2}"]}
    assert drive.get_state(make(saver), CONFIG).values == second
    assert any("hold" in stored.values["log"] for stored in drive.history(make(saver), CONFIG)), "it stays in the history"


async def test_rollback_cancels_a_coroutine_at_once(saver):
    reached, never = asyncio.Event(), asyncio.Event()

    async def node(state):
        if state["log"] == ["hold"]:
            reached.set()
            await never.wait()
        return {"log": ["done"]}

    app = chain_of(Log, a=node).compile(saver)
    live = asyncio.create_task(app.ainvoke({"log": ["hold"]}, CONFIG))
    await reached.wait()
    end = await app.ainvoke({"log": ["new"]}, CONFIG, multitask="rollback")
    (outcome,) = await asyncio.gather(live, return_exceptions=True)
    assert not live.cancelled()
    assert isinstance(outcome, GraphDrained)
    assert end == {"log": ["new", "done"]}


async def test_two_rollbacks_at_once_cancel_it_once():
    reached = asyncio.Event()

    async def node(state):
        if state["log"] == ["hold"]:
            reached.set()
            await asyncio.Event().wait()
        return {"log": ["done"]}

    app = chain_of(Log, a=node).compile(InMemorySaver())
    live = asyncio.create_task(app.ainvoke({"log": ["hold"]}, CONFIG))
    await reached.wait()
    late = [app.ainvoke({"log": [word]}, CONFIG, multitask="rollback") for word in ("one", "two")]
    first, second, third = await asyncio.gather(live, *late, return_exceptions=True)
    assert isinstance(first, GraphDrained) and isinstance(second, (GraphDrained, dict))
    assert third == {"log": ["two", "done"]}


async def test_a_call_that_was_cancelled_by_its_caller_stays_cancelled():
    reached = asyncio.Event()

    async def node(state):
        reached.set()
        await asyncio.Event().wait()

    app = chain_of(Log, a=node).compile(InMemorySaver())
    live = asyncio.create_task(app.ainvoke(EMPTY, CONFIG))
    await reached.wait()
    live.cancel()
    waiting = asyncio.create_task(app.ainvoke(None, CONFIG, multitask="enqueue"))
    await asyncio.sleep(0)
    waiting.cancel()
    ended = await asyncio.gather(live, waiting, return_exceptions=True)
    assert [type(each) for each in ended] == [asyncio.CancelledError] * 2


@pytest.mark.parametrize("how", WAITING)
def test_on_an_idle_thread_it_is_an_ordinary_call(drive, how):
    thread = drive.on(make(InMemorySaver()))
    thread.invoke({"log": ["x"]}, multitask=how)
    assert thread.invoke({"log": ["y"]}, multitask=how) == {"log": ["x", "a1", "b2", "y", "a4", "b5"]}
    assert thread.invoke({"log": ["z"]}, multitask="reject")["log"][-3] == "z"


def test_streams_are_queued(drive, saver):
    gate = Gate()
    thread = drive.on(make(saver, gate))
    live, first = started(lambda: thread.stream({"log": ["hold"]}, stream_mode="values", multitask="reject"))
    assert gate.reached.wait(20)
    late, second = started(lambda: thread.stream({"log": ["new"]}, multitask="enqueue"))
    waits_in_line(1)
    gate.opened.set()
    live.join(20)
    late.join(20)
    assert first[0][-1] == {"log": ["hold", "a1", "b2"]}
    assert second == [[{"a": {"log": ["a4"]}}, {"b": {"log": ["b5"]}}]]


def test_queued_calls_run_in_order(saver):
    gate = Gate()
    app = make(saver, gate)
    live, _ = started(lambda: app.invoke({"log": ["hold"]}, CONFIG))
    assert gate.reached.wait(20)
    threads = []
    for number in range(4):
        words = {"log": [f"w{number}"]}
        threads.append(started(lambda words=words: app.invoke(words, CONFIG, multitask="enqueue")))
        waits_in_line(number + 1)
    gate.opened.set()
    for thread, _ in [(live, None), *threads]:
        thread.join(20)
    log = app.get_state(CONFIG).values["log"]
    assert [word for word in log if word[0] == "w"] == ["w0", "w1", "w2", "w3"]


def test_an_interrupt_stops_the_calls_queued_before_it(saver):
    gate = Gate()
    app = make(saver, gate)
    live, first = started(lambda: app.invoke({"log": ["hold"]}, CONFIG))
    assert gate.reached.wait(20)
    queued, second = started(lambda: app.invoke({"log": ["queued"]}, CONFIG, multitask="enqueue"))
    waits_in_line(1)
    late, third = started(lambda: app.invoke({"log": ["new"]}, CONFIG, multitask="interrupt"))
    waits_in_line(2)
    gate.opened.set()
    for thread in (live, queued, late):
        thread.join(20)
    assert isinstance(first[0], GraphDrained)
    assert third[0]["log"][:3] == ["hold", "a1", "queued"] and third[0]["log"][-3] == "new"
    assert isinstance(second[0], (GraphDrained, dict)), "it may have been quicker than the request"


def test_a_control_that_several_runs_share_is_not_drained(drive):
    control = RunControl()
    first, second = collide(drive, InMemorySaver(), "interrupt", control=control)
    assert isinstance(first, GraphDrained) and second["log"][-3] == "new"
    assert not control.drain_requested


def test_other_threads_and_savers_are_not_in_the_way(drive):
    gate = Gate()
    app = make(InMemorySaver(), gate)
    live, _ = started(lambda: drive.invoke(app, {"log": ["hold"]}, CONFIG))
    assert gate.reached.wait(20)
    other = thread_config("other")
    assert drive.invoke(app, {"log": ["x"]}, other, multitask="reject")["log"][0] == "x"
    assert drive.invoke(make(InMemorySaver()), {"log": ["x"]}, CONFIG, multitask="reject")["log"][0] == "x"
    gate.opened.set()
    live.join(20)


@pytest.mark.parametrize("how", WAITING)
def test_a_node_does_not_wait_for_its_own_run(drive, how):
    saver = InMemorySaver()
    seen = []

    def node(state):
        try:
            app.invoke({"log": ["inner"]}, CONFIG, multitask=how)
        except ThreadBusyError as error:
            seen.append(str(error))
        return {"log": ["a"]}

    app = chain_of(Log, a=node).compile(saver)
    assert drive.invoke(app, EMPTY, CONFIG) == {"log": ["a"]}
    assert "it would wait for itself" in seen[0]


def test_without_it_the_head_decides(drive):
    first, second = collide(drive, InMemorySaver(), None)
    assert isinstance(first, CheckpointConflictError) and second["log"][-3] == "new"


def test_what_it_cannot_be_is_refused(drive):
    with pytest.raises(ValueError, match="multitask must be 'reject', 'enqueue', 'interrupt' or 'rollback'"):
        drive.invoke(make(InMemorySaver()), EMPTY, CONFIG, multitask="maybe")
    with pytest.raises(ValueError, match="multitask must be"):
        drive.stream(make(InMemorySaver()), EMPTY, CONFIG, multitask="maybe")
    with pytest.raises(ValueError, match="needs a graph with a checkpointer of its own"):
        drive.invoke(make(None), EMPTY, CONFIG, multitask="enqueue")
    with pytest.raises(ValueError, match="needs a thread_id"):
        drive.invoke(make(InMemorySaver()), EMPTY, None, multitask="enqueue")
