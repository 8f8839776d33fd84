"""The events of a run's tasks, and their sums for each node and superstep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from ..labels import TIMES
from ..trace.values import count_noun, duration
from .pace import Pace

NOTABLE = 0.05
"""How many seconds a node must have taken for its mark to show the time."""


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
        tries: its attempts other than those that `TaskRetried` has reported.
        kept: whether it was not run because its result was stored or cached.
    """

    at: float
    place: tuple[str, ...]
    name: str
    failure: str = ""
    paused: bool = False
    questions: tuple[tuple[str, str], ...] = ()
    tries: int = 1
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
        self.retries += event.tries - 1
        if not event.kept:
            self.pace.count(event.at)
        self.good += not (event.failure or event.paused)
        self.kept[event.name] += event.kept
        if event.failure or event.paused:
            self.halted[event.name] = "failed" if event.failure else "paused"


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
    retries = count_noun(tally.retries, "retry", "retries") if tally.retries else ""
    return join(ran, retries, kept)


def join(*parts: str) -> str:
    return " · ".join(filter(None, parts))
