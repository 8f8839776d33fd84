"""Which nodes run where: a program whose nodes have been given to executors, and what cannot be given to one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from ..pregel.errors import InvalidGraphError
from ..pregel.program.program import CompiledNode, Program
from ..pregel.types import HERE
from .call import Executor
from .given import executor_of
from .parcel import Kept
from .pickling import culprit, has_cloudpickle
from .pools import Threads
from .remote import Remote
from .stores import recipe_of, store_parameter

MOST_KNOWN = 8
"""How many placings a program remembers: one per executor it has run on."""


def placed(program: Program, executor: Executor | None, store: Any = None) -> Program:
    """The same program with its nodes on an executor. Nodes that have one of their own run there; graphs in nodes,
    error handlers and routers stay with the driver.

    Args:
        store: the graph's, as far as it is known; nodes that take it as a parameter must find it there.

    Raises:
        InvalidGraphError: with a sentence for every node that cannot run there.
    """
    known = program.elsewhere.get(executor)
    if known is not None:
        return known
    table, mistakes = _table(program, executor)
    mistakes += _without_store(table, store)
    if mistakes:
        raise InvalidGraphError(mistakes)
    if len(program.elsewhere) >= MOST_KNOWN:
        program.elsewhere.clear()
    found = program.elsewhere[executor] = replace(program, nodes=table, elsewhere={})
    return found


def _table(program: Program, executor: Executor | None) -> tuple[dict[str, CompiledNode], list[str]]:
    """The nodes that could be placed, and what is wrong with the others."""
    handlers = {node.handler.name for node in program.nodes.values() if node.handler is not None}
    table: dict[str, CompiledNode] = {}
    mistakes: list[str] = []
    for name, node in program.nodes.items():
        own = node.executor
        stays = own == HERE or name in handlers or (own is None and (node.inline or _is_graph(node)))
        try:
            table[name] = node if stays else placed_alone(node, executor if own is None else executor_of(own))
        except InvalidGraphError as error:
            mistakes += error.mistakes
    return table, mistakes


def _without_store(table: Mapping[str, CompiledNode], store: Any) -> Iterator[str]:
    for node in table.values():
        there = node.sync
        if isinstance(there, Remote) and (name := store_parameter(there.inject)):
            found = recipe_of(store, there.executor)
            if isinstance(found, Kept):
                yield f"node {node.name!r} cannot run on an executor: its parameter {name!r}: {found.why}"


def placed_alone(node: CompiledNode, executor: Executor | None) -> CompiledNode:
    """A node that runs on an executor; the same one if it is to stay, or is there already.

    Raises:
        InvalidGraphError: it cannot run there.
    """
    if executor is None or _is_placed(node):
        return node
    there = copy(node)
    if isinstance(executor, Threads):
        if node.sync_missing:
            return node  # a coroutine runs on the caller's loop
        there.sync = partial(_on_thread, executor.given, node.sync)
        return there
    if _is_graph(node):
        raise InvalidGraphError(
            f"node {node.name!r} cannot run on an executor: it is a graph. "
            "Give the executor to that graph's compile(), or to its nodes"
        )
    try:
        there.sync = Remote(node, executor)
    except Exception as error:
        raise InvalidGraphError(_unpicklable(node, error, executor)) from None
    there.coro = None  # whatever it is there, here a thread waits for it
    there.sync_missing = False
    there.is_async = any(writer.is_async for writer in node.writers)
    there.inject = (("task", _itself),)
    return there


def _itself(task: Any) -> Any:
    return task


def _is_placed(node: CompiledNode) -> bool:
    return isinstance(node.sync, Remote) or (isinstance(node.sync, partial) and node.sync.func is _on_thread)


def _is_graph(node: CompiledNode) -> bool:
    return any(getattr(source, "is_stategraph", False) is True for source in _sources(node))


def _sources(node: CompiledNode) -> list[Any]:
    if isinstance(node.source, (list, tuple)):
        return [body.source for body in node.source]
    return [node.source]


def _unpicklable(node: CompiledNode, error: Exception, executor: Executor) -> str:
    function = node.coro if node.sync_missing else node.sync
    path, why = culprit(function, "its function", shares_main=executor.shares_main)
    if isinstance(error, ValueError):
        path, why = "its function", str(error)
    way_out = "" if has_cloudpickle() else "; or install cloudpickle, for lambdas and closures (stategraph[processes])"
    return (
        f"node {node.name!r} cannot run on an executor: {path}: {why}. "
        f"Use a function at the top of a module that workers can import{way_out}"
    )


def _on_thread(pool: ThreadPoolExecutor, function: Any, value: Any, /, **given: Any) -> Any:
    future = pool.submit(copy_context().run, partial(function, value, **given))
    try:
        return future.result()
    except CancelledError as cancelled:
        if future.cancelled():
            raise RuntimeError("the ThreadPoolExecutor was shut down before it began this call") from cancelled
        raise
