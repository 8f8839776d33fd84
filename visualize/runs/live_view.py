"""A view of a run, kept up to date beside it.

The run is not touched: it reports to an observer that appends to a queue; a thread of its own
draws. A view that breaks is left alone, with one warning. Which call is shown, callers know.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from ...extras import install_command
from ...pregel.errors import GraphInterrupt, ParentCommand
from ..extract import extract
from ..model import GraphModel
from .live_notebook import Picture
from .live_terminal import Lines, Table, can_draw
from .progress import Progress, ReadyProgress, RunState
from .run_events import RunEvents, format_error
from .tally import Event

PERIOD = 0.1
"""Seconds between two redraws, at least."""
SHARE = 0.05
"""The part of the time that may go into drawing."""
IDLE_PERIOD = 0.5
"""The same while nothing happens but time."""
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


def show_call(
    app: Any,
    xray: bool | int,
    view: ViewName | RunView | None,
    options: Any,
    earlier: frozenset[str],
) -> AbstractContextManager[None]:
    """Show the call of a compiled graph with these options while the block runs; for `earlier` see
    `Progress`."""
    kind = ReadyProgress if app.program.starts_ready else Progress
    updater = ViewUpdater(extract(app, xray), choose(view), earlier=earlier, kind=kind)
    return show(updater, RunEvents(updater.put, updater.clock), options)


@contextmanager
def show(updater: ViewUpdater, events: RunEvents, options: Any) -> Iterator[None]:
    """Show what runs with these options while the block runs.

    Args:
        options: gets one more observer.
    """
    given = options.get("observer") or ()
    several = given if isinstance(given, (list, tuple)) else (given,)
    options["observer"] = [*several, events]
    updater.start()
    try:
        yield
    except BaseException as error:
        updater.end(error)
        raise
    else:
        updater.end(None)


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


class ViewUpdater:
    """Takes events from a run and draws what they come to, on a thread of its own, so that the run
    never waits.

    Args:
        clock: seconds.
        earlier: see `Progress`.
        kind: what adds the events up.

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
        kind: type[Progress] = Progress,
    ) -> None:
        self.clock = clock
        self._view = view
        self._progress = kind(model, clock(), earlier)
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
