"""Handlers that hear of questions and resumes, beside what LangChain's handlers hear."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Literal, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.manager import logger

from ...pregel.names import NS_SEP
from ...pregel.run.run import Run
from ...pregel.types import Command, Interrupt

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


def tell_resume(run: Run, manager: Any) -> list[Any]:
    """Tell handlers that a run goes on; what they return, to be awaited in an async run."""
    handlers = _handlers(manager)
    given, found = run.settings.given, run.position.found
    goes_on = run.parent is not None or given is None or isinstance(given, Command)
    if not handlers or found is None or not goes_on:
        return []
    event = GraphResumeEvent(manager.run_id, "pending", found.checkpoint["id"], _levels(run))
    return [_tell(handler.on_resume, event) for handler in handlers]


def tell_pause(run: Run, manager: Any) -> list[Any]:
    """Tell handlers that a whole graph has paused; what they return, to be awaited in an async
    run."""
    questions = run.output.questions
    handlers = _handlers(manager)
    if not handlers or questions is None or run.parent is not None:
        return []
    status: GraphLifecycleStatus = run.output.breakpoint or "pending"
    checkpoint_id = run.machine.checkpoint_id or ""
    event = GraphInterruptEvent(manager.run_id, status, checkpoint_id, _levels(run), questions)
    return [_tell(handler.on_interrupt, event) for handler in handlers]


def _tell(method: Any, event: GraphLifecycleEvent) -> Any:
    """Call a handler. As with LangChain's, a run goes on whatever it raises, unless it has
    `raise_error`."""
    try:
        found = method(event)
    except Exception as error:
        return _log(method, error)
    return _guard(method, found) if isawaitable(found) else found


async def _guard(method: Any, told: Awaitable[Any]) -> Any:
    try:
        return await told
    except Exception as error:
        return _log(method, error)


def _log(method: Any, error: Exception) -> None:
    handler = method.__self__
    if handler.raise_error:
        raise error
    logger.warning("Error in %s.%s callback: %r", type(handler).__name__, method.__name__, error)


def _handlers(manager: Any) -> list[GraphCallbackHandler]:
    return [each for each in manager.handlers if isinstance(each, GraphCallbackHandler)]


def _levels(run: Run) -> tuple[str, ...]:
    return tuple(run.ns.split(NS_SEP)) if run.ns else ()
