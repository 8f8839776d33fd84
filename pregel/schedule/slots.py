"""The open tasks of a run, which have started and whose writes are not folded in: in memory, and as
checkpoints hold them.

Only schedule="ready" leaves tasks open when the state moves on. The checkpoint at which a task has
started is its origin. As long as it is the head, nothing is stored of the start, which follows from
it; every later checkpoint holds the task in a channel of its own, a slot, until it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from heapq import heappop, heappush
from typing import Any, NotRequired, TypedDict

from ...channels.base import MISSING
from ...checkpoint.base import Checkpoint
from ..names import TASKS, is_under_way, under_way_name
from ..program.program import CompiledNode
from ..program.writes import list_sends
from ..task.task import Task, handler_of


class UnderWayRecord(TypedDict):
    """An open task, as a checkpoint holds it in a slot.

    Keys:
        path: its place in its origin.
        id, node: its id, and the name of its node.
        handler: the id of the task of its error handler; None if it has none.
        send: the `Send` that it runs for, or None.
        joined: who opened the joins behind it; absent if it stands behind none.
    """

    path: tuple[Any, ...]
    id: str
    node: str
    handler: str | None
    send: Any
    joined: NotRequired[tuple[str, ...]]


class Slot:
    """The channel that holds one open task; empty if there is none."""

    __slots__ = ("task",)

    def __init__(self, task: Task | None) -> None:
        self.task: Task | None = task

    def checkpoint(self) -> Any:
        """What is stored of the task."""
        task = self.task
        return MISSING if task is None else describe(task)


def describe(task: Task) -> UnderWayRecord:
    """Describe an open task as it is stored."""
    record = UnderWayRecord(
        path=task.path,
        id=task.id,
        node=task.name,
        handler=None if task.node.handler is None else handler_of(task).id,
        send=task.send,
    )
    joined = task.run.machine.find_joined(task)
    if joined:
        record["joined"] = joined
    return record


def find_under_way(checkpoint: Checkpoint) -> dict[str, UnderWayRecord]:
    """Return slot → the open task that a checkpoint holds there, oldest first."""
    values = checkpoint["channel_values"]
    names = [name for name in values if is_under_way(name)]
    # A slot is written when its task has started.
    versions = checkpoint["channel_versions"]
    return {name: values[name] for name in sorted(names, key=lambda n: (versions[n], len(n), n))}


def find_origin(checkpoint: Checkpoint, slot: str) -> str:
    """Return the id of the checkpoint at which the task in a slot has started."""
    (origin,) = checkpoint["versions_seen"][slot]
    return origin


class OpenTasks:
    """The open tasks of a run. Slots are used again, so there are as many as were ever needed at
    once.

    Iterating yields those with a slot, in the order in which they started; `len` counts them.

    Attributes:
        nodes: how many of those with a slot there are, by node.
        starting: the tasks that have started in this state. Its end gives them slots.
        begun: the nodes, and the places of the `Send`s, whose tasks wait in this state and have
            started before → whether that was in an earlier state. They wait for no other task.
        waiting_sends: the `Send`s of this state that have not started, by their places; None until
            it is decided what starts.
        over_limit: tasks would have to start beyond the recursion limit.
        lost: the racers that have left with the last step, as another one had won.
        writers: key → the node that wrote it last; `COMMAND` if that was none.
    """

    __slots__ = (
        "_count", "_led", "_slots", "_starts", "_vacant", "begun", "lost", "nodes", "over_limit",
        "starting", "waiting_sends", "writers",
    )  # fmt: skip

    def __init__(self) -> None:
        self._slots: dict[Task, int] = {}
        self._vacant: list[int] = []
        # The tasks that have started, with or without a slot → generation, and a number that sorts
        # them. A generation is one more than the highest among those that have led to a task.
        self._starts: dict[Task, tuple[int, int]] = {}
        self._count = 0
        self._led: dict[str | int, int] = {}  # trigger, or id() of a Send → generation behind it
        self.nodes: Counter[str] = Counter()
        self.starting: list[Task] = []
        self.begun: Mapping[str | int, bool] = {}
        self.waiting_sends: dict[int, Any] | None = None
        self.over_limit: bool = False
        self.lost: Sequence[Task] = ()
        self.writers: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._slots)

    def copy(self) -> OpenTasks:
        """Return a copy whose slots change on their own; it is looked at, and starts nothing."""
        other = copy(self)
        other._slots, other._vacant = dict(self._slots), list(self._vacant)
        other.nodes, other.starting = Counter(self.nodes), list(self.starting)
        return other

    def load(self, tasks: Mapping[int, Task]) -> dict[str, Slot]:
        """Go on with the tasks of a checkpoint, by the numbers of their slots; returns these, by
        their channels."""
        self._vacant = [each for each in range(max(tasks, default=-1) + 1) if each not in tasks]
        for number, task in tasks.items():
            self._enter(task, number)
            self._note_start(task)
        return {under_way_name(number): Slot(task) for number, task in tasks.items()}

    def _enter(self, task: Task, number: int) -> None:
        self._slots[task] = number
        self.nodes[task.name] += 1

    def _leave(self, task: Task) -> int | None:
        """Free the slot of a task that has ended; returns its number, or None if it had none."""
        number = self._slots.pop(task, None)
        if number is not None:
            heappush(self._vacant, number)
            self.nodes[task.name] -= 1
            if not self.nodes[task.name]:
                del self.nodes[task.name]
        return number

    def is_pulled(self, node: str) -> bool:
        """Return whether a task of a node has a slot that a trigger has started."""
        return node in self.nodes and any(
            task.name == node and task.send is None for task in self._slots
        )

    # -- the recursion limit, and the order of starts ----------------------------------------------

    def next_generation(self, node: CompiledNode, send: Any = None) -> int:
        """Return the generation of a task that would start now; that of START is 0."""
        marks: tuple[str | int, ...] = node.triggers if send is None else (id(send),)
        if node.hidden:
            return 0
        return 1 + max((self._led.get(mark, 0) for mark in marks), default=0)

    def exceeds(
        self,
        limit: int,
        nodes: Mapping[str, CompiledNode],
        names: Collection[str],
        sends: Collection[Any],
    ) -> bool:
        """Return whether tasks that would start now are beyond this generation: `over_limit`.

        Args:
            nodes: those of the program.
            names, sends: the nodes, and the `Send`s, whose tasks would start.
        """
        found = [self.next_generation(nodes[name]) for name in names]
        found += [self.next_generation(nodes[send.node], send) for send in sends]
        self.over_limit = max(found, default=0) > limit
        return self.over_limit

    def start(self, tasks: list[Task]) -> None:
        """Note that these tasks have started in this state: what led to them is used up."""
        for task in tasks:
            self._note_start(task)
        for task in tasks:
            for mark in task.node.triggers if task.send is None else (id(task.send),):
                self._led.pop(mark, None)
        self.starting = tasks

    def _note_start(self, task: Task) -> None:
        self._starts[task] = self.next_generation(task.node, task.send), self._count
        self._count += 1

    def order(self, task: Task) -> int:
        """Return a number that sorts tasks, and the handlers of errors, as they started."""
        return self._starts.get(task.cause or task, (0, 0))[1]

    # -- the end of a step -------------------------------------------------------------------------

    def stay_without(self, ended: Collection[Task]) -> bool:
        """Return whether tasks stay open when these have ended."""
        return len(self._slots) + len(self.starting) > len(ended)

    def end(
        self, tasks: Sequence[Task], lost: Sequence[Task], triggers: Collection[str]
    ) -> dict[str, Slot]:
        """Note that a step ends. Tasks that stay open and have started in this state get slots.

        Args:
            tasks: end with it.
            lost: leave with it: they have lost their races.
            triggers: the channels that make nodes run.

        Returns:
            The slots that change, by their channels.
        """
        slots: dict[int, Task | None] = {}
        gone = {task.cause or task for task in (*tasks, *lost)}
        for task in gone:
            number = self._leave(task)
            if number is not None:
                slots[number] = None
        for task in self.starting:
            if task not in gone:
                number = heappop(self._vacant) if self._vacant else len(self._slots)
                self._enter(task, number)
                slots[number] = task
        for task in lost:
            task.lose()
            self._starts.pop(task, None)
        for task in tasks:
            generation, _ = self._starts.pop(task.cause or task, (0, 0))
            self._lead_on(task, generation, triggers)
        self.starting, self.waiting_sends, self.begun, self.lost = [], None, {}, lost
        return {under_way_name(number): Slot(task) for number, task in slots.items()}

    def _lead_on(self, task: Task, generation: int, triggers: Collection[str]) -> None:
        """Note what the end of a task leads to, and what it has written."""
        for name, value in task.writes:
            if name == TASKS:
                for send in list_sends(value):
                    self._led[id(send)] = generation
            elif name in triggers:
                self._led[name] = max(generation, self._led.get(name, 0))
            if not task.node.hidden:
                self.writers[name] = task.name

    def clear(self) -> dict[str, UnderWayRecord]:
        """Empty all slots; returns slot → the task in it as it is stored, in the order of the
        starts."""
        known = {under_way_name(number): describe(task) for task, number in self._slots.items()}
        self._slots, self._vacant, self.nodes, self.starting = {}, [], Counter(), []
        self.begun = {each["node"]: True for each in known.values() if each["send"] is None}
        return known
