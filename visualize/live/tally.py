"""The events of a run's tasks, their sums for each node and superstep, and how fast tasks end."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from ..labels import TIMES
from ..trace.values import count_noun, duration

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
    parts = []
    if left and rate:
        seconds = max(1, round(left / rate))
        rest = f"{seconds} s" if seconds < 60 else duration(seconds)
        parts += [_format_rate(rate), f"about {rest} left"]
    if failed:
        parts.append(f"{failed:,} failed")
    if retries:
        parts.append(count_noun(retries, "retry", "retries"))
    return " · ".join(parts)


def _format_rate(rate: float) -> str:
    units = (("s", 1), ("min", 60), ("h", 3600))
    unit, seconds = next((each for each in units if rate * each[1] >= 1), units[-1])
    count = rate * seconds
    return f"{count:,.0f}/{unit}" if count >= 9.95 else f"{count:.1f}/{unit}".replace(".0/", "/")
