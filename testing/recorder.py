"""Records runs of a graph, and replays them.

On request a node does not run in a replay but returns what was recorded, so that routers, joins,
reducers and the other nodes are tested without a network.
"""

from __future__ import annotations

import builtins
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from threading import Lock
from typing import Any, Final, Literal
from uuid import uuid4

from ..checkpoint.base import Commit, Post, address, coordinates
from ..checkpoint.memory import InMemorySaver
from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import from_json, to_json
from ..graph.branch import BranchWriter
from ..pregel.app import Pregel, check_compiled
from ..pregel.control import RunControl
from ..pregel.errors import GraphInterrupt
from ..pregel.names import END, NS_END, NS_SEP, ROOT, START, without_ids
from ..pregel.run.effects import Effect, Effects, Stop, Work
from ..pregel.run.run import Run
from ..pregel.steps import Steps, arun_steps, run_steps
from ..pregel.task.interrupts import interrupt
from ..pregel.task.task import Task
from ..pregel.types import Command, Interrupt, RunnableConfig, Send
from .answers import OPEN, AnswerBook, Answers, RecordedAnswers
from .asserts import CheckFailed
from .comparing import Difference, find_difference, hide_ids, rename_ids
from .fakes import AppT, find_node, replace, replace_calls
from .origins import has_ready, list_held, thread_for
from .recording import RecordedRun, RecordedStep, RecordedTask, Recording
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
        self.saver: _PostingSaver = _PostingSaver(serde=app.serde)
        self.app: Pregel = app.copy({"checkpointer": self.saver})
        self.thread: RunnableConfig = thread_for(app.program, config, str(uuid4()))
        self.interrupts: tuple[Interrupt, ...] = ()

    def invoke(self, given: Any) -> Any:
        """Call the graph."""
        return self.app.invoke(given, self.thread, control=self.saver.control, **self._options)

    def ainvoke(self, given: Any) -> Any:
        """`invoke` for coroutines."""
        return self.app.ainvoke(given, self.thread, control=self.saver.control, **self._options)

    def follow(self, run: RecordedRun) -> None:
        """Let the next run get what was posted to this one, and stop where it has stopped."""
        saver, stops = self.saver, run.end == "stopped"
        saver.posts, saver.control = run.posts, RunControl()
        has_begun = START in self.app.program.nodes and (run.from_start or run.steps)
        saver.last = len(run.steps) + bool(has_begun) if stops else None

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
    """Posts what is recorded to have been posted, each behind the checkpoint of a step, and ends a
    run where the recorded one has stopped.

    Attributes:
        last: the number of the superstep behind which the run ends; None for its own end. A run
            counts its steps from its input on.
        control: of the run; None for one of its own.
    """

    posts: Sequence[Any] = ()
    last: int | None = None
    control: RunControl | None = None
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
                thread = address(commit.thread_id, "")
                self.post_behind(thread)
                control, last = self.control, self.last
                if control is not None and last is not None and self._count_steps(thread) >= last:
                    control.request_drain(HELD)

    def _count_steps(self, thread: RunnableConfig) -> int:
        """How many checkpoints follow that of the newest input."""
        [begun] = self.list(thread, filter={"source": "input"}, limit=1)
        [newest] = self.list(thread, limit=1)
        return newest.metadata["step"] - begun.metadata["step"]

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
        # People have let runs go on from breakpoints, or not: the recording says where they ended.
        played = played.copy({"interrupt_before": (), "interrupt_after": ()})
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
            self.stage.follow(run)
            self.error = None
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
        self.routed: bool = any(isinstance(writer, BranchWriter) for writer in node.writers)
        fixed = [pair for writer in node.writers for pair in getattr(writer, "fixed", ())]
        self.fixed: set[str | Send] = set(destinations(fixed))
        self.tasks: list[RecordedTask] = []
        self._lock = Lock()
        self.__name__: str = self.name

    def begin(self, run: RecordedRun) -> None:
        """Give what is recorded of this run."""
        self.tasks = [task for path, task in run.tasks() if path == self.path]

    def __call__(self, state: Any) -> Any:
        """What the node did when it was given this, else what it did next."""
        task = self._find(state)
        before, together = task.asked_last()
        for question in before:
            self._ask(question)
        waiting: list[GraphInterrupt] = []
        for question in together:
            try:
                self._ask(question)
            except GraphInterrupt as signal:
                waiting.append(signal)
        if waiting:  # one leaves the node, and all count
            raise waiting[0]
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

    def _ask(self, question: Mapping[str, Any]) -> None:
        self.answered(question, interrupt(from_json(question["asks"], self.serde)))

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


