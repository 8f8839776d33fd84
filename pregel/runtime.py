"""What a running node may use: its runtime, config, store and stream writer.

Nodes get these by parameter (see `program.callables`) or by the `get_...` functions. Nothing here
starts, waits or stores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Coroutine
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import wraps
from typing import Annotated, Any, ClassVar, Generic, ParamSpec, Protocol, overload

from typing_extensions import TypeVar

from ..channels.base import check_kind
from .budgets import read_amounts
from .control import RunControl
from .running import (
    ONCE,
    TRANSACTION,
    AnswerLookup,
    EffectRecord,
    SleepRequest,
    Transaction,
    TransactionRecord,
    begin_effect,
    begin_spend,
    inside_effect,
    note_coroutine,
    running,
    sleep,
)
from .steps import Steps, arun_steps, run_steps
from .types import RunnableConfig, StreamMode, StreamWriter

ContextT_co = TypeVar("ContextT_co", default=Any, covariant=True)
SchemaT = TypeVar("SchemaT", default=Any)
ResultT = TypeVar("ResultT")
P = ParamSpec("P")


def _noted(
    method: Callable[P, Coroutine[Any, Any, ResultT]],
) -> Callable[P, Coroutine[Any, Any, ResultT]]:
    """Let the task refuse to end while what this method returns has not been awaited."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, ResultT]:
        coroutine = method(*args, **kwargs)
        note_coroutine(method.__name__, coroutine)
        return coroutine

    return call


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

    def patch(self, **changes: Any) -> ExecutionInfo:
        """Return a copy with some attributes replaced."""
        return replace(self, **changes)


class ServerUser(dict[str, Any]):
    """The user for whom a server runs a graph. Its keys are attributes, too: `user.identity` is
    `user["identity"]`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the user has no {name!r}") from None


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Tells a node which assistant of which graph a server runs, and for whom.

    Attributes:
        user: who sent the request, as the server's `auth` has found out; None without users.
    """

    assistant_id: str
    graph_id: str
    user: ServerUser | None = None


def find_server_info(config: RunnableConfig) -> ServerInfo | None:
    """Return what a server has written into the config of a run; None without a server."""
    given = config.get("configurable") or {}
    assistant, graph = given.get("assistant_id") or "", given.get("graph_id") or ""
    if not (assistant or graph):
        return None
    user = given.get("langgraph_auth_user")
    return ServerInfo(assistant, graph, ServerUser(user) if type(user) is dict else user)


@dataclass(frozen=True, slots=True)
class NodeError:
    """The argument of an error handler: which node failed, and how.

    Attributes:
        node: the name of the node that failed.
        error: what its last attempt raised.
    """

    node: str
    error: BaseException


