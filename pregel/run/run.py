"""One call of a graph, with everything about it settled before it starts: thread, saver, limits, readers.

Settling only: what a call means is in `loop`, how it is carried out in the drivers.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from ...channels.base import MISSING
from ...checkpoint.base import (
    BaseCheckpointSaver,
    Checkpoint,
    CheckpointTuple,
    Commit,
    TaskWrites,
    address,
    coordinates,
)
from ...checkpoint.serde import Blob, Serializer
from ..names import BY_COMMAND, PREVIOUS, child_ns, last_level, numbered_ns
from ..program.program import Program
from ..runtime import RUNNING, RunControl
from ..superstep.machine import Machine
from ..superstep.task import Task
from ..types import LOCAL, All, Command, Durability, RunnableConfig, StreamMode, StreamWriter
from .answers import Answers
from .config import (
    Call,
    check_breakpoints,
    check_durability,
    check_keys,
    inheritable,
    merge_configs,
    names_thread,
    normalize,
    place_program,
    recursion_limit,
    resolve_executor,
    scalars,
    warn_of_context,
    warn_of_coordinates,
)
from .stream import Envelope, Stream, read_modes

if TYPE_CHECKING:
    from .snapshots import Stored

class Graph(Protocol):
    """The parts of a compiled graph that a run needs."""

    program: Program
    checkpointer: BaseCheckpointSaver | bool | None
    store: Any
    cache: Any
    serde: Serializer
    config: RunnableConfig
    check_input: Callable[[Any], None]
    interrupt_before: All | Sequence[str]
    interrupt_after: All | Sequence[str]
    step_timeout: float | None
    executor: Any
    context_schema: Any
    migrate: Callable[[Checkpoint, Sequence[str]], Checkpoint] | None

    def coerce_context(self, context: Any) -> Any: ...


@dataclass(slots=True)
class Way:
    """How a run leads to a checkpoint inside a nested graph.

    Attributes:
        stages: the graphs below this run down to that checkpoint: namespace and checkpoint of each. Empty in the run
            that has started from it.
        task: the path of the task of this run in which it lies; None if that is not known, as in a `@task` call.
        asked: the questions beside that checkpoint, answered ones too. `live`: the run waits for some of them now.
        step: the superstep of that task.
        stored: it was found with the fork that another call has made, so graphs inside may have gone on since.
    """

    stages: list[tuple[str, str]]
    task: str | None = None
    asked: tuple[str, ...] = ()
    live: bool = False
    step: int = -1
    stored: bool = False


@dataclass(slots=True)
class Rewind:
    """Where graphs with a history of their own start when checkpoints around them are done anew.

    Attributes:
        points: namespace without ids → the checkpoint of that graph which is done anew, and the saver that keeps it:
            what is inside goes back to its newest checkpoint before that.
        entered: the histories that have gone back since; they go on.
    """

    points: dict[str, tuple[RunnableConfig, BaseCheckpointSaver]] = field(default_factory=dict)
    entered: set[str] = field(default_factory=set)


class Run:
    """Everything that a call's loop, driver and tasks share.

    Attributes:
        input: what the caller gave.
        answers: those that this call brings.
        ns: "" for a root graph, else the namespace of the task that called it.
        saver: where checkpoints go, or None.
        limit: supersteps of user nodes this call may take.
        streams: where chunks go; empty if nobody reads.
        out: chunks that the driver has not handed over yet.
        live: chunks may come while a node runs, so no node may hold up the reader's thread.
        wake: tells a waiting driver that `out` has something.
        machine: set once the checkpoint is loaded.
        migrate: the graph's; `migrated` the checkpoint that it was given.
        repeated: it is one that came before, and that others have followed: it does nothing.
        committed: the last checkpoint cut by this call, or the one it goes on from, until readers have been shown it.
        epoch: what makes seconds since the epoch of `perf_counter`; only kept for a saver.
        head: the newest checkpoint id this run knows of; `saved_id` the one it builds on.
        stored: per task id, what the loaded checkpoint knows of the task.
        deadline: that of the attempt that runs this graph, or None.
        late: records of mid-task calls that are stored at the end of the call (durability "exit"); `inner_commits` the
            checkpoints of graphs that a task has run to the end, by namespace, stored if that task is to go on.
        torn: a superstep is being applied that is not stored at once (durability "exit"): half-way, no state counts.
        blobs: channel → what a task of this superstep wrote to it last, and that encoded.
        histories: namespace → the superstep and task that last ran a graph with a history of its own there.
        executor: where its nodes run that have none of their own; None for the driver's threads. `payload_cache` is
            what executors keep for all its tasks.
        way: how it leads to a nested checkpoint from which the graph inside is to go on, or None; see `inside`.
        seeded: it goes on from a checkpoint that was made under another checkpoint of the run around it.
        rewound: where graphs with a history of their own go back to; shared with nested runs.
        journal: by which all is stored; made by the driver.
        dropped: it was cut short: whatever of its calls can be ended ends.
        passed: the tick up to which breakpoints have been passed.
        paused: the questions that ended this call; `only_asked` if nothing but `interrupt()` asked them.
        shown: whether any `values` view came up in this call, and `last_view` the last if it must be kept.
    """

    __slots__ = (
        "_calls", "after", "answers", "before", "blobs", "cache", "check_input", "committed", "config", "context",
        "control", "deadline", "dropped", "durability", "epoch", "executor", "found", "head", "histories",
        "inner_commits", "input", "journal", "keep_view", "last_view", "late", "limit", "live", "machine",
        "metadata", "migrate", "migrated", "ns", "only_asked", "open_calls", "out", "output_keys", "output_set",
        "parent", "parents", "passed", "paused", "payload_cache", "program", "repeated", "rewound", "run_id",
        "saved_id", "saver", "seeded", "serde", "shown", "source", "step_timeout", "store", "stored", "streams",
        "thread_id", "torn", "wake", "way",
    )  # fmt: skip

    def __init__(self, graph: Graph, input: Any, config: RunnableConfig | None, call: Call) -> None:
        parent: Task | None = RUNNING.get()
        bound = graph.config
        given, config = config, normalize(config)
        self.deadline = parent.nearest_deadline if parent is not None else None
        if parent is not None and config and names_thread(config):
            if is_own(config, parent):
                config = inheritable(config)  # the node passes on the config it was given
            else:
                parent = None  # a lineage of its own: nothing of the enclosing run reaches it
        self.check_input = graph.check_input
        self.migrate = graph.migrate
        self.migrated: Checkpoint | None = None
        self.input = input
        self.parent = parent
        self.executor = self._executor(graph, parent, call)
        self.program = program = graph.program
        if self.executor not in (None, LOCAL):
            self.program = program = place_program(program, self.executor, graph.store)
        self.payload_cache: dict[Any, Any] = {}
        if parent is None and not bound:
            self.config = config
        else:
            inherited = inheritable(parent.run.config) if parent is not None else None
            self.config = config = merge_configs(inherited, bound, config)
        self.limit = recursion_limit(config)
        self._place(graph, parent)
        if given and parent is None and self.saver is None:
            warn_of_coordinates(given)
        self._lend(graph, parent, call)
        self.before = graph.interrupt_before if call.interrupt_before is None else self._names(call.interrupt_before)
        self.after = graph.interrupt_after if call.interrupt_after is None else self._names(call.interrupt_after)
        self.durability = self._durability(call.durability)
        self.output_keys: str | Sequence[str] = program.outputs
        if call.output_keys is None:
            self.output_set, self.keep_view = program.output_set, not program.outputs_settle
        else:
            self.show(check_keys(program, call.output_keys))
        self.out: deque[Any] = deque()
        self.wake: Callable[[], None] = _nobody_waits
        self.streams: tuple[Stream, ...] = ()
        self.step_timeout = graph.step_timeout
        self.live = graph.step_timeout is not None
        self.stored: dict[str, Stored] = {}
        self.answers = Answers(self)
        self.passed = -1
        self.paused: tuple[Any, ...] | None = None
        self.only_asked = False
        self.shown = False
        self.last_view: Any = None
        self.head: str | None = None
        self.saved_id: str | None = None
        self.committed: Commit | CheckpointTuple | None = None
        self.source = "loop"
        self.late: list[TaskWrites] = []
        self.inner_commits: dict[str, tuple[Task, Commit]] = {}
        self.blobs: dict[str, tuple[Any, Blob]] = {}
        self._calls: Any = None
        self.open_calls: Callable[[Run], Any] | None = None
        self.found: Any = None
        self.repeated = False
        self.torn = self.dropped = False
        self.journal: Any = None  # the driver's
        self.machine: Machine = None  # type: ignore[assignment]  # the loop loads it
        if parent is not None and parent.run.streams:
            self._report_to(parent)
        if call.observer is not None:
            self.streams = (*self.streams, call.observer)

    def show(self, keys: str | Sequence[str]) -> None:
        """Select the channels that make up the output."""
        self.output_keys = keys
        self.output_set = frozenset((keys,) if isinstance(keys, str) else keys)
        self.keep_view = not self.program.settles(keys)

    # -- settling -------------------------------------------------------------------------------------------

    def _place(self, graph: Graph, parent: Task | None) -> None:
        """Which saver, thread and namespace; which ancestors."""
        own = graph.checkpointer
        configurable = self.config.get("configurable")
        self.run_id = self._run_id()
        self.parents: Mapping[str, str] = {}
        self.histories: dict[str, tuple[str, str]] | None = None
        self.way: Way | None = None
        self.seeded = False
        self.rewound: Rewind | None = run_of(parent).rewound if parent is not None else None
        if parent is None:
            if own is True:
                raise RuntimeError(
                    "checkpointer=True means 'a history of its own inside the parent graph'; a graph that is run "
                    "by itself needs a saver, e.g. compile(checkpointer=InMemorySaver())"
                )
            self.saver: BaseCheckpointSaver | None = own or None
            self.ns = ""
            if self.saver is not None:
                self.thread_id: str | None
                self.thread_id, ns, checkpoint_id = coordinates(self.config)
                if ns and checkpoint_id and RUNNING.get() is None:
                    self.way = Way([(ns, checkpoint_id)])
            else:
                named = (configurable or {}).get("thread_id")
                self.thread_id = None if named is None else str(named)
        else:
            around = run_of(parent)
            self.saver = None if own is False else own if isinstance(own, BaseCheckpointSaver) else around.saver
            self.thread_id = around.thread_id
            self.ns, known_as = _nested_ns(parent, stable=own is True)
            around.program.nested.setdefault(known_as, graph)
            if self.saver is not None:
                self.saver.serde.learn(graph.serde)  # a graph that a function runs names types of its own
                self.parents = {**around.parents, around.ns: around.machine.checkpoint_id}
                if own is True:
                    _claim(self.ns, parent)
        self.metadata: dict[str, Any] = {}
        if self.saver is not None:
            self.metadata = scalars(self.config, self.run_id)
            if self.run_id is not None and parent is None and isinstance(self.input, Command):
                self.metadata[BY_COMMAND] = True
            self.epoch = time.time() - time.perf_counter()

    def _executor(self, graph: Graph, parent: Task | None, call: Call) -> Any:
        """The call's, else the graph's, else the enclosing run's."""
        if call.executor is not None:
            return resolve_executor(call.executor)
        return graph.executor if graph.executor is not None or parent is None else run_of(parent).executor

    def _durability(self, asked: Durability | None) -> Durability:
        """The call's, else the enclosing run's, else "sync"."""
        if asked is None:
            return run_of(self.parent).durability if self.parent is not None else "sync"
        check_durability(asked)
        if self.saver is None:
            warnings.warn("durability has no effect: the graph has no checkpointer", UserWarning, stacklevel=4)
        return asked

    def _run_id(self) -> str | None:
        found = self.config.get("run_id") or self.config.get("metadata", {}).get("run_id")
        found = found or self.config.get("configurable", {}).get("run_id")
        return None if found is None else str(found)

    def _lend(self, graph: Graph, parent: Task | None, call: Call) -> None:
        """Context, store, cache and control: the call's, else the graph's, else the enclosing run's."""
        around = parent.run if parent is not None else None
        if call.context is not MISSING:
            self.context = graph.coerce_context(call.context)
        elif around is not None:
            self.context = around.context
        else:
            self.context = None
            if graph.context_schema is not None:
                warn_of_context(self.config)
        self.store: Any = graph.store if graph.store is not None or around is None else around.store
        self.serde: Serializer = graph.serde if self.saver is None else self.saver.serde
        self.cache: Any = graph.cache if graph.cache is not None or around is None else around.cache
        self.control: RunControl = call.control or (around.control if around is not None else RunControl())

    def _names(self, names: All | Sequence[str]) -> All | Sequence[str]:
        return check_breakpoints(names, self.program)

    def _report_to(self, parent: Task) -> None:
        """Let the readers of the enclosing run see this one too."""
        own = last_level(self.ns)
        below = (s.below(self.program.stream, (*s.ns, *own), self.deadline) for s in parent.run.streams)
        self.streams = tuple(filter(None, below))

    def read_by(self, call: Call, modes: StreamMode | Sequence[StreamMode]) -> None:
        """Attach the reader of this call."""
        envelope = Envelope(not isinstance(modes, str), call.subgraphs, call.version == "v2")
        own = Stream(read_modes(modes), envelope, self._hand_over, self.output_keys)
        self.streams = (*self.streams, own)
        self.live = self.live or own.live or self.program.eager

    def _hand_over(self, chunk: Any) -> None:
        self.out.append(chunk)
        self.wake()

    @property
    def abandoned(self) -> bool:
        """Whether the attempt that runs this graph was given up, so that nothing of it may be stored."""
        return self.deadline is not None and self.deadline.abandoned

    @property
    def watched(self) -> bool:
        """Whether the driver must come back as soon as a task ends, instead of when all have."""
        saver = self.saver
        return bool(self.streams) or (saver is not None and not saver.in_memory) or self.step_timeout is not None

    @property
    def lags(self) -> bool:
        """Whether the saver may be one step behind the run."""
        return self.durability == "async" and self.saver is not None and not self.saver.in_memory

    @property
    def records_early(self) -> bool:
        """Whether tasks that end before their superstep does are recorded at once."""
        return self.saver is not None and not self.saver.in_memory and self.durability != "exit"

    # -- what tasks ask for ---------------------------------------------------------------------------------

    def writer_of(self, task: Task) -> StreamWriter:
        """Sends custom events to the reader; does nothing if there is none who asked for them."""
        streams = [s for s in self.streams if s.wants("custom")]
        deadline, attempt = task.nearest_deadline, task.attempt
        if not streams and deadline is None:
            return _nobody_listens

        def write(data: Any) -> None:
            if deadline is not None:
                deadline.touch()
                if deadline.abandoned:
                    return
            if task.attempt == attempt:  # a failed attempt speaks no more
                for stream in streams:
                    stream.emit("custom", data)

        return write

    @property
    def calls(self) -> Any:
        """The mid-task calls of this run, made as its driver makes them."""
        if self._calls is None:
            with _OPENING:
                if self._calls is None:
                    assert self.open_calls is not None
                    self._calls = self.open_calls(self)
        return self._calls

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""
        return self.machine.output(PREVIOUS) if PREVIOUS in self.machine.channels else None

    def config_of(self, checkpoint_id: str | None) -> RunnableConfig:
        """The config that names one of this run's checkpoints."""
        return address(self.thread_id or "", self.ns, checkpoint_id)