# -- recorded order --------------------------------------------------------------------------------
# Lets the tasks of a replay end in the steps of the recording (schedule="ready"): there a step is
# what ended together, so which steps a run takes depends on how long its tasks take. Theory of
# operation: `in_recorded_order` stands between the loop of such a graph and the driver. A task that
# the loop starts waits here until the recording says that it ends next. Then it runs alone. The
# loop is told of ends when all tasks of the recorded step have ended. A task that was still running
# at that point has not begun here. Where a failure had kept nodes from starting, the loop is asked
# to end, which keeps them from it here, and the request is taken back before the next task runs. If
# the graph does something else than was recorded, the waiting tasks run in the order in which they
# started, and the comparison names the difference.

HELD: Final = "the recording says that nothing starts here"


class RecordedOrder:
    """In which order the tasks of a replay end.

    Args:
        serde: of the graph.
    """

    def __init__(self, serde: Serializer) -> None:
        self._serde = serde
        self._whole = _Script()
        self._inside: dict[str, _Script] = {}
        self._unused: list[tuple[str, RecordedTask]] = []
        self._texts: dict[Task, str] = {}

    def begin(self, run: RecordedRun) -> None:
        """Follow this run from now on."""
        self._whole = _Script(run.steps, run.held, stops=run.end == "stopped")
        self._inside = {}
        self._unused = [(path, task) for path, task in run.tasks() if task.steps]
        self._texts = {}

    def find_script(self, run: Run) -> _Script:
        """The steps that a run is recorded to take: the whole graph, or one inside of it."""
        parent = run.parent
        if parent is None:
            return self._whole
        if parent.id not in self._inside:  # the graph around it runs in supersteps
            levels = without_ids(run.ns).split(NS_SEP)
            path = NS_END.join(level.split(NS_END)[0] for level in levels)
            named = [each for each in self._unused if each[0] == path]
            text = self.text_of(parent) if len(named) > 1 else ""
            same = (each for each in named if _text(each[1].input) == text)
            found = next(same, named[0] if named else None)
            self.enter(parent, None if found is None else found[1])
        return self._inside[parent.id]

    def enter(self, task: Task, recorded: RecordedTask | None) -> None:
        """Note which recorded task this is: graphs that it runs follow the steps there."""
        if task.id not in self._inside:
            script = _Script() if recorded is None else _Script(recorded.steps, recorded.held)
            self._inside[task.id] = script
            self._unused = [each for each in self._unused if each[1] is not recorded]

    def text_of(self, task: Task) -> str:
        """The input of a task, as something to compare."""
        if task not in self._texts:
            try:
                form = to_json(task.input, self._serde)
            except Exception:  # what a node is given need not be storable
                form = None
            self._texts[task] = _text(form)
        return self._texts[task]

    def find_task(self, recorded: RecordedTask, tasks: Iterable[Task]) -> Task | None:
        """Which of these tasks is a recorded one: of several of its node, the first with its input,
        else the first."""
        named = [task for task in tasks if task.name == recorded.node]
        if len(named) < 2:
            return next(iter(named), None)
        text = _text(recorded.input)
        return next((task for task in named if self.text_of(task) == text), named[0])


def in_recorded_order(app: AppT, order: RecordedOrder) -> AppT:
    """A copy of a graph whose tasks end in the recorded order, if they start when their inputs are
    there; those of the graphs that its nodes hold, too."""
    if not has_ready(app.program):
        return app
    inside = {
        name: in_recorded_order(held, order)
        for name, held in list_held(app.program).items()
        if has_ready(held.program)
    }
    twin = replace_calls(app, inside) if inside else app
    flow = twin.program.flow
    if flow is None or flow.make_open is None:
        return twin

    def relay(run: Run, effects: Effects) -> Effects:
        return _Call(order, run).steps(effects)

    program = with_fields(twin.program, flow=with_fields(flow, relay=relay), variants={})
    return twin.copy({"program": program})


class _Script:
    """The steps that a graph is recorded to take, through all calls of a run.

    Attributes:
        steps: those that have not ended, the next one first.
        kept: the tasks of the next step that have ended in an earlier call, by their ids.

    Args:
        stops: nothing runs after the steps; else what is not recorded runs.
    """

    def __init__(
        self, steps: Sequence[RecordedStep] = (), held: Sequence[int] = (), *, stops: bool = False
    ) -> None:
        self.steps = deque(steps)
        self.kept: dict[str, Task] = {}
        self._all = len(steps)
        self._held = frozenset(held)
        self._stops = stops

    @property
    def is_over(self) -> bool:
        """Whether nothing runs any more."""
        return self._stops and not self.steps

    @property
    def held(self) -> bool:
        """Whether nothing starts after what has ended by now."""
        return self.is_over or (bool(self.steps) and self._all - len(self.steps) in self._held)


