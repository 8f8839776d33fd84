"""A hook that sees nothing, to be extended: by it the kit sees what runs do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..pregel.run.run import Run
from ..pregel.superstep.task import Task

NO_METADATA: Final[Mapping[str, Any]] = {}


class QuietSpan:
    """Nothing is told. Subclasses override what they want to know."""

    def enter(self) -> None:
        """The work begins."""

    def returned(self, result: Any) -> None:
        """The user's function has returned this."""

    def leave(self, error: BaseException | None) -> None:
        """The work has ended."""

    async def aenter(self) -> None:
        """`enter` for coroutines."""
        self.enter()

    async def aleave(self, error: BaseException | None) -> None:
        """`leave` for coroutines."""
        self.leave(error)


NOTHING: Final = QuietSpan()


class QuietHook:
    """Sees nothing. Subclasses override what they want to see."""

    metadata = NO_METADATA

    def around_run(self) -> QuietSpan:
        """Surrounds the whole call."""
        return NOTHING

    def around_attempt(self, task: Task) -> QuietSpan:
        """Surrounds one attempt of a task."""
        return NOTHING

    def around_router(self, task: Task, place: int, router: Any, state: Any) -> QuietSpan:
        """Surrounds a router."""
        return NOTHING

    def extend_config(self, task: Task, config: Any) -> Any:
        """The config as it is."""
        return config


def is_call(task: Task) -> bool:
    """Whether a task is a call of a `@task` and not of a node."""
    return task.path[-1] is True


def thread_of(run: Run) -> str | None:
    """The id of the thread of a run; of a nested graph that of the graph around it."""
    found: str | None = run.thread.thread_id
    return found
