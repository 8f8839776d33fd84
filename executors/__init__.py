"""Executors run the functions of nodes elsewhere: in processes, pools, on Dask, Ray, or your own
backend. Start reading at `base.py`.

Only a node's function is sent. `DaskExecutor` is in `.dask`, `RayExecutor` in `.ray`.
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
