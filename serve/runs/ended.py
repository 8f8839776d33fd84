"""Recently ended runs, kept for readers who reconnect."""

from __future__ import annotations

from typing import Final

from .execution import Execution

MOST_RUNS: Final = 1000
MOST_BYTES: Final = 256 * 1024 * 1024


class EndedRuns:
    """Keeps the runs that ended most recently, with their events and results.

    Args:
        most_runs: how many runs are kept.
        most_bytes: how many bytes of JSON they may have together; the newest is always kept.
    """

    def __init__(self, most_runs: int = MOST_RUNS, most_bytes: int = MOST_BYTES) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._runs: dict[str, Execution] = {}
        self._bytes = 0

    def find(self, run_id: str) -> Execution | None:
        """Return a run; None if it is no longer kept."""
        return self._runs.get(run_id)

    def add(self, execution: Execution) -> None:
        """Keep what readers of a run may ask for, and drop the oldest runs beyond the limits."""
        self.drop(execution.id)
        execution.shrink()
        self._runs[execution.id] = execution
        self._bytes += execution.size
        while len(self._runs) > 1 and self._is_full():
            self.drop(next(iter(self._runs)))

    def drop(self, run_id: str) -> None:
        """Drop a run."""
        if (execution := self._runs.pop(run_id, None)) is not None:
            self._bytes -= execution.size

    def forget(self, thread_id: str, run_id: str | None) -> None:
        """Drop a run of a thread, or all its runs."""
        for each in [*self._runs.values()]:
            if each.thread_id == thread_id and run_id in (None, each.id):
                self.drop(each.id)

    def _is_full(self) -> bool:
        return len(self._runs) > self._most_runs or self._bytes > self._most_bytes
