"""The workers inside a server's process: one for each graph, each on its own thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from ...checkpoint.integrity import Integrity
from ...pregel.app import Pregel
from ...workers import Worker
from ..errors import LOG

SECONDS_TO_RETRY: Final = 1.0
"""How long to wait before a worker that failed is started again."""


class WorkerThreads:
    """Runs workers until they are stopped. One that fails is started again.

    Args:
        concurrency: how many runs of each graph execute at once; 0 for no workers.
        integrity: guards the rows of the queue.
        serves: further versions of the graphs whose threads they continue.
    """

    def __init__(
        self,
        graphs: Mapping[str, Pregel],
        address: str,
        concurrency: int,
        integrity: Integrity | None,
        serves: Collection[str],
    ) -> None:
        self._workers = [
            Worker(
                graph,
                address,
                name=name,
                concurrency=concurrency,
                integrity=integrity,
                serves=[*serves] if graph.program.version is not None else (),
            )
            for name, graph in graphs.items()
            if concurrency
        ]
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        for worker in self._workers:
            name = f"stategraph-worker-{worker.name}"
            thread = threading.Thread(target=self._run, args=(worker,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            try:
                worker.run()
            except Exception:
                LOG.exception("the worker of %r has failed; it is started again", worker.name)
                self._stopping.wait(SECONDS_TO_RETRY)

    def stop(self) -> None:
        """Let runs stop after their superstep and return to the queue. May be called from any
        thread."""
        self._stopping.set()
        for worker in self._workers:
            worker.stop()

    def join(self, seconds: float) -> None:
        """Wait until all workers have stopped, or until the time is over. When the process ends,
        runs that still execute return to the queue."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
