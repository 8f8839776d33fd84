"""The functional API: `@entrypoint` makes a graph of one function, `@task` makes its calls durable.

The body of an entrypoint runs again from the top on every resume; tasks that have finished return
at once what they returned before, if they are called with the same arguments. The order of the
calls does not matter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, update_wrapper
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_origin,
    overload,
)

from ..channels import EphemeralValue, LastValue
from ..checkpoint.base import BaseCheckpointSaver
from ..checkpoint.serde.registry import DEFAULT
from ..checkpoint.serde.schema_types import classes_in
from ..extras import load_part
from ..pregel.app import Pregel
from ..pregel.drivers.futures import Arguments, ReturnWriter, function_name
from ..pregel.errors import InvalidGraphError
from ..pregel.names import END, PREVIOUS, START
from ..pregel.policies import NodePolicies
from ..pregel.program.callables import NodeBody, infer_name, read_callable, signature_of
from ..pregel.program.node import PregelNode
from ..pregel.program.program import CompiledNode
from ..pregel.program.results import refuse_coroutine
from ..pregel.program.writes import Writer
from ..pregel.run.checks import resolve_executor
from ..pregel.running import running
from ..pregel.runtime import Running
from ..pregel.types import LOCAL, CachePolicy, ContextT, RetryPolicy, TimeoutPolicy
from .arguments import known_keywords, read_policies
from .effects import Effect, EffectKind, Errors, declare, declared_of, read_effect

if TYPE_CHECKING:
    from ..pregel.observer import AnyObserver
    from ..store.cache import BaseCache

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
T_co = TypeVar("T_co", covariant=True)


class TaskFuture(Protocol[T_co]):
    """The result of calling a `@task`: `.result()` in sync code, `await` in coroutines."""

    def result(self, timeout: float | None = None) -> T_co:
        """Return the function's result, or raise its error; waits for it in sync code."""

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the function raised, or None."""

    def done(self) -> bool:
        """Whether the call has ended."""

    def cancel(self) -> bool:
        """Ask the call to stop; return whether that is still possible."""

    def __await__(self) -> Generator[Any, None, T_co]: ...


class TaskFunction(Generic[P, T]):
    """A function whose calls, made inside an entrypoint or a node, are tasks of their own.

    Calling it starts it at once and returns a future: `.result()` in sync code, `await` in async
    code.
    """

    def __init__(
        self,
        function: Callable[P, Any],
        name: str | None,
        policies: NodePolicies,
        executor: Any = None,
        effect: Effect | None = None,
    ) -> None:
        effect = effect or declared_of(function)
        if effect is not None:  # what the call returns is recorded as that of the task
            effect = effect._replace(retry=policies.retry)  # of what undoes it, too
            function = declare(function, effect, recorded=False)
        self.function = function
        self.name: str = name or infer_name(function)
        self._executor = executor
        self._known: tuple[Any, CompiledNode] | None = None
        self._node = _task_node(self.name, function, policies)
        self._node.recorded = effect is None or effect.kind != "pure"
        update_wrapper(cast(Any, self), function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]:
        """Start the task.

        Returns:
            A future with `.result()`; in coroutines, one to `await`.

        Raises:
            RuntimeError: outside of an entrypoint or node, or an async task in a sync run.
        """
        parent: Running = running(f"task {self.name!r}")
        executor = self._executor
        if executor is None:
            executor = parent.executor
        here = executor is None or executor == LOCAL
        node = self._node if here else self._there(executor)
        future: TaskFuture[T] = parent.call(node, (args, kwargs))
        return future

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> TaskFunction[P, T]: ...
    @overload
    def __get__(
        self: TaskFunction[Concatenate[R, Q], T], instance: R, owner: type | None = None
    ) -> Callable[Q, TaskFuture[T]]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method it is called with its object, like any function."""
        return self if instance is None else partial(self, instance)

    def _there(self, executor: Any) -> CompiledNode:
        """Its node on an executor.

        Raises:
            InvalidGraphError: it cannot run there.
        """
        known = self._known
        if known is None or known[0] is not executor:
            node: CompiledNode = load_part("placement").place_node(self._node, executor)
            known = self._known = (executor, node)
        return known[1]

    def clear_cache(self, cache: BaseCache) -> None:
        """Forget the cached results of this task."""
        cache.clear(self._namespaces())

    async def aclear_cache(self, cache: BaseCache) -> None:
        """`clear_cache` for coroutines."""
        await cache.aclear(self._namespaces())

    def _namespaces(self) -> list[tuple[str, ...]]:
        cached = self._node.cache
        return [] if cached is None else [cached.namespace]

    def __repr__(self) -> str:
        return f"<task {self.name!r}>"


