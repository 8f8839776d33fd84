"""Python 3.14's pool of sub-interpreters: workers in the driver's own process, each with a lock of its own.

Bytes cross as to any pool. What differs is how a call arrives: an interpreter has the paths that Python starts with,
not those that the driver has added.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future
from typing import Any

from .pools import PoolExecutor, carry


class InterpreterExecutor(PoolExecutor):
    """An `InterpreterPoolExecutor` of the user's.

    Extension modules that do not load in sub-interpreters (pydantic's, NumPy's) cannot be used by its nodes, and a node
    that crashes takes the driver along.
    """

    shares_main = False

    def _sent(self, *arguments: Any) -> Future[Any]:
        return self.given.submit(arrive, tuple(sys.path), carry.__module__, *arguments)  # type: ignore[no-any-return]


def arrive(path: tuple[str, ...], home: str, /, *arguments: Any) -> Any:
    """`carry`, once it can be found. Python sends a function that uses no globals as its code."""
    import sys
    from importlib import import_module

    if tuple(sys.path) != path:
        sys.path[:] = path
    return import_module(home).carry(*arguments)
