"""What a function does to the world, as its author declares it: `@effect("irreversible")`.

A call is known by the task that makes it, by its function, its arguments, and how many equal calls
of this attempt came before; one that failed does not count, so that a repeated try takes its place.
An irreversible call is recorded before it is made and again when it has returned. Where only the
first record is found, the process died in between or the function raised: the outcome is unknown,
and the call is not made again unless the probe or a person says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, wraps
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    get_args,
    get_origin,
)
from uuid import uuid4

from ..pregel.clock import CLOCK
from ..pregel.drivers.futures import digest_arguments
from ..pregel.errors import UnknownOutcomeError, nearest, warn
from ..pregel.policies import RetryPolicy
from ..pregel.program.callables import Hints, infer_name, injectable_kind, signature_of
from ..pregel.running import (
    ONCE,
    RUNNING,
    inside_effect,
    number_call,
    refuse_in_effect,
    release_call,
)
from ..pregel.steps import arun_steps, run_steps
from ..pregel.task.ids import effect_id
from ..pregel.task.interrupts import decision_model, interrupt
from ..pregel.undo import DECLARED, UndoNote, name_of, show_call

F = TypeVar("F", bound=Callable[..., Any])
EffectKind: TypeAlias = Literal["pure", "keyed", "irreversible"]
Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...]
Steps: TypeAlias = Generator[Any, Any, Any]

KEY: Final = "idempotency_key"
_DECLARED: Final = "__stategraph_effect__"
_TRY_AGAIN: Final = object()


class Effect(NamedTuple):
    """The declaration of a function's effect; see `effect`."""

    kind: EffectKind
    probe: Callable[..., Any] | None = None
    not_done: Errors = ()
    undo: Callable[..., Any] | None = None
    retry: tuple[RetryPolicy, ...] = ()


def effect(
    kind: EffectKind,
    *,
    probe: Callable[..., Any] | None = None,
    not_done: Errors = (),
    undo: Callable[..., Any] | None = None,
) -> Callable[[F], F]:
    """Declare what calls of a function do to the world, so that a task which runs again (a retry, a
    resume, another process) repeats none that must not be repeated.

    Works for functions and coroutine functions wherever a node calls them: as tools of `ToolNode`,
    `create_agent` or LangChain (below `@tool`), as a `@task`, or directly. LangChain's structured
    tools are taken, too; a copy of the tool is returned. Outside of a run the function is called as
    it is.

    Args:
        kind: "pure": it may be repeated; nothing is recorded. "keyed": its result is recorded, and
            its parameter `idempotency_key`, which models do not see, is the same each time: it may
            be repeated with it. "irreversible": it must not be repeated. If it raised, or the
            process died before its result was recorded, the task asks a question, whose answer is
            `{"decision": "done", "result": ...}`, `{"decision": "again"}` or
            `{"decision": "fail"}`. Without a checkpointer it raises.
        probe: of an irreversible function: called with the same arguments where the outcome is
            unknown, to look before anybody is asked. It returns what the call returned, or None if
            it has not happened.
        not_done: of an irreversible function, or one with `undo`: the errors that say that nothing
            has happened. They are raised, and a retry calls again.
        undo: what `undo` of the graph calls to take back a call that has been made: with those of
            its arguments that it has parameters for, by name, and the call's result as `result`, if
            it has such a parameter. May be declared with `effect`, too; by default it is "keyed".

    Raises:
        ValueError: there is no such kind; `probe`, `not_done` or `undo` for another kind.
        TypeError: an object that is no function.

    >>> @effect("irreversible")
    ... def charge(amount: int) -> str:
    ...     return f"receipt for {amount}"
    >>> charge(10)
    'receipt for 10'
    """
    declared = read_effect(kind, probe, not_done, undo)
    return lambda function: declare(function, declared)


def read_effect(
    kind: EffectKind | None,
    probe: Callable[..., Any] | None = None,
    not_done: Errors = (),
    undo: Callable[..., Any] | None = None,
) -> Effect:
    """Return a declaration made of the arguments of `effect`.

    Args:
        kind: None for a function of which only `undo` is said: one that raises has done nothing.

    Raises:
        ValueError: as `effect`.
    """
    if kind is None:
        kind, not_done = "keyed", not_done or Exception
    if kind not in get_args(EffectKind):
        raise ValueError(
            f"effect must be 'pure', 'keyed' or 'irreversible', got {kind!r}; "
            f"{nearest(str(kind), get_args(EffectKind))}"
        )
    if kind != "irreversible" and (probe is not None or (not_done and undo is None)):
        raise ValueError(f"probe and not_done are for irreversible effects, got them for {kind!r}")
    if undo is not None:
        if kind == "pure":
            raise ValueError("undo is for effects that change something, got it for 'pure'")
        if not callable(undo):
            raise TypeError(f"undo must be a function, got {type(undo).__name__}")
        undo = undo if declared_of(undo) else declare(undo, Effect("keyed"))
    return Effect(kind, probe, not_done, undo)


