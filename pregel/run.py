"""One call of a graph, with everything about it settled before it starts: thread, saver, limits, readers.

Settling only: what a call means is in `loop`, how it is carried out in the drivers.
"""

from __future__ import annotations

import os
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from typing_extensions import TypedDict

from ..channels.base import MISSING
from ..checkpoint.base import (
    ERROR,
    NO_WRITES,
    BaseCheckpointSaver,
    Commit,
    TaskWrites,
    address,
    coordinates,
)
from .errors import InvalidGraphError, nearest
from .machine import Machine
from .program import Program
from .runtime import RUNNING, RunControl
from .stream import Envelope, Stream, read_modes
from .task import Task, path_text
from .types import (
    DEFAULT_RECURSION_LIMIT,
    NS_SEP,
    PREVIOUS,
    All,
    Durability,
    RunnableConfig,
    StreamMode,
    StreamWriter,
)

_COORDINATES = ("thread_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map")
_NOT_METADATA = frozenset((*_COORDINATES, "run_id"))
_CONFIG_KEYS = frozenset(RunnableConfig.__annotations__)
_NO_CONFIG: RunnableConfig = {}


class Options(TypedDict, total=False):
    """Keyword options of invoke, stream and their async twins.

    Keys:
        context: handed to nodes as `runtime.context`; a dict becomes the graph's context schema.
        stream_mode: one mode or several; see `StreamMode`.
        output_keys: the channels to show: a name for its bare value, or several for a dict.
        interrupt_before, interrupt_after: names of nodes to stop at, or "*"; None means those of `compile`,
            an empty list none.
        durability: "sync" (default), "async" or "exit": when each superstep is stored.
        control: a `RunControl`, to ask for a drain from outside.
        subgraphs: show the chunks of nested graphs too; each chunk then comes with its namespace.
        version: "v2" makes every chunk a dict of type, ns and data, and `invoke` return a `GraphOutput`.
    """

    context: Any
    stream_mode: StreamMode | Sequence[StreamMode] | None
    output_keys: str | Sequence[str] | None
    interrupt_before: All | Sequence[str] | None
    interrupt_after: All | Sequence[str] | None
    durability: Durability | None
    control: RunControl | None
    subgraphs: bool
    version: Literal["v1", "v2"]


@dataclass(slots=True, kw_only=True)
class Call:
    """`Options` with their defaults; an unknown option is a TypeError that names it."""

    context: Any = MISSING
    stream_mode: StreamMode | Sequence[StreamMode] | None = None
    output_keys: str | Sequence[str] | None = None
    interrupt_before: All | Sequence[str] | None = None
    interrupt_after: All | Sequence[str] | None = None
    durability: Durability | None = None
    control: RunControl | None = None
    subgraphs: bool = False
    version: Literal["v1", "v2"] = "v1"


class Graph(Protocol):
    """The parts of a compiled graph that a run needs."""

    program: Program
    checkpointer: BaseCheckpointSaver | bool | None
    store: Any
    cache: Any
    config: RunnableConfig
    check_input: Callable[[Any], None] | None
    interrupt_before: All | Sequence[str]
    interrupt_after: All | Sequence[str]

    def coerce_context(self, context: Any) -> Any: ...


