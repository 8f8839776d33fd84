"""One call of a graph: what is settled about it, and the parts that change while it runs, each with
its owner.

What the call means is decided in `start`, its supersteps are in `loop`; how it is carried out, in
the drivers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from sys import modules
from typing import TYPE_CHECKING, Any, Final, cast

from ...checkpoint.base import (
    OF_TASK,
    BaseCheckpointSaver,
    CheckpointTuple,
    Commit,
    coordinates,
)
from ...checkpoint.overrides import stores_at_once
from ...extras import LISTENERS, load_part
from ..errors import warn
from ..names import PREVIOUS, child_ns, has_task_ids, last_level, numbered_ns
from ..program.program import Program
from ..running import RUNNING, TRANSACTION, refuse_in_effect
from ..runtime import no_op
from ..schedule.machine import Machine
from ..schedule.state import copy_slots
from ..task.task import Task
from ..types import AnyConfig, RunnableConfig, StreamWriter
from .commits import CommitBuilder
from .config import Call, inheritable, names_thread, normalize, warn_of_coordinates
from .ledger import Ledger
from .output import Output
from .position import Position
from .replay import Replay, list_lineage
from .settings import Graph, Settings, Thread, find_run_id, merge_around
from .stream import Stream

if TYPE_CHECKING:
    from ..task.observers import EngineObserver
    from .effects import Effects
    from .observing import Observing


class Run:
    """Everything that a call's loop, driver and tasks share.

    Attributes:
        settings, thread: what it runs with, and where its checkpoints go; settled.
        program, ns: of these what tasks look up most: the graph, and its part of the thread.
        parent: the task that runs this graph; None for a whole graph.
        deadline: of the attempt that runs this graph, or None.
        listener: an observer of this run alone, not of those inside, or None.
        observing: tells its observers; None without any.
        saves_in_background: the checkpointer may be one step behind the run.
        records_early: tasks that end before their superstep does are recorded at once.
        machine: the state; set once the checkpoint is loaded.
        position: where the run stands in its thread.
        ledger: what is recorded of its tasks, and the answers that this call brings.
        commits: builds what is stored.
        output: readers, and the result.
        replay: where nested graphs go on when a checkpoint around them is done anew.
        journal: by which all is stored; the driver's. None if nothing is.
        payload_cache: what executors keep for all its tasks, by executor.
    """

    __slots__ = (
        "_advancing",
        "_calls",
        "_cut",
        "_open_calls",
        "commits",
        "deadline",
        "journal",
        "ledger",
        "listener",
        "machine",
        "may_come_twice",
        "ns",
        "observing",
        "output",
        "parent",
        "payload_cache",
        "position",
        "program",
        "records_early",
        "replay",
        "saves_in_background",
        "settings",
        "thread",
    )  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        given: Any,
        config: AnyConfig | None,
        call: Call,
        ns: str | None = None,
    ) -> None:
        """Settle a call.

        Args:
            ns: work on this part of the thread, as the whole graph; see `update_state`.
        """
        own_config = normalize(config)
        running: Task | None = RUNNING.get()
        if running is not None:
            refuse_in_effect("a graph", TRANSACTION)  # it would wait for the transaction
        self.deadline: Final = None if running is None else running.nearest_deadline
        task = running
        if running is not None and names_thread(own_config):
            if is_own(own_config, running):  # the node passes on the config that it was given
                own_config = inheritable(own_config)
            else:  # a lineage of its own: nothing of the enclosing run reaches it
                task = None
        self.parent: Final = task
        around = None if task is None else run_of(task)
        outer = None if around is None else around.settings
        merged = merge_around(graph, own_config, outer)
        if task is not None:
            thread = _nested_thread(graph, merged, task)
        else:
            thread = _root_thread(graph, merged, ns)
            if running is not None:
                _note_own_write(running, thread)
            if config and thread.saver is None:
                warn_of_coordinates(config)
        self.thread: Final[Thread] = thread
        self.ns: Final = thread.ns
        self.settings: Final[Settings] = Settings(graph, given, merged, call, thread, outer)
        self.program: Program = self.settings.program
        self.listener: EngineObserver | None = None
        self.observing: Observing | None = None
        slow = thread.saver is not None and not thread.saver.in_memory
        self.saves_in_background: Final = slow and self.settings.durability == "async"
        self.records_early: Final = slow and self.settings.durability != "exit"
        # A queue that keeps the input delivers a call once, until the lease of its worker ends.
        self.may_come_twice: Final = (
            thread.run_id is not None
            and thread.saver is not None
            and task is None
            and not thread.saver.keeps_input(thread.thread_id or "", thread.run_id)
        )
        self.position: Final = Position()
        inbox = None
        if self.settings.inbox:
            from .inbox import Inbox

            inbox = Inbox(thread)
        self.ledger: Final = Ledger((), task)
        self.commits: Final = CommitBuilder(
            self.settings, thread, self.position, self.ledger, inbox
        )
        if slow and stores_at_once(thread.saver):
            repeats = _repeats_input(graph, thread, task)
            # Whether the first commits may wait to be stored together; see "The commit is stored"
            # in docs/explanation/architecture.md.
            now = (
                self.records_early
                and self.settings.durability == "sync"
                and self.deadline is None  # else the run may be abandoned with something held
            )
            self.commits.allow_holding(repeats=repeats, now=now)
        if task is not None and graph.checkpointer is True:
            self.commits.describe(OF_TASK, list_lineage(task))
        self.replay: Final[Replay] = Replay(None if around is None else around.replay, thread)
        streams = () if around is None else self._streams_around(around, graph)
        self.output: Final[Output] = Output(
            self.program,
            call,
            streams,
            live=graph.step_timeout is not None or graph.limited,
            around=None if around is None else around.output,
        )
        self.machine: Machine = None  # type: ignore[assignment]  # the loop loads it
        self.journal: Any = None
        self._calls: Any = None
        self._advancing: Run | None = None
        self._open_calls: Callable[[Run], Any] | None = None
        # A list: the runs that `pin_to` makes share it.
        self._cut: Final[list[str]] = []
        self.payload_cache: Final[dict[Any, Any]] = {}

    def _streams_around(self, around: Run, graph: Graph) -> tuple[Stream, ...]:
        """The readers of the enclosing run see this one, too."""
        own = last_level(self.ns)
        below = (
            stream.below(graph, (*stream.ns, *own), self.deadline)
            for stream in around.output.streams
        )
        return tuple(filter(None, below))

    # -- how it stands -----------------------------------------------------------------------------

    def use_driver(self, journal: Any, open_calls: Callable[[Run], Any]) -> None:
        """Let a driver carry the run out.

        Args:
            journal: by which all is stored, or None.
            open_calls: makes `calls`.
        """
        self.journal, self._open_calls = journal, open_calls

    def take_kept(self) -> Sequence[Commit]:
        """Return the checkpoints of nested graphs that this run is to store with its next one."""
        return () if self.journal is None else self.journal.take_kept()

    def observe(self, effects: Effects) -> Effects:
        """Return its effects, of which its observers are told. The listener that a loaded library
        has is one of them."""
        watchers, listener = self.settings.observers, self.listener
        if listener is None:
            for library, part in LISTENERS.items():
                if library in modules:
                    listener = listener or load_part(part).find_listener(self)
        if listener is None and not watchers:
            return effects
        from .observing import Observing

        self.observing = Observing(watchers, listener)
        return self.observing.watch(self, effects)

    def start(self, machine: Machine) -> None:
        """Start from this state, which was loaded."""
        self.machine = machine

    def cancel(self) -> None:
        """Cut the run short."""
        self._cut.append("cancelled")

    @property
    def cancelled(self) -> bool:
        """Whether it was cut short: whatever of its `@task` calls can be ended ends."""
        return bool(self._cut)

    def give_up(self) -> None:
        """Wait no longer for its functions on threads."""
        self._cut.append("given up")

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for its functions on threads: the next run calls them again."""
        return "given up" in self._cut

    def pin_to(self, machine: Machine, found: CheckpointTuple | None = None) -> Run:
        """This run as tasks see it that start in a state, while the run itself goes on
        (schedule="ready").

        Args:
            machine: the state, which stays as it is.
            found: its checkpoint, if that is loaded.
        """
        pinned: Run = copy_slots(self)
        pinned.machine, pinned._calls, pinned._advancing = machine, None, self.advancing
        pinned.position = self.position.pin_to(machine.checkpoint_id or None, found)  # type: ignore[misc]
        # A graph inside looks for what is stored, unless this very state is new.
        pinned.commits = self.commits.stand_apart()  # type: ignore[misc]
        return pinned

    @property
    def advancing(self) -> Run:
        """The run that goes on, if this is what tasks see of it that have started in a state."""
        return self._advancing or self

    def look_at(self, machine: Machine) -> Run:
        """This run, as seen by tasks of another state that are looked at and not run."""
        if machine is self.machine:
            return self
        seen: Run = copy_slots(self)
        seen.machine = machine
        return seen

    def find_origin(self, task: Task) -> str:
        """The checkpoint at which a task has started, also one that was under way and that
        supersteps run now."""
        machine = self.machine
        if not machine.carried:  # the path of a task is made only if someone looks (P23)
            return machine.checkpoint_id
        path = task.path
        while path[-1] is True:  # a `@task` call has started with its caller
            path = path[1]
        carried = machine.carried.get(path)
        return (carried is not None and carried.origin) or machine.checkpoint_id

    @property
    def abandoned(self) -> bool:
        """Whether the attempt that runs this graph was given up, so that nothing of it may be
        stored."""
        return self.deadline is not None and self.deadline.abandoned

    @property
    def keeps_steps(self) -> bool:
        """Whether the state after each superstep is stored or shown."""
        output = self.output
        return self.thread.saver is not None or bool(output.streams) or output.keeps_view

    @property
    def watched(self) -> bool:
        """Whether the driver must come back as soon as a task ends, instead of when all have."""
        saver = self.thread.saver
        slow = saver is not None and not saver.in_memory
        early = slow or self.program.handles_errors
        return early or bool(self.output.streams) or self.settings.step_timeout is not None

    @property
    def outermost(self) -> Run:
        """The run of the whole graph."""
        run = self
        while run.parent is not None:
            run = run_of(run.parent)
        return run

    # -- what tasks see of it ----------------------------------------------------------------------

    @property
    def stores(self) -> bool:
        """Whether anything is stored, so that questions can be answered later."""
        return self.thread.saver is not None

    @property
    def calls(self) -> Any:
        """The `@task` calls of this run, made as its driver makes them."""
        if self._calls is None:
            with _opening:
                if self._calls is None:
                    assert self._open_calls is not None
                    self._calls = self._open_calls(self)
        return self._calls

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""
        if PREVIOUS not in self.machine.channels:
            return None
        return self.machine.output(PREVIOUS)

    def writer_of(self, task: Task) -> StreamWriter:
        """Sends custom events to the reader; does nothing if there is none who asked for them."""
        streams = [s for s in self.output.streams if "custom" in s.modes]
        deadline, attempt = task.nearest_deadline, task.attempt
        if not streams and deadline is None:
            return no_op

        def write(data: Any) -> None:
            if deadline is not None:
                deadline.touch()
                if deadline.abandoned:
                    return
            if task.attempt == attempt:  # a failed attempt speaks no more
                for stream in streams:
                    stream.emit("custom", data)

        return write


