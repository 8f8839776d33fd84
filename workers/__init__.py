"""A queue of runs in one Postgres database, and the workers that run them. Built on the engine and
its checkpointers.

A `Queue` accepts jobs and returns their results; a `Worker` runs them. Needs the extra `postgres`;
Postgres is the queue, and there is no other broker.
"""

from typing import TYPE_CHECKING

from ..extras import lazy_names as _lazy_names

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

# So that the command line works without psycopg.
__getattr__ = _lazy_names(
    __name__,
    {
        **dict.fromkeys(__all__, ".jobs"),
        "Queue": ".queue",
        "Worker": ".worker",
        "ChunksGoneError": ".chunks",
        "Missed": ".schedules",
        "ScheduleInfo": ".schedules",
        "StreamChunk": ".chunks",
        "When": ".delays",
    },
)
