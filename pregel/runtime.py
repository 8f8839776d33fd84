"""What a running node may hold, kept in one context variable.

Nodes get these by parameter (see `callable`) or by the `get_...` functions. Nothing here starts, waits or stores.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Generic, Protocol

from typing_extensions import TypeVar

from .types import RunnableConfig, StreamWriter

ContextT = TypeVar("ContextT", default=Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInfo:
    """Where and how often the current task runs.

    Attributes:
        checkpoint_ns: the task's own namespace, `node:task id`, with those of enclosing tasks before it.
        node_attempt: 1 for the first try, counted up by retries.
        node_first_attempt_time: seconds since the epoch.
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
    """What an error handler is told.

    Attributes:
        node: the name of the node that failed.
        error: what its last attempt raised.
    """

    node: str
    error: BaseException


class RunControl:
    """A handle to ask a run to stop in good order.

    `request_drain` may be called from any thread, also by a node: the run ends before its next superstep with
    `GraphDrained`, everything stored.
    """

    __slots__ = ("drain_reason",)

    def __init__(self) -> None:
        self.drain_reason: str | None = None

    def request_drain(self, reason: str = "shutdown") -> None:
        """Stop before the next superstep. A second call changes nothing."""
        if self.drain_reason is None:
            self.drain_reason = reason

    @property
    def drain_requested(self) -> bool:
        """Whether `request_drain` was called."""
        return self.drain_reason is not None


def _no_op(_: Any = None) -> None:
    """A writer that nobody reads, a heartbeat that nobody waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime(Generic[ContextT]):
    """What the run lends to a node that asks for `runtime`.

    Attributes:
        context: the object passed as `context=`, an instance of the graph's context schema if it has one.
        store: the graph's store, or None.
        stream_writer: sends one custom event to the reader of the stream.
        previous: the value saved by the last run of an entrypoint on this thread.
        execution_info: ids and attempt of the current task.
        control: to ask for a drain.
        idempotency_key: the same for every retry and resume of this task, new in a fork; for external effects.
        heartbeat: tells an idle timeout that the node is alive.
        server_info: None; for programs that ask whether a server of the peer runs them.
    """

    context: ContextT = None  # type: ignore[assignment]
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
        """Why, or None."""
        return self.control.drain_reason if self.control else None

    def override(self, **changes: Any) -> Runtime[ContextT]:
        """A copy with other attributes."""
        return replace(self, **changes)


class Running(Protocol):
    """What a task offers to the code it runs; each part is built when first asked for."""

    @property
    def config(self) -> RunnableConfig: ...
    @property
    def runtime(self) -> Runtime[Any]: ...
    @property
    def writer(self) -> StreamWriter: ...
    @property
    def store(self) -> Any: ...


RUNNING: ContextVar[Any] = ContextVar("stategraph_running", default=None)
"""The task whose code is running, or None."""


def running(what: str) -> Any:
    """The current task; `what` was called and needs one.

    Raises:
        RuntimeError: no task is running in this context.
    """
    task = RUNNING.get()
    if task is None:
        raise RuntimeError(
            f"{what} was called outside of a running node. In a thread of your own, run the call in "
            "contextvars.copy_context() taken inside the node."
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
    """The function that sends custom events of the running task; it may be handed to other threads.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_stream_writer()")
    return task.writer


def get_runtime(schema: type[ContextT] | None = None) -> Runtime[ContextT]:
    """The runtime of the running task. `schema` only tells type checkers what `context` is.

    Raises:
        RuntimeError: called outside of a node or task.
    """
    task: Running = running("get_runtime()")
    return task.runtime


class ManagedValue:
    """A state key whose value the engine computes for each task; it can be read and never written."""

    name: ClassVar[str]

    @staticmethod
    def get(remaining_steps: int) -> Any:
        """The value, given how many supersteps this call may still take, the current one counted."""
        raise NotImplementedError


class IsLastStepManager(ManagedValue):
    """Whether this is the last superstep the call may take."""

    name = "IsLastStep"

    @staticmethod
    def get(remaining_steps: int) -> bool:
        return remaining_steps == 1


class RemainingStepsManager(ManagedValue):
    """How many supersteps the call may still take, the current one counted."""

    name = "RemainingSteps"

    @staticmethod
    def get(remaining_steps: int) -> int:
        return remaining_steps


IsLastStep = Annotated[bool, IsLastStepManager]
"""Annotate a state key with this to know whether this superstep is the last the call may take."""
RemainingSteps = Annotated[int, RemainingStepsManager]
"""Annotate a state key with this to know how many supersteps the call may still take, this one counted."""