class TaskDecorator(Protocol):
    """What `task(...)` returns: it makes a task of a function."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> TaskFunction[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> TaskFunction[P, T]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> TaskFunction[P, T]: ...
@overload
def task(function: Callable[P, T], /) -> TaskFunction[P, T]: ...
@overload
def task(
    *,
    name: str | None = None,
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
    cache_policy: CachePolicy | None = None,
    timeout: float | timedelta | TimeoutPolicy | None = None,
    executor: Any = None,
    effect: EffectKind | None = None,
    probe: Callable[..., Any] | None = None,
    not_done: Errors = (),
    undo: Callable[..., Any] | None = None,
) -> TaskDecorator: ...
@known_keywords()
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
    cache_policy: CachePolicy | None = None,
    timeout: float | timedelta | TimeoutPolicy | None = None,
    executor: Any = None,
    effect: EffectKind | None = None,
    probe: Callable[..., Any] | None = None,
    not_done: Errors = (),
    undo: Callable[..., Any] | None = None,
) -> Any:
    """Make a task of each call of a function: tasks run concurrently, and a resume does not repeat
    those that have finished.

    With a checkpointer, what it returns is stored; the types that its return annotation names are
    registered for that.

    When its caller runs again, a call is known by its function (module, qualified name and `name`),
    its arguments and how many equal calls came before it in that run: what has finished returns
    what it returned then, in whatever order the calls are made; a call with other arguments runs.
    The `runtime.idempotency_key` of a call is the same each time. An argument that has no canonical
    form (a lock, a client, an array) counts by its type alone, so calls that differ only in such
    arguments are known by their order. Functions that one factory makes need a `name` each.

    Args:
        name: shown in streams and part of what a call is known by; the function's own by default.
        retry_policy: when to try again.
        cache_policy: reuse results for equal arguments; needs a cache on the entrypoint.
        timeout: seconds, timedelta or `TimeoutPolicy` for one attempt.
        executor: where its calls run; by default where the run's nodes do. See
            `StateGraph.compile`.
        effect, probe, not_done, undo: what a call does to the world, and what takes it back; see
            `stategraph.effect`. With `undo` alone a call that raises has done nothing.

    >>> @task
    ... def double(x: int) -> int:
    ...     return 2 * x
    >>> @entrypoint()
    ... def run(xs: list[int]) -> list[int]:
    ...     return [future.result() for future in [double(x) for x in xs]]
    >>> run.invoke([1, 2, 3])
    [2, 4, 6]
    """
    policies = read_policies("task", retry_policy, cache_policy, timeout)
    there = resolve_executor(executor)
    declared = read_effect(effect, probe, not_done, undo) if effect or undo else None
    if function is not None:
        return TaskFunction(function, name, policies, there, declared)
    return lambda f: TaskFunction(f, name, policies, there, declared)


def _task_node(name: str, function: Callable[..., Any], policies: NodePolicies) -> CompiledNode:
    """A node that calls the function with the arguments that are its input."""
    read = read_callable(function, name, first=False)
    for cls in classes_in(
        read.returns
    ):  # for every saver: a task is of no graph, and what it returned is loaded first
        if DEFAULT.find(cls) is None:
            DEFAULT.register(cls)
    positional = _positional(function)

    sync = None if read.sync is None else partial(_filled, read.sync, positional)
    coro = None if read.coro is None else partial(_filled, read.coro, positional)
    body = NodeBody(name, sync, coro, read.inject, None, None, function)
    declared = PregelNode(
        channels=(), triggers=(), bound=(body,), writers=(ReturnWriter(),), policies=policies
    )
    node = CompiledNode(name, declared, "", ())
    node.identity = function_name(function)
    return node


def _filled(
    call: Callable[..., Any], positional: Sequence[str], arguments: Arguments, /, **given: Any
) -> Any:
    """Call a function with its arguments, and with what a node is given where they leave room."""
    args, kwargs = arguments
    taken = {*positional[: len(args)], *kwargs}
    return call(*args, **{**{k: v for k, v in given.items() if k not in taken}, **kwargs})


def _positional(function: Callable[..., Any]) -> list[str]:
    signature = signature_of(function)
    parameters = signature.parameters.values() if signature else ()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


class entrypoint(Generic[ContextT]):
    """Make a graph of a function; `invoke` calls it with its input.

    The function's first parameter is the input. It may also take `config`, `runtime`, `writer`,
    `store` and `previous`: what its last run on this thread returned (or saved with
    `entrypoint.final`).

    Args:
        checkpointer, store, cache: as in `StateGraph.compile`.
        executor: where `@task`s without an executor run; see `StateGraph.compile`. The function
            itself runs here.
        observer: an `Observer` of its runs, the name of one ("module:name"), or several.
        context_schema: the class of `runtime.context`.
        retry_policy, cache_policy, timeout: for the function as a whole.

    >>> @entrypoint()
    ... def add_one(x: int) -> int:
    ...     return x + 1
    >>> add_one.invoke(1)
    2
    """

    compiled_class: ClassVar[type[Pregel[Any, Any, Any, Any]]] = Pregel

    @dataclass(frozen=True, slots=True, kw_only=True)
    class final(Generic[R, S]):
        """What an entrypoint returns to give its caller one value and keep another as `previous`.

        Args:
            value: for the caller.
            save: for the next run on this thread.
        """

        value: R
        save: S

    @known_keywords()
    def __init__(
        self,
        checkpointer: BaseCheckpointSaver | bool | None = None,
        store: Any = None,
        cache: Any = None,
        context_schema: type[ContextT] | None = None,
        cache_policy: CachePolicy | None = None,
        retry_policy: RetryPolicy | Sequence[RetryPolicy] | None = None,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        executor: Any = None,
        observer: AnyObserver | Sequence[AnyObserver] | None = None,
    ) -> None:
        self._graph = {
            "checkpointer": checkpointer,
            "store": store,
            "cache": cache,
            "context_schema": context_schema,
            "executor": executor,
            "observer": observer,
        }
        self._policies = read_policies("entrypoint", retry_policy, cache_policy, timeout)

    @overload
    def __call__(
        self, function: Callable[Concatenate[T, ...], Coroutine[Any, Any, final[R, Any]]]
    ) -> Pregel[R, ContextT, T, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, ...], final[R, Any]]
    ) -> Pregel[R, ContextT, T, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, ...], Coroutine[Any, Any, R]]
    ) -> Pregel[R, ContextT, T, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[T, ...], R]
    ) -> Pregel[R, ContextT, T, R]: ...
    def __call__(self, function: Callable[..., Any]) -> Pregel[Any, Any, Any, Any]:
        """Make the graph.

        Raises:
            InvalidGraphError: the function takes no input.
            NotImplementedError: it is a generator.
            TypeError: it has a parameter that nothing can fill.
        """
        name = infer_name(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise NotImplementedError(
                f"entrypoint {name!r} must not be a generator: use the stream writer instead of "
                "yield"
            )
        if not _positional(function):
            raise InvalidGraphError(
                f"entrypoint {name!r} must take its input as its first parameter"
            )
        body = read_callable(function, name)
        node = PregelNode(
            channels=START,
            triggers=(START,),
            bound=(body,),
            writers=(EntryWriter(),),
            executor=LOCAL,
            policies=self._policies,
        )
        app = self.compiled_class(
            nodes={name: node},
            channels={
                START: EphemeralValue(body.schema or Any),
                END: LastValue(_output_type(body.returns)),
                PREVIOUS: LastValue(Any),
            },
            input_channels=START,
            output_channels=END,
            stream_channels=END,
            stream_mode="updates",
            stream_eager=True,
            name=name,
            **self._graph,
        )
        app.register_types(body.schema, body.returns)
        return app


class EntryWriter(Writer):
    """The result is the output, and what the next run on the thread sees as `previous`."""

    writes_output = True

    def write(self, result: Any, task: Any) -> None:
        """Write both; `entrypoint.final` tells them apart."""
        refuse_coroutine(result, f"entrypoint {task.name!r}")
        value = save = result
        if isinstance(result, entrypoint.final):
            value, save = result.value, result.save
        task.writes.append((END, value))
        task.writes.append((PREVIOUS, save))


def _output_type(hint: Any) -> Any:
    """The type of the output; of `entrypoint.final[V, S]`, the first."""
    if get_origin(hint) is entrypoint.final:
        return get_args(hint)[0]
    return Any if hint is None else hint
