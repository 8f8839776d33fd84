"""Chooses the executor of each node: resolves what users pass as `executor=`, and determines the
nodes that run there and those that cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from ..extras import install_command
from ..pregel.errors import InvalidGraphError
from ..pregel.program.program import CompiledNode, NodeCall, Program
from ..pregel.program.results import is_graph
from ..pregel.task.task import Task
from ..pregel.types import LOCAL
from .base import Executor
from .pickling import find_culprit, has_cloudpickle
from .pools import InterpreterExecutor, PoolExecutor, ThreadExecutor
from .processes import default_processes
from .protocol import DriverTask, Unsendable
from .remote import RemoteFunction
from .stores import dump_opener, store_parameter

MOST_VARIANTS = 8
"""How many variants of itself a program keeps: one for each executor that it has run on."""

# -- what users give -------------------------------------------------------------------------------

_wrapped: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Executors by the id of what was given. Each holds that, so that the id stays its own."""

_CHOICES = (
    'executor must be "threads", "processes", a concurrent.futures.Executor, '
    "a distributed.Client, the module ray, or an object with submit()"
)


def resolve_executor(given: Any) -> Executor:
    """Return the executor for a user's argument; the same one each time.

    Args:
        given: "processes" (a `ProcessExecutor` that all share), an `Executor`, a
            `concurrent.futures.Executor` or anything else with its `submit`, a
            `distributed.Client`, or the module `ray`.

    Raises:
        TypeError: `given` is none of these, or cannot run nodes.
        ValueError: a string that does not name an executor.
    """
    if isinstance(given, Executor):
        return given
    if isinstance(given, str):
        if given == "processes":
            return default_processes()
        raise ValueError(f"{_CHOICES}, got {given!r}")
    known = _wrapped.get(id(given))
    if known is None:
        known = _wrapped[id(given)] = _wrap(given)
    return known


def _wrap(given: Any) -> Executor:
    # Dask and Ray are extras: neither is imported for those who use another executor.
    if getattr(given, "__name__", None) == "ray":
        from .ray import RayExecutor

        return RayExecutor()
    distributed = sys.modules.get("distributed")
    if distributed is not None and isinstance(given, distributed.Client):
        from .dask import DaskExecutor

        return DaskExecutor(given)
    if isinstance(given, type):
        raise TypeError(f"{_CHOICES}, got the class {given!r}: pass an instance of it")
    if not callable(getattr(given, "submit", None)):
        raise TypeError(f"{_CHOICES}, got {given!r}")
    interpreters = sys.modules.get("concurrent.futures.interpreter")  # from Python 3.14 on
    if interpreters is not None and isinstance(given, interpreters.InterpreterPoolExecutor):
        return InterpreterExecutor(given)  # before threads: it is a ThreadPoolExecutor by class
    if isinstance(given, ThreadPoolExecutor):
        return ThreadExecutor(given)
    return PoolExecutor(given)


# -- nodes -----------------------------------------------------------------------------------------


def place_program(program: Program, executor: Executor | None, store: Any = None) -> Program:
    """The same program with its nodes on an executor. Nodes that have one of their own run there;
    graphs in nodes, error handlers and routers stay with the driver.

    Args:
        executor: None leaves nodes without an executor of their own with the driver.
        store: the graph's, as far as it is known; nodes that take it as a parameter must find it
            there.

    Raises:
        InvalidGraphError: with a sentence for every node that cannot run there.
    """
    known = program.variants.get(executor)
    if known is not None:
        return known
    nodes, mistakes = _place_nodes(program, executor)
    mistakes += _check_store(nodes, store)
    if mistakes:
        raise InvalidGraphError(mistakes)
    # Executors that are made anew for each call must not fill the memory; what is dropped is made
    # again.
    if len(program.variants) >= MOST_VARIANTS:
        program.variants.clear()
    found = program.variants[executor] = replace(program, nodes=nodes, variants={})
    return found


