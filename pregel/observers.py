"""What users give as `observer=`, read; the observers of a whole process; and what is done about
one that raises. Loaded with the first observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

from .log import LOG, NO_FIELDS
from .observer import AnyObserver, Observer, RunInfo, TaskInfo
from .task.hooks import EVERYWHERE


class EngineObserver(Observer):
    """An observer of this package: it is shown the engine's own records, too."""

    def see_run(self, info: RunInfo, run: Any) -> None:
        """A run begins."""

    def see_task(self, info: TaskInfo, task: Any) -> None:
        """A task that had started has ended. `task_ended` follows."""

    def see_route(
        self, info: TaskInfo, router: Any, answer: Any, writes: list[tuple[str, Any]]
    ) -> None:
        """A router has answered, also one behind START. `writes` are those that its answer leads
        to."""


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


def defines(observer: Observer, *methods: str) -> bool:
    cls = type(observer)
    for method in methods:
        found = getattr(cls, method, None)
        if found is not None and found is not getattr(EngineObserver, method):
            return True
    return False


def extend_job(config: Any) -> Any:
    """The config of a job that is submitted now, with what the observers of this process have it
    take along; keys of the user's own stay."""
    carried = carry(EVERYWHERE)
    if not carried:
        return config
    return {**(config or {}), "metadata": {**carried, **((config or {}).get("metadata") or {})}}
