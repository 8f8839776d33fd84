"""One scheduled execution of one node in one superstep: its identity, its place in the order, and
its outcome.

A task is a plain record. Ids, config and runtime are built only when somebody looks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from operator import attrgetter
from time import perf_counter
from types import MappingProxyType
from typing import Any, Literal

from ...checkpoint.base import TaskWrites
from ...checkpoint.serde import Blob
from ..names import (
    CHECKPOINT_NS,
    HANDLER_PATH,
    NODE,
    PATH,
    PUSH,
    STEP,
    TRIGGERS,
    call_text,
    child_ns,
    graph_keys,
    path_text,
)
from ..program.program import CompiledNode, Reader
from ..program.writes import Pair
from ..running import EffectRecord, PendingSpend, SleepRequest, TaskPlace
from ..runtime import ExecutionInfo, NodeError, Runtime, find_server_info
from ..steps import Steps
from ..types import Interrupt, RunnableConfig, StreamMode, StreamWriter
from .attempt_state import AttemptState, Pause
from .context import TaskContext, TaskLedger
from .deadline import ChildDeadline, Deadline, ThreadDeadline
from .ids import task_id

NO_ANSWERS: Mapping[str, Any] = MappingProxyType({})


class Task:
    """One execution of `node`.

    Attributes:
        order: its path; of a Send its index: paths are made when asked for (benchmark P8).
        input: what the node is called with.
        writes: (channel, value) pairs of a successful attempt; a failed one leaves none.
        error: what the last attempt raised, or None.
        finished: it ran to its end, so that `writes` count. Exactly one of finished, pause and
            error is set on a task that has ended.
        pause: what it waits for, or None.
        recorded: its writes are in the store already.
        run: the call it belongs to; None on a machine without one, where nothing can run it.
        lost: another racer has won, so that it does not go on.
        restored: its outcome was found in store or cache, so it was not executed.
        cause: for an error handler, the task that failed.
        deadline: that of the current attempt, or None.
        noted: `current`, or None as long as nobody has asked for it: few attempts need one.
        answers: those that it was given, by question; None until they are asked for.
        passed_on: answers that graphs inside it took. They keep these; once the task has finished
            so does its record.
        beside: of a `@task` call, the checkpoint from which its superstep runs; `of_node` the node
            that makes it; `called` which of the things it is that its callers have started.
        spans: began, took, began, took, ... of the attempts that are not recorded yet; only kept
            for a checkpointer.
    """

    # What every task has is a slot. What few tasks ever set is an attribute with a default here: a
    # task has a dict of its own only once one of these is set (benchmarks P1 and P8).
    __slots__ = (
        "__dict__", "_id", "finished", "input", "node", "noted", "order", "recorded", "run", "send",
        "spans", "writes",
    )  # fmt: skip

    answers: dict[str, Any] | None = None
    beside: str | None = None
    called: tuple[int, ...] = ()
    callers: tuple[str, ...] = ()
    cause: Task | None = None
    deadline: Deadline | None = None
    error: BaseException | None = None
    lost: bool = False
    of_node: str = ""
    passed_on: Mapping[str, Any] = NO_ANSWERS
    pause: Pause | None = None
    restored: bool = False

    def __init__(
        self,
        node: CompiledNode,
        order: tuple[Any, ...] | int,
        value: Any,
        run: TaskContext[Task] | None = None,
        send: Any = None,
    ) -> None:
        self.node: CompiledNode = node
        self.order: tuple[Any, ...] | int = order
        self.input: Any = value
        self.writes: list[Pair] = []
        self.finished: bool = False
        self.recorded: bool = False
        self.run: TaskContext[Task] = run  # type: ignore[assignment]
        self.send: Any = send
        self.noted: AttemptState | None = None
        self.spans: tuple[float, ...] = ()
        self._id: str | None = None

    @property
    def path(self) -> tuple[Any, ...]:
        """Its place in the order of its superstep."""
        order = self.order
        return order if order.__class__ is tuple else (PUSH, order, False)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def triggers(self) -> tuple[str, ...]:
        """The channels that can make it run; `("__pregel_push",)` for a Send."""
        return (PUSH,) if self.path[0] == PUSH else self.node.triggers

    @property
    def paused(self) -> bool:
        """Whether it waits for answers, or for a nested graph that stopped at a breakpoint."""
        return self.pause is not None

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        """The questions that it waits on."""
        return () if self.pause is None else self.pause.questions

    @property
    def wake_at(self) -> datetime | None:
        """When it runs again without an answer, if it sleeps."""
        return None if self.pause is None else self.pause.wake_at

    @property
    def id(self) -> str:
        """The same whenever the same checkpoint runs again, and different for every other task."""
        if self._id is None:
            machine = self.run.machine
            checkpoint_id = machine.checkpoint_id or machine.identify()
            carried = machine.carried.get(self.path) if machine.carried else None
            self._id = (
                task_id(checkpoint_id, self.run.ns, machine.step, self)
                if carried is None
                else carried.id
            )
        return self._id

    def lose(self) -> None:
        """Note that another racer has won."""
        self.lost = True

    def take_place_of(self, failed: Task) -> None:
        """Make it the task of the error handler of a failed one."""
        self.cause = failed

    def show_input(self, input: Any) -> None:
        """Show what it was called with, where it is only looked at."""
        self.input = input

    def carry_id(self, id: str) -> None:
        """Give it an id that is not made of its place."""
        self._id = id

    @property
    def ns(self) -> str:
        """Its namespace: where graphs that it runs keep their checkpoints."""
        return child_ns(self.run.ns, self.name, self.id)

    @property
    def position(self) -> tuple[int, ...]:
        """See `TaskPlace`."""
        return (*self.run.thread.position, self.run.machine.step, *self.called)

    @property
    def place(self) -> TaskPlace:
        """Where it stands among all that its thread does."""
        nodes = (*graph_keys(self.run.ns), self.of_node or self.name)
        return TaskPlace(self.position, len(self.run.ledger), nodes)

    @property
    def path_text(self) -> str:
        """Its path as one string that sorts like the path."""
        node = self.node
        if self.order == node.path:
            return node.path_text
        return call_text(self.path, node.name) if self.path[-1] is True else path_text(self.path)

    def known_channels(self) -> Collection[str]:
        """The channels its writers may write to."""
        return self.run.program.channels

    def known_nodes(self) -> Iterable[str]:
        """The nodes its Sends may go to."""
        return self.run.program.nodes

    def preview(self, reader: Reader) -> dict[str, Any]:
        """The state as it will be if this task's writes so far are applied, and nobody else's."""
        return self.run.machine.preview(reader, self.writes)

    # -- what the running node may hold ------------------------------------------------------------

    @property
    def config(self) -> RunnableConfig:
        """The config as the node is to see it."""
        observing = self.run.observing
        listener = None if observing is None else observing.listener
        return self.own_config() if listener is None else listener.config_of(self)

    def own_config(self) -> RunnableConfig:
        """The run's config with this task's tags, metadata and namespace."""
        around, node, path, ns = self.run.settings.config, self.node, self.path, self.ns
        own = {k: v for k, v in around.get("configurable", {}).items() if k != "checkpoint_id"}
        tags = around.get("tags", ())
        metadata = dict(around.get("metadata", {}))
        if "thread_id" in own:
            metadata["thread_id"] = own["thread_id"]
        metadata |= {
            **node.metadata, STEP: self.step, NODE: self.name, TRIGGERS: self.triggers,
            PATH: path if path[-1] is True else path[:3],  # True: called with `@task`
            CHECKPOINT_NS: ns,
        }  # fmt: skip
        return {
            **around,
            "metadata": metadata,
            "tags": [*tags, *(tag for tag in node.tags if tag not in tags)],
            "run_name": self.name,
            "configurable": {**own, "checkpoint_ns": ns},
        }

    @property
    def writer(self) -> StreamWriter:
        """Sends a custom event to whoever reads the run."""
        return self.run.writer_of(self)

    @property
    def store(self) -> Any:
        """The run's store."""
        return self.run.settings.store

    @property
    def previous(self) -> Any:
        """What the last run of an entrypoint saved on this thread."""
        return self.run.previous()

    @property
    def node_error(self) -> Any:
        """For error handlers: what went wrong; None elsewhere."""
        if self.cause is None or self.cause.error is None:
            return None
        return NodeError(self.cause.name, self.cause.error)

    @property
    def is_handled(self) -> bool:
        """Whether it has failed, and an error handler takes its place."""
        return self.node.handler is not None and isinstance(self.error, Exception)

    @property
    def nearest_deadline(self) -> Deadline | None:
        """The deadline of its attempt, or of the nearest attempt around it; or None."""
        return self.run.deadline if self.deadline is None else self.deadline

    @property
    def abandoned(self) -> bool:
        """Whether its attempt, or one around it, was given up: then nobody waits for it."""
        deadline = self.nearest_deadline
        return deadline is not None and deadline.abandoned

    def heartbeat(self) -> None:
        """Tell an idle timeout that the node is alive."""
        deadline = self.nearest_deadline
        if deadline is not None:
            deadline.touch(heartbeat=True)

    @property
    def runtime(self) -> Runtime[Any]:
        """What the node gets as `runtime`; the same object for the whole attempt."""
        current = self.current
        if current.runtime is None:
            run = self.run
            current.runtime = Runtime(
                context=run.settings.context,
                store=run.settings.store,
                stream_writer=self.writer,
                previous=self.previous,
                control=run.settings.control,
                heartbeat=self.heartbeat,
                idempotency_key=self.id,
                joined=run.machine.find_joined(self.cause or self) if run.program.joins else (),
                server_info=find_server_info(run.settings.config),
                execution_info=ExecutionInfo(
                    checkpoint_id=run.machine.checkpoint_id,
                    checkpoint_ns=self.ns,
                    task_id=self.id,
                    thread_id=run.thread.thread_id,
                    run_id=run.thread.run_id,
                    node_attempt=self.attempt,
                    node_first_attempt_time=current.first_attempt_time(),
                ),
            )
        return current.runtime

    @property
    def attempt(self) -> int:
        """Which try this is, from 1."""
        return 1 if self.noted is None else self.noted.number

    def known_answers(self) -> dict[str, Any]:
        """The answers it was given, by question; those of graphs inside that save nothing, too."""
        if self.answers is None:
            ledger = self.run.ledger
            # An id is made only where it can find something (benchmark P29).
            self.answers = ledger.known(self) if ledger else {}
        return self.answers

    def find_answers(self) -> TaskAnswers | None:
        """Return the answers to its questions; None if none can ever come: no graph around it
        saves, or the outermost does not, and only that can be called again."""
        around = [*outwards(self)]
        if not around[-1].run.stores:
            return None
        # A graph that saves nothing starts over with its task, so the answers must be with the
        # nearest graph around that saves.
        inside = [*takewhile(lambda task: not task.run.stores, around)]
        return TaskAnswers(around[len(inside)], tuple(task.run.ledger for task in inside))

    @property
    def edited(self) -> bool:
        """Whether the thread was edited since its questions were shown."""
        return self.run.ledger.of(self.id).edited

    def listens(self, mode: StreamMode) -> bool:
        """Whether somebody reads this stream mode of the run."""
        return any(mode in stream.modes for stream in self.run.output.streams)

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk, a sign of life, to all who read this stream mode."""
        deadline = self.nearest_deadline
        if deadline is not None:
            deadline.touch()
        for stream in self.run.output.streams:
            stream.emit(mode, data)

    @property
    def executor(self) -> Any:
        """Where its `@task` calls run that name no executor; None for the driver's threads."""
        return self.run.settings.executor

    def call(self, node: CompiledNode, arguments: Any) -> Any:
        """Start a `@task` call; its future."""
        return self.run.calls.start(self, node, arguments)

    def begin_effect(self, kind: str, key: str, *, awaits: bool) -> EffectRecord:
        """The record of an effect."""
        return self.run.calls.begin_effect(self, kind, key, awaits=awaits)  # type: ignore[no-any-return]

    def sleep(self, request: SleepRequest, *, awaits: bool) -> Steps[None]:
        """The steps of a sleep."""
        return self.run.calls.sleep(self, request, awaits=awaits)  # type: ignore[no-any-return]

    def begin_spend(self, *, awaits: bool) -> PendingSpend | None:
        """A call that spends of a budget; None if no budget counts it."""
        return self.run.calls.begin_spend(self, awaits=awaits)  # type: ignore[no-any-return]

    # -- what an executor wants to know ------------------------------------------------------------

    @property
    def step(self) -> int:
        """The number of its superstep."""
        return self.run.machine.step

    @property
    def input_kind(self) -> Literal["state", "input", "arguments"]:
        """What `input` is: the node's view of the state, what a `Send` brought, or the arguments of
        a `@task` call."""
        if self.path[-1] is True:
            return "arguments"
        return "state" if self.send is None else "input"

    @property
    def payload_cache(self) -> dict[Any, Any]:
        """What executors keep for all tasks of the run, by executor."""
        return self.run.payload_cache

    def is_cut_short(self) -> bool:
        """Whether its run, or one around it, was cut short: then nobody waits for it."""
        return any(task.run.cancelled for task in outwards(self))

    @property
    def current(self) -> AttemptState:
        """What the current attempt has done so far."""
        if self.noted is None:
            self.noted = AttemptState()
        return self.noted

    # -- how it goes -------------------------------------------------------------------------------

    def begin_attempt(self) -> None:
        """Forget what a failed attempt did: its writes, and how far its counters had come."""
        self.discard()
        self.noted = self.current.begin_anew(self.attempt + 1)

    def end_result(self, result: Any) -> None:
        """Note that what follows is not written because of the result."""
        if self.current.result is None:
            self.current.result = result, len(self.writes)

    def finish(self) -> None:
        """Mark it as finished: its writes count."""
        self.finished = True

    def discard(self) -> None:
        """Drop what it has written, and that it has finished."""
        self.writes = []
        self.finished = False

    def fail(self, error: BaseException) -> None:
        """Let it end with an error, or with a signal that is no pause."""
        self.error = error
        self.finished = False
        self.pause = None

    def pause_with(self, pause: Pause) -> None:
        """Let it end with questions, or at a breakpoint of a graph inside it."""
        self.pause = pause

    def identify_writes(self, writes: list[Pair]) -> None:
        """Take its own writes again, in which messages have been given ids."""
        self.writes = writes

    def restore(self, writes: list[Pair]) -> None:
        """Give it the writes with which it finished earlier, found in the store or a cache."""
        self.writes = writes
        self.finished = self.restored = True

    def restore_end(self, end: BaseException | Pause) -> None:
        """Give it the failure or the pause with which it ended earlier: it does not run again."""
        self.restored = True
        if isinstance(end, Pause):
            self.pause = end
        else:
            self.error = end

    def begin_beside(self, checkpoint_id: str | None, caller: Task) -> None:
        """Begin it as a `@task` call that its caller makes in a superstep from this checkpoint."""
        self.beside, self.callers = checkpoint_id, (*caller.callers, caller.id)
        self.of_node = caller.of_node or caller.name
        self.called = (*caller.called, caller.current.count_start())
        above = caller.nearest_deadline
        # A parent that was abandoned meanwhile starts nothing new.
        if above is not None:
            above.check()
            self.deadline = ChildDeadline(above=above)

    def pass_on(self, question: str, answer: Any) -> None:
        """Note that a graph inside it has taken this answer."""
        self.passed_on = {**self.passed_on, question: answer}

    def inherit_answers(self, before: Task) -> None:
        """Go on with what the same call was answered in an earlier attempt of its parent."""
        self.answers = dict(before.answers or {})

    def note_span(self, began: float) -> None:
        """Note when an attempt began, and how long it took.

        Args:
            began: what `perf_counter` said then.
        """
        self.spans = (*self.spans, began + self.run.thread.epoch, perf_counter() - began)

    def mark_recorded(self) -> None:
        """Note that the store has its writes."""
        self.recorded = True

    def to_record(self, pairs: list[tuple[str, Blob]]) -> TaskWrites:
        """Its record for a checkpointer: these pairs, and the spans that are not stored yet."""
        spans, self.spans = self.spans, ()
        return TaskWrites(self.id, self.path_text, pairs, spans)

    # -- attempts that may be abandoned ------------------------------------------------------------

    def enter_thread(self) -> ThreadDeadline:
        """Let the attempt run on a thread, for which an event loop waits. Returns the deadline by
        which the attempt is abandoned when the loop waits no longer."""
        own = self.deadline.own if isinstance(self.deadline, ThreadDeadline) else self.deadline
        self.deadline = deadline = ThreadDeadline(own, self.run.deadline)
        return deadline

    def detach(self, deadline: Deadline) -> Task:
        """A copy for an attempt that may be abandoned: nothing it does later reaches the task."""
        mine = Task(self.node, self.order, self.input, self.run, self.send)
        mine.__dict__.update(self.__dict__)
        mine._id, mine.spans = self._id, self.spans
        # These are made on demand: the copy must find the task's, not make its own.
        mine.deadline, mine.answers = deadline, dict(self.known_answers())
        mine.noted = self.current.begin_anew(self.attempt)
        return mine

    def take_attempt(self, detached: Task) -> None:
        """Make what the attempt of a detached copy has done the task's own."""
        self.answers, self.passed_on = detached.answers, detached.passed_on
        self.noted, self.writes, self.finished = detached.noted, detached.writes, detached.finished

    def take_outcome(self, detached: Task) -> None:
        """Take over how a detached copy has ended."""
        self.take_attempt(detached)
        self.error, self.pause, self.restored = detached.error, detached.pause, detached.restored
        self.spans = detached.spans

    def __repr__(self) -> str:
        return f"Task({self.name!r}, path={self.path!r})"


