"""What a graph would do next with a stored thread: loaded and planned by the engine itself, and
taken down as plain data. Nothing runs, and nothing is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..checkpoint.base import (
    NO_WRITES,
    NULL_TASK_ID,
    POST_TASK_ID,
    RETURN,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
    coordinates,
)
from ..pregel.app import Pregel
from ..pregel.drivers import threads
from ..pregel.drivers.undoing import find_undo, program_with_undo
from ..pregel.errors import InvalidUpdateError, ThreadUndoingError
from ..pregel.names import GRAPH, UNDO, child_ns, memory_below
from ..pregel.program.version import changes
from ..pregel.run.effects import Effects, Load
from ..pregel.run.inbox import decode_post
from ..pregel.run.ledger import TaskRecord
from ..pregel.run.load import load_machine, lost_kinds, lost_work
from ..pregel.run.nested import load_under_way
from ..pregel.run.run import Run
from ..pregel.run.snapshots import snapshot_of
from ..pregel.schedule.machine import Machine
from ..pregel.types import PregelTask, StateSnapshot

Standing = Literal["due", "paused", "asleep", "failed", "finished"]


@dataclass(frozen=True, slots=True)
class TaskOutlook:
    """A pending task.

    Attributes:
        questions: the ids of its questions that wait for an answer.
        inside: the graph that it runs, if that has stored anything.
    """

    id: str
    name: str
    standing: Standing
    questions: tuple[str, ...] = ()
    inside: LevelOutlook | None = None


@dataclass(frozen=True, slots=True)
class LevelOutlook:
    """One graph of a thread: the outermost, one that a task runs, or one with a memory of its own.

    Attributes:
        ns: its namespace.
        graph: the names of the nodes that lead to it from the outermost graph.
        head: the id of its newest checkpoint.
        tasks: the pending tasks, those that have finished included.
        next: what the next call runs.
        waiting: the channels of joins at which a node has arrived, and the deferred nodes that wait
            until nothing else can run.
        keys: the keys of the state that hold a value.
        faults: why the graph cannot continue, each as a sentence.
        lost: what the thread loses, each as a sentence: records that belong to no task of this
            graph, posts that it cannot take.
        unasked: whether a question is among it.
        changed: what differs from the graph that has stored it, if `migrate` has converted it.
    """

    ns: str = ""
    graph: tuple[str, ...] = ()
    head: str = ""
    tasks: tuple[TaskOutlook, ...] = ()
    next: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unasked: bool = False
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """A thread as a graph would continue it.

    Attributes:
        made_by: the nodes and keys of the graph that has stored the newest checkpoint, as
            `node NAME` and `key NAME`; empty if that is not known.
        levels: the outermost graph first, then the memories of nested graphs that no pending task
            uses.
        posts: how many posts wait.
        unknown: the pending nodes whose nested graph is not known, so that it was not looked at.
    """

    thread_id: str
    made_by: tuple[str, ...]
    levels: tuple[LevelOutlook, ...]
    posts: int = 0
    unknown: tuple[str, ...] = ()


def look(app: Pregel[Any, Any, Any, Any], thread_id: str) -> Outlook | None:
    """Return what the graph would do next with a thread; None if it has no checkpoint.

    Args:
        app: a graph with a checkpointer.
    """
    return _Look(app, thread_id).outlook()


class _Look:
    """One look at one thread."""

    def __init__(self, app: Pregel[Any, Any, Any, Any], thread_id: str) -> None:
        assert isinstance(app.checkpointer, BaseCheckpointSaver)
        self._app, self._thread_id = app, thread_id
        self._saver: BaseCheckpointSaver = app.checkpointer
        self._made_by: tuple[str, ...] = ()
        self._unknown: list[str] = []
        self._seen: set[str] = {""}
        self._namespaces: Collection[str] | None = None

    def outlook(self) -> Outlook | None:
        """Look at the whole graph, and at the memories that are idle."""
        top = self._level("", ())
        if top is None:
            return None
        posts, lost = self._posts()
        memories = [*self._memories(lost)]
        if lost:
            top = replace(top, lost=tuple(dict.fromkeys((*top.lost, *lost))))
        levels = [top, *memories]
        unknown = tuple(dict.fromkeys(self._unknown))
        return Outlook(self._thread_id, self._made_by, tuple(levels), posts, unknown)

    def _level(self, ns: str, graph: tuple[str, ...]) -> LevelOutlook | None:
        where = address(self._thread_id, ns)
        run, load = self._app._editing(where), Load()
        beside: set[str] = set()
        error: Exception | None = None
        try:
            threads.drive(run, _load(run, load, beside))
        except ThreadUndoingError:
            self._app = self._app.copy({"program": program_with_undo(self._app.program)})
            return self._level(ns, graph)
        except Exception as raised:  # of the schema, `migrate` or the serializer
            error = raised
        stored = load.found
        if error is None and stored is None:
            return None
        if stored is not None and not ns:
            self._made_by = tuple(stored.checkpoint["versions_seen"].get(GRAPH, ()))
        if error is not None or stored is None:
            head = "" if stored is None else stored.checkpoint["id"]
            return LevelOutlook(ns, graph, head, faults=(_describe(error),))
        return self._describe_level(run, stored, graph, beside)

    def _describe_level(
        self, run: Run, stored: CheckpointTuple, graph: tuple[str, ...], beside: Collection[str]
    ) -> LevelOutlook:
        found, machine, records = run.position.found, run.machine, run.ledger
        assert found is not None
        faults = [f"{what} is gone" for what in lost_work(machine, found, records)]
        faults += [f"{what} has changed its kind" for what in lost_kinds(machine, found, records)]
        try:
            for task in machine.copy().plan(run):
                for entry in task.send.arg["effects"] if task.name == UNDO else ():
                    find_undo(entry)
        except InvalidUpdateError:  # a Send to a node that is gone: `lost_work` names it
            pass
        except Exception as error:
            faults.append(_describe(error))
        snapshot = snapshot_of(run.program, found, live=True)
        lost = [*_find_orphans(snapshot, records, beside)]
        changed: tuple[str, ...] = ()
        if found.checkpoint is not stored.checkpoint:
            before = stored.checkpoint["versions_seen"].get(GRAPH, {})
            changed = tuple(sorted(changes(before, run.program.fingerprint)))
        return LevelOutlook(
            ns=run.ns,
            graph=graph,
            head=stored.checkpoint["id"],
            tasks=tuple(
                self._task(task, records.get(task.id), run.ns, graph)
                for task in snapshot.tasks
                if not task.lost
            ),
            next=snapshot.next,
            waiting=tuple(dict.fromkeys(_find_waiting(machine))),
            keys=tuple(name for name in stored.checkpoint["channel_values"] if ":" not in name),
            faults=tuple(dict.fromkeys(faults)),
            lost=tuple(dict.fromkeys(lost)),
            unasked=QUESTION in lost,
            changed=changed,
        )

    def _task(
        self, task: PregelTask, known: TaskRecord | None, ns: str, graph: tuple[str, ...]
    ) -> TaskOutlook:
        known = known or TaskRecord()
        standing: Standing = "due"
        if known.finished:
            standing = "finished"
        elif known.waiting:
            standing = "paused"
        elif known.wake_at is not None:
            standing = "asleep"
        elif known.error is not None:
            standing = "failed"
        inside = None
        if standing != "finished":
            if task.state is not None:
                below = coordinates(task.state)[1]
                self._seen.add(below)
                inside = self._level(below, (*graph, task.name))
            elif self._has_stored(child_ns(ns, task.name, task.id)):
                self._unknown.append(task.name)
        questions = tuple(question.id for question in known.waiting)
        return TaskOutlook(task.id, task.name, standing, questions, inside)

    def _has_stored(self, ns: str) -> bool:
        """Whether a graph that a task runs has stored something, though no graph is known there."""
        return any(each.startswith(ns) for each in self._list_namespaces())

    def _list_namespaces(self) -> Collection[str]:
        if self._namespaces is None:
            self._namespaces = self._saver.namespaces(self._thread_id)
        return self._namespaces

    def _memories(self, lost: list[str]) -> Iterator[LevelOutlook]:
        """Look at the memories that are idle.

        Args:
            lost: gets those to which no node leads any more.
        """
        for ns in sorted(self._list_namespaces()):
            path = memory_below(ns, "")
            if path is None or ns in self._seen:
                continue
            names = tuple(name for name, _ in path)
            try:
                self._app.nested(ns)
            except ValueError:  # its node is gone, or a function runs it: nothing is pending there
                first = f"node {names[0]!r}"
                if first in self._made_by and names[0] not in self._app.program.nodes:
                    lost.append(f"{first} is gone, with the memory of its graph")
                continue
            level = self._level(ns, names)
            if level is not None:
                yield level

    def _posts(self) -> tuple[int, list[str]]:
        """How many posts wait, and why they cannot be taken."""
        if not self._saver.keeps_posts:
            return 0, []
        posts = self._saver.read_posts(self._thread_id)
        if posts and not self._app.inbox:
            return len(posts), ["posts wait, and the graph takes none (inbox=True)"]
        lost = []
        for post in posts:
            try:
                names = [name for name, _ in decode_post(self._saver, post)]
            except Exception as error:
                lost.append(f"a post cannot be read: {_describe(error)}")
                continue
            known = self._app.program.scope.keys
            lost += [f"key {name!r} of a post is gone" for name in names if name not in known]
        return len(posts), lost


def _load(run: Run, load: Load, beside: set[str]) -> Effects:
    """Load the newest checkpoint as a call would.

    Args:
        beside: gets the ids of the tasks that have left something beside that checkpoint itself.
    """
    yield load
    if load.found is not None:
        beside.update(id for id, *_ in load.found.pending_writes or ())
    yield from load_under_way(load)
    if load.found is not None:
        load_machine(run, load)


def _find_waiting(machine: Machine) -> Iterator[str]:
    """The half open joins, by channel, and the nodes that are triggered and wait."""
    program = machine.program
    joins = [join.channel for join in program.joins if join.channel in machine.channels]
    for name in dict.fromkeys((*joins, *program.kinds.finishers)):
        if machine.channels[name].describe().state == "waiting":
            yield from (name,) if name in joins else program.triggers.get(name, ())


QUESTION = "a question that waits for an answer has no task"


def _find_orphans(
    snapshot: StateSnapshot, records: Mapping[str, TaskRecord], beside: Collection[str]
) -> Iterator[str]:
    """What is recorded beside the checkpoint of tasks that this graph does not have. Beside the
    origins of running tasks (schedule="ready") are also those of tasks that have ended."""
    planned = {task.id for task in snapshot.tasks}
    asked = {question.id for id in planned if id in records for question in records[id].interrupts}
    answered = {question for known in records.values() for question in known.answers}
    for id, known in records.items():
        if id in planned or id not in beside or id in (NULL_TASK_ID, POST_TASK_ID):
            continue
        if known.kept is not None and known.kept["path"] is None:
            continue  # an edit has kept it for the calls of its tasks
        if any(q.id not in asked and q.id not in answered for q in known.waiting):
            yield QUESTION
        elif known.finished and any(name not in (RETURN, NO_WRITES) for name, _ in known.writes):
            yield "the result of a task has no task"


def _describe(error: BaseException | None) -> str:
    """An error as a reason that is the same for all threads that fail alike."""
    if error is None:
        return ""
    errors = getattr(error, "errors", None)
    if callable(errors):  # pydantic's text quotes the value
        places = {".".join(map(str, each.get("loc", ()))) for each in errors()}
        about = ", ".join(sorted(filter(None, places)))
        return f"{type(error).__name__}{f' of {about}' if about else ''}"
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
