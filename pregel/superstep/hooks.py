"""What may surround a call, the attempts of its tasks and its routers: for tracers and middleware.

The engine has one optional place for it, beside its loop. A run without a hook runs the program as
it was compiled. A run with one runs a variant of it whose nodes ask the hook (`with_hooks`).
Several hooks are composed to one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

AnySpan = TypeVar("AnySpan")
EVERYWHERE: Final[list[Any]] = []
"""The observers of all runs of this process; see `add_observer`."""


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


class RemoteSpan(Protocol):
    """Surrounds the part of an attempt that an executor runs in another process. It is pickled."""

    def enter(self, send: Callable[[Any], None]) -> None:
        """The work is about to begin, in this context.

        Args:
            send: takes what `receive` of the span gets in the driver, pickled; from any thread.
        """


@runtime_checkable
class TravellingSpan(Protocol):
    """A span that can also surround work in another process."""

    def remote(self) -> RemoteSpan | None:
        """What goes there; None if there is nothing to do. Asked when the attempt has begun."""

    def receive(self, data: Any) -> None:
        """What that has sent, on any thread."""


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


# -- several hooks at once -------------------------------------------------------------------------


def compose(hooks: Sequence[Hook]) -> Hook | None:
    """One hook of several; None of none. The first is the outermost: its spans are entered first
    and left last; of configs and metadata the last one decides."""
    if not hooks:
        return None
    return hooks[0] if len(hooks) == 1 else Hooks(hooks)


def part_of(span: Span | None, kind: type[AnySpan]) -> AnySpan | None:
    """The span of a class: this one, or one of those that it is made of; None if there is none."""
    parts = span.parts if isinstance(span, Spans) else (span,)
    return next((part for part in parts if isinstance(part, kind)), None)


class Hooks:
    """Several hooks as one.

    Args:
        hooks: the outermost first.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.hooks = hooks

    @property
    def metadata(self) -> Mapping[str, Any]:
        """That of all."""
        return {key: value for hook in self.hooks for key, value in hook.metadata.items()}

    def around_run(self) -> Span:
        """The spans of all."""
        return Spans([hook.around_run() for hook in self.hooks])

    def around_attempt(self, task: Any) -> Span:
        """The spans of all."""
        return Spans([hook.around_attempt(task) for hook in self.hooks])

    def around_router(self, task: Any, place: int, router: Any, state: Any) -> Span:
        """The spans of all."""
        return Spans([hook.around_router(task, place, router, state) for hook in self.hooks])

    def extend_config(self, task: Any, config: Any) -> Any:
        """The config that all have extended in turn."""
        for hook in self.hooks:
            config = hook.extend_config(task, config)
        return config


class Spans:
    """Several spans around the same work.

    Attributes:
        parts: the outermost first.
    """

    def __init__(self, parts: Sequence[Span]) -> None:
        self.parts = parts

    def enter(self) -> None:
        """Enter all. If one raises, the work does not begin, and those around it are left."""
        for number, part in enumerate(self.parts):
            try:
                part.enter()
            except BaseException as error:
                Spans(self.parts[:number]).leave(error)
                raise

    def returned(self, result: Any) -> None:
        """Tell all."""
        for part in self.parts:
            part.returned(result)

    def leave(self, error: BaseException | None) -> None:
        """Leave all, the innermost first; raise what the first of them has raised."""
        with ExitStack() as stack:  # it goes on where one raises
            for part in self.parts:
                stack.callback(part.leave, error)

    async def aenter(self) -> None:
        """`enter` for coroutines."""
        for number, part in enumerate(self.parts):
            try:
                await part.aenter()
            except BaseException as error:
                await Spans(self.parts[:number]).aleave(error)
                raise

    async def aleave(self, error: BaseException | None) -> None:
        """`leave` for coroutines."""
        async with AsyncExitStack() as stack:
            for part in self.parts:
                stack.push_async_callback(part.aleave, error)


    def remote(self) -> RemoteSpan | None:
        """Those of all."""
        found = {n: part.remote() for n, part in self._travelling().items()}
        parts = {n: remote for n, remote in found.items() if remote is not None}
        return RemoteSpans(parts) if parts else None

    def receive(self, data: tuple[int, Any]) -> None:
        """Hand it to the one that it is for."""
        number, sent = data
        self._travelling()[number].receive(sent)

    def _travelling(self) -> dict[int, TravellingSpan]:
        return {n: part for n, part in enumerate(self.parts) if isinstance(part, TravellingSpan)}


