"""What each node of a running graph is doing, computed from the events of its tasks: states,
counts, times, in words.

Pure: the caller's clock stamps the events and provides the time; nothing is displayed, awaited or
locked here.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...pregel.names import NS_END, NS_SEP
from ..labels import TIMES
from ..model import GraphModel, GraphNode
from ..svg import Mark
from ..trace.values import count_noun, duration
from .tally import (
    BreakpointHit,
    Event,
    Superstep,
    Tally,
    TaskEnded,
    TaskRetried,
    TaskStarted,
    count_tasks,
    describe_done,
    describe_pace,
    join,
)

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
            self._retry(event, key)
        else:
            self._end(event, key, own)

    def end(self, at: float, state: RunState | None = None, error: str = "") -> None:
        """Record the end of the run.

        Args:
            state: how it ended; None if it returned, so that it has paused or is done.
            error: what it raised, as "Type: message".
        """
        paused = self.state == "paused" or bool(self.questions)
        paused = paused or any(
            t.paused and t.superstep == len(self.supersteps) for t in self._tallies.values()
        )
        self.state = state or ("paused" if paused else "done")
        self.error = error
        self._until = at
        if state == "stopped" and self.supersteps:
            halted = self.supersteps[-1].halted
            halted.update({name: STOPPED for name in halted if self._cut_off(self._tally(name))})

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

    def _retry(self, event: TaskRetried, key: str) -> None:
        self._tally(key).retries += 1
        step = self._step_of(event)
        if step is not None:
            step.retries += 1

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
        tally.retries += event.tries - 1
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
            holders = [NS_END.join(place[:depth]) for depth in range(1, len(place) + 1)]
            hidden = next(
                (n for n, holder in enumerate(holders) if not self._is_open(holder)), None
            )
            found = (
                (NS_END.join((*place, name)), True) if hidden is None else (holders[hidden], False)
            )
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
        shown = self._in_order()
        listed = {node.id for node in shown}
        called = [
            GraphNode(id, id.rpartition(NS_END)[2]) for id in self._tallies if id not in listed
        ]
        return [self._row(node, now) for node in (*shown, *called)]

    def headline(self, now: float) -> str:
        """Return the run as a whole, in one line."""
        count, step = len(self.supersteps), self._current
        if self.state == "done":
            parts = ["done", count_noun(count, "superstep"), count_noun(self.tasks, "task")]
        elif step is None:
            parts = [self.state]
        elif self.state == "running":
            parts = [f"superstep {count}", f"{step.done:,} of {count_noun(step.total, 'task')}"]
            inside = self.counted(step)
            if inside is not step:
                parts.append(f"{inside.done:,} of {inside.total:,} inside")
        else:
            parts = [f"{self.state} in superstep {count}", count_noun(self.tasks, "task")]
        if self.kept:
            parts.append(f"{self.kept:,} kept")
        if self.questions:
            parts.append(count_noun(len(self.questions), "question"))
        return " · ".join((*parts, duration(self.elapsed(now))))

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
        if tally is None:
            earlier = self._is_finished_earlier(id)
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

    def _is_finished_earlier(self, id: str) -> bool:
        """Return whether an earlier call has finished this node, or an enclosing one."""
        holders = id.split(NS_END)
        return any(
            NS_END.join(holders[:depth]) in self.earlier for depth in range(1, len(holders) + 1)
        )

    def _count_questions(self, id: str) -> str:
        inside = id + NS_END
        count = sum(by == id or by.startswith(inside) for by, _ in self.questions.values())
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

    def _in_order(self) -> list[GraphNode]:
        found: dict[str, GraphNode] = {}
        for node in self.model.node_records:
            for one in (*self._around(node), node):
                if one.kind in MARKED:
                    found.setdefault(one.id, one)
        return [*found.values()]

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

    def headline(self, now: float) -> str:
        """Return the run as a whole, in one line."""
        step = self._current
        if step is None or self.state == "done":
            parts = [self.state, count_noun(self.tasks, "task") if self.tasks else ""]
        else:
            known = f"{step.done:,} of {count_noun(step.total, 'task')}"
            parts = [known if self.state == "running" else join(self.state, known)]
            inside = self.counted(step)
            if inside is not step:
                parts.append(f"{inside.done:,} of {inside.total:,} inside")
        if self.kept:
            parts.append(f"{self.kept:,} kept")
        if self.questions:
            parts.append(count_noun(len(self.questions), "question"))
        return join(*parts, duration(self.elapsed(now)))

    def _is_next(self, step: Superstep, event: TaskStarted) -> bool:
        return False

    def _start(self, event: TaskStarted, tally: Tally | None) -> None:
        if tally is not None and not tally.open:  # the node runs again, in a loop
            tally.superstep = -1
        super()._start(event, tally)