def declare(function: Any, declared: Effect, *, recorded: bool = True) -> Any:
    """Return the function with its effect declared.

    Args:
        recorded: record its result; False where a `@task` call records it, unless it can be undone.
    """
    if hasattr(function, "tool_call_schema"):
        return _declare_tool(function, declared)
    if not callable(function):
        raise TypeError(f"effect must be given a function, got {type(function).__name__}")
    if declared.kind == "pure" and not recorded:
        return function
    function = getattr(function, "__wrapped__", function) if declared_of(function) else function
    calls = _Calls(function, declared, recorded or declared.undo is not None)
    if calls.is_async:

        @wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await arun_steps(calls.perform(args, kwargs))

        wrapped: Any = acall
    else:

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return run_steps(calls.perform(args, kwargs))

        wrapped = call
    setattr(wrapped, _DECLARED, declared)
    if hasattr(function, "__qualname__"):
        DECLARED[name_of(function)] = wrapped
    signature = signature_of(function)
    if signature is not None and calls.takes_key:  # nobody else fills it, so nobody else sees it
        shown = [each for name, each in signature.parameters.items() if name != KEY]
        wrapped.__signature__ = signature.replace(parameters=shown)
        hints = getattr(function, "__annotations__", {})
        wrapped.__annotations__ = {name: hint for name, hint in hints.items() if name != KEY}
    return wrapped


def declared_of(given: Any) -> Effect | None:
    """Return what is declared of a function or a tool, or None."""
    own = getattr(given, "effect", None)  # of a `Tool`
    if isinstance(own, Effect):
        return own
    for part in (given, *(getattr(given, name, None) for name in ("func", "coroutine", "_run"))):
        found = getattr(part, _DECLARED, None)
        if isinstance(found, Effect):
            return found
    return None


def warn_undeclared(nodes: Iterable[tuple[str, Any]]) -> None:
    """Name the tools that declare no effect.

    Args:
        nodes: names and what was given as the node.
    """
    for name, source in nodes:
        tools = getattr(source, "tools_by_name", None) or getattr(source, "tools", None)
        if not isinstance(tools, Mapping):
            continue
        found = [tool for tool, each in tools.items() if declared_of(each) is None]
        if found:
            warn(
                f"tools of node {name!r} declare no effect: {', '.join(sorted(found))}. After a "
                'crash they may be called again. Say @effect("pure"), @effect("keyed") or '
                '@effect("irreversible")'
            )


def _declare_tool(tool: Any, declared: Effect) -> Any:
    """Return a copy of a tool of LangChain whose function declares its effect."""
    parts = {name: getattr(tool, name, None) for name in ("func", "coroutine")}
    given = {name: part for name, part in parts.items() if part is not None}
    if not given:
        raise TypeError(
            f"tool {tool.name!r} is a {type(tool).__name__} without a function: decorate its _run "
            "with @effect(...)"
        )
    update = {name: declare(part, declared) for name, part in given.items()}
    return tool.model_copy(update=update)


