"""Compiling a graph for schedule="ready": what holds each node back, and what does not go with it.

Loaded by graphs that use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..pregel.errors import warn
from ..pregel.names import END, START
from ..pregel.program.flow import find_gathering, find_holders, make_flow, walk
from ..pregel.run.checks import check_choice
from ..pregel.schedule.slots import OpenTasks
from ..pregel.types import Schedule
from .compile import Compiler
from .schema import Channel
from .spec import GraphSpec
from .validate import ANYWHERE, check_graph, complete_successors, find_successors

if TYPE_CHECKING:
    from ..pregel.program.flow import Flow


def check_ready(
    schedule: Schedule, spec: GraphSpec, breakpoints: tuple[Any, Any]
) -> type[ReadyCompiler]:
    """Refuse a graph that cannot work, and warn of one that looks wrong.

    Args:
        breakpoints: before which nodes, and after which.

    Raises:
        InvalidGraphError: with a sentence for every mistake.
        ValueError: the schedule is unknown.
    """
    check_choice("schedule", schedule, Schedule)
    stops = [node for names in breakpoints if names != "*" for node in names]
    check_graph(spec, stops, in_supersteps=False)
    for sentence in _find_advice(spec):
        warn(sentence)
    return ReadyCompiler


class ReadyCompiler(Compiler):
    """A `Compiler` for graphs whose nodes start when their own inputs are there."""

    def __init__(self, spec: GraphSpec) -> None:
        super().__init__(spec)
        # What holds a node back is known from where others say they go.
        self.declared = complete_successors(spec)

    def make_flow(self, triggers: Mapping[str, Channel]) -> Flow | None:
        """What holds each node back."""
        successors = complete_successors(self.spec)
        plain = complete_successors(replace(self.spec, joins=()))
        # Who waits at one that opens for any, or for some, does not wait for the rest.
        waiting = tuple(join for join in self.spec.joins if join.kind != "count")
        ways = complete_successors(replace(self.spec, joins=waiting))
        gathering = [join for join in self.joins if join.kind == "all"]
        return replace(
            make_flow(self.joins, successors, triggers),
            holders=find_holders(ways, plain, START),
            gathering=tuple(find_gathering(join, ways, START) for join in gathering),
            make_open=OpenTasks,
        )


def _find_advice(spec: GraphSpec) -> list[str]:
    """What may surprise in this schedule, in sentences."""
    successors = find_successors(spec)
    return [*_find_undeclared(successors), *_find_side_branches(spec, successors)]


def _find_undeclared(successors: Mapping[str, set[str]]) -> Iterator[str]:
    """A sentence for each node that holds all others back."""
    for name, ends in sorted(successors.items()):
        if ANYWHERE in ends and name != START:
            yield (
                f"node {name!r} has a router that does not say where it goes: with "
                "schedule='ready' no other node starts while it is under way, or what leads to it. "
                'Give its ends: a path_map, or -> Literal["a", "b"]'
            )


def _find_side_branches(spec: GraphSpec, successors: Mapping[str, set[str]]) -> Iterator[str]:
    """A sentence for each edge that leaves a loop which goes on meanwhile."""
    for source, end in sorted(spec.edges):
        if end == END or spec.nodes[end].defer:
            continue
        in_loop = source in walk(successors.get(source, ()), successors)
        if in_loop and source not in walk([end], successors):
            yield (
                f"node {end!r} is started by each turn of a loop through {source!r} that it does "
                "not lead back to: with schedule='ready' the loop does not wait for it, so it may "
                "run less often than the loop turns. To run it in each turn, let it lead back into "
                "the loop, or use supersteps. To run it once, at the end, set defer=True"
            )
