"""A stream buffers a bounded number of chunks: nodes wait for a slow reader, and for no reader that has left."""

from __future__ import annotations

import asyncio
import contextvars
import operator
import threading
from typing import Annotated, TypedDict

import pytest
from kit.graphs import CONFIG, chain_of, graph_of

from stategraph import START, InMemorySaver, StateGraph
from stategraph.graph import astream_text, stream_text
from stategraph.pregel.errors import NodeTimeoutError
from stategraph.pregel.run.output import MOST_WAITING
from stategraph.pregel.types import RetryPolicy, TimeoutPolicy

MANY = 5 * MOST_WAITING
SOON = 20.0
"""Seconds after which a test that hangs fails."""


class State(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


class Says:
    """A node that says `MANY` things, and how many it has said."""

    def __init__(self):
        self.said = 0
        self.held = threading.Event()
        self.ended = threading.Event()

    def note(self):
        self.said += 1
        if self.said == MOST_WAITING + 1:  # one was taken
            self.held.set()

    def function(self, state: State, writer):
        try:
            for n in range(MANY):
                self.note()
                writer(n)
        finally:
            self.ended.set()
        return {"done": ["said"]}

    async def coroutine(self, state: State, writer):
        try:
            for n in range(MANY):
                self.note()
                writer(n)
                await asyncio.sleep(0)
        finally:
            self.ended.set()
        return {"done": ["said"]}


def build(node, saver=None, **options):
    return StateGraph(State).add_node("say", node, **options).add_edge(START, "say").compile(saver)


def read_slowly(app, says: Says, is_async, mode="custom", **options):
    """Take one chunk, wait until the node waits, look how many were made by then, and take the rest."""
    if not is_async:
        chunks = app.stream({}, stream_mode=mode, **options)
        found = [next(chunks)]
        assert says.held.wait(SOON)
        assert not says.ended.wait(0.05)
        assert says.said <= MOST_WAITING + 3
        return found + list(chunks)

    async def read():
        chunks = app.astream({}, stream_mode=mode, **options)
        found = [await anext(chunks)]
        async with asyncio.timeout(SOON):
            while not says.held.is_set():
                await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0.001)  # it would go on now
        assert not says.ended.is_set() and says.said <= MOST_WAITING + 3
        return found + [chunk async for chunk in chunks]

    return asyncio.run(read())


# -- who waits -------------------------------------------------------------------------------------


def test_a_function_waits_in_its_writer_until_the_reader_takes_chunks(drive):
    says = Says()
    assert read_slowly(build(says.function), says, drive.is_async) == list(range(MANY))


@pytest.mark.parametrize("timeout", [None, 600])
def test_a_coroutine_waits_at_its_next_await(timeout):
    says = Says()
    assert read_slowly(build(says.coroutine, timeout=timeout), says, is_async=True) == list(range(MANY))


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_tasks_of_a_nested_graph_wait_for_the_reader_of_the_graph_around_it(drive, is_coroutine):
    says = Says()
    if is_coroutine and not drive.is_async:
        pytest.skip("a coroutine needs an async run")
    inner = build(says.coroutine if is_coroutine else says.function)
    chunks = read_slowly(build(inner), says, drive.is_async, subgraphs=True)
    assert [chunk for _, chunk in chunks] == list(range(MANY))


def test_supersteps_of_a_nested_graph_wait_for_the_reader_of_the_graph_around_it(drive):
    says = Says()

    def tick(state):
        says.note()
        if says.said == MANY:
            says.ended.set()
        return {}

    outer = build(
        chain_of(State, tick=tick)
        .add_conditional_edges("tick", lambda state: "__end__" if says.said == MANY else "tick", ["tick", "__end__"])
        .compile()
    )
    chunks = read_slowly(
        outer, says, drive.is_async, mode="updates", subgraphs=True, config={"recursion_limit": MANY + 1}
    )
    assert len(chunks) == MANY + 1


def test_tokens_wait_for_their_reader(drive):
    says = Says()

    def tokens(state):
        stream_text(says.note() or str(n) for n in range(MANY))
        says.ended.set()
        return {}

    async def atokens(state):
        async def parts():
            for n in range(MANY):
                says.note()
                await asyncio.sleep(0)
                yield str(n)

        await astream_text(parts())
        says.ended.set()
        return {}

    app = build(atokens if drive.is_async else tokens)
    assert len(read_slowly(app, says, drive.is_async, mode="messages")) >= MANY


# -- who does not ----------------------------------------------------------------------------------