_opening = threading.Lock()  # parallel tasks may make a run's first call at the same time


def run_of(task: Task) -> Run:
    """The run of a task, for those who carry it out. Tasks themselves know the protocol only."""
    return cast("Run", task.run)


def _note_own_write(running: Task, thread: Thread) -> None:
    """Note that a node writes to the thread on which its own run is at work: that run meets a
    conflict, and its caller is told where this comes from."""
    root = run_of(running).outermost
    own, journal = root.thread, root.journal
    same = own.saver is thread.saver is not None and own.thread_id == thread.thread_id
    if same and journal is not None:
        journal.note_own_writer(running.name)


def _repeats_input(graph: Graph, thread: Thread, task: Task | None) -> bool:
    """Whether the input comes about again if it is lost before the first step is stored."""
    if task is not None:  # that of a graph that is a node is the input of its task
        return task.node.source is graph and has_task_ids(last_level(thread.ns)[0])
    saver, thread_id = thread.saver, thread.thread_id
    assert saver is not None and thread_id is not None
    return not thread.ns and saver.keeps_input(thread_id, thread.run_id)


def _root_thread(graph: Graph, config: RunnableConfig, ns: str | None) -> Thread:
    """Where a whole graph works."""
    saver = graph.checkpointer
    if saver is True:
        raise RuntimeError(
            "checkpointer=True means 'a history of its own inside the parent graph'; a graph that "
            "is run by itself needs a checkpointer, e.g. compile(checkpointer=InMemorySaver())"
        )
    run_id = find_run_id(config) if config else None
    if not saver:
        named = (config.get("configurable") or {}).get("thread_id")
        return Thread(None, None if named is None else str(named), ns or "", run_id)
    thread_id, inside, checkpoint_id = coordinates(config)
    saver = saver.for_call(config)
    # In a task the coordinates come with the config of the run around: they name no checkpoint to
    # go on from.
    if inside and RUNNING.get() is None:
        if checkpoint_id:
            return Thread(saver, thread_id, ns or "", run_id, nested=(inside, checkpoint_id))
        try:
            graph.nested(inside)
        except ValueError as error:
            warn(f"config: {error}. The whole graph runs")
    return Thread(saver, thread_id, ns or "", run_id, checkpoint_id)


