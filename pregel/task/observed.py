"""One attempt as observers see it: what surrounds its function, here or in another process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..observer import Observer, Operation, TaskInfo
from ..observers import REPORTED, Watcher, carry, read_one, report_mistake


class ObservedAttempt:
    """One attempt of a task, for who calls its function: surrounds that. What surrounds it is
    pickled for attempts that run elsewhere.

    Args:
        watchers: those that surround it, the outermost first.
        tell: tells all observers; None where the function runs in another process.
    """

    def __init__(
        self,
        watchers: Sequence[Watcher],
        task: TaskInfo,
        tell: Callable[..., None] | None = None,
    ) -> None:
        self._watchers, self._task, self._tell = watchers, task, tell

    def lose_worker(self, error: BaseException) -> None:
        """Tell that the worker that ran it has died."""
        if self._tell is not None:
            self._tell("worker_lost", self._task, error)

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function inside them."""
        for watcher in reversed(self._watchers):
            function = partial(_surround, watcher.observer, self._task, function)
        return function()

    def acall(self, function: Callable[[], Any]) -> Any:
        """The same for one that gives an awaitable."""
        for watcher in reversed(self._watchers):
            function = partial(_asurround, watcher.observer, self._task, function)
        return function()

    def operate(self, operation: Operation, function: Callable[[], Any]) -> Any:
        """Call what asks a model or a tool inside them."""
        for watcher in reversed(self._watchers):
            surround = partial(_surround, method="around_operation", more=(operation,))
            function = partial(surround, watcher.observer, self._task, function)
        return function()

    def aoperate(self, operation: Operation, function: Callable[[], Any]) -> Any:
        """The same for one that gives an awaitable."""
        for watcher in reversed(self._watchers):
            surround = partial(_asurround, method="aaround_operation", more=(operation,))
            function = partial(surround, watcher.observer, self._task, function)
        return function()

    def surround(self, function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """A function inside them."""
        call = self.acall if is_async else self.call
        return lambda *args, **given: call(partial(function, *args, **given))

    def dump(self, dumps: Callable[[Any], bytes]) -> bytes | None:
        """This, pickled, without the observers that cannot be pickled; None if none is left."""
        parts = []
        for observer, _, name in self._watchers:
            try:
                parts.append(dumps(name or observer))
            except Exception as error:
                why = "cannot be pickled, so it does not surround nodes on executors: give it "
                report_mistake(observer, "__reduce__", error, why + 'by name, "module:name"')
        if not parts:
            return None
        carried = carry(self._watchers, self._task)
        return dumps((parts, replace(self._task, carried=carried)))


def load_attempt(data: bytes, loads: Callable[[bytes], Any]) -> ObservedAttempt:
    """What `dump` has made."""
    parts, task = loads(data)
    return ObservedAttempt([read_one(loads(part), None) for part in parts], task)


class _Outcome:
    """How a surrounded function has ended, the last time it was called."""

    called = False
    result: Any = None
    error: BaseException | None = None

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def call(self) -> Any:
        self.called, self.error, self.result = True, None, None
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
            raise
        return self.result

    async def acall(self) -> Any:
        self.called, self.error, self.result = True, None, None
        try:
            self.result = await self._function()
        except BaseException as error:
            self.error = error
            raise
        return self.result

    def settle(self, result: Any) -> Any:
        """What counts, after the observer has returned this."""
        error = self.error
        # A signal such as a pause is the engine's: nobody may swallow it.
        if error is not None and (result is None or not isinstance(error, Exception)):
            raise error
        return self.result if result is None else result

    def fail(self, observer: Observer, method: str, error: Exception) -> bool:
        """Whether an error that came out of the observer's method is the function's own; else it is
        the observer's mistake, which is logged."""
        if error is self.error:
            return True
        report_mistake(observer, method, error, "raised an error")
        return False


def _surround(
    observer: Observer,
    task: TaskInfo,
    function: Callable[[], Any],
    method: str = "around",
    more: tuple[Any, ...] = (),
) -> Any:
    outcome = _Outcome(function)
    try:
        result = getattr(observer, method)(task, *more, outcome.call)
    except Exception as error:
        if outcome.fail(observer, method, error):
            raise
        result = None
    if not outcome.called and result is None:
        return outcome.call()
    _check_returned(observer, method, outcome, result)
    return outcome.settle(result)


async def _asurround(
    observer: Observer,
    task: TaskInfo,
    function: Callable[[], Any],
    method: str = "aaround",
    more: tuple[Any, ...] = (),
) -> Any:
    outcome = _Outcome(function)
    try:
        result = await getattr(observer, method)(task, *more, outcome.acall)
    except Exception as error:
        if outcome.fail(observer, method, error):
            raise
        result = None
    if not outcome.called and result is None:
        return await outcome.acall()
    _check_returned(observer, method, outcome, result)
    return outcome.settle(result)


def _check_returned(observer: Observer, method: str, outcome: _Outcome, result: Any) -> None:
    if result is None and outcome.error is None and outcome.result is not None:
        what = "must return what call() returned, got None"
        if (id(observer), method) not in REPORTED:
            report_mistake(observer, method, None, what)
