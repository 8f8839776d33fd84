"""Watching a run while it goes: the same call as `invoke`, with a view of the graph kept up to date
beside it.

The run is not touched: it reports to an observer that appends to a queue; a thread of its own
draws. A view that breaks is left alone, with one warning.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from importlib.util import find_spec
from itertools import islice
from typing import Any, Literal, Protocol

from typing_extensions import Unpack

from ...checkpoint.base import address, coordinates
from ...extras import install_command
from ...pregel.app import Pregel
from ...pregel.errors import GraphInterrupt, ParentCommand
from ...pregel.names import NS_SEP, node_levels
from ...pregel.observer import EndStatus, Observer, RunInfo, TaskInfo
from ...pregel.run.config import Options, merge_configs, normalize
from ...pregel.types import AnyConfig, Command, Interrupt, RunnableConfig, StateSnapshot
from ..extract import extract
from ..layout.measure import one_line
from ..model import GraphModel
from .live_notebook import Picture
from .live_terminal import Lines, Table, can_draw
from .progress import Progress, RunState
from .tally import BreakpointHit, Event, TaskEnded, TaskStarted
from .trace_reader import check_compiled
from .values import format_value, sanitize

PERIOD = 0.1
"""Seconds between two redraws, at least."""
SHARE = 0.05
"""The part of the time that may go into drawing."""
IDLE_PERIOD = 0.5
"""The same while nothing happens but time."""
MOST_READ = 200
"""So many checkpoints are read at most to see what an earlier call has finished."""
LONGEST = 240
"""Characters of a question or an error that are shown."""
SIGNALS = (GraphInterrupt, ParentCommand)
"""How a run inside a node ends well, for the graph around it."""


class RunView(Protocol):
    """Something that shows a run."""

    def draw(self, progress: Progress, now: float) -> None:
        """Show how things stand. It is called again and again, with the same progress, and
        once when it is over."""


ViewName = Literal["notebook", "table", "lines"]
VIEWS: dict[str, tuple[Callable[[], RunView], str, str]] = {
    "notebook": (Picture, "IPython", "notebook"),
    "table": (Table, "rich", "rich"),
    "lines": (Lines, "", ""),
}
"""By name: the view, the package that it needs, and the extra that brings it."""


def watch(
    app: Pregel,
    input: Any,
    config: AnyConfig | None = None,
    *,
    xray: bool | int = False,
    view: ViewName | RunView | None = None,
    **options: Unpack[Options],
) -> Any:
    """Run as `app.invoke(input, config, **options)` does, showing the graph at work.

    Args:
        xray: show the graphs inside nodes too: True for all, a number for so many levels.
        view: "notebook" for a picture below the cell, "table" for a live table in a terminal (it
            takes `rich`), "lines" for plain lines, one per superstep, or an object with a
            `RunView`'s method. None takes what fits.

    Returns:
        What `invoke` returns.

    Raises:
        TypeError: `app` is no compiled graph.
        ModuleNotFoundError: the view needs a package that is not there.
        ValueError: there is no such view.
        Exception: whatever `invoke` raises.
    """
    earlier: frozenset[str] = frozenset()
    if goes_on(app, input):
        with suppress(Exception):  # what is wrong with the thread the run itself will say
            earlier = finished_by(app.get_state_history(thread_of(app, config)))
    with observe(app, xray, view, options, earlier):
        return app.invoke(input, config, **options)


async def awatch(
    app: Pregel,
    input: Any,
    config: AnyConfig | None = None,
    *,
    xray: bool | int = False,
    view: ViewName | RunView | None = None,
    **options: Unpack[Options],
) -> Any:
    """`watch` for coroutines."""
    earlier: frozenset[str] = frozenset()
    if goes_on(app, input):
        with suppress(Exception):  # as in `watch`
            stored = [
                s async for s in app.aget_state_history(thread_of(app, config), limit=MOST_READ)
            ]
            earlier = finished_by(stored)
    with observe(app, xray, view, options, earlier):
        return await app.ainvoke(input, config, **options)


def goes_on(app: Pregel, input: Any) -> bool:
    """Whether this input goes on with what an earlier call has left."""
    return isinstance(app, Pregel) and (input is None or isinstance(input, Command))


def thread_of(app: Pregel, config: AnyConfig | None) -> RunnableConfig:
    """The thread at its newest checkpoint.

    Raises:
        ValueError: the config names none, or an older checkpoint, from which all is done anew.
    """
    thread_id, ns, checkpoint_id = coordinates(merge_configs(app.config, normalize(config)))
    if checkpoint_id is not None:
        raise ValueError(f"checkpoint {checkpoint_id!r} is not the newest")
    return address(thread_id, ns)


def finished_by(history: Iterable[StateSnapshot]) -> frozenset[str]:
    """The nodes that have finished since the last input, by a thread's checkpoints, the newest
    first."""
    found: set[str] = set()
    left: set[str] = set()
    wanted: str | None = None  # only this line counts, not other branches
    for snapshot in islice(history, MOST_READ):
        if wanted is not None and coordinates(snapshot.config)[2] != wanted:
            continue
        if wanted is None:
            left.update(task.name for task in snapshot.tasks if task.result is None)
        found.update(task.name for task in snapshot.tasks)
        if (snapshot.metadata or {}).get("source") == "input" or snapshot.parent_config is None:
            break
        wanted = coordinates(snapshot.parent_config)[2]
    return frozenset(found - left)


@contextmanager
def observe(
    app: Pregel,
    xray: bool | int,
    view: ViewName | RunView | None,
    options: Options,
    earlier: frozenset[str] = frozenset(),
) -> Iterator[None]:
    """Show what runs with these options while the block runs; for `earlier` see `Progress`."""
    if options.get("observer") is not None:
        raise TypeError("watch has an observer of its own: pass yours to invoke")
    check_compiled(app)
    show = ViewUpdater(extract(app, xray), choose(view), earlier=earlier)
    options["observer"] = RunEvents(show.put, show.clock)
    show.start()
    try:
        yield
    except BaseException as error:
        show.end(error)
        raise
    else:
        show.end(None)


def choose(view: ViewName | RunView | None) -> RunView:
    """The view of this name; with None the one that fits where we are."""
    if view is None and in_notebook():
        view = "notebook"
    elif view is None:
        view = "table" if can_draw(sys.stderr) else "lines"
    if isinstance(view, str) and view in VIEWS:
        kind, needs, extra = VIEWS[view]
        if needs and find_spec(needs) is None:
            raise ModuleNotFoundError(f'view="{view}" needs {needs}: {install_command(extra)}')
        return kind()
    if isinstance(view, str) or not hasattr(view, "draw"):
        raise ValueError(
            'view must be "notebook", "table", "lines" or an object with a draw method, '
            f"got {view!r}"
        )
    return view


def in_notebook() -> bool:
    """Whether there is a kernel whose frontend shows what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class RunEvents(Observer):
    """Makes an event of each task that starts or ends, wherever that happens.

    Args:
        put: takes the event; may be called from any thread.
        clock: seconds.
    """

    def __init__(
        self, put: Callable[[Event], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._put, self._clock = put, clock
        self._root: str | None = None  # the namespace of the graph that is watched
        # (run, node) → how many of its tasks were shown with their superstep, before they start.
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._cached: set[TaskInfo] = set()
        self._asked: dict[TaskInfo, list[tuple[str, str]]] = {}

    def run_started(self, run: RunInfo) -> None:
        """The first one is that of the graph that is watched."""
        if self._root is None:
            self._root = run.ns

    def _place_of(self, run: RunInfo) -> tuple[str, ...]:
        inside = run.ns.removeprefix(self._root or "").removeprefix(NS_SEP)
        return place_of(tuple(inside.split(NS_SEP)) if inside else ())

    def step_started(self, run: RunInfo, step: int, nodes: tuple[str, ...]) -> None:
        """Its tasks are about to run, or wait for a free worker."""
        place = self._place_of(run)
        for node in nodes:
            self._waiting[run.id, node] += 1
            self._put(TaskStarted(self._clock(), place, node, step))

    def task_started(self, task: TaskInfo) -> None:
        """A task runs that may not have been shown with its superstep: a handler, a call."""
        shown = (task.run.id, task.node)
        if self._waiting[shown]:
            self._waiting[shown] -= 1
        else:
            self._put(TaskStarted(self._clock(), self._place_of(task.run), task.node, task.step))

    def task_cached(self, task: TaskInfo) -> None:
        """A task that is about to end was not run."""
        self._cached.add(task)

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """A task that is about to end asks this."""
        self._asked.setdefault(task, []).append((question.id, format_question(question.value)))

    def task_restored(
        self, task: TaskInfo, status: EndStatus, error: BaseException | None
    ) -> None:
        """A task was not run."""
        self._put(TaskStarted(self._clock(), self._place_of(task.run), task.node, task.step))
        self._cached.add(task)
        self.task_ended(task, status, 0.0, error)

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """A task has finished, failed, or paused."""
        failure = "" if error is None or status == "finished" else format_error(error)
        kept = task in self._cached and not failure
        self._cached.discard(task)
        asked = tuple(self._asked.pop(task, ()))
        paused = status == "paused"
        self._put(
            TaskEnded(
                self._clock(), self._place_of(task.run), task.node, failure, paused, asked,
                task.attempt, kept,
            )
        )  # fmt: skip

    def breakpoint_reached(self, run: RunInfo, nodes: tuple[str, ...]) -> None:
        """The run stops, with these nodes to follow."""
        self._put(BreakpointHit(self._clock(), self._place_of(run), nodes))


def place_of(ns: tuple[str, ...]) -> tuple[str, ...]:
    """The nodes that a graph's namespace names; the second graph that a node runs is `node|1`.

    >>> place_of(("agents:1d44", "call:46e4", "1"))
    ('agents', 'call|1')
    """
    return tuple(NS_SEP.join(level) for level in node_levels(ns))


def format_question(value: Any) -> str:
    """A question in one line, shortened."""
    return one_line(
        sanitize(value, LONGEST) if isinstance(value, str) else format_value(value, LONGEST)
    )


def format_error(error: BaseException) -> str:
    """An error in one line, shortened: "Type: message"."""
    try:
        text = one_line(sanitize(str(error), LONGEST))
    except Exception:  # no mistake of an error's own may hide it
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class ViewUpdater:
    """Takes events from a run and draws what they come to, on a thread of its own, so that the run
    never waits.

    Args:
        clock: seconds.

    Attributes:
        put: takes an event; may be called from any thread.
        pause: seconds until the next redraw; the longer the last one took, the longer.
    """

    def __init__(
        self,
        model: GraphModel,
        view: RunView,
        clock: Callable[[], float] = time.monotonic,
        earlier: frozenset[str] = frozenset(),
    ) -> None:
        self.clock = clock
        self._view = view
        self._progress = Progress(model, clock(), earlier)
        self._events: deque[Event] = deque()
        self.put: Callable[[Event], None] = self._events.append
        self._over = threading.Event()
        self._broken: Exception | None = None
        self._drawn = 0.0
        self.pause: float = PERIOD
        # In the caller's context, by which a notebook knows the cell.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="stategraph-watch", daemon=True
        )

    def start(self) -> None:
        """Draw the graph as it waits, so that the picture stands above what nodes print; then go on
        beside the run."""
        self._draw()
        self.pause = (
            PERIOD  # the first picture took imports and a layout, which the next ones do not
        )
        self._progress.began = self.clock()
        self._thread.start()

    def end(self, error: BaseException | None) -> None:
        """Draw the last state, however the run ended. A broken view is told of here, in one
        warning."""
        self._over.set()
        self._thread.join()
        state = state_after(error)
        self._draw(
            lambda: self._progress.end(
                self.clock(), state, format_error(error) if state and error else ""
            )
        )
        if self._broken is not None:
            with suppress(Warning):  # where warnings are errors, it still must not become the run's
                warnings.warn(
                    "the view of this run failed; the run itself was not affected: "
                    f"{format_error(self._broken)}",
                    RuntimeWarning,
                    stacklevel=5,
                )

    def _work(self) -> None:
        while not self._over.wait(self.pause):
            if self._events or self.clock() - self._drawn >= IDLE_PERIOD:
                self._draw()

    def _draw(self, last: Callable[[], None] | None = None) -> None:
        """Take in what has happened since, and draw it."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        if self._broken is not None:
            return
        try:
            for event in events:
                self._progress.take(event)
            if last is not None:
                last()
            self._drawn = self.clock()
            self._view.draw(self._progress, self._drawn)
            self.pause = max(PERIOD, (self.clock() - self._drawn) / SHARE)
        except Exception as error:
            self._broken = error


def state_after(error: BaseException | None) -> RunState | None:
    """What a run that ended so has come to; None if it returned."""
    if error is None or isinstance(error, SIGNALS):
        return None
    return "failed" if isinstance(error, Exception) else "stopped"
