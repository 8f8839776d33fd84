"""The variants of a program that run with a hook or with observers: each node tells of its
attempts, its result and its routers, and what surrounds its function is put around it."""

from __future__ import annotations

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
    known = program.variants.get("hooks")
    if known is None:
        table = {name: hooked_node(node) for name, node in program.nodes.items()}
        for node in table.values():
            node.handler = None if node.handler is None else table[node.handler.name]
        known = program.variants["hooks"] = replace(program, nodes=table, variants={})
    return known


def hooked_node(node: CompiledNode) -> CompiledNode:
    """The same node for runs with a hook; itself if it is hidden and calls nothing of the user's,
    so that there is nothing to tell."""
    if node.hidden and not any(hasattr(writer, "hooked") for writer in node.writers):
        return node
    twin = copy(node)
    twin.policies = (node.policies or NO_POLICIES)._replace(hooked=True)
    twin.plain = False
    first = 1 if node.call.inline else 2  # the node itself is number 1
    writers = [_hooked_writer(writer, place) for place, writer in enumerate(node.writers, first)]
    twin.writers = (ResultReport(), *writers)
    return twin


def _hooked_writer(writer: Writer, place: int) -> Writer:
    """The same writer for runs with a hook: one that calls the user's code makes its own.

    Args:
        place: its number among what the task calls.
    """
    make = getattr(writer, "hooked", None)
    return writer if make is None else make(place)


@lru_cache(maxsize=256)
def hooked_call(node: CompiledNode) -> CompiledNode:
    """The node of a `@task` for runs with a hook; the same for all its calls."""
    return hooked_node(node)


# -- observers -------------------------------------------------------------------------------------


def observed(program: Program, *, surrounds: bool) -> Program:
    """The same program for runs with observers.

    Args:
        surrounds: one of them surrounds the functions of nodes.
    """
    known = program.variants.get(("observed", surrounds))
    if known is None:
        table = {name: observed_node(node, surrounds) for name, node in program.nodes.items()}
        for node in table.values():
            node.handler = None if node.handler is None else table[node.handler.name]
        known = replace(program, nodes=table, variants={})
        program.variants["observed", surrounds] = known
    return known


@lru_cache(maxsize=256)
def observed_call(node: CompiledNode, surrounds: bool) -> CompiledNode:
    """The node of a `@task` for runs with observers; the same for all its calls."""
    return observed_node(node, surrounds)


def observed_node(node: CompiledNode, surrounds: bool) -> CompiledNode:
    """The same node for runs with observers; itself if it is hidden."""
    if node.hidden:
        return node
    twin = copy(node)
    twin.policies = node.policies or NO_POLICIES
    twin.plain = False
    # A function that runs elsewhere is surrounded there: what surrounds it travels with the call.
    if surrounds and not node.call.inline and not getattr(node.call.sync, "is_remote", False):
        call = node.call
        coro = None if call.coro is None else partial(_acall_inside, call.coro)
        twin.call = replace(call, sync=partial(_call_inside, call.sync), coro=coro)
    return twin


def _call_inside(function: Any, value: Any, /, **given: Any) -> Any:
    return RUNNING.get().current.observed.call(partial(function, value, **given))


def _acall_inside(function: Any, value: Any, /, **given: Any) -> Any:
    return RUNNING.get().current.observed.acall(partial(function, value, **given))
