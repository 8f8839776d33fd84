"""Reads a stored thread as a recording. Nothing is run here."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ..checkpoint.base import (
    POST_TASK_ID,
    RETURN,
    UNDOING,
    UNDONE,
    BaseCheckpointSaver,
    CheckpointTuple,
    address,
    coordinates,
)
from ..checkpoint.errors import StoredError
from ..checkpoint.serde import Serializer
from ..checkpoint.serde.json_form import to_json
from ..pregel.app import Pregel, check_compiled
from ..pregel.names import (
    END,
    SPENT,
    START,
    TASKS,
    is_routing,
    split_join,
    triggered_node,
)
from ..pregel.program.program import Program
from ..pregel.run.ledger import TaskRecord
from ..pregel.run.snapshots import View, key_of, list_nested, view
from ..pregel.task.interrupts import identity_of
from ..pregel.task.task import Task
from ..pregel.types import AnyConfig, Send
from .origins import find_ended, find_start, kept_back, view_within
from .recording import End, RecordedRun, RecordedStep, RecordedTask, Recording


class ThreadError(ValueError):
    """A stored thread cannot be made into a recording; the text says why."""


def read_thread(app: Pregel[Any, Any, Any, Any], config: AnyConfig) -> Recording:
    """Return the history of a stored thread as a recording.

    Args:
        app: the graph that ran the thread, with its checkpointer.
        config: names the thread; with a checkpoint id, the line that leads to that checkpoint.

    Raises:
        ThreadError: nothing is stored, or not all of it: its first checkpoints were pruned, it was
            stored with `durability="exit"`, it was edited by `update_state`, or a run of it began
            with a `Command`.
    """
    check_compiled(app)
    saver = app.checkpointer
    if not isinstance(saver, BaseCheckpointSaver):
        raise ThreadError("the graph has no checkpointer: app.copy({'checkpointer': saver})")
    return _ThreadReader(app, saver, config).read()


class _Level(NamedTuple):
    """The graph whose checkpoints are read, and their namespace."""

    graph: Any
    ns: str


class _ThreadReader:
    def __init__(self, app: Pregel, saver: BaseCheckpointSaver, config: AnyConfig) -> None:
        self.app = app
        self.saver = saver
        self.thread_id, _, self.wanted = coordinates(config)  # type: ignore[arg-type]
        self.serde: Serializer = app.serde
        self.calls: dict[str, Any] = {}

    def read(self) -> Recording:
        level = _Level(self.app, "")
        found = self._list(level)
        if not found:
            raise ThreadError(f"nothing is stored of thread {self.thread_id!r}")
        parts = _split_runs(_line(found, self.wanted))
        return Recording(
            self.app.name, tuple(self._run(level, part) for part in parts), self.calls
        )

    def _list(self, level: _Level) -> list[CheckpointTuple]:
        """The checkpoints of a graph as this version of it has them, the newest first."""
        stored = self.saver.list(address(self.thread_id, level.ns))
        return [level.graph._as_mine(each) for each in stored]

    def _run(self, level: _Level, line: list[CheckpointTuple]) -> RecordedRun:
        given = self._input(line[0])
        program = level.graph.program
        last = view_within(program, line[-1], _by_id(line))
        end = _end_of(last)
        # What only some tasks of its last step have done, nobody could make stop there again.
        steps, held = self._steps(level, line, open_step=end != "stopped")
        state = last.machine.output(self.app.program.stream)
        start = _read_start(program, line[0])
        posts = tuple(
            [found.metadata.get("step"), key, self._form(value)]
            for found in line
            for task, key, value in found.pending_writes or ()
            if task == POST_TASK_ID
        )
        return RecordedRun(self._form(given), steps, end, self._form(state), start, held, posts)

    def _input(self, first: CheckpointTuple) -> Any:
        """What a run was given whose first checkpoint this is."""
        if first.metadata.get("source") != "input":
            raise ThreadError(
                f"thread {self.thread_id!r}: the first checkpoints of a run are not stored "
                '(durability="exit", or they were pruned)'
            )
        values, names = first.checkpoint["channel_values"], self.app.program.inputs
        if not isinstance(names, str):
            return {name: values[name] for name in names if name in values}
        if names not in values:
            raise ThreadError(
                f"thread {self.thread_id!r}: a run that begins with a Command cannot be recorded"
            )
        return values[names]

    def _steps(
        self, level: _Level, line: list[CheckpointTuple], *, open_step: bool = True
    ) -> tuple[tuple[RecordedStep, ...], tuple[int, ...]]:
        """The supersteps between these checkpoints, and the one that the last leads to, if any of
        its tasks is recorded; and the numbers of those that are `held`.

        Args:
            open_step: False leaves out the one that the last leads to.
        """
        for before, after in itertools.pairwise(line):
            _check_neighbours(self.thread_id, before, after)
        program = level.graph.program
        known, ready = _by_id(line), program.starts_ready
        steps: list[RecordedStep] = []
        held: list[int] = []
        for number, found in enumerate(line):
            seen = view_within(program, found, known)
            is_last = number == len(line) - 1
            if ready and not is_last and kept_back(program, found, line[number + 1]):
                held.append(len(steps))
            step = tuple(self._tasks(level, seen, found, known, is_last=is_last))
            if step and (open_step or not is_last):
                steps.append(step)
        return tuple(steps), tuple(held)

    def _tasks(
        self,
        level: _Level,
        seen: View,
        found: CheckpointTuple,
        line: Mapping[str, CheckpointTuple],
        *,
        is_last: bool,
    ) -> Iterator[RecordedTask]:
        self._note_calls(seen)
        failed = is_last and any(_record_of(seen, task).error is not None for task in seen.tasks)
        ready = level.graph.program.starts_ready
        ended = find_ended(seen, found) if ready and not is_last else None
        for task in seen.tasks:
            known = _record_of(seen, task)
            if task.name == START or (ended is not None and task.id not in ended):
                continue
            if is_last and not (known.error if failed else known.wrote or known.interrupts):
                continue  # not begun, or cut off by the failure of another
            yield self._task(level, task, known, find_start(task, found, line))

    def _task(
        self, level: _Level, task: Task, known: TaskRecord, found: CheckpointTuple
    ) -> RecordedTask:
        writes = known.writes if known.finished else []
        nested = list(self._nested(level, task, found))
        steps: list[RecordedStep] = []
        held: list[int] = []
        left: list[RecordedTask] = []
        for inner, line in nested:
            if known.finished:
                left += self._left(inner, line)
            more, numbers = self._steps(inner, line)
            held += (len(steps) + number for number in numbers)
            steps += more
        return RecordedTask(
            node=task.name,
            input=self._form(task.input),
            writes=tuple([key, self._form(value)] for key, value in writes if _is_state(key)),
            goto=tuple(map(self._form, destinations(writes))) if known.finished else (),
            questions=tuple(self._questions(known)),
            ids=tuple(
                map(identity_of, [*(each.id for each in known.interrupts), *_asked_before(known)])
            ),
            id=task.id,
            error="" if known.error is None else _text_of(known.error),
            steps=tuple(steps),
            from_start=tuple(
                name for inner, line in nested for name in _read_start(inner.graph.program, line[0])
            ),
            held=tuple(held),
            left=tuple(left),
        )

    def _left(self, level: _Level, line: list[CheckpointTuple]) -> Iterator[RecordedTask]:
        """What was pending when a nested graph ended: one of them has left it."""
        known = _by_id(line)
        seen = view_within(level.graph.program, line[-1], known)
        for task in seen.tasks:
            record = _record_of(seen, task)
            if not (record.wrote or record.interrupts):  # else it is a task of the last step
                yield self._task(level, task, record, find_start(task, line[-1], known))

    def _note_calls(self, seen: View) -> None:
        """Note what is recorded of calls and effects of the tasks."""
        tasks = {task.id for task in seen.tasks}
        for id, known in seen.ledger.items():
            writes = dict(known.writes)
            ended = RETURN in writes or known.error is not None
            if id in tasks or not (ended or known.interrupts):
                continue
            found = self.calls[id] = {}
            if known.interrupts:
                found["asks"] = [self._form(each.value) for each in known.interrupts]
            if known.error is not None:
                found["error"] = _text_of(known.error)
            elif RETURN in writes:
                found["result"] = self._form(writes[RETURN])

    def _questions(self, known: TaskRecord) -> Iterator[Mapping[str, Any]]:
        for question in known.interrupts:
            asked = {"asks": self._form(question.value)}
            if question.id in known.answers:
                asked["answer"] = self._form(known.answers[question.id])
            yield asked
        for id in _asked_before(known):
            yield {"answer": self._form(known.answers[id])}

    def _nested(
        self, level: _Level, task: Task, found: CheckpointTuple
    ) -> Iterator[tuple[_Level, list[CheckpointTuple]]]:
        """The graphs that the task ran beside this checkpoint, each with its own checkpoints."""
        base = coordinates(found.config)[2]
        program = level.graph.program
        for _, child, ns in list_nested(program, level.ns, task.name, task.id, key_of(task)):
            inner = _Level(child, ns)
            mine = [
                each
                for each in self._list(inner)
                if each.metadata.get("parents", {}).get(level.ns) == base
            ]
            if mine:
                yield inner, _line(mine, None)

    def _form(self, value: Any) -> Any:
        return to_json(value, self.serde)


def _read_start(program: Program, first: CheckpointTuple) -> tuple[str, ...]:
    """Where START led in the run whose first checkpoint this is."""
    seen = view(program, first)
    starts = [_record_of(seen, task) for task in seen.tasks if task.name == START]
    steps = [step for known in starts for step in destinations(known.writes)]
    return tuple(step.node if isinstance(step, Send) else step for step in steps)


def _text_of(error: BaseException) -> str:
    """An error in a recording, the same whether its class could be stored or not."""
    if isinstance(error, StoredError):
        return f"{error.type_name.rpartition('.')[2]}: {error.message}"
    return f"{type(error).__name__}: {error}"


def _asked_before(known: TaskRecord) -> list[str]:
    """The ids of questions that a task had an answer to when it asked its last ones."""
    shown = [question.id for question in known.interrupts]
    return [id for id in known.answers if id not in shown]


def _record_of(seen: View, task: Task) -> TaskRecord:
    return seen.ledger.of(task.id)


def _by_id(line: Iterable[CheckpointTuple]) -> dict[str, CheckpointTuple]:
    return {each.checkpoint["id"]: each for each in line}


def _line(found: Iterable[CheckpointTuple], wanted: str | None) -> list[CheckpointTuple]:
    """The checkpoints that lead to one, else to the newest; the oldest first."""
    line: list[CheckpointTuple] = []
    for each in found:  # the newest first
        here = coordinates(each.config)[2]
        if wanted is None or here == wanted:
            line.append(each)
            parent = each.parent_config
            wanted = coordinates(parent)[2] if parent else ""
    return line[::-1]


def _split_runs(line: list[CheckpointTuple]) -> Iterator[list[CheckpointTuple]]:
    """The checkpoints of each input."""
    part: list[CheckpointTuple] = []
    for found in line:
        source = found.metadata.get("source")
        if source in ("update", "fork"):
            undone = UNDOING in found.metadata or UNDONE in found.metadata
            raise ThreadError(
                f"thread {coordinates(found.config)[0]!r} was "
                f"{'undone' if undone else 'changed by update_state'} at step "
                f"{found.metadata.get('step')}, which cannot be recorded: name a checkpoint before"
            )
        if source == "input" and part:
            yield part
            part = []
        part.append(found)
    if part:
        yield part


def _check_neighbours(thread: str, before: CheckpointTuple, after: CheckpointTuple) -> None:
    one, two = before.metadata.get("step", -1), after.metadata.get("step", -1)
    if two != one + 1:
        raise ThreadError(
            f"thread {thread!r}: the checkpoints between step {one} and step {two} are not stored "
            '(durability="exit", or they were pruned)'
        )


def _end_of(seen: View) -> End:
    """How a run stands whose newest checkpoint this is."""
    records = [_record_of(seen, task) for task in seen.tasks]
    if any(known.error is not None and not known.routed for known in records):
        return "failed"
    if any(known.waiting for known in records):
        return "paused"
    return "stopped" if seen.tasks else "done"


def _is_state(channel: str) -> bool:
    return channel not in (TASKS, SPENT) and not is_routing(channel)


def destinations(writes: Iterable[tuple[str, Any]]) -> Iterator[str | Send]:
    """Where a node's writes lead; END if nowhere."""
    found = False
    for channel, value in writes:
        if channel == TASKS:
            sends = value if isinstance(value, list) else [value]
            yield from sends
            found = found or bool(sends)
            continue
        joined = split_join(channel)
        target = joined[1] if joined is not None else triggered_node(channel)
        if target is not None:
            found = True
            yield target
    if not found:
        yield END
