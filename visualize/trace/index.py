"""An index of a thread's checkpoints: which one follows which, and which steps form the line to
each. Read once, then only what is new, so that a page of a long thread costs no more than one of a
short thread.

Holds no states: those are read step by step, see `trace_reader`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from ...checkpoint.base import BaseCheckpointSaver, address
from ...pregel.app import Pregel
from ...pregel.names import START
from ...pregel.types import StateSnapshot
from .transitions import id_of
from .values import display_name


class NotThereError(LookupError):
    """A thread has no such checkpoint, step, task or key."""


class Point(NamedTuple):
    """A checkpoint.

    Attributes:
        parent: the id of its parent; empty if there is none.
        number, source: those of the step that made it, according to its metadata.
        next: the display names of the nodes to run next.
        starts: whether the only thing to run next is taking an input.
        began: whether any of the next tasks has been started.
    """

    parent: str
    number: int
    source: str
    next: tuple[str, ...]
    starts: bool
    began: bool


class Line(NamedTuple):
    """The checkpoints that lead to one.

    Attributes:
        checkpoints: the oldest first.
        rows: the steps, by the checkpoints that they made: an input's own checkpoint, which only
            starts the graph, is merged with the step that takes it.
        left: the checkpoints from which another run continued off the line.
        forks: how many branches leave each checkpoint of the line.
        runs: the places in `rows` at which a run begins with an input.
    """

    checkpoints: list[str]
    rows: list[str]
    left: set[str]
    forks: Counter[str]
    runs: list[int]


class ThreadIndex:
    """The checkpoints of one namespace of a thread.

    Attributes:
        points: the checkpoints by id, the oldest first.
        is_whole: whether all of them are known; if not, only the newest are.
        revision: the revision of the newest, which changes whenever something is recorded beside
            it; None from checkpointers that do not count.
    """

    def __init__(self, thread_id: str, ns: str = "") -> None:
        self.thread_id = thread_id
        self.ns = ns
        self.is_whole: bool = False
        self.revision: int | None = None
        self._know({})

    def _know(self, points: dict[str, Point]) -> None:
        self.points = points
        self._order = [*points]
        self._places = {id: place for place, id in enumerate(points)}
        self._followers = Counter(point.parent for point in points.values())
        self._lines: dict[str, Line] = {}

    @property
    def head(self) -> str:
        """The id of the newest checkpoint; empty if there is none."""
        return self._order[-1] if self._order else ""

    def refresh(self, app: Pregel, newest: int | None = None) -> None:
        """Read what was stored since the last time. Checkpoints that were deleted or taken back
        meanwhile are dropped.

        Args:
            newest: read at most this many, for a first look at a long thread. Only before all are
                known.
        """
        if not self.is_whole or (self._order and not self._is_stored(app, self._order[0])):
            self._know({})
        newest_id = self._read_newest(app)
        if self.is_whole and self._order and newest_id == self.head:
            return
        history = app.get_state_history(address(self.thread_id, self.ns), limit=newest)
        fresh: list[StateSnapshot] = []
        known = 0
        for snapshot in history:
            id = id_of(snapshot.config)
            # The next tasks of the newest one may have begun since.
            if id in self._places and id != self.head:
                known = self._places[id] + 1
                break
            fresh.append(snapshot._replace(values=None))
        points = {id: self.points[id] for id in self._order[:known]}
        points |= {id_of(snapshot.config): _read_point(snapshot) for snapshot in reversed(fresh)}
        self.is_whole = self.is_whole or newest is None or len(fresh) < newest
        if points != self.points:
            self._know(points)

    def _read_newest(self, app: Pregel) -> str:
        """Return the id of the newest checkpoint, without planning what it does next."""
        saver = app.checkpointer
        if isinstance(saver, BaseCheckpointSaver):
            for found in saver.list(address(self.thread_id, self.ns), limit=1):
                self.revision = found.revision
                return id_of(found.config)
        return ""

    def _is_stored(self, app: Pregel, id: str) -> bool:
        saver = app.checkpointer
        where = address(self.thread_id, self.ns, id)
        return isinstance(saver, BaseCheckpointSaver) and saver.get_tuple(where) is not None

    def newer(self, id: str) -> str | None:
        """Return the checkpoint that was stored next after one, on any branch."""
        place = self._places[id] + 1
        return self._order[place] if place < len(self._order) else None

    def line(self, tip: str) -> Line:
        """Return the line to a checkpoint; empty if there is no such checkpoint."""
        if tip not in self._lines:
            self._lines[tip] = self._read_line(tip)
        return self._lines[tip]

    def _read_line(self, tip: str) -> Line:
        checkpoints: list[str] = []
        while tip in self.points:
            checkpoints.append(tip)
            tip = self.points[tip].parent
        checkpoints.reverse()
        rows: list[str] = []
        runs: list[int] = []
        for at, id in enumerate(checkpoints):
            if self.points[id].source == "input":  # maybe merged with the step that takes it
                runs.append(len(rows))
            if self._is_step(checkpoints, at):
                rows.append(id)
        left: set[str] = set()
        forks: Counter[str] = Counter()
        if len(checkpoints) < len(self.points):
            line = {*checkpoints}
            beside = [point for id, point in self.points.items() if id not in line]
            left = {point.parent for point in beside if point.source == "loop"}
            forks = Counter(point.parent for point in beside if point.parent in line)
        return Line(checkpoints, rows, left, forks, runs)

    def _is_step(self, line: list[str], place: int) -> bool:
        if place + 1 == len(line):
            return True
        point, after = self.points[line[place]], self.points[line[place + 1]]
        is_taken = point.source == "input" and point.starts and after.source == "loop"
        if not is_taken:
            return True
        before = self.points.get(point.parent)
        return before is not None and before.began

    def is_tip(self, id: str) -> bool:
        """Return whether nothing follows a checkpoint."""
        return id in self.points and not self._followers[id]

    def tips(self) -> list[str]:
        """Return the newest checkpoint of each branch, the oldest branch first."""
        return [id for id in self._order if not self._followers[id]]

    def count_own(self, tip: str) -> int:
        """Return how many checkpoints lead to one since the last fork."""
        own = 0
        while tip in self.points:
            own += 1
            tip = self.points[tip].parent
            if self._followers[tip] > 1:
                break
        return own


def shared(one: list[str], other: list[str]) -> int:
    """Return how many checkpoints two lines have in common."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _read_point(snapshot: StateSnapshot) -> Point:
    metadata = snapshot.metadata or {}
    names = [task.name for task in snapshot.tasks]
    return Point(
        id_of(snapshot.parent_config),
        int(metadata.get("step", -1)),
        metadata.get("source", "loop"),
        tuple(dict.fromkeys(display_name(name) for name in names)),
        names == [START],
        any(task.spans for task in snapshot.tasks),
    )


def list_chains(index: ThreadIndex, after: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield consecutive checkpoints, from where a branch begins to where others leave it."""
    for id, point in index.points.items():
        if len(after.get(point.parent, ())) != 1:
            chain = [id]
            while len(after.get(chain[-1], ())) == 1:
                chain += after[chain[-1]]
            yield chain
