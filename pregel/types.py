"""The nouns a user meets: what a node returns, what a policy says, what a snapshot holds.

Values only. Nothing here runs, reads a clock or knows a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, Final, Generic, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict, TypeVar

from ..channels.aggregate import Overwrite
from ..channels.base import MISSING, Missing
from ..checkpoint.base import CheckpointMetadata, RunnableConfig
from ..checkpoint.serde.registry import register
from .names import PARENT

__all__ = [
    "CachePolicy",
    "Command",
    "Durability",
    "GraphOutput",
    "Interrupt",
    "Overwrite",
    "PregelTask",
    "RetryPolicy",
    "RunnableConfig",
    "Send",
    "StateSnapshot",
    "StateUpdate",
    "StreamMode",
    "StreamPart",
    "StreamWriter",
    "TimeoutPolicy",
]

HERE: Final = "threads"
"""The `executor=` that means the driver's own threads."""

DEFAULT_RECURSION_LIMIT: Final = 10_000

StreamMode = Literal["values", "updates", "custom", "messages", "tasks", "checkpoints", "debug"]
"""What a stream shows: state after each step, each node's update, what nodes write to their `writer`, message
tokens, tasks starting and ending, checkpoints as they are stored, or the last two with step and time."""

Durability = Literal["sync", "async", "exit"]
"""When a superstep is stored: before its chunk reaches the reader; at most one superstep later; or at the end."""

StreamWriter = Callable[[Any], None]
"""What a node calls to send one custom event to the reader of the stream, at once."""

All = Literal["*"]


class Send:
    """Run `node` in the next superstep with `arg` as its input, whatever the state says.

    Args:
        node: the node's name.
        arg: its input, passed as it is.
        timeout: seconds, a timedelta or a `TimeoutPolicy`; overrides the node's own.

    >>> Send("work", {"item": 1})
    Send(node='work', arg={'item': 1})
    """

    __slots__ = ("arg", "node", "timeout")

    node: str
    arg: Any
    timeout: TimeoutPolicy | None

    def __init__(
        self, /, node: str, arg: Any, *, timeout: float | timedelta | TimeoutPolicy | None = None
    ) -> None:
        self.node = node
        self.arg = arg
        self.timeout = None if timeout is None else TimeoutPolicy.coerce(timeout)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Send)
            and self.node == other.node
            and self.arg == other.arg
            and self.timeout == other.timeout
        )

    def __hash__(self) -> int:
        return hash((self.node, self.arg, self.timeout))

    def __repr__(self) -> str:
        timeout = "" if self.timeout is None else f", timeout={self.timeout!r}"
        return f"Send(node={self.node!r}, arg={self.arg!r}{timeout})"


