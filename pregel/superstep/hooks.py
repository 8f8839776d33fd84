"""What may surround a call, the attempts of its tasks and its routers: for tracers and middleware.

The engine has one optional place for it, beside its loop. A run without a hook runs the program as
it was compiled. A run with one runs a variant of it whose nodes ask the hook (`with_hooks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Span(Protocol):
    """Surrounds one piece of work. A sync run calls `enter` and `leave` on the thread that does the
    work, an async one awaits `aenter` and `aleave` there: context variables that they set are seen
    by the work."""

    def enter(self) -> None:
        """The work is about to begin."""

    def returned(self, result: Any) -> None:
        """The user's function has returned this. Not called if it raises."""

    def leave(self, error: BaseException | None) -> None:
        """The work has ended, with this error if any; signals such as a pause count as errors."""

    async def aenter(self) -> None: ...

    async def aleave(self, error: BaseException | None) -> None: ...


class Hook(Protocol):
    """Surrounds what one call does. It must not raise where it is not to break the run.

    Attributes:
        metadata: what it adds to the metadata of messages.
    """

    @property
    def metadata(self) -> Mapping[str, Any]: ...

    def around_run(self) -> Span:
        """Surrounds the whole call."""

    def around_attempt(self, task: Any) -> Span:
        """Surrounds one attempt of a task, its writers and routers included."""

    def around_router(self, task: Any, place: int, router: Any, state: Any) -> Span:
        """Surrounds a router.

        Args:
            place: its number among what the task calls; the node itself is 1.
            router: what the user gave.
            state: what it is given.
        """

    def extend_config(self, task: Any, config: Any) -> Any:
        """The config of a task, as its code is to see it."""
