"""`Observer`: what is told of a run while it goes, and what surrounds the code of its nodes.

Only what users see stands here: plain records and a class to derive from. Who tells an observer is
`run.observing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .errors import closest, warn
from .types import Interrupt

EndStatus: TypeAlias = Literal["finished", "paused", "failed", "stopped"]
"""How a run or a task ended. `paused`: it asks questions or stopped at a breakpoint.
`stopped`: it was cancelled or drained, or its reader closed the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Identifies a run. Equal for all events of one call of a graph, so it works as a dict key. A
    nested graph has its own run.

    Attributes:
        id: unique to this call.
        graph: the graph's name.
        thread_id, run_id: as the config has them, or None.
        ns: which nested graph; "" for a whole graph.
        metadata: the plain values (str, int, float, bool) of the config's `metadata` and
            `configurable`.
        parent: the task that runs this graph; None for a whole graph, or if that task is not
            observed.
    """

    id: str
    graph: str = field(compare=False)
    thread_id: str | None = field(default=None, compare=False)
    run_id: str | None = field(default=None, compare=False)
    ns: str = field(default="", compare=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    parent: TaskInfo | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Identifies a task: one execution of a node, or one call of a `@task`. Equal for all events of
    one task in one run, retries included.

    Attributes:
        run: the run that it belongs to.
        id: the task's id, which is also its `runtime.idempotency_key`.
        node: the name of its node, or of its `@task`.
        step: the number of the step on the thread in which it starts.
        attempt: the number of this attempt, from 1.
        carried: in an executor's process, what `carry` returned for the task; else empty.
    """

    run: RunInfo
    id: str
    node: str = field(compare=False)
    step: int = field(default=0, compare=False)
    attempt: int = field(default=1, compare=False)
    carried: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """A request of a task to a model or a tool, by `call_model`, `create_agent` or a `ToolNode`.

    Attributes:
        kind: "chat": a model is asked; "execute_tool": a tool is called.
        name: of the model, if it has one, or of the tool.
        provider: the provider of the model, such as "openai".
        call_id: the model's id for the tool call.
        options: of the request to the model.
        request: the messages that the model is given, or the arguments of the tool as the model has
            written them.
        response: what is known of the model's answer once `call` has returned, as far as the model
            tells: `id`, `model`, `finish_reasons`, `input_tokens`, `output_tokens`.
    """

    kind: Literal["chat", "execute_tool"]
    name: str = ""
    provider: str = ""
    call_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    request: Any = field(default=None, repr=False)
    response: dict[str, Any] = field(default_factory=dict)


