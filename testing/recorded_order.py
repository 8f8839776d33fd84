"""Lets the tasks of a replay end in the steps of the recording (schedule="ready"): there a step is
what ended together, so which steps a run takes depends on how long its tasks take.

Theory of operation: `in_recorded_order` stands between the loop of such a graph and the driver. A
task that the loop starts waits here until the recording says that it ends next. Then it runs alone.
The loop is told of ends when all tasks of the recorded step have ended. A task that was still
running at that point has not begun here. Where a failure had kept nodes from starting, the loop is
asked to end, which keeps them from it here, and the request is taken back before the next task
runs. If the graph does something else than was recorded, the waiting tasks run in the order in
which they started, and the comparison names the difference.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace as with_fields
from typing import Any, Final

from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import to_json
from ..pregel.names import NS_END, NS_SEP, START, without_ids
from ..pregel.run.effects import Effect, Effects, Stop, Work
from ..pregel.run.run import Run
from ..pregel.task.task import Task
from .comparing import hide_ids
from .fakes import AppT, replace_calls
from .origins import has_ready, list_held
from .recording import RecordedRun, RecordedStep, RecordedTask

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
        self._whole = _Script(run.steps, run.held)
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
    """

    def __init__(self, steps: Sequence[RecordedStep] = (), held: Sequence[int] = ()) -> None:
        self.steps = deque(steps)
        self.kept: dict[str, Task] = {}
        self._all = len(steps)
        self._held = frozenset(held)

    @property
    def held(self) -> bool:
        """Whether nothing starts after what has ended by now."""
        return bool(self.steps) and self._all - len(self.steps) in self._held


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
        if self._stopped or (self._failed and self._run.settings.on_failure == "stop"):
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
