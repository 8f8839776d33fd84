"""`@task` calls: tasks that a running task starts in the middle of its superstep, and waits for as
it likes.

A call is known by its parent's id, its function, its arguments and how many equal calls came before
it, so a parent that runs again finds what its calls have returned before, in whatever order it
makes them. The functions that users decorate are in `graph/functional.py`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from os.path import basename, splitext
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ...checkpoint.base import ERROR, RESUME, RETURN
from ...checkpoint.keys import canonical_key
from ..errors import GraphAbandoned
from ..names import PUSH
from ..program.program import CompiledNode
from ..program.results import refuse_coroutine
from ..program.writes import Writer
from ..run.effects import Save
from ..run.run import Run, run_of
from ..running import SleepRequest
from ..steps import Steps, Waits, run_steps
from ..task.ids import call_id
from ..task.interrupts import pausing
from ..task.task import Task, outwards
from .attempt import refuse_late
from .pool import POOL
from .waits import WAITS

if TYPE_CHECKING:
    from .call_future import CallFuture

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class ReturnWriter(Writer):
    """Keeps what a call returned."""

    def write(self, result: Any, task: Any) -> None:
        """Append one write, whatever the result is."""
        refuse_coroutine(result, f"task {task.name!r}")
        task.writes.append((RETURN, result))


class Calls:
    """The calls of one sync run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._made: dict[str, tuple[Task, Any]] = {}
        self._effects: dict[str, Any] = {}
        self._limiters: dict[str, Limiter] = {}
        self._lock = threading.Lock()
        self.meter: Any = None

    def find_meter(self) -> Any:
        """What counts what the run spends of its budgets, also by tasks of earlier states."""
        from .spending import Meter

        if self.run.advancing is not self.run:
            return self.run.advancing.calls.find_meter()
        with self._lock:
            if self.meter is None:
                self.meter = Meter(self.run, self._effects)
        return self.meter

    def start(self, parent: Task, node: CompiledNode, arguments: Arguments) -> Any:
        """Start a call, or find it: stored by an earlier run, or begun by an earlier attempt of the
        parent."""
        if node.call.sync_missing:
            raise RuntimeError(
                f"task {node.name!r} is async and was called in a sync run: run the graph with "
                "ainvoke or astream, or make the task a plain function"
            )
        child, future = self._find(parent, node, arguments)
        if future is None:
            future = new_future()
            self._admit(parent, child, future)
            # The caller's context: what it has set (a trace, the running task) holds in the call as
            # well.
            context = copy_context()
            self._limiter(parent)(lambda: context.run(self._work, child, future))
        return future

    def can_wait(self) -> bool:
        """Whether code that does not await may wait here. In a sync run it may, though an event
        loop runs on this thread: whoever called it from there, as notebooks do, waits for it."""
        return True

    def begin_effect(self, task: Task, kind: str, key: str, *, awaits: bool) -> Any:
        """The record of an effect of a task."""
        from .side_effects import begin_effect

        refuse_given_up(task)

        parent = self.run.parent
        if self.run.thread.saver is None and parent is not None:
            # A graph that stores nothing starts over with the task around it, under the same ids.
            if self.run.program.starts_ready and task.find_answers() is not None:
                raise RuntimeError(
                    f"node {task.name!r} called {kind}({key!r}) in a graph with "
                    'checkpointer=False and schedule="ready": when that starts over, its tasks '
                    "have other ids, so the effect would be repeated. Compile it without one of "
                    "the two"
                )
            return run_of(parent).calls.begin_effect(task, kind, key, awaits=awaits)
        return begin_effect(self.run, self._effects, task, kind, key, awaits=awaits)

    def begin_spend(self, task: Task, *, awaits: bool) -> Any:
        """A call that spends of a budget; None if no budget counts it."""
        run = self.run
        while not run.settings.graph.budgets:  # each request to a model comes by (P40-model)
            if run.parent is None:
                return None
            run = run_of(run.parent)
        from .spending import begin_spend

        return begin_spend(task, awaits=awaits)

    def sleep(self, task: Task, request: SleepRequest, *, awaits: bool) -> Steps[None]:
        """The steps of a sleep of a task.

        Raises:
            RuntimeError: it would hold up an event loop.
        """
        from .sleeping import sleep

        waits: Waits = WAITS
        if awaits:
            from .awaits import AWAITS as waits
        elif not self.can_wait():
            raise RuntimeError(
                f"node {task.name!r} called runtime.sleep() in a coroutine: await "
                "runtime.asleep(...)"
            )
        return sleep(self.run, self._effects, task, request, waits)

    def _find(self, parent: Task, node: CompiledNode, arguments: Arguments) -> tuple[Task, Any]:
        # May take long, so not under the lock.
        digest = None if runs_once(parent) else arguments_digest(node, arguments)
        with self._lock:
            current = parent.current
            if current.calls is None:
                current.calls = []
            child = Task(node, (PUSH, parent.path, len(current.calls), True), arguments, self.run)
            child.begin_beside(self.run.position.saved_id, parent)
            future = None
            if digest is not None:
                child.carry_id(call_id(parent, node, digest))
                # An earlier attempt of the parent may have begun this very call, and it may still
                # be at work.
                made = child.id in self._made
                future = self._made_before(child) if made else self._find_recorded(child)
            if future is None:
                refuse_late(parent)
                refuse_given_up(parent)
            current.calls.append(future)
        return child, future

    def _admit(self, parent: Task, child: Task, future: Any) -> None:
        assert parent.current.calls is not None
        parent.current.calls[child.path[2]] = future
        if not runs_once(parent):
            self._made[child.id] = child, future

    def _made_before(self, child: Task) -> Any:
        """The future of this very call of an earlier attempt of the parent; None if the call is to
        be made anew."""
        before, future = self._made[child.id]
        # A failed call is made anew by the next attempt; one that has returned, or is at work, is
        # not.
        if future.done() and (future.cancelled() or future.exception() is not None):
            if before.answers:
                child.inherit_answers(before)
            return None
        return future

    def _find_recorded(self, child: Task) -> Any:
        """A future that ends as the record of this very call says: with what it returned, or with
        questions that got no answer. None if the call is to be made."""
        ledger = self.run.ledger
        known = ledger.get(child.id) if ledger else None
        if known is None:
            return None
        if known.finished:
            result = dict(known.writes).get(RETURN)
            for stream in self.run.output.streams:
                stream.known((result,))
            return self._resolve(result, None)
        pause = ledger.find_pause(known)
        if pause is None:
            return None
        return self._resolve(None, pausing(pause.questions, pause.wake_at))

    def _resolve(self, value: Any, error: BaseException | None) -> Any:
        """A future that has ended already."""
        return resolve(new_future(), value, error)

    def _limiter(self, parent: Task) -> Callable[[Callable[[], None]], None]:
        """How a call is let in: `max_concurrency` counts the calls of one parent, so that none can
        wait for its own."""
        limit = self.run.settings.config.get("max_concurrency")
        if not limit:
            return POOL.submit
        return self._limiters.setdefault(parent.id, Limiter(limit)).submit

    def _run_call(self, child: Task, waits: Waits) -> Steps[None]:
        """Run a call to its end; show and record it."""
        for stream in self.run.output.streams:
            stream.started(child)
        yield waits.run_task(child)
        record = build_record(self.run, child)
        if record is not None:
            stored = self.run.journal.record(record, wait=not self.run.saves_in_background)
            if stored is not None:
                yield stored
        for stream in self.run.output.streams:
            stream.ended(child)

    def _work(self, child: Task, future: CallFuture) -> None:
        """Run a call on this worker thread, and resolve its future."""
        # Cancelled before it had a thread.
        if not future.set_running_or_notify_cancel():
            return
        try:
            run_steps(self._run_call(child, WAITS))
        except BaseException as error:
            # How it has ended could not be stored: whatever it did counts as undone, or else its
            # caller would go on with what the next call does not find.
            child.fail(error)
        resolve(future, result_of(child), error_of(child))