GotoT = TypeVar("GotoT", default=Any)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Command(Generic[GotoT]):
    """An update and a direction in one: returned by a node, or given to `invoke` as input.

    Args:
        update: what to write, like a node's return value: a dict, (key, value) pairs or a schema instance.
        goto: a node name, a `Send`, or a list of them; added to the node's own edges.
        resume: the answer to a pending `interrupt`, or a dict of interrupt id to answer. `None` is an answer.
        graph: None for the graph of the node, `Command.PARENT` for the one around it.

    As a return annotation `Command[Literal["a", "b"]]` declares where a node may go, for checks and drawings. It says
    nothing of a command for the parent graph: give `destinations` to the node there that holds this graph.

    Raises:
        TypeError: `goto` is not made of names and Sends.
        ValueError: `graph` names no known graph.
    """

    PARENT: ClassVar = PARENT

    update: Any = None
    goto: str | Send | Sequence[str | Send] = ()
    resume: Any | Missing = MISSING
    graph: str | None = None

    def __post_init__(self) -> None:
        goto = self.goto
        steps = goto if isinstance(goto, (list, tuple)) else (goto,)
        for step in steps:
            if not isinstance(step, (str, Send)):
                kind = type(step)
                raise TypeError(
                    "Command(goto=...) takes a node name, a Send of stategraph or a list of them, "
                    f"not {kind.__module__}.{kind.__qualname__}: {goto!r}"
                )
        if self.graph is not None and self.graph != Command.PARENT:
            raise ValueError(f"Command(graph=...) is None or Command.PARENT, not {self.graph!r}")

    def steps(self) -> Sequence[str | Send]:
        """`goto` as a sequence."""
        return (self.goto,) if isinstance(self.goto, (str, Send)) else self.goto

    def __repr__(self) -> str:
        parts = [
            f"{name}={value!r}"
            for name, value, absent in (
                ("graph", self.graph, None),
                ("update", self.update, None),
                ("resume", self.resume, MISSING),
                ("goto", self.goto, ()),
            )
            if value is not absent and value != absent
        ]
        return f"Command({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a task asked with `interrupt(value)` and that waits for an answer.

    Attributes:
        value: what the node passed to `interrupt`.
        id: 32 hex digits; the same whenever the same checkpoint runs again. Key of `Command(resume={id: answer})`.
        response_schema: the JSON schema the answer must fit, or None.
    """

    value: Any
    id: str
    response_schema: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPolicy:
    """How long one attempt of a node may take.

    Args:
        run_timeout: seconds (or timedelta) for the whole attempt.
        idle_timeout: seconds without a sign of life: a custom event, a child call or `runtime.heartbeat()`.
        refresh_on: "auto" for all of these, "heartbeat" for the last alone.
    """

    run_timeout: float | None = None
    idle_timeout: float | None = None
    refresh_on: Literal["auto", "heartbeat"] = "auto"

    def __post_init__(self) -> None:
        for name in ("run_timeout", "idle_timeout"):
            value = getattr(self, name)
            if isinstance(value, timedelta):
                value = value.total_seconds()
                object.__setattr__(self, name, value)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be greater than 0 seconds, not {value!r}")
        if self.refresh_on not in ("auto", "heartbeat"):
            raise ValueError(f"refresh_on is 'auto' or 'heartbeat', not {self.refresh_on!r}")

    @classmethod
    def coerce(cls, timeout: float | timedelta | TimeoutPolicy | None) -> TimeoutPolicy | None:
        """Seconds or a timedelta mean `run_timeout`; a policy without limits means None."""
        if timeout is None:
            return None
        if not isinstance(timeout, TimeoutPolicy):
            return cls(run_timeout=timeout)  # type: ignore[arg-type]
        limited = timeout.run_timeout is not None or timeout.idle_timeout is not None
        return timeout if limited else None


_NOT_RETRIED = (
    ValueError, TypeError, ArithmeticError, ImportError, LookupError, NameError, SyntaxError, RuntimeError,
    ReferenceError, StopIteration, StopAsyncIteration, OSError,
)  # fmt: skip


def default_retry_on(error: Exception) -> bool:
    """Whether another try may help: lost connections and HTTP 5xx yes, programming mistakes no, the rest yes."""
    if isinstance(error, ConnectionError):
        return True
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)  # httpx and requests agree on this name
    if isinstance(status, int):
        return status >= 500
    return not isinstance(error, _NOT_RETRIED)


class RetryPolicy(NamedTuple):
    """When a failed node is tried again.

    Attributes:
        initial_interval: seconds before the first retry.
        backoff_factor: each further wait is so many times longer.
        max_interval: seconds that no wait exceeds, jitter included.
        max_attempts: tries in all, the first one counted.
        jitter: whether a wait is shortened at random, by up to half.
        retry_on: an exception class, several, or a function of the exception.
    """

    initial_interval: float = 0.5
    backoff_factor: float = 2.0
    max_interval: float = 128.0
    max_attempts: int = 3
    jitter: bool = True
    retry_on: type[Exception] | Sequence[type[Exception]] | Callable[[Exception], bool] = default_retry_on


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """Reuse a node's result for equal inputs. Needs a cache on the graph.

    Functions are told apart by name, code and what they hold: closures, defaults, an object's attributes. So one that
    holds what changes, such as a counter, finds none of its results, unless there is a `key_func`: then what it holds
    is looked at once. A node whose key is another one at every call is told so once, by a `RuntimeWarning`.

    Args:
        key_func: the input to a key (str or bytes); None uses a canonical hash of it.
        ttl: seconds a result stays good; None for ever.
    """

    key_func: Callable[..., str | bytes] | None = None
    ttl: float | None = None


class StateUpdate(NamedTuple):
    """One item of `bulk_update_state`: `values` as if `as_node` had returned them."""

    values: Any
    as_node: str | None = None
    task_id: str | None = None


class PregelTask(NamedTuple):
    """A task in a snapshot.

    Attributes:
        id: stable for the same checkpoint.
        path: its place in the superstep's order, e.g. `("__pregel_push", 2, False)` for the third Send.
        error: what it raised, or None.
        interrupts: its questions.
        state: the nested graph's config or snapshot, if it ran one.
        result: what it wrote, as a dict of state keys; None if it has not finished.
        spans: its attempts, as (began, took): seconds since the epoch, and seconds; () if nobody kept them.
    """

    id: str
    name: str
    path: tuple[Any, ...]
    error: BaseException | None = None
    interrupts: tuple[Interrupt, ...] = ()
    state: Any = None
    result: Any = None
    spans: tuple[tuple[float, float], ...] = ()


class StateSnapshot(NamedTuple):
    """A thread at one of its checkpoints.

    Attributes:
        values: the state.
        next: names of the nodes that would run now; empty when the run is over.
        config: names this checkpoint; pass it to run or fork from here.
        metadata: how the checkpoint came to be; None for an empty thread.
        created_at: ISO-8601 UTC.
        parent_config: names the checkpoint before; None for the first.
        tasks: the tasks of the next superstep with what is known of them.
        interrupts: the questions of all tasks, in path order.
    """

    values: Any
    next: tuple[str, ...]
    config: RunnableConfig
    metadata: CheckpointMetadata | None
    created_at: str | None
    parent_config: RunnableConfig | None
    tasks: tuple[PregelTask, ...]
    interrupts: tuple[Interrupt, ...]


class StreamPart(TypedDict):
    """One item of a stream with `version="v2"`: every mode has this shape; values parts add open questions."""

    type: StreamMode
    ns: tuple[str, ...]
    data: Any
    interrupts: NotRequired[tuple[Interrupt, ...]]


OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class GraphOutput(Generic[OutputT]):
    """The result of `invoke(..., version="v2")`: the value, coerced to the output schema, and open questions.

    The value of a paused call, or of some `output_keys`, stays a dict where it lacks what the schema needs.
    """

    value: OutputT
    interrupts: tuple[Interrupt, ...] = ()


def _parts_of_send(send: Send) -> tuple[Any, ...]:
    return (send.node, send.arg, send.timeout)


def _send_of_parts(parts: tuple[Any, ...]) -> Send:
    return Send(parts[0], parts[1], timeout=parts[2])


register(Send, encode=_parts_of_send, decode=_send_of_parts, name="stategraph:Send")
for _noun in (Command, Interrupt, Overwrite, TimeoutPolicy, Missing, StateUpdate):
    register(_noun, name=f"stategraph:{_noun.__name__}")
