"""Spans and metrics, by the real OpenTelemetry SDK: parents across threads, loops, processes; links; an OTLP receiver."""

from __future__ import annotations

import json
import operator
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Annotated

import pytest
from typing_extensions import TypedDict

pytest.importorskip("opentelemetry.sdk")

from kit import cluster, otel_nodes
from kit.chat_server import server
from kit.fleet import working
from kit.otel_nodes import Traced
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

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
from stategraph.otel import OpenTelemetry, instrument_queue
from stategraph.prebuilt import OpenAIModel, create_agent
from stategraph.pregel.task.observers import EVERYWHERE, add_observer, extend_job
from stategraph.testing import ScriptedModel, tool_call
from stategraph.workers import Queue, When

THREAD = {"configurable": {"thread_id": "1"}}
QUICK = RetryPolicy(initial_interval=0.001, jitter=False)


class State(TypedDict, total=False):
    x: Annotated[list, operator.add]


@pytest.fixture
def traced():
    return Traced()


def one(function, **options):
    return StateGraph(State).add_node("a", function, **options).add_edge(START, "a")


@pytest.mark.parametrize("timeout", [None, 60])
def test_the_span_of_an_attempt_is_current_in_its_node(drive, traced, timeout):
    node = otel_nodes.awhere if drive.is_async else otel_nodes.where
    ((seen,),) = drive.invoke(one(node, timeout=timeout).compile(name="g", observer=traced.observer), {"x": []}).values()
    assert seen == otel_nodes.context_of(FakeSpan(traced.spans["attempt a"]))
    assert traced.parents() == [("invoke_workflow g", None), ("task a", "invoke_workflow g"), ("attempt a", "task a")]
    assert traced.spans["invoke_workflow g"].attributes["gen_ai.workflow.name"] == "g"


class FakeSpan:
    def __init__(self, span):
        self.get_span_context = lambda: span.context


def test_parallel_tasks_calls_nested_graphs_and_clients_have_the_right_parents(drive, traced):
    tracer = traced.provider.get_tracer("client")

    @task
    def ask(n):
        with tracer.start_as_current_span(f"client {n}"):
            return n

    async def acall(state):
        return {"x": [await ask(state["n"])]}

    def call(state):
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


def test_retries_and_failures_are_on_the_spans(drive, traced):
    def fail(state):
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


def test_a_resume_is_linked_to_the_run_that_it_continues(drive, traced):
    app = one(lambda state: {"x": [interrupt("sure?")]}).compile(InMemorySaver(), observer=traced.observer)
    drive.invoke(app, {"x": []}, THREAD)
    drive.invoke(app, Command(resume=1), THREAD)
    first, second = (span for span in traced.exporter.get_finished_spans() if span.name.startswith("invoke"))
    assert first.attributes["stategraph.status"] == "paused" and second.attributes["stategraph.status"] == "finished"
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert second.context.trace_id != first.context.trace_id
    assert first.attributes["gen_ai.conversation.id"] == "1"


def test_the_context_of_a_submitted_job_travels_with_it(drive, traced):
    remove = add_observer(traced.observer)
    try:
        with traced.provider.get_tracer("web").start_as_current_span("request"):
            config = extend_job({"metadata": {"customer": "42"}})
        drive.invoke(one(otel_nodes.where).compile(name="g"), {"x": []}, config)
    finally:
        remove()
    assert config["metadata"].keys() == {"customer", "traceparent"} and not EVERYWHERE
    assert ("invoke_workflow g", "request") in traced.parents()


postgres = cluster.emptied


def test_a_job_is_traced_below_the_span_in_which_it_was_submitted(drive, traced, postgres):
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


def test_a_worker_has_observers_of_its_own(traced, postgres):
    graph = one(otel_nodes.where).compile(name="fleet")
    with Queue.from_conn_string(postgres, graph) as queue, working(graph, postgres, observer=traced.observer):
        queue.submit("t", {"x": []})
        assert queue.result("t", wait=30).status == "done"
    assert "attempt a" in traced.spans


def test_depth_and_age_of_a_queue_are_gauges(traced, postgres):
    graph = one(otel_nodes.where).compile(name="orders")
    with Queue.from_conn_string(postgres, graph) as queue:
        stop = instrument_queue(queue, traced.meters)

        def jobs():
            return {point.attributes["status"]: point.value for point in traced.points("stategraph.queue.jobs")}

        none = {"waiting": 0, "delayed": 0, "running": 0, "sleeping": 0, "parked": 0}
        assert jobs() == none and [point.value for point in traced.points("stategraph.queue.age")] == [0.0]
        queue.submit("t", {"x": []})
        queue.submit("u", {"x": []})
        queue.submit("v", {"x": []}, when=When(delay=3600))
        assert jobs() == {**none, "waiting": 2, "delayed": 1}
        ages = [traced.points("stategraph.queue.age")[0].value for _ in range(2)]
        assert 0 < ages[0] < ages[1] == pytest.approx(ages[0], abs=60)
        assert [dict(point.attributes) for point in traced.points("stategraph.queue.age")] == [{"graph": "orders"}]
        with working(graph, postgres):
            assert queue.result("t", wait=30).status == queue.result("u", wait=30).status == "done"
        assert jobs() == {**none, "delayed": 1}
        stop()
        assert traced.points("stategraph.queue.jobs") == []


