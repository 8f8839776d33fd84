"""One tree of errors, by where the fault lies: your graph, your node, your call, a limit, or this
engine.

Signals (pause, stop, a command for the parent graph) are not errors. They derive from
BaseException, so that `except Exception` in a node cannot swallow one. None leaves the outermost
call: its caller gets an Exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, Final

from ..channels.base import (
    MISSING,
    EmptyChannelError,
    GraphWarning,
    InvalidUpdateError,
    StateGraphError,
    warn,
)
from ..channels.base import (
    check_kind as check_kind,
)
from ..checkpoint.base import CheckpointConflictError
from ..checkpoint.errors import UnserializableError
from ..checkpoint.serde.registry import register

__all__ = [
    "BudgetExceededError",
    "CheckpointConflictError",
    "ConcurrentUpdateError",
    "EmptyChannelError",
    "EmptyInputError",
    "GraphBubbleUp",
    "GraphChangedError",
    "GraphDrained",
    "GraphInterrupt",
    "GraphRecursionError",
    "GraphWarning",
    "InPlaceEditError",
    "InternalError",
    "InvalidGraphError",
    "InvalidRouteError",
    "InvalidUpdateError",
    "NodeCancelledError",
    "NodeTimeoutError",
    "ParentCommand",
    "RemoteError",
    "ShippingError",
    "StateGraphError",
    "StepTimeoutError",
    "ThreadBusyError",
    "ThreadUndoingError",
    "Undo",
    "UnknownInterruptError",
    "UnknownOutcomeError",
    "WorkerLostError",
    "nearest",
    "warn",
]


# -- your graph ------------------------------------------------------------------------------------


class InvalidGraphError(StateGraphError, ValueError):
    """The graph cannot work as declared.

    Attributes:
        mistakes: one sentence for each, in the order in which they were found.
    """

    def __init__(self, mistakes: str | Sequence[str]) -> None:
        several = (mistakes,) if isinstance(mistakes, str) else mistakes
        self.mistakes: tuple[str, ...] = tuple(several)
        if len(self.mistakes) == 1:
            lines = self.mistakes[0]
        else:
            lines = "".join(f"\n  - {mistake}" for mistake in self.mistakes)
        super().__init__(lines)


class GraphChangedError(StateGraphError):
    """An earlier version of the graph stored the thread, and this version cannot continue its
    pending work.

    Attributes:
        lost: the nodes, joins, keys and channels that this version lacks or whose kind has changed.
    """

    def __init__(self, where: str, lost: Sequence[str]) -> None:
        super().__init__(
            f"{where} has pending work for parts of the graph that are gone or have changed their "
            f"kind: {', '.join(lost)}. Restore those parts, or convert the thread with "
            "compile(migrate=...), or drop the pending work with "
            "update_state(config, None, as_node=END)"
        )
        self.lost: tuple[str, ...] = tuple(lost)


# -- your node -------------------------------------------------------------------------------------


class NodeTimeoutError(StateGraphError):
    """An attempt of a node took too long and was abandoned.

    It does not derive from the builtin `TimeoutError`, an `OSError`, so retry policies retry it by
    default.

    Attributes:
        node: its name.
        elapsed: how long the attempt had run, in seconds.
        kind: which of the two limits it exceeded, "run" or "idle".
        timeout: that limit, in seconds.
        limit: the same.
        run_timeout: that limit if it was the one for a whole attempt, else None.
        idle_timeout: that limit if it was the one for silence, else None.
    """

    def __init__(
        self,
        node: str,
        elapsed: float,
        kind: str,
        timeout: float | None = None,
        *,
        run_timeout: float | None = None,
        idle_timeout: float | None = None,
    ) -> None:
        if timeout is None:
            timeout = (run_timeout if kind == "run" else idle_timeout) or 0.0
        super().__init__(
            f"node {node!r}: {kind} timeout of {timeout:g} s exceeded after {elapsed:.3f} s"
        )
        self.node = node
        self.elapsed = elapsed
        self.kind = kind
        self.timeout: float = timeout
        self.limit: float = timeout
        self.run_timeout: float | None = timeout if kind == "run" else None
        self.idle_timeout: float | None = timeout if kind == "idle" else None


class NodeCancelledError(StateGraphError):
    """A node raised `asyncio.CancelledError` though its run was not cancelled."""

    def __init__(self, node: str, message: str | None = None) -> None:
        super().__init__(
            message or f"node {node!r} raised CancelledError though its run was not cancelled"
        )
        self.node = node


class InPlaceEditError(StateGraphError, RuntimeError):
    """With `debug=True`: a node changed its input in place.

    Its input holds the live state. A change in place bypasses reducers, checkpoints and streams.

    Attributes:
        node: its name.
        keys: the state keys whose values it changed.
    """

    def __init__(self, node: str, keys: Sequence[str]) -> None:
        named = ", ".join(repr(key) for key in keys)
        super().__init__(
            f"node {node!r} changed {named} of its input in place; return the new value instead"
        )
        self.node = node
        self.keys: tuple[str, ...] = tuple(keys)


class ShippingError(StateGraphError, TypeError):
    """A value cannot be sent to the executor of a node, or back.

    Attributes:
        node: its name.
        path: where the value is, such as `state["clients"][0]`.
    """

    def __init__(self, node: str, path: str, why: str) -> None:
        super().__init__(f"node {node!r} runs on an executor: {path}: {why}")
        self.node = node
        self.path = path


class WorkerLostError(StateGraphError):
    """Every worker that ran a node died.

    Attributes:
        node: its name.
        executor: where it ran.
        tries: how many workers died.
    """

    def __init__(self, node: str, executor: str, tries: int, reason: str) -> None:
        times = "once" if tries == 1 else f"{tries} times"
        super().__init__(f"node {node!r} lost its worker on {executor} {times}: {reason}")
        self.node = node
        self.executor = executor
        self.tries = tries


class RemoteError(StateGraphError):
    """Replaces an exception whose class cannot leave its worker; the text names the class."""


COMMAND: Final = "__command__"
"""The `writer` of a `ConcurrentUpdateError` if it was no node."""


class UnknownOutcomeError(StateGraphError, RuntimeError):
    """An irreversible effect may have happened, and was not repeated: its function raised, or the
    process died before the result was recorded. See `stategraph.effect`."""


class ConcurrentUpdateError(InvalidUpdateError):
    """With schedule="ready": a task wrote a key without a reducer, or an `Overwrite`, and another
    task or a `Command` has written the key since this one started.

    Attributes:
        key: the key.
        task: the node whose write is refused.
        writer: the node that wrote before; `COMMAND` ("__command__") if a `Command` or a post did;
            empty if it is not known.
        overwrites: the key has a reducer, and the task wrote an `Overwrite`.
    """

    def __init__(self, key: str, task: str, writer: str, overwrites: bool = False) -> None:
        outside = "a Command or a post" if overwrites else "a Command"
        by = {COMMAND: outside, "": f"another task or {outside}"}.get(writer, repr(writer))
        write = "Overwrite" if overwrites else "write"
        said = [
            f"key {key!r}: task {task!r} started before {by} wrote it, so its {write} is refused"
        ]
        ways = [] if overwrites else ["give the key a reducer"]
        if writer != COMMAND:
            said.append("Which of the two is refused depends on timing")
            ways.append("add an edge from one of the nodes to the other")
        if ways:
            said.append(f"To let both write, {', or '.join(ways)}")
        said.append("To let the task start again, in the state as it is, call update_state")
        super().__init__(". ".join(said))
        self.key: str = key
        self.task: str = task
        self.writer: str = writer
        self.overwrites: bool = overwrites

    def __reduce__(self) -> Any:
        return type(self), (self.key, self.task, self.writer, self.overwrites)


class InvalidRouteError(InvalidUpdateError, ValueError):
    """A router, a `Command` or a `Send` leads to a node that this graph does not have."""


# -- your call -------------------------------------------------------------------------------------


class EmptyInputError(StateGraphError):
    """There is nothing to do: the call has no input, and the thread has no pending work."""


class UnknownInterruptError(StateGraphError, RuntimeError):
    """An answer cannot be given to any pending question.

    Args:
        message: what it says; without a `reason`, the reason, which then says it.

    Attributes:
        reason: "not_pending"; "ambiguous"; "answered" (another run supplied an answer and has
            not ended yet); "asleep" (all remaining tasks of the thread sleep); or "nested" (the
            call gave several answers at an old checkpoint, some of them for nested graphs, which
            start over there).
        interrupt_ids: the ids that the answers named.
        pending_ids: the ids of the questions that wait for an answer.
    """

    def __init__(
        self,
        message: str,
        interrupt_ids: Iterable[str] = (),
        pending_ids: Iterable[str] = (),
        *,
        reason: str | None = None,
    ) -> None:
        self.reason: str = message if reason is None else reason
        self.interrupt_ids: tuple[str, ...] = tuple(interrupt_ids)
        self.pending_ids: tuple[str, ...] = tuple(pending_ids)
        super().__init__(self._sentence() if reason is None else message)

    def _sentence(self) -> str:
        named, reason = ", ".join(self.interrupt_ids), self.reason
        if reason == "asleep":
            return (
                "this thread has no open question, it sleeps: invoke(None, config) goes on when "
                "the time has come that get_state(config).wake_at shows"
            )
        if not self.interrupt_ids and not self.pending_ids:
            return (
                "this thread has no open question: it is not paused, or has already been answered"
            )
        text = {
            "ambiguous": "several questions are pending: answer by id with "
            "Command(resume={id: answer})",
            "answered": f"{named} already has an answer, and the run that brought it has not "
            "ended: wait for that run; if its process has died, invoke(None, config) goes on with "
            "that answer",
            "nested": "when an old checkpoint runs again, its nested graphs start over and their "
            "questions get new ids: first invoke(None, config), then answer the new questions",
        }.get(reason, f"no question is pending under {named}")
        return f"{text}; pending: {', '.join(self.pending_ids) or 'none'}"


# -- the limit -------------------------------------------------------------------------------------


class GraphRecursionError(StateGraphError, RecursionError):
    """The call reached `recursion_limit` with work left. Completed steps are stored;
    `invoke(None)` continues."""


def format_spent(spent: float, limit: float, unit: str) -> str:
    """How much of a limit is spent, such as "5 of 1000000 tokens"."""
    amounts = (f"{each:g}" if abs(each) < 100_000 else f"{each:.12g}" for each in (spent, limit))
    return f"{' of '.join(amounts)} {unit}"


class BudgetExceededError(StateGraphError, RuntimeError):
    """A `Budget` is empty, so a call did not begin. The thread can be resumed with a larger one.

    Attributes:
        unit: "usd", "tokens", "calls" or "seconds".
        spent: how much of it is spent.
        limit: the limit of the budget.
    """

    def __init__(self, node: str, unit: str, spent: float, limit: float) -> None:
        self.unit: str = unit.partition(" of ")[0]  # "usd of ask": that of a budget of a node
        self.spent: float = spent
        self.limit: float = limit
        self._given = node, unit, spent, limit
        super().__init__(
            f"node {node!r}: the budget is empty: {format_spent(spent, limit, unit)} are spent. "
            f"Resume the thread with a larger Budget({self.unit}=...), or let on_empty ask or name "
            "another model"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given


class StepTimeoutError(StateGraphError, TimeoutError):
    """A superstep took longer than the graph's `step_timeout`.

    None of its writes were applied. The results of tasks that had finished are kept for a resume.

    Attributes:
        unfinished: the names of the nodes that had not finished, in path order.
        timeout: the limit in seconds.
    """

    def __init__(self, unfinished: Sequence[str], timeout: float) -> None:
        super().__init__(
            f"a superstep exceeded its step_timeout of {timeout:g} s while "
            f"{', '.join(unfinished)} had not ended"
        )
        self.unfinished: tuple[str, ...] = tuple(unfinished)
        self.timeout = timeout


# -- us --------------------------------------------------------------------------------------------


class InternalError(StateGraphError):
    """This should never happen. Please report it."""


# -- signals ---------------------------------------------------------------------------------------


class GraphBubbleUp(BaseException):
    """Base of the signals by which a node tells the engine to pause or stop. Do not catch them."""


class GraphInterrupt(GraphBubbleUp):
    """Raised by `interrupt()`: the task pauses with these questions.

    A node may raise it as well: with `Interrupt` objects, with nothing, or with any other value,
    which becomes a question. The node gets no answer to it: on a resume it runs again from its
    start.

    Attributes:
        interrupts: the questions.
        value: a value that becomes a question when the task pauses; `MISSING` for none.
        error: why an answer to one of them was rejected.
        by_hand: whether a node raised it: then only running the task again shows whether it still
            waits.
        wake_at: when the task runs again without an answer, in UTC; None for never.
    """

    by_hand = True
    error: Exception | None = None
    wake_at: datetime | None = None

    def __init__(self, interrupts: Any = ()) -> None:
        super().__init__(interrupts)
        listed = interrupts if isinstance(interrupts, (list, tuple)) else (interrupts,)
        asked = all(hasattr(question, "id") and hasattr(question, "value") for question in listed)
        self.interrupts: tuple[Any, ...] = tuple(listed) if asked else ()
        self.value: Any = MISSING if asked else interrupts


class ParentCommand(GraphBubbleUp):
    """Carries a `Command(graph=Command.PARENT)` to the graph that contains this one."""

    def __init__(self, command: Any, node: str = "") -> None:
        super().__init__(command)
        self.command: Any = command
        self.node: str = node


class GraphAbandoned(GraphBubbleUp):
    """Ends what an attempt still runs that was abandoned: at its deadline, or on its thread when
    its async run was cancelled. Nobody waits for that attempt."""


class DrainSignal(GraphBubbleUp):
    """Ends a run that is to stop between two supersteps, and the runs around it. It leaves the
    outermost call as `GraphDrained`.

    Attributes:
        reason: as in `GraphDrained`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class GraphDrained(GraphBubbleUp, StateGraphError):
    """The run stopped between two supersteps, because a drain was requested or its deadline has
    passed; `invoke(None)` continues it.

    An `Exception`, which the caller of the outermost graph gets. The call of a graph in a node
    raises a signal instead, which derives from BaseException and ends the run around it, too.

    Attributes:
        reason: the reason passed to `request_drain`.
    """

    def __init__(self, reason: str = "shutdown") -> None:
        super().__init__(reason)
        self.reason = reason


