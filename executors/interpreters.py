"""Python 3.14's pool of sub-interpreters: workers in the driver's own process, each with a lock of
its own.

Bytes cross as to any pool. What differs is how a call arrives: an interpreter has the paths that
Python starts with, not those that the driver has added.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from .pools import PoolExecutor, run_call


class InterpreterExecutor(PoolExecutor):
    """An `InterpreterPoolExecutor` of the user's.

    Extension modules that do not load in sub-interpreters (pydantic's, NumPy's) cannot be used by
    its nodes, and a node that crashes ends the driver too.
    """

    shares_main = False

    def _send(self, *arguments: Any) -> Future[Any]:
        there = (tuple(sys.path), run_call.__module__)
        return self.given.submit(run_call_there, *there, *arguments)  # type: ignore[no-any-return]


def run_call_there(path: tuple[str, ...], module: str, /, *arguments: Any) -> Any:
    """Find `run_call`, and call it. Python sends a function that uses no globals as its code."""
    import sys
    from importlib import import_module

    if tuple(sys.path) != path:
        sys.path[:] = path
    return import_module(module).run_call(*arguments)
