"""What a user gives as `executor=` -> an `Executor`: a word, a pool, a Dask client, Ray, or an object of their own."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakValueDictionary

from .call import Executor
from .interpreters import InterpreterExecutor
from .pools import PoolExecutor, Threads
from .processes import default_processes

_known: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""By the id of what was given; each holds that, so the id stays its own."""


def executor_of(given: Any) -> Executor:
    """The executor that this means; the same one each time.

    Args:
        given: "processes" (a `ProcessExecutor` that all share), an `Executor`, a `concurrent.futures.Executor` or
            anything else with its `submit`, a `distributed.Client`, or the module `ray`.

    Raises:
        TypeError: it is none of these, or cannot run nodes.
        ValueError: a word that means nothing.
    """
    if isinstance(given, Executor):
        return given
    if isinstance(given, str):
        return _named(given)
    known = _known.get(id(given))
    if known is None:
        known = _known[id(given)] = _made(given)
    return known


def _named(word: str) -> Executor:
    if word == "processes":
        return default_processes()
    raise ValueError(f'executor is "threads", "processes", or an object with submit(), not {word!r}')


def _made(given: Any) -> Executor:
    if getattr(given, "__name__", None) == "ray":
        from .ray import RayExecutor

        return RayExecutor()
    dask = sys.modules.get("distributed")
    if dask is not None and isinstance(given, dask.Client):
        from .dask import DaskExecutor

        return DaskExecutor(given)
    if isinstance(given, type) or not callable(getattr(given, "submit", None)):
        hint = " (an instance, not the class)" if isinstance(given, type) else ""
        raise TypeError(
            f'executor is "threads", "processes", a concurrent.futures.Executor, a distributed.Client, the module '
            f"ray, or an object with submit(){hint}, not {given!r}"
        )
    interpreters = sys.modules.get("concurrent.futures.interpreter")  # from Python 3.14 on
    if interpreters is not None and isinstance(given, interpreters.InterpreterPoolExecutor):
        return InterpreterExecutor(given)  # before threads: it is a ThreadPoolExecutor by class
    if isinstance(given, ThreadPoolExecutor):
        return Threads(given)
    return PoolExecutor(given)
