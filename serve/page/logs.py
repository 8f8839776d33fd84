"""What nodes have logged lately, by thread: kept in this process, for the page. Lines of workers in
other processes are not kept."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from logging import Handler, LogRecord, getLogger
from time import time_ns
from typing import Any, Final

from ...checkpoint.base import BaseCheckpointSaver
from ...pregel.running import RUNNING

MOST_THREADS: Final = 200
"""How many threads keep lines: those that logged last."""
MOST_LINES: Final = 100
"""How many lines are kept of a thread, the newest."""
MOST_TEXT: Final = 2000
"""How many characters are kept of a line."""


class NodeLogs(Handler):
    """Keeps what the running nodes log, as far as the levels of the loggers let it through.

    Args:
        saver: that of the served graphs: a thread of another may have the id of one of theirs.
    """

    def __init__(self, saver: BaseCheckpointSaver) -> None:
        super().__init__()
        self._saver = saver
        self._threads: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()
        # Higher than those of the process before: an open page asks for what comes after its last.
        self._numbers = count(time_ns() // 1000)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Keep lines for the time of a `with` block. Where nothing is configured that writes them,
        none are kept: with a handler, Python would no longer print warnings by itself."""
        root = getLogger()
        if root.handlers:
            root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    def emit(self, record: LogRecord) -> None:
        """Keep a line, if a node of a served graph has logged it, or of a graph inside."""
        task = RUNNING.get()
        thread = None if task is None else task.run.outermost.thread
        if thread is None or thread.saver is not self._saver:
            return
        try:
            thread_id, text = thread.thread_id, record.getMessage()
            line = {
                "number": next(self._numbers),
                "step": task.step,
                "node": task.name,
                "level": record.levelname,
                "text": text[:MOST_TEXT],
            }
            lines = self._threads.pop(thread_id, None) or deque(maxlen=MOST_LINES)
            self._threads[thread_id] = lines
            lines.append(line)
            if len(self._threads) > MOST_THREADS:
                self._threads.popitem(last=False)
        except Exception:
            self.handleError(record)

    def forget(self, thread_id: str) -> None:
        """Drop the lines of a thread that is deleted."""
        self._threads.pop(thread_id, None)

    def lines(self, thread_id: str, after: int) -> list[dict[str, Any]]:
        """Return the lines of a thread whose numbers are higher, the oldest first."""
        self.acquire()
        try:
            return [each for each in self._threads.get(thread_id, ()) if each["number"] > after]
        finally:
            self.release()