@pytest.mark.trial
def test_the_trace_continues_in_another_process(drive, traced):
    with ProcessExecutor(1) as executor:
        app = one(otel_nodes.elsewhere).compile(executor=executor, observer=traced.observer)
        ((seen,),) = drive.invoke(app, {"x": []}).values()
    task_span = traced.spans["task a"].context
    # Nobody has set a provider there, so the span that is current is the task's own.
    assert seen[:2] == otel_nodes.context_of(FakeSpan(traced.spans["task a"]))
    assert seen[0] == f"{task_span.trace_id:032x}"


@pytest.mark.trial
def test_the_span_of_an_attempt_in_another_process_is_below_its_task(drive):
    with ProcessExecutor(2) as executor:
        otel_nodes.check_trace(drive, executor)


def test_what_is_measured(drive, traced):
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
def receiver():
    """An OTLP receiver: the bodies that were posted to it."""
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args): ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_otlp_receiver_gets_the_spans(drive, receiver):
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


# -- models and tools -----------------------------------------------------------------------------


def height(name):
    """Height in metres."""
    return {"Etna": 3369}[name]


@pytest.mark.parametrize("streamed", [False, True])
def test_models_and_tools_of_an_agent_have_spans_by_the_semantic_conventions(drive, traced, streamed):
    model = ScriptedModel([{"tool_calls": [tool_call("height", id="c1", name="Etna")]}, "3369 m"])
    app = create_agent(model, [height])
    question = {"messages": [{"role": "user", "content": "How high?"}]}
    if streamed:
        drive.stream(app, question, THREAD, stream_mode="messages", observer=traced.observer)
    else:
        drive.invoke(app, question, THREAD, observer=traced.observer)
    parents = traced.parents()
    assert [pair for pair in parents if pair[0] in ("chat", "execute_tool height")] == [
        ("chat", "attempt model"), ("execute_tool height", "attempt height"), ("chat", "attempt model"),
    ]  # fmt: skip
    chat, tool = traced.spans["chat"], traced.spans["execute_tool height"]
    assert (chat.kind, tool.kind) == (trace.SpanKind.CLIENT, trace.SpanKind.INTERNAL)
    said = {key: value for key, value in chat.attributes.items() if key.startswith("gen_ai")}
    assert said == {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "stategraph.testing", "gen_ai.conversation.id": "1"}
    said = {key: value for key, value in tool.attributes.items() if key.startswith("gen_ai")}
    assert said == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "height",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.conversation.id": "1",
    }
    assert chat.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.41.0"


@pytest.mark.trial
@pytest.mark.parametrize("streamed", [False, True])
def test_what_a_server_says_of_its_answer_is_on_the_span_and_measured(drive, traced, streamed, monkeypatch):
    pytest.importorskip("openai")
    usage = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
    common = {"id": "chatcmpl-7", "created": 1, "model": "m-2026"}
    if streamed:
        parts = [
            {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        lines = [f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', **part})}\n\n" for part in parts]
        answer = ("text/event-stream", ("".join(lines) + "data: [DONE]\n\n").encode())
    else:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
        body = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
        answer = ("application/json", json.dumps(body).encode())
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with server([answer]) as (url, _):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        app = create_agent(OpenAIModel("m", temperature=0.5), [])
        question = {"messages": [{"role": "user", "content": "Hi"}]}
        mode = "messages" if streamed else "updates"
        drive.stream(app, question, stream_mode=mode, observer=traced.observer)
    span = traced.spans["chat m"]
    assert {key: value for key, value in span.attributes.items() if key.startswith("gen_ai")} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.id": "chatcmpl-7",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 5,
    }
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-2026",
    }
    assert [dict(point.attributes) for point in traced.points("gen_ai.client.operation.duration")] == [about]
    tokens = {point.attributes["gen_ai.token.type"]: point.sum for point in traced.points("gen_ai.client.token.usage")}
    assert tokens == {"input": 12, "output": 5}


def test_a_model_that_fails_and_a_tool_that_fails_say_so(drive, traced):
    broken = ScriptedModel([{"tool_calls": [tool_call("height", id="c1", name="K2")]}])
    with pytest.raises(KeyError, match="K2"):
        drive.invoke(create_agent(broken, [height]), {"messages": []}, observer=traced.observer)
    with pytest.raises(TimeoutError):
        drive.invoke(create_agent(ScriptedModel([TimeoutError("late")]), []), {"messages": []}, observer=traced.observer)
    assert traced.spans["execute_tool height"].attributes["error.type"] == "KeyError"
    assert traced.spans["chat"].attributes["error.type"] == "TimeoutError"
    assert {point.attributes.get("error.type"): point.count for point in traced.points("gen_ai.client.operation.duration")} == {
        None: 1, "TimeoutError": 1,
    }  # fmt: skip


def test_a_model_that_a_node_of_another_process_asks_is_below_its_attempt(traced):
    with ProcessExecutor(1) as executor:
        app = one(otel_nodes.ask).compile(executor=executor, observer="kit.otel_nodes:told")
        ((seen,),) = app.invoke({"x": []}).values()
    assert seen == ["before chat ScriptedModel's", "after"]
