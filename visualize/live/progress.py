"""What each node of a running graph is doing, computed from the events of its tasks: states,
counts, times, in words.

Pure: the caller's clock stamps the events and provides the time; nothing is displayed, awaited or
locked here.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple

from ...pregel.names import NS_END, NS_SEP, join_id
from ..labels import TIMES
from ..model import GraphModel, GraphNode
from ..svg import Mark
from ..trace.values import count_noun, duration


class TaskStarted(NamedTuple):
    """A task is about to run, or waits for a free worker.

    Attributes:
        at: the time, in seconds by the caller's clock.
        place: the nodes around it, outermost first.
        name: the name of its node.
        step: the number of the superstep, in the graph it belongs to.
    """

    at: float
    place: tuple[str, ...]
    name: str
    step: int = 0


class TaskEnded(NamedTuple):
    """A task has run to completion, failed or paused.

    Attributes:
        failure: what it raised, as "Type: message"; empty if nothing.
        paused: whether it waits for answers, or for a graph in it that stopped at a breakpoint.
        questions: the (id, text) of its questions.
        kept: whether it was not run because its result was stored or cached.
    """

    at: float
    place: tuple[str, ...]
    name: str
    failure: str = ""
    paused: bool = False
    questions: tuple[tuple[str, str], ...] = ()
    kept: bool = False


class TaskRetried(NamedTuple):
    """An attempt of a task has failed, and another one follows."""

    at: float
    place: tuple[str, ...]
    name: str


class BreakpointHit(NamedTuple):
    """A breakpoint has stopped the graph at `place` before the nodes with these names."""

    at: float
    place: tuple[str, ...]
    names: tuple[str, ...]


Event = TaskStarted | TaskRetried | TaskEnded | BreakpointHit


RunState = Literal["starting", "running", "done", "paused", "failed", "stopped"]
"""`stopped`: from outside, by Ctrl-C, a cancellation or a drain."""

MARKED = frozenset(("node", "subgraph", "cluster"))
"""The kinds of node that have tasks."""
STOPPED = "stopped"
EARLIER = "earlier"
"""The mark of a node that an earlier call has finished."""


def split_mark(mark: Mark) -> tuple[str, str]:
    """Return the state of a node in words, and the rest of its mark. A node that was stopped from
    outside has not failed."""
    parts = mark.text.split(" · ")
    if mark.state == "failed" and parts[-1] == STOPPED:
        return STOPPED, " · ".join(parts[:-1])
    return mark.state, mark.text


class NodeRow(NamedTuple):
    """One node as a table shows it: `depth` counts the enclosing nodes, `runs` the tasks that have
    run to completion, `left` those that run or wait for a free worker."""

    label: str
    depth: int
    mark: Mark
    runs: int
    left: int
    seconds: float


class Progress:
    """The observed progress of a run.

    Args:
        model: the nodes that are shown. Tasks of a nested graph that is not shown count towards its
            node.
        began: when the run began, by the caller's clock.
        earlier: the nodes that an earlier call has finished, if this one continues its work.

    Attributes:
        state: the state of the run as a whole.
        supersteps: those of the outermost graph in this call, oldest first.
        tasks: how many tasks have ended, including nested ones.
        kept: how many were not run, because their results already existed.
        questions: the node and text of each open question, by its id.
        error: what ended the run, as "Type: message".
    """

    lists_supersteps: bool = True
    """Whether supersteps are worth listing in plain lines."""

    def __init__(
        self, model: GraphModel, began: float = 0.0, earlier: frozenset[str] = frozenset()
    ) -> None:
        self.model = model
        self.state: RunState = "starting"
        self.supersteps: list[Superstep] = []
        self.tasks: int = 0
        self.kept: int = 0
        self.earlier = earlier
        self.questions: dict[str, tuple[str, str]] = {}
        self.error: str = ""
        self._known = {n.id: n for n in model.parts}
        self._tallies: dict[str, Tally] = {}
        self._ids: dict[tuple[tuple[str, ...], str], tuple[str, bool]] = {}
        self.began = began
        self._held = False
        self._until: float | None = None

    # -- events ------------------------------------------------------------------------------------

    def take(self, event: Event) -> None:
        """Record an event. Events arrive in the order in which they happened."""
        if isinstance(event, BreakpointHit):
            self.state = "paused" if not event.place else self.state
            self._held = True
            for name in event.names:
                key, own = self._id(event.place, name)
                self._tally(key).held = own
            return
        key, own = self._id(event.place, event.name)
        if isinstance(event, TaskStarted):
            self._start(event, self._tally(key) if own else None)
        elif isinstance(event, TaskRetried):
            self._tally(key).retries += 1
            step = self._step_of(event)
            if step is not None:
                step.retries += 1
        else:
            self._end(event, key, own)

    def end(self, at: float, state: RunState | None = None, error: str = "") -> None:
        """Record the end of the run.

        Args:
            state: how it ended; None if it returned, so that it has paused or is done.
            error: what it raised, as "Type: message".
        """
        paused = self.state == "paused" or bool(self.questions) or any(
            t.paused and t.superstep == len(self.supersteps) for t in self._tallies.values()
        )
        self.state = state or ("paused" if paused else "done")
        self.error = error
        self._until = at
        if state == "stopped" and self.supersteps:
            halted = self.supersteps[-1].halted
            halted |= {name: STOPPED for name in halted if self._cut_off(self._tally(name))}

    def _start(self, event: TaskStarted, tally: Tally | None) -> None:
        self.state = "running"
        self._held = False
        step = self._current
        if not event.place:
            if step is None or self._is_next(step, event):
                step = Superstep(event.step, event.at, event.at)
                self.supersteps.append(step)
            step.start_task(event)
        elif step is not None:
            if step.inside is None:
                step.inside = Superstep(step.number, event.at, event.at)
            step.inside.start_task(event)
        if tally is None:
            return
        if tally.superstep != len(self.supersteps):
            tally.superstep = len(self.supersteps)
            tally.total = tally.done = tally.failed = tally.paused = tally.inside = 0
        tally.held = False
        tally.since = tally.since if tally.open else event.at
        tally.open += 1
        tally.total += 1

    def _is_next(self, step: Superstep, event: TaskStarted) -> bool:
        """Return whether a superstep is over, because a task of the next one has started."""
        return step.number != event.step

    def _step_of(self, event: TaskEnded | TaskRetried) -> Superstep | None:
        """Return the superstep that the task is counted in."""
        step = self._current
        return step.inside if step is not None and event.place else step

    def _end(self, event: TaskEnded, key: str, own: bool) -> None:
        self.tasks += not event.kept
        self.kept += event.kept
        step = self._step_of(event)
        if step is not None:
            step.end_task(event)
        for id, text in event.questions:
            self.questions.setdefault(id, (key, text))
        tally = self._tally(key)
        if not own:
            tally.inside += 1
            return
        tally.end_task(event)
        if not tally.open and self._is_open(key):
            self._close(key, event.at)

    def _close(self, holder: str, at: float) -> None:
        """Close the tasks inside a node that has ended: those that were not seen to end were
        abandoned with its attempt."""
        for id, tally in self._tallies.items():
            if tally.open and id.startswith((holder + NS_END, holder + NS_SEP)):
                tally.seconds = tally.spent(at)
                if not tally.done:
                    tally.failed, tally.failure = tally.open, STOPPED
                tally.open = 0

    def _id(self, place: tuple[str, ...], name: str) -> tuple[str, bool]:
        """Return the id of the node that a task counts towards, and whether it is the task's own;
        if not, it is the innermost enclosing node that is shown."""
        found = self._ids.get((place, name))
        if found is None:
            holders = accumulate(place, join_id)
            hidden = next((holder for holder in holders if not self._is_open(holder)), None)
            found = hidden or NS_END.join((*place, name)), hidden is None
            self._ids[place, name] = found
        return found

    def _is_open(self, holder: str) -> bool:
        """Return whether the content of this node is shown."""
        return holder in self._known and self._known[holder].kind == "cluster"

    def _tally(self, id: str) -> Tally:
        return self._tallies.setdefault(id, Tally())

    # -- queries -----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self._until is not None

    @property
    def _current(self) -> Superstep | None:
        return self.supersteps[-1] if self.supersteps else None

    def elapsed(self, now: float) -> float:
        """Return the seconds since the run began, or those that it took."""
        return self._at(now) - self.began

    @property
    def share(self) -> float:
        """The share of the current superstep's tasks that have ended well, from 0 to 1; further
        supersteps are unknown. 0 while a breakpoint holds it."""
        if self.state == "done":
            return 1.0
        if self._current is None or self._held:
            return 0.0
        step = self.counted(self._current)
        return step.good / step.total

    def marks(self) -> dict[str, Mark]:
        """Return the mark of each node that has tasks."""
        return {id: self._mark(id) for id, node in self._known.items() if node.kind in MARKED}

    def rows(self, now: float) -> list[NodeRow]:
        """Return the nodes that have tasks, each below those that contain it; then the functions
        that nodes have called."""
        shown: dict[str, GraphNode] = {}
        for node in self.model.node_records:
            shown |= {one.id: one for one in (*self._around(node), node) if one.kind in MARKED}
        called = (GraphNode(id, id.rpartition(NS_END)[2]) for id in self._tallies)
        rows = *shown.values(), *(node for node in called if node.id not in shown)
        return [self._row(node, now) for node in rows]

    def headline(self, now: float) -> str:
        """Return the run as a whole, in one line."""
        kept = f"{self.kept:,} kept" if self.kept else ""
        asked = count_noun(len(self.questions), "question") if self.questions else ""
        return join(*self._describe(self._current), kept, asked, duration(self.elapsed(now)))

    def _describe(self, step: Superstep | None) -> Sequence[str]:
        """Return the state of the run, and how far it has come."""
        count = len(self.supersteps)
        if self.state == "done":
            return "done", count_noun(count, "superstep"), count_noun(self.tasks, "task")
        if step is None:
            return (self.state,)
        if self.state == "running":
            return f"superstep {count}", self._count_ended(step)
        return f"{self.state} in superstep {count}", count_noun(self.tasks, "task")

    def _count_ended(self, step: Superstep) -> str:
        inside, known = self.counted(step), f"{step.done:,} of {count_noun(step.total, 'task')}"
        more = "" if inside is step else f"{inside.done:,} of {inside.total:,} inside"
        return join(known, more)

    def pace(self, now: float) -> str:
        """Return how fast the tasks of a superstep with several tasks end, how long the remaining
        known ones will take, and what went wrong; empty if there is nothing to report."""
        step = None if self._current is None else self.counted(self._current)
        if step is None or step.total < 2 or self.state != "running":
            return ""
        return describe_pace(
            step.total - step.done, step.pace.rate(now), step.failed, step.retries
        )

    def counted(self, step: Superstep) -> Superstep:
        """Return the tasks that best show how far a superstep is: its own, or those nested in
        them."""
        inside = step.inside
        return step if inside is None or inside.total <= step.total else inside

    def notes(self) -> list[str]:
        """Return what needs attention: questions and errors."""
        asked = [f"{self._label(id)} asks: {text}" for id, text in self.questions.values()]
        return [*asked, self.error] if self.error else asked

    def _at(self, now: float) -> float:
        return now if self._until is None else self._until

    def _mark(self, id: str) -> Mark:
        tally = self._tallies.get(id)
        if tally is None:  # an earlier call may have finished this node, or an enclosing one
            enclosing: Iterator[str] = accumulate(id.split(NS_END), join_id)
            earlier = not self.earlier.isdisjoint(enclosing)
            return Mark("done", EARLIER) if earlier else Mark("waiting")
        if tally.open and not self.over:
            return Mark("running", count_tasks(tally))
        if tally.failed and self._cut_off(tally):
            return Mark("failed", STOPPED)
        if tally.failed or tally.open:
            why = tally.failure.partition(":")[0] if tally.failed else STOPPED
            return Mark("failed", join(count_tasks(tally), why))
        if tally.paused or tally.held:
            asked = self._count_questions(id) if tally.paused else ""
            return Mark("paused", asked or "breakpoint")
        if tally.runs or tally.kept:
            return Mark("done", describe_done(tally))
        return Mark("waiting")

    def _cut_off(self, tally: Tally) -> bool:
        """Return whether the node's error is the one that stopped the run from outside."""
        return (
            self.state == "stopped"
            and tally.failure.partition(":")[0] == self.error.partition(":")[0]
        )

    def _count_questions(self, id: str) -> str:
        inside = id + NS_END
        count = sum(f"{by}{NS_END}".startswith(inside) for by, _ in self.questions.values())
        if not count:
            return ""
        return f"asks {TIMES}{count}" if count > 1 else "asks"

    def _row(self, node: GraphNode, now: float) -> NodeRow:
        tally = self._tallies.get(node.id) or Tally()
        left = 0 if self.over else tally.open
        spent = tally.spent(self._at(now))
        return NodeRow(
            node.label, len(self._around(node)), self._mark(node.id), tally.runs, left, spent
        )

    def _around(self, node: GraphNode) -> list[GraphNode]:
        """Return the nodes that contain a node, outermost first."""
        holder = self._known[node.inside] if node.inside is not None else None
        return [] if holder is None else [*self._around(holder), holder]

    def _label(self, id: str) -> str:
        return self._known[id].label if id in self._known else id.rpartition(NS_END)[2]


