"""`@task` calls as they run: concurrently, in any nesting, at any limit, and calls that are never awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import logging
import operator
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from kit.drive import cancel
from kit.graphs import CONFIG, chain_of, graph_of
from typing_extensions import TypedDict

from stategraph import (
    START,
    Command,
    GraphDrained,
    InMemorySaver,
    Pregel,
    RetryPolicy,
    Send,
    StateGraph,
    TimeoutPolicy,
    entrypoint,
    get_stream_writer,
    task,
)
from stategraph.pregel.drivers import attempt
from stategraph.pregel.task.deadline import Deadline

WAIT = 5.0
"""Seconds after which a test that hangs gives up."""


class State(TypedDict, total=False):
    n: int
    log: Annotated[list, operator.add]


@pytest.fixture(autouse=True)
def no_complaints(caplog):
    """asyncio has nothing to complain about: no exception that nobody retrieved, no task destroyed while pending."""
    with caplog.at_level(logging.ERROR, "asyncio"):
        yield
        gc.collect(1)
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]


def limited(drive, app, input, config=None):
    """`drive.invoke`, failing instead of hanging for ever."""
    box = []

    def work():
        try:
            box.append((drive.invoke(app, input, config), None))
        except BaseException as error:
            box.append((None, error))

    thread = threading.Thread(target=work, daemon=True, name="stategraph-test")
    thread.start()
    thread.join(WAIT)
    assert box, "it hangs"
    result, error = box[0]
    if error is not None:
        raise error
    return result


@task
def double(x):
    return 2 * x


def result_of(call, *args, **options):
    """An entrypoint that gives the result of a call."""

    @entrypoint(**options)
    def flow(_):
        return call(*args).result()

    return flow


def lasting(log):
    """A task that ends only if it is cancelled."""

    @task
    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    return forever


@task
def depth(n):
    return 0 if n == 0 else depth(n - 1).result() + 1


# -- side by side ---------------------------------------------------------------------------------------------


def test_a_call_starts_at_once_and_calls_run_side_by_side(drive):
    barrier = threading.Barrier(3, timeout=WAIT)

    @task
    def meet(x):
        barrier.wait()
        return x

    @entrypoint()
    def flow(x):
        futures = [meet(1), meet(2)]
        barrier.wait()
        return [future.result() for future in futures]

    assert limited(drive, flow, 1) == [1, 2]


async def test_async_calls_run_side_by_side():
    both = asyncio.Event()
    started = []

    @task
    async def meet(x):
        started.append(x)
        if len(started) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), WAIT)
        return x

    @entrypoint()
    async def flow(x):
        return await asyncio.gather(meet(1), meet(2))

    assert (await flow.ainvoke(1)) == [1, 2]


def test_many_calls(drive):
    @entrypoint()
    def flow(count):
        return sum(future.result() for future in [double(i) for i in range(count)])

    assert limited(drive, flow, 500) == 249_500


def test_results_have_the_usual_ways_of_futures(drive):
    @entrypoint()
    def flow(x):
        futures = [double(1), double(2)]
        done, _ = concurrent.futures.wait(futures, timeout=WAIT)
        return sorted(f.result(timeout=0) for f in done), [f.exception() for f in futures]

    assert limited(drive, flow, 1) == ([2, 4], [None, None])


def test_a_result_can_be_waited_for_with_a_limit(drive):
    gate = threading.Event()

    @task
    def slow():
        gate.wait(WAIT)
        return "done"

    @entrypoint()
    def flow(x):
        future = slow()
        with pytest.raises(TimeoutError):
            future.result(timeout=0.001)
        gate.set()
        return future.result()

    assert limited(drive, flow, 1) == "done"


# -- who may call whom ----------------------------------------------------------------------------------------


def test_outside_of_a_run_a_task_cannot_be_called():
    with pytest.raises(RuntimeError, match="'double'.*inside a running node"):
        double(1)


def test_a_call_in_a_users_thread_needs_the_context(drive):
    seen = []

    def bare():
        try:
            double(1)
        except RuntimeError as error:
            seen.append(str(error))

    @entrypoint()
    def flow(x):
        found = []
        context = contextvars.copy_context()
        for target in (bare, lambda: context.run(lambda: found.append(double(x).result()))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join(WAIT)
        return found

    assert limited(drive, flow, 4) == [8]
    assert len(seen) == 1 and "copy_context" in seen[0]


def test_a_sync_run_cannot_call_an_async_task():
    @task
    async def later():
        return 1

    flow = result_of(later)
    with pytest.raises(RuntimeError, match="'later' is async"):
        flow.invoke(1)
    assert asyncio.run(flow.ainvoke(1)) == 1, "an async run can, from a sync body too"


def test_an_async_body_calls_both_kinds():
    @task
    async def adouble(x):
        return 2 * x

    @entrypoint()
    async def flow(x):
        return await asyncio.gather(double(x), adouble(x))

    assert asyncio.run(flow.ainvoke(2)) == [4, 4]


def test_a_coroutine_that_does_not_await_a_call_is_told_to():
    @entrypoint()
    async def flow(x):
        return double(x).result()

    with pytest.raises(asyncio.InvalidStateError) as raised:
        asyncio.run(flow.ainvoke(2))
    assert "In a coroutine await what a @task call returns: it has no result yet" in raised.value.__notes__


def test_a_sync_task_of_an_async_run_may_call_async_ones():
    @task
    async def innermost(x):
        await asyncio.sleep(0)
        return x + 1

    @task
    def middle(x):
        return innermost(x).result()

    @entrypoint()
    async def flow(x):
        return await asyncio.gather(middle(1), middle(2))

    assert asyncio.run(flow.ainvoke(1)) == [2, 3]


def test_the_first_calls_of_a_run_may_be_concurrent(drive):
    barrier = threading.Barrier(4, timeout=WAIT)

    def work(state):
        barrier.wait()
        return {"log": [double(state).result()]}

    graph = StateGraph(State).add_node("work", work)
    graph.add_conditional_edges(START, lambda state: [Send("work", i) for i in range(4)])
    assert limited(drive, graph.compile(), {"n": 1})["log"] == [0, 2, 4, 6]


# -- limits never lock up -------------------------------------------------------------------------------------


@task
async def adepth(n):
    return 0 if n == 0 else await adepth(n - 1) + 1


@pytest.mark.parametrize("limit", [1, 2, None])
def test_nested_results_never_wait_for_each_other(drive, limit):
    def flow(n):
        return depth(n).result()

    async def aflow(n):
        return await adepth(n)

    for body in [flow, aflow] if drive.is_async else [flow]:
        assert limited(drive, entrypoint()(body), 30, {} if limit is None else {"max_concurrency": limit}) == 30


@pytest.mark.parametrize("mode", ["custom", "messages", "updates", "tasks"])
def test_one_at_a_time_with_a_reader(drive, mode):
    @task
    def tell(x):
        get_stream_writer()(x)
        return x

    def node(state):
        return {"log": [sum(f.result() for f in [tell(1), tell(2)])]}

    app = graph_of(State, "S>a S>b", a=node, b=node).compile()
    chunks = drive.stream(app, {"n": 1}, {"max_concurrency": 1}, stream_mode=mode, subgraphs=True)
    if mode == "custom":
        assert sorted(data for _, data in chunks) == [1, 1, 2, 2]


def test_a_callers_calls_keep_to_the_limit(drive):
    """`max_concurrency` counts the calls of one caller."""
    lock, now, most = threading.Lock(), [0], [0]

    @task
    def work():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1

    @entrypoint()
    def flow(x):
        for future in [work() for _ in range(20)]:
            future.result()

    limited(drive, flow, 1, {"max_concurrency": 2})
    assert 1 <= most[0] <= 2


def test_entrypoints_within_tasks_within_entrypoints(drive):
    @entrypoint()
    def inner(n):
        return depth(n).result()

    if drive.is_async:

        @task
        async def call(n):
            return await inner.ainvoke(n)

        @entrypoint()
        async def outer(n):
            return sum(await asyncio.gather(call(n), call(n)))
    else:

        @task
        def call(n):
            return inner.invoke(n)

        @entrypoint()
        def outer(n):
            return sum(f.result() for f in [call(n), call(n)])

    assert limited(drive, outer, 3, {"max_concurrency": 1}) == 6


def test_a_sync_graph_called_by_an_async_node():
    """It holds up the loop, and works."""

    @entrypoint()
    def inner(n):
        return depth(n).result()

    async def node(state):
        return {"log": [inner.invoke(3)]}

    app = chain_of(State, node=node).compile()
    assert asyncio.run(asyncio.wait_for(app.ainvoke({"n": 1}, {"max_concurrency": 1}), WAIT))["log"] == [3]


# -- how calls end --------------------------------------------------------------------------------------------


class Oops(Exception):
    pass


@task
def fail(what="oops"):
    raise Oops(what)


@task
async def afail(what="oops"):
    raise Oops(what)


def test_an_error_is_raised_where_the_result_is_asked_for(drive):
    @entrypoint()
    def flow(x):
        try:
            fail().result()
        except Oops as error:
            return str(error)
        return "nothing"

    assert limited(drive, flow, 1) == "oops"


@pytest.mark.parametrize("failing", [fail, afail])
def test_the_error_of_an_unawaited_call_fails_the_caller(failing):
    @entrypoint()
    async def flow(x):
        failing()
        return "returned"

    with pytest.raises(Oops):
        asyncio.run(flow.ainvoke(1))


def test_in_a_sync_body_too(drive):
    @entrypoint()
    def flow(x):
        fail()
        return "returned"

    with pytest.raises(Oops):
        limited(drive, flow, 1)


def test_an_error_whose_result_was_read_is_handled(drive):
    @entrypoint()
    def flow(x):
        return type(fail().exception()).__name__

    assert limited(drive, flow, 1) == "Oops"


def test_handled_in_a_coroutine():
    @entrypoint()
    async def flow(x):
        return [str(e) for e in await asyncio.gather(afail("a"), fail("b"), return_exceptions=True)]

    assert asyncio.run(flow.ainvoke(1)) == ["a", "b"]


def test_an_unawaited_call_is_waited_for(drive):
    ended = threading.Event()
    body_over = threading.Event()

    @task
    def slow():
        body_over.wait(WAIT)
        ended.set()

    @entrypoint()
    def flow(x):
        slow()
        threading.Timer(0.005, body_over.set).start()
        return 1

    assert limited(drive, flow, 1) == 1
    assert ended.is_set()


def test_no_call_outlives_a_body_that_failed(drive):
    started, ended = threading.Event(), threading.Event()

    @task
    def slow():
        started.set()
        ended.set()

    @entrypoint()
    def flow(x):
        slow()
        started.wait(WAIT)
        raise Oops

    with pytest.raises(Oops):
        limited(drive, flow, 1)
    assert ended.is_set()


def test_calls_that_have_not_started_are_dropped_when_the_body_fails(drive):
    log = []
    go = threading.Event()

    @task
    def work(n):
        log.append(n)
        go.wait(WAIT)

    @entrypoint()
    def flow(x):
        *_, last = [work(n) for n in range(3)]
        last.add_done_callback(lambda _: go.set())  # it is dropped after the others
        raise Oops

    with pytest.raises(Oops):
        limited(drive, flow, 1, {"max_concurrency": 1})
    assert len(log) <= 1


def test_async_calls_are_cancelled_when_the_body_fails():
    log = []
    forever = lasting(log)

    @entrypoint()
    async def flow(x):
        forever()
        await asyncio.sleep(0)
        raise Oops

    with pytest.raises(Oops):
        asyncio.run(flow.ainvoke(1))
    assert log == ["ended"]


async def test_calls_of_a_failed_attempt_do_not_outlive_the_run():
    """The next attempt does not call them, so nobody would ever await them."""
    log = []
    forever = lasting(log)

    attempts = iter([1, 2])

    @entrypoint(retry_policy=RetryPolicy(initial_interval=0))
    async def flow(x):
        if next(attempts) == 1:
            forever()
            await asyncio.sleep(0)
            raise Oops
        return "fine"

    result = await flow.ainvoke(1)
    assert (result, [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]) == ("fine", [])
    assert log == ["ended"]


def test_a_retried_body_joins_a_call_that_still_runs(drive):
    log = []
    go = threading.Event()

    @task
    def slow():
        log.append("slow")
        go.wait(WAIT)
        return "done"

    attempts = []

    @entrypoint(retry_policy=RetryPolicy(initial_interval=0))
    def flow(x):
        attempts.append(1)
        future = slow()
        if len(attempts) == 1:
            raise Oops
        go.set()
        return future.result()

    assert limited(drive, flow, 1) == "done"
    assert log == ["slow"]


def test_a_retried_body_repeats_failed_calls(drive):
    log = []

    @task
    def shaky():
        log.append("shaky")
        if len(log) == 1:
            raise Oops
        return "done"

    assert limited(drive, result_of(shaky, retry_policy=RetryPolicy(initial_interval=0)), 1) == "done"
    assert len(log) == 2


def test_a_task_has_a_retry_policy_of_its_own(drive):
    attempts = []

    @task(retry_policy=RetryPolicy(initial_interval=0))
    def shaky(runtime: Any):
        attempts.append(runtime.execution_info.node_attempt)
        if len(attempts) < 3:
            raise ConnectionError
        return "done"

    assert limited(drive, result_of(shaky), 1) == "done"
    assert attempts == [1, 2, 3]


def test_a_cancelled_future_was_never_run(drive):
    """A call that waits for room can be taken back; the caller goes on."""
    log = []
    go = threading.Event()

    @task
    def work(n):
        log.append(n)
        go.wait(WAIT)
        return n

    @entrypoint()
    def flow(x):
        first, second = work(1), work(2)
        assert second.cancel()
        go.set()
        with pytest.raises(concurrent.futures.CancelledError):
            second.result()
        return first.result()

    assert limited(drive, flow, 1, {"max_concurrency": 1}) == 1
    assert log == [1]


def test_a_cancelled_coroutine_does_not_fail_the_caller():
    log = []
    forever = lasting(log)

    @entrypoint()
    async def flow(x):
        future = forever()
        await asyncio.sleep(0)
        await cancel(future)
        return log[:]

    assert asyncio.run(flow.ainvoke(1)) == ["ended"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_a_signal_in_a_task_ends_the_run(drive, signal):
    @task
    def stop():
        raise signal

    @entrypoint()
    def flow(x):
        try:
            stop().result()
        except Exception:
            return "swallowed"
        return "ignored"

    with pytest.raises(signal):
        limited(drive, flow, 1)


@pytest.mark.parametrize("awaited", [True, False])
def test_ctrl_c_in_an_async_task_reaches_the_caller_of_the_run(awaited):
    """And does not tear down the event loop on its way."""

    @task
    async def stop():
        raise KeyboardInterrupt

    @entrypoint()
    async def flow(x):
        future = stop()
        if awaited:
            await future

    async def main():
        try:
            await flow.ainvoke(1)
        except KeyboardInterrupt:
            return "caught"
        return "missed"

    assert asyncio.run(main()) == "caught"


def test_a_command_for_the_parent_passes_through_a_task(drive):
    """A graph called in a task speaks to the graph of the node that called the task."""

    def leave(state):
        return Command(graph=Command.PARENT, update={"log": ["from below"]})

    child = chain_of(State, leave=leave).compile()

    @task
    def call(n):
        return child.invoke({"n": n})

    def node(state):
        call(state["n"]).result()
        return {"log": ["not reached"]}

    app = chain_of(State, node=node).compile()
    assert limited(drive, app, {"n": 1})["log"] == ["from below"]


def test_a_saver_that_fails_fails_the_call(drive):
    class Full(InMemorySaver):
        def record(self, *args):
            raise OSError("disk full")

        async def arecord(self, *args):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        limited(drive, result_of(double, 1, checkpointer=Full()), 1, CONFIG)


# -- leaving early --------------------------------------------------------------------------------------------


def test_a_reader_that_leaves_while_calls_run():
    """A sync run waits for them and keeps their results."""
    log = []
    left = threading.Event()

    @task
    def slow():
        log.append("slow")
        get_stream_writer()("started")
        left.wait(WAIT)
        return "done"

    flow = result_of(slow, checkpointer=InMemorySaver())
    chunks = flow.stream(1, CONFIG, stream_mode="custom")
    assert next(chunks) == "started"
    threading.Timer(0.005, left.set).start()
    chunks.close()
    assert flow.invoke(None, CONFIG) == "done"
    assert log == ["slow"]


async def test_an_async_reader_that_leaves_cancels_calls():
    log = []

    @task
    async def forever(n, writer: Any):
        writer("started")
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    @task
    async def parent():
        await asyncio.gather(forever(1), forever(2))

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(x):
        await parent()

    chunks = flow.astream(1, CONFIG, stream_mode="custom")
    assert await anext(chunks) == "started"
    await chunks.aclose()
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
    assert log == ["ended", "ended"]


@pytest.mark.parametrize("is_async", [True, False])
def test_cancelling_the_run_cancels_its_calls_at_once(is_async):
    """A sync task cannot be cancelled; nobody waits for it."""
    started, go = threading.Event(), threading.Event()

    @task
    def blocking():
        started.set()
        go.wait(WAIT)

    async def abody(x):
        await blocking()

    def body(x):
        blocking().result()

    async def main():
        running = asyncio.ensure_future(entrypoint()(abody if is_async else body).ainvoke(1))
        await asyncio.to_thread(started.wait, WAIT)
        running.cancel()
        done, _ = await asyncio.wait([running], timeout=1)
        return bool(done) and running.cancelled()

    try:
        assert asyncio.run(main())
        assert not go.is_set()
    finally:
        go.set()


async def test_a_failing_sibling_cancels_the_calls_of_a_node():
    log = []
    waiting = asyncio.Event()

    @task
    async def forever():
        waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("ended")

    async def a(state):
        await forever()

    async def b(state):
        await waiting.wait()
        raise Oops

    app = graph_of(State, "S>a S>b", a=a, b=b).compile()
    with pytest.raises(Oops):
        await app.ainvoke({"n": 1})
    assert log == ["ended"]


def test_a_drain_lets_calls_end(drive):
    """A nested graph stops the body; what the body has called ends, and is kept."""
    log = []
    go = threading.Event()

    @task
    def work():
        go.wait(WAIT)
        log.append("work")
        return "work"

    def stop(state, runtime):
        if not go.is_set():
            runtime.control.request_drain()
            threading.Timer(0.005, go.set).start()

    nested = graph_of(State, "S>stop>last", stop=stop).compile()

    @entrypoint(checkpointer=InMemorySaver())
    def flow(x):
        future = work()
        return nested.invoke({"n": 1})["log"], future.result()

    with pytest.raises(GraphDrained):
        limited(drive, flow, 1, CONFIG)
    assert log == ["work"]
    assert limited(drive, flow, None, CONFIG) == (["last"], "work")
    assert log == ["work"]


# -- time limits around calls ---------------------------------------------------------------------------------


class Clock:
    """Time passes when a test says so."""

    now = 0.0

    def __init__(self):
        self.watches = []


@pytest.fixture
def clock(monkeypatch):
    """The clock of all time limits, which knows their watches."""
    clock = Clock()

    class OfThisTest(Deadline):
        def __init__(self, policy: TimeoutPolicy, above: Deadline | None = None):
            super().__init__(policy, above, lambda: clock.now)
            clock.watches.append(self)

    monkeypatch.setattr(attempt, "Deadline", OfThisTest)
    return clock


def timed_out(drive, flow: Pregel):
    with pytest.raises(Exception, match="timeout") as caught:
        limited(drive, flow, 1)
    return caught.value


def test_a_task_has_a_time_limit_of_its_own(drive):
    go = threading.Event()

    @task(timeout=0.01)
    def slow():
        go.wait(WAIT)

    try:
        assert timed_out(drive, result_of(slow)).node == "slow"  # type: ignore[attr-defined]
    finally:
        go.set()


def test_a_caller_that_is_out_of_time_does_not_wait_for_its_calls(drive, clock):
    go = threading.Event()
    log = []

    @task
    def slow(n):
        log.append(n)
        clock.now += 1
        go.wait(WAIT)

    @entrypoint(timeout=0.01)
    def flow(x):
        return [f.result() for f in [slow(1), slow(2)]]

    with pytest.raises(Exception, match="timeout"):
        limited(drive, flow, 1, {"max_concurrency": 1})
    go.set()
    assert log == [1], "what had not started never does"


async def test_async_calls_end_with_a_caller_that_is_out_of_time():
    log = []
    forever = lasting(log)

    @entrypoint(timeout=0.01)
    async def flow(x):
        await asyncio.gather(forever(), forever())

    with pytest.raises(Exception, match="timeout"):
        await flow.ainvoke(1)
    assert [t for t in asyncio.all_tasks() if t is not asyncio.current_task()] == []
    assert log == ["ended", "ended"]


def test_an_attempt_that_is_out_of_time_starts_no_further_calls(drive):
    log = []
    go, late = threading.Event(), threading.Event()

    @task
    def effect():
        log.append("effect")

    @entrypoint(timeout=0.01)
    def flow(x):
        go.wait(WAIT)
        try:
            effect()
        finally:
            late.set()

    timed_out(drive, flow)
    go.set()
    assert late.wait(WAIT)
    assert log == []


def test_a_calls_signs_of_life_reach_the_caller(drive, clock):
    """The idle limit of a caller that waits for a call starts anew with the call's events."""

    @task
    def lively(writer: Callable[[Any], None], runtime: Any):
        left = []
        for sign in (lambda: writer(1), runtime.heartbeat, lambda: double(1).result()):
            clock.now += 50
            sign()
            left.append(clock.watches[0].remaining())
        return left

    assert limited(drive, result_of(lively, timeout=TimeoutPolicy(idle_timeout=60)), 1) == [60, 60, 60]
