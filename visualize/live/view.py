"""Keeps a view of a run up to date beside it: turns what the run reports into events, and draws.

The run is not affected: it reports to an observer that appends to a queue; a separate thread draws.
A view that fails is abandoned, with one warning. Callers know which call is shown.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import copy_context
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO

from ...checkpoint.base import address, coordinates
from ...checkpoint.printable import printable
from ...extras import install_command
from ...pregel.errors import GraphDrained, GraphInterrupt, ParentCommand
from ...pregel.names import NS_SEP, node_levels
from ...pregel.observer import EndStatus, Observer, RunInfo, TaskInfo
from ...pregel.run.config import merge_configs, normalize
from ...pregel.types import AnyConfig, Command, Interrupt, RunnableConfig, StateSnapshot
from ..extract import extract
from ..labels import TIMES
from ..layout.measure import one_line
from ..model import GraphModel
from ..svg import URGENT
from ..trace.transitions import list_transitions
from ..trace.values import duration, format_value, sanitize
from .notebook import Picture
from .progress import (
    EARLIER,
    BreakpointHit,
    Event,
    NodeRow,
    Progress,
    ReadyProgress,
    RunState,
    Superstep,
    TaskEnded,
    TaskRetried,
    TaskStarted,
    split_mark,
)

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

# -- terminal --------------------------------------------------------------------------------------
# Shows a run in a terminal: as a live table if `rich` is installed, otherwise as plain lines. Only
# draws a Progress as text. Writes to stderr, so that the program's own output stays separate.

SIGNS = {"waiting": "○", "running": "▶", "done": "✔", "failed": "✘", "paused": "‖"}
STYLES = {
    "waiting": "dim",
    "running": "bold cyan",
    "done": "green",
    "failed": "bold red",
    "paused": "bold yellow",
    "starting": "dim",
    "stopped": "bold red",
}
AROUND = 8
"""Lines of a terminal reserved for what surrounds the rows."""
LULL = 10.0
"""Seconds after which plain lines report how far a superstep with many tasks has come."""
PLAIN = str.maketrans({"·": "-", TIMES: "x", "…": "..."})
"""Replacements for terminals that can only show ASCII."""


def can_draw(file: TextIO) -> bool:
    """Return whether a live table can be shown there."""
    encoding = (getattr(file, "encoding", "") or "").lower()
    return file.isatty() and encoding.startswith("utf") and find_spec("rich") is not None


class Lines:
    """Writes one line per superstep when it has ended, one now and then during a long one, and the
    result of the run at the end. No control codes.

    Args:
        file: None for stderr.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._told = 0
        self._last: float | None = None

    def draw(self, progress: Progress, now: float) -> None:
        """Write the lines that have not been written yet."""
        steps = progress.supersteps if progress.lists_supersteps else []
        whole = len(steps) if progress.over else max(0, len(steps) - 1)
        for number in range(self._told, whole):
            self._write(f"superstep {number + 1}: {describe_superstep(steps[number])}")
        if self._last is None or self._told < whole:
            self._last = now
        self._told = whole
        pace = progress.pace(now)
        if pace and now - self._last >= LULL:
            self._last = now
            self._write(f"{progress.headline(now)} · {pace}")
        if progress.over:
            for line in (progress.headline(now), *progress.notes()):
                self._write(line)

    def _write(self, line: str) -> None:
        line = printable(line)
        file = self._file or sys.stderr
        encoding = getattr(file, "encoding", None) or "utf-8"
        if not encoding.lower().startswith("utf"):
            line = line.translate(PLAIN).encode(encoding, "replace").decode(encoding)
        print(line, file=file, flush=True)


def describe_superstep(step: Superstep) -> str:
    """Return what ran in a superstep, and for how long.

    >>> from collections import Counter
    >>> describe_superstep(Superstep(2, 1.0, 2.5, 2, 2, Counter(count=1, log=1), {"log": "failed"}))
    'count, log failed (1.5 s)'
    """
    shown = []
    for name, count in step.tasks.items():
        kept = step.kept[name]
        ran = count - kept
        times = f" {TIMES}{ran:,}" if ran > 1 else ""
        shown.append(
            " ".join(
                filter(
                    None, (name + times, step.halted.get(name), f"({kept:,} kept)" if kept else "")
                )
            )
        )
    return f"{', '.join(shown)} ({duration(step.ended - step.started)})"


