"""The variant of a program that runs with observers: each node tells of its attempts, its result
and its routers, and what surrounds its function is put around it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from ..running import RUNNING
from .program import CompiledNode, Program
from .writes import Writer


class Watched(NamedTuple):
    """What the nodes of a program have to tell, besides their attempts.

    Attributes:
        spans: an observer has spans for attempts and routers.
        surrounds: an observer surrounds the functions of nodes.
        sees_routes: an observer is shown the answers of routers.
    """

    spans: bool
    surrounds: bool
    sees_routes: bool


class ResultReport(Writer):
    """Tells the span around an attempt what the node has returned."""

    def write(self, result: Any, task: Any) -> None:
        """Write nothing."""
        task.current.span.returned(result)


def watch_program(program: Program, how: Watched) -> Program:
    """Return the same program with other nodes; made once for each way."""
    known = program.variants.get(how)
    if known is None:
        table = {name: watch_node(node, how) for name, node in program.nodes.items()}
        for node in table.values():
            node.handler = None if node.handler is None else table[node.handler.name]
        known = program.variants[how] = replace(program, nodes=table, variants={})
    return known


def watch_node(node: CompiledNode, how: Watched) -> CompiledNode:
    """Return the same node for runs with observers; itself if it is hidden and calls nothing of the
    user's, so that there is nothing to tell."""
    routed = (how.spans or how.sees_routes) and any(
        hasattr(writer, "watched") for writer in node.writers
    )
    if node.hidden and not routed:
        return node
    twin = copy(node)
    twin.plain = False
    if routed:
        # A writer that calls the user's code has its number among what the task calls.
        first = 1 if node.call.inline else 2  # the node itself is number 1
        twin.writers = tuple(
            writer.watched(place) if hasattr(writer, "watched") else writer
            for place, writer in enumerate(node.writers, first)
        )
    if how.spans:
        twin.writers = (ResultReport(), *twin.writers)
    if how.spans or not node.hidden:
        twin.guarded = True
    # A function that runs elsewhere is surrounded there: what surrounds it travels with the call.
    remote = getattr(node.call.sync, "is_remote", False)
    if how.surrounds and not (node.hidden or node.call.inline or remote):
        call = node.call
        coro = None if call.coro is None else partial(_call_inside, call.coro, True)
        twin.call = replace(call, sync=partial(_call_inside, call.sync, False), coro=coro)
    return twin


watch_call = lru_cache(maxsize=256)(watch_node)
"""`watch_node` of a `@task`: the same for all its calls."""


def _call_inside(function: Any, awaits: bool, value: Any, /, **given: Any) -> Any:
    observed = RUNNING.get().current.observed
    return observed.call(partial(function, value, **given), awaits=awaits)
