"""The types that users meet: what a node returns, what a policy says, what a snapshot holds.

Values only. Nothing here runs, reads a clock or knows a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    Protocol,
    TypeAlias,
)

from typing_extensions import TypedDict, TypeVar

from ..channels.aggregate import Overwrite
from ..channels.base import MISSING, Missing
from ..checkpoint.base import CheckpointMetadata, RunnableConfig
from ..checkpoint.digest import blake2b
from ..checkpoint.records import WithAttributes
from ..checkpoint.serde.registry import register
from .names import PARENT
from .policies import CachePolicy, RetryPolicy, TimeoutPolicy
from .policies import default_retry_on as default_retry_on

__all__ = [
    "CachePolicy",
    "Command",
    "AnyConfig",
    "Durability",
    "Multitask",
    "OnFailure",
    "Schedule",
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
    "StreamWriter",
    "TimeoutPolicy",
]

ValueT = TypeVar("ValueT", default=Any)
StateT = TypeVar("StateT", default=Any)
"""The state of a graph."""
ContextT = TypeVar("ContextT", default=None)
"""What a graph's calls take as `context`."""
InputT = TypeVar("InputT", default=StateT | dict[str, Any])
"""What a graph's calls take: by default a state, or a dict with some of its keys."""
OutputT = TypeVar("OutputT", default=StateT)
"""What a graph's calls return."""


class IsDataclass(Protocol):
    """An instance of a dataclass, for type checkers."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class IsModel(Protocol):
    """An instance of a pydantic model, for type checkers."""

    @property
    def model_fields_set(self) -> set[str]: ...


Version = Literal["v1", "v2"]
"""The shape of results: dicts, or what the graph's schemas say."""

LOCAL: Final = "threads"
"""The `executor=` that means the driver's own threads."""

DEFAULT_RECURSION_LIMIT: Final = 10_000

StreamMode = Literal["values", "updates", "custom", "messages", "tasks", "checkpoints", "debug"]
"""What a stream shows: the state after each superstep, each node's update, what nodes send with
their `writer`, the tokens of messages, tasks as they start and end, checkpoints as they are stored,
or (as "debug") the last two with step and time."""

Selection = str | Sequence[str]
"""Channels: a name for its bare value, or several for a dict."""

Durability = Literal["sync", "async", "exit"]
"""When a superstep is stored: before its chunk reaches the reader ("sync"), at most one superstep
later ("async"), or when the call ends ("exit")."""

AnyConfig: TypeAlias = RunnableConfig | Mapping[str, Mapping[str, Any]]
"""A config as callers give it. Type checkers do not take a variable without an annotation,
`thread = {"configurable": {"thread_id": "1"}}`, for a TypedDict."""

Subgraph: TypeAlias = str | tuple[str, str] | list[str | tuple[str, str]]
"""Which memory of a nested graph: the name of its node, or (name, key) for that of a `Send` with a
key; a list of these, the outermost first, for a graph inside another."""

Multitask = Literal["reject", "enqueue", "interrupt", "rollback"]
"""What a call does while a run of its thread is live; see `CallOptions`."""

Schedule = Literal["supersteps", "ready"]
"""When tasks run: together, and the next ones when all have ended ("supersteps"), or each as soon
as its own inputs are there ("ready")."""

OnFailure = Literal["stop", "finish", "undo"]
"""What the failure of a task does to the others of its superstep: no further one starts and
coroutines are cancelled ("stop"), or all are started and run to their ends ("finish"), and then
what was done since the last input is undone ("undo")."""

Validated = Literal["input", "nodes", "writes"]
"""Where a `StateGraph` validates values: the input of a call, what nodes are given, what they
write."""

StreamWriter = Callable[[Any], None]
"""A function that sends one custom event to the reader of the stream at once."""

All = Literal["*"]


