"""Where the functions of nodes run: processes, pools, Dask, Ray, or a place of your own. Start
reading at `base.py`.

Only a node's function crosses. `DaskExecutor` is in `.dask`, `RayExecutor` in `.ray`.
"""

from .base import Executor, Handle, Lost, OnEvent, RemoteCall
from .placement import resolve_executor
from .processes import ProcessExecutor
from .worker import serve

__all__ = [
    "Executor",
    "Handle",
    "Lost",
    "OnEvent",
    "ProcessExecutor",
    "RemoteCall",
    "resolve_executor",
    "serve",
]
