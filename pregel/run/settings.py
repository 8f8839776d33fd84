"""What is settled before a call starts, and never changes while it runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from ...channels.base import MISSING
from ...checkpoint.base import BaseCheckpointSaver, Checkpoint, address
from ...checkpoint.serde import Serializer
from ...extras import load_part
from ..control import Ending, RunControl, TimedControl
from ..program.program import Program
from ..task.spans import EVERYWHERE
from ..types import DEFAULT_RECURSION_LIMIT, LOCAL, All, Durability, OnFailure, RunnableConfig
from .checks import (
    check_breakpoints,
    check_choice,
    read_observers,
    resolve_executor,
)
from .config import Call, inheritable, merge_configs, recursion_limit, warn_of_context

if TYPE_CHECKING:
    from ..task.observers import Watcher


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
    on_failure: OnFailure | None
    limited: bool
    executor: Any
    inbox: bool
    observers: Sequence[Any]
    context_schema: Any
    migrate: Callable[[Checkpoint, Sequence[str]], Checkpoint] | None

    def coerce_context(self, context: Any) -> Any: ...

    def output_form(self, typed: bool) -> Callable[[Any], Any] | None: ...

    def nested(self, ns: str) -> Any: ...


NO_PARENTS: Mapping[str, str] = {}


class Thread:
    """Which thread a run works on, and which part of it.

    Attributes:
        saver: the checkpointer, or None.
        thread_id: None without a checkpointer, if the caller has named none.
        ns: "" for a whole graph, else the namespace of the task that runs it.
        run_id: the name by which the caller would deliver the same call again, or None.
        checkpoint_id: the checkpoint that the caller has named, or None.
        nested: namespace and checkpoint, if that is one of a nested graph.
        parents: namespace → the checkpoint from which each graph around this one runs.
        position: see `TaskPlace`; empty for a whole graph.
        epoch: the time of day, in seconds, at which `perf_counter` was zero: spans of tasks are
            told by it. Only kept for a checkpointer.
    """

    __slots__ = (
        "checkpoint_id",
        "epoch",
        "nested",
        "ns",
        "parents",
        "position",
        "run_id",
        "saver",
        "thread_id",
    )

    def __init__(
        self,
        saver: BaseCheckpointSaver | None,
        thread_id: str | None,
        ns: str,
        run_id: str | None,
        checkpoint_id: str | None = None,
        nested: tuple[str, str] | None = None,
        parents: Mapping[str, str] = NO_PARENTS,
        position: tuple[int, ...] = (),
    ) -> None:
        self.saver: Final = saver
        self.thread_id: Final = thread_id
        self.ns: Final = ns
        self.run_id: Final = run_id
        self.checkpoint_id: Final = checkpoint_id
        self.nested: Final = nested
        self.parents: Final = parents
        self.position: Final = position
        self.epoch: Final = 0.0 if saver is None else time.time() - time.perf_counter()

    @property
    def names_checkpoint(self) -> bool:
        """Whether the caller has named a checkpoint."""
        return self.checkpoint_id is not None or self.nested is not None

    def config_of(self, checkpoint_id: str | None) -> RunnableConfig:
        """The config that names one of the checkpoints of this part of the thread."""
        return address(self.thread_id or "", self.ns, checkpoint_id)

    def __str__(self) -> str:
        if self.saver is None:
            return "a graph without a checkpointer"
        return f"thread {self.thread_id!r}"


def find_run_id(config: RunnableConfig) -> str | None:
    """The name of the run: from `run_id`, or from the metadata or `configurable`."""
    found = config.get("run_id") or config.get("metadata", {}).get("run_id")
    found = found or config.get("configurable", {}).get("run_id")
    if found is None:
        return None
    return str(found)


class Settings:
    """What a call runs with: the call's own choice, else the graph's, else that of the run around
    it. The functions `_choose_…` below say so for what takes more than a line.

    Attributes:
        graph: the compiled graph that was called. What is the graph's alone is looked up there.
        given: the input, as the caller gave it.
        config: the caller's, merged with the graph's and with that of the run around it.
        limit: how many supersteps of user nodes this call may take.
        executor: where nodes run that have no executor of their own; None for the driver's threads.
        interrupt_before, interrupt_after: the nodes at which a run stops, or "*".
        serde: the checkpointer's, or the graph's own without a checkpointer.
        on_failure: what the failure of a task does to its siblings.
        observers: the `Watcher`s of the run, the outermost first.
        deadline: when no further task starts, or None.
        ending: whether this run is to end early, as another call of its thread may ask.
        inbox: the run takes what is posted to its thread.
    """

    __slots__ = (
        "cache", "config", "context", "control", "deadline", "durability", "ending",
        "executor", "given", "graph", "inbox", "interrupt_after", "interrupt_before", "limit",
        "observers", "on_failure", "program", "serde", "step_timeout", "store",
    )  # fmt: skip

    def __init__(
        self,
        graph: Graph,
        given: Any,
        config: RunnableConfig,
        call: Call,
        thread: Thread,
        around: Settings | None,
    ) -> None:
        outer: Any = around or OUTERMOST
        self.graph: Final[Any] = graph
        self.given: Final = given
        self.config: Final = config
        own = graph.executor if call.executor is None else resolve_executor(call.executor)
        self.executor: Final[Any] = outer.executor if own is None else own
        # The program of the graph, with its nodes on the executor of this call.
        self.program: Final[Program] = (
            graph.program
            if self.executor in (None, LOCAL)
            else load_part("placement").place_program(graph.program, self.executor, graph.store)
        )
        self.durability: Final[Durability] = _choose_durability(call, thread, outer)
        self.context: Final[Any] = _choose_context(graph, config, call, around)
        self.store: Final[Any] = outer.store if graph.store is None else graph.store
        self.cache: Final[Any] = outer.cache if graph.cache is None else graph.cache
        self.deadline: Final = config.get("deadline")
        self.control: Final[RunControl] = _choose_control(self.deadline, call, outer)
        self.ending: Final[Ending] = outer.ending or Ending()
        self.on_failure: Final[OnFailure] = call.on_failure or graph.on_failure or outer.on_failure
        is_observed = graph.observers or call.observer is not None or EVERYWHERE or outer.observers
        self.observers: Final[tuple[Watcher, ...]] = (
            _list_observers(graph, call, outer.observers) if is_observed else ()
        )
        self.limit: Final = recursion_limit(config) if config else DEFAULT_RECURSION_LIMIT
        self.interrupt_before: Final = _choose_breakpoints(
            call.interrupt_before, graph.interrupt_before, self.program
        )
        self.interrupt_after: Final = _choose_breakpoints(
            call.interrupt_after, graph.interrupt_after, self.program
        )
        if self.program.starts_ready and graph.step_timeout is not None:
            raise ValueError(
                "schedule='ready' has no supersteps, so none can time out: set step_timeout to "
                "None, and give nodes a timeout"
            )
        self.step_timeout: Final = graph.step_timeout
        # Graphs inside leave what is posted to the whole thread to the outermost.
        self.inbox: Final = graph.inbox and thread.saver is not None and not thread.ns
        self.serde: Final = graph.serde if thread.saver is None else thread.saver.serde

    @property
    def one_at_a_time(self) -> bool:
        """Whether tasks run one after another."""
        return self.config.get("max_concurrency") == 1


class Outermost(NamedTuple):
    """What a call inherits where no run is around it."""

    cache: None = None
    context: None = None
    control: None = None
    deadline: None = None
    durability: Durability = "sync"
    ending: None = None
    executor: None = None
    observers: tuple[Watcher, ...] = ()
    on_failure: OnFailure = "stop"
    store: None = None


OUTERMOST = Outermost()


def _choose_durability(call: Call, thread: Thread, outer: Any) -> Durability:
    asked = call.durability
    if asked is None:
        return outer.durability  # type: ignore[no-any-return]
    check_choice("durability", asked, Durability)
    if thread.saver is None:
        warnings.warn(
            "durability has no effect: the graph has no checkpointer", UserWarning, stacklevel=6
        )
    return asked


def _choose_context(
    graph: Graph, config: RunnableConfig, call: Call, around: Settings | None
) -> Any:
    if call.context is not MISSING:
        return graph.coerce_context(call.context)
    if around is not None:
        return around.context
    # A nested graph gets the context of the run around it, so nothing is missing there.
    if graph.context_schema is not None:
        warn_of_context(config)
    return OUTERMOST.context


def _choose_control(deadline: datetime | None, call: Call, outer: Any) -> RunControl:
    """What can end the run: the control that it was given, and the deadline in its config."""
    control: RunControl = call.control or outer.control or RunControl()
    # The control of the run around has that run's deadline already. With two the earlier counts.
    is_new = call.control is not None or deadline != outer.deadline
    return TimedControl(control, deadline) if deadline is not None and is_new else control


def _list_observers(graph: Graph, call: Call, outer: Sequence[Watcher]) -> tuple[Watcher, ...]:
    """Those of the process, of the run around it, of the graph and of the call, in this order, each
    once."""
    inherited = (each for each in outer if each.nodes is None)
    given = (*EVERYWHERE, *inherited, *graph.observers, *read_observers(call.observer))
    return tuple(dict.fromkeys(given))


def _choose_breakpoints(
    asked: All | Sequence[str] | None, own: All | Sequence[str], program: Program
) -> All | Sequence[str]:
    """The breakpoints of the call; else the graph's own, which were checked when it was made."""
    return own if asked is None else check_breakpoints(asked, program)


def merge_around(graph: Graph, config: RunnableConfig, around: Settings | None) -> RunnableConfig:
    """The config of a call: the caller's over the graph's over that of the run around it."""
    if around is not None:
        inherited = inheritable(around.config)
        inherited.pop("callbacks", None)  # they come from the task around, not from its run
        return merge_configs(inherited, graph.config, config)
    return merge_configs(graph.config, config) if graph.config else config
