"""The peer's types of stream parts and payloads: what a program names in annotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict, TypeVar

from ...checkpoint import BaseCheckpointSaver, CheckpointMetadata, RunnableConfig
from ...pregel.types import Interrupt, PregelTask

Checkpointer: TypeAlias = bool | BaseCheckpointSaver | None
StateT = TypeVar("StateT", default=Any)
OutputT = TypeVar("OutputT", default=Any)
PregelExecutableTask: TypeAlias = PregelTask


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
    result: dict[str, Any]


class CheckpointTask(TypedDict):
    """A task that a checkpoint leads to."""

    id: str
    name: str
    error: NotRequired[str]
    result: NotRequired[Any]
    interrupts: list[dict[str, Any]]
    state: dict[str, Any] | RunnableConfig | None


class CheckpointPayload(TypedDict, Generic[StateT]):
    """A chunk of the mode `checkpoints`."""

    config: RunnableConfig | None
    metadata: CheckpointMetadata
    values: StateT
    next: list[str]
    parent_config: RunnableConfig | None
    tasks: list[CheckpointTask]


class _DebugPayload(TypedDict):
    step: int
    timestamp: str
    type: Literal["checkpoint", "task", "task_result"]
    payload: Any


DebugPayload: TypeAlias = _DebugPayload


class _Part(TypedDict):
    ns: tuple[str, ...]


class ValuesStreamPart(_Part, Generic[OutputT]):
    """A part of the mode `values`."""

    type: Literal["values"]
    data: OutputT
    interrupts: tuple[Interrupt, ...]


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
    ValuesStreamPart[OutputT]
    | UpdatesStreamPart
    | MessagesStreamPart
    | CustomStreamPart
    | CheckpointStreamPart[StateT]
    | TasksStreamPart
    | DebugStreamPart[StateT]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePolicy:
    """What tracers record of a node.

    Attributes:
        process_inputs, process_outputs: make what is recorded from what there is.
    """

    process_inputs: Callable[[Any], Any] | None = None
    process_outputs: Callable[[Any], Any] | None = None


def omit_payload(_value: Any) -> dict[str, Any]:
    """For `TracePolicy`: record nothing."""
    return {}


def ensure_valid_checkpointer(checkpointer: Checkpointer) -> Checkpointer:
    """The checkpointer itself.

    Raises:
        TypeError: it is none.
    """
    if checkpointer in (None, True, False) or isinstance(checkpointer, BaseCheckpointSaver):
        return checkpointer
    raise TypeError(
        "checkpointer must be a BaseCheckpointSaver, True, False or None, "
        f"got {type(checkpointer).__name__}"
    )