class Send:
    """Run `node` in the next superstep with `arg` as its input instead of the state.

    Args:
        node: the node's name.
        arg: its input, passed unchanged.
        timeout: seconds, a timedelta or a `TimeoutPolicy`; replaces the node's own.
        key: for a node whose graph is compiled with `checkpointer=True`: the memory of that graph
            to work on. It keeps one for each key, and one for Sends without a key. Any string
            without NUL.

        race: Sends from one task with the same `race` form a race: the first to finish wins;
            the others are stopped and write nothing. One that fails or interrupts does not win.

    Attributes:
        sender: of a racer, the task that sent it, as the engine notes it.

    Raises:
        TypeError: `key` or `race` is not a string.
        ValueError: it contains NUL.

    >>> Send("work", {"item": 1})
    Send(node='work', arg={'item': 1})
    >>> Send("agent", {"question": "Where is it?"}, key="customer-7")
    Send(node='agent', arg={'question': 'Where is it?'}, key='customer-7')
    """

    __slots__ = ("arg", "key", "node", "race", "sender", "timeout")

    node: str
    arg: Any
    timeout: TimeoutPolicy | None
    key: str | None
    race: str | None
    sender: str

    def __init__(
        self,
        /,
        node: str,
        arg: Any,
        *,
        timeout: float | timedelta | TimeoutPolicy | None = None,
        key: str | None = None,
        race: str | None = None,
    ) -> None:
        self.node = node
        self.arg = arg
        self.timeout = None if timeout is None else TimeoutPolicy.coerce(timeout)
        self.key = None if key is None else _check_key("key", key)
        self.race = None if race is None else _check_key("race", race)
        self.sender = ""

    def sent_by(self, sender: str) -> Send:
        """Return a copy of this Send, marked as a racer sent by that task."""
        mine = copy(self)
        mine.sender = sender
        return mine

    def _options(self) -> dict[str, Any]:
        """What is set beside node and input."""
        options = {"timeout": self.timeout, "key": self.key, "race": self.race}
        return {name: value for name, value in options.items() if value is not None}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Send)
            and self.node == other.node
            and self.arg == other.arg
            and self._options() == other._options()
        )

    def __hash__(self) -> int:
        return hash((self.node, self.arg, *self._options().items()))

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self._options().items())
        return f"Send(node={self.node!r}, arg={self.arg!r}{options})"


def _check_key(name: str, key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"Send: {name} must be a string, got {key!r}")
    if "\0" in key:
        raise ValueError(f"Send: {name} must not contain NUL, got {key!r}")
    return str.__str__(key)