class ReadyProgress(Progress):
    """The observed progress of a run with schedule="ready". No superstep groups its tasks, so all
    tasks of the call that are known so far are counted together."""

    lists_supersteps = False

    def _describe(self, step: Superstep | None) -> Sequence[str]:
        if step is None or self.state == "done":
            return self.state, count_noun(self.tasks, "task") if self.tasks else ""
        return "" if self.state == "running" else self.state, self._count_ended(step)

    def _is_next(self, step: Superstep, event: TaskStarted) -> bool:
        return False

    def _start(self, event: TaskStarted, tally: Tally | None) -> None:
        if tally is not None and not tally.open:  # the node runs again, in a loop
            tally.superstep = -1
        super()._start(event, tally)


# -- counts ----------------------------------------------------------------------------------------

NOTABLE = 0.05
"""How many seconds a node must have taken for its mark to show the time."""


@dataclass(slots=True)
class Tally:
    """What is known about one node. `total`, `done`, `failed` and `paused` count this superstep's
    tasks, `runs`, `kept` and `retries` those of the whole call; `open` have not ended; `inside`
    counts tasks of graphs that are not shown."""

    runs: int = 0
    kept: int = 0
    retries: int = 0
    open: int = 0
    superstep: int = 0
    total: int = 0
    done: int = 0
    failed: int = 0
    paused: int = 0
    inside: int = 0
    held: bool = False
    failure: str = ""
    seconds: float = 0.0
    since: float = 0.0

    def end_task(self, event: TaskEnded) -> None:
        """Record that one of its tasks has ended."""
        self.open -= 1
        self.done += 1
        self.seconds += 0.0 if self.open else event.at - self.since
        if event.failure:
            self.failed += 1
            self.failure = event.failure
        elif event.paused:
            self.paused += 1
        elif event.kept:
            self.kept += 1
        else:
            self.runs += 1

    def spent(self, now: float) -> float:
        """Return the seconds during which at least one of its tasks was open."""
        return self.seconds + (now - self.since if self.open else 0.0)


