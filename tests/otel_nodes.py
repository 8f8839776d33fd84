"""Nodes that tell which span is current in them, on any process; and providers for workers."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from stategraph import Observer
from stategraph.graph import call_model
from stategraph.testing import ScriptedModel


def context_of(span: Any) -> list[str]:
    found = span.get_span_context()
    return [f"{found.trace_id:032x}", f"{found.span_id:016x}"]


def where(state: Any) -> Any:
    return {"x": [context_of(trace.get_current_span())]}


async def awhere(state: Any) -> Any:
    return {"x": [context_of(trace.get_current_span())]}


def elsewhere(state: Any) -> Any:
    """In a worker process: the current span, and the one around it."""
    span: Any = trace.get_current_span()
    parent = getattr(span, "parent", None)
    return {"x": [[*context_of(span), None if parent is None else f"{parent.span_id:016x}"]]}


TOLD: list[str] = []


class Telling(Observer):
    def around_operation(self, task: Any, operation: Any, call: Any) -> Any:
        TOLD.append(f"before {operation.kind} {operation.options['whose']}")
        answer = call()
        TOLD.append("after")
        return answer


told = Telling()


def ask(state: Any) -> Any:
    """In a worker process: a model, and what an observer was told of it."""
    call_model(ScriptedModel(["yes"]), [], whose="ScriptedModel's")
    return {"x": [TOLD]}


def set_up() -> None:
    trace.set_tracer_provider(TracerProvider())