class Table:
    """A live table of the nodes. Its last state stays on the screen.

    Args:
        file: None for stderr.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file
        self._live: Live | None = None

    def draw(self, progress: Progress, now: float) -> None:
        """Redraw the table."""
        live = self._live = self._live or self._open()
        try:
            room = (
                None
                if progress.over
                else max(3, live.console.height - AROUND - len(progress.notes()))
            )
            live.update(render_rich(progress, now, room), refresh=True)
        except BaseException:
            live.stop()  # restores stdout
            raise
        if progress.over:
            live.stop()

    def _open(self) -> Live:
        from rich.console import Console
        from rich.live import Live

        file = self._file or sys.stderr
        # What nodes print appears above the table, unless stdout is redirected.
        live = Live(
            console=Console(file=file), auto_refresh=False, redirect_stdout=sys.stdout.isatty()
        )
        live.start()
        return live


def render_rich(progress: Progress, now: float, room: int | None = None) -> Group:
    """Return a Progress as an object for `rich`.

    Args:
        room: the maximum number of rows; None for all.
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = [Text(printable(progress.headline(now)), style=STYLES[progress.state])]
    parts += [_bar(progress, progress.pace(now)), _table(progress.rows(now), room)]
    style = STYLES["failed"] if progress.error else STYLES["paused"]
    parts += [Text(printable(note), style=style) for note in progress.notes()]
    return Group(*parts)


def _bar(progress: Progress, pace: str) -> Any:
    from rich.progress_bar import ProgressBar
    from rich.table import Table as RichTable

    style = STYLES[progress.state if progress.over else "running"].removeprefix("bold ")
    bar = ProgressBar(
        total=1.0, completed=progress.share, width=40, complete_style=style, finished_style=style
    )
    if not pace:
        return bar
    line = RichTable.grid(padding=(0, 2))
    line.add_row(bar, pace)
    return line


def _table(rows: list[NodeRow], room: int | None) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("node", overflow="ellipsis", no_wrap=True, min_width=12)
    table.add_column("state", min_width=24)  # so that columns do not move
    for title in ("runs", "left", "time"):
        table.add_column(title, justify="right", no_wrap=True, min_width=6)
    visible, rest = pick_rows(rows, room)
    for row in visible:
        table.add_row(*_table_cells(row))
    if rest:
        counts = Counter[str](row.mark.state for row in rest)
        words = ", ".join(f"{counts[state]} {state}" for state in SIGNS if counts[state])
        table.add_row(Text(f"… {len(rest)} more", style="dim"), Text(words, style="dim"))
    return table


def _table_cells(row: NodeRow) -> Iterator[Any]:
    from rich.text import Text

    state, waiting = row.mark.state, row.mark.state == "waiting"
    yield Text("  " * row.depth + printable(row.label), style="dim" if waiting else "")
    status = Text(printable(f"{SIGNS[state]} {split_mark(row.mark)[0]}"), style=STYLES[state])
    if detail := detail_of(row):
        status.append(f"  {printable(detail)}", style="red" if state == "failed" else "default")
    yield status
    yield f"{row.runs:,}" if row.runs else ""
    yield f"{row.left:,}" if row.left else ""
    yield "" if waiting else duration(row.seconds)


def detail_of(row: NodeRow) -> str:
    """Return the details beside the state; counts and times of finished nodes have their own
    columns."""
    parts = split_mark(row.mark)[1].split(" · ")
    return " · ".join(
        p for p in parts if row.mark.state != "done" or "retr" in p or "kept" in p or p == EARLIER
    )


def pick_rows(rows: list[NodeRow], room: int | None) -> tuple[list[NodeRow], list[NodeRow]]:
    """Return the rows to show if there is room for this many, in order, and the others."""
    if room is None or len(rows) <= room:
        return rows, []
    order = sorted(range(len(rows)), key=lambda n: URGENT.index(rows[n].mark.state))
    shown, left = sorted(order[:room]), sorted(order[room:])
    return [rows[n] for n in shown], [rows[n] for n in left]



LONGEST = 240
"""How many characters of a question or an error are shown."""


