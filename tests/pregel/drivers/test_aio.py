"""The async driver: siblings, limits, and cancellation at every point, which loses nothing and leaves no task behind."""

from __future__ import annotations

import asyncio
import operator
import threading

import pytest
from kit.drive import cancel, each_durability
from kit.graphs import CONFIG

from stategraph.channels import BinaryOperatorAggregate, LastValue
from stategraph.checkpoint import InMemorySaver
from stategraph.pregel import ChannelWriteEntry, NodeBuilder, Pregel

WAIT = 5.0


def node(body, *writes, on="a"):
    return NodeBuilder().subscribe_only(on).do(body).write_to(*(writes or ("log",)))


def graph(nodes: dict[str, NodeBuilder], saver=None, **kwargs):
    channels = {k: LastValue(object) for k in "abc"}
    channels["log"] = BinaryOperatorAggregate(list, operator.add)
    return Pregel(
        nodes=nodes, channels=channels, input_channels="a", output_channels="log", checkpointer=saver, **kwargs
    )


def run(main):
    return asyncio.run(main())


async def forever(_):
    await asyncio.Event().wait()


async def turns(count=5):
    for _ in range(count):
        await asyncio.sleep(0)


# -- where and how many ---------------------------------------------------------------------------------------


async def test_coroutines_run_on_the_callers_loop_and_plain_functions_on_threads():
    loop, thread = asyncio.get_running_loop(), threading.current_thread()

    async def coro(_):
        return [asyncio.get_running_loop() is loop and threading.current_thread() is thread]

    for nodes in ({"c": node(coro)}, {"c": node(coro), "d": node(coro)}):
        assert set(await graph(nodes).ainvoke(1)) == {True}
    elsewhere = graph({"f": node(lambda _: [threading.current_thread() is not thread])})
    assert await elsewhere.ainvoke(1) == [True]


async def test_a_blocking_function_does_not_hold_up_the_loop():
    release = threading.Event()
    running = asyncio.create_task(graph({"f": node(lambda _: [release.wait(WAIT)])}).ainvoke(1))
    await turns()
    assert not running.done()
    release.set()
    assert await running == [True]


async def test_any_number_of_coroutines_may_wait_at_once():
    count = [0]
    all_there = asyncio.Event()

    async def body(_):
        count[0] += 1
        if count[0] == 1000:
            all_there.set()
        await all_there.wait()
        return [1]

    assert len(await graph({f"n{i}": node(body) for i in range(1000)}).ainvoke(1)) == 1000


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("mode", ["values", "custom", "updates"])
async def test_max_concurrency_bounds_how_many_run_at_once(limit, mode):
    running, most = [0], [0]

    async def body(_, writer):
        running[0] += 1
        most[0] = max(most[0], running[0])
        writer("here")
        await turns()
        running[0] -= 1
        return [1]

    app = graph({f"n{i}": node(body) for i in range(limit * 4)})
    async for _ in app.astream(1, {"max_concurrency": limit}, stream_mode=mode):
        pass
    assert most[0] == limit


def test_nested_graphs_in_parallel_nodes_end_with_one_at_a_time():
    async def coro(_):
        await turns(1)
        return [1]

    app = graph({f"n{i}": node(coro) for i in range(3)})
    for _ in range(3):

        async def call(x, inner: Pregel = app):
            return await inner.ainvoke(x)

        app = graph({f"n{i}": node(call) for i in range(3)})
    assert run(lambda: app.ainvoke(1, {"max_concurrency": 1})) == [1] * 81


# -- siblings -------------------------------------------------------------------------------------------------


async def test_a_sibling_that_takes_its_time_to_be_cancelled_is_awaited():
    cleaned = asyncio.Event()

    async def careful(_):
        try:
            await forever(_)
        finally:
            await turns()
            cleaned.set()

    async def bad(_):
        await turns()
        raise ValueError

    with pytest.raises(ValueError):
        await graph({"bad": node(bad), "careful": node(careful)}).ainvoke(1)
    assert cleaned.is_set()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_keyboard_interrupt_reaches_the_caller(kind, count):
    async def coro(_):
        raise KeyboardInterrupt

    def function(_):
        raise KeyboardInterrupt

    bad = node(coro if kind == "coroutine" else function)
    app = graph({"bad": bad, **{f"n{i}": node(lambda _: [1]) for i in range(count - 1)}})

    async def main():
        try:
            await app.ainvoke(1)
        except KeyboardInterrupt:
            return "caught"
        return "lost"

    assert run(main) == "caught"


# -- cancellation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_cancels_its_nodes_and_can_be_resumed(count, stream):
    cancelled = []
    started = asyncio.Event()
    wait = [True]

    async def body(_):
        started.set()
        try:
            if wait[0]:
                await forever(_)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise
        return [1]

    app = graph({f"n{i}": node(body) for i in range(count)}, InMemorySaver())

    async def read():
        async for _ in app.astream(1, CONFIG, stream_mode="updates"):
            pass

    call = asyncio.create_task(read() if stream else app.ainvoke(1, CONFIG))
    await started.wait()
    await turns()
    await cancel(call)
    assert len(cancelled) == count
    snapshot = await app.aget_state(CONFIG)
    assert len(snapshot.next) == count
    assert all(task.error is None for task in snapshot.tasks), "cancelled is not failed"
    wait[0] = False
    assert await app.ainvoke(None, CONFIG) == [1] * count


