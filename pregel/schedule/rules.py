"""Which of the tasks that are due start in a state, with schedule="ready": those whose own inputs
are there.

In supersteps all of them start, and nothing of this is used. Here a node that is due waits as long
as an open task, or another node that is due, leads to it; what triggers it stays in its channel.
What starts follows from the checkpoint alone, so nothing is stored of a start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...channels.aggregate import is_overwrite
from ..errors import ConcurrentUpdateError
from ..names import TASKS, numbered_ns
from ..program.flow import find_free
from ..task.task import Task
from .joins import flow_of
from .races import race_of_send
from .state import LiveState

if TYPE_CHECKING:
    from .slots import OpenTasks

MayStart = Callable[[str, int, bool, bool], bool]
"""Whether a node may start: its name, the version of what starts it, whether that is a Send, and
whether it has started before."""


def never(*_: object) -> bool:
    """A `MayStart` by which nothing starts."""
    return False


def always(*_: object) -> bool:
    """A `MayStart` by which all starts that other work does not hold back."""
    return True


class Choice(NamedTuple):
    """What starts in a state, and what waits there.

    Attributes:
        nodes: the nodes that start, in name order.
        sends: the Sends that start, by their places.
        held: the nodes that are due and wait.
        waiting_sends: the Sends that wait, by their places.
    """

    nodes: list[str]
    sends: dict[int, Any]
    held: set[str]
    waiting_sends: dict[int, Any]


def choose(machine: LiveState, may_start: MayStart) -> Choice:
    """Decide what starts in this state; changes nothing."""
    # What is due?
    program, versions, open_ = machine.program, machine.versions, open_of(machine)
    due, begun = machine.find_due(), open_.begun
    # Most states hold no Send: then nothing is called.
    pending = machine.pending_sends() if TASKS in machine.expiring else []
    # What may start, and has its memory? A task that has started before comes first: it may have
    # paused in the middle of work that its memory holds.
    free = [
        name
        for name in due
        if may_start(
            name,
            max(versions.get(each, 0) for each in program.nodes[name].triggers),
            False,
            name in begun,
        )
    ]
    sent = {each.node for each in pending}
    may_be_sent = {
        (node, again): may_start(node, versions[TASKS], True, again)
        for node in sent
        for again in (False, True)
    }
    memories = Memories(program.nested, open_)
    resumed = {name for name in free if name in begun}
    for name in resumed:
        memories.take((name, None))
    sends = _choose_sends(pending, may_be_sent, memories, begun)
    free = [
        name
        for name in free
        # One that had started in an earlier state counts as running.
        if not begun.get(name, False) and (name in resumed or memories.take((name, None)))
    ]
    # Which nodes are blocked?
    chosen = sorted(resumed.union(_find_free(machine, free, due, pending)))
    return Choice(
        nodes=chosen,
        sends=sends,
        held=set(due).difference(chosen),
        waiting_sends={i: each for i, each in enumerate(pending) if i not in sends},
    )


def _choose_sends(
    pending: Sequence[Any],
    may_start: Mapping[tuple[str, bool], bool],
    memories: Memories,
    begun: Mapping[str | int, bool],
) -> dict[int, Any]:
    """Return the `Send`s that start, by their places. Racers start together: where one has to wait,
    all do.

    Args:
        may_start: whether a node may, and whether if it has started before.
        memories: those that are taken, to which those of these are added.
        begun: what has started before. It goes first, and waits for no memory: what is recorded of
            it counts in this state only.
    """
    groups: dict[Any, list[int]] = {}
    for place, send in enumerate(pending):
        groups.setdefault(race_of_send(send) or place, []).append(place)
    chosen: set[int] = set()
    for places in sorted(groups.values(), key=lambda places: begun.keys().isdisjoint(places)):
        sends = [pending[place] for place in places]
        again = not begun.keys().isdisjoint(places)
        if all(may_start[send.node, again] for send in sends):
            free = memories.take(*((send.node, send) for send in sends))
            if free or again:
                chosen.update(places)
    return {place: send for place, send in enumerate(pending) if place in chosen}


def _find_free(
    machine: LiveState, names: Sequence[str], due: Sequence[str], sends: Sequence[Any]
) -> list[str]:
    """Return the nodes among these that nothing holds back: not what is open, nor what is due."""
    if not names:
        return []
    open_ = open_of(machine)
    # At a breakpoint, or without their memory: what comes behind them waits, too.
    stopped = set(due).difference(names)
    running = {*open_.nodes, *(send.node for send in sends), *stopped}
    # A node that runs is started again only when it has ended.
    waiting = [name for name in names if not open_.is_pulled(name)]
    return find_free(waiting, running, flow_of(machine).find_holders_in(machine.channels))


def could_start(machine: LiveState, may_start: MayStart) -> bool:
    """Return whether something starts if it may."""
    choice = choose(machine, may_start)
    return bool(choice.nodes or choice.sends)


def open_of(machine: LiveState) -> OpenTasks:
    """Return the open tasks of a machine with schedule="ready"."""
    assert machine.open is not None
    return machine.open


# -- whether what has ended can be folded in -------------------------------------------------------


def find_conflict(
    machine: LiveState, task: Task, earlier: Mapping[str, str]
) -> ConcurrentUpdateError | None:
    """Return why what a task wrote cannot be applied beside what others wrote; None if it can.

    Args:
        task: has ended.
        earlier: key → the node that wrote it, of those that are applied before it in the same step.
    """
    started_at = task.run.machine.tick
    for name, value in task.writes:
        if name == TASKS:
            continue
        plain = machine.channels[name].exclusive
        guarded = plain or is_overwrite(value)
        if guarded and (name in earlier or machine.versions.get(name, 0) > started_at):
            by = earlier.get(name) or open_of(machine).writers.get(name, "")
            return ConcurrentUpdateError(name, task.name, by, overwrites=not plain)
    return None


def refuses_again(machine: LiveState, task: Task, error: ConcurrentUpdateError) -> bool:
    """Return whether what this task wrote was refused (and not what one in a graph inside it did),
    and it has not started anew since."""
    changed = machine.versions.get(error.key, 0) > task.run.machine.tick
    return changed and error.task == task.name and error.key in machine.channels


# -- memories --------------------------------------------------------------------------------------

Memory = tuple[str, str | None]
"""A node, and the key for which its graph keeps a history."""

Sharing = Literal["key", "node", None]
"""Whether tasks of a node share a memory: those with the same key, all, or none."""


class Memories:
    """The memories of nested graphs (`checkpointer=True`) in use by open tasks, and by tasks that
    start now. Tasks that share one take turns: each would take the other's steps for its own.

    Args:
        nested: `Program.nested`.
        open_tasks: the tasks that are open.
    """

    __slots__ = ("_nested", "_open_tasks", "_sharing", "_taken")

    def __init__(self, nested: Mapping[str, Any], open_tasks: Iterable[Task]) -> None:
        self._nested = nested
        self._open_tasks = open_tasks
        self._sharing: dict[str, Sharing] = {}
        self._taken: set[Memory] | None = None  # not looked for yet

    def take(self, *starts: tuple[str, Any]) -> bool:
        """Take the memories of tasks that would start together, given by their nodes and `Send`s.
        If one of them is in use, none is taken: otherwise a group could hold one memory while it
        waits for another.

        Returns:
            Whether these may start. Two of them may share a memory: such racers are refused when
            they run.
        """
        if not self._nested:
            return True
        mine = set(self._find(starts))
        if not mine:
            return True
        if self._taken is None:
            self._taken = set(self._find((task.name, task.send) for task in self._open_tasks))
        if not self._taken.isdisjoint(mine):
            return False
        self._taken |= mine
        return True

    def _find(self, starts: Iterable[tuple[str, Any]]) -> Iterator[Memory]:
        for node, send in starts:
            if node not in self._sharing:
                self._sharing[node] = _find_sharing(self._nested, node)
            sharing = self._sharing[node]
            if sharing is not None:
                yield node, send.key if sharing == "key" and send is not None else None


def _find_sharing(nested: Mapping[str, Any], node: str) -> Sharing:
    found: Sharing = None
    number = 0
    while (graph := nested.get(numbered_ns(node, number))) is not None:
        if graph.checkpointer is True:
            found = "key"
        elif _has_memory_inside(graph, set()):
            return "node"
        number += 1
    return found


def _has_memory_inside(graph: Any, known: set[int]) -> bool:
    """Whether a graph inside one keeps a memory, which then is the same in each task.

    Args:
        known: the ids of the graphs that have been looked at, as one may run itself.
    """
    if graph.checkpointer is False or id(graph) in known:
        return False
    known.add(id(graph))
    inside = list(graph.program.nested.values())  # at once: tasks add to it
    return any(each.checkpointer is True or _has_memory_inside(each, known) for each in inside)
