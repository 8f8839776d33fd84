"""`Observer`: what is told of a run while it goes, and what surrounds the code of its nodes.

Only what users see stands here: plain records and a class to derive from. Who tells an observer is
`run.observing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .types import Interrupt

EndStatus: TypeAlias = Literal["finished", "paused", "failed", "stopped"]
"""How a run or a task has ended. `paused`: it asks questions, or is held by a breakpoint.
`stopped`: it was cancelled or drained, or its reader has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Which run. Equal for all events of one call of a graph, so it may be the key of a dict; a
    nested graph has a run of its own.

    Attributes:
        id: made for this call, different for every other one.
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
    """Which task: one execution of a node, or one call of a `@task`. Equal for all events of one
    task in one run, retries included.

    Attributes:
        run: the run that it belongs to.
        id: the task's id, which is also its `runtime.idempotency_key`.
        node: the name of its node, or of its `@task`.
        step: the number of the step on the thread in which it starts.
        attempt: which try this is, from 1.
        carried: in the process of an executor: what `carry` gave for the task; else empty.
    """

    run: RunInfo
    id: str
    node: str = field(compare=False)
    step: int = field(default=0, compare=False)
    attempt: int = field(default=1, compare=False)
    carried: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """What a task asks of a model or a tool: by `call_model`, `create_agent` or a `ToolNode`.

    Attributes:
        kind: "chat": a model is asked; "execute_tool": a tool is called.
        name: of the model, if it has one, or of the tool.
        provider: who offers the model, such as "openai".
        call_id: by which the model knows the call of a tool.
        options: of the request to the model.
        response: what is known of the model's answer once `call` has returned, as far as the model
            tells: `id`, `model`, `finish_reasons`, `input_tokens`, `output_tokens`.
    """

    kind: Literal["chat", "execute_tool"]
    name: str = ""
    provider: str = ""
    call_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    response: dict[str, Any] = field(default_factory=dict)


class Observer:
    """Is told what runs do, and may surround the code of their nodes. Derive from it and define
    what you need; whatever you leave out costs nothing.

    Give it to `compile(observer=...)`, to a node (`add_node(..., observer=...)`: its tasks only),
    to a call (`invoke(..., observer=...)`), to a `Worker`, or to all runs of the process
    (`add_observer`). Nested graphs are observed by those of the run around them, too.

    Methods are called at once, on the thread and in the context where it happens, and may be called
    from several threads at a time: keep them short. They must not wait. What one raises is logged
    once (logger "stategraph") and does not change the run.

    `around`, `around_operation` and their twins run where the node's function runs, which may be
    another process. An observer that defines one of them is pickled for that; one that was given by
    name ("module:name") is imported there instead.

    >>> class Count(Observer):
    ...     ended = 0
    ...     def task_ended(self, task, status, seconds, error):
    ...         self.ended += 1
    """

    # -- the run -----------------------------------------------------------------------------------

    def run_started(self, run: RunInfo) -> None:
        """A call of a graph begins."""

    def thread_loaded(
        self, run: RunInfo, checkpoint_id: str, metadata: Mapping[str, Any]
    ) -> None:
        """The run goes on from a stored checkpoint. Not called for a new thread.

        Args:
            metadata: of that checkpoint, with what `carry` gave to the run that made it.
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
        """A superstep has ended, however it did; its commit is part of the time.

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
        """A task does not run, since an earlier call has stored how it ended."""

    def task_cached(self, task: TaskInfo) -> None:
        """The result of a task was found in the cache. `task_ended` follows."""

    def attempt_failed(self, task: TaskInfo, error: BaseException, seconds: float) -> None:
        """An attempt has raised. `task_retried` or `task_ended` follows."""

    def task_retried(self, task: TaskInfo, error: BaseException, delay: float) -> None:
        """The next attempt begins in so many seconds. `task` is that of the attempt that failed."""

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """A task that had started has ended, all attempts and the time between them included."""

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """A task pauses with this question, or is found waiting for its answer. `task_ended` or
        `task_restored` follows."""

    def question_answered(self, task: TaskInfo, question_id: str) -> None:
        """A task that has ended used the answer to this question, which the call had brought."""

    # -- storing, and what goes wrong --------------------------------------------------------------

    def committed(self, run: RunInfo, step: int, seconds: float, size: int) -> None:
        """A step is stored.

        Args:
            seconds: how long that took.
            size: bytes of the values and writes that were new.
        """

    def conflicted(self, run: RunInfo, error: BaseException) -> None:
        """Another run has written to the thread: nothing of this one is stored any more."""

    def worker_lost(self, task: TaskInfo, error: BaseException) -> None:
        """A worker of an executor died while it ran the task."""

    # -- surrounding -------------------------------------------------------------------------------

    def around(self, task: TaskInfo, call: Callable[[], Any]) -> Any:
        """Surrounds each attempt of a node or `@task` that is a plain function, or of a nested
        graph in a sync run. Context variables that you set are seen by what `call` runs.

        Args:
            call: calls the function; it may be called again.

        Returns:
            What counts as the function's result: `call()`'s, or one of your own.
        """
        return call()

    async def aaround(self, task: TaskInfo, call: Callable[[], Awaitable[Any]]) -> Any:
        """`around` for what is awaited: coroutine functions, and nested graphs in an async run."""
        return await call()

    def around_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Any]
    ) -> Any:
        """Surrounds what a task asks of a model or a tool, as `around` surrounds the task."""
        return call()

    async def aaround_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """`around_operation` for what is awaited."""
        return await call()

    def carry(self, about: RunInfo | TaskInfo | None) -> Mapping[str, str]:
        """What goes with it to others, as strings.

        Args:
            about: of a run, what each of its checkpoints keeps in its metadata; `thread_loaded`
                shows it to the run that goes on from there. Of a task, what its attempts on
                executors find in `TaskInfo.carried`. None: what a job that is submitted now takes
                along in its config's metadata.
        """
        return {}


AnyObserver: TypeAlias = "Observer | str"
"""An observer, or the name of one: "module:name" of an instance, or of a class that takes no
arguments."""