def test_a_node_that_reads_the_stream_of_a_graph_that_it_calls_does_not_wait_for_itself(drive):
    says = Says()
    inner = build(says.function)

    def read(state):
        return {"done": [str(len(list(inner.stream({}, stream_mode="custom"))))]}

    assert drive.stream(build(read), {}, stream_mode="values")[-1] == {"done": [str(MANY)]}


def test_a_thread_of_the_users_does_not_wait(drive):
    def node(state, writer):
        thread = threading.Thread(target=lambda: [writer(n) for n in range(MANY)])
        thread.start()
        thread.join()
        return {}

    assert drive.stream(build(node), {}, stream_mode="custom") == list(range(MANY))


# -- a reader that comes no more -------------------------------------------------------------------


def test_after_the_reader_leaves_a_waiting_function_ends_and_the_run_can_be_resumed(drive):
    says = Says()
    thread = drive.on(build(says.function, InMemorySaver()))
    assert thread.stream({}, stream_mode="custom", take=1, each=lambda chunk: says.held.wait(SOON)) == [0]
    assert says.ended.wait(SOON) and says.said == MANY
    assert thread.invoke(None) == {"done": ["said"]}
    assert says.said == MANY or drive.is_async, "a sync call waits for it, and keeps its result"


def test_a_cancelled_run_ends_though_its_coroutine_waits_for_the_reader():
    says = Says()
    app = build(says.coroutine, InMemorySaver())

    async def cancel():
        taken = asyncio.Event()

        async def read():
            async for _ in app.astream({}, CONFIG, stream_mode="custom"):
                taken.set()
                await asyncio.Event().wait()

        reader = asyncio.create_task(read())
        await taken.wait()
        while not says.held.is_set():
            await asyncio.sleep(0.001)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(cancel())
    assert says.ended.is_set() and says.said < MANY


def test_the_failure_of_a_sibling_ends_the_run_though_a_function_waits(drive):
    says = Says()

    def fail(state):
        assert says.held.wait(SOON)
        raise ValueError("no")

    app = graph_of(State, "S>say S>fail", say=says.function, fail=fail).compile()
    with pytest.raises(ValueError, match="no"):
        drive.stream(app, {}, stream_mode="custom")


def test_a_writer_that_outlives_its_run_does_not_wait(drive):
    kept = []

    def keep(state, writer):
        kept.append((contextvars.copy_context(), writer))
        return {}

    drive.stream(build(keep), {}, stream_mode="custom")
    [(context, writer)] = kept
    late = threading.Thread(target=context.run, args=(lambda: [writer(n) for n in range(MANY)],))
    late.start()
    late.join(SOON)
    assert not late.is_alive()


# -- time limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [TimeoutPolicy(run_timeout=0.3), TimeoutPolicy(idle_timeout=0.3)])
def test_waiting_for_the_reader_does_not_count_for_a_time_limit(drive, policy):
    says = Says()
    if drive.is_async:
        app = build(says.coroutine, timeout=policy)

        async def read():
            chunks = app.astream({}, stream_mode="custom")
            await anext(chunks)
            while not says.held.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.6)  # longer than the limit
            return 1 + len([chunk async for chunk in chunks])

        assert asyncio.run(read()) == MANY
        return
    app = build(says.function, timeout=policy)
    chunks = app.stream({}, stream_mode="custom")
    next(chunks)
    assert says.held.wait(SOON)
    assert not says.ended.wait(0.6)  # longer than the limit
    assert 1 + len(list(chunks)) == MANY


def test_a_time_limit_that_is_hit_while_another_attempt_reads_on_still_ends_the_node(drive):
    def stuck(state, writer):
        for n in range(MANY):
            writer(n)
        release.wait(SOON)
        return {}

    release = threading.Event()
    app = build(stuck, timeout=0.5, retry_policy=RetryPolicy(max_attempts=1))
    with pytest.raises(NodeTimeoutError):
        drive.stream(app, {}, stream_mode="custom")
    release.set()


async def test_a_cancelled_coroutine_that_cleans_up_waits_for_no_reader():
    cleaned = []

    async def say(state, writer):
        for n in range(2 * MOST_WAITING):
            writer(n)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return {}

    chunks = build(say).astream({}, stream_mode="custom")
    await anext(chunks)
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()  # as `asyncio.run` does at its end, before it closes generators
    await asyncio.wait(tasks, timeout=2)
    found = list(cleaned)
    await chunks.aclose()
    assert found == [True]