class Run:
    """Everything that a call's loop, driver and tasks share.

    Attributes:
        input: what the caller gave.
        ns: "" for a root graph, else the namespace of the task that called it.
        saver: where checkpoints go, or None.
        limit: supersteps of user nodes this call may take.
        streams: where chunks go; empty if nobody reads.
        out: chunks that the driver has not handed over yet.
        live: chunks may come while a node runs, so no node may hold up the reader's thread.
        wake: tells a waiting driver that `out` has something.
        machine: set once the checkpoint is loaded.
        committed: the last checkpoint cut by this call, until readers have been shown it.
        head: the newest checkpoint id this run knows of; `saved_id` the one it builds on.
        stored: per task id, what the loaded checkpoint knows of the task.
        passed: the tick up to which breakpoints have been passed.
        paused: the questions that ended this call.
        shown: whether any `values` view came up in this call, and `last_view` the last if it must be kept.
    """

    __slots__ = (
        "after", "answer", "answers", "before", "cache", "check_input", "config", "context", "control", "durability", "found",
        "head", "input", "keep_view", "last_view", "limit", "live", "durability", "machine", "metadata", "ns", "out", "output_keys",
        "parent", "parents", "passed", "paused", "program", "run_id", "saved_id", "committed", "saver", "shown",
        "source", "stored", "store", "streams", "output_set", "thread_id", "wake",
    )  # fmt: skip

    def __init__(self, graph: Graph, input: Any, config: RunnableConfig | None, call: Call) -> None:
        parent: Task | None = RUNNING.get()
        bound = graph.config
        if parent is not None and config and _names_thread(config):
            parent = None  # a lineage of its own: nothing of the enclosing run reaches it
        self.program = program = graph.program
        self.check_input = graph.check_input
        self.input = input
        self.parent = parent
        if parent is None and not bound:
            self.config = config = normalize(config) if config else _NO_CONFIG
        else:
            inherited = inheritable(parent) if parent is not None else None
            self.config = config = merge_configs(inherited, bound, config)
        self.limit = recursion_limit(config)
        self._place(graph, parent)
        self._lend(graph, parent, call)
        self.before = graph.interrupt_before if call.interrupt_before is None else self._names(call.interrupt_before)
        self.after = graph.interrupt_after if call.interrupt_after is None else self._names(call.interrupt_after)
        self.durability = check_durability(call.durability, self)
        if call.output_keys is None:
            self.output_keys = program.outputs
            self.output_set, self.keep_view = program.output_set, not program.outputs_settle
        else:
            self.show(check_keys(program, call.output_keys))
        self.out: deque[Any] = deque()
        self.wake: Callable[[], None] = _nobody_waits
        self.streams: tuple[Stream, ...] = ()
        self.live = False
        self.stored: dict[str, Any] = {}
        self.answers: dict[str, Any] = {}
        self.answer: Any = MISSING
        self.passed = -1
        self.paused: tuple[Any, ...] | None = None
        self.shown = False
        self.last_view: Any = None
        self.head: str | None = None
        self.saved_id: str | None = None
        self.committed: Commit | None = None
        self.source = "loop"
        self.found: Any = None
        self.machine: Machine = None  # type: ignore[assignment]  # the loop loads it
        if parent is not None and parent.run.streams:
            self._report_to(parent)

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
        if parent is None:
            if own is True:
                raise RuntimeError(
                    "checkpointer=True means 'a history of its own inside the parent graph'; a graph that is run "
                    "by itself needs a saver, e.g. compile(checkpointer=InMemorySaver())"
                )
            self.saver: BaseCheckpointSaver | None = own or None
            self.ns = ""
            if self.saver is not None:
                self.thread_id: str | None = coordinates(self.config)[0]
            else:
                self.thread_id = str(configurable["thread_id"]) if configurable and "thread_id" in configurable else None
        else:
            around = parent.run
            self.saver = None if own is False else own if isinstance(own, BaseCheckpointSaver) else around.saver
            self.thread_id = around.thread_id
            self.ns = _nested_ns(parent, stable=own is True)
            if self.saver is not None:
                self.parents = {**around.parents, around.ns: around.machine.checkpoint_id}
        self.metadata = scalars(self.config, self.run_id) if self.saver is not None else {}

    def _run_id(self) -> str | None:
        found = self.config.get("run_id") or self.config.get("metadata", {}).get("run_id")
        found = found or self.config.get("configurable", {}).get("run_id")
        return None if found is None else str(found)

    def _lend(self, graph: Graph, parent: Task | None, call: Call) -> None:
        """Context, store, cache and control: the call's, else the graph's, else the enclosing run's."""
        around = parent.run if parent is not None else None
        if call.context is not MISSING:
            self.context = graph.coerce_context(call.context)
        else:
            self.context = around.context if around is not None else None
        self.store = graph.store if graph.store is not None or around is None else around.store
        self.cache = graph.cache if graph.cache is not None or around is None else around.cache
        self.control: RunControl | None = call.control or (around.control if around is not None else None)

    def _names(self, names: All | Sequence[str]) -> All | Sequence[str]:
        return check_breakpoints(names, self.program)

    def _report_to(self, parent: Task) -> None:
        """Let the readers of the enclosing run see this one too."""
        level = self.ns[len(parent.run.ns) :].lstrip(NS_SEP) if self.ns.startswith(parent.run.ns) else self.ns
        levels = level.split(NS_SEP)
        self.streams = tuple(s.below(self.program.stream, (*s.ns, *levels)) for s in parent.run.streams)

    def read_by(self, call: Call, modes: StreamMode | Sequence[StreamMode]) -> None:
        """Attach the reader of this call."""
        envelope = Envelope(not isinstance(modes, str), call.subgraphs, call.version == "v2")
        own = Stream(read_modes(modes), envelope, self._hand_over, self.output_keys)
        self.streams = (*self.streams, own)
        self.live = own.live

    def _hand_over(self, chunk: Any) -> None:
        self.out.append(chunk)
        self.wake()

    @property
    def watched(self) -> bool:
        """Whether the driver must come back as soon as a task ends, instead of when all have."""
        return bool(self.streams) or (self.saver is not None and not self.saver.in_memory)

    # -- what tasks ask for ---------------------------------------------------------------------------------

    def writer_of(self, task: Task) -> StreamWriter:
        """Sends custom events to the reader; does nothing if there is none who asked for them."""
        streams = [s for s in self.streams if s.wants("custom")]
        if not streams:
            return _nobody_listens
        attempt = task.attempt

        def write(data: Any) -> None:
            if task.attempt == attempt:  # an abandoned attempt speaks no more
                for stream in streams:
                    stream.emit("custom", data)

        return write

    def previous(self) -> Any:
        """What an entrypoint saved on this thread."""
        return self.machine.output(PREVIOUS) if PREVIOUS in self.machine.channels else None

    def answers_of(self, task: Task) -> list[Any]:
        """The answers that this task was given before, in the order of its questions."""
        if task.answers is None:
            known = self.stored.get(task.id)
            task.answers = list(known.answers) if known is not None else []
        return task.answers

    def take_answer(self, interrupt_id: str) -> tuple[Any, ...]:
        """The answer to this question as a one-item tuple, empty if there is none; it can be taken once."""
        if interrupt_id in self.answers:
            return (self.answers.pop(interrupt_id),)
        if self.answer is not MISSING:
            answer, self.answer = self.answer, MISSING
            return (answer,)
        return ()

    # -- what the loop saves --------------------------------------------------------------------------------

    def encode(self, task: Task) -> TaskWrites:
        """A finished task's writes as a saver takes them."""
        dumps = self.saver.serde.dumps  # type: ignore[union-attr]
        skip = self.program.untracked
        writes = [(name, dumps(value)) for name, value in task.writes if name not in skip]
        known = self.stored.get(task.id) if self.stored else None
        if known is not None and known.error is not None:
            writes.append((ERROR, dumps(None)))  # it failed before and has now succeeded
        return TaskWrites(task.id, path_text(task.path), writes or [(NO_WRITES, dumps(None))])

    def encode_marks(self, task: Task, marks: Mapping[str, Any]) -> TaskWrites:
        """Control writes of a task that failed or paused."""
        dumps = self.saver.serde.dumps  # type: ignore[union-attr]
        return TaskWrites(task.id, path_text(task.path), [(name, dumps(value)) for name, value in marks.items()])

    def commit(self, source: str, writes: list[TaskWrites]) -> Commit:
        """The superstep just applied, ready to be stored."""
        machine = self.machine
        assert self.saver is not None and self.thread_id is not None
        dumps, channels = self.saver.serde.dumps, machine.channels
        values = {}
        for name in machine.unsaved:
            stored = channels[name].checkpoint()
            try:
                values[name] = None if stored is MISSING else dumps(stored)
            except Exception as error:
                error.add_note(f"while storing key {name!r} after step {machine.step - 1} of thread {self.thread_id!r}")
                raise
        machine.checkpoint_id = new_checkpoint_id()
        commit = Commit(
            self.thread_id,
            self.ns,
            machine.checkpoint_id,
            self.head,
            self.saved_id,
            time.time(),
            {**self.metadata, "source": source, "step": machine.step - 1, "parents": self.parents},
            values,
            {name: machine.versions[name] for name in machine.unsaved},
            {name: machine.seen[name] for name in machine.unsaved_seen},
            None if machine.changed is None else sorted(machine.changed),
            writes,
            machine.checkpoint,
        )
        machine.unsaved = set()
        machine.unsaved_seen = set()
        self.head = self.saved_id = machine.checkpoint_id
        self.committed = commit
        return commit

    def config_of(self, checkpoint_id: str | None) -> RunnableConfig:
        """The config that names one of this run's checkpoints."""
        return address(self.thread_id or "", self.ns, checkpoint_id)