_OPENING = threading.Lock()  # parallel tasks may make a run's first call at the same time


def _claim(ns: str, task: Task) -> None:
    """Note that a task runs a graph whose history has this namespace.

    Raises:
        RuntimeError: another task of the same superstep does so too: each would take the other's steps for its own.
    """
    run = run_of(task)
    mine = (run.machine.checkpoint_id, task.id)
    with _OPENING:
        if run.histories is None:
            run.histories = {}
        last = run.histories.setdefault(ns, mine)
        run.histories[ns] = mine
    if last[0] == mine[0] and last != mine:
        raise RuntimeError(
            f"two tasks of one superstep run the graph of {ns!r}, which keeps one history (checkpointer=True): "
            "compile it with checkpointer=None, or run it in nodes of different names"
        )


def run_of(task: Task) -> Run:
    """The run of a task, for those who carry it out. Tasks themselves know the protocol only."""
    return cast("Run", task.run)


def is_own(config: RunnableConfig, task: Task) -> bool:
    """Whether a config is the one that this task was given, perhaps with additions."""
    configurable = config["configurable"]
    thread_id = configurable.get("thread_id")
    same_thread = thread_id is None or str(thread_id) == task.run.thread_id
    return same_thread and configurable.get("checkpoint_ns") == task.ns and "checkpoint_id" not in configurable


def _nobody_waits() -> None:
    """No driver waits for chunks."""


def _nobody_listens(_: Any) -> None:
    """The writer of a run without a reader of custom events."""


def _nested_ns(parent: Task, *, stable: bool) -> tuple[str, str]:
    """The namespace of the next graph that `parent` runs, and under which name it is remembered."""
    count = parent.children
    parent.children += 1
    place = child_ns(parent.run.ns, parent.name, parent.id, stable=stable)
    return numbered_ns(place, count), numbered_ns(parent.name, count)

