"""Recently ended runs, kept for readers who reconnect."""

from __future__ import annotations

from typing import Final, Literal

from ..events.log import MOST_BYTES_OF_ALL, KeptBytes
from .execution import Execution

MOST_RUNS: Final = 1000


class EndedRuns:
    """Keeps the runs that ended most recently, with their events and results.

    Args:
        most_runs: how many runs are kept.
        most_bytes: how many bytes of JSON they may have together; the newest is always kept.
        kept: counts them by user, and limits those of one.
    """

    def __init__(
        self,
        most_runs: int = MOST_RUNS,
        most_bytes: int = MOST_BYTES_OF_ALL,
        kept: KeptBytes | None = None,
    ) -> None:
        self._most_runs, self._most_bytes = most_runs, most_bytes
        self._kept = kept or KeptBytes()
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
        self._count(execution, 1)
        while len(self._runs) > 1 and self._is_full():
            self.drop(next(iter(self._runs)))
        if self._kept.is_full(execution.owner):
            for each in [each for each in self._runs.values() if each.owner == execution.owner]:
                if each is not execution and self._kept.is_full(execution.owner):
                    self.drop(each.id)

    def drop(self, run_id: str) -> None:
        """Drop a run."""
        if (execution := self._runs.pop(run_id, None)) is not None:
            self._count(execution, -1)

    def forget(self, thread_id: str, run_id: str | None) -> None:
        """Drop a run of a thread, or all its runs."""
        for each in [*self._runs.values()]:
            if each.thread_id == thread_id and run_id in (None, each.id):
                self.drop(each.id)

    def _count(self, execution: Execution, sign: Literal[1, -1]) -> None:
        self._bytes += sign * execution.size
        self._kept.add(execution.owner, sign * execution.size)

    def _is_full(self) -> bool:
        return len(self._runs) > self._most_runs or self._bytes > self._most_bytes