GotoT = TypeVar("GotoT", bound=str, default=str, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Command(Generic[GotoT]):
    """A state update combined with where to go next. Nodes return it; `invoke` takes it as
    input.

    Args:
        update: what to write: a dict, (key, value) pairs or an instance of the schema.
        goto: a node name, a `Send`, or a list of these. The node's own edges are followed as well.
        resume: the answer to a pending `interrupt`, or a dict of interrupt ids and answers. `None`
            is an answer.
        graph: None for the graph of the node, `Command.PARENT` for the graph that contains it.

    The return annotation `Command[Literal["a", "b"]]` declares where a node may go, for checks and
    drawings. It does not declare where a command for the parent graph may go: pass `destinations`
    to the `add_node` that adds this graph to the parent.

    Raises:
        TypeError: `goto` holds something else than names and Sends.
        ValueError: `graph` is neither None nor `Command.PARENT`.
    """

    PARENT: ClassVar = PARENT

    update: Any = None
    goto: GotoT | Send | Sequence[GotoT | Send] = ()
    resume: Any | Missing = MISSING
    graph: str | None = None

    def __post_init__(self) -> None:
        goto = self.goto
        steps = goto if isinstance(goto, (list, tuple)) else (goto,)
        for step in steps:
            if not isinstance(step, (str, Send)):
                kind = type(step)
                raise TypeError(
                    "Command(goto=...) must be a node name, a Send of stategraph, or a list of "
                    f"these, got {kind.__module__}.{kind.__qualname__}: {goto!r}"
                )
        if self.graph is not None and self.graph != Command.PARENT:
            raise ValueError(
                f"Command(graph=...) must be None or Command.PARENT, got {self.graph!r}"
            )

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
class Interrupt(Generic[ValueT]):
    """A question that a task asked with `interrupt(value)` and that is waiting for its answer.

    Attributes:
        value: what the node passed to `interrupt`.
        id: 32 hex digits; the same whenever the same checkpoint runs again. The key in
            `Command(resume={id: answer})`.
        response_schema: the JSON schema that the answer must match, or None.
    """

    value: ValueT
    id: str
    response_schema: Any = None

    @classmethod
    def from_ns(cls, value: Any, ns: str, *, response_schema: Any = None) -> Interrupt[Any]:
        """Return a question of a task that is known by its namespace."""
        return cls(value, blake2b(ns.encode(), digest_size=16).hexdigest(), response_schema)


class StateUpdate(NamedTuple):
    """One update of `bulk_update_state`: write `values` as if node `as_node` had returned it."""

    values: Any
    as_node: str | None = None
    task_id: str | None = None


class _TaskItems(NamedTuple):
    id: str
    name: str
    path: tuple[Any, ...]
    error: BaseException | None = None
    interrupts: tuple[Interrupt, ...] = ()
    state: Any = None
    result: Any = None


class PregelTask(WithAttributes, _TaskItems):
    """A task in a snapshot: a tuple of seven items, as in LangGraph, with further attributes.

    Attributes:
        id: the same whenever the same checkpoint runs again.
        name: the name of its node.
        path: its place in the order of the superstep, such as `("__pregel_push", 2, False)` for the
            third Send.
        error: what it raised, or None.
        interrupts: the questions that it asked.
        state: if it ran a nested graph, that graph's config, or its snapshot with `subgraphs=True`.
        result: what it wrote, as a dict of state keys; None if it has not finished.
        spans: its attempts as (start, duration), in seconds since the epoch and seconds; () if they
            were not recorded.
        input: what its node is called with, as it is stored.
        wake_at: when it runs again if it sleeps (`runtime.sleep`), in UTC; None if it does not.
        key: of a `Send`, the key of the nested graph's memory; None without one.
        lost: whether another task won its race (`Send(..., race=...)`), so that it does not count.
        traceback: where its error was raised: file, line, function and source text of your code, as
            Python prints them; "" if that was not recorded.
        calls: its calls of functions with `@task`, and of other tasks within them, in the order of
            the calls, as far as they were recorded.
    """

    spans: tuple[tuple[float, float], ...] = ()
    input: Any = None
    wake_at: datetime | None = None
    key: str | None = None
    lost: bool = False
    traceback: str = ""
    calls: tuple[PregelTask, ...] = ()


class _SnapshotItems(NamedTuple, Generic[StateT]):
    values: StateT
    next: tuple[str, ...]
    config: RunnableConfig
    metadata: CheckpointMetadata | None
    created_at: str | None
    parent_config: RunnableConfig | None
    tasks: tuple[PregelTask, ...]
    interrupts: tuple[Interrupt, ...]


class StateSnapshot(WithAttributes, _SnapshotItems[StateT]):
    """A thread at one of its checkpoints: a tuple of eight items, as in LangGraph, with further
    attributes.

    Attributes:
        values: the state.
        next: the names of the nodes that would run now; empty when the run has ended. If all tasks
            of a superstep have finished and the process died before it was applied: those that
            follow it, or if none do, those of the finished tasks, whose superstep the call ends.
        config: identifies this checkpoint; pass it to a call to replay or fork from here.
        metadata: how the checkpoint was made; None for an empty thread.
        created_at: when it was made, as ISO 8601 in UTC.
        parent_config: identifies the checkpoint before this one; None for the first.
        tasks: the tasks of the next superstep, with what is stored of them.
        interrupts: the open questions of all tasks, in path order.
        wake_at: when the first of the tasks that sleep runs again, in UTC; None if none does.
        posts: what was posted to the thread and waits for its next run, in the order posted; only
            of `get_state` without a checkpoint, of a graph with `inbox=True`.
    """

    wake_at: datetime | None = None
    posts: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphOutput(Generic[ValueT]):
    """The result of `invoke(..., version="v2")`.

    Attributes:
        value: the output as an instance of the output schema. A dict if the call paused or has
            `output_keys`, and keys that the schema requires are missing.
        interrupts: the open questions.
        wake_at: when the first of the tasks that sleep runs again, in UTC; None if none does.
    """

    value: ValueT
    interrupts: tuple[Interrupt, ...] = ()
    wake_at: datetime | None = field(default=None, repr=False)


def names_of(keys: Selection) -> tuple[str, ...]:
    """The names of a selection, which may be one bare name."""
    return (keys,) if isinstance(keys, str) else tuple(keys)


def without_keys(sends: Any, keys: frozenset[str]) -> Any:
    """A `Send`, or a list of these, without these keys of its input, as it is stored: what a
    channel holds that is not stored has no place in it either."""
    if isinstance(sends, list):
        return [without_keys(each, keys) for each in sends]
    if not isinstance(sends, Send) or not isinstance(sends.arg, dict):
        return sends
    mine = copy(sends)
    mine.arg = {key: value for key, value in sends.arg.items() if key not in keys}
    return mine


def _parts_of_send(send: Send) -> tuple[Any, ...]:
    options = send._options()
    timeout = options.pop("timeout", None)
    if send.sender:
        options["sender"] = send.sender
    # As it was before there were other options, wherever none of these is set.
    return (send.node, send.arg, timeout, *([options] if options else ()))


def _send_of_parts(parts: tuple[Any, ...]) -> Send:
    node, arg, timeout, *more = parts
    if not more:
        return Send(node, arg, timeout=timeout)
    options = dict(more[0])
    sender = options.pop("sender", "")
    return Send(node, arg, timeout=timeout, **options).sent_by(sender)


register(Send, encode=_parts_of_send, decode=_send_of_parts, name="stategraph:Send")
for _noun in (Command, Interrupt, Overwrite, TimeoutPolicy, Missing, StateUpdate):
    register(_noun, name=f"stategraph:{_noun.__name__}")


# -- what a stream yields with `version="v2"` ------------------------------------------------------
# A part for each mode. Types only; a type checker knows a part's `data` by its `type`.

class TaskPayload(TypedDict):
    """A chunk of the mode `tasks`: a task starts."""

    id: str
    name: str
    input: Any
    triggers: list[str]
    metadata: NotRequired[dict[str, Any]]


class TaskResultPayload(TypedDict):
    """A chunk of the mode `tasks`: a task has ended."""

    id: str
    name: str
    error: str | None
    interrupts: list[dict[str, Any]]
    wake_at: NotRequired[datetime]
    result: dict[str, Any]


class CheckpointTask(TypedDict):
    """A task that a checkpoint leads to."""

    id: str
    name: str
    error: NotRequired[str]
    result: NotRequired[Any]
    interrupts: list[dict[str, Any]]
    wake_at: NotRequired[datetime]
    state: dict[str, Any] | RunnableConfig | None


class CheckpointPayload(TypedDict, Generic[StateT]):
    """A chunk of the mode `checkpoints`."""

    config: RunnableConfig | None
    metadata: CheckpointMetadata
    values: StateT
    next: list[str]
    parent_config: RunnableConfig | None
    tasks: list[CheckpointTask]


class DebugPayload(TypedDict):
    """A chunk of the mode `debug`: a task or a checkpoint, with step and time."""

    step: int
    timestamp: str
    type: Literal["checkpoint", "task", "task_result"]
    payload: Any


class _Part(TypedDict):
    ns: tuple[str, ...]


class ValuesStreamPart(_Part, Generic[ValueT]):
    """A part of the mode `values`."""

    type: Literal["values"]
    data: ValueT
    interrupts: NotRequired[tuple[Interrupt, ...]]
    wake_at: NotRequired[datetime]


class UpdatesStreamPart(_Part):
    """A part of the mode `updates`."""

    type: Literal["updates"]
    data: dict[str, Any]


class MessagesStreamPart(_Part):
    """A part of the mode `messages`."""

    type: Literal["messages"]
    data: tuple[Any, dict[str, Any]]


class CustomStreamPart(_Part):
    """A part of the mode `custom`."""

    type: Literal["custom"]
    data: Any


class CheckpointStreamPart(_Part, Generic[StateT]):
    """A part of the mode `checkpoints`."""

    type: Literal["checkpoints"]
    data: CheckpointPayload[StateT]


class TasksStreamPart(_Part):
    """A part of the mode `tasks`."""

    type: Literal["tasks"]
    data: TaskPayload | TaskResultPayload


class DebugStreamPart(_Part, Generic[StateT]):
    """A part of the mode `debug`."""

    type: Literal["debug"]
    data: DebugPayload


StreamPart: TypeAlias = (
    ValuesStreamPart[ValueT]
    | UpdatesStreamPart
    | MessagesStreamPart
    | CustomStreamPart
    | CheckpointStreamPart[StateT]
    | TasksStreamPart
    | DebugStreamPart[StateT]
)
"""One item of a stream with `version="v2"`: a dict of the mode (`type`), the namespace of the graph
that it comes from (`ns`), and `data`, whose type the mode tells."""
