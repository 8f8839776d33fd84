"""Tells the observers of a run what it does. Loaded with the first observer, or with LangChain.

Nothing in the loop knows of it: what a run asks of its driver passes through `Observing.watch`, and
what becomes of a task is told by the drivers where a task has an attempt with policies, has failed,
or has been restored. A run without observers has none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4

from ...checkpoint.base import Commit
from ...checkpoint.errors import CheckpointConflictError
from ..errors import DrainSignal, GraphDrained, ParentCommand
from ..log import watch
from ..observer import EndStatus, RunInfo, TaskInfo
from ..task.observers import (
    EngineObserver,
    ObservedAttempt,
    Watcher,
    ask,
    carry,
    defines,
    events_of,
)
from ..task.spans import Span
from ..task.task import Task
from .config import scalars
from .effects import Effects, Load, Notify, Work

SURROUNDING = ("around", "aaround", "around_operation", "aaround_operation")
"""The methods that surround the code of users, wherever it runs."""
OF_LISTENERS = {"run_span", "attempt_span", "router_span", "config_of", "metadata"}
"""What the engine asks a listener for, and tells nobody."""


class Observing:
    """Tells the observers of one run.

    Attributes:
        watchers: the outermost first.
        tells: whether one of them is told of anything; else they only surround.
        listener: the one whose spans surround the run and its tasks, or None.
        sees_routers: whether one of them surrounds routers, or is shown their answers.
        info: which run; None before it has begun, and if nobody is told.
    """

    def __init__(self, watchers: tuple[Watcher, ...], own: EngineObserver | None = None) -> None:
        """Tell `watchers`, and `own` as the innermost."""
        self.watchers: tuple[Watcher, ...] = watchers
        if own is not None:
            self.watchers = (*watchers, Watcher(own))
        self.listener: Any = None
        defined: frozenset[str] = frozenset()
        for observer, _, _ in self.watchers:
            cls: Any = type(observer)
            defined |= events_of(cls)
            if self.listener is None and isinstance(observer, EngineObserver):
                self.listener = observer if defines(observer, "attempt_span") else None
        self.tells: bool = not defined <= OF_LISTENERS
        self.sees_routers: bool = self.listener is not None or "see_route" in defined
        self._defined: frozenset[str] = defined
        self.info: RunInfo | None = None
        self._began: dict[str, float] = {}
        self._attempts: dict[str, float] = {}

    def around_calls(self, open_calls: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """What makes the calls of a run, inside the observers that wrap them."""
        for watcher in reversed(self.watchers):
            if defines(watcher.observer, "around_calls"):
                open_calls = partial(watcher.observer.around_calls, open_calls)  # type: ignore[attr-defined]
        return open_calls

    def tell(self, method: str, about: RunInfo | TaskInfo, *args: Any) -> None:
        """Tell all who want to know of this, and define the method."""
        for observer, nodes, _ in self.watchers:
            if nodes is not None and (about.__class__ is RunInfo or about.node not in nodes):  # type: ignore[union-attr]
                continue
            if defines(observer, method):
                ask(observer, method, about, *args)

    # -- the run -----------------------------------------------------------------------------------

    def watch(self, run: Any, effects: Effects) -> Effects:
        """Tell observers of the effects of a run, on their way to the driver."""
        if self.tells:
            effects = self._tell_of(run, effects)
        if self.listener is None:
            return effects
        return _in_span(self.listener.run_span(run), effects)

    def _tell_of(self, run: Any, effects: Effects) -> Effects:
        info = self.info = _describe_run(run)
        began = perf_counter()
        self.tell("see_run", info, run)
        self.tell("run_started", info)
        inherited = [each for each in self.watchers if each.nodes is None]
        for key, value in carry(inherited, info).items():
            run.commits.describe(key, value)
        step = _StepWatch(self, run, info)
        try:
            yield from self._pass_on(effects, step)
        except GeneratorExit:
            raise  # closed by hand: nobody is there to be told
        except BaseException as error:
            step.end()
            stopped = not isinstance(error, Exception)
            status: EndStatus = "stopped" if stopped else "failed"
            raised = error
            if isinstance(error, DrainSignal) and run.parent is None:
                raised = GraphDrained(error.reason)
            self.tell("run_ended", info, status, perf_counter() - began, raised)
            raise
        step.end()
        if run.output.breakpoint:
            following = (task.name for task in run.output.following if not task.node.hidden)
            self.tell("breakpoint_reached", info, tuple(dict.fromkeys(following)))
        paused = run.output.questions is not None
        status = "paused" if paused else "finished"
        self.tell("run_ended", info, status, perf_counter() - began, None)

    def _pass_on(self, effects: Effects, step: _StepWatch) -> Effects:
        loaded = False
        for effect in effects:
            if effect.__class__ is Work:
                step.enter(effect.tasks)
            try:
                yield effect
            except GeneratorExit:
                effects.close()
                raise
            except BaseException as error:
                yield from _go_on(effects, error)
                return
            if isinstance(effect, Load) and effect.found is not None and not loaded:
                loaded = True  # what is loaded later belongs to graphs around it
                found = effect.found
                self.tell("thread_loaded", step.info, found.checkpoint["id"], found.metadata)

    # -- tasks -------------------------------------------------------------------------------------

    def describe(self, task: Task) -> TaskInfo:
        """Which task, in its current attempt."""
        assert self.info is not None
        return TaskInfo(
            run=self.info, id=task.id, node=task.name, step=task.step, attempt=task.attempt
        )

    def begin_attempt(self, task: Task) -> None:
        """Tell that an attempt begins in this context."""
        if task.node.hidden:
            return
        info, now = self.describe(task), perf_counter()
        self._attempts[info.id] = now
        if info.id not in self._began:
            self._began[info.id] = now
            self.tell("task_started", info)
        mine = [each for each in self.watchers if each.nodes is None or task.name in each.nodes]
        around = [each for each in mine if defines(each.observer, *SURROUNDING)]
        task.current.observed = ObservedAttempt(around, info, self.tell)

    def fail_attempt(self, task: Task, error: BaseException, delay: float | None) -> None:
        """Tell that an attempt has raised.

        Args:
            delay: seconds until the next attempt; None if there is none.
        """
        if task.node.hidden or task.id not in self._began:
            return
        info = self.describe(task)
        self.tell("attempt_failed", info, error, perf_counter() - self._attempts[info.id])
        if delay is not None:
            self.tell("task_retried", info, error, delay)

    def end_task(self, task: Task) -> None:
        """Tell that a task has finished, failed, or paused."""
        began = self._began.pop(task.id, None)
        if began is None:
            return
        self._attempts.pop(task.id, None)
        info = self.describe(task)
        before = task.run.ledger.of(task.id).answers if task.answers else ()
        for answered in task.answers or ():
            if answered not in before:
                self.tell("question_answered", info, answered)
        for question in task.interrupts:
            self.tell("question_asked", info, question)
        self.tell("see_task", info, task)
        self.tell("task_ended", info, status_of(task), perf_counter() - began, task.error)

    def see_route(self, task: Task, router: Any, answer: Any, writes: list[Any]) -> None:
        """Tell what a router has answered."""
        if "see_route" in self._defined:
            self.tell("see_route", self.describe(task), router, answer, writes)

    def find_cached(self, task: Task) -> None:
        """Tell that a task did not run, since the cache had its result."""
        if self.tells:
            self.tell("task_cached", self.describe(task))

    def restore(self, task: Task) -> None:
        """Tell that a task does not run again."""
        if task.node.hidden or not self.tells:
            return
        info = self.describe(task)
        for question in task.interrupts:
            self.tell("question_asked", info, question)
        self.tell("task_restored", info, status_of(task), task.error)

    # -- storing -----------------------------------------------------------------------------------

    def time_commits(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A checkpointer's method that stores commits, timed; conflicts are told."""
        return watch(method, self._tell_of_commits) if self.tells else method

    def watch_records(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpointer's method that records something beside a checkpoint; conflicts are
        told."""
        return watch(method, self._tell_of_conflict) if self.tells else method

    def _tell_of_commits(self, seconds: float, stored: Any, error: BaseException | None) -> None:
        self._tell_of_conflict(seconds, stored, error)
        for commit in stored if error is None else ():
            if self.info is not None:
                step = commit.metadata.get("step", -1)
                self.tell("committed", self.info, step, seconds, size_of(commit))

    def _tell_of_conflict(self, seconds: float, stored: Any, error: BaseException | None) -> None:
        if isinstance(error, CheckpointConflictError) and self.info is not None:
            self.tell("conflicted", self.info, error)


def status_of(task: Task) -> EndStatus:
    """How a task has ended."""
    error = task.error
    if task.paused:
        return "paused"
    if error is None or isinstance(error, ParentCommand):
        return "finished"
    return "failed" if isinstance(error, Exception) else "stopped"


class _StepWatch:
    """Which step is going on, and since when."""

    def __init__(self, observing: Observing, run: Any, info: RunInfo) -> None:
        self._observing, self._run, self.info = observing, run, info
        self._step: int | None = None
        self._began = 0.0

    def enter(self, tasks: Sequence[Task]) -> None:
        """Tasks are about to run, or are waited for."""
        step = self._run.machine.step
        if step == self._step:
            return
        # What has started in the step before may be at work in this one, too.
        goes_on = self._run.program.starts_ready and self._step is not None
        self.end()
        # A handler is told of when it starts.
        names = tuple(task.name for task in tasks if not task.node.hidden and task.cause is None)
        if names or goes_on:
            self._step, self._began = step, perf_counter()
            self._observing.tell("step_started", self.info, step, names)

    def end(self) -> None:
        """End the step, if one is open."""
        if self._step is not None:
            seconds = perf_counter() - self._began
            self._observing.tell("step_ended", self.info, self._step, seconds)
            self._step = None


def _go_on(effects: Effects, error: BaseException) -> Effects:
    """Throw an error into a run's loop, and pass on what it still asks for."""
    try:
        effect = effects.throw(error)
    except StopIteration:
        return
    yield effect
    yield from effects


def _in_span(span: Span, effects: Effects) -> Effects:
    yield Notify(span, begins=True)
    try:
        yield from effects
    except GeneratorExit:
        raise  # closed by hand: nobody is there to be told
    except BaseException as error:
        yield Notify(span, error=error)
        raise
    yield Notify(span)


def _describe_run(run: Any) -> RunInfo:
    parent = run.parent
    outer = None if parent is None else parent.run.observing
    thread = run.thread
    return RunInfo(
        id=uuid4().hex,
        graph=run.program.name,
        thread_id=thread.thread_id,
        run_id=thread.run_id,
        ns=thread.ns,
        metadata=scalars(run.settings.config, None),
        parent=None if outer is None or outer.info is None else outer.describe(parent),
    )


def size_of(commit: Commit) -> int:
    """The bytes of its values and writes."""
    total = sum(len(blob[1]) for blob in commit.values.values() if blob is not None)
    return total + sum(len(blob[1]) for each in commit.writes for _, blob in each.writes)
