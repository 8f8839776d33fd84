"""Where nested graphs go on when a checkpoint around them, or inside them, is done anew: plain
records.

Theory of operation: there are two cases. Whoever names a checkpoint *inside* a nested graph gives a
route: the runs from the outermost down to that graph each take the first stage and hand on the
rest, and each goes on from the checkpoint that it had then. Whoever names a checkpoint *around* a
nested graph gives a rewind: a nested graph with a history of its own, which would go on from its
newest checkpoint, goes back to the newest that it had then. What the effects load for either is in
`nested`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from ...checkpoint.base import BaseCheckpointSaver
from ..names import enclosing_names, without_ids
from ..task.task import Task, outwards
from ..types import RunnableConfig
from .settings import Thread

_claiming = Lock()

ReplayPoint = tuple[RunnableConfig, BaseCheckpointSaver]
"""A checkpoint, and the checkpointer that keeps it."""


@dataclass(slots=True, eq=False)
class ReplayRoute:
    """How a run leads to a checkpoint inside a nested graph.

    Attributes:
        stages: the graphs below this run down to that checkpoint: namespace and checkpoint of each.
            Empty in the run that has started from it.
        task: the path of the task of this run in which it lies; None if that is not known, as in a
            `@task` call.
        asked: the questions beside that checkpoint, answered ones too.
        waits: the run waits for some of them now.
        step: the superstep of that task.
        stored: it was found with the fork that another call has made, so graphs inside may have
            gone on since.
    """

    stages: Sequence[tuple[str, str]]
    task: str | None = None
    asked: tuple[str, ...] = ()
    waits: bool = False
    step: int = -1
    stored: bool = False


class Rewind:
    """Where graphs with a history of their own start when checkpoints around them are done anew.

    Attributes:
        points: namespace without ids → the checkpoint of that graph which is done anew, and the
            checkpointer that keeps it: what is inside goes back to its newest checkpoint before
            that.
        anew: the ids of the tasks that were pending in these checkpoints: what graphs inside have
            stored for them is void. That may have been before, such as of a task that was
            under way, or with durability "exit".
        entered: the histories that have gone back since; they go on.
    """

    def __init__(self) -> None:
        self.points: dict[str, ReplayPoint] = {}
        self.anew: set[str] = set()
        self.entered: set[str] = set()

    def find_point(self, ns: str, saver: Any) -> ReplayPoint | None:
        """Before which checkpoint the graph of a namespace goes back: that of the nearest graph
        around it.

        Args:
            saver: its own. If that graph has another one, the whole graph's checkpoint tells.
        """
        around = without_ids(ns)
        while around:
            around = enclosing_names(around)
            found = self.points.get(around)
            if found is not None:
                return found if found[1] is saver else self.points.get("", found)
        return None

    def enter(self, ns: str) -> None:
        """Note that the graph of this namespace has gone back."""
        self.entered.add(ns)


class Replay:
    """How a run replays what was done before.

    Attributes:
        route: how it leads to a nested checkpoint from which the graph inside is to go on, or None.
        rewind: where graphs with a history of their own go back to, or None; shared with nested
            runs.
        seeded: it goes on from a checkpoint that was made under another checkpoint of the run
            around it.
    """

    __slots__ = ("_histories", "_resumed", "rewind", "route", "seeded")

    def __init__(self, around: Replay | None, thread: Thread) -> None:
        self.rewind: Rewind | None = around.rewind if around is not None else None
        self.route: ReplayRoute | None = (
            ReplayRoute([thread.nested]) if thread.nested is not None else None
        )
        self.seeded: bool = False
        self._histories: dict[str, tuple[list[tuple[str, str]], Task]] | None = None
        self._resumed: dict[str, Task] = {}

    def begin_rewind(self) -> Rewind:
        """Let graphs with a history of their own go back from here on."""
        if self.rewind is None:
            self.rewind = Rewind()
        return self.rewind

    def rewind_to(self, place: str, point: ReplayPoint) -> None:
        """Let the graph at this place, and those inside it, go back to this checkpoint."""
        self.begin_rewind().points[place] = point

    def begin_anew(self, tasks: Iterable[Task]) -> None:
        """Note the tasks that are done anew."""
        if self.rewind is not None:
            self.rewind.anew.update(task.id for task in tasks)

    def seed(self, seeded: bool) -> None:
        """Start from a checkpoint that lies on the route; see `seeded`."""
        self.seeded = seeded

    def enter(self, step: int) -> None:
        """Note the superstep whose task leads further."""
        if self.route is not None:
            self.route.step = step

    def follow(self, route: ReplayRoute | None) -> None:
        """Follow this route from here on; None for no route."""
        self.route = route

    def note_resumed(self, task: Task) -> None:
        """Note a task that an earlier call has left open. Kept by the whole graph's run."""
        self._resumed[task.id] = task

    def claim_history(self, ns: str, task: Task) -> bool:
        """Note that a task runs the graph that keeps a history of its own there
        (`checkpointer=True`). Kept by the whole graph's run for all that run inside it.

        Returns:
            Whether another open task, or one inside such a task, has run it as well: each would
            take the other's steps for its own.
        """
        mine = _trace_from_top(task)
        # Tasks of one superstep run on several threads, and each may be the first here.
        with _claiming:
            if self._histories is None:
                self._histories = {}
            last, before = self._histories.get(ns, (mine, task))
            self._histories[ns] = mine, task
        # The first level at which the two part: above it both run inside the same tasks.
        apart = next((pair for pair in zip(last, mine, strict=False) if pair[0] != pair[1]), None)
        # Tasks of one superstep have its checkpoint in common, also where one has ended before the
        # other has begun; with schedule="ready" those that overlap may have started at several.
        return apart is not None and (apart[0][0] == apart[1][0] or _is_open(before))

    def find_resumed(self, task: Task) -> set[str]:
        """Return the ids of the open tasks that an earlier call has left, without this one and
        those around it. A history whose newest checkpoint is theirs takes no other turn: on top of
        that they could not find their questions."""
        if not self._resumed:
            return set()
        others = {id for id, each in self._resumed.copy().items() if _is_open(each)}
        return others.difference(list_lineage(task))


def _is_open(task: Task) -> bool:
    """Return whether a task, and each task around it, can still finish, and its run waits for
    that."""
    return not task.is_cut_short() and not any(
        each.finished or each.lost or each.error is not None or each.abandoned
        for each in outwards(task)
    )


def _trace_from_top(task: Task) -> list[tuple[str, str]]:
    """The tasks around a task and itself, the outermost first: from which checkpoint each runs, and
    its id."""
    found: list[tuple[str, str]] = []
    for each in outwards(task):
        task_id = each.id  # first: it makes sure that the checkpoint has an id
        found.append((each.run.machine.checkpoint_id, task_id))
    return found[::-1]


def list_lineage(task: Task) -> list[str]:
    """The ids of a task and of those around it, the outermost first."""
    around = task.run.parent
    failed = () if task.cause is None else (task.cause.id,)
    above = () if around is None else list_lineage(around)
    return [*above, *task.callers, *failed, task.id]