class RemoteSpans:
    """Several remote spans around the same work.

    Args:
        parts: by their number.
    """

    def __init__(self, parts: Mapping[int, RemoteSpan]) -> None:
        self.parts = parts

    def enter(self, send: Callable[[Any], None]) -> None:
        """Enter all."""
        for number, part in self.parts.items():
            part.enter(partial(self._send, send, number))

    @staticmethod
    def _send(send: Callable[[Any], None], number: int, data: Any) -> None:
        send((number, data))


class GuardedHook:
    """A hook whose mistakes are logged and never change the run.

    Args:
        hook: it may raise.
    """

    def __init__(self, hook: Hook) -> None:
        self.hook = hook

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the hook adds; nothing if it raises."""
        with Guard(self.hook, "metadata"):
            return self.hook.metadata
        return {}

    def around_run(self) -> Span:
        """The hook's span."""
        return GuardedSpan(self.hook, self.hook.around_run)

    def around_attempt(self, task: Any) -> Span:
        """The hook's span."""
        return GuardedSpan(self.hook, self.hook.around_attempt, task)

    def around_router(self, task: Any, place: int, router: Any, state: Any) -> Span:
        """The hook's span."""
        return GuardedSpan(self.hook, self.hook.around_router, task, place, router, state)

    def extend_config(self, task: Any, config: Any) -> Any:
        """The config extended; as it is if the hook raises."""
        with Guard(self.hook, "extend_config"):
            return self.hook.extend_config(task, config)
        return config


class GuardedSpan:
    """A span of a hook whose mistakes are logged. One that could not be made or entered is not
    used.

    Args:
        hook: for the log.
        make: makes the span of these arguments.
    """

    def __init__(self, hook: Hook, make: Callable[..., Span], *args: Any) -> None:
        self.hook = hook
        self.span: Span | None = None
        with Guard(hook, make.__name__):
            self.span = make(*args)

    def enter(self) -> None:
        """Enter it."""
        span, self.span = self.span, None
        if span is not None:
            with Guard(self.hook, "enter"):
                span.enter()
                self.span = span

    def returned(self, result: Any) -> None:
        """Tell it."""
        if self.span is not None:
            with Guard(self.hook, "returned"):
                self.span.returned(result)

    def leave(self, error: BaseException | None) -> None:
        """Leave it."""
        if self.span is not None:
            with Guard(self.hook, "leave"):
                self.span.leave(error)

    async def aenter(self) -> None:
        """Enter it."""
        span, self.span = self.span, None
        if span is not None:
            with Guard(self.hook, "aenter"):
                await span.aenter()
                self.span = span

    async def aleave(self, error: BaseException | None) -> None:
        """Leave it."""
        if self.span is not None:
            with Guard(self.hook, "aleave"):
                await self.span.aleave(error)


class Guard:
    """Logs an error of a hook that is raised inside, and ends it."""

    def __init__(self, hook: Any, method: str) -> None:
        self.hook = hook
        self.method = method

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if not isinstance(error, Exception):  # Ctrl-C and cancellations are not the hook's
            return False
        from logging import getLogger

        getLogger("stategraph.hooks").error(
            "%s.%s() failed; the run goes on without it",
            type(self.hook).__qualname__,
            self.method,
            exc_info=error,
        )
        return True
