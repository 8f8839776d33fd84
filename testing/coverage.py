"""Which nodes, edges and answers of routers of a graph have run: measured and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import from_json
from ..graph.branch import BranchWriter
from ..pregel.app import Pregel
from ..pregel.names import END, START, handled_node
from ..pregel.observer import RunInfo, TaskInfo
from ..pregel.program.callables import infer_name
from ..pregel.program.program import Program
from ..pregel.run.observing import status_of
from ..pregel.run.run import Run
from ..pregel.task.observers import EngineObserver, add_observer
from ..pregel.task.task import Task
from ..pregel.types import AnyConfig, Send
from ..visualize.extract import CompiledGraph, extract
from ..visualize.model import GraphEdge, GraphModel
from .recording import RecordedRun, RecordedTask
from .thread_reader import destinations, read_thread


class Outcome(NamedTuple):
    """One answer of a router.

    Attributes:
        node: the node whose router it is.
        router: the router's name.
        answer: as text: a key of its path map, the name of a node (also that of a `Send` whose node
            is declared), or `Send`.
    """

    node: str
    router: str
    answer: str

    def __str__(self) -> str:
        return f"{self.router}() behind {_shown(self.node)}: {_shown(self.answer)}"


class GraphCoverage:
    """The coverage of one graph. It can be pickled, and added to that of another process.

    Args:
        drawn: the graph as it is drawn.

    Attributes:
        model: it, without the user's objects.
        nodes: how often each node ran, by id; each attempt counts.
        edges: how often each edge was taken, by its ends.
        outcomes: how often each router gave each answer.
        declared: the answers that routers can give, as far as they are declared.
    """

    def __init__(self, drawn: GraphModel, declared: Iterable[Outcome] = ()) -> None:
        nodes, clusters = (
            [each._replace(metadata={}, data=None) for each in some]
            for some in (drawn.node_records, drawn.clusters)
        )
        self.model: GraphModel = GraphModel(drawn.name, nodes, drawn.edge_records, clusters)
        self.declared: tuple[Outcome, ...] = tuple(declared)
        self.nodes: Counter[str] = Counter()
        self.edges: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[Outcome] = Counter()

    # -- counting ----------------------------------------------------------------------------------

    def start(self) -> None:
        """A run begins: it takes the edges from START that are always taken."""
        for edge in self.model.edge_records:
            if edge.source == START and edge.certain:
                self.edges[edge.source, edge.target] += 1

    def count_node(self, name: str) -> None:
        """A node has run; a `@task` is not counted."""
        if all(node.id != name for node in self.model.parts):
            return
        self.nodes[name] += 1
        handled = handled_node(name)
        if handled is not None:
            self.edges[handled, name] += 1
        for edge in self.model.edge_records:
            if edge.target == name and edge.kind == "join":
                self.edges[edge.source, name] += 1

    def take_edges(self, name: str, steps: Iterable[str | Send]) -> None:
        """A node has led to these."""
        targets = {step.node if isinstance(step, Send) else step for step in steps}
        for edge in self.model.edge_records:
            is_join = edge.target == name and edge.kind == "join"
            if edge.source == name and not is_join and _is_taken(edge, targets):
                self.edges[name, edge.target] += 1

    # -- what was missed ---------------------------------------------------------------------------

    @property
    def missed_nodes(self) -> list[str]:
        """Return the ids of the nodes that never ran."""
        return [id for id in self._all_nodes() if not self.nodes[id]]

    @property
    def missed_edges(self) -> list[tuple[str, str]]:
        """Return the ends of the edges that were never taken."""
        ends = ((edge.source, edge.target) for edge in self.model.edge_records)
        return [each for each in ends if not self.edges[each]]

    @property
    def missed_outcomes(self) -> list[Outcome]:
        """Return the declared answers that no router gave."""
        return [each for each in self.declared if not self.outcomes[each]]

    @property
    def percent(self) -> float:
        """How much of the nodes, edges and declared answers has run, from 0 to 100."""
        everything = [*self._all_nodes(), *self.model.edge_records, *self.declared]
        missed = [*self.missed_nodes, *self.missed_edges, *self.missed_outcomes]
        return 100 * (1 - len(missed) / len(everything)) if everything else 100.0

    def _all_nodes(self) -> list[str]:
        kinds = ("node", "subgraph")
        return [node.id for node in self.model.node_records if node.kind in kinds]

    def missed(self) -> list[str]:
        """All that has not run, in words."""
        return [
            *(f"node {self._name(node)}" for node in self.missed_nodes),
            *(f"edge {self._name(one)} -> {self._name(two)}" for one, two in self.missed_edges),
            *map(str, self.missed_outcomes),
        ]

    def _name(self, id: str) -> str:
        """What people call a node: an error handler by its function."""
        handled = handled_node(id)
        if handled is None:
            return _shown(id)
        label = next((node.label for node in self.model.node_records if node.id == id), id)
        return f"{label!r}, which handles the errors of {handled!r}"

    def add(self, other: GraphCoverage) -> None:
        """Count what has run elsewhere, too."""
        self.nodes.update(other.nodes)
        self.edges.update(other.edges)
        self.outcomes.update(other.outcomes)


Key = tuple[str, tuple[str, ...]]
"""What tells graphs apart, in each process the same: the name and the nodes."""


class Coverage:
    """The coverage of several graphs.

    Attributes:
        graphs: by name and nodes; a nested graph by itself.
    """

    def __init__(self, *apps: CompiledGraph) -> None:
        self.graphs: dict[Key, GraphCoverage] = {}
        for app in apps:
            self.of(app)

    def of(self, app: CompiledGraph) -> GraphCoverage:
        """Return the coverage of one graph. Copies of it, such as those of `replace`, count as the
        same graph; so do others with its name and its nodes."""
        program = app.program
        key = (program.name, tuple(program.nodes))
        known = self.graphs.get(key)
        if known is None:
            known = GraphCoverage(extract(app), _list_outcomes(program))
            self.graphs[key] = known
            for nested in program.nested.values():
                self.of(nested)
        return known

    def add_thread(self, app: Pregel[Any, Any, Any, Any], config: AnyConfig) -> None:
        """Count what a stored thread ran, even on workers or in processes that were killed. The
        answers of its routers are not stored; nor are failed attempts that were retried.

        Args:
            app: the graph that ran the thread, with its checkpointer.
            config: names the thread.

        Raises:
            ThreadError: the thread is not stored completely; see `read_thread`.
        """
        for run in read_thread(app, config).runs:
            self._add_run(app, run, app.checkpointer.serde)

    def _add_run(
        self, app: CompiledGraph, run: RecordedRun | RecordedTask, serde: Serializer
    ) -> None:
        """Count the steps of a graph: those of a whole run, or of a task that ran a nested one."""
        graph = self.of(app)
        graph.start()
        graph.take_edges(START, run.from_start)
        for task in chain.from_iterable(run.steps):
            graph.count_node(task.node)
            if task.goto:
                graph.take_edges(task.node, (from_json(each, serde) for each in task.goto))
            inside = app.program.nested.get(task.node)
            if inside is not None and task.steps:
                self._add_run(inside, task, serde)

    def add(self, other: Coverage) -> None:
        """Count what has run elsewhere, too."""
        for key, graph in other.graphs.items():
            if key in self.graphs:
                self.graphs[key].add(graph)
            else:
                self.graphs[key] = graph

    @property
    def percent(self) -> float:
        """How much of all graphs has run, from 0 to 100; each graph counts the same."""
        found = [graph.percent for graph in self.graphs.values()]
        return sum(found) / len(found) if found else 100.0

    def report(self) -> str:
        """What has run, and what has not, as text."""
        lines = []
        for graph in self.graphs.values():
            edges, declared = len(graph.model.edge_records), len(graph.declared)
            nodes = len(graph._all_nodes())
            lines.append(
                f"{graph.model.name}: {graph.percent:.0f} %, "
                f"{nodes - len(graph.missed_nodes)} of {nodes} nodes, "
                f"{edges - len(graph.missed_edges)} of {edges} edges, "
                f"{declared - len(graph.missed_outcomes)} of {declared} outcomes of routers"
            )
            lines += [f"    missed: {what}" for what in graph.missed()]
        return "\n".join(lines)

@contextmanager
def measure_coverage(*apps: CompiledGraph) -> Iterator[Coverage]:
    """Measure which nodes, edges and router answers occur inside the `with` block, in all graphs of
    this process.

    Args:
        apps: graphs that are reported even if they do not run.

    >>> from stategraph import START, StateGraph
    >>> app = StateGraph(dict).add_node("a", lambda state: state).add_edge(START, "a").compile()
    >>> with measure_coverage(app) as coverage:
    ...     _ = app.invoke({})
    >>> print(coverage.report())
    StateGraph: 100 %, 1 of 1 nodes, 2 of 2 edges, 0 of 0 outcomes of routers
    """
    coverage = Coverage(*apps)
    remove = add_observer(_Counter(coverage))
    try:
        yield coverage
    finally:
        remove()


class _Counter(EngineObserver):
    """Counts what the runs of this process do."""

    def __init__(self, coverage: Coverage) -> None:
        self._coverage = coverage
        self._graphs: dict[RunInfo, GraphCoverage] = {}
        self._cached: set[TaskInfo] = set()

    def see_run(self, info: RunInfo, run: Run) -> None:
        """The edges from START that are always taken."""
        graph = self._graphs[info] = self._coverage.of(run.settings.graph)
        graph.start()

    def run_ended(self, run: RunInfo, *_: Any) -> None:
        """It is not asked for again."""
        self._graphs.pop(run, None)

    def attempt_failed(self, task: TaskInfo, error: BaseException, seconds: float) -> None:
        """A node has run."""
        self._graphs[task.run].count_node(task.node)

    def task_cached(self, task: TaskInfo) -> None:
        """A node has not run."""
        self._cached.add(task)

    def see_task(self, info: TaskInfo, task: Task) -> None:
        """A node has run, and takes edges."""
        status = status_of(task)
        is_call = task.path[-1] is True  # of a `@task`
        if info in self._cached:
            self._cached.discard(info)
        elif not is_call and status in ("finished", "paused"):
            graph = self._graphs[info.run]
            graph.count_node(info.node)
            if task.error is None and not task.paused:
                graph.take_edges(info.node, destinations(task.writes))

    def see_route(self, info: TaskInfo, router: Any, answer: Any, writes: list[Any]) -> None:
        """A router has answered."""
        graph, node = self._graphs[info.run], info.node
        for each in answer if isinstance(answer, (list, tuple)) else (answer,):
            to = each.node if isinstance(each, Send) else str(each)
            outcome = Outcome(node, infer_name(router), to)
            if isinstance(each, Send) and outcome not in graph.declared:
                outcome = outcome._replace(answer="Send")
            graph.outcomes[outcome] += 1
        if node == START:  # which is no task that observers are told of
            graph.take_edges(START, destinations(writes))


def _is_taken(edge: GraphEdge, targets: set[str]) -> bool:
    if edge.source == START and edge.certain:
        return False  # counted already
    known = edge.target in targets or edge.target.startswith("unknown")
    return edge.kind != "error" and (edge.certain or known)


def _list_outcomes(program: Program) -> Iterator[Outcome]:
    """The answers that routers declare."""
    for name, node in program.nodes.items():
        for writer in node.writers:
            if isinstance(writer, BranchWriter):
                for answer in writer.ends or ():
                    yield Outcome(name, infer_name(writer.body.source), str(answer))


def _shown(name: str) -> str:
    return {START: "START", END: "END"}.get(name, repr(name))
