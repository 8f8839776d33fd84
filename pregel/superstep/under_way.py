"""The tasks of a run that have started and not ended (schedule="ready"): in a run, and as its
checkpoints hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from typing import Any, NotRequired, TypedDict

from ...channels.base import MISSING
from ...checkpoint.base import Checkpoint
from ..names import TASKS, is_under_way, under_way_name
from ..program.program import CompiledNode
from ..program.writes import list_sends
from .machine import handler_of
from .task import Task


class UnderWayRecord(TypedDict):
    """A task that is under way, as a checkpoint holds it.

    Keys:
        path: its place in the checkpoint at which it started.
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
    """The channel that holds one task under way; empty if there is none."""

    __slots__ = ("task",)

    def __init__(self, task: Task | None) -> None:
        self.task: Task | None = task

    def checkpoint(self) -> Any:
        """What is stored of the task."""
        task = self.task
        return MISSING if task is None else describe(task)


def describe(task: Task) -> UnderWayRecord:
    """A task that is under way, as it is stored."""
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
    """Slot → what a checkpoint holds there, oldest first."""
    values = checkpoint["channel_values"]
    names = [name for name in values if is_under_way(name)]
    # A slot is written when its task has started.
    versions = checkpoint["channel_versions"]
    return {name: values[name] for name in sorted(names, key=lambda n: (versions[n], len(n), n))}


def find_origin(checkpoint: Checkpoint, slot: str) -> str:
    """The id of the checkpoint at which the task in a slot has started."""
    (origin,) = checkpoint["versions_seen"][slot]
    return origin


class TasksUnderWay:
    """The tasks that are under way, by the number of their slots. Slots are used again, so that
    there are as many as were ever needed at once.

    Attributes:
        nodes: how many of them there are, by node.
    """

    __slots__ = ("_slots", "_tasks", "_vacant", "nodes")

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._slots: dict[Task, int] = {}
        self._vacant: list[int] = []
        self.nodes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        """The tasks in the order in which they started."""
        return iter(self._slots)

    def take_up(self, tasks: Mapping[int, Task]) -> None:
        """Take the tasks that are in a loaded checkpoint."""
        self._vacant = [each for each in range(max(tasks, default=-1) + 1) if each not in tasks]
        for number, task in tasks.items():
            self._enter(number, task)

    def enter(self, task: Task) -> int:
        """Give a task the lowest free slot; returns its number."""
        number = heappop(self._vacant) if self._vacant else len(self._tasks)
        self._enter(number, task)
        return number

    def _enter(self, number: int, task: Task) -> None:
        self._tasks[number] = task
        self._slots[task] = number
        self.nodes[task.name] += 1

    def leave(self, task: Task) -> int | None:
        """Free the slot of a task that has ended; returns its number, or None if it had none."""
        number = self._slots.pop(task, None)
        if number is None:
            return None
        del self._tasks[number]
        heappush(self._vacant, number)
        self.nodes[task.name] -= 1
        if not self.nodes[task.name]:
            del self.nodes[task.name]
        return number

    def is_pulled(self, node: str) -> bool:
        """Whether a task of a node is under way that a trigger has started."""
        return node in self.nodes and any(
            task.name == node and task.send is None for task in self._slots
        )

    def by_slot(self) -> Iterator[tuple[str, Task]]:
        """The tasks in the order in which they started, each with its channel."""
        return ((under_way_name(number), task) for task, number in self._slots.items())

    def copy(self) -> TasksUnderWay:
        """An independent copy."""
        other = TasksUnderWay()
        other._tasks, other._slots = dict(self._tasks), dict(self._slots)
        other._vacant, other.nodes = list(self._vacant), Counter(self.nodes)
        return other


class StartLog:
    """When tasks have started, and how many have led to each: for the recursion limit.

    A generation is one more than the highest among those that have led to a task.
    """

    __slots__ = ("_count", "_led", "_tasks")

    def __init__(self) -> None:
        self._count = 0
        self._tasks: dict[Task, tuple[int, int]] = {}
        self._led: dict[str | int, int] = {}

    def next_generation(self, node: CompiledNode, send: Any = None) -> int:
        """The generation of a task that would start now; that of START is 0."""
        marks: tuple[str | int, ...] = node.triggers if send is None else (id(send),)
        if node.hidden:
            return 0
        return 1 + max((self._led.get(mark, 0) for mark in marks), default=0)

    def enter(self, task: Task) -> None:
        """Note the start of a task."""
        generation = self.next_generation(task.node, task.send)
        self._tasks[task] = generation, self._count
        self._count += 1

    def forget(self, nodes: Iterable[CompiledNode], sends: Iterable[Any]) -> None:
        """Their tasks have started: what led to them counts no more."""
        for node in nodes:
            for trigger in node.triggers:
                self._led.pop(trigger, None)
        for send in sends:
            self._led.pop(id(send), None)

    def leave(self, task: Task, triggers: Container[str]) -> None:
        """Note the end of a task, and what it leads to."""
        generation, _ = self._tasks.pop(task.cause or task, (0, 0))
        for name, value in task.writes:
            if name == TASKS:
                for send in list_sends(value):
                    self._led[id(send)] = generation
            elif name in triggers:
                self._led[name] = max(generation, self._led.get(name, 0))

    def drop(self, task: Task) -> None:
        """Note that a task has lost its race, and leads nowhere."""
        self._tasks.pop(task, None)

    def order(self, task: Task) -> int:
        """A number by which tasks are sorted as they started."""
        return self._tasks.get(task.cause or task, (0, 0))[1]