class _Call:
    """One call of a graph."""

    def __init__(self, order: RecordedOrder, run: Run) -> None:
        self._order = order
        self._run = run
        self._script = order.find_script(run)
        self._waiting: list[Task] = []
        self._left: list[RecordedTask] = []  # of the next step, what has not ended
        self._ended: list[Task] = []  # of the next step, what the loop was not told of yet
        self._known: dict[Task, RecordedTask] = {}
        self._stopped = False  # a task of the next step has not finished, so nothing after it runs
        self._failed = False
        self._open_step()

    def steps(self, effects: Effects) -> Effects:
        """The effects of the loop, with its tasks in order."""
        try:
            yield from self._relay(effects)
        finally:
            self._release()

    def _relay(self, effects: Effects) -> Effects:
        effect = self._begin(effects)
        while effect is not None:
            try:
                if isinstance(effect, Work):
                    yield from self._start(effect)
                elif isinstance(effect, Stop):
                    self._abandon(effect)
                else:
                    yield effect
            except GeneratorExit:
                effects.close()
                raise
            except BaseException as error:
                effect = effects.throw(error)
            else:
                effect = next(effects, None)

    def _hold(self) -> None:
        """Say whether something may start in the state that follows."""
        if self._script.held:
            self._run.settings.ending.request(HELD)

    def _release(self) -> None:
        """Do not let graphs that the tasks run take it for their end."""
        ending = self._run.settings.ending
        if ending.reason == HELD:
            ending.reason = None

    def _begin(self, effects: Effects) -> Effect | None:
        """The first effect. The loop is to start all that can start, and not one at a time; graphs
        that a function of the user's calls run one task at a time all the same."""
        config: Any = self._run.settings.config
        most = config.pop("max_concurrency", None)
        self._hold()
        try:
            return next(effects, None)
        finally:
            if most is not None:
                config["max_concurrency"] = most

    def _start(self, effect: Work) -> Effects:
        """Answer the loop: what has ended next."""
        self._release()
        self._waiting += effect.tasks
        effect.tasks, effect.finished = (), ()
        while not effect.finished:
            task = self._choose()
            if task is None:
                effect.finished = self._give_up()
                break
            self._waiting.remove(task)
            kept = self._script.kept.pop(task.id, None)
            if kept is None:
                yield from _run_alone(task)
            else:
                task.take_outcome(kept)
            effect.finished = self._note_end(task)
        self._hold()
        effect.open = len(self._waiting) if effect.finished else 0

    def _abandon(self, effect: Stop) -> None:
        """Drop tasks that have lost their race: none of them has begun."""
        self._waiting = [task for task in self._waiting if task not in effect.tasks]
        effect.work.open = len(self._waiting)

    def _choose(self) -> Task | None:
        """The task that runs next."""
        start = next((task for task in self._waiting if task.name == START), None)
        if start is not None:
            return start
        for recorded in self._left:
            task = self._order.find_task(recorded, self._waiting)
            if task is not None:
                self._known[task] = recorded
                self._order.enter(task, recorded)
                return task
        failed = self._failed and self._run.settings.on_failure == "stop"
        if self._stopped or self._script.is_over or failed:
            return None
        return next(iter(self._waiting), None)

    def _note_end(self, task: Task) -> Sequence[Task]:
        """Note an end. Returns the tasks of whose ends the loop is to be told."""
        if task.name == START:
            return (task,)
        recorded = self._known.pop(task, None)
        if recorded is not None:
            self._left.remove(recorded)
        if not task.finished:
            handled = task.is_handled
            self._failed = self._failed or (isinstance(task.error, Exception) and not handled)
            # It goes on in a later call; what ended after it there ends after it here.
            self._stopped = self._stopped or (_has_finished(recorded) and not handled)
            return (task,)
        self._ended.append(task)
        if recorded is None:
            return self._tell_all()
        if task.cause is not None:  # it may have failed in an earlier call
            name = task.cause.name
            self._left = [each for each in self._left if each.node != name or not each.error]
        if self._left or self._stopped:
            return ()
        self._script.steps.popleft()
        ended, self._ended = self._ended, []
        self._open_step()
        return ended

    def _give_up(self) -> Sequence[Task]:
        """Nothing can run. Returns the tasks of whose ends the loop is to be told."""
        if self._ended and not self._stopped:
            return self._tell_all()
        self._script.kept.update((task.id, task) for task in self._ended)
        return ()

    def _tell_all(self) -> Sequence[Task]:
        """The graph does not do what was recorded: tell the loop of all that has ended."""
        self._script.steps.clear()
        ended, self._ended, self._left = self._ended, [], []
        return ended

    def _open_step(self) -> None:
        """Begin with the next step."""
        self._left = list(self._script.steps[0]) if self._script.steps else []


def _run_alone(task: Task) -> Effects:
    effect = Work()
    effect.tasks = [task]
    yield effect
    while effect.open and not effect.finished:  # woken by a chunk
        yield effect


def _has_finished(recorded: RecordedTask | None) -> bool:
    """Whether a task is recorded to have ended in its step: it has led somewhere, be it to END."""
    return recorded is not None and bool(recorded.goto)


def _text(form: Any) -> str:
    return json.dumps(hide_ids(form), sort_keys=True)
