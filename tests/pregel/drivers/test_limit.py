"""How many tasks may run at once, or start in a period of time: across nodes, graphs and runs."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import TypedDict

import pytest
from kit.drive import Drive
from kit.graphs import CONFIG, thread_config
from kit.graphs import Log as State

from stategraph import (
    START,
    InMemorySaver,
    Limit,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
)
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.drivers import limit as limits

WAIT = 20


class Item(TypedDict):
    number: int


class Room:
    """Who is in it: how many at most at once, and how many have been there."""

    def __init__(self):
        self.now = self.most = self.total = 0
        self._lock = threading.Lock()

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.total += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


def fan_out(drive, limit, room: Room, count=20, between=lambda: None):
    def work(item: Item):
        with room:
            threading.Event().wait(0.002)
            between()
        return {"log": [item["number"]]}

    async def awork(item: Item):
        with room:
            await asyncio.sleep(0.002)
            between()
        return {"log": [item["number"]]}

    builder = StateGraph(State).add_node("work", awork if drive.is_async else work, limit=limit)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in range(count)], ["work"])
    return builder.compile()


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_tasks_run_at_once_than_the_limit(drive, count):
    room = Room()
    assert drive.invoke(fan_out(drive, Limit(count), room), {})["log"] == [*range(20)]
    assert room.most == count and room.total == 20


def test_without_a_limit_they_run_at_once(drive):
    room, four = Room(), threading.Barrier(4, timeout=WAIT)
    drive.invoke(fan_out(drive, None, room, between=(lambda: None) if drive.is_async else four.wait), {})
    assert room.most > 3


def test_the_same_object_is_shared_by_nodes_graphs_and_runs(drive):
    room, shared = Room(), Limit(2)
    apps = [fan_out(drive, shared, room, 5) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        ended = [*pool.map(lambda app: drive.invoke(app, {}, {"max_concurrency": 3})["log"], apps)]
    assert ended == [[*range(5)]] * 6
    assert room.most == 2 and room.total == 30


def test_sync_and_async_runs_share_it():
    room, shared = Room(), Limit(2)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(drive.invoke, fan_out(drive, shared, room, 8), {}) for drive in (Drive(False), Drive(True)) * 2]
        assert [future.result(WAIT)["log"] for future in futures] == [[*range(8)]] * 4
    assert room.most == 2


def test_those_that_wait_take_no_place_of_others(drive):
    """With room for one task of `slow` and two workers, `quick` runs beside it however many of `slow` wait."""
    quick_ended = threading.Event()
    room = Room()

    def slow(item: Item):
        with room:
            assert quick_ended.wait(WAIT), "a task that waits for a place takes up a worker"
        return {}

    def quick(item: Item):
        if item["number"] == 9:
            quick_ended.set()
        return {}

    builder = StateGraph(State).add_node("slow", slow, limit=Limit(1)).add_node("quick", quick)
    sends = [*(Send("slow", {"number": n}) for n in range(5)), *(Send("quick", {"number": n}) for n in range(10))]
    builder.add_conditional_edges(START, lambda state: sends, ["slow", "quick"])
    drive.invoke(builder.compile(), {}, {"max_concurrency": 2})
    assert room.most == 1 and room.total == 5


def test_several_limits_are_acquired_together(drive):
    """Two nodes that name the same two in different orders never wait for each other."""
    a, b, room = Limit(1), Limit(1), Room()

    def work(item: Item):
        with room:
            return {}

    builder = StateGraph(State).add_node("ab", work, limit=[a, b]).add_node("ba", work, limit=[b, a])
    builder.add_conditional_edges(
        START, lambda state: [Send(name, {"number": n}) for n in range(20) for name in ("ab", "ba")], ["ab", "ba"]
    )
    drive.invoke(builder.compile(), {})
    assert room.most == 1 and room.total == 40


def test_a_task_inside_one_that_has_a_slot_needs_none(drive):
    shared, room = Limit(1), Room()
    inner = fan_out(drive, shared, room, 3)
    outer = StateGraph(State).add_node("inner", inner, limit=shared).add_edge(START, "inner").compile()
    assert drive.invoke(outer, {})["log"] == [0, 1, 2]


def test_a_lone_task_waits_too(drive):
    room, shared = Room(), Limit(1)

    def work(state):
        with room:
            threading.Event().wait(0.01)
        return {}

    app = StateGraph(State).add_node("work", work, limit=shared).add_edge(START, "work").compile()
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(lambda _: drive.invoke(app, {}), range(4))]
    assert room.most == 1 and room.total == 4


def test_slots_are_released_after_failures_interrupts_and_cancellations(drive):
    shared = Limit(1)

    def work(item: Item):
        if item["number"] == 0:
            raise ConnectionError
        return {"log": [interrupt(item["number"])]}

    builder = StateGraph(State).add_node("work", work, limit=shared)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in state["log"]], ["work"])
    app = builder.compile(InMemorySaver())
    with pytest.raises(ConnectionError):
        drive.invoke(app, {"log": [0, 1, 2]}, CONFIG)
    other = thread_config("u")
    assert len(drive.invoke(app, {"log": [1, 2, 3]}, other)["__interrupt__"]) == 3
    assert shared._taken == 0 and not shared._waiting


def test_a_cancelled_run_gives_its_places_back():
    shared, began = Limit(1), asyncio.Event()

    async def work(state):
        began.set()
        await asyncio.Event().wait()

    app = StateGraph(State).add_node("work", work, limit=shared).add_edge(START, "work").compile()

    async def go():
        first = asyncio.ensure_future(app.ainvoke({}))
        await began.wait()
        second = asyncio.ensure_future(app.ainvoke({}))
        await asyncio.sleep(0.01)
        began.clear()
        second.cancel()
        await asyncio.wait([second])
        first.cancel()
        await asyncio.wait([first])

    asyncio.run(go())
    assert shared._taken == 0
    began = asyncio.Event()
    room = Room()
    assert Drive(True).invoke(fan_out(Drive(True), shared, room, 3), {})["log"] == [0, 1, 2]


def test_a_dropped_task_s_place_goes_to_another_batch_without_waiting_for_it():
    """A batch drops its tasks with its lock held, and so may the other."""

    class Stub:
        def __init__(self):
            self.node = SimpleNamespace(policies=SimpleNamespace(limits=(shared,)))
            self.run = SimpleNamespace(parent=None)

    shared, others_lock, called = Limit(1), threading.Lock(), threading.Event()

    def call_other():
        with others_lock:
            called.set()

    first = limits.AdmissionQueue([Stub()], lambda: None)  # type: ignore[list-item]
    at_work = first.popleft()
    dropping = limits.AdmissionQueue([Stub()], lambda: None)  # type: ignore[list-item]
    other = limits.AdmissionQueue([Stub()], call_other)  # type: ignore[list-item]
    assert not dropping and not other
    first.release(at_work)
    assert dropping and not other
    with others_lock:
        dropper = threading.Thread(target=dropping.pop)
        dropper.start()
        dropper.join(WAIT)
        assert not dropper.is_alive()
    assert called.wait(WAIT) and other


class Clock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self, patch):
        self.now = 100.0
        patch.setattr(CLOCK, "monotonic", lambda: self.now)
        patch.setattr(CLOCK, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds


def test_no_more_start_in_any_stretch_of_time(drive, monkeypatch):
    clock = Clock(monkeypatch)
    starts = []
    started = threading.Condition()
    timed = Limit(3, per=timedelta(minutes=1))

    def work(item: Item):
        with started:
            starts.append(clock.now)
            started.notify()
        return {"log": [item["number"]]}

    def sleep(seconds):
        """Let the clock go on once those that may start have begun on their threads."""
        with started:
            started.wait_for(lambda: starts.count(clock.now) >= 3, timeout=5)
            clock.sleep(seconds)

    monkeypatch.setattr(CLOCK, "sleep", sleep)
    builder = StateGraph(State).add_node("work", work, limit=timed)
    builder.add_conditional_edges(START, lambda state: [Send("work", {"number": n}) for n in range(10)], ["work"])
    assert drive.invoke(builder.compile(), {})["log"] == [*range(10)]
    assert len(starts) == 10
    assert all(later - earlier >= 60 for earlier, later in zip(starts, starts[3:], strict=False))


def test_a_retry_is_a_start(monkeypatch):
    clock = Clock(monkeypatch)
    monkeypatch.setattr("time.sleep", clock.sleep)
    starts = []

    def work(state):
        starts.append(clock.now)
        if len(starts) < 3:
            raise ConnectionError
        return {}

    again = RetryPolicy(max_attempts=3, initial_interval=0, jitter=False)
    builder = StateGraph(State).add_node("work", work, limit=Limit(1, per=0.2), retry_policy=again)
    builder.add_edge(START, "work").compile().invoke({})
    assert [later - earlier >= 0.19 for earlier, later in itertools.pairwise(starts)] == [True, True]


@pytest.mark.parametrize(("count", "per", "text"), [
    (0, None, "Limit: count must be an integer >= 1, got 0"),
    (True, None, "Limit: count must be an integer >= 1, got True"),
    (1, 0, "Limit: per must be greater than 0 seconds, got 0"),
])  # fmt: skip
def test_what_is_no_limit_is_refused(count, per, text):
    with pytest.raises(ValueError) as caught:
        Limit(count, per=per)
    assert str(caught.value) == text


def test_a_number_is_no_limit():
    wrong = 3
    with pytest.raises(TypeError, match="node 'a': limit must be a Limit or a list of them, got 3"):
        StateGraph(State).add_node("a", lambda state: {}, limit=wrong)


def test_an_answer_needs_a_place_again(drive):
    shared = Limit(1)
    thread = drive.on(
        StateGraph(State)
        .add_node("ask", lambda state: {"log": [interrupt("?")]}, limit=shared)
        .add_edge(START, "ask")
        .compile(InMemorySaver())
    )
    thread.invoke({})
    assert shared._taken == 0
    assert thread.resume(5)["log"] == [5]