def _place_nodes(
    program: Program, executor: Executor | None
) -> tuple[dict[str, CompiledNode], list[str]]:
    """The nodes that could be placed, and what is wrong with the others."""
    handlers = {node.handler.name for node in program.nodes.values() if node.handler is not None}
    nodes: dict[str, CompiledNode] = {}
    mistakes: list[str] = []
    for name, node in program.nodes.items():
        own = node.executor
        stays = own == LOCAL or name in handlers
        # An executor that a node names itself is meant, and refused where it cannot be had.
        if own is None:
            stays = stays or node.call.inline or _is_graph(node)
        if stays:
            nodes[name] = node
            continue
        try:
            nodes[name] = place_node(node, executor if own is None else resolve_executor(own))
        # All mistakes at once, so that they are mended in one go.
        except InvalidGraphError as error:
            mistakes += error.mistakes
    return nodes, mistakes


def _check_store(nodes: Mapping[str, CompiledNode], store: Any) -> Iterator[str]:
    """A sentence for each node that takes the store as a parameter and would not find it there."""
    for node in nodes.values():
        function = node.call.sync
        if isinstance(function, RemoteFunction) and (name := store_parameter(function.inject)):
            opener = dump_opener(store, function.executor)
            if isinstance(opener, Unsendable):
                yield (
                    f"node {node.name!r} cannot run on an executor: its parameter {name!r}: "
                    f"{opener.why}"
                )


def place_node(node: CompiledNode, executor: Executor | None) -> CompiledNode:
    """A node that runs on an executor; the same one if it is to stay, or is there already.

    Raises:
        InvalidGraphError: it cannot run there.
    """
    if executor is None or _has_place(node):
        return node
    if isinstance(executor, ThreadExecutor):
        if node.call.sync_missing:
            return node  # a coroutine runs on the caller's loop
        there = copy(node)
        there.call = replace(
            node.call, sync=partial(_run_on_thread, executor.given, node.call.sync)
        )
        return there
    if _is_graph(node):
        raise InvalidGraphError(
            f"node {node.name!r} cannot run on an executor: it is a graph. "
            "Set the executor in that graph's compile(), or on its nodes"
        )
    there = copy(node)
    try:
        function = RemoteFunction(node, executor)
    except Exception as error:
        raise InvalidGraphError(_explain_unpicklable(node, error, executor)) from None
    # Even if it is async: a thread of the driver waits for the call.
    there.call = NodeCall(function, inject=(("task", _get_task),), inline=node.call.inline)
    return there


def _get_task(task: Task) -> DriverTask:
    return task


def _has_place(node: CompiledNode) -> bool:
    function = node.call.sync
    if isinstance(function, partial):
        return function.func is _run_on_thread
    return isinstance(function, RemoteFunction)


def _is_graph(node: CompiledNode) -> bool:
    source = node.source
    sources = [body.source for body in source] if isinstance(source, (list, tuple)) else [source]
    return any(is_graph(each) for each in sources)


def _explain_unpicklable(node: CompiledNode, error: Exception, executor: Executor) -> str:
    if isinstance(error, ValueError):  # it can be pickled, but workers would not find it
        path, why = "its function", str(error)
    else:
        function = node.call.coro if node.call.sync_missing else node.call.sync
        path, why = find_culprit(function, "its function", shares_main=executor.shares_main)
    way_out = ""
    if not has_cloudpickle():
        way_out = (
            f"; or install cloudpickle, for lambdas and closures: {install_command('processes')}"
        )
    return (
        f"node {node.name!r} cannot run on an executor: {path}: {why}. "
        f"Use a function defined at the top of a module that workers can import{way_out}"
    )


def _run_on_thread(pool: ThreadPoolExecutor, function: Any, value: Any, /, **injected: Any) -> Any:
    future = pool.submit(copy_context().run, partial(function, value, **injected))
    try:
        return future.result()
    except CancelledError as cancelled:
        if future.cancelled():  # else the function itself has raised it
            why = "the ThreadPoolExecutor was shut down before it began this call"
            raise RuntimeError(why) from cancelled
        raise
