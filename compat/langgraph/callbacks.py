"""The peer's handlers of pauses, under its name."""

from typing import Any, TypeAlias

from ..langchain.pauses import (
    GraphCallbackHandler,
    GraphInterruptEvent,
    GraphLifecycleEvent,
    GraphLifecycleStatus,
    GraphResumeEvent,
)

__all__ = [
    "GraphCallbackHandler",
    "GraphCallbacks",
    "GraphInterruptEvent",
    "GraphLifecycleEvent",
    "GraphLifecycleStatus",
    "GraphResumeEvent",
]

GraphCallbacks: TypeAlias = Any
"""A handler, handlers or a manager of them."""
