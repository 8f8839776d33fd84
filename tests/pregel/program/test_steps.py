"""Procedures that wait, written once: run on this thread, and on an event loop."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from kit.drive import cancel

from stategraph.pregel.steps import arun_steps, run_steps

Steps = Generator[Any, Any, Any]


def test_on_a_thread_a_step_is_resumed_with_what_it_has_yielded():
    def steps():
        return [(yield 1), (yield 2)]

    assert run_steps(steps()) == [1, 2]


def test_on_an_event_loop_a_step_is_resumed_with_what_its_awaitable_gives():
    async def double(value):
        await asyncio.sleep(0)
        return 2 * value

    def steps():
        return [(yield double(1)), (yield double(2))]

    assert asyncio.run(arun_steps(steps())) == [2, 4]


def test_what_an_awaitable_raises_is_raised_where_the_step_waits():
    async def fail():
        raise KeyError("lost")

    async def work():
        return "mended"

    def steps():
        try:
            yield fail()
        except KeyError:
            return (yield work())

    assert asyncio.run(arun_steps(steps())) == "mended"


def test_what_steps_raise_reaches_their_caller():
    def steps():
        raise KeyError("lost")
        yield

    with pytest.raises(KeyError):
        run_steps(steps())
    with pytest.raises(KeyError):
        asyncio.run(arun_steps(steps()))


async def test_a_cancellation_is_raised_where_the_step_waits():
    """So a procedure can clean up, and may wait for that."""
    cleaned = []

    async def clean():
        cleaned.append("up")

    def steps():
        try:
            yield asyncio.Event().wait()
        except asyncio.CancelledError:
            yield clean()
            raise

    waiting = asyncio.ensure_future(arun_steps(steps()))
    await asyncio.sleep(0)
    await cancel(waiting)
    assert cleaned == ["up"]


def test_a_coroutine_that_is_closed_closes_its_steps():
    """Nobody runs it any more: its steps end where they wait, and wait for nothing else."""
    ends = []

    class Forever:
        def __await__(self):
            yield

    def steps():
        try:
            yield Forever()
        except GeneratorExit:
            ends.append("closed")
            raise

    waiting = arun_steps(steps())
    waiting.send(None)
    waiting.close()
    assert ends == ["closed"]


def test_on_an_event_loop_what_cannot_be_awaited_is_the_result():
    async def double(value):
        return 2 * value

    def steps():
        return [(yield 1), (yield None), (yield double(2))]

    assert asyncio.run(arun_steps(steps())) == [1, None, 4]
