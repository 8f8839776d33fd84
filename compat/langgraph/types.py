"""Types of LangGraph that a program names in annotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from ...checkpoint import BaseCheckpointSaver
from ...pregel.policies import CachePolicy as _CachePolicy
from ...pregel.task.interrupts import ask
from ...pregel.types import PregelTask

Checkpointer: TypeAlias = bool | BaseCheckpointSaver | None
PregelExecutableTask: TypeAlias = PregelTask
StreamChunk: TypeAlias = tuple[tuple[str, ...], str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy(_CachePolicy):
    """`stategraph.CachePolicy` by the rule of LangGraph: what cannot be identified by its source
    counts by its name, such as each lambda of a module."""

    by_name: ClassVar[bool] = True


class CacheKey(NamedTuple):
    """Where a result is cached, and for how many seconds."""

    ns: tuple[str, ...]
    key: str
    ttl: int | None


def interrupt(value: Any, *, key: str | None = None, response_schema: Any = None) -> Any:
    """Ask the caller of the run a question, as `stategraph.interrupt` does, but by the rule of
    LangGraph: without a key a question is known by its place among those of the node. If another
    stands there when the node runs again, it gets the answer, and a warning says so."""
    return ask(value, key, response_schema, by_place=True)


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
