"""A queue of runs in one Postgres database, and the workers that run them. Built on the engine and
its checkpointers.

A `Queue` accepts jobs and returns their results; a `Worker` runs them. Needs the extra `postgres`;
Postgres is the queue, and there is no other broker.
"""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chunks import ChunksGoneError, StreamChunk
    from .delays import When
    from .jobs import (
        JobDeadlineError,
        JobOpenError,
        JobResult,
        OpenJobs,
        Status,
        VersionInfo,
        WorkerInfo,
        WorkersDiedError,
    )
    from .queue import Queue
    from .schedules import Missed, ScheduleInfo
    from .worker import Worker

__all__ = [
    "Queue",
    "Worker",
    "When",
    "JobResult",
    "OpenJobs",
    "Status",
    "VersionInfo",
    "WorkerInfo",
    "Missed",
    "ScheduleInfo",
    "StreamChunk",
    "ChunksGoneError",
    "JobDeadlineError",
    "JobOpenError",
    "WorkersDiedError",
]

_MODULE_OF = {
    "Queue": "queue",
    "Worker": "worker",
    "ChunksGoneError": "chunks",
    "Missed": "schedules",
    "ScheduleInfo": "schedules",
    "StreamChunk": "chunks",
    "When": "delays",
}


def __getattr__(name: str) -> Any:
    """Import a module when one of its names is first used, so that the command line works without
    psycopg."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(f".{_MODULE_OF.get(name, 'jobs')}", __name__), name)
