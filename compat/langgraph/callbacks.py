"""Handlers that hear of questions and resumes, beside what LangChain's handlers hear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from ...pregel.types import Interrupt

GraphLifecycleStatus: TypeAlias = Literal[
    "input", "pending", "done", "interrupt_before", "interrupt_after", "out_of_steps"
]


@dataclass(frozen=True, slots=True)
class GraphInterruptEvent:
    """A graph has paused."""

    run_id: UUID | None
    status: GraphLifecycleStatus
    checkpoint_id: str
    checkpoint_ns: tuple[str, ...]
    interrupts: tuple[Interrupt, ...]


@dataclass(frozen=True, slots=True)
class GraphResumeEvent:
    """A graph goes on."""

    run_id: UUID | None
    status: GraphLifecycleStatus
    checkpoint_id: str
    checkpoint_ns: tuple[str, ...]


GraphLifecycleEvent: TypeAlias = GraphInterruptEvent | GraphResumeEvent


class GraphCallbackHandler(BaseCallbackHandler):
    """Inherit from it and give it in `config["callbacks"]`."""

    def on_interrupt(self, event: GraphInterruptEvent) -> Any:
        """The graph has paused."""

    def on_resume(self, event: GraphResumeEvent) -> Any:
        """The graph goes on."""
