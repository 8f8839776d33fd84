"""`why`: from a value in a stored state to the tasks that made it, and to what these had read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..channels.base import MISSING, check_kind
from ..checkpoint.base import CheckpointTuple, address, coordinates
from ..pregel.app import Pregel
from ..pregel.drivers.waits import WAITS
from ..pregel.errors import nearest
from ..pregel.names import NS_END, START, child_ns
from ..pregel.run.ledger import Ledger, TaskRecord
from ..pregel.run.snapshots import find_whole, list_nested
from ..pregel.schedule.slots import find_origin, find_under_way
from ..pregel.steps import run_steps
from ..pregel.types import AnyConfig, Send
from ..testing.fakes import find_node
from ..testing.recording import RecordedStep
from ..testing.thread_reader import destinations, read_thread
from ..visualize.group import group
from ..visualize.trace.diff import is_same
from ..visualize.trace.reader import read_snapshot, read_trace
from ..visualize.trace.records import TraceStep, TraceTask
from ..visualize.trace.values import count_noun, format_value, sanitize

LONGEST: Final = 120
"""Characters that are shown of a value."""
_SOURCES: Final = {"input": "the input", "update": "an update", "fork": "a fork"}


@dataclass(kw_only=True)
class Cause:
    """The step that gave a value what it is.

    Attributes:
        path: the value, such as "order.total" or "messages.-1".
        value, before: it after that step and before it, as short texts; `before` is "" if it was
            not there.
        step: the step's number; None if it is not known: the first checkpoints were pruned, or the
            value was there from the beginning.
        checkpoint: the id of the checkpoint that the step made.
        source: what made it: "input", "loop" (nodes), "update" or "fork".
        tasks: those that wrote the value in that step, each with its input, its result, what it
            asked, and how long its attempts took; those that wrote the key if the value itself is
            in no write.
        answers: what they asked and were answered, as short texts.
        read: what these tasks had read or were sent, each with its own cause; first, of a task that
            ran a nested graph, the value there; last, of a value that a reducer has made of theirs
            and the one before, that one.
    """

    path: str
    value: str
    before: str = ""
    step: int | None = None
    checkpoint: str | None = None
    source: str = ""
    tasks: tuple[TraceTask, ...] = ()
    answers: tuple[tuple[str, str], ...] = ()
    read: list[Cause] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """The cause in one line."""
        was = f" (was {self.before})" if self.before else ""
        if self.step is None:
            return f"{self.path} = {self.value}: from before the first checkpoint that is kept"
        return f"{self.path} = {self.value}{was}: step {self.step}, {self.by}"

    @property
    def by(self) -> str:
        """Who did it: nodes, or the input, an update or a fork."""
        nodes = dict.fromkeys(each.name for each in self.tasks if each.name != START)
        return ", ".join(nodes) or _SOURCES.get(self.source, self.source)

    def details(self) -> Iterator[str]:
        """Yield what each task did, in lines."""
        for task in self.tasks:
            if task.name == START:
                continue
            number = len(task.spans)
            times = f", {count_noun(number, task.noun)}" if number > 1 else ""
            yield f"{task.name}{times}: {task.input} → {task.result}"
        yield from (f"asked {asked}, answered {answer}" for asked, answer in self.answers)


@dataclass(frozen=True, repr=False)
class Why:
    """The causes of a value as a tree. Notebooks show it as text."""

    cause: Cause

    def draw_text(self) -> str:
        """Return the tree as lines of text."""
        return "\n".join(_lines(self.cause))

    def __repr__(self) -> str:
        return self.draw_text()


def why(
    app: Pregel[Any, Any, Any, Any], config: AnyConfig, path: str, *, depth: int = 3
) -> Why:
    """Return why a value in the state of a stored thread is what it is: the step that gave it this
    value, the tasks that wrote it there, and why what these had read was so, back to the input. Of
    a task that ran a nested graph, also the tasks inside.

    Why a node did not run says `why_not`.

    Args:
        app: the graph that ran the thread, with its checkpointer. It is only read.
        config: the thread; with a `checkpoint_id`, as it was then; with a `checkpoint_ns`, a nested
            graph's part of it.
        path: the value: keys, attributes and indexes joined by dots, such as "order.total" or
            "messages.-1.content".
        depth: how many generations of reads are followed.

    Raises:
        TypeError, ValueError: there is no such thread, or no such value; names the nearest.
    """
    check_kind("path", path, str, 'a text such as "order.total"')
    check_kind("depth", depth, int, "a number of generations")
    state = read_snapshot(app, config).values
    parts = _settle(state, path.split("."))
    root = Cause(path=path, value=_show(_find(state, parts, path)))
    _Search(app, config).find(root, parts, depth)
    return Why(root)


def why_not(app: Pregel[Any, Any, Any, Any], config: AnyConfig, node: str) -> str:
    """Return why a node did not run, or does not run now: where the nodes led that could have led
    to it, and what holds it back.

    Args:
        app: the graph that ran the thread, with its checkpointer. It is only read.
        config: the thread; with a `checkpoint_id`, the line that leads there.
        node: its name; in a nested graph its path, such as "research:search".

    Raises:
        ThreadError, ValueError: there is no such node, or the thread cannot be read as runs.
    """
    graph, name = find_node(app, node)
    around = node.split(NS_END)[:-1]
    leads = {edge.source for edge in graph.get_graph().edges if edge.target == name}
    lines: list[str] = []
    recording = read_thread(app, config)
    steps = [step for run in recording.runs for step in run.steps]
    here = None if around else config
    for where, ns, step in _steps_inside(app, steps, around):
        here = address(coordinates(config)[0], ns) if around else config  # type: ignore[arg-type]
        for task in step:
            if task.node == name:
                lines.append(f"{where}: it ran")
            elif task.node in leads:
                names = [each if isinstance(each, str) else "a Send" for each in task.goto]
                led = f"led to {', '.join(names) or 'nothing'}"
                if any("answer" not in question for question in task.questions):
                    led = "asks, and waits for the answer"
                lines.append(f"{where}: {task.node} {led}")
    now = f"{around[-1]} has not run" if here is None else app.explain(here)[name].why
    return "\n".join([*lines, f"now: {now}"])


def _steps_inside(
    graph: Pregel,
    steps: Sequence[RecordedStep],
    around: Sequence[str],
    where: str = "",
    ns: str = "",
) -> Iterator[tuple[str, str, RecordedStep]]:
    """The steps of a graph that is nested in these nodes: in words, its namespace, and the step."""
    for number, step in enumerate(steps, 1):
        place = f"{where}step {number}"
        if not around:
            yield place, ns, step
        for task in step:
            if around and task.node == around[0]:
                child = graph.program.nested[task.node]
                inside = child_ns(ns, task.node, task.id, stable=child.checkpointer is True)
                yield from _steps_inside(child, task.steps, around[1:], f"{place}, ", inside)


class _Search:
    """Looks for the causes of values in one graph's part of a thread, from the newest step to the
    oldest."""

    def __init__(self, app: Pregel, config: AnyConfig) -> None:
        self._app, self._config = app, config
        self._thread, self._ns, _ = coordinates(config)  # type: ignore[arg-type]
        self._graph = app.nested(self._ns)
        self._wanted: list[tuple[Cause, Sequence[str], int]] = []
        self._sent: list[tuple[Cause, str, int]] = []

    def find(self, cause: Cause, parts: Sequence[str], depth: int) -> None:
        """Complete a cause: look for what made its value."""
        self._wanted.append((cause, parts, depth))
        read_trace(self._app, self._config, self.see, texts=True)

    def see(self, step: TraceStep, before: Any, after: Any) -> None:
        """Look at a step, and the states before and after it."""
        if step.checkpoint is None:  # it has changed nothing yet
            return
        sent, self._sent = self._sent, []
        wanted, self._wanted = self._wanted, []
        for cause, node, depth in sent:
            cause.tasks = tuple(
                task for task, record in self._records(step) if node in _sent_to(record)
            )
            if cause.tasks:
                self._note(cause, step, before, depth)
            else:
                self._sent.append((cause, node, depth))
        for cause, parts, depth in wanted:
            old, new = _look(before, parts), _look(after, parts)
            if new is MISSING or (old is not MISSING and is_same(old, new)):
                self._wanted.append((cause, parts, depth))
                continue
            tasks = tuple(each for each in step.tasks if parts[0] in each.wrote)
            if step.source == "loop" and not tasks:  # the checkpoint before it was pruned
                continue
            cause.before, cause.tasks = "" if old is MISSING else _show(old), tasks
            reduced = bool(tasks) and not self._narrow(cause, step, parts[0], new)
            if step.source == "loop":
                for task in cause.tasks:
                    self._look_inside(cause, task, parts, new, depth)
            self._note(cause, step, before, depth)
            followed = {each.path for each in cause.read}
            if reduced and depth and cause.before and parts[0] not in followed:
                earlier = Cause(path=cause.path, value=cause.before)
                cause.read.append(earlier)
                self._wanted.append((earlier, parts, depth - 1))

    def _note(self, cause: Cause, step: TraceStep, before: Any, depth: int) -> None:
        """Note the step of a cause, and look for what its tasks had read."""
        cause.step, cause.checkpoint, cause.source = step.number, step.checkpoint, step.source
        if depth:
            self._follow(cause, step, before, depth)

    def _load_before(self, step: TraceStep) -> CheckpointTuple | None:
        """The checkpoint before a step."""
        saver: Any = self._app.checkpointer
        made = saver.get_tuple(address(self._thread, self._ns, step.checkpoint))
        where = None if made is None else made.parent_config
        return None if where is None else run_steps(find_whole(saver, where, WAITS))

    def _records(self, step: TraceStep) -> list[tuple[TraceTask, TaskRecord]]:
        """The tasks of a step with what is recorded of them."""
        before = self._load_before(step)
        ledger = Ledger(() if before is None else before.pending_writes or ())
        return [(task, ledger.of(task.id)) for task in step.tasks]

    def _look_inside(
        self, cause: Cause, task: TraceTask, parts: Sequence[str], value: Any, depth: int
    ) -> None:
        """Look for what made the value in the graphs that the task has run."""
        ends = {step.checkpoint for step in task.steps}
        name = task.node.rpartition(NS_END)[2]
        for _, _, ns in list_nested(self._graph.program, self._ns, name, task.id, task.key):
            for state in self._app.get_state_history(address(self._thread, ns)):
                if coordinates(state.config)[2] in ends:
                    if is_same(_look(state.values, parts), value):
                        inner = Cause(path=f"{name}:{'.'.join(parts)}", value=cause.value)
                        cause.read.append(inner)
                        _Search(self._app, state.config).find(inner, parts, depth)
                    break

    def _narrow(self, cause: Cause, step: TraceStep, key: str, value: Any) -> bool:
        """Leave of several tasks those that wrote the value itself, and note their answers. Returns
        whether one did: else a reducer has made it of what they wrote and of the one before."""
        known = [each for each in self._records(step) if each[0] in cause.tasks]
        guilty = [
            (task, record)
            for task, record in known
            if any(name == key and _holds(written, value) for name, written in record.writes)
        ]
        cause.tasks = tuple(task for task, _ in guilty or known)
        cause.answers = tuple(
            (_show(question.value), _show(record.answers[question.id]))
            for _, record in guilty or known
            for question in record.interrupts
            if question.id in record.answers
        )
        return bool(guilty)

    def _origins(self, step: TraceStep) -> dict[str | None, str]:
        """By id the checkpoints at which tasks of a step have started before it (schedule="ready"):
        they have read the state there."""
        found = None if step.since is None else self._load_before(step)
        if found is None:
            return {}
        slots = find_under_way(found.checkpoint).items()
        return {each["id"]: find_origin(found.checkpoint, slot) for slot, each in slots}

    def _follow(self, cause: Cause, step: TraceStep, before: Any, depth: int) -> None:
        """Look for what made the values that the tasks had read, and for who sent them others."""
        sent = group((each.name, each.input) for each in cause.tasks if each.sent)
        for node, given in sent.items():
            text = sanitize(", ".join(given), LONGEST)
            read = Cause(path=f"Send to {node}", value=text)
            cause.read.append(read)
            self._sent.append((read, node, depth - 1))
        tasks = [each for each in cause.tasks if not each.sent]
        origins = self._origins(step)
        for key, origin in dict.fromkeys(
            (key, origins.get(task.id)) for task in tasks for key in self._keys(task)
        ):
            there = None if origin is None else address(self._thread, self._ns, origin)
            state = before if there is None else next(self._app.get_state_history(there)).values
            value = _look(state, [key])
            if value is not MISSING:
                read = Cause(path=key, value=_show(value))
                cause.read.append(read)
                if there is None:
                    self._wanted.append((read, [key], depth - 1))
                else:
                    _Search(self._app, there).find(read, [key], depth - 1)

    def _keys(self, task: TraceTask) -> Sequence[str]:
        """The keys of the state that a task's node reads."""
        node = self._graph.program.nodes.get(task.name)
        if node is None or node.hidden:
            return ()
        return [node.reads] if isinstance(node.reads, str) else node.reads.keys


