"""Calls with `progress=`: shown while they run; a batch is shown as a whole."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from typing import Any

from ...pregel.drivers.aio import Unregistered
from ...pregel.names import join_id
from ...pregel.observer import EndStatus, RunInfo
from ...pregel.types import AnyConfig
from ..extract import extract
from ..model import GraphModel, GraphNode
from ..trace.values import count_noun
from .progress import Progress, Superstep, TaskEnded, TaskStarted
from .view import (
    VIEWS,
    RunEvents,
    ViewName,
    ViewUpdater,
    afind_earlier,
    choose,
    find_earlier,
    format_failure,
    show,
    show_call,
)

INPUTS = "inputs"
"""The id of the node that represents all runs of a batch; the graph is shown inside it."""


def invoke(graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]) -> Any:
    """Call `graph.invoke` and show its progress."""
    own = dict(options)
    with _show_call(graph, own, find_earlier(graph, given, config)):
        return graph.invoke(given, config, **own)


async def ainvoke(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> Any:
    """Call `graph.ainvoke` and show its progress."""
    own = dict(options)
    with _show_call(graph, own, await afind_earlier(graph, given, config)):
        return await graph.ainvoke(given, config, **own)


def stream(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> Iterator[Any]:
    """Call `graph.stream` and show its progress."""
    own = dict(options)
    with _show_call(graph, own, find_earlier(graph, given, config)):
        yield from graph.stream(given, config, **own)


async def astream(
    graph: Any, given: Any, config: AnyConfig | None, options: Mapping[str, Any]
) -> AsyncGenerator[Any, None]:
    """Call `graph.astream` and show its progress."""
    own = dict(options)
    with _show_call(graph, own, await afind_earlier(graph, given, config)):
        async with aclosing(graph.astream(given, config, **own)) as chunks:
            async for chunk in Unregistered(chunks):
                yield chunk


def batch(graph: Any, inputs: Sequence[Any], config: Any, options: Mapping[str, Any]) -> Any:
    """Call `graph.batch` and show its progress."""
    own = dict(options)
    with _show_batch(graph, own, len(inputs)):
        return graph.batch(inputs, config, **own)


async def abatch(graph: Any, inputs: Sequence[Any], config: Any, options: Mapping[str, Any]) -> Any:
    """Call `graph.abatch` and show its progress."""
    own = dict(options)
    with _show_batch(graph, own, len(inputs)):
        return await graph.abatch(inputs, config, **own)


def _show_call(
    graph: Any, options: dict[str, Any], earlier: frozenset[str]
) -> AbstractContextManager[None]:
    """Show the call with these options, which are prepared for it."""
    return show_call(graph, False, take_view(options), options, earlier)


def take_view(options: dict[str, Any]) -> ViewName | None:
    """Remove `progress=` from the options, and return the view that it names.

    Raises:
        ValueError: there is no such view.
    """
    given = options.pop("progress")
    if given is True:
        return None
    if given not in tuple(VIEWS):  # it may be anything
        raise ValueError(
            f'progress must be True, False, "notebook", "table" or "lines", got {given!r}'
        )
    view: ViewName = given
    return view


# -- batches ---------------------------------------------------------------------------------------


def _show_batch(
    graph: Any, options: dict[str, Any], count: int
) -> AbstractContextManager[None]:
    """Show the batch with these options, which are prepared for it."""
    view = choose(take_view(options))
    updater = ViewUpdater(_enclose(extract(graph)), view, kind=BatchProgress)
    for _ in range(count):
        updater.put(TaskStarted(updater.clock(), (), INPUTS, 1))
    return show(updater, BatchEvents(updater.put, updater.clock), options)


def _enclose(model: GraphModel) -> GraphModel:
    """Return the graph inside one node, which represents all runs."""

    def move(part: GraphNode) -> GraphNode:
        inside = join_id(INPUTS, part.inside) if part.inside else INPUTS
        return part._replace(id=join_id(INPUTS, part.id), inside=inside)

    edges = (
        edge._replace(source=join_id(INPUTS, edge.source), target=join_id(INPUTS, edge.target))
        for edge in model.edge_records
    )
    around = GraphNode(INPUTS, model.name, "cluster")
    return GraphModel(
        model.name,
        map(move, model.node_records),
        edges,
        (around, *map(move, model.clusters)),
    )


class BatchEvents(RunEvents):
    """Makes events of the runs of a batch: each run is a task, with its tasks inside it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._roots: dict[str, str] = {}  # run → the namespace of its run in the batch

    def run_started(self, run: RunInfo) -> None:
        """Note a run of the batch, or one nested in it."""
        around = None if run.parent is None else self._roots.get(run.parent.run.id)
        self._roots[run.id] = run.ns if around is None else around

    def place_of(self, run: RunInfo) -> tuple[str, ...]:
        """Return the nodes around the run's tasks."""
        return (INPUTS, *self.place_below(self._roots.get(run.id, ""), run))

    def run_ended(
        self, run: RunInfo, status: EndStatus, seconds: float, error: BaseException | None
    ) -> None:
        """Report the end of a task if the run is one of the batch."""
        around = None if run.parent is None else run.parent.run.id
        if self._roots.pop(run.id, None) is None or around in self._roots:
            return
        failure = format_failure(status, error)
        self.put(TaskEnded(self.clock(), (), INPUTS, failure, status == "paused"))


class BatchProgress(Progress):
    """The observed progress of a batch: one superstep whose tasks are the runs."""

    lists_supersteps = False

    def _describe(self, step: Superstep | None) -> Sequence[str]:
        if step is None:
            return (self.state,)
        known = f"{step.done:,} of {count_noun(step.total, 'input')}"
        failed = f"{step.failed:,} failed" if step.failed and self.over else ""
        return "" if self.state == "running" else self.state, known, failed

    def counted(self, step: Superstep) -> Superstep:
        """Return the runs themselves, however many tasks each has."""
        return step
