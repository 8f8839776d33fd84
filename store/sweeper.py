"""A thread that removes what has expired from a store, again and again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

_log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps until it is stopped. One thread at most.

    Args:
        sweep: removes what has expired.
    """

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._future: Future[None] = Future()

    def start(self, seconds: float) -> Future[None]:
        """Sweep every so many seconds. If it does already, it goes on as it is."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop, self._future = threading.Event(), Future()
                self._future.set_running_or_notify_cancel()
                args = (self._stop, self._future, seconds)
                self._thread = threading.Thread(
                    target=self._run, args=args, name="stategraph-sweeper", daemon=True
                )
                self._thread.start()
            return self._future

    def stop(self, seconds: float | None) -> bool:
        """Stop, and wait so long for it; whether it has stopped."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(seconds)
        if thread.is_alive():
            self._thread = thread
        return not thread.is_alive()

    def _run(self, stop: threading.Event, future: Future[None], seconds: float) -> None:
        while not stop.wait(seconds):
            try:
                self._sweep()
            except Exception as error:  # a database that is away now may be there the next time
                _log.warning(
                    "expired items could not be removed, trying again in %g s: %s", seconds, error
                )
        future.set_result(None)
