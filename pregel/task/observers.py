"""Reads what users pass as `observer=`, holds the observers of the whole process, logs those that
raise, and surrounds one attempt with them, here or in another process. Loaded with the first
observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

from ..log import LOG, NO_FIELDS
from ..observer import AnyObserver, Observer, Operation, RunInfo, TaskInfo
from ..program.program import NodeCall
from .spans import EVERYWHERE, Span


class EngineObserver(Observer):
    """An observer of this package: it is shown the engine's own records, too.

    The first one of a run that defines `attempt_span` is asked for all spans and configs.

    Attributes:
        metadata: what it adds to the metadata of messages.
    """

    metadata: Mapping[str, Any] = MappingProxyType({})

    def see_run(self, info: RunInfo, run: Any) -> None:
        """A run begins."""

    def see_task(self, info: TaskInfo, task: Any) -> None:
        """A task that had started has ended. `task_ended` follows."""

    def see_route(
        self, info: TaskInfo, router: Any, answer: Any, writes: list[tuple[str, Any]]
    ) -> None:
        """A router has answered, also one behind START. `writes` are those that its answer leads
        to."""

    def around_calls(self, open_calls: Callable[[Any], Any], run: Any) -> Any:
        """Return what starts the `@task` calls, effects and sleeps of a run, wrapped or replaced.

        Args:
            open_calls: makes the driver's own for the run.
        """
        return open_calls(run)

    def run_span(self, run: Any) -> Span:
        """Return what surrounds a run. What a span raises ends the run."""
        return Span()

    def attempt_span(self, task: Any) -> Span:
        """Return what surrounds an attempt of a task, its writers and routers included."""
        return Span()

    def router_span(self, task: Any, place: int, router: Any, state: Any) -> Span:
        """Return what surrounds a router.

        Args:
            place: its number among what the task calls; the node itself is 1.
            router: what the user gave.
            state: what it is given.
        """
        return Span()

    def config_of(self, task: Any) -> Any:
        """Return the config of a task, as its code is to see it."""
        return task.own_config()


# -- what users give -------------------------------------------------------------------------------


class Watcher(NamedTuple):
    """An observer in its place.

    Attributes:
        nodes: of which nodes' tasks it is told, and of nothing else; None for all of the run.
        name: by which other processes import it; None if it was not given by name.
    """

    observer: Observer
    nodes: frozenset[str] | None = None
    name: str | None = None


def read_observers(
    given: AnyObserver | Sequence[AnyObserver] | None, node: str | None = None
) -> tuple[Watcher, ...]:
    """The observers that this means, the outermost first.

    Args:
        node: of this node's tasks only.

    Raises:
        TypeError: one is no `Observer`.
        ValueError: a name that leads to none.
    """
    if given is None:
        return ()
    several: Sequence[Any] = (given,)
    if isinstance(given, (list, tuple)) and not isinstance(given, Watcher):
        several = given
    return tuple(read_one(each, None if node is None else frozenset((node,))) for each in several)


def read_one(given: Any, nodes: frozenset[str] | None) -> Watcher:
    if isinstance(given, Watcher):
        return given
    name = given if isinstance(given, str) else None
    observer = given if name is None else load_observer(name)
    if not isinstance(observer, Observer):
        raise TypeError(
            'observer must be an Observer, "module:name" of one, or a list of these, '
            f"got {given!r}{'; pass an instance, not the class' if isinstance(given, type) else ''}"
        )
    return Watcher(observer, nodes, name)


def load_observer(name: str) -> Observer:
    """The observer of this name; of a class, an instance.

    Raises:
        ValueError: there is none.
    """
    try:
        found = resolve_name(name)
    except ValueError as error:
        raise ValueError(f'observer must be "module:name", got {name!r}: {error}') from error
    except (ImportError, AttributeError) as error:
        raise ValueError(f"observer {name!r} cannot be loaded: {error}") from error
    return found() if isinstance(found, type) else found  # type: ignore[no-any-return]


def add_observer(observer: AnyObserver) -> Callable[[], None]:
    """Have all runs of this process observed, nested ones included.

    What was added first is the outermost, around all other observers.

    Returns:
        A function that removes it again; runs that have begun keep it.

    Raises:
        TypeError: it is no `Observer`.
        ValueError: a name that leads to none.
    """
    added = read_observers(observer)
    EVERYWHERE.extend(added)

    def remove() -> None:
        for each in added:
            EVERYWHERE.remove(each)

    return remove


def carry(
    given: Iterable[Watcher], about: RunInfo | TaskInfo | None = None
) -> dict[str, str]:
    """What the observers have others carry along."""
    carried: dict[str, str] = {}
    for watcher in given:
        if defines(watcher.observer, "carry"):
            carried |= ask(watcher.observer, "carry", about) or {}
    return carried


# -- telling them ----------------------------------------------------------------------------------

REPORTED: dict[tuple[int, str], Observer] = {}
"""What has been told of mistakes: observer and method. It holds the observer, so that its id stays
its own."""


def report_mistake(observer: Observer, method: str, error: BaseException | None, what: str) -> None:
    """Log a mistake of an observer, once for each of its methods."""
    if (id(observer), method) not in REPORTED:
        REPORTED[id(observer), method] = observer
        name = f"{type(observer).__qualname__}.{method}()"
        text = "%s %s; the run is not affected"
        LOG.warning(text, name, what, exc_info=error, extra=NO_FIELDS)


def ask(observer: Observer, method: str, *args: Any) -> Any:
    try:
        return getattr(observer, method)(*args)
    except Exception as error:
        report_mistake(observer, method, error, "raised an error")
        return None


@lru_cache(maxsize=256)
def events_of(cls: Any) -> frozenset[str]:
    """Return the names of what a class of observers defines of its own."""
    return frozenset(
        name
        for name in dir(EngineObserver)
        if name[0] != "_" and getattr(cls, name, None) not in (None, getattr(EngineObserver, name))
    )


def defines(observer: Observer, *methods: str) -> bool:
    cls: Any = type(observer)
    return not events_of(cls).isdisjoint(methods)


def extend_job(config: Any) -> Any:
    """The config of a job that is submitted now, with what the observers of this process have it
    take along; keys of the user's own stay."""
    carried = carry(EVERYWHERE)
    if not carried:
        return config
    return {**(config or {}), "metadata": {**carried, **((config or {}).get("metadata") or {})}}


