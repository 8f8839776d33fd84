"""The variants of a program that run with a hook or with observers: each node tells of its
attempts, its result and its routers, and what surrounds its function is put around it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from ..running import RUNNING
from .program import NO_POLICIES, CompiledNode, Program
from .writes import Writer


class ResultReport(Writer):
    """Tells the span around an attempt what the node has returned."""

    def write(self, result: Any, task: Any) -> None:
        """Write nothing."""
        task.current.span.returned(result)


def with_hooks(program: Program) -> Program:
    """The same program for runs with a hook."""
    return _variant(program, "hooks", hooked_node)


def _variant(
    program: Program, key: Any, twin_of: Callable[[CompiledNode], CompiledNode]
) -> Program:
    """The same program with other nodes; made once for each key."""
    known = program.variants.get(key)
    if known is None:
        table = {name: twin_of(node) for name, node in program.nodes.items()}
        for node in table.values():
            node.handler = None if node.handler is None else table[node.handler.name]
        known = program.variants[key] = replace(program, nodes=table, variants={})
    return known


def hooked_node(node: CompiledNode) -> CompiledNode:
    """The same node for runs with a hook; itself if it is hidden and calls nothing of the user's,
    so that there is nothing to tell."""
    if node.hidden and not _has_router(node):
        return node
    twin = copy(node)
    twin.policies = (node.policies or NO_POLICIES)._replace(hooked=True)
    twin.plain = False
    twin.writers = (ResultReport(), *_hooked_writers(node))
    return twin


def _hooked_writers(node: CompiledNode) -> tuple[Writer, ...]:
    """The writers of a node: one that calls the user's code tells of it. Each has its number among
    what the task calls."""
    first = 1 if node.call.inline else 2  # the node itself is number 1
    return tuple(
        writer.hooked(place) if hasattr(writer, "hooked") else writer
        for place, writer in enumerate(node.writers, first)
    )


def _has_router(node: CompiledNode) -> bool:
    return any(hasattr(writer, "hooked") for writer in node.writers)


@lru_cache(maxsize=256)
def hooked_call(node: CompiledNode) -> CompiledNode:
    """The node of a `@task` for runs with a hook; the same for all its calls."""
    return hooked_node(node)


# -- observers -------------------------------------------------------------------------------------


def observed(program: Program, *, surrounds: bool, sees_routes: bool) -> Program:
    """The same program for runs with observers.

    Args:
        surrounds: one of them surrounds the functions of nodes.
        sees_routes: one of them is shown the answers of routers.
    """
    twin_of = partial(observed_node, surrounds=surrounds, sees_routes=sees_routes)
    return _variant(program, ("observed", surrounds, sees_routes), twin_of)


@lru_cache(maxsize=256)
def observed_call(node: CompiledNode, surrounds: bool) -> CompiledNode:
    """The node of a `@task` for runs with observers; the same for all its calls."""
    return observed_node(node, surrounds)


def observed_node(
    node: CompiledNode, surrounds: bool, sees_routes: bool = False
) -> CompiledNode:
    """The same node for runs with observers; itself if it is hidden, but for its routers."""
    sees_routes = sees_routes and _has_router(node)
    if node.hidden and not sees_routes:
        return node
    twin = copy(node)
    twin.plain = False
    if sees_routes:
        twin.writers = _hooked_writers(node)
    if node.hidden:
        return twin
    twin.policies = node.policies or NO_POLICIES
    # A function that runs elsewhere is surrounded there: what surrounds it travels with the call.
    if surrounds and not node.call.inline and not getattr(node.call.sync, "is_remote", False):
        call = node.call
        coro = None if call.coro is None else partial(_call_inside, call.coro, True)
        twin.call = replace(call, sync=partial(_call_inside, call.sync, False), coro=coro)
    return twin


def _call_inside(function: Any, awaits: bool, value: Any, /, **given: Any) -> Any:
    observed = RUNNING.get().current.observed
    return observed.call(partial(function, value, **given), awaits=awaits)