@dataclass(slots=True)
class Superstep:
    """One superstep of the outermost graph: its tasks by node, including calls of `@task`
    functions; `halted` says which nodes failed or paused, `kept` how many tasks of a node were not
    run. `good` counts those that ended well, `retries` the attempts after the first ones. `inside`
    has the tasks of graphs that these tasks run; None if there are none."""

    number: int
    started: float
    ended: float = 0.0
    total: int = 0
    done: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    halted: dict[str, str] = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)
    good: int = 0
    failed: int = field(default=0, compare=False)
    retries: int = field(default=0, compare=False)
    inside: Superstep | None = field(default=None, compare=False)
    pace: Pace = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.started)

    def start_task(self, event: TaskStarted) -> None:
        """Record that a task starts, or waits for a free worker."""
        self.total += 1
        self.tasks[event.name] += 1

    def end_task(self, event: TaskEnded) -> None:
        """Record that one of its tasks has ended."""
        self.ended = event.at
        self.done += 1
        self.failed += bool(event.failure)
        if not event.kept:
            self.pace.count(event.at)
        self.kept[event.name] += event.kept
        if event.failure or event.paused:
            self.halted[event.name] = "failed" if event.failure else "paused"
        else:
            self.good += 1


def count_tasks(tally: Tally) -> str:
    """Return how far a node's tasks have come, if there are several."""
    if tally.total > 1:
        return join(
            f"{tally.done:,}/{tally.total:,}", f"{tally.failed} failed" if tally.failed else ""
        )
    return f"{count_noun(tally.inside, 'task')} inside" if tally.inside else ""


