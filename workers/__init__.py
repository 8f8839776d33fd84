"""Many workers on one Postgres: a queue of runs, and the workers that take them. Sits on the engine and its savers.

`Queue` brings work and gives results, a `Worker` runs it. Needs `stategraph[postgres]`; Postgres is the queue, there is
no broker.
"""

from importlib import import_module as _load
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .jobs import JobOpenError, Result, Status, WorkersDiedError
    from .queue import Queue, WorkerInfo
    from .worker import Worker

__all__ = ["Queue", "Worker", "Result", "Status", "WorkerInfo", "JobOpenError", "WorkersDiedError"]

_ROOM_OF = {"Queue": "queue", "WorkerInfo": "queue", "Worker": "worker"}


def __getattr__(name: str) -> Any:
    """Load a room when one of its names is first asked for: the command line is there without psycopg."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(f".{_ROOM_OF.get(name, 'jobs')}", __name__), name)
