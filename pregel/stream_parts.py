"""What a stream yields with `version="v2"`: a part for each mode, and the payloads of tasks and
checkpoints. Types only; a type checker knows a part's `data` by its `type`."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from ..checkpoint.base import CheckpointMetadata, RunnableConfig
from .types import Interrupt, StateT, ValueT


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
