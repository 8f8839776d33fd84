"""One tree of errors, by whose fault: your graph, your node, your call, the limit, the store, or us.

Signals (pause, stop, hand over to the parent graph) are not errors: they derive from BaseException, so that
`except Exception` in a node cannot swallow one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from ..channels.base import MISSING, EmptyChannelError, InvalidUpdateError, StateGraphError
from ..checkpoint.base import CheckpointConflictError
from ..checkpoint.errors import UnserializableError
from ..checkpoint.serde.registry import register

__all__ = [
    "CheckpointConflictError",
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
    "UnknownInterruptError",
    "WorkerLostError",
    "nearest",
]


# -- your graph ------------------------------------------------------------------------------------------


class InvalidGraphError(StateGraphError, ValueError):
    """The graph cannot work as declared.

    Attributes:
        mistakes: a sentence for each, in the order found.
    """

    def __init__(self, mistakes: str | Sequence[str]) -> None:
        self.mistakes = (mistakes,) if isinstance(mistakes, str) else tuple(mistakes)
        lines = self.mistakes[0] if len(self.mistakes) == 1 else "".join(f"\n  - {m}" for m in self.mistakes)
        super().__init__(lines)


class GraphChangedError(StateGraphError):
    """A thread was stored by a graph that has changed since: this one has no place for some of its work, or takes it
    for something else.

    Attributes:
        lost: the nodes, joins, keys and channels that this graph lacks, or has as another kind.
    """

    def __init__(self, where: str, lost: Sequence[str]) -> None:
        super().__init__(
            f"{where} was left with work that this graph has no place for, or of another kind: {', '.join(lost)}. "
            "Put it back as it was; or say how it changed with compile(migrate=...); or drop what is pending: "
            "update_state(config, None, as_node=END)"
        )
        self.lost = tuple(lost)


# -- your node -------------------------------------------------------------------------------------------


class NodeTimeoutError(StateGraphError):
    """An attempt of a node took too long and was abandoned. Not a builtin TimeoutError: it is retried by default.

    Attributes:
        node: its name.
        elapsed: seconds the attempt had taken.
        kind: "run" or "idle": which of the two limits was hit.
        limit, timeout: that limit, in seconds.
        run_timeout, idle_timeout: the same, under the name it has in `TimeoutPolicy`; the other is None.
    """

    def __init__(self, node: str, elapsed: float, kind: str, timeout: float) -> None:
        super().__init__(f"node {node!r}: {kind} timeout of {timeout:g} s hit after {elapsed:.3f} s")
        self.node = node
        self.elapsed = elapsed
        self.kind = kind
        self.timeout = self.limit = timeout
        self.run_timeout = timeout if kind == "run" else None
        self.idle_timeout = timeout if kind == "idle" else None


class NodeCancelledError(StateGraphError):
    """A node raised `asyncio.CancelledError` of its own accord; nobody had cancelled the run."""

    def __init__(self, node: str) -> None:
        super().__init__(f"node {node!r} raised CancelledError although its run was not cancelled")
        self.node = node


class InPlaceEditError(StateGraphError, RuntimeError):
    """With `debug=True`: a node changed its input in place. What it changed is the live state, which no reducer, no
    checkpoint and no reader has heard of.

    Attributes:
        node: its name.
        keys: the state keys whose values it changed.
    """

    def __init__(self, node: str, keys: Sequence[str]) -> None:
        named = ", ".join(repr(key) for key in keys)
        super().__init__(f"node {node!r} changed {named} of its input in place; return the change instead")
        self.node = node
        self.keys = tuple(keys)


class ShippingError(StateGraphError, TypeError):
    """A value cannot travel to the executor of a node, or back.

    Attributes:
        node: its name.
        path: where the value is: `state["clients"][0]`.
    """

    def __init__(self, node: str, path: str, why: str) -> None:
        super().__init__(f"node {node!r} runs on an executor: {path}: {why}")
        self.node = node
        self.path = path


class WorkerLostError(StateGraphError):
    """The workers that ran a node died, one after the other.

    Attributes:
        node: its name.
        executor: where it ran.
        tries: how many workers it has cost.
    """

    def __init__(self, node: str, executor: str, tries: int, reason: str) -> None:
        times = "once" if tries == 1 else f"{tries} times"
        super().__init__(f"node {node!r} lost its worker on {executor} {times}: {reason}")
        self.node = node
        self.executor = executor
        self.tries = tries


class RemoteError(StateGraphError):
    """Stands for an exception of a class that cannot leave its worker; the text names the class."""


class InvalidRouteError(InvalidUpdateError, ValueError):
    """A router, a `Command` or a `Send` goes where this graph has no node."""


# -- your call -------------------------------------------------------------------------------------------


class EmptyInputError(StateGraphError):
    """The call brought nothing to do: no input, and no stored work to go on with."""


class UnknownInterruptError(StateGraphError, RuntimeError):
    """An answer that fits no pending question.

    Attributes:
        reason: "not_pending", "ambiguous", "answered" (another run has brought an answer and not ended yet) or "nested"
            (several answers were brought to an old checkpoint, and some are for nested graphs, which start over there).
        interrupt_ids: the ids that the answer named.
        pending_ids: the ids that wait for one.
    """

    def __init__(self, reason: str, interrupt_ids: Iterable[str], pending_ids: Iterable[str]) -> None:
        self.reason = reason
        self.interrupt_ids = tuple(interrupt_ids)
        self.pending_ids = tuple(pending_ids)
        pending = ", ".join(self.pending_ids) or "none"
        text = {
            "ambiguous": "several questions are pending: answer by id with Command(resume={id: answer})",
            "answered": f"{', '.join(self.interrupt_ids)} got an answer already, and the run that brought it has not "
            "ended: wait for it, or if its process died, invoke(None) goes on with that answer",
            "nested": "nested graphs start over when an old checkpoint runs again, so their questions get new ids: run "
            "it with None, then answer",
        }.get(reason, f"no question is pending under {', '.join(self.interrupt_ids)}")
        if not self.interrupt_ids and not self.pending_ids:
            super().__init__("nothing is asked on this thread: it is not paused, or was answered already")
        else:
            super().__init__(f"{text}; pending: {pending}")


# -- the limit -------------------------------------------------------------------------------------------


class GraphRecursionError(StateGraphError, RecursionError):
    """The call used up its supersteps and work was left. What was done is stored; `invoke(None)` goes on."""


class StepTimeoutError(StateGraphError, TimeoutError):
    """A superstep took longer than the graph's `step_timeout`. Nothing of it was applied; what had finished in time is
    kept for a resume.

    Attributes:
        unfinished: the names of the nodes that had not ended, in path order.
        timeout: the limit, in seconds.
    """

    def __init__(self, unfinished: Sequence[str], timeout: float) -> None:
        super().__init__(f"step timeout of {timeout:g} s hit while {', '.join(unfinished)} had not ended")
        self.unfinished = tuple(unfinished)
        self.timeout = timeout


# -- us --------------------------------------------------------------------------------------------------


class InternalError(StateGraphError):
    """This should never happen. Please report it."""


# -- signals ---------------------------------------------------------------------------------------------


class GraphBubbleUp(BaseException):
    """Base of the signals by which a node speaks to the engine. Let them pass."""


class GraphInterrupt(GraphBubbleUp):
    """Raised by `interrupt()`: the task pauses with these questions.

    A node may raise it as well: with `Interrupt` objects, with nothing, or with any other value, which becomes a
    question. No answer comes back to it: the node runs again from its start, and decides anew.

    Attributes:
        interrupts: the questions.
        value: what becomes a question when the task pauses; `MISSING` for nothing.
        error: why an answer to one of them was not taken.
        by_hand: not all of it comes from `interrupt()`: only running the task again shows whether it still waits.
    """

    by_hand = True
    error: Exception | None = None

    def __init__(self, interrupts: Any = ()) -> None:
        super().__init__(interrupts)
        listed = interrupts if isinstance(interrupts, (list, tuple)) else (interrupts,)
        asked = all(hasattr(question, "id") and hasattr(question, "value") for question in listed)
        self.interrupts: tuple[Any, ...] = tuple(listed) if asked else ()
        self.value: Any = MISSING if asked else interrupts


class ParentCommand(GraphBubbleUp):
    """A `Command(graph=Command.PARENT)` on its way to the graph around this one."""

    def __init__(self, command: Any) -> None:
        super().__init__(command)
        self.command = command


class GraphAbandoned(GraphBubbleUp):
    """Ends what an attempt that was given up at its deadline still runs. Nobody waits for that attempt, so nobody
    sees this either."""


class GraphDrained(GraphBubbleUp):
    """The run stopped between two supersteps because a drain was requested. `invoke(None)` goes on.

    Attributes:
        reason: as given to `request_drain`.
    """

    def __init__(self, reason: str = "shutdown") -> None:
        super().__init__(reason)
        self.reason = reason


class GraphWarning(UserWarning):
    """The graph runs, but probably not as meant."""


def warn(text: str) -> None:
    """Warn of something that runs, in the name of the nearest caller outside of this package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, GraphWarning, stacklevel=level)


_PACKAGE = __name__.partition(".")[0] + "."


def nearest(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: a likely correction, or what there is."""
    names = sorted(known)
    close = get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    shown = ", ".join(repr(n) for n in names[:10]) + (", ..." if len(names) > 10 else "")
    return f"known: {shown or 'none'}"


# Stored with a thread or a job, they come back as themselves, for who catches them there.
# A key is on people's disks, so it goes on naming the module in which the class once stood.
_KEYS: dict[type, str] = {CheckpointConflictError: "stategraph.checkpoint.thread:CheckpointConflictError"}
for _error in (UnserializableError, *vars().values()):
    if isinstance(_error, type) and issubclass(_error, StateGraphError):
        register(_error, name=_KEYS.get(_error))
