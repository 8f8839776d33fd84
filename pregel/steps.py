"""Procedures that wait, written once for threads and asyncio: generators, and the two ways to run
them.

Such a procedure yields what it has to wait for, as a method of its `Waits` gives it, and is resumed
with the result. On threads the method has waited already and gives the result itself. On an event
loop it gives an awaitable. Where it yields PAUSE, whoever runs it goes on with something else, and
runs it on later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
Steps = Generator[Any, Any, Result]
PAUSE: Any = object()


class Waits(Protocol):
    """What a run's tasks, their attempts and `@task` calls, and its loading may have to wait
    for."""

    def run(self, steps: Steps[Any]) -> Any:
        """A procedure, to its end."""

    def run_task(self, task: Any) -> Any:
        """A task, policies included, to its end."""

    def attempt(self, task: Any) -> Any:
        """The node called once, and its result written."""

    def start(self, task: Any) -> Any:
        """An attempt that runs by itself: it has `done`, `error`, `wait(seconds)` and `stop()`."""

    def sleep(self, seconds: float) -> Any:
        """Time."""

    def lock(self, key: Any) -> Any:
        """Context manager: a lock that all who name this key share."""

    def acquire(self, lock: Any, task: Any) -> Any:
        """Let a task wait for a lock; give whether it has taken it: not if its holder was
        abandoned."""

    def ask(self, owner: Any, method: str, *args: Any) -> Any:
        """Call a method, of a checkpointer for example, or its async twin."""

    def list(self, saver: Any, config: Any, **options: Any) -> Any:
        """What `list` of a checkpointer yields, as a list."""

    def call(self, future: Any) -> Any:
        """The end of a `@task` call, however it ends."""

    def nested_runs(self, task: Any) -> Any:
        """The end of the graphs that a task runs as coroutines."""

    def first_of(
        self, saver: Any, config: Any, accept: Callable[[Any], Any], before: Any = None
    ) -> Any:
        """The newest checkpoint (older than `before`) that is accepted. `accept` is shown each
        until it accepts one."""

    def failure_of(self, task: Any, error: BaseException) -> BaseException:
        """What counts as the failure of a task that raised `error`. Does not wait."""


def run_steps(steps: Steps[Result]) -> Result:
    """Run a procedure on this thread, to its end or to where it pauses."""
    try:
        result = next(steps)
        while result is not PAUSE:
            result = steps.send(result)
        return PAUSE  # type: ignore[no-any-return]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun_steps(steps: Steps[Result]) -> Result:
    """Run a procedure on the running event loop, to its end or to where it pauses. What it yields
    that cannot be awaited is the result itself."""
    try:
        awaited = next(steps)
        while awaited is not PAUSE:
            try:
                # A generator is what `types.coroutine` has made awaitable.
                waits = awaited.__class__ is GeneratorType or hasattr(awaited, "__await__")
                result = await awaited if waits else awaited
            except GeneratorExit:
                raise  # nobody runs this coroutine any more, so there is nobody to wait
            except BaseException as error:
                awaited = steps.throw(error)
            else:
                awaited = steps.send(result)
        return PAUSE  # type: ignore[no-any-return]
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
