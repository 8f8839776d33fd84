"""`/metrics`: what a server measures, in the text that Prometheus reads. Needs the extra `metrics`.

Requests and budgets are measured here, runs by the observer `OpenTelemetry`, the queue by
`instrument_queue`.
They write to a meter provider of the server's own, so an application that exports its metrics
elsewhere is not disturbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from ...extras import install_command
from ..limits import OpenRequests, OpenRuns

try:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.trace import NoOpTracerProvider
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
except ModuleNotFoundError as error:
    needed = install_command("metrics")
    raise ModuleNotFoundError(f"/metrics needs {error.name}: {needed}") from error

from ...otel import instrument, instrument_queue

CONTENT_TYPE: Final[str] = CONTENT_TYPE_LATEST


class ServerMetrics:
    """The instruments of one server.

    Args:
        requests, runs: what counts those in progress.
        queue: the `Queue` of the server's jobs, if it has one.
    """

    def __init__(self, requests: OpenRequests, runs: OpenRuns, queue: Any = None) -> None:
        self._registry = CollectorRegistry()
        self._provider = MeterProvider([PrometheusMetricReader(registry=self._registry)])
        self._queue = queue
        self._stops = ExitStack()
        meter = self._provider.get_meter("stategraph.serve")
        self._durations = meter.create_histogram(
            "http.server.request.duration", "s", "Requests, from the first byte to the last"
        )
        for name, count, what in (
            ("http.server.active_requests", requests.count, "Requests in progress"),
            ("stategraph.runs.open", runs.count, "Runs that wait or run"),
        ):
            observe: Any = partial(lambda count, _: [Observation(count())], count)
            meter.create_observable_gauge(name, [observe], description=what)
        self._budgets: list[dict[str, Any]] = []
        for value in ("spent", "limit"):
            name, what = f"stategraph.budget.{value}", f"Budgets that threads share: {value}"
            meter.create_observable_gauge(name, [partial(self._observe, value)], description=what)

    def open(self) -> None:
        """Begin to measure the runs of this process, and the queue."""
        self._stops.callback(instrument(NoOpTracerProvider(), self._provider))
        if self._queue is not None:
            self._stops.callback(instrument_queue(self._queue, self._provider))

    def close(self) -> None:
        """Stop measuring."""
        self._stops.close()
        self._provider.shutdown()

    def text(self, budgets: list[dict[str, Any]]) -> bytes:
        """Return all measurements as Prometheus reads them.

        Args:
            budgets: the rows of `read_shared`.
        """
        self._budgets = budgets
        return generate_latest(self._registry)

    def _observe(self, value: str, _: CallbackOptions) -> Iterator[Observation]:
        for row in self._budgets:
            about = {name: row[name] for name in ("graph", "per", "key", "unit")}
            yield Observation(row[value], about)

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record one request."""
        about: dict[str, str | int] = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        }
        self._durations.record(seconds, about)
