"""What is in the payload of a call, and what comes back: plain records, pickled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..pregel.runtime import ExecutionInfo
from ..pregel.types import RunnableConfig, StreamMode
from .pickling import PackedError


class Blob(NamedTuple):
    """A value, pickled."""

    data: bytes


class Part(NamedTuple):
    """A value that travels apart: its place in the call's parts."""

    place: int


class Kept(NamedTuple):
    """A value that could not travel, and why."""

    why: str


class Lent(NamedTuple):
    """What one task may hold, as plain data.

    Attributes:
        ns: the task's namespace; `attempt` which try it is.
        config: as `get_config` gives it, or why it cannot.
        saves: answers can come: a saver keeps the thread.
        edited: the thread was edited since its questions were shown.
        known: the answers that the task has been given before; `at_hand` those that have come for its questions now.
        listens: the stream modes that somebody reads; `limited` if a time limit wants signs of life.
    """

    ns: str
    attempt: int
    config: RunnableConfig | Kept
    info: ExecutionInfo | None
    drain_reason: str | None
    saves: bool
    edited: bool
    known: dict[str, Any]
    at_hand: dict[str, Any]
    listens: frozenset[StreamMode]
    limited: bool


class Work(NamedTuple):
    """The payload of a call.

    Attributes:
        function: its hash, and the function pickled.
        is_async: to be awaited.
        inject: the names of further parameters, and what they get.
        input: a value; a dict is taken apart, key by key.
        shared: a pair, pickled. First the context of the run and what an entrypoint saved, pickled; then what opens the
            store, pickled, or why nothing does, or None if there is no store.
        lent: pickled.
    """

    node: str
    key: str
    function: Blob | Part
    is_async: bool
    inject: tuple[tuple[str, str], ...]
    input: Any
    shared: Blob | Part
    lent: bytes


@dataclass(slots=True)
class Ending:
    """How a call ended, and what it noted on the way.

    Attributes:
        result: what the function returned; None if it raised.
        error: what it raised; of an interrupt, why the answer was rejected.
        writes: what it wrote besides its result (`push_message`).
        paused: it asked and has no answer.
        asked: how many questions it came to; `questions` are those without an answer, with their places.
        known: the answers it had; `taken` the ids of those it used for the first time.
        drain_reason: it asked the run to stop.
    """

    result: Any = None
    error: PackedError | None = None
    writes: list[tuple[str, Any]] = field(default_factory=list)
    paused: bool = False
    asked: int = 0
    questions: list[Any] = field(default_factory=list)
    raised: tuple[Any, ...] = ()
    known: dict[str, Any] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)
    drain_reason: str | None = None
