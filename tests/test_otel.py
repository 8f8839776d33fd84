"""Spans and metrics, by the real OpenTelemetry SDK: parents across threads, loops, processes; links; an OTLP receiver."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated, Any

import pytest
from conftest import Drive
from typing_extensions import TypedDict

pytest.importorskip("opentelemetry.sdk")

import cluster
import otel_nodes
from fleet import working
from opentelemetry import context, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stategraph import (
    START,
    Command,
    InMemorySaver,
    ProcessExecutor,
    RetryPolicy,
    Send,
    StateGraph,
    interrupt,
    task,
)
from stategraph.otel import OpenTelemetry
from stategraph.pregel.observers import EVERYWHERE, add_observer, extend_job
from stategraph.workers import Queue

THREAD: Any = {"configurable": {"thread_id": "1"}}
QUICK = RetryPolicy(initial_interval=0.001, jitter=False)


class State(TypedDict, total=False):
    x: Annotated[list, operator.add]


class Traced:
    """A provider, and what it has exported."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.observer = OpenTelemetry(self.provider, MeterProvider([self.reader]))

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def parents(self) -> list[tuple[str, str | None]]:
        """(span, its parent), in the order in which they have started."""
        spans = sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time)
        names = {span.context.span_id: span.name for span in spans}
        return [(span.name, None if span.parent is None else names[span.parent.span_id]) for span in spans]

    def points(self, name: str) -> list[Any]:
        found = self.reader.get_metrics_data()
        every = [m for r in found.resource_metrics for s in r.scope_metrics for m in s.metrics]
        return [point for metric in every if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def traced() -> Traced:
    return Traced()


def one(function: Any, **options: Any) -> StateGraph:
    return StateGraph(State).add_node("a", function, **options).add_edge(START, "a")


@pytest.mark.parametrize("timeout", [None, 60])
def test_the_span_of_an_attempt_is_current_in_its_node(drive: Drive, traced: Traced, timeout: float | None) -> None:
    node = otel_nodes.awhere if drive.is_async else otel_nodes.where
    ((seen,),) = drive.invoke(one(node, timeout=timeout).compile(name="g", observer=traced.observer), {"x": []}).values()
    assert seen == otel_nodes.context_of(FakeSpan(traced.spans["attempt a"]))
    assert traced.parents() == [("invoke_workflow g", None), ("task a", "invoke_workflow g"), ("attempt a", "task a")]
    assert traced.spans["invoke_workflow g"].attributes["gen_ai.workflow.name"] == "g"


class FakeSpan:
    def __init__(self, span: Any) -> None:
        self.get_span_context = lambda: span.context


def test_parallel_tasks_calls_nested_graphs_and_clients_have_the_right_parents(drive: Drive, traced: Traced) -> None:
    tracer = traced.provider.get_tracer("client")

    @task
    def ask(n: int) -> int:
        with tracer.start_as_current_span(f"client {n}"):
            return n

    async def acall(state: Any) -> Any:
        return {"x": [await ask(state["n"])]}

    def call(state: Any) -> Any:
        return {"x": [ask(state["n"]).result()]}

    inner = StateGraph(State).add_node("each", acall if drive.is_async else call)
    inner.add_conditional_edges(START, lambda state: [Send("each", {"n": n}) for n in (1, 2)], ["each"])
    app = one(inner.compile(name="inner")).compile(name="outer", observer=traced.observer)
    with tracer.start_as_current_span("request"):
        token = context.attach(context.get_current())
        assert drive.invoke(app, {"x": []}) == {"x": [1, 2]}
        context.detach(token)
    assert sorted(traced.parents(), key=str) == sorted(
        [
            ("request", None),
            ("invoke_workflow outer", "request"),
            ("task a", "invoke_workflow outer"),
            ("attempt a", "task a"),
            ("invoke_workflow inner", "attempt a"),
            *[("task each", "invoke_workflow inner"), ("attempt each", "task each")] * 2,
            *[("task ask", "attempt each"), ("attempt ask", "task ask")] * 2,
            ("client 1", "attempt ask"),
            ("client 2", "attempt ask"),
        ],
        key=str,
    )
    assert len({span.context.trace_id for span in traced.exporter.get_finished_spans()}) == 1


def test_retries_and_failures_are_on_the_spans(drive: Drive, traced: Traced) -> None:
    def fail(state: Any) -> Any:
        raise ConnectionError("down")

    policy = QUICK._replace(max_attempts=2)
    with pytest.raises(ConnectionError):
        drive.invoke(one(fail, retry_policy=policy).compile(observer=traced.observer), {"x": []})
    spans = traced.exporter.get_finished_spans()
    assert [span.name for span in spans].count("attempt a") == 2
    assert all(span.status.status_code is trace.StatusCode.ERROR for span in spans)
    events = [event.name for event in traced.spans["task a"].events]
    assert events == ["stategraph.retry", "exception"]
    assert [point.value for point in traced.points("stategraph.retries")] == [1]


def test_a_resume_is_linked_to_the_run_that_it_continues(drive: Drive, traced: Traced) -> None:
    app = one(lambda state: {"x": [interrupt("sure?")]}).compile(InMemorySaver(), observer=traced.observer)
    drive.invoke(app, {"x": []}, THREAD)
    drive.invoke(app, Command(resume=1), THREAD)
    first, second = (span for span in traced.exporter.get_finished_spans() if span.name.startswith("invoke"))
    assert first.attributes["stategraph.status"] == "paused" and second.attributes["stategraph.status"] == "finished"
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert second.context.trace_id != first.context.trace_id
    assert first.attributes["gen_ai.conversation.id"] == "1"


def test_the_context_of_a_submitted_job_travels_with_it(drive: Drive, traced: Traced) -> None:
    remove = add_observer(traced.observer)
    try:
        with traced.provider.get_tracer("web").start_as_current_span("request"):
            config = extend_job({"metadata": {"customer": "42"}})
        drive.invoke(one(otel_nodes.where).compile(name="g"), {"x": []}, config)
    finally:
        remove()
    assert config["metadata"].keys() == {"customer", "traceparent"} and not EVERYWHERE
    assert ("invoke_workflow g", "request") in traced.parents()


postgres = cluster.postgres


def test_a_job_is_traced_below_the_span_in_which_it_was_submitted(drive: Drive, traced: Traced, postgres: str) -> None:
    graph = one(otel_nodes.where).compile(name="job")
    remove = add_observer(traced.observer)
    try:
        with Queue.from_conn_string(postgres, graph) as queue, working(graph, postgres):
            with traced.provider.get_tracer("web").start_as_current_span("request"):
                drive.call(queue, "submit", "t", {"x": []})
            assert queue.result("t", wait=30).status == "done"
    finally:
        remove()
    assert ("invoke_workflow job", "request") in traced.parents()
    assert len({span.context.trace_id for span in traced.exporter.get_finished_spans()}) == 1


def test_a_worker_has_observers_of_its_own(traced: Traced, postgres: str) -> None:
    graph = one(otel_nodes.where).compile(name="fleet")
    with Queue.from_conn_string(postgres, graph) as queue, working(graph, postgres, observer=traced.observer):
        queue.submit("t", {"x": []})
        assert queue.result("t", wait=30).status == "done"
    assert "attempt a" in traced.spans


def test_the_trace_goes_on_in_another_process(drive: Drive, traced: Traced) -> None:
    with ProcessExecutor(1) as executor:
        app = one(otel_nodes.elsewhere).compile(executor=executor, observer=traced.observer)
        ((seen,),) = drive.invoke(app, {"x": []}).values()
    task_span = traced.spans["task a"].context
    # Nobody has set a provider there, so the span that is current is the task's own.
    assert seen[:2] == otel_nodes.context_of(FakeSpan(traced.spans["task a"]))
    assert seen[0] == f"{task_span.trace_id:032x}"


def test_what_is_measured(drive: Drive, traced: Traced) -> None:
    drive.invoke(one(otel_nodes.where).compile(InMemorySaver(), observer=traced.observer), {"x": []}, THREAD)
    assert [point.count for point in traced.points("stategraph.run.duration")] == [1]
    assert [point.count for point in traced.points("stategraph.step.duration")] == [1]
    assert [dict(point.attributes) for point in traced.points("stategraph.task.duration")] == [
        {"graph": "StateGraph", "node": "a", "status": "finished"}
    ]
    assert [point.count for point in traced.points("stategraph.commit.duration")] == [3]
    assert [point.sum > 0 for point in traced.points("stategraph.commit.size")] == [True]


# -- over the wire --------------------------------------------------------------------------------


@pytest.fixture
def receiver() -> Iterator[Any]:
    """An OTLP receiver: the bodies that were posted to it."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_otlp_receiver_gets_the_spans(drive: Drive, receiver: Any) -> None:
    exporter = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    url, bodies = receiver
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter.OTLPSpanExporter(endpoint=url)))
    drive.invoke(one(otel_nodes.where).compile(name="g", observer=OpenTelemetry(provider)), {"x": []})
    provider.shutdown()
    spans = [
        span
        for body in bodies
        for each in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in each.scope_spans
        for span in scope.spans
    ]
    by_id = {span.span_id: span.name for span in spans}
    assert {(span.name, by_id.get(span.parent_span_id)) for span in spans} == {
        ("invoke_workflow g", None),
        ("task a", "invoke_workflow g"),
        ("attempt a", "task a"),
    }
