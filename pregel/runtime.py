"""What a running node may use: its runtime, config, store and stream writer. One context variable
holds the task.

Nodes get these by parameter (see `program.callables`) or by the `get_...` functions. Nothing here
starts, waits or stores.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Protocol

from typing_extensions import TypeVar

from .types import RunnableConfig, StreamMode, StreamWriter

ContextT_co = TypeVar("ContextT_co", default=Any, covariant=True)
SchemaT = TypeVar("SchemaT", default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInfo:
    """Which task is running, where, and in which attempt.

    Attributes:
        checkpoint_ns: the task's own namespace, `node:task id`, after those of the tasks that
            contain it.
        node_attempt: 1 for the first attempt; each retry adds 1.
        node_first_attempt_time: when the first attempt began, in seconds since the epoch.
    """

    checkpoint_id: str | None
    checkpoint_ns: str
    task_id: str
    thread_id: str | None = None
    run_id: str | None = None
    node_attempt: int = 1
    node_first_attempt_time: float | None = None


@dataclass(frozen=True, slots=True)
class NodeError:
    """What an error handler gets.

    Attributes:
        node: the name of the node that failed.
        error: what its last attempt raised.
    """

    node: str
    error: BaseException


class RunControl:
    """A handle by which a run can be asked to stop between two supersteps.

    `request_drain` may be called from any thread, and by a node. The run stores everything and ends
    with `GraphDrained` before its next superstep.
    """

    __slots__ = ("drain_reason",)

    def __init__(self) -> None:
        self.drain_reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Ask the run to stop before its next superstep. Only the first call counts."""
        if self.drain_reason is None:
            self.drain_reason = reason

    @property
    def drain_requested(self) -> bool:
        """Whether `request_drain` was called."""
        return self.drain_reason is not None


def _no_op(_: Any = None) -> None:
    """A stream writer without a reader, or a heartbeat without an idle timeout."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runtime(Generic[ContextT_co]):
    """What a node gets that takes a parameter `runtime`.

    Attributes:
        context: what the call passed as `context=`; an instance of the graph's context schema, if
            any.
        store: the graph's store, or None.
        stream_writer: sends one custom event to the reader of the stream.
        previous: the value that the last run of an entrypoint saved on this thread.
        execution_info: the ids and the attempt of the current task.
        control: the handle by which the run can be asked to stop.
        idempotency_key: pass it to external services. It is the same for every retry and resume of
            this task, and a new one in a fork.
        heartbeat: a function that tells an idle timeout that the node is alive.
        server_info: always None; for programs written for LangGraph's server.
    """

    context: ContextT_co = None  # type: ignore[assignment]
    store: Any = None
    stream_writer: StreamWriter = _no_op
    previous: Any = None
    execution_info: ExecutionInfo | None = None
    control: RunControl | None = None
    idempotency_key: str = ""
    heartbeat: Callable[[], None] = _no_op
    server_info: None = None

    @property
    def drain_requested(self) -> bool:
        """Whether this run was asked to stop."""
        return self.control is not None and self.control.drain_requested

    @property
    def drain_reason(self) -> str | None:
        """The reason given for the stop, or None."""
        if not self.control:
            return None
        return self.control.drain_reason

    def override(self, **changes: Any) -> Runtime[ContextT_co]:
        """A copy in which some attributes are replaced."""
        return replace(self, **changes)


class AnswerLookup(Protocol):
    """The answers to the questions of one task."""

    @property
    def given(self) -> dict[str, Any]:
        """The answers that the task was given, by interrupt id; an answer that is taken is added
        here."""

    def take(self, question: str) -> tuple[Any, ...]:
        """An answer that the call brings, as a one-item tuple; empty if it brings none. It can be
        taken once."""

    def brought(self) -> dict[str, Any]:
        """The answers that the call brings for recorded questions of the task, by interrupt id."""

    def shown(self, question: str) -> Any:
        """The `Interrupt` that is recorded under this id, or None."""

    def reject(self, question: str) -> None:
        """An answer did not fit its question: no later call takes it up."""


class Running(Protocol):
    """What a task offers to the code it runs, and to `interrupt`, messages and `@task`. Nothing of
    this names the run, so a function works the same where only a proxy of its task stands. Each
    part is built when first asked for."""

    writes: list[tuple[str, Any]]

    @property
    def name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def config(self) -> RunnableConfig: ...
    @property
    def runtime(self) -> Runtime[Any]: ...
    @property
    def writer(self) -> StreamWriter: ...
    @property
    def store(self) -> Any: ...
    @property
    def previous(self) -> Any: ...
    @property
    def node_error(self) -> NodeError | None: ...
    @property
    def executor(self) -> Any:
        """Where its `@task` calls run that name no executor; None for the driver's threads."""

    def heartbeat(self) -> None: ...
    def known_channels(self) -> Container[str]:
        """The keys that it may write to."""

    def find_answers(self) -> AnswerLookup | None:
        """Its answers; None if no answer can ever come, since nothing keeps the thread."""

    def listens(self, mode: StreamMode) -> bool:
        """Whether somebody reads this stream mode."""

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk to all who read this stream mode."""

    def call(self, node: Any, arguments: Any) -> Any:
        """Start a `@task` call; its future."""


RUNNING: ContextVar[Any] = ContextVar("stategraph_running", default=None)
"""The task whose code is running in this context, or None."""


def running(what: str) -> Any:
    """The current task, which `what` needs.

    Raises:
        RuntimeError: no task is running in this context.
    """
    task = RUNNING.get()
    if task is None:
        raise RuntimeError(
            f"{what} must be called inside a running node. In a thread of your own, run the call "
            "in a contextvars.copy_context() that was taken inside the node."
        )
    return task


def get_config() -> RunnableConfig:
    """The config of the running task.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_config()")
    return task.config


def get_store() -> Any:
    """The store of the running graph, or None if it has none.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_store()")
    return task.store


def get_stream_writer() -> StreamWriter:
    """The function that sends custom events of the running task. Other threads may call it, too.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_stream_writer()")
    return task.writer


def get_runtime(schema: type[SchemaT] | None = None) -> Runtime[SchemaT]:
    """The runtime of the running task. `schema` is for type checkers only: the type of `context`.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_runtime()")
    return task.runtime


class ManagedValue:
    """A state key whose value the engine computes for each task. Nodes can read it but not write
    it."""

    name: ClassVar[str]

    @staticmethod
    def get(remaining_steps: int) -> Any:
        """The value.

        Args:
            remaining_steps: how many supersteps this call may still take, including the current
                one.
        """
        raise NotImplementedError


class IsLastStepManager(ManagedValue):
    """Whether this is the last superstep the call may take."""

    name = "IsLastStep"

    @staticmethod
    def get(remaining_steps: int) -> bool:
        return remaining_steps == 1


class RemainingStepsManager(ManagedValue):
    """How many supersteps the call may still take, including the current one."""

    name = "RemainingSteps"

    @staticmethod
    def get(remaining_steps: int) -> int:
        return remaining_steps


IsLastStep = Annotated[bool, IsLastStepManager]
"""The annotation of a state key that says whether this superstep is the last the call may take."""
RemainingSteps = Annotated[int, RemainingStepsManager]
"""The annotation of a state key that says how many supersteps the call may still take, including
the current one."""
