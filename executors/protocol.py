"""What crosses between the driver and a worker, as plain records; and all that an executor knows of
a task.

The records are pickled. Driver and workers run the same version, so there is no format to keep.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from ..pregel.running import TaskPlace
from ..pregel.runtime import ExecutionInfo, Running
from ..pregel.task.attempt_state import AttemptState
from ..pregel.task.deadline import Deadline
from ..pregel.types import Interrupt, RunnableConfig, StreamMode
from .pickling import PackedError


class DriverTask(Running, Protocol):
    """What the driver's side of an executor knows of a task, besides what the function in it may
    use. Not its run."""

    @property
    def current(self) -> AttemptState:
        """What the current attempt has done so far."""

    @property
    def ns(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def edited(self) -> bool: ...
    @property
    def place(self) -> TaskPlace: ...
    @property
    def input_kind(self) -> Literal["state", "input", "arguments"]: ...
    @property
    def payload_cache(self) -> dict[Any, Any]:
        """What executors keep for all tasks of the run, by executor."""

    @property
    def deadline(self) -> Deadline | None:
        """That of the current attempt."""

    @property
    def nearest_deadline(self) -> Deadline | None:
        """The same, or that of the nearest attempt around it that has one."""

    def known_channels(self) -> Collection[str]: ...
    def is_cut_short(self) -> bool:
        """Whether nobody waits for the run any longer."""


class Inline(NamedTuple):
    """A pickled value that travels in the payload."""

    data: bytes


class PartRef(NamedTuple):
    """A value that travels apart.

    Attributes:
        place: among the parts of the call.
        pickled: the part is the value, pickled; else the value itself, which is bytes.
    """

    place: int
    pickled: bool = True


class Unsendable(NamedTuple):
    """Stands for a value that could not be sent.

    Attributes:
        why: a sentence, or what is wrong with the part at `path`.
        path: where in the value the part stands that is to blame, such as `context.lock`.
    """

    why: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.why}" if self.path else self.why


class Resources(NamedTuple):
    """What one task may hold in the worker, as plain data.

    Attributes:
        ns: the task's namespace.
        attempt: which try this is, from 1.
        config: as `get_config` gives it, or why it cannot be sent.
        drain_reason: why the run was asked to stop, or None.
        can_ask: answers can come, since a checkpointer keeps the thread.
        edited: the thread was edited since the task's questions were shown.
        given: the answers that the task has been given before, by interrupt id.
        brought: the answers that this call brings for its questions.
        asked: the ids of the questions that it is recorded to have asked last.
        modes: the live stream modes that somebody reads.
        limited: a time limit waits for signs of life.
        place: of the task, for the records of what can be undone.
        joined: the nodes that opened the joins which made the task run.
        span: the `RemoteSpan` of what surrounds the attempt, pickled; or None.
        observed: what observers have put around the function, pickled; or None.
    """

    ns: str
    attempt: int
    config: RunnableConfig | Unsendable
    execution_info: ExecutionInfo | None
    drain_reason: str | None
    can_ask: bool
    edited: bool
    given: dict[str, Any]
    brought: dict[str, Any]
    asked: Sequence[str]
    modes: frozenset[StreamMode]
    limited: bool
    place: TaskPlace
    joined: tuple[str, ...] = ()
    span: bytes | None = None
    observed: bytes | None = None


class CallRequest(NamedTuple):
    """The payload of a call.

    Attributes:
        key: the hash of the pickled function, by which a worker knows one that it has unpickled.
        is_async: the function is to be awaited.
        inject: its further parameters, each with what it gets: a key of `GETTERS`.
        input: a value; a dict key by key, since many tasks read the same values of the state.
        shared: what is the same for all tasks of the run, a pickled pair. First the context and
            what the last run of an entrypoint saved, pickled. Then what opens the store, pickled;
            why nothing does; or None without a store.
        resources: `Resources`, pickled.
    """

    node: str
    key: str
    function: Inline | PartRef
    is_async: bool
    inject: tuple[tuple[str, str], ...]
    input: Any
    shared: Inline | PartRef
    resources: bytes


@dataclass(slots=True)
class CallResult:
    """How a call ended, and what it did on the way.

    Attributes:
        value: what the function returned; None if it raised.
        error: what it raised; of an interrupt, why the answer was rejected.
        writes: what it wrote besides its result (`push_message`).
        paused: it asked a question that has no answer yet.
        asked: how many questions without a key it came to.
        reached: the ids of all questions that it came to.
        questions: those without an answer, each with where it is shown.
        raised: the questions of the signal that left the function.
        given: the answers it had in the end, by interrupt id.
        taken: the ids of those that it used for the first time.
        drain_reason: why it asked the run to stop, or None.
    """

    value: Any = None
    error: PackedError | None = None
    writes: list[tuple[str, Any]] = field(default_factory=list)
    paused: bool = False
    asked: int = 0
    reached: Set[str] = frozenset()
    questions: list[tuple[tuple[int, ...], Interrupt]] = field(default_factory=list)
    raised: tuple[Interrupt, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    drain_reason: str | None = None