def new_future() -> CallFuture:
    """What a call from sync code returns."""
    from .call_future import CallFuture

    return CallFuture()


class Limiter:
    """Lets so many jobs run at once; the others follow in order."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        """Run the job on a worker thread as soon as one of those before it has ended."""
        with self._lock:
            if self._free == 0:
                self._waiting.append(job)
                return
            self._free -= 1
        POOL.submit(lambda: self._run(job))

    def _run(self, job: Callable[[], None] | None) -> None:
        while job is not None:
            job()
            with self._lock:
                job = self._waiting.popleft() if self._waiting else None
                self._free += job is None


def resolve(future: Any, value: Any, error: BaseException | None) -> Any:
    """Give a future its result, or what it raises; returns it."""
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
    return future


def error_of(child: Task) -> BaseException | None:
    """What a call that has ended raises to those who wait for it."""
    pause = child.pause
    if pause is not None:
        signal = pausing(pause.questions, pause.wake_at)
        signal.by_hand, signal.error = pause.raised, pause.rejected
        return signal
    return child.error


def result_of(child: Task) -> Any:
    """What a finished call returned."""
    return dict(child.writes).get(RETURN)


def refuse_given_up(task: Task) -> None:
    """Let nothing begin for which nobody waits: the next run begins it, too.

    Raises:
        GraphAbandoned: the run of the task, or one around it, was given up.
    """
    if any(run_of(each).given_up for each in outwards(task)):
        raise GraphAbandoned


# -- what a call is known by -----------------------------------------------------------------------


def runs_once(parent: Task) -> bool:
    """Whether nobody will ever look for a task's calls by what they are: it is not resumed or tried
    again, nor is anything around it. Then the work of telling its calls apart is saved."""
    run = parent.run
    return (
        run.thread.saver is None
        and run.parent is None
        and not parent.node.policies.retry
        and parent.path[-1] is not True
    )


def function_name(function: Callable[..., Any]) -> str:
    """Module and qualified name of the function, or of the object's class, that is called in the
    end. In a main module: as others would import it, so that what a script has begun can go on in a
    worker that imports the script."""
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    module = named.__module__
    if module in ("__main__", "__mp_main__"):
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:  # python -m
            module = spec.name
        elif file:  # python path/to/script.py
            module = splitext(basename(file))[0]
    return f"{module}:{named.__qualname__}"


def arguments_digest(node: CompiledNode, arguments: Arguments) -> str:
    """A hash of what a call is given, and of what its partial, method or callable object holds.
    What has no canonical key counts by its type alone."""
    held: list[Any] = []
    function = node.source
    while isinstance(function, partial):
        held += (list(function.args), function.keywords)
        function = function.func
    if isinstance(function, MethodType):
        held.append(function.__self__)
    elif not isinstance(function, FunctionType):
        held.append(function)
    return digest_arguments(held, *arguments)


def digest_arguments(
    held: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """A hash of arguments and of what a function holds. What has no canonical key counts by its
    type alone."""
    try:
        return canonical_key([held, args, kwargs])
    except Exception:  # a lock, a client, or state that another thread is changing
        each = [*map(_key, held), *map(_key, args)]
        return canonical_key([each, {name: _key(value) for name, value in kwargs.items()}])


def _key(value: Any) -> str:
    try:
        return canonical_key(value)
    except Exception:
        return f"{type(value).__module__}.{type(value).__qualname__}"


# -- what is recorded ------------------------------------------------------------------------------


def build_record(run: Run, child: Task) -> Save | None:
    """How a call ended, as the journal takes it; None if nothing is to be stored now."""
    marks: dict[str, Any] = {}
    if child.finished and not child.node.recorded:
        return None
    if child.finished:
        marks = {RETURN: result_of(child)}
        if run.ledger.of(child.id).error is not None:
            marks[ERROR] = None
        if child.answers:
            marks[RESUME] = child.answers
    else:
        marks = run.ledger.marks_of(child)
    if not marks or run.thread.saver is None:
        return None
    if run.settings.durability == "exit":
        run.commits.put_off([run.commits.encode_marks(child, marks)])
        return None
    # No checkpoint is stored beside which the record could stand.
    if child.beside is None:
        return None
    return Save(None, [run.commits.encode_marks(child, marks)], child.beside)