def no_op(_: Any = None) -> None:
    """Do nothing: nobody reads, or waits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runtime(Generic[ContextT_co]):
    """The object that a node receives through its parameter `runtime`.

    Attributes:
        context: what the call passed as `context=`; an instance of the graph's context schema, if
            any.
        store: the graph's store, or None.
        stream_writer: sends one custom event to the reader of the stream.
        previous: the value that the last run of an entrypoint saved on this thread.
        execution_info: the ids and the attempt of the current task; None outside of a task.
        control: the handle for asking the run to stop.
        idempotency_key: pass it to external services. It is the same for every retry and resume of
            this task, and a new one in a fork.
        heartbeat: a function that tells an idle timeout that the node is alive.
        joined: the nodes that opened the join, or the joins, behind this task, in the order in
            which the joins name them; () if an edge, a router or a `Send` made it run.
        server_info: which assistant a server runs, and for which user; None without a server.
    """

    context: ContextT_co = None  # type: ignore[assignment]
    store: Any = None
    stream_writer: StreamWriter = no_op
    previous: Any = None
    execution_info: ExecutionInfo = None  # type: ignore[assignment]
    control: RunControl | None = None
    idempotency_key: str = field(default="", repr=False)
    heartbeat: Callable[[], None] = no_op
    joined: tuple[str, ...] = field(default=(), repr=False)
    server_info: ServerInfo | None = None

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

    @overload
    def once(
        self,
        key: str,
        function: Callable[..., ResultT],
        /,
        *args: Any,
        undo: Callable[..., Any],
        **kwargs: Any,
    ) -> ResultT: ...
    @overload
    def once(
        self, key: str, function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> ResultT: ...
    def once(self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Perform an effect once: call the function, record its result, then return it.
        When the task runs again (a retry, a resume, another process), return the recorded result
        without calling the function.

        The record belongs to the task: the next turn of a loop, a fork and a new input repeat
        the effect. `update_state` carries it over if it leads to the task again. A crash between
        the effect and its record repeats the effect, so pass `idempotency_key` to services that
        support one. Exceptions are not recorded.

        Without a checkpointer the record lasts for the attempts of the task in this call only.

        Args:
            key: tells the effect from the others of the task.
            function: called with the other arguments. Its result must be something that a
                checkpoint can store, such as the id of what it created.
            kwargs: `undo` among them is not passed on: a function declared with `effect`, by which
                `undo` of the graph takes it back; see `effect` for its arguments. A function that
                raises has done nothing.

        Raises:
            ValueError: this attempt has already used the key.
            RuntimeError: outside of a node, inside of another effect, with `durability="exit"`, or
                in a coroutine, where `aonce` is awaited.
            UnserializableError: the result cannot be stored. The effect has happened.

        >>> def charge(state: dict, runtime: Runtime) -> dict:
        ...     receipt = runtime.once("charge", lambda: "receipt 1")
        ...     return {"receipt": receipt}
        """
        check_kind("the function of once", function, Callable, "a function")
        record: EffectRecord = begin_effect(ONCE, key, awaits=False)
        known = record.known
        if known:
            return known[0]
        note, _ = _note_undo(key, function, args, kwargs, awaits=False)
        try:
            with inside_effect(key):
                result = function(*args, **kwargs)
        except Exception:
            if note is not None:
                note.withdraw()
            raise
        if hasattr(result, "__await__"):
            if hasattr(result, "close"):
                result.close()  # else Python says that it was never awaited
            raise TypeError(
                f"runtime.once({key!r}) was given a coroutine function: await runtime.aonce(...)"
            )
        record.save(result)
        return result

    @overload
    async def aonce(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        undo: Callable[..., Any],
        **kwargs: Any,
    ) -> Any: ...
    @overload
    async def aonce(
        self,
        key: str,
        function: Callable[P, Awaitable[ResultT]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> ResultT: ...
    @overload
    async def aonce(
        self, key: str, function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs
    ) -> ResultT: ...
    @_noted
    async def aonce(
        self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """`once` for coroutines. The function may be a coroutine function or a plain one."""
        check_kind("the function of aonce", function, Callable, "a function")
        record: EffectRecord = begin_effect(ONCE, key, awaits=True)
        known = record.known
        if known:
            return known[0]
        note, waited = _note_undo(key, function, args, kwargs, awaits=True)
        if waited is not None:
            await waited
        try:
            with inside_effect(key):
                result = function(*args, **kwargs)
                if hasattr(result, "__await__"):
                    result = await result
        except Exception:
            waited = None if note is None else note.withdraw()
            if waited is not None:
                await waited
            raise
        waited = record.save(result)
        if waited is not None:
            await waited
        return result

    def sleep(
        self,
        seconds: float | timedelta | None = None,
        /,
        *,
        until: datetime | None = None,
        key: str | None = None,
        durable_after: float | timedelta = 10.0,
    ) -> None:
        """Pause the task until later.

        The wake-up time is recorded first. A retry, a resume and another process find it there.
        `update_state` carries it over if it leads to the task again; a fork and a new input start
        without it.

        A short sleep waits in place. A long one pauses the task, as a question does: `invoke`
        returns with the time under `"__sleep__"` (`wake_at` of `get_state`), and no thread is held.
        `invoke(None)` before that time runs no task that sleeps and returns the same. After it,
        *the node runs again from its start*, and this call returns at once. The code before the
        call therefore runs again: perform effects with `once`.

        A graph that stores nothing waits in place, however long it takes.

        Args:
            seconds: for how long, in seconds or as a timedelta.
            until: or until when, with a time zone.
            key: tells the sleep from the others of the task. Without a key, a sleep is identified
                by its position among those without one; so give a key to sleeps that run
                concurrently or only sometimes.
            durable_after: with more than this left, in seconds or as a timedelta, the task pauses.

        Raises:
            RuntimeError: outside of a node, inside of an effect, on an executor in another process,
                or in a coroutine, where `asleep` is awaited.
            TypeError: both or none of `seconds` and `until` are given, or something else.
            ValueError: a duration is negative, `until` has no zone, or this attempt has come to the
                same key before.

        >>> def remind(state: dict, runtime: Runtime) -> dict:
        ...     runtime.sleep(timedelta(days=3))
        ...     return {"reminded": True}
        """
        run_steps(sleep(SleepRequest(seconds, until, key, durable_after), awaits=False))

    @_noted
    async def asleep(
        self,
        seconds: float | timedelta | None = None,
        /,
        *,
        until: datetime | None = None,
        key: str | None = None,
        durable_after: float | timedelta = 10.0,
    ) -> None:
        """`sleep` for coroutines."""
        await arun_steps(sleep(SleepRequest(seconds, until, key, durable_after), awaits=True))

    def transaction(
        self,
        key: str,
        function: Callable[..., ResultT],
        /,
        *args: Any,
        on: Any = None,
        isolation: str | None = None,
        **kwargs: Any,
    ) -> ResultT:
        """Call `function(connection, ...)` in a database transaction that also records its result:
        either both its writes and the record are stored, or neither is. A task that runs again
        gets the recorded result, as with `once`.

        The superstep is stored later: if the node fails afterwards, or the thread is edited, forked
        or given new input, the writes stay. The function must be short, use nothing but the
        connection (no graph, nor the checkpointer), and not end the transaction. It is called
        again, up to 5 times, if Postgres rolled it back because of concurrent transactions.

        Args:
            key: tells the transaction from the other effects of the task.
            function: called with a `sqlite3` or psycopg connection and the other arguments. What it
                returns must be something that a checkpoint can store.
            on: a function that opens a connection (`sqlite3` or psycopg), which is then closed, or
                a `psycopg_pool.ConnectionPool`; the record is in `stategraph_completions` there.
                None: the checkpointer's database, where commits of the file, or of the thread,
                wait.
            isolation: on Postgres "read committed", "repeatable read" or "serializable".

        Raises:
            CheckpointConflictError: another run has moved the thread on; nothing was called.
            NotImplementedError: the checkpointer has no transactions.
            RuntimeError: as `once`; and on an executor, without a checkpointer, or if the function
                has used the checkpointer or a graph, or ended the transaction.
            UnserializableError: the result cannot be stored. The transaction was rolled back.
            ValueError: this attempt has already used the key; no such isolation.
        """
        record: TransactionRecord = begin_effect(TRANSACTION, key, awaits=False)
        record.run(Transaction(key, function, args, kwargs, on, isolation))
        return record.result  # type: ignore[no-any-return]

    @_noted
    async def atransaction(
        self,
        key: str,
        function: Callable[..., ResultT],
        /,
        *args: Any,
        on: Any = None,
        isolation: str | None = None,
        **kwargs: Any,
    ) -> ResultT:
        """`transaction` for coroutines. The function must be a plain one; it runs on a thread."""
        record: TransactionRecord = begin_effect(TRANSACTION, key, awaits=True)
        waited = record.run(Transaction(key, function, args, kwargs, on, isolation))
        if waited is not None:
            await waited
        return record.result  # type: ignore[no-any-return]

    def spend(self, *, usd: float = 0, tokens: float = 0, calls: float = 0) -> None:
        """Count what is spent besides models, such as a paid search, before it is spent.
        Without a budget it does nothing.

        Args:
            usd, tokens, calls: how much; see `Budget`.

        Raises:
            BudgetExceededError: the budget is empty already.
            RuntimeError: in a coroutine, where `aspend` is awaited.
            ValueError: an amount is no number >= 0.
        """
        spend = begin_spend(awaits=False)
        if spend is not None:
            spend.reserve(read_amounts(usd=usd, tokens=tokens, calls=calls), swaps=False)

    @_noted
    async def aspend(self, *, usd: float = 0, tokens: float = 0, calls: float = 0) -> None:
        """`spend` for coroutines."""
        spend = begin_spend(awaits=True)
        if spend is not None:
            await spend.reserve(read_amounts(usd=usd, tokens=tokens, calls=calls), swaps=False)

    def override(self, **changes: Any) -> Runtime[ContextT_co]:
        """Return a copy with some attributes replaced."""
        return replace(self, **changes)

    def merge(self, other: Runtime[Any]) -> Runtime[ContextT_co]:
        """Return a copy with the attributes of another one, where these are set."""
        given = ((each.name, getattr(other, each.name), each.default) for each in fields(self))
        return replace(self, **{name: value for name, value, unset in given if value is not unset})

    def patch_execution_info(self, **changes: Any) -> Runtime[ContextT_co]:
        """Return a copy whose `execution_info` has some attributes replaced.

        Raises:
            RuntimeError: it has none: it is not a running node's.
        """
        if self.execution_info is None:
            raise RuntimeError("patch_execution_info() needs an execution_info, got None")
        return replace(self, execution_info=self.execution_info.patch(**changes))


def _note_undo(
    key: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, awaits: bool
) -> tuple[Any, Any]:
    """Take `undo` from the arguments of `once`; `note_once` if there is one."""
    undo = kwargs.pop("undo", None)
    if undo is None:
        return None, None
    from .undo import note_once

    return note_once(running(f"{ONCE}()"), key, function, undo, args, kwargs, awaits=awaits)


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

    def begin_effect(self, kind: str, key: str, *, awaits: bool) -> EffectRecord:
        """See `running.begin_effect`."""

    def sleep(self, request: SleepRequest, *, awaits: bool) -> Steps[None]:
        """The steps of a sleep.

        Args:
            awaits: the caller can await them.
        """


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


def get_runtime(context_schema: type[SchemaT] | None = None) -> Runtime[SchemaT]:
    """Return the runtime of the running task.

    Args:
        context_schema: for type checkers only: the type of `context`.

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
