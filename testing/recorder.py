"""Records runs of a graph, and replays them.

On request a node does not run in a replay but returns what was recorded, so that routers, joins,
reducers and the other nodes are tested without a network.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal
from uuid import uuid4

from ..checkpoint.base import Commit, Post, address, coordinates
from ..checkpoint.memory import InMemorySaver
from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import from_json, to_json
from ..graph.branch import BranchWriter
from ..pregel.app import Pregel, check_compiled
from ..pregel.names import END, ROOT
from ..pregel.steps import Steps, arun_steps, run_steps
from ..pregel.task.interrupts import interrupt
from ..pregel.types import Command, Interrupt, RunnableConfig, Send
from .answers import OPEN, AnswerBook, Answers, RecordedAnswers
from .asserts import CheckFailed
from .comparing import Difference, find_difference, hide_ids, rename_ids
from .fakes import find_node, replace
from .origins import thread_for
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
    return run_steps(_record(Stage(app, config, context), inputs, answers, Stage.invoke))


async def arecord(
    app: Pregel[Any, Any, Any, Any],
    *inputs: Any,
    answers: Answers = (),
    config: Mapping[str, Any] | None = None,
    context: Any = None,
) -> Recording:
    """`record` for coroutines; also for graphs with nodes that are async only."""
    return await arun_steps(_record(Stage(app, config, context), inputs, answers, Stage.ainvoke))


def _record(
    stage: Stage, inputs: Iterable[Any], answers: Answers, call: StageCall
) -> Steps[Recording]:
    book = AnswerBook(answers)
    for given in inputs:
        yield from stage.run(given, book, call)
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
    player = _player_of(recording, app, recorded, config, context)
    run_steps(player.play(Stage.invoke))
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
    player = _player_of(recording, app, recorded, config, context)
    await arun_steps(player.play(Stage.ainvoke))
    return player.compare(ignore)


def _player_of(
    recording: Recording | str | Path,
    app: Pregel,
    recorded: Iterable[str] | Literal["*"],
    config: Mapping[str, Any] | None,
    context: Any,
) -> Player:
    if isinstance(recorded, str) and recorded != "*":
        raise ValueError(f'recorded must be a list of nodes or "*", got {recorded!r}')
    read = recording if isinstance(recording, Recording) else Recording.load(recording)
    names = list_nodes(app) if recorded == "*" else recorded
    return Player(read, app, {name: Tape(name, app) for name in names}, config, context=context)


class Stage:
    """A graph with a thread in memory.

    Args:
        options: of `invoke`.

    Attributes:
        interrupts: what the last call asked.
    """

    def __init__(
        self, app: Pregel, config: Mapping[str, Any] | None, context: Any, **options: Any
    ) -> None:
        check_compiled(app)
        self._options = {**options, "context": context, "version": "v2", "durability": "sync"}
        self.saver = _PostingSaver(serde=app.serde)
        self.app: Pregel = app.copy({"checkpointer": self.saver})
        self.thread: RunnableConfig = thread_for(app.program, config, str(uuid4()))
        self.interrupts: tuple[Interrupt, ...] = ()

    def invoke(self, given: Any) -> Any:
        """Call the graph."""
        return self.app.invoke(given, self.thread, **self._options)

    def ainvoke(self, given: Any) -> Any:
        """`invoke` for coroutines."""
        return self.app.ainvoke(given, self.thread, **self._options)

    def run(self, given: Any, book: AnswerBook, call: StageCall) -> Steps[None]:
        """Call the graph with an input, and with answers until nobody answers."""
        for _ in range(MOST_ANSWERS + 1):
            self.interrupts = ()
            self.interrupts = (yield call(self, given)).interrupts
            given = book.answer(self.interrupts) if self.interrupts else None
            if given is None:
                return
        raise CheckFailed(f"the run still asks after {MOST_ANSWERS} answers: {self.interrupts!r}")


class _PostingSaver(InMemorySaver):
    """Posts what is recorded to have been posted, each behind the checkpoint of a step."""

    posts: Sequence[Any] = ()
    goes_on = False  # from a checkpoint that it has not committed

    def read_posts(self, thread_id: str) -> Sequence[Post]:
        """Return what was posted. A call that goes on has read before anything was posted."""
        found = super().read_posts(thread_id)
        if self.goes_on:
            self.goes_on = False
            self.post_behind(address(thread_id, ""))
        return found

    def commit(self, commits: Sequence[Commit]) -> None:
        """Store supersteps, and post what is taken with the next."""
        super().commit(commits)
        for commit in commits:
            if not commit.checkpoint_ns:
                self.post_behind(address(commit.thread_id, ""))

    def post_behind(self, thread: RunnableConfig) -> None:
        """Post what is recorded to be taken behind the newest checkpoint."""
        found = self.get_tuple(thread) if self.posts else None
        for step, key, value in self.posts:
            if found is not None and found.metadata.get("step") == step:
                blob = self.serde.dumps(from_json(value, self.serde))
                self.store_post(coordinates(thread)[0], [(key, blob)])


StageCall = Callable[[Stage, Any], Any]
"""`Stage.invoke` or `Stage.ainvoke`."""


class Player:
    """One replay: the nodes that do not run, and the answers.

    Args:
        tapes: what gives the recorded results of nodes, by their paths.
        options: of `Stage`.
    """

    def __init__(
        self,
        recording: Recording,
        app: Pregel,
        tapes: Mapping[str, Tape],
        config: Mapping[str, Any] | None,
        **options: Any,
    ) -> None:
        self.recording: Recording = recording
        self.tapes: Mapping[str, Tape] = tapes
        self.serde: Serializer = app.serde
        self.order: RecordedOrder = RecordedOrder(app.serde)
        played = replace(app, tapes) if tapes else app
        self.stage: Stage = Stage(in_recorded_order(played, self.order), config, **options)
        self.error: Exception | None = None

    def play(
        self, call: StageCall, other: Callable[[Interrupt], Any] | None = None, begun: int = 0
    ) -> Steps[None]:
        """Run it again, until nobody answers a question that was not open before. Whether a run
        should have ended with an error, the comparison finds out.

        Args:
            other: gives other answers; OPEN for the recorded one.
            begun: the number of the run to go on with, from 1; 0 to begin with the first.
        """
        for number, run in enumerate(self.recording.runs, 1):
            if number < begun:
                continue
            for tape in self.tapes.values():
                tape.begin(run)
            self.order.begin(run)
            self.stage.saver.posts, self.error = run.posts, None
            given = None if number == begun else from_json(run.input, self.serde)
            self.stage.saver.goes_on = number == begun
            try:
                yield from self.stage.run(given, self._answers(run, other), call)
            except Exception as error:
                self.error = error
            if self.stage.interrupts and run.end != "paused":
                return

    def _answers(
        self, run: RecordedRun, other: Callable[[Interrupt], Any] | None
    ) -> AnswerBook:
        recorded = RecordedAnswers(run.answered(), self.serde)

        def answer(question: Interrupt) -> Any:
            given = OPEN if other is None else other(question)
            return recorded.find(question) if given is OPEN else given

        return AnswerBook(answer)

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
        self.name: str
        graph, self.name = find_node(app, path)
        self.serde: Serializer = app.serde
        self.root: bool = ROOT in graph.program.scope.keys
        # A router is asked anew; without one, what is recorded came from a Command.
        node = graph.program.nodes[self.name]
        self.routed = any(isinstance(writer, BranchWriter) for writer in node.writers)
        fixed = [pair for writer in node.writers for pair in getattr(writer, "fixed", ())]
        self.fixed = set(destinations(fixed))
        self.tasks: list[RecordedTask] = []
        self._lock = Lock()
        self.__name__ = self.name

    def begin(self, run: RecordedRun) -> None:
        """Give what is recorded of this run."""
        self.tasks = [task for path, task in run.tasks() if path == self.path]

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