class RunEvents(Observer):
    """Makes an event of each task that starts or ends, at any level.

    Args:
        put: takes the event; may be called from any thread.
        clock: returns seconds.
    """

    def __init__(
        self, put: Callable[[Event], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.put: Callable[[Event], None] = put
        self.clock: Callable[[], float] = clock
        self._root: str | None = None  # the namespace of the graph that is watched
        # (run, node) → how many of its tasks were reported with their superstep and have not
        # started.
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._cached: set[TaskInfo] = set()
        self._asked: dict[TaskInfo, list[tuple[str, str]]] = {}

    def run_started(self, run: RunInfo) -> None:
        """Note the first run, which is that of the watched graph."""
        if self._root is None:
            self._root = run.ns

    def place_of(self, run: RunInfo) -> tuple[str, ...]:
        """Return the nodes around the run's tasks, outermost first."""
        return self.place_below(self._root or "", run)

    def place_below(self, root: str, run: RunInfo) -> tuple[str, ...]:
        """Return the nodes around the run's tasks, in the graph with this namespace."""
        inside = run.ns.removeprefix(root).removeprefix(NS_SEP)
        return place_of(tuple(inside.split(NS_SEP)) if inside else ())

    def step_started(self, run: RunInfo, step: int, nodes: tuple[str, ...]) -> None:
        """Report the tasks of a superstep, which are about to run or wait for a free worker."""
        place = self.place_of(run)
        for node in nodes:
            self._waiting[run.id, node] += 1
            self.put(TaskStarted(self.clock(), place, node, step))

    def task_started(self, task: TaskInfo) -> None:
        """Report a task that was not reported with its superstep, such as a handler or a call."""
        shown = (task.run.id, task.node)
        if self._waiting[shown]:
            self._waiting[shown] -= 1
        else:
            self.put(TaskStarted(self.clock(), self.place_of(task.run), task.node, task.step))

    def task_retried(self, task: TaskInfo, error: BaseException, delay: float) -> None:
        """Report that a task has failed and is retried."""
        self.put(TaskRetried(self.clock(), self.place_of(task.run), task.node))

    def task_cached(self, task: TaskInfo) -> None:
        """Note that a task which is about to end was not run."""
        self._cached.add(task)

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """Note a question of a task that is about to end."""
        self._asked.setdefault(task, []).append((question.id, format_question(question.value)))

    def task_restored(
        self, task: TaskInfo, status: EndStatus, error: BaseException | None
    ) -> None:
        """Report a task that was not run."""
        self.put(TaskStarted(self.clock(), self.place_of(task.run), task.node, task.step))
        self._cached.add(task)
        self.task_ended(task, status, 0.0, error)

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """Report that a task has finished, failed, or paused."""
        failure = format_failure(status, error)
        kept = task in self._cached and not failure
        self._cached.discard(task)
        asked = tuple(self._asked.pop(task, ()))
        paused = status == "paused"
        self.put(
            TaskEnded(
                self.clock(), self.place_of(task.run), task.node, failure, paused, asked,
                kept=kept,
            )
        )  # fmt: skip

    def breakpoint_reached(self, run: RunInfo, nodes: tuple[str, ...]) -> None:
        """Report that the run stops before these nodes."""
        self.put(BreakpointHit(self.clock(), self.place_of(run), nodes))


def place_of(ns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes that a graph's namespace names; the second graph that a node runs is
    `node|1`.

    >>> place_of(("agents:1d44", "call:46e4", "1"))
    ('agents', 'call|1')
    """
    return tuple(NS_SEP.join(level) for level in node_levels(ns))


def format_question(value: Any) -> str:
    """Return a question in one line, shortened."""
    return one_line(
        sanitize(value, LONGEST) if isinstance(value, str) else format_value(value, LONGEST)
    )


def format_error(error: BaseException) -> str:
    """Return an error in one line, shortened: "Type: message"."""
    try:
        text = one_line(sanitize(str(error), LONGEST))
    except Exception:  # an error whose __str__ fails must still be reported
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def format_failure(status: EndStatus, error: BaseException | None) -> str:
    """Return the final error of a task or a run; empty if there is none."""
    return "" if error is None or status == "finished" else format_error(error)


PERIOD = 0.1
"""The minimum number of seconds between two redraws."""
SHARE = 0.05
"""The maximum share of time spent on drawing."""
IDLE_PERIOD = 0.5
"""The same while nothing but time changes."""
SIGNALS = (GraphInterrupt, ParentCommand)
"""Exceptions with which a run inside a node ends normally, for the graph around it."""


class RunView(Protocol):
    """Something that shows a run."""

    def draw(self, progress: Progress, now: float) -> None:
        """Show the current state. Called repeatedly with the same progress, and once more when the
        run is over."""


ViewName = Literal["notebook", "table", "lines"]
VIEWS: dict[str, tuple[Callable[[], RunView], str, str]] = {
    "notebook": (Picture, "IPython", "notebook"),
    "table": (Table, "rich", "rich"),
    "lines": (Lines, "", ""),
}
"""For each name: the view, the package that it needs, and the extra that installs it."""


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
        options: one more observer is added to them.
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
    """Return the view with this name; by default, the one that fits the environment."""
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
    """Return whether there is a kernel whose frontend shows what is displayed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class ViewUpdater:
    """Collects the events of a run and draws its progress on a separate thread, so that the run
    never waits.

    Args:
        clock: returns seconds.
        earlier: see `Progress`.
        kind: the class that accumulates the events.

    Attributes:
        put: takes an event; may be called from any thread.
        pause: seconds until the next redraw, in proportion to the duration of the last one.
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
        # In the caller's context, which tells a notebook the cell.
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="stategraph-watch", daemon=True
        )

    def start(self) -> None:
        """Draw the waiting graph, so that the picture is above what nodes print; then continue
        beside the run."""
        self._draw()
        self.pause = (
            PERIOD  # only the first picture took imports and a layout
        )
        self._progress.began = self.clock()
        self._thread.start()

    def end(self, error: BaseException | None) -> None:
        """Draw the last state, however the run ended. If the view has failed, issue one warning."""
        self._over.set()
        self._thread.join()
        state = state_after(error)
        self._draw(
            lambda: self._progress.end(
                self.clock(), state, format_error(error) if state and error else ""
            )
        )
        if self._broken is not None:
            with suppress(Warning):  # even if warnings are errors, the run must not fail
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
        """Process the events since the last redraw, and draw."""
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
    """Return the state of a run that ended with this error; None if it returned."""
    if error is None or isinstance(error, SIGNALS):
        return None
    stopped = isinstance(error, GraphDrained) or not isinstance(error, Exception)
    return "stopped" if stopped else "failed"


MOST_READ = 200
"""How many checkpoints are read to see what an earlier call has finished."""


def find_earlier(app: Any, input: Any, config: AnyConfig | None) -> frozenset[str]:
    """Return the nodes that an earlier call has finished, if this one continues its work."""
    if goes_on(input):
        with suppress(Exception):  # the run itself will report what is wrong with the thread
            return finished_by(app.get_state_history(thread_of(app, config)))
    return frozenset()


async def afind_earlier(app: Any, input: Any, config: AnyConfig | None) -> frozenset[str]:
    """Do the same as `find_earlier`, for coroutines."""
    if goes_on(input):
        with suppress(Exception):  # as above
            history = app.aget_state_history(thread_of(app, config), limit=MOST_READ)
            return finished_by([snapshot async for snapshot in history])
    return frozenset()


def goes_on(input: Any) -> bool:
    """Return whether this input continues what an earlier call has left."""
    return input is None or isinstance(input, Command)


def thread_of(app: Any, config: AnyConfig | None) -> RunnableConfig:
    """Return the config of the thread at its newest checkpoint.

    Raises:
        ValueError: the config names no thread, or an older checkpoint, from which everything is
            done again.
    """
    thread_id, ns, checkpoint_id = coordinates(merge_configs(app.config, normalize(config)))
    if checkpoint_id is not None:
        raise ValueError(f"checkpoint {checkpoint_id!r} is not the newest")
    return address(thread_id, ns)


def finished_by(history: Iterable[StateSnapshot]) -> frozenset[str]:
    """Return the nodes that have finished since the last input, given a thread's checkpoints, the
    newest first."""
    found: set[str] = set()
    left: set[str] | None = None
    for _, snapshot, _ in list_transitions(islice(history, MOST_READ), None, []):
        if left is None:
            left = {task.name for task in snapshot.tasks if task.result is None}
        found.update(task.name for task in snapshot.tasks)
        if (snapshot.metadata or {}).get("source") == "input":
            break
    return frozenset(found - (left or set()))
