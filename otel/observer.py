"""`OpenTelemetry`: spans of runs, tasks and attempts, and metrics. It uses OpenTelemetry's API, and
of the engine only `Observer`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..pregel.observer import EndStatus, Observer, Operation, RunInfo, TaskInfo
from ..pregel.task.observers import add_observer
from ..pregel.types import Interrupt
from .gen_ai import GEN_AI_METRIC_KEYS, SCHEMA_URL, gen_ai_request, gen_ai_response, gen_ai_tool

SCOPE = "stategraph"
CURRENT: ContextVar[TaskInfo | None] = ContextVar("stategraph_otel_task", default=None)
"""The task in whose attempt's span this context is."""
_PROPAGATOR = TraceContextTextMapPropagator()


def instrument(
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> Callable[[], None]:
    """Trace all runs of this process.

    Args:
        tracer_provider, meter_provider: those of the application by default.

    Returns:
        A function that stops the tracing.
    """
    return add_observer(OpenTelemetry(tracer_provider, meter_provider))


class OpenTelemetry(Observer):
    """Records spans and metrics of runs, tasks, attempts, model requests and tool calls.

    A run's span is a child of the span that is current where the graph is called, or where its job
    was submitted. The span of an attempt is current inside the node, so the spans of model and
    database clients become its children. A run that continues a thread is linked to the run that it
    continues.

    In another process (executors) it uses the providers that are set there.

    Args:
        tracer_provider, meter_provider: those of the application by default.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(
            SCOPE, tracer_provider=tracer_provider, schema_url=SCHEMA_URL
        )
        self._meters = Meters(
            metrics.get_meter(SCOPE, meter_provider=meter_provider, schema_url=SCHEMA_URL)
        )
        self._runs: dict[RunInfo, Span] = {}
        self._tasks: dict[RunInfo, dict[TaskInfo, Span]] = {}

    def __reduce__(self) -> Any:
        """It is sent without its providers: they have threads and connections."""
        return OpenTelemetry, ()

    # -- runs --------------------------------------------------------------------------------------

    def run_started(self, run: RunInfo) -> None:
        """Start the run's span."""
        context = None
        if not trace.get_current_span().get_span_context().is_valid:
            context = _PROPAGATOR.extract(run.metadata)  # of who has submitted the job
        attributes = {
            "gen_ai.operation.name": "invoke_workflow",
            "gen_ai.workflow.name": run.graph,
            "gen_ai.conversation.id": run.thread_id,
            "stategraph.run_id": run.run_id,
            "stategraph.ns": run.ns or None,
        }
        self._runs[run] = self._start(f"invoke_workflow {run.graph}", context, attributes)
        self._tasks[run] = {}

    def thread_loaded(self, run: RunInfo, checkpoint_id: str, metadata: Mapping[str, Any]) -> None:
        """Link the run to the one that made the checkpoint."""
        span = self._runs.get(run)
        if span is None:
            return
        span.set_attribute("stategraph.checkpoint_id", checkpoint_id)
        before = trace.get_current_span(_PROPAGATOR.extract(metadata, Context()))
        if before.get_span_context().is_valid:
            span.add_link(before.get_span_context(), {"stategraph.link": "continues"})

    def run_ended(
        self, run: RunInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """End the run's span, and those of its tasks that never reported their end."""
        for left in self._tasks.pop(run, {}).values():
            left.end()
        self._end(self._runs.pop(run, None), status, error)
        self._meters.runs.record(seconds, {"graph": run.graph, "status": status})

    def carry(self, about: RunInfo | TaskInfo | None) -> Mapping[str, str]:
        """Return the span context that a task in another process, a run that continues this one's
        thread, or a job uses as parent or link."""
        span: Span | None = None
        if isinstance(about, RunInfo):
            span = self._runs.get(about)
        elif about is not None:
            span = self._tasks.get(about.run, {}).get(about)
        carried: dict[str, str] = {}
        _PROPAGATOR.inject(carried, None if span is None else set_span_in_context(span))
        return carried

    # -- tasks -------------------------------------------------------------------------------------

    def task_started(self, task: TaskInfo) -> None:
        """Start the task's span, as a child of the calling attempt's span or of the run's."""
        caller, context = CURRENT.get(), None
        if caller is None or caller.run != task.run:
            run = self._runs.get(task.run)
            context = None if run is None else set_span_in_context(run)
        span = self._start(f"task {task.node}", context, _attributes_of(task))
        self._tasks.setdefault(task.run, {})[task] = span

    def task_cached(self, task: TaskInfo) -> None:
        """Note it on its span."""
        self._note(task, "stategraph.cached", {})

    def task_retried(self, task: TaskInfo, error: BaseException, delay: float) -> None:
        """Note it on its span, and count it."""
        self._note(task, "stategraph.retry", {"delay": delay, "attempt": task.attempt})
        self._meters.retries.add(1, {"graph": task.run.graph, "node": task.node})

    def question_asked(self, task: TaskInfo, question: Interrupt) -> None:
        """Note it on its span."""
        self._note(task, "stategraph.question", {"id": question.id})

    def question_answered(self, task: TaskInfo, question_id: str) -> None:
        """Note it on its span."""
        self._note(task, "stategraph.answer", {"id": question_id})

    def task_ended(
        self, task: TaskInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """End the task's span."""
        self._end(self._tasks.get(task.run, {}).pop(task, None), status, error)
        where = {"graph": task.run.graph, "node": task.node, "status": status}
        self._meters.tasks.record(seconds, where)

    def around(self, task: TaskInfo, call: Callable[[], Any]) -> Any:
        """Make the span of an attempt current inside its node."""
        with self._attempt(task):
            return call()

    async def aaround(self, task: TaskInfo, call: Callable[[], Awaitable[Any]]) -> Any:
        """`around` for coroutines."""
        with self._attempt(task):
            return await call()

    @contextmanager
    def _attempt(self, task: TaskInfo) -> Iterator[None]:
        here = self._tasks.get(task.run, {}).get(task)
        if here is not None:
            context = set_span_in_context(here)
        else:  # in another process
            context = _PROPAGATOR.extract(task.carried)
        span = self._start(f"attempt {task.node}", context, _attributes_of(task))
        token = CURRENT.set(task)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except Exception as error:
            self._end(span, "failed", error)
            raise
        except BaseException as signal:
            self._end(span, "stopped", signal)
            raise
        else:
            self._end(span, "finished", None)
        finally:
            CURRENT.reset(token)

    # -- models and tools --------------------------------------------------------------------------

    def around_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Any]
    ) -> Any:
        """Record a span of a model request or a tool call."""
        with self._operation(task, operation):
            return call()

    async def aaround_operation(
        self, task: TaskInfo, operation: Operation, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """`around_operation` for coroutines."""
        with self._operation(task, operation):
            return await call()

    @contextmanager
    def _operation(self, task: TaskInfo, operation: Operation) -> Iterator[None]:
        is_chat = operation.kind == "chat"
        attributes = gen_ai_request(operation) if is_chat else gen_ai_tool(operation)
        attributes["gen_ai.conversation.id"] = task.run.thread_id
        name = f"{operation.kind} {operation.name}".rstrip()
        kind = SpanKind.CLIENT if is_chat else SpanKind.INTERNAL
        span = self._start(name, None, attributes, kind)
        began, failure = perf_counter(), {}
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            failure = {"error.type": type(error).__qualname__}
            self._end(span, "failed" if isinstance(error, Exception) else "stopped", error)
            raise
        else:
            span.set_attributes(gen_ai_response(operation))
            self._end(span, "finished", None)
        finally:
            if is_chat:
                self._meters.record_chat(operation, perf_counter() - began, failure)

    # -- what else is measured ---------------------------------------------------------------------

    def step_ended(self, run: RunInfo, step: int, seconds: float) -> None:
        """Measure it."""
        self._meters.steps.record(seconds, {"graph": run.graph})

    def committed(self, run: RunInfo, step: int, seconds: float, size: int) -> None:
        """Measure it."""
        self._meters.commits.record(seconds, {"graph": run.graph})
        self._meters.bytes.record(size, {"graph": run.graph})

    def conflicted(self, run: RunInfo, error: BaseException) -> None:
        """Count it, and note it on the run's span."""
        self._meters.conflicts.add(1, {"graph": run.graph})
        if (span := self._runs.get(run)) is not None:
            span.add_event("stategraph.conflict")

    def worker_lost(self, task: TaskInfo, error: BaseException) -> None:
        """Count it, and note it on the task's span."""
        self._meters.lost.add(1, {"graph": task.run.graph, "node": task.node})
        self._note(task, "stategraph.worker_lost", {"reason": str(error)})

    # -- spans -------------------------------------------------------------------------------------

    def _start(
        self,
        name: str,
        context: Context | None,
        attributes: Mapping[str, Any],
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        known = {key: value for key, value in attributes.items() if value is not None}
        return self._tracer.start_span(name, context, kind, known)

    def _note(self, task: TaskInfo, name: str, attributes: Mapping[str, Any]) -> None:
        span = self._tasks.get(task.run, {}).get(task)
        if span is not None:
            span.add_event(name, attributes)

    @staticmethod
    def _end(span: Span | None, status: str, error: BaseException | None) -> None:
        if span is None:
            return
        span.set_attribute("stategraph.status", status)
        if status == "failed" and error is not None:
            span.record_exception(error)
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, str(error)))
        span.end()


class Meters:
    """The instruments, by OpenTelemetry's names and units."""

    def __init__(self, meter: metrics.Meter) -> None:
        histogram, counter = meter.create_histogram, meter.create_counter
        self.runs = histogram("stategraph.run.duration", "s", "Calls of graphs")
        self.steps = histogram("stategraph.step.duration", "s", "Supersteps")
        self.tasks = histogram("stategraph.task.duration", "s", "Tasks, with retries")
        self.commits = histogram("stategraph.commit.duration", "s", "Storing one")
        self.bytes = histogram("stategraph.commit.size", "By", "What these stored")
        self.retries = counter("stategraph.retries", "{retry}", "Attempts made again")
        self.conflicts = counter("stategraph.conflicts", "{conflict}", "Lost threads")
        self.lost = counter("stategraph.workers.lost", "{worker}", "Dead workers")
        self.chats = histogram("gen_ai.client.operation.duration", "s", "Requests to models")
        self.tokens = histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of requests and answers"
        )

    def record_chat(
        self, chat: Operation, seconds: float, failure: Mapping[str, str]
    ) -> None:
        """Measure a request to a model."""
        known = {**gen_ai_request(chat), **gen_ai_response(chat)}
        about = {key: known[key] for key in GEN_AI_METRIC_KEYS if known.get(key) is not None}
        self.chats.record(seconds, {**about, **failure})
        for kind in ("input", "output"):
            count = chat.response.get(f"{kind}_tokens")
            if count is not None:
                self.tokens.record(count, {**about, "gen_ai.token.type": kind})


def _attributes_of(task: TaskInfo) -> dict[str, Any]:
    return {
        "stategraph.node": task.node,
        "stategraph.step": task.step,
        "stategraph.task_id": task.id,
        "stategraph.attempt": task.attempt,
        "gen_ai.conversation.id": task.run.thread_id,
    }
