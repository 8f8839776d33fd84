"""Runs one node of a graph alone, with a state, a runtime and answers that the test supplies.

The node runs in its own graph, so its edges and routers run too; the graph stops after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..channels.base import MISSING
from ..checkpoint.memory import InMemorySaver
from ..pregel.app import Pregel
from ..pregel.errors import ParentCommand
from ..pregel.names import ROOT
from ..pregel.observer import RunInfo, TaskInfo
from ..pregel.program.program import CompiledNode
from ..pregel.program.results import is_record, record_items
from ..pregel.program.writes import Writer
from ..pregel.run.run import Run
from ..pregel.steps import Steps, arun_steps, run_steps
from ..pregel.task.observers import EngineObserver, add_observer
from ..pregel.task.task import Task
from ..pregel.types import Command, Interrupt, Overwrite, Send, StateSnapshot
from .answers import AnswerBook, Answers
from .fakes import change_nodes, find_node
from .origins import thread_for
from .thread_reader import destinations


@dataclass(frozen=True, slots=True)
class NodeRun:
    """The outcome of a single node's run.

    Attributes:
        node: the node's name.
        returned: what its function returned; None if it waits for an answer.
        writes: (key, value) of the state in the order in which it wrote them, before reducers.
        goto: where the run would go on: the nodes that its edges, routers, joins and commands lead
            to, and `Send`s; `(END,)` if it ends here. Empty if it waits for an answer.
        questions: the questions that wait for an answer.
        state: the state after the node, as `get_state` shows it.
        events: what it sent to the stream writer.
    """

    node: str
    returned: Any
    writes: tuple[tuple[str, Any], ...]
    goto: tuple[str | Send, ...]
    questions: tuple[Interrupt, ...]
    state: Any
    events: tuple[Any, ...] = ()

    @property
    def update(self) -> Any:
        """What it wrote by key; the last value of a key that it wrote twice. The value itself if
        the state is one value without keys."""
        update = dict(self.writes)
        return update.get(ROOT) if ROOT in update else update


def run_node(
    app: Pregel[Any, Any, Any, Any],
    node: str,
    state: Any = None,
    *,
    sent: Any = MISSING,
    answers: Answers = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    store: Any = None,
    retry: bool = False,
) -> NodeRun:
    """Run one node of a graph with the given input, and stop after it.

    It runs as in the graph: its parameters are injected, its writes are checked, its edges and
    routers run. Its error handler is left out, so that its error reaches the test.

    Args:
        app: a compiled graph. Its checkpointer is not used.
        node: the node's name; in a nested graph its path, such as `"research:search"`.
        state: the values of the state; keys may be left out. Reducers do not run.
        sent: the argument of a `Send`, for a node that gets that instead of the state.
        answers: the answers to its questions: a list in their order, a dict by what is asked, or a
            function of the `Interrupt`. A question without an answer stays open and is in
            `questions`.
        config: as for `invoke`, such as `{"configurable": {"user": 7}}`.
        context: the value of `runtime.context`.
        store: a store to use instead of the graph's own.
        retry: retry as the node's retry policies say; by default it has one attempt.

    Raises:
        ValueError: there is no such node; or an answer is to a question that it did not ask, and
            another question is open.
        TypeError: `app` was not built with `StateGraph`, or the state has a type that it does not
            accept.
        Exception: what the node raised.

    >>> from stategraph import START, StateGraph
    >>> def double(state: dict) -> dict:
    ...     return {"n": 2 * state["n"]}
    >>> app = StateGraph(dict).add_node(double).add_edge(START, "double").compile()
    >>> run_node(app, "double", {"n": 4}).update
    {'n': 8}
    """
    stage = _Stage(app, node, answers, config, context, store, retry)
    return run_steps(stage.run(state, sent, stage.app.invoke))


async def arun_node(
    app: Pregel[Any, Any, Any, Any],
    node: str,
    state: Any = None,
    *,
    sent: Any = MISSING,
    answers: Answers = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
    store: Any = None,
    retry: bool = False,
) -> NodeRun:
    """`run_node` for coroutines; also for nodes that are async only."""
    stage = _Stage(app, node, answers, config, context, store, retry)
    return await arun_steps(stage.run(state, sent, stage.app.ainvoke))


class _Stage(EngineObserver):
    """Where one node runs alone, and what was seen of it.

    Attributes:
        app: the graph, which keeps its thread in memory.
        thread: the config of its calls.
        options: of its calls.
        events: what was sent to the stream writer.
        returned: what the node's function has returned.
    """

    def __init__(
        self,
        app: Pregel,
        path: str,
        answers: Answers,
        config: Mapping[str, Any] | None,
        context: Any,
        store: Any,
        retry: bool,
    ) -> None:
        found, self.node = find_node(app, path)
        if self.node not in found.program.scope.triggers:
            raise TypeError(
                f"run_node runs a node of a StateGraph; {found.name!r} is a "
                f"{type(found).__name__}: call the function, or app.invoke"
            )
        alone = _run_alone(found.program.nodes[self.node], retry, self.note)
        program = change_nodes(found.program, {self.node: alone})
        changed = {"program": program, "checkpointer": InMemorySaver()}
        self.app = found.copy(changed if store is None else {**changed, "store": store})
        self.app.interrupt_before = self.app.interrupt_after = ()
        self.answers = AnswerBook(answers)
        self.thread_id = f"{self.node} alone, {uuid4()}"
        self.thread = thread_for(found.program, config, self.thread_id)
        self.options: dict[str, Any] = {
            "stream_mode": "custom",
            "interrupt_after": [self.node],
            "context": context,
        }
        self.events: list[Any] = []
        self.returned: Any = None
        self.task: Task | None = None
        self._run: RunInfo | None = None

    def run(self, state: Any, sent: Any, call: Callable[..., Any]) -> Steps[NodeRun]:
        """Run the node with this state, and give what was seen."""
        goto = self.node if sent is MISSING else Send(self.node, sent)
        given: Command | None = Command(update=self._update_of(state), goto=goto)
        remove = add_observer(self)
        try:
            while given is not None:
                try:
                    self.events += yield call(given, self.thread, **self.options)
                except Exception:
                    # A command to the graph around the node's own ends the run here.
                    if self.task is None or not isinstance(self.task.error, ParentCommand):
                        raise
                snapshot = self.app.get_state(self.thread)
                given = self.answers.answer(snapshot.interrupts) if snapshot.interrupts else None
        finally:
            remove()
        self.answers.check_asked(snapshot.interrupts)
        return self.result(snapshot)

    def _update_of(self, state: Any) -> Any:
        """An update that leaves nothing but this state."""
        if state is None:
            return None
        if ROOT in self.app.program.scope.keys:
            return Overwrite(state)
        if isinstance(state, Mapping):
            items = state.items()
        elif is_record(state):
            items = dict(record_items(state)).items()
        else:
            raise TypeError(
                f"state must be a dict or an instance of the state's schema, got {state!r:.80}; "
                "what a Send brings is given as sent="
            )
        # Messages are made from their short forms by their reducer.
        channels = self.app.program.channels
        return {
            key: value if getattr(channels.get(key), "folding", None) else Overwrite(value)
            for key, value in items
        }

    def see_run(self, info: RunInfo, run: Run) -> None:
        """The run of the graph that the node is in."""
        if info.thread_id == self.thread_id and info.ns == "":
            self._run = info

    def see_task(self, info: TaskInfo, task: Task) -> None:
        """The node has ended."""
        if info.run == self._run and info.node == self.node and task.path[-1] is not True:
            self.task = task

    def note(self, result: Any) -> None:
        """What the node's function has returned."""
        self.returned = result

    def result(self, snapshot: StateSnapshot) -> NodeRun:
        """What was seen."""
        task = self.task
        assert task is not None  # it has run, or has raised
        ended = task.error is None and not task.paused
        writes = task.writes if ended else ()
        if isinstance(task.error, ParentCommand):
            self.returned = task.error.command
        keys = self.app.program.scope.keys
        return NodeRun(
            self.node,
            self.returned,
            tuple(pair for pair in writes if pair[0] in keys),
            tuple(destinations(writes)) if ended else (),
            snapshot.interrupts,
            snapshot.values,
            tuple(self.events),
        )


class _ResultReport(Writer):
    """Tells what the node's function has returned; writes nothing."""

    def __init__(self, note: Callable[[Any], None]) -> None:
        self._note = note

    def write(self, result: Any, task: Any) -> None:
        """Tell it."""
        self._note(result)


def _run_alone(
    node: CompiledNode, retry: bool, note: Callable[[Any], None]
) -> CompiledNode:
    """The node without what would hide its errors, or repeat an earlier result."""
    twin = copy(node)
    twin.plain = False
    twin.writers = (_ResultReport(note), *node.writers)
    twin.handler = None
    if not retry:
        twin.policies = node.policies._replace(retry=())
    twin.cache = None
    return twin
