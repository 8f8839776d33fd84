"""Calls that take turns on a thread: what happens where one comes while a run of the thread is live
in this process. Between processes the head decides, and a queue.

The calls that ask for it stand in a line, by thread. One starts when it is the first and no run of
the thread is live. Until then it waits, and one that interrupts asks each run that stands in its
way to end. All of this is over before the first node of the call runs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Self

from ...checkpoint.base import BaseCheckpointSaver, coordinates
from ..errors import ThreadBusyError
from ..names import BEFORE_FIRST
from ..run.config import merge_configs, normalize
from ..running import RUNNING
from ..steps import Steps, arun_steps, run_steps
from ..task.task import outwards
from ..types import AnyConfig, Multitask
from .aio import Unregistered
from .driver import LIVE, WATCHERS, Driver
from .timeslice import call_on

_LINES: dict[tuple[int, str], list[Turn]] = {}
_LOCK = threading.Lock()


def invoke(graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]) -> Any:
    """`graph.invoke`, when it is its turn."""
    with Turn(graph, config, options) as turn:
        turn.wait()
        return graph.invoke(given, turn.start_config(), **turn.options)


async def ainvoke(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> Any:
    """`graph.ainvoke`, when it is its turn."""
    with Turn(graph, config, options) as turn:
        await turn.await_()
        return await graph.ainvoke(given, turn.start_config(), **turn.options)


def stream(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> Iterator[Any]:
    """`graph.stream`, when it is its turn."""
    with Turn(graph, config, options) as turn:
        turn.wait()
        yield from graph.stream(given, turn.start_config(), **turn.options)


async def astream(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> AsyncGenerator[Any, None]:
    """`graph.astream`, when it is its turn."""
    with Turn(graph, config, options) as turn:
        await turn.await_()
        async with aclosing(graph.astream(given, turn.start_config(), **turn.options)) as chunks:
            async for chunk in Unregistered(chunks):
                yield chunk


class Turn:
    """One call's place in the line of its thread, from its start to its end.

    Attributes:
        options: those of the call, without `multitask`.

    Raises:
        ValueError: the graph has no checkpointer, or the config no thread.
        ThreadBusyError: the thread is busy, and the call rejects that, or it is made by a node of
            the very run for which it would wait.
    """

    def __init__(self, graph: Any, config: AnyConfig | None, options: Mapping[str, Any]) -> None:
        self.options: dict[str, Any] = {k: v for k, v in options.items() if k != "multitask"}
        self._how: Multitask = options["multitask"]
        self._config = config
        saver = graph.checkpointer
        if not isinstance(saver, BaseCheckpointSaver):
            why = "needs a graph with a checkpointer of its own"
            raise ValueError(f"multitask={self._how!r} {why}")
        self._saver = saver
        self._thread_id = coordinates(merge_configs(graph.config, normalize(config)))[0]
        self._key = id(saver), self._thread_id
        # The runs that were asked to end, in the order in which they were met.
        self._ended: list[Driver] = []

    def __enter__(self) -> Self:
        live = self._live()
        self._refuse_own(live)
        with _LOCK:
            line = _LINES.setdefault(self._key, [])
            if self._how == "reject" and (line or live):
                if not line:
                    del _LINES[self._key]
                raise ThreadBusyError(
                    f"thread {self._thread_id!r} is busy: a run of it is live in this process. "
                    'multitask="enqueue" waits for it, "interrupt" stops it at its next step'
                )
            line.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            line = _LINES[self._key]
            line.remove(self)
            if not line:
                del _LINES[self._key]
        for wake in tuple(WATCHERS.get(self._thread_id, ())):
            wake()

    def _live(self) -> list[Driver]:
        """The runs of the thread that are live."""
        return [each for each in tuple(LIVE) if each.works_on(self._saver, self._thread_id)]

    def _refuse_own(self, live: list[Driver]) -> None:
        for task in outwards(RUNNING.get()):
            if any(driver.run is task.run for driver in live):
                raise ThreadBusyError(
                    f"node {task.name!r} called its own thread {self._thread_id!r} with "
                    f"multitask={self._how!r}: it would wait for itself"
                )

    # -- waiting -----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Wait for the turn, on this thread."""
        changed = threading.Event()
        run_steps(self._wait(changed, changed.set))

    async def await_(self) -> None:
        """Wait for the turn, on this event loop."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        await arun_steps(self._wait(changed, lambda: call_on(loop, changed.set)))

    def _wait(self, changed: Any, wake: Callable[[], None]) -> Steps[None]:
        """Look again whenever `wake` has set this event: a run of the thread begins or ends."""
        with _LOCK:
            WATCHERS.setdefault(self._thread_id, []).append(wake)
        try:
            while not self._may_start():
                yield changed.wait()
                changed.clear()
        finally:
            with _LOCK:
                watchers = WATCHERS[self._thread_id]
                watchers.remove(wake)
                if not watchers:
                    del WATCHERS[self._thread_id]

    def _may_start(self) -> bool:
        """Whether it is its turn. What is live is asked to end, if that is how."""
        with _LOCK:
            first = _LINES[self._key][0] is self
        live = self._live()
        if self._how in ("interrupt", "rollback"):
            for driver in live:
                if driver not in self._ended:
                    self._ended.append(driver)
                    self._end(driver)
        return first and not live

    def _end(self, driver: Driver) -> None:
        if self._how == "rollback":
            driver.cut("it was rolled back: another call came in with multitask='rollback'")
        else:
            driver.drain("another call came in with multitask='interrupt'")

    # -- starting ----------------------------------------------------------------------------------

    def start_config(self) -> AnyConfig | None:
        """The config of the call: after a rollback it names the checkpoint before the input of the
        run that was rolled back, unless the caller names one."""
        if self._how != "rollback":
            return self._config
        started = [driver.run.position for driver in self._ended if driver.run.machine is not None]
        config: Any = normalize(self._config)
        configurable = config.get("configurable") or {}
        if not started or configurable.get("checkpoint_id") is not None:
            return self._config
        found = started[0].found
        at = BEFORE_FIRST if found is None else found.checkpoint["id"]
        return {**config, "configurable": {**configurable, "checkpoint_id": at}}