@dataclass(slots=True, eq=False)
class TaskAnswers:
    """The answers to the questions of one task, as `running.AnswerLookup`.

    Args:
        holder: the task that keeps them: this one, or the nearest one around it whose graph saves.
        inside: those of the runs between the holder and the task, the innermost first.
    """

    _holder: Task
    _inside: tuple[TaskLedger[Task], ...]

    @property
    def given(self) -> dict[str, Any]:
        """The answers that the holder was given."""
        return self._holder.known_answers()

    def take(self, question: str) -> tuple[Any, ...]:
        """See `Ledger.take`."""
        return self._holder.run.ledger.take(question, self._holder, self._inside)

    def brought(self) -> dict[str, Any]:
        """See `Ledger.brought_for`."""
        return self._holder.run.ledger.brought_for(self._holder)

    @property
    def asked(self) -> Sequence[str]:
        """The ids of the questions that the holder has asked last."""
        ledger = self._holder.run.ledger
        if not ledger:
            return ()
        return [question.id for question in ledger.of(self._holder.id).interrupts]

    def reject(self, question: str) -> None:
        """See `Ledger.reject`."""
        self._holder.run.ledger.reject(question)


def outwards(task: Task | None) -> Iterator[Task]:
    """Yield a task and those around it, whose graphs run it: the innermost first."""
    while task is not None:
        yield task
        task = task.run.parent


def in_path_order(tasks: Sequence[Task]) -> list[Task]:
    """Tasks in the order in which writes are applied: updates from outside, nodes by name, Sends by
    index."""
    sends = [task for task in tasks if task.order.__class__ is int]
    rest = [task for task in tasks if task.order.__class__ is not int]
    if sends and any(task.path[0] == PUSH for task in rest):
        # The handler of a failed Send has its path, and stands between Sends that have an index.
        return sorted(tasks, key=_path)
    return sorted(rest, key=_order) + sorted(sends, key=_order)


# INPUT < PULL < PUSH as texts, so paths sort as they are.
_path = attrgetter("path")
# The same order where all are paths, or all are indexes; no path has to be made (benchmark P8).
_order = attrgetter("order")


def handler_of(task: Task) -> Task:
    """The task of the error handler that takes a failed one's place in its superstep."""
    assert task.node.handler is not None
    # Behind the path of the failed task: its writes are applied in that one's place.
    path = (*task.path[:3], HANDLER_PATH, False)
    handler = Task(task.node.handler, path, task.input, task.run)
    handler.take_place_of(task)
    return handler
