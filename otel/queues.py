"""Gauges of a queue of jobs: its depth and the age of its oldest job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from .gen_ai import SCHEMA_URL


class OpenQueue(Protocol):
    """A `Queue` of `stategraph.workers`."""

    def open_jobs(self) -> Sequence[Any]:
        """How many jobs have not ended, by graph and status."""


def instrument_queue(
    queue: OpenQueue, meter_provider: metrics.MeterProvider | None = None
) -> Callable[[], None]:
    """Measure the queue of a database whenever metrics are collected, with one short statement.
    The jobs of all graphs count, so one process per database is enough.

    Args:
        queue: a `Queue` of `stategraph.workers`.
        meter_provider: that of the application by default.

    Returns:
        A function that stops the measuring.
    """
    gauges = _QueueGauges(queue)
    meter = metrics.get_meter(
        "stategraph", meter_provider=meter_provider, schema_url=SCHEMA_URL
    )
    meter.create_observable_gauge(
        "stategraph.queue.jobs", [gauges.count], "{job}", "Jobs that have not ended"
    )
    meter.create_observable_gauge(
        "stategraph.queue.age", [gauges.age], "s", "How long the oldest waiting job has waited"
    )
    return gauges.stop


class _QueueGauges:
    def __init__(self, queue: OpenQueue) -> None:
        self._queue: OpenQueue | None = queue
        self._seen: dict[tuple[str, str], None] = {}

    def stop(self) -> None:
        """Observe nothing any more."""
        self._queue = None

    def count(self, _: CallbackOptions) -> Iterator[Observation]:
        """The jobs of each graph, by status. What has been seen once is 0 when it is gone."""
        found = {(row.graph, row.status): row.jobs for row in self._rows()}
        if self._queue is not None:
            self._seen |= dict.fromkeys(found)
            for graph, status in self._seen:
                about = {"graph": graph, "status": status}
                yield Observation(found.get((graph, status), 0), about)

    def age(self, _: CallbackOptions) -> Iterator[Observation]:
        """Of each graph that has jobs."""
        for row in self._rows():
            if row.status == "waiting":
                yield Observation(row.seconds, {"graph": row.graph})

    def _rows(self) -> Iterable[Any]:
        return () if self._queue is None else self._queue.open_jobs()
