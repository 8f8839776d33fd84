"""Types of the peer that a program names in annotations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...checkpoint import BaseCheckpointSaver
from ...pregel.types import PregelTask

Checkpointer: TypeAlias = bool | BaseCheckpointSaver | None
PregelExecutableTask: TypeAlias = PregelTask


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