class _Calls:
    """Makes the calls of a function whose effect is declared."""

    def __init__(self, function: Callable[..., Any], declared: Effect, recorded: bool) -> None:
        self.function, self.declared, self.recorded = function, declared, recorded
        self.name = infer_name(function)
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        self.signature = signature_of(function)
        self.takes_key = self.signature is not None and KEY in self.signature.parameters

    @cached_property
    def _ignored(self) -> set[str]:
        """The parameters that a graph fills, which tell nothing of the call."""
        hints = Hints(self.function)
        names = self.signature.parameters if self.signature is not None else {}
        return {KEY, *(name for name in names if _is_injected(hints.get(name)))}

    def perform(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        """Make a call, unless it is recorded."""
        task = RUNNING.get()
        kind = self.declared.kind
        if kind == "pure" or task is None:
            if self.takes_key and task is None:
                kwargs = {KEY: uuid4().hex, **kwargs}
            return (yield self.function(*args, **kwargs))
        if kind == "irreversible":
            refuse_in_effect(f"{self.name}(), an irreversible effect,")
        arguments = self._arguments_of(args, kwargs)
        key = number_call(task, f"{self.name} {digest_arguments((), (), arguments)}")
        if self.takes_key:
            kwargs = {KEY: effect_id(task.runtime.idempotency_key, KEY, key), **kwargs}
        call = _Call(self, task, key, args, kwargs, arguments)
        if call.result is not None and call.result.known:
            return call.result.known[0]
        try:
            return (yield from (call.repeatable() if kind == "keyed" else call.irreversible()))
        except Exception:
            release_call(task, key)
            raise

    def _arguments_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by the names of their parameters."""
        given: dict[str, Any] = {"": list(args), **kwargs}
        if self.signature is not None:
            given = dict(self.signature.bind_partial(*args, **kwargs).arguments)
        return {name: value for name, value in given.items() if name not in self._ignored}


@dataclass(eq=False)
class _Call:
    """One call of such a function by a task.

    Args:
        arguments: by the names of their parameters.
    """

    calls: _Calls
    task: Any
    key: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any]
    undo: UndoNote | None = None

    def __post_init__(self) -> None:
        self.result = self._record("") if self.calls.recorded else None

    def _note(self) -> Steps:
        """Record how the call is undone, before it is made."""
        if self.calls.declared.undo is not None:
            self.undo = UndoNote(self.task, self.key, awaits=self.calls.is_async)
            yield self.undo.save(
                self.calls.declared.undo,
                self._shown,
                self.arguments,
                effect=name_of(self.calls.function),
                idempotency_key=self.kwargs.get(KEY),
            )

    def _note_not_done(self) -> Steps:
        if self.undo is not None:
            yield self.undo.withdraw()

    def _record(self, what: str) -> Any:
        return self.task.begin_effect(ONCE, self.key + what, awaits=self.calls.is_async)

    def _make(self) -> Any:
        return self.calls.function(*self.args, **self.kwargs)

    def _keep(self, result: Any) -> Steps:
        if self.result is not None:
            yield self.result.save(result)
        return result

    def repeatable(self) -> Steps:
        """Make the call."""
        yield from self._note()
        try:
            result = yield self._make()
        except self.calls.declared.not_done:
            yield from self._note_not_done()
            raise
        return (yield from self._keep(result))

    def irreversible(self) -> Steps:
        """Make the call unless it may have been made."""
        if f"{self.key} failed" in self.task.current.once_keys:
            raise self._unknown("in this attempt")
        number = 0
        while True:
            number += 1
            begun = self._record(f" begun {number}")
            error: Exception | None = None
            if begun.known:
                began = begun.known[0]
                if self._record(f" not done {number}").known:
                    continue
            else:
                began = datetime.fromtimestamp(CLOCK.time(), UTC).isoformat(timespec="seconds")
                yield from self._note()
                yield begun.save(began)
                try:
                    with inside_effect(self.calls.name, "effect"):
                        result = yield self._make()
                except Exception as raised:
                    error = raised
                else:
                    return (yield from self._keep(result))
            result = yield from self._find_out(number, began, error)
            if result is not _TRY_AGAIN:
                return (yield from self._keep(result))

    def _find_out(self, number: int, began: str, error: Exception | None) -> Steps:
        """The result of a call whose outcome is unknown, or `_TRY_AGAIN`."""
        declared = self.calls.declared
        if error is not None and isinstance(error, declared.not_done):
            yield from self._not_done(number, error)
        if declared.probe is not None:
            happened = yield declared.probe(*self.args, **self.kwargs)
            if happened is not None:
                return happened
            yield from self._not_done(number, error)
            return _TRY_AGAIN
        if self.task.find_answers() is None:  # no answer can ever come
            raise self._unknown(f"at {began}") from error
        return self._ask(number, began, error)

    def _not_done(self, number: int, error: Exception | None) -> Steps:
        yield self._record(f" not done {number}").save(True)
        yield from self._note_not_done()
        if error is not None:
            raise error

    def _ask(self, number: int, began: str, error: Exception | None) -> Any:
        why = "" if error is None else f"It raised {error!r:.200}. "
        question = {
            "effect": self.calls.name,
            "call": self._shown,
            "began": began,
            "question": f"{self._shown} may have happened at {began}. {why}Take it as done with a "
            "result, call it again, or fail?",
        }
        schema = decision_model("EffectDecision", "done", "again", "fail")
        answer = interrupt(question, key=f"{self.key} {number}", response_schema=schema)
        if answer.decision == "done":
            return answer.result
        if answer.decision == "again":
            return _TRY_AGAIN
        self.task.current.once_keys = (*self.task.current.once_keys, f"{self.key} failed")
        raise self._unknown(f"at {began}") from error

    @property
    def _shown(self) -> str:
        return show_call(self.calls.name, self.arguments)

    def _unknown(self, when: str) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"node {self.task.name!r}: {self._shown} may have happened {when}. It is "
            "irreversible, so it was not called again. Look whether it has happened: probe= can do "
            "so, and with a checkpointer a person is asked"
        )


def _is_injected(hint: Any) -> bool:
    """Whether a graph fills a parameter with this annotation."""
    if injectable_kind(hint) is not None:
        return True
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else (get_origin(hint) or hint,)
    names = [getattr(each, "__name__", type(each).__name__) for each in marks]
    return any(name in _INJECTED for name in names)


_INJECTED: Final = {"InjectedState", "InjectedStore", "InjectedToolArg", "ToolRuntime"}
"""Of this package and of LangGraph's and LangChain's, by name: they are not loaded for it."""
