"""Nodes that report the current span, on any process; and providers for workers."""

from __future__ import annotations

import operator
from typing import Annotated

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typing_extensions import TypedDict

from stategraph import START, Observer, Send, StateGraph
from stategraph.graph import call_model
from stategraph.otel import OpenTelemetry
from stategraph.testing import ScriptedModel


def context_of(span):
    found = span.get_span_context()
    return [f"{found.trace_id:032x}", f"{found.span_id:016x}"]


def where(state):
    return {"x": [context_of(trace.get_current_span())]}


async def awhere(state):
    return {"x": [context_of(trace.get_current_span())]}


def elsewhere(state):
    """In a worker process: the current span, and the one around it."""
    span = trace.get_current_span()
    parent = getattr(span, "parent", None)
    return {"x": [[*context_of(span), None if parent is None else f"{parent.span_id:016x}"]]}


TOLD = []


class Telling(Observer):
    def around_operation(self, task, operation, call):
        TOLD.append(f"before {operation.kind} {operation.options['whose']}")
        answer = call()
        TOLD.append("after")
        return answer


told = Telling()


def ask(state):
    """In a worker process: a model, and what an observer was told of it."""
    call_model(ScriptedModel(["yes"]), [], whose="ScriptedModel's")
    return {"x": [TOLD]}


def set_up():
    trace.set_tracer_provider(TracerProvider())


class State(TypedDict):
    x: Annotated[list, operator.add]


class Travelling(OpenTelemetry):
    """Where it arrives, there is a real provider."""

    def __reduce__(self):
        return arrive, ()


def arrive():
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        set_up()
    return OpenTelemetry()


def fan_out(state):
    return [Send("a", {}) for _ in range(3)]


def check_trace(drive, executor):
    """Run on an executor: the span that is current in each node is one attempt's, in its process, below the task's span
    here; all are of one trace."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    graph = StateGraph(State).add_node("a", elsewhere).add_conditional_edges(START, fan_out, ["a"])
    with provider.get_tracer("web").start_as_current_span("request"):
        app = graph.compile(executor=executor, observer=Travelling(provider))
        found = drive.invoke(app, {"x": []})["x"]
    finished = spans.get_finished_spans()
    tasks = {f"{span.context.span_id:016x}" for span in finished if span.name == "task a"}
    assert len(tasks) == 3 and {parent for *_, parent in found} == tasks
    assert len({span for _, span, _ in found}) == 3 and not tasks & {span for _, span, _ in found}
    assert {trace_id for trace_id, *_ in found} == {f"{span.context.trace_id:032x}" for span in finished}
    run = next(span for span in finished if span.name.startswith("invoke_workflow"))
    request = next(span for span in finished if span.name == "request")
    assert run.parent is not None and run.parent.span_id == request.context.span_id


class Traced:
    """A provider, and what it has exported."""

    def __init__(self):
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        self.observer = OpenTelemetry(self.provider, self.meters)

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def parents(self):
        """(span, its parent), in the order in which they have started."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)
        names = {span.context.span_id: span.name for span in spans}
        return [(span.name, None if span.parent is None else names[span.parent.span_id]) for span in spans]

    def points(self, name):
        found = self.reader.get_metrics_data()
        if found is None:
            return []
        every = [m for r in found.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for metric in every if metric.name == name for point in metric.data.data_points]