def _nobody_waits() -> None:
    """No driver waits for chunks."""


def _nobody_listens(_: Any) -> None:
    """The writer of a run without a reader of custom events."""


def _names_thread(config: RunnableConfig) -> bool:
    configurable = config.get("configurable")
    return bool(configurable) and any(key in configurable for key in _COORDINATES)  # type: ignore[operator]


def _nested_ns(parent: Task, *, stable: bool) -> str:
    """The namespace of the next graph that `parent` runs; with `stable`, the same in every run of the thread."""
    count = parent.children
    parent.children += 1
    ns = parent.ns
    if stable:
        ns = NS_SEP.join(level.split(":")[0] for level in ns.split(NS_SEP) if not level.isdigit())
    return f"{ns}{NS_SEP}{count}" if count else ns


# -- config ---------------------------------------------------------------------------------------------------


def normalize(config: RunnableConfig) -> RunnableConfig:
    """A config whose unknown top-level keys have moved into `configurable`."""
    if _CONFIG_KEYS.issuperset(config):
        return config
    known = {k: v for k, v in config.items() if k in _CONFIG_KEYS}
    rest = {k: v for k, v in config.items() if k not in _CONFIG_KEYS}
    known["configurable"] = {**rest, **config.get("configurable", {})}
    return known  # type: ignore[return-value]