class Undo(GraphBubbleUp):
    """Raised by a node: the run stops, what was done since the last input is undone, and the thread
    goes back to where it was before that. See `undo` of the graph.

    Args:
        reason: is part of what is recorded of it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class UndoneSignal(GraphBubbleUp):
    """Ends the task that undoes: all is undone.

    Attributes:
        plan: what was to be undone, and back to where.
        effects: what was undone, each as it is recorded.
        spent: what the thread has spent, by unit.
        head: the checkpoint from which on it was undone.
    """

    def __init__(
        self,
        plan: dict[str, Any],
        effects: list[dict[str, Any]],
        spent: dict[str, float],
        head: str | None,
    ) -> None:
        super().__init__(plan, effects, spent, head)
        self.plan: dict[str, Any] = plan
        self.effects: list[dict[str, Any]] = effects
        self.spent: dict[str, float] = spent
        self.head: str | None = head


class ThreadUndoingError(StateGraphError):
    """The thread is being undone. `undo`, `invoke(None)` or an answer continues that; other calls
    have to wait."""


class ThreadBusyError(StateGraphError):
    """A call with `multitask=` found a live run on its thread and could not or would not wait for
    it. No part of the call has run."""


def repr_of(error: BaseException | None) -> str:
    """Return the repr of an error, or its class if that fails: then too, the error is what
    counts."""
    try:
        return repr(error)
    except Exception:
        return type(error).__name__


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: a likely correction, or what there is."""
    names = sorted(known)
    close = closest(name, names)
    if close is None and len(str(name)) > 2:  # "retry" for "retry_policy"
        close = next((each for each in names if each.startswith(str(name))), None)
    if close is not None:
        return f"did you mean {close!r}?"
    shown = ", ".join(repr(n) for n in names[:10]) + (", ..." if len(names) > 10 else "")
    return f"known: {shown or 'none'}"


def closest(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that another is most similar to; None if there is none.

    Comparing is slow and names come from strangers: a long name is like no other, and only the
    first 1,000 known names are compared. A caller with many names compares the first few.

    Args:
        cutoff: how similar they must be, from 0 to 1.
    """
    from difflib import get_close_matches

    text = str(name)
    if len(text) > _LONGEST_NAME:
        return None
    return next(iter(get_close_matches(text, [*islice(known, _MOST_KNOWN)], 1, cutoff)), None)


_LONGEST_NAME: Final = 100
_MOST_KNOWN: Final = 1000


def likely(name: object, known: Iterable[object]) -> str:
    """The end of a sentence about an unknown name: the likely correction, or nothing."""
    text = nearest(name, (one for one in known if isinstance(one, str)))
    return f"; {text}" if text.startswith("did") else ""


# Stored with a thread or a job, they come back as themselves, for who catches them there.
# A key is on people's disks, so it goes on naming the module in which the class once stood.
_KEYS: dict[type, str] = {
    CheckpointConflictError: "stategraph.checkpoint.thread:CheckpointConflictError"
}
for _error in (UnserializableError, *vars().values()):
    if isinstance(_error, type) and issubclass(_error, StateGraphError):
        register(_error, name=_KEYS.get(_error))