# -- one attempt -----------------------------------------------------------------------------------


@dataclass(eq=False)
class ObservedAttempt:
    """One attempt of a task, for who calls its function: surrounds that. What surrounds it is
    pickled for attempts that run elsewhere.

    Args:
        watchers: those that surround it, the outermost first.
        tell: tells all observers; None where the function runs in another process.
    """

    _watchers: Sequence[Watcher]
    _task: TaskInfo
    _tell: Callable[..., None] | None = None

    def lose_worker(self, error: BaseException) -> None:
        """Tell that the worker that ran it has died."""
        if self._tell is not None:
            self._tell("worker_lost", self._task, error)

    def call(
        self, function: Callable[[], Any], *operation: Operation, awaits: bool = False
    ) -> Any:
        """Call a function inside them; with `operation`, what asks a model or a tool.

        Args:
            awaits: it gives an awaitable, and so does this.
        """
        surround: Any = _asurround if awaits else _surround
        method = f"{'a' if awaits else ''}around{'_operation' if operation else ''}"
        about = self._task, *operation
        for watcher in reversed(self._watchers):
            function = partial(surround, watcher.observer, method, about, function)
        return function()

    def surround(self, call: NodeCall, *, awaits: bool) -> Callable[..., Any]:
        """Return the function of a node inside them; one that runs elsewhere is surrounded
        there."""
        function: Any = call.coro if awaits else call.sync
        if not self._watchers or call.inline or getattr(function, "is_remote", False):
            return function  # type: ignore[no-any-return]
        return lambda value, **given: self.call(partial(function, value, **given), awaits=awaits)

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


@dataclass(eq=False)
class _Outcome:
    """How a surrounded function has ended, the last time it was called."""

    _observer: Observer
    _method: str
    _function: Callable[[], Any]
    called: bool = False
    result: Any = None
    error: BaseException | None = None

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

    def fails(self, error: Exception) -> bool:
        """Whether an error that came out of the observer's method is the function's own; else it is
        the observer's mistake, which is logged."""
        if error is self.error:
            return True
        report_mistake(self._observer, self._method, error, "raised an error")
        return False

    def settle(self, result: Any) -> Any:
        """What counts, after the observer has returned this."""
        error = self.error
        if result is None and error is None and self.result is not None:
            what = "must return what call() returned, got None"
            report_mistake(self._observer, self._method, None, what)
        # A signal such as a pause is the engine's: nobody may swallow it.
        if error is not None and (result is None or not isinstance(error, Exception)):
            raise error
        return self.result if result is None else result


def _surround(
    observer: Observer, method: str, about: Sequence[Any], function: Callable[[], Any]
) -> Any:
    outcome, result = _Outcome(observer, method, function), None
    try:
        result = getattr(observer, method)(*about, outcome.call)
    except Exception as error:
        if outcome.fails(error):
            raise
    if not outcome.called and result is None:
        return outcome.call()
    return outcome.settle(result)


async def _asurround(
    observer: Observer, method: str, about: Sequence[Any], function: Callable[[], Any]
) -> Any:
    outcome, result = _Outcome(observer, method, function), None
    try:
        result = await getattr(observer, method)(*about, outcome.acall)
    except Exception as error:
        if outcome.fails(error):
            raise
    if not outcome.called and result is None:
        return await outcome.acall()
    return outcome.settle(result)