def merge_configs(*configs: RunnableConfig | None) -> RunnableConfig:
    """Later configs win; tags add up, metadata and configurable merge key by key."""
    merged: dict[str, Any] = {}
    for config in configs:
        for key, value in (normalize(config) if config else _NO_CONFIG).items():
            if key in ("metadata", "configurable"):
                merged[key] = {**merged.get(key, {}), **(value or {})}  # type: ignore[dict-item]
            elif key == "tags":
                old = merged.get(key, [])
                merged[key] = [*old, *(tag for tag in value or () if tag not in old)]  # type: ignore[attr-defined]
            elif value is not None:
                merged[key] = value
    return merged  # type: ignore[return-value]


def inheritable(parent: Task) -> RunnableConfig:
    """What a nested run takes over from the run around it."""
    config = dict(parent.run.config)
    config.pop("run_name", None)
    configurable = dict(config.get("configurable") or {})  # type: ignore[call-overload]
    for key in ("checkpoint_id", "checkpoint_map", "checkpoint_ns"):
        configurable.pop(key, None)
    return {**config, "configurable": configurable}  # type: ignore[typeddict-item]


def recursion_limit(config: RunnableConfig) -> int:
    """The call's limit.

    Raises:
        ValueError: it is below 1.
    """
    limit = config.get("recursion_limit")
    if limit is None:
        return DEFAULT_RECURSION_LIMIT
    if limit < 1:
        raise ValueError(f"recursion_limit must be at least 1, not {limit!r}")
    return limit


def scalars(config: RunnableConfig, run_id: str | None) -> dict[str, Any]:
    """The part of a config that is kept in every checkpoint's metadata: plain values under plain names."""
    found: dict[str, Any] = {}
    for source in (config.get("configurable"), config.get("metadata")):
        for key, value in (source or {}).items():
            if isinstance(value, (str, int, float, bool)) and key not in _NOT_METADATA and not key.startswith("__"):
                found[key] = value.replace("\0", "") if isinstance(value, str) else value
    if run_id is not None:
        found["run_id"] = run_id
    return found


def check_durability(durability: Durability | None, run: Run) -> Durability:
    """The call's durability, else the enclosing run's, else "sync".

    Raises:
        ValueError: it is none of the three.
    """
    if durability is None:
        return run.parent.run.durability if run.parent is not None else "sync"
    if durability not in get_args(Durability):
        raise ValueError(f"unknown durability {durability!r}; there are {', '.join(get_args(Durability))}")
    if run.saver is None:
        warnings.warn("durability has no effect: the graph has no checkpointer", UserWarning, stacklevel=5)
    return durability


def check_keys(program: Program, keys: str | Sequence[str]) -> str | tuple[str, ...]:
    """Output keys that exist.

    Raises:
        ValueError: naming one that does not.
    """
    for key in (keys,) if isinstance(keys, str) else keys:
        if key not in program.channels:
            raise ValueError(f"output key {key!r} does not exist; {nearest(key, program.channels)}")
    return keys if isinstance(keys, str) else tuple(keys)


def check_breakpoints(names: All | Sequence[str], program: Program) -> All | Sequence[str]:
    """Breakpoints that name nodes.

    Raises:
        InvalidGraphError: naming those that do not.
    """
    if names == "*":
        return "*"
    listed = (names,) if isinstance(names, str) else tuple(names)
    nodes = [n for n in program.nodes if not program.nodes[n].hidden]
    unknown = [n for n in listed if n not in nodes]
    if unknown:
        raise InvalidGraphError([f"interrupt at unknown node {n!r}; {nearest(n, nodes)}" for n in unknown])
    return listed


# -- ids ------------------------------------------------------------------------------------------------------

_random = random.Random(os.urandom(16))
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(16)))


def new_checkpoint_id() -> str:
    """A UUID of version 7: sorts by time for the eye, unique without it. Nothing relies on the order."""
    bits = _random.getrandbits(74)
    millis = f"{time.time_ns() // 1_000_000:012x}"
    return f"{millis[:8]}-{millis[8:]}-7{bits >> 62:03x}-{0x8000 | (bits >> 48) & 0x3FFF:04x}-{bits & 0xFFFFFFFFFFFF:012x}"