@pytest.mark.parametrize("stream", [False, True])
async def test_what_had_finished_before_a_cancellation_is_not_run_again(stream):
    runs = []
    wait = [True]

    async def slow(_):
        runs.append("slow")
        if wait[0]:
            await forever(_)
        return ["slow"]

    async def fast(_):
        runs.append("fast")
        return ["fast"]

    app = graph({"fast": node(fast), "slow": node(slow)}, InMemorySaver())

    async def read():
        async for _ in app.astream(1, CONFIG, stream_mode="values"):
            pass

    call = asyncio.create_task(read() if stream else app.ainvoke(1, CONFIG))
    await turns(10)
    await cancel(call)
    wait[0] = False
    assert (await app.aget_state(CONFIG)).next == ("slow",)
    assert await app.ainvoke(None, CONFIG) == ["fast", "slow"]
    assert (runs.count("fast"), runs.count("slow")) == (1, 2)


class Slow(InMemorySaver):
    """A saver whose every call takes a turn of the loop."""

    in_memory = False

    async def aget_tuple(self, config):
        await asyncio.sleep(0)
        return self.get_tuple(config)

    async def ahead(self, config):
        await asyncio.sleep(0)
        return self.head(config)

    async def acommit(self, commits):
        await asyncio.sleep(0)
        self.commit(commits)
        await asyncio.sleep(0)

    async def arecord(self, *args):
        await asyncio.sleep(0)
        return self.record(*args)


@each_durability
@pytest.mark.parametrize("again", [False, True])
def test_a_run_cancelled_at_any_await_resumes_to_the_same_end(durability, again):
    """Cancel after 0, 1, 2, … turns of the loop, once or twice; then resume; the result is always the same."""

    async def body(value):
        await turns(2)
        return ["x"]

    nodes = {
        "n1": node(body, "log", ChannelWriteEntry("b", 1)),
        "p1": node(body, on="b"), "p2": node(body, "log", ChannelWriteEntry("c", 1), on="b"), "p3": node(body, on="b"),
        "n2": node(body, on="c"),
    }  # fmt: skip

    async def main(after):
        app = graph(nodes, Slow())
        call = asyncio.create_task(app.ainvoke(1, CONFIG, durability=durability))
        await turns(after)
        finished = call.done()
        call.cancel()
        if again:
            await turns(1)
            call.cancel()
        await asyncio.wait([call])
        assert finished or call.cancelled() or call.result() == ["x"] * 5
        empty = (await app.aget_state(CONFIG)).metadata is None
        assert await app.ainvoke(1 if empty else None, CONFIG) == ["x"] * 5, after
        return finished

    after = 0
    while not asyncio.run(main(after)):
        after += 1
    assert after > 10


async def test_a_cancelled_reader_is_not_handed_one_more_chunk():
    """The cancellation must not get lost behind a chunk that happens to be ready."""
    started = asyncio.Event()

    async def body(value, writer):
        started.set()
        try:
            await forever(value)
        finally:
            writer("last words")

    source = graph({"n": node(body)}).astream(1, stream_mode="custom")
    reading = asyncio.create_task(anext(source))  # type: ignore[arg-type]
    await started.wait()
    await cancel(reading)
    await source.aclose()


async def test_a_cancelled_call_does_not_wait_for_a_blocking_function():
    started, release = threading.Event(), threading.Event()

    def blocking(_):
        started.set()
        release.wait(WAIT)

    call = asyncio.create_task(graph({"n": node(blocking)}).ainvoke(1))
    while not started.is_set():
        await asyncio.sleep(0)
    await cancel(call)
    assert not release.is_set()
    release.set()


async def test_cancelling_abatch_cancels_its_runs():
    cancelled = []

    async def body(x):
        try:
            await forever(x)
        finally:
            cancelled.append(x)

    call = asyncio.create_task(graph({"n": node(body)}).abatch([1, 2, 3]))
    await turns()
    await cancel(call)
    assert sorted(cancelled) == [1, 2, 3]


def test_a_dropped_stream_leaves_no_task_behind():
    async def main():
        async for _ in graph({"fast": node(lambda _: [1]), "slow": node(forever)}).astream(1, stream_mode="updates"):
            break

    run(main)


@pytest.mark.parametrize("options", [{}, {"multitask": "enqueue"}], ids=["alone", "in turn"])
def test_an_event_loop_that_ends_closes_an_open_stream_and_reports_nothing(options):
    app = graph({"fast": node(lambda _: [1]), "slow": node(forever)}, InMemorySaver())
    reported, streams = [], []

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        streams.append(app.astream(1, CONFIG, stream_mode="updates", **options))
        await anext(streams[0])

    with asyncio.Runner() as runner:
        runner.run(main())
    assert reported == []
    assert app.get_state(CONFIG).next == ("slow",)


async def test_abatch_limits_concurrent_runs():
    running, most = [0], [0]

    async def body(x):
        running[0] += 1
        most[0] = max(most[0], running[0])
        await turns()
        running[0] -= 1
        return [x]

    assert await graph({"n": node(body)}).abatch([1, 2, 3, 4, 5], {"max_concurrency": 2}) == [
        [i] for i in range(1, 6)
    ]
    assert most[0] == 2