# -- paths -----------------------------------------------------------------------------------------


def _settle(state: Any, parts: Sequence[str]) -> list[str]:
    """A path in which indexes from the end are indexes from the beginning: they must name the same
    item in states that are shorter."""
    settled: list[str] = []
    for part in parts:
        here = _look(state, settled)
        is_last = part.startswith("-") and part[1:].isdecimal() and isinstance(here, Sequence)
        settled.append(str(len(here) + int(part)) if is_last else part)
    return settled


def _look(value: Any, parts: Sequence[str]) -> Any:
    """The value at a path; MISSING if there is none."""
    for part in parts:
        if isinstance(value, Mapping):
            value = value.get(part, MISSING)
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            known = part.isdecimal() and int(part) < len(value)
            value = value[int(part)] if known else MISSING
        else:
            value = getattr(value, part, MISSING)
        if value is MISSING:
            break
    return value


def _sent_to(record: TaskRecord) -> set[str]:
    """The nodes to which a task has led by a `Send`."""
    return {to.node for to in destinations(record.writes) if isinstance(to, Send)}


def _holds(written: Any, value: Any) -> bool:
    """Whether what a task has written is a value, or has it in some place. A message may have been
    given an id since."""
    if is_same(written, value):
        return True
    if isinstance(written, Mapping):
        known = value if isinstance(value, Mapping) and written else None
        pairs = written.items() if known is not None else ()
        if known is not None and all(is_same(each, known.get(key)) for key, each in pairs):
            return True
        return any(_holds(each, value) for each in written.values())
    return isinstance(written, list | tuple) and any(_holds(each, value) for each in written)


def _find(state: Any, parts: Sequence[str], path: str) -> Any:
    found = _look(state, parts)
    if found is not MISSING:
        return found
    for place in range(len(parts)):
        around = _look(state, parts[:place])
        if _look(around, parts[place : place + 1]) is MISSING:
            known = around if isinstance(around, Mapping) else getattr(around, "__dict__", ())
            missing = f"no {parts[place]!r}; {nearest(parts[place], list(known))}"
            raise ValueError(f"the state has no {path!r}: {missing}")
    raise AssertionError(path)


def _show(value: Any) -> str:
    return format_value(value, LONGEST)


# -- drawing ---------------------------------------------------------------------------------------


def _lines(
    cause: Cause, indent: str = "", seen: set[tuple[str, str | None]] | None = None
) -> Iterator[str]:
    """The lines of a tree. A value that several tasks had read has its causes once."""
    seen = set() if seen is None else seen
    place = cause.path, cause.checkpoint
    if place in seen:
        yield f"{indent}{cause.headline}{' (above)' if cause.read else ''}"
        return
    seen.add(place)
    yield f"{indent}{cause.headline}"
    yield from (f"{indent}  {line}" for line in cause.details())
    for each in cause.read:
        yield from _lines(each, indent + "    ", seen)