def describe_done(tally: Tally) -> str:
    """Return how often a node has run, or how long it took; its retries; and what was not run."""
    kept = ""
    if tally.kept:
        alone = tally.kept == 1 and not tally.runs
        kept = "kept" if alone else f"{tally.kept:,} kept"
    if not tally.runs:
        return kept
    ran = ""
    if tally.runs > 1:
        ran = f"{TIMES}{tally.runs:,}"
    elif tally.seconds >= NOTABLE:
        ran = f"{tally.seconds:.1f} s" if tally.seconds < 1 else duration(tally.seconds)
    return join(ran, count_retries(tally.retries), kept)


def count_retries(count: int) -> str:
    return count_noun(count, "retry", "retries") if count else ""


def join(*parts: str) -> str:
    return " · ".join(filter(None, parts))


WINDOW = 60.0
"""How many seconds a pace looks back: what was slow an hour ago says little about the rest."""
GRAIN = 1.0
"""How many seconds share a sample, so that a pace costs the same for ten tasks and for a
million."""


class Pace:
    """How many tasks end per second.

    Args:
        began: when the first of them started, by the caller's clock.
    """

    __slots__ = ("_began", "_bucket", "_ended", "_samples")

    def __init__(self, began: float) -> None:
        self._began = began
        self._ended = 0
        self._samples = deque(((began, 0),))  # (time, how many had ended by then), the oldest first
        self._bucket = -1

    def count(self, at: float) -> None:
        """Count a task that was run and has ended."""
        self._ended += 1
        samples, bucket = self._samples, int((at - self._began) / GRAIN)
        if bucket == self._bucket:
            samples[-1] = (at, self._ended)
            return
        self._bucket = bucket
        samples.append((at, self._ended))
        while at - samples[1][0] >= WINDOW:
            samples.popleft()

    @property
    def sample_count(self) -> int:
        """How many samples it keeps."""
        return len(self._samples)

    def rate(self, now: float) -> float:
        """Return tasks per second, over the last minute or since the newest older sample."""
        since, before = self._samples[0]
        return (self._ended - before) / (now - since) if now > since else 0.0


def describe_pace(left: int, rate: float, failed: int, retries: int) -> str:
    """Return how fast tasks end, when the remaining ones will have ended, and what went wrong.

    Args:
        left: how many tasks have not ended.
        rate: tasks per second.

    >>> describe_pace(600, 12.0, 1, 0)
    '12/s · about 50 s left · 1 failed'
    >>> describe_pace(3, 0.05, 0, 2)
    '3/min · about 1 min left · 2 retries'
    """
    goes_on = ""
    if left and rate:
        seconds = max(1, round(left / rate))
        rest = f"{seconds} s" if seconds < 60 else duration(seconds)
        goes_on = f"{_format_rate(rate)} · about {rest} left"
    return join(goes_on, f"{failed:,} failed" if failed else "", count_retries(retries))


def _format_rate(rate: float) -> str:
    units = (("s", 1), ("min", 60), ("h", 3600))
    unit, seconds = next((each for each in units if rate * each[1] >= 1), units[-1])
    count = rate * seconds
    return f"{count:,.0f}/{unit}" if count >= 9.95 else f"{count:.1f}/{unit}".replace(".0/", "/")
