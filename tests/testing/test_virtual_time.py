"""`testing.virtual_time`: timers of the engine's clock take no real time, and fire in the order of that clock."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from hashlib import pbkdf2_hmac

import pytest
from kit.drive import run_threads
from kit.graphs import CONFIG, Log, parallel_of
from kit.programs import printed

from stategraph import (
    START,
    GraphDrained,
    InMemorySaver,
    Limit,
    RetryPolicy,
    Runtime,
    Send,
    StateGraph,
    entrypoint,
    get_runtime,
    task,
)
from stategraph.checkpoint.sqlite import SqliteSaver
from stategraph.pregel.clock import CLOCK
from stategraph.pregel.drivers.pool import POOL
from stategraph.pregel.errors import NodeTimeoutError, StepTimeoutError
from stategraph.testing import virtual_time

BEGIN = datetime(2030, 1, 1, tzinfo=UTC)


def napper(drive, *seconds, note=None, **options):
    """A node that sleeps so long, in place."""

    def node(state, runtime: Runtime):
        for each in seconds:
            runtime.sleep(each, durable_after=1e9, **options)
        if note is not None:
            note()
        return {"log": ["woke"]}

    async def anode(state, runtime: Runtime):
        for each in seconds:
            await runtime.asleep(each, durable_after=1e9, **options)
        if note is not None:
            note()
        return {"log": ["woke"]}

    return anode if drive.is_async else node


def graph(nodes, saver=None, **policies):
    return parallel_of(Log, nodes, **policies).compile(saver)


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["unsaved", "saved"])
def test_tasks_side_by_side_wake_in_the_order_of_their_times(drive, saver):
    for _ in range(5):
        woke = []
        with virtual_time() as clock:

            def noting(name, clock=clock, woke=woke):
                return lambda: woke.append((name, round(clock.elapsed, 3)))

            times = {"a": (300, 300), "b": (10,), "c": (50, 1, 1), "d": (400,)}
            nodes = {name: napper(drive, *each, note=noting(name)) for name, each in times.items()}
            drive.invoke(graph(nodes, saver), {}, CONFIG if saver else None)
        assert woke == [("b", 10), ("c", 52), ("d", 400), ("a", 600)]


def test_virtual_time_waits_for_computing_tasks(drive):
    """A sibling that is at work keeps the time where it is, however long the others sleep."""
    seen = []
    with virtual_time() as clock:

        def work(state):
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                seen.append(clock.elapsed)
            return {"log": ["worked"]}

        async def awork(state):
            return work(state)

        drive.invoke(graph({"work": awork if drive.is_async else work, "nap": napper(drive, 3600)}), {})
        assert {*seen} == {0.0} and clock.elapsed == pytest.approx(3600)


@pytest.mark.trial
def test_virtual_time_waits_for_what_computes_without_holding_the_interpreter(drive):
    """As NumPy does: the thread stays at one instruction, for a second."""

    def derive(state):
        pbkdf2_hmac("sha256", b"word", b"salt", 1_500_000)
        return {"log": ["derived"]}

    app = graph({"derive": derive}, timeout=60)
    with virtual_time() as clock:
        assert drive.invoke(app, {"log": []})["log"] == ["derived"]
        assert clock.elapsed == 0


def test_the_backoff_of_retries(drive):
    attempts = []
    policy = RetryPolicy(
        max_attempts=4, initial_interval=60, backoff_factor=2, max_interval=1e6, jitter=False, retry_on=OSError
    )
    with virtual_time() as clock:

        def fail(state):
            attempts.append(round(clock.elapsed))
            raise OSError

        async def afail(state):
            fail(state)

        with pytest.raises(OSError):
            drive.invoke(graph({"fail": afail if drive.is_async else fail}, retry_policy=policy), {})
    assert attempts == [0, 60, 180, 420]


def test_the_timeout_of_a_node(drive):
    with virtual_time() as clock:
        with pytest.raises(NodeTimeoutError, match="run timeout of 30 s exceeded after 30"):
            drive.invoke(graph({"nap": napper(drive, 45)}, timeout=30), {})
        assert clock.elapsed == pytest.approx(30)
        assert drive.invoke(graph({"nap": napper(drive, 25)}, timeout=30), {}) == {"log": ["woke"]}


def test_the_timeout_of_a_superstep(drive):
    app = graph({"nap": napper(drive, 45)})
    app.step_timeout = 30
    with virtual_time() as clock:
        with pytest.raises(StepTimeoutError):
            drive.invoke(app, {})
        assert clock.elapsed == pytest.approx(30)


def test_the_deadline_of_a_run(drive):
    app = graph({"nap": napper(drive, 45)}, InMemorySaver())
    with virtual_time(BEGIN) as clock:
        with pytest.raises(GraphDrained):
            drive.invoke(app, {}, {**CONFIG, "deadline": BEGIN + timedelta(seconds=30)})
        assert clock.elapsed == pytest.approx(30)
        assert drive.invoke(app, None, CONFIG) == {"log": ["woke"]}
        assert clock.elapsed == pytest.approx(45)


def test_a_limit_per_time(drive):
    begun = []
    with virtual_time() as clock:
        builder = StateGraph(Log)

        def work(state):
            begun.append(round(clock.elapsed))

        async def awork(state):
            work(state)

        builder.add_node("work", awork if drive.is_async else work, limit=Limit(2, per=60))
        builder.add_conditional_edges(START, lambda state: [Send("work", None)] * 5, ["work"])
        drive.invoke(builder.compile(), {})
    assert begun == [0, 0, 60, 60, 120]


def test_calls_of_tasks(drive):
    if drive.is_async:

        @task
        async def nap(seconds):
            await get_runtime().asleep(seconds, durable_after=1e9)
            return seconds

        @entrypoint()
        async def flow(seconds):
            return [*await asyncio.gather(*map(nap, seconds))]
    else:

        @task
        def nap(seconds):
            get_runtime().sleep(seconds, durable_after=1e9)
            return seconds

        @entrypoint()
        def flow(seconds):
            return [call.result() for call in [nap(each) for each in seconds]]

    with virtual_time() as clock:
        assert drive.invoke(flow, [300, 20, 100]) == [300, 20, 100]
        assert clock.elapsed == pytest.approx(300)


class SlowSaver(SqliteSaver):
    """Takes a while to record something."""

    def record(self, *given):
        threading.Event().wait(0.05)
        return super().record(*given)


async def test_virtual_time_waits_for_threads_that_a_coroutine_waits_for():
    """Those of its checkpointer, and of `asyncio.to_thread`."""

    async def node(state, runtime: Runtime):
        await runtime.aonce("effect", asyncio.sleep, 0)
        await asyncio.to_thread(threading.Event().wait, 0.05)
        return {"log": ["done"]}

    with SlowSaver.from_conn_string(":memory:") as saver, virtual_time() as clock:
        assert (await graph({"node": node}, saver, timeout=60).ainvoke({"log": []}, CONFIG))["log"] == ["done"]
        assert clock.elapsed == 0


def test_timers_of_asyncio_are_moved_with_it():
    """No coroutine: the limit that those have is a timer of asyncio, too."""

    async def node(state):
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 60)
        return {"log": ["woke"]}

    async def check():
        with virtual_time() as clock:
            assert await graph({"node": node}).ainvoke({}) == {"log": ["woke"]}
            assert clock.elapsed == pytest.approx(3660)

    asyncio.run(check())


def test_a_sleep_that_has_paused_its_task_is_over_when_the_time_is_moved(drive):
    def body(state, runtime: Runtime):
        runtime.sleep(timedelta(days=3))
        return {"log": ["woke"]}

    app = graph({"nap": body}, InMemorySaver())
    with virtual_time(BEGIN) as clock:
        assert drive.invoke(app, {}, CONFIG)["__sleep__"] == BEGIN + timedelta(days=3)
        assert drive.get_state(app, CONFIG).created_at.startswith("2030-01-01T00:00:00")
        clock.advance(timedelta(days=3))
        assert drive.invoke(app, None, CONFIG) == {"log": ["woke"]}
        assert clock.now == BEGIN + timedelta(days=3)


def test_a_day_is_a_day_whatever_the_time_was():
    """Without a start it is some fraction of a second, which a `datetime` does not tell."""

    def body(state, runtime: Runtime):
        runtime.sleep(timedelta(days=1))
        return {"log": ["woke"]}

    for _ in range(20):
        with virtual_time() as clock:
            app = graph({"nap": body}, InMemorySaver())
            app.invoke({}, CONFIG)
            clock.advance(timedelta(days=1))
            assert app.invoke(None, CONFIG) == {"log": ["woke"]}


def test_calls_on_threads_of_a_test(drive):
    """The test joins them, which is no wait of the engine."""
    with virtual_time() as clock:
        calls = [
            threading.Thread(target=drive.invoke, args=(graph({"nap": napper(drive, each)}), {}))
            for each in (60, 90)
        ]
        run_threads(calls)
        assert clock.elapsed == pytest.approx(90)


def test_afterwards_all_is_as_before():
    with virtual_time():
        pass
    assert CLOCK.virtual is None and (CLOCK.time, CLOCK.monotonic, CLOCK.sleep) == (
        time.time, time.monotonic, time.sleep,
    )  # fmt: skip
    assert "submit" not in vars(POOL)


def test_it_is_not_nested():
    with virtual_time(), pytest.raises(RuntimeError, match="virtual already"), virtual_time():
        pass


def test_it_does_not_go_back():
    with virtual_time() as clock:
        for wrong in (-1, float("inf"), float("nan")):
            with pytest.raises(ValueError, match=f"advance must be 0 seconds or more, and finite, got {wrong}"):
                clock.advance(wrong)
        for none in ("5", None):
            with pytest.raises(TypeError, match=f"advance must be a number of seconds or a timedelta, got {none!r}"):
                clock.advance(none)
    with pytest.raises(ValueError, match="time zone"), virtual_time(datetime(2030, 1, 1)):
        pass


@pytest.mark.trial
def test_reading_threads_survives_garbage_collection():
    """CPython's gh-106883: a collection while frames are listed could hang, in Python 3.11.7, too."""
    code = """
import gc, threading
from stategraph.testing.clock import find_frames
for _ in range(8):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
gc.set_threshold(3)
for _ in range(3000):
    garbage = [threading.local()]
    garbage.append(garbage)
    del garbage
    assert len(find_frames()) == 9
assert gc.isenabled()
gc.disable()
find_frames()
assert not gc.isenabled()
"""
    printed(code)