class Observer:
    """Receives the events of runs, and may wrap the code of their nodes. Derive from it and define
    the methods you need; those you leave out cost nothing.

    Give it to `compile(observer=...)`, to a node (`add_node(..., observer=...)`: its tasks only),
    to a call (`invoke(..., observer=...)`), to a `Worker`, or to all runs of the process
    (`add_observer`). The observers of a run also observe its nested graphs.

    The engine calls methods at once, on the thread and in the context of the event, possibly from
    several threads at a time: keep them short, and do not block in them. An exception is logged
    once (logger "stategraph") and does not affect the run.

    `around`, `around_operation` and their twins run where the node's function runs, which may be
    another process. An observer that defines one of them is pickled for that process; one given by
    name ("module:name") is imported there instead.

    >>> class Count(Observer):
    ...     ended = 0
    ...     def task_ended(self, task, status, seconds, error):
    ...         self.ended += 1
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Warn of a method whose name is almost that of an event: nobody would ever call it."""
        super().__init_subclass__(**options)
        events = [name for name in vars(Observer) if not name.startswith("_")]
        for name in vars(cls):
            if not name.startswith("_") and not hasattr(cls.__base__, name):
                meant = closest(name, events, cutoff=0.85)
                if meant is not None:
                    text = f"{cls.__name__}.{name} is no event of an Observer"
                    warn(f"{text}; did you mean {meant!r}?")

    # -- the run -----------------------------------------------------------------------------------

    def run_started(self, run: RunInfo) -> None:
        """A call of a graph begins."""

    def thread_loaded(
        self, run: RunInfo, checkpoint_id: str, metadata: Mapping[str, Any]
    ) -> None:
        """The run continues from a stored checkpoint. Not called for a new thread.

        Args:
            metadata: of that checkpoint, with what `carry` returned for the run that made it.
        """

    def run_ended(
        self, run: RunInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """The call has ended. Its reader may still have chunks to take.

        Args:
            error: what it raises, or None.
        """

    def step_started(self, run: RunInfo, step: int, nodes: tuple[str, ...]) -> None:
        """A superstep begins, with a task of each of these nodes (a name for each task).

        With schedule="ready" a step begins as soon as the one before is stored; tasks of these
        nodes start in it, beside what is under way. There may be none of them.
        """

    def step_ended(self, run: RunInfo, step: int, seconds: float) -> None:
        """A superstep has ended, in whatever way; `seconds` includes its commit.

        With schedule="ready" it ends with the first of the tasks that are under way.
        """

    def breakpoint_reached(self, run: RunInfo, nodes: tuple[str, ...]) -> None:
        """The run stops at a breakpoint, with tasks of these nodes to follow."""

    # -- its tasks ---------------------------------------------------------------------------------

    def task_started(self, task: TaskInfo) -> None:
        """A task begins. Called once for all its attempts."""

    def task_restored(
        self, task: TaskInfo, status: EndStatus, error: BaseException | None
    ) -> None:
        """A task does not run because an earlier call stored its outcome."""

    def task_cached(self, task: TaskInfo) -> None:
        """The result of a task was found in the cache. `task_ended` follows."""

    def attempt_failed(self, task: TaskInfo, error: BaseException, seconds: float) -> None:
        """An attempt has raised. `task_retried` or `task_ended` follows."""

    def task_retried(self, task: TaskInfo, error: BaseException, delay: float) -> None:
        """The next attempt begins in `delay` seconds. `task` describes the failed attempt."""

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """A started task has ended. `seconds` covers all attempts and the time between them."""

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """A task pauses with this question, or is found waiting for its answer. `task_ended` or
        `task_restored` follows."""

    def question_answered(self, task: TaskInfo, question_id: str) -> None:
        """A task that has ended used the answer to this question, which came with the call."""

    # -- storing, and what goes wrong --------------------------------------------------------------

    def committed(self, run: RunInfo, step: int, seconds: float, size: int) -> None:
        """A step is stored.

        Args:
            seconds: how long that took.
            size: bytes of the values and writes that were new.
        """

    def conflicted(self, run: RunInfo, error: BaseException) -> None:
        """Another run has written to the thread: the engine stores nothing more of this one."""

    def worker_lost(self, task: TaskInfo, error: BaseException) -> None:
        """A worker of an executor died while it ran the task."""

    # -- surrounding -------------------------------------------------------------------------------

    def around(self, task: TaskInfo, call: Callable[[], Any]) -> Any:
        """Wrap each attempt of a node or `@task` that is a plain function, or of a nested
        graph in a sync run. Context variables that you set are seen by what `call` runs.

        Args:
            call: calls the function; it may be called again.

        Returns:
            The function's result: that of `call()`, or another one.
        """
        return call()

    async def aaround(self, task: TaskInfo, call: Callable[[], Awaitable[Any]]) -> Any:
        """`around` for what is awaited: coroutine functions, and nested graphs in an async run."""
        return await call()

    def around_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Any]
    ) -> Any:
        """Wrap a request to a model or a tool, as `around` wraps the task."""
        return call()

    async def aaround_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """`around_operation` for what is awaited."""
        return await call()

    def carry(self, about: RunInfo | TaskInfo | None) -> Mapping[str, str]:
        """Return strings to pass along with a run, a task or a job.

        Args:
            about: for a run, each of its checkpoints keeps the strings in its metadata, and
                `thread_loaded` shows them to the run that continues from there. For a task, its
                attempts on executors find them in `TaskInfo.carried`. For None, a job submitted
                now takes them along in its config's metadata.
        """
        return {}


AnyObserver: TypeAlias = "Observer | str"
"""An observer, or the name of one: "module:name" of an instance, or of a class that takes no
arguments."""
