"""Records runs of a graph, and replays them.

On request a node does not run in a replay but returns what was recorded, so that routers, joins,
reducers and the other nodes are tested without a network.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import uuid4

from ..checkpoint.memory import InMemorySaver
from ..checkpoint.serde.json_form import from_json, to_json
from ..graph.branch import BranchWriter
from ..pregel.app import Pregel
from ..pregel.names import END, ROOT
from ..pregel.task.interrupts import interrupt
from ..pregel.types import Command, Interrupt, RunnableConfig, Send
from .answers import OPEN, AnswerBook, Answers, RecordedAnswers
from .asserts import CheckFailed
from .comparing import Difference, find_difference, hide_ids, rename_ids
from .fakes import find_node, replace
from .origins import one_at_a_time
from .recorded_order import RecordedOrder, in_recorded_order
from .recording import RecordedRun, RecordedTask, Recording
from .thread_reader import ThreadError, destinations, read_thread

MOST_ANSWERS = 1000
"""So many times a run is answered at most: a node that asks again and again never ends."""


class ReplayDiffers(CheckFailed):
    """A run differs from its recording. The text names the first difference.

    Attributes:
        difference: the first difference.
        now: the recording of the new run.
    """

    def __init__(self, difference: Difference, now: Recording) -> None:
        super().__init__(str(difference))
        self.difference = difference
        self.now = now


def record(
    app: Pregel[Any, Any, Any, Any],
    *inputs: Any,
    answers: Answers = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Recording:
    """Run a graph and record what it does: each step's tasks with their inputs, questions, writes
    and routes, those of nested graphs included.

    Args:
        app: a compiled graph. Its checkpointer is not used.
        inputs: what `invoke` is given; several go to the same thread one after another.
        answers: the answers to questions: a list in their order, a dict by what is asked, or a
            function of the `Interrupt`. A question without an answer ends the run.
        config, context: as for `invoke`.

    Raises:
        ValueError: an answer is to a question that was not asked, and another question is open.
        Exception: what a node raised.
    """
    stage = Stage(app, config)
    book = AnswerBook(answers)
    for given in inputs:
        for todo in stage.calls(given, book):
            stage.interrupts = stage.app.invoke(
                todo, stage.thread, version="v2", durability="sync", context=context
            ).interrupts
    book.check_asked(stage.interrupts)
    return read_thread(stage.app, stage.thread)


async def arecord(
    app: Pregel[Any, Any, Any, Any],
    *inputs: Any,
    answers: Answers = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Recording:
    """`record` for coroutines; also for graphs with nodes that are async only."""
    stage = Stage(app, config)
    book = AnswerBook(answers)
    for given in inputs:
        for todo in stage.calls(given, book):
            result = await stage.app.ainvoke(
                todo, stage.thread, version="v2", durability="sync", context=context
            )
            stage.interrupts = result.interrupts
    book.check_asked(stage.interrupts)
    return read_thread(stage.app, stage.thread)


def replay(
    recording: Recording | str | Path,
    app: Pregel[Any, Any, Any, Any],
    *,
    recorded: Iterable[str] | Literal["*"] = (),
    ignore: Collection[str] = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Recording:
    """Run a graph again as it was recorded, with the same inputs and answers, and check that it
    does the same.

    Random ids (UUIDs), such as those of messages, may differ.

    Args:
        recording: the recording, or the path of its file.
        app: the graph. Its checkpointer is not used.
        recorded: nodes that do not run but return what was recorded, questions included. Names;
            paths such as `"research:search"` in nested graphs; "*" for all nodes of the graph
            itself. A node that holds a graph is replayed as a whole.
        ignore: keys and fields whose values are not compared, at any depth, such as
            `["created_at"]`.
        config, context: as for `invoke`.

    Returns:
        The recording of the new run.

    Raises:
        ReplayDiffers: an `AssertionError` that names the first difference: the step, the node, and
            its input, question, write, route or error.
        Exception: what a run raised that has ended before anything was stored.
        ValueError: the file is not a recording, or a node of `recorded` does not exist.
        OSError: the file cannot be read.
    """
    player = _player_of(recording, app, recorded, config)
    for run in player.recording.runs:
        player.begin(run)
        try:
            for todo in player.stage.calls(player.input_of(run), player.book):
                player.stage.interrupts = player.stage.app.invoke(
                    todo, player.stage.thread, version="v2", durability="sync", context=context
                ).interrupts
        except Exception as error:
            player.failed(error)
    return player.compare(ignore)


async def areplay(
    recording: Recording | str | Path,
    app: Pregel[Any, Any, Any, Any],
    *,
    recorded: Iterable[str] | Literal["*"] = (),
    ignore: Collection[str] = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Recording:
    """`replay` for coroutines; also for graphs with nodes that are async only."""
    player = _player_of(recording, app, recorded, config)
    for run in player.recording.runs:
        player.begin(run)
        try:
            for todo in player.stage.calls(player.input_of(run), player.book):
                result = await player.stage.app.ainvoke(
                    todo, player.stage.thread, version="v2", durability="sync", context=context
                )
                player.stage.interrupts = result.interrupts
        except Exception as error:
            player.failed(error)
    return player.compare(ignore)


def _player_of(
    recording: Recording | str | Path,
    app: Pregel,
    recorded: Iterable[str] | Literal["*"],
    config: Mapping[str, Any] | None,
) -> Player:
    if isinstance(recorded, str) and recorded != "*":
        raise ValueError(f'recorded must be a list of nodes or "*", got {recorded!r}')
    read = recording if isinstance(recording, Recording) else Recording.load(recording)
    names = list_nodes(app) if recorded == "*" else recorded
    return Player(read, app, {name: Tape(name, app) for name in names}, config)


class Stage:
    """A graph with a thread in memory.

    Attributes:
        interrupts: what the last call asked.
    """

    def __init__(self, app: Pregel, config: Mapping[str, Any] | None) -> None:
        self.app = app.copy({"checkpointer": InMemorySaver(serde=app.serde)})
        given = dict(config or {})
        configurable = {**given.get("configurable", {}), "thread_id": str(uuid4())}
        ordered = one_at_a_time(app.program)
        self.thread: RunnableConfig = {**ordered, **given, "configurable": configurable}  # type: ignore[typeddict-item]
        self.interrupts: tuple[Interrupt, ...] = ()

    def calls(self, given: Any, book: AnswerBook) -> Iterator[Any]:
        """What is given to one call after another, until nobody answers."""
        yield given
        for _ in range(MOST_ANSWERS):
            answer = book.answer(self.interrupts) if self.interrupts else None
            if answer is None:
                return
            yield answer
        raise CheckFailed(f"the run still asks after {MOST_ANSWERS} answers: {self.interrupts!r}")


class Player:
    """One replay: the nodes that do not run, and the answers.

    Args:
        tapes: what gives the recorded results of nodes, by their paths.
    """

    def __init__(
        self,
        recording: Recording,
        app: Pregel,
        tapes: Mapping[str, Tape],
        config: Mapping[str, Any] | None,
    ) -> None:
        self.recording, self.tapes = recording, tapes
        self.serde = app.serde
        self.order = RecordedOrder(app.serde)
        played = replace(app, tapes) if tapes else app
        self.stage = Stage(in_recorded_order(played, self.order), config)
        self.book = AnswerBook(())
        self.error: Exception | None = None

    def input_of(self, run: RecordedRun) -> Any:
        """What the run was given."""
        return from_json(run.input, self.serde)

    def begin(self, run: RecordedRun, other: Callable[[Interrupt], Any] | None = None) -> None:
        """Have the answers and the results of this run at hand.

        Args:
            other: gives other answers; OPEN for the recorded one.
        """
        recorded = RecordedAnswers(run.answered(), self.serde)

        def answer(question: Interrupt) -> Any:
            given = OPEN if other is None else other(question)
            return recorded.find(question) if given is OPEN else given

        self.book = AnswerBook(answer)
        for tape in self.tapes.values():
            tape.tasks = [task for path, task in run.tasks() if path == tape.path]
        self.order.begin(run)
        self.error = None

    def failed(self, error: Exception) -> None:
        """A run ended with an error. Whether it should have, the comparison finds out."""
        self.error = error

    def compare(self, ignore: Collection[str]) -> Recording:
        """The new recording, once it was compared."""
        try:
            now = read_thread(self.stage.app, self.stage.thread)
        except ThreadError:
            if self.error is None:
                raise
            raise self.error from None  # a run has ended before anything was stored
        found = find_difference(self.recording, now, ignore=ignore, skip_inside=list(self.tapes))
        if found is not None:
            raise ReplayDiffers(found, now) from self.error
        return now


class Tape:
    """A node that gives what is recorded of it.

    Attributes:
        tasks: those that were not given yet.
    """

    def __init__(self, path: str, app: Pregel) -> None:
        self.path = path
        graph, self.name = find_node(app, path)
        self.serde = app.serde
        self.root = ROOT in graph.program.scope.keys
        # A router is asked anew; without one, what is recorded came from a Command.
        node = graph.program.nodes[self.name]
        self.routed = any(isinstance(writer, BranchWriter) for writer in node.writers)
        fixed = [pair for writer in node.writers for pair in getattr(writer, "fixed", ())]
        self.fixed = set(destinations(fixed))
        self.tasks: list[RecordedTask] = []
        self._lock = Lock()
        self.__name__ = self.name

    def __call__(self, state: Any) -> Any:
        """What the node did when it was given this, else what it did next."""
        task = self._find(state)
        for question in task.asked():
            if "asks" in question:
                self.answered(question, interrupt(from_json(question["asks"], self.serde)))
        if task.error:  # it fails at each attempt
            raise error_of(task.error)
        with self._lock:
            self.tasks.remove(task)
        writes = rename_ids(task.writes, task.input, self._form(state))
        pairs = [(key, from_json(value, self.serde)) for key, value in writes]
        update: Any = pairs
        if self.root:
            update = pairs[0][1] if pairs else None
        goto = [from_json(each, self.serde) for each in task.goto]
        return Command(update=update, goto=[] if self.routed else list(filter(self._is_own, goto)))

    def answered(self, question: Mapping[str, Any], answer: Any) -> None:
        """Hear how a question was answered now."""

    def _find(self, state: Any) -> RecordedTask:
        with self._lock:
            if not self.tasks:
                raise CheckFailed(f"node {self.path!r} runs more often than it is recorded to")
            given = hide_ids(self._form(state))
            same = (task for task in self.tasks if hide_ids(task.input) == given)
            return next(same, self.tasks[0])

    def _form(self, state: Any) -> Any:
        try:
            return to_json(state, self.serde)
        except Exception:  # what the node is given need not be storable
            return None

    def _is_own(self, step: Any) -> bool:
        """Whether a Command led there, and not one of the edges."""
        return isinstance(step, Send) or (step != END and step not in self.fixed)


def error_of(text: str) -> Exception:
    """An error that looks like the recorded one: of its built-in class, or of a class with its
    name."""
    kind, _, what = text.partition(": ")
    known = getattr(builtins, kind, None)
    base = known if isinstance(known, type) and issubclass(known, Exception) else RuntimeError
    parts = {"__init__": lambda self, *args: None, "__str__": lambda self: what}
    error: Exception = type(kind, (base,), parts)(what)
    return error


def list_nodes(app: Pregel) -> list[str]:
    """The nodes of a graph that can be given from a recording; one that holds a graph as a
    whole."""
    nodes = app.program.nodes.items()
    return [name for name, node in nodes if not node.hidden and name in app.program.scope.triggers]