def _nested_thread(graph: Graph, config: RunnableConfig, parent: Task) -> Thread:
    """Where a graph works that a task runs: on the part of the thread that belongs to the task."""
    around, own = run_of(parent), graph.checkpointer
    saver = own.for_call(config) if isinstance(own, BaseCheckpointSaver) else around.thread.saver
    if own is False:
        saver = None
    count = parent.current.count_graph()
    key = None if parent.send is None else parent.send.key
    place = child_ns(around.ns, parent.name, parent.id, stable=own is True, key=key)
    ns = numbered_ns(place, count)
    # A function that runs a graph is known to do so only once it has; drawings and `get_state` look
    # here.
    around.program.nested.setdefault(numbered_ns(parent.name, count), graph)
    run_id = find_run_id(config)
    position = (*parent.position, parent.current.started)
    if saver is None:
        return Thread(None, around.thread.thread_id, ns, run_id, position=position)
    saver.serde.learn(graph.serde)  # a graph that a function runs names types of its own
    if own is True:
        parent.current.uses_memory = True
    parents = {**around.thread.parents, around.ns: around.find_origin(parent)}
    return Thread(
        saver, around.thread.thread_id, ns, run_id, parents=parents, position=position
    )


def is_own(config: RunnableConfig, task: Task) -> bool:
    """Whether a config is the one that this task was given, perhaps with additions."""
    configurable = config["configurable"]
    thread_id = configurable.get("thread_id")
    same_thread = thread_id is None or str(thread_id) == run_of(task).thread.thread_id
    return (
        same_thread
        and configurable.get("checkpoint_ns") == task.ns
        and "checkpoint_id" not in configurable
    )
