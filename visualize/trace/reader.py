"""Reads a thread's stored history: the line that leads to one checkpoint, step by step, or some
steps of a long one without the others.

Only reads, through the public API that every graph with a checkpointer has. Measures, compares and
draws nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain, starmap
from typing import Any, NamedTuple

from ...checkpoint.base import UNDER_WAY, BaseCheckpointSaver, RunnableConfig, address, coordinates
from ...pregel.app import Pregel, check_compiled
from ...pregel.names import PUSH, START, handled_node, join_id
from ...pregel.policies import RetryPolicy
from ...pregel.run.snapshots import list_nested
from ...pregel.thread_api import StoredThreads
from ...pregel.types import AnyConfig, PregelTask, StateSnapshot
from ..labels import natural_key
from .index import ThreadIndex
from .orphans import Orphans, build_orphan, find_orphans
from .records import TaskState, Trace, TraceBranch, TraceStep, TraceTask
from .transitions import Transition, id_of, list_transitions, parent_of, source_of
from .values import block, format_value

MOST_NESTED = 200
"""How many histories of nested graphs are read at most."""

LONGEST_TEXT = 240
"""The maximum number of characters of a task's input and of its result."""

TextLimit = Callable[[PregelTask], int]
"""How many characters of a task's input and of its result to return; if more than `LONGEST_TEXT`,
over several lines."""

StepVisitor = Callable[[TraceStep, Any, Any], None]
"""Called with every step, the newest first but an open one last, and the states before and after
it."""


def read_trace(
    app: Pregel, config: AnyConfig, visit: StepVisitor | None = None, *, texts: bool = False
) -> Trace:
    """Return a thread's line up to the checkpoint that `config` names, by default its newest.

    States are passed to `visit` one after another and not kept, so that a long thread is never in
    memory as a whole.

    Args:
        texts: include each task's input and result; formatting their objects may take long.

    Raises:
        TypeError: `app` is not a compiled graph.
        ValueError: the graph has no checkpointer, or the config names no stored thread.
    """
    reader = TraceReader(app, config, texts)
    return reader.read(visit or ignore)


def read_snapshot(app: Pregel, config: AnyConfig) -> StateSnapshot:
    """Return the checkpoint that `config` names, by default the thread's newest.

    Raises:
        TypeError, ValueError: as `read_trace` does.
    """
    check_compiled(app)
    snapshot = app.get_state(config)
    if snapshot.metadata is None:
        thread_id, ns, _ = coordinates(snapshot.config)
        raise ValueError(
            f"nothing is stored for thread {thread_id!r}{f', namespace {ns!r}' if ns else ''}"
        )
    return snapshot


def ignore(step: TraceStep, before: Any, after: Any) -> None:
    """Do nothing, as a `StepVisitor` that needs no states."""


class TraceReader:
    """Reads one thread. `left` counts down how many nested histories may still be read."""

    def __init__(
        self,
        app: Pregel,
        config: AnyConfig,
        texts: TextLimit | bool,
        most_nested: int = MOST_NESTED,
    ) -> None:
        self.app = app
        self.config = config
        self.longest = texts if callable(texts) else lambda _: LONGEST_TEXT if texts else 0
        self.left: int = most_nested

    def read(self, visit: StepVisitor) -> Trace:
        snapshot = read_snapshot(self.app, self.config)
        thread_id, ns, _ = coordinates(snapshot.config)
        graph = self.app.nested(ns)
        name, wanted = graph.program.name, id_of(snapshot.config)
        place = TraceLevel(graph, thread_id, ns, "")
        beside: list[StateSnapshot] = []
        links = list_transitions(self.app.get_state_history(address(thread_id, ns)), wanted, beside)
        steps = list(self.list_steps(place, links, visit))
        whole = not any(parent_of(other) == wanted for other in beside)
        left = self.find_left(graph, snapshot)
        if whole and (snapshot.next or left.tasks):
            steps.insert(0, self.read_open(place, snapshot, left, visit))
        stored = (record.interrupts for _, _, record in left.tasks)
        questions = (*snapshot.interrupts, *chain.from_iterable(stored))
        return Trace(
            name, thread_id, ns, wanted, tuple(reversed(steps)), _branches(beside), whole,
            questions, snapshot.next, max(-self.left, 0), left.remarks,
        )  # fmt: skip

    def find_left(self, graph: StoredThreads, snapshot: StateSnapshot) -> Orphans:
        """Return what is stored for tasks of nodes that the graph no longer has."""
        saver = self.app.checkpointer
        if not isinstance(saver, BaseCheckpointSaver):
            return Orphans()
        return find_orphans(graph.program, saver, snapshot.config)

    def read_open(
        self, place: TraceLevel, tip: StateSnapshot, left: Orphans, visit: StepVisitor
    ) -> TraceStep:
        """Return the open step after a checkpoint that nothing follows."""
        head = self.app.get_state(address(place.thread_id, place.ns))
        if id_of(head.config) != id_of(tip.config):  # on another branch than the newest
            head = tip
        opened = self._open(place, head)
        opened = replace(opened, tasks=(*opened.tasks, *starmap(build_orphan, left.tasks)))
        visit(opened, self.app.get_state(head.config).values, head.values)
        return opened

    def list_steps(
        self, place: TraceLevel, links: Iterator[Transition], visit: StepVisitor
    ) -> Iterator[TraceStep]:
        """Yield the steps, newest first. An input's own checkpoint, which only starts the graph, is
        merged with the step that takes it."""
        held: tuple[TraceStep, Any] | None = None
        for link in links:
            # Before the first checkpoint, a state with keys is empty, and any other is None.
            before: Any = {} if isinstance(link.after.values, dict) else None
            if link.before:
                before = link.before.values
            step, after = self._step(place, link), link.after.values
            if held is not None:  # started by this input
                whole = replace(held[0], source="input")
                visit(whole, before, held[1])
                yield whole
                held = None
                if not step.tasks:
                    continue
                step, after = replace(step, source="dropped"), before
            names = [task.name for task in step.tasks]
            if names == [START] and source_of(link.before) == "input":
                held = step, after
                continue
            visit(step, before, after)
            yield step

    def _step(self, place: TraceLevel, link: Transition) -> TraceStep:
        source = source_of(link.after)
        shown = link.before.tasks if link.before else ()
        if source != "loop":
            # Tasks that had started before the thread was changed from outside, unless another
            # branch continued them.
            shown = tuple(t for t in shown if t.spans and not link.ran_elsewhere)
        together = not place.may_overlap(link.before, link.after)
        if source == "loop" and not together:
            # The others wait, or are running: they end in a later step.
            shown = tuple(t for t in shown if t.spans or t.result is not None or t.lost)
        tasks = () if link.before is None else self._tasks(
            place, shown, link.before,
            lambda task: source == "loop"
            and (together or task.result is not None or task.name not in link.after.next),
        )  # fmt: skip
        metadata = link.after.metadata or {}
        return TraceStep(
            int(metadata.get("step", -1)), source, tasks, id_of(link.after.config),
            _seconds(link.after.created_at),
            metadata, place.stops(link.before, tasks), _since(link.before),
        )  # fmt: skip

    def _open(self, place: TraceLevel, head: StateSnapshot) -> TraceStep:
        """Return the step that the newest checkpoint leads to, and that has not made a
        checkpoint."""
        tasks = self._tasks(place, head.tasks, head, lambda task: task.name not in head.next)
        if place.graph.program.starts_ready:
            found = self.app.explain(head.config)
            held = {name for name, status in found.items() if status.state == "waiting"}
            tasks = tuple(
                replace(task, held=task.name in held, earlier=not task.spans) for task in tasks
            )
        number = int((head.metadata or {}).get("step", -1)) + 1
        stopped = place.stops(head, tasks)
        return TraceStep(number, "open", tasks, None, None, {}, stopped, _since(head))

    def _tasks(
        self,
        place: TraceLevel,
        tasks: Iterable[PregelTask],
        base: StateSnapshot,
        ended: Callable[[PregelTask], bool],
    ) -> tuple[TraceTask, ...]:
        """Return tasks in the order in which a reader looks for them: by name, then by path."""
        ordered = sorted(tasks, key=lambda task: natural_key(task.name))
        return tuple(self._task(place, task, base, ended=ended(task)) for task in ordered)

    def _task(
        self, place: TraceLevel, task: PregelTask, base: StateSnapshot, *, ended: bool
    ) -> TraceTask:
        longest = self.longest(task)
        return TraceTask(
            task.id,
            join_id(place.inside, task.name),
            place.label(task.name),
            _state_of(task, ended=ended),
            task.spans,
            place.waits(task),
            task.error,
            task.interrupts,
            tuple(map(str, task.result)) if isinstance(task.result, dict) else (),
            (*self._list_nested(place, task, base), *self._list_calls(place, task)),
            _show(task.input, longest) if longest else "",
            "" if task.result is None else _show(task.result, longest),
            task.key,
            place.may_retry(task),
            sent=task.path[0] == PUSH,
            traceback=task.traceback,
        )

    def _list_calls(self, place: TraceLevel, task: PregelTask) -> Iterator[TraceStep]:
        """Yield the `@task` calls of a task, as a step inside it."""
        if not task.calls:
            return
        inside = place._replace(inside=join_id(place.inside, task.name))
        longest = self.longest(task)
        calls = tuple(
            TraceTask(
                call.id,
                join_id(inside.inside, call.name),
                call.name,
                _state_of(call, ended=call.wake_at is None and not call.interrupts),
                call.spans,
                error=call.error,
                questions=call.interrupts,
                steps=(*self._list_calls(inside, call),),
                result="" if call.result is None else _show(call.result, longest),
                traceback=call.traceback,
            )
            for call in task.calls
        )
        yield TraceStep(0, "loop", calls, None, None)

    def _list_nested(
        self, place: TraceLevel, task: PregelTask, base: StateSnapshot
    ) -> Iterator[TraceStep]:
        """Yield the steps of the graphs that a task has run, the oldest first."""
        # With schedule="ready", times are stored where the task has started, not with each step.
        begun = task.spans or task.interrupts or task.error is not None
        if not begun and task.result is None:
            return
        program = place.graph.program
        for key, child, ns in list_nested(program, place.ns, task.name, task.id, task.key):
            self.left -= 1
            if self.left >= 0:
                inner = TraceLevel(child, place.thread_id, ns, join_id(place.inside, key))
                # With schedule="ready" it belongs to the checkpoint at which its task has started,
                # so only its namespace identifies it.
                told = place.may_overlap(base) and child.checkpointer is not True
                shared = None if told else id_of(base.config)
                yield from self._read_nested(inner, place.ns, task, shared)

    def _read_nested(
        self, inner: TraceLevel, outer_ns: str, task: PregelTask, base: str | None
    ) -> Iterator[TraceStep]:
        """Yield the steps of one nested graph that belong to a task; `base` is the outer
        checkpoint, if other tasks share its namespace."""
        thread = address(inner.thread_id, inner.ns)
        mine = (
            snapshot
            for snapshot in self.app.get_state_history(thread)
            if base is None or (snapshot.metadata or {}).get("parents", {}).get(outer_ns) == base
        )
        newest = next(mine, None)
        if newest is None:
            return
        transitions = list_transitions(chain((newest,), mine), None, [])
        steps = list(self.list_steps(inner, transitions, ignore))
        yield from reversed(steps)
        if newest.next and task.result is None:
            yield self._open(inner, self.app.get_state(thread))


class TraceLevel(NamedTuple):
    """Whose history is read: the graph, its thread and namespace, and the id of the enclosing
    node."""

    graph: StoredThreads
    thread_id: str
    ns: str
    inside: str

    def may_overlap(self, *around: StateSnapshot | None) -> bool:
        """Return whether tasks may have gone on across these checkpoints. Either schedule may have
        made them, whichever the graph has that looks at them."""
        return self.graph.program.starts_ready or any(
            UNDER_WAY in (each.metadata or {}) for each in around if each is not None
        )

    def may_retry(self, task: PregelTask) -> bool:
        return bool(self._policies(task))

    def _policies(self, task: PregelTask) -> Sequence[RetryPolicy]:
        node = self.graph.program.nodes.get(task.name)
        return node.policies.retry if node is not None else ()

    def waits(self, task: PregelTask) -> tuple[float, ...]:
        policies = self._policies(task)
        return tuple(
            max(
                (min(p.max_interval, p.initial_interval * p.backoff_factor**n) for p in policies),
                default=0.0,
            )
            for n in range(len(task.spans))
        )

    def label(self, name: str) -> str:
        """Return a node's label in drawings: for an error handler the name of its function, if it
        has one."""
        node = self.graph.program.nodes.get(name)
        function = ""
        if node is not None and handled_node(name) is not None:
            function = getattr(node.source, "__name__", "")
        return function if function.isidentifier() else name

    def stops(self, base: StateSnapshot | None, tasks: tuple[TraceTask, ...]) -> bool:
        before = getattr(self.graph, "interrupt_before", ())
        return bool(before) and any(
            before == "*" or task.name in before for task in tasks if task.name != START
        )


def _state_of(task: PregelTask, *, ended: bool) -> TaskState:
    if task.lost:
        return "lost"
    if task.error is not None:
        return "failed"
    if ended or task.result is not None:
        return "done"
    return "paused" if task.interrupts or task.wake_at is not None else "waiting"


def _show(value: Any, longest: int) -> str:
    """Return a value in this many characters; over several lines if there is room."""
    if longest <= LONGEST_TEXT:
        return format_value(value, longest) if longest else ""
    return block(value, longest)


def _branches(beside: list[StateSnapshot]) -> tuple[TraceBranch, ...]:
    """Group the checkpoints off the line by where they leave it; the oldest first."""
    roots: dict[str, str] = {}
    found: dict[str, TraceBranch] = {}
    for snapshot in reversed(beside):
        here, parent = id_of(snapshot.config), parent_of(snapshot)
        root = roots[here] = roots.get(parent or "", here)
        known = found.get(root, TraceBranch(parent, source_of(snapshot), 0, here))
        found[root] = known._replace(size=known.size + 1, tip=here)
    return tuple(found.values())


def _since(before: StateSnapshot | None) -> float | None:
    """Return when a checkpoint was stored in which tasks are under way."""
    if before is None or UNDER_WAY not in (before.metadata or {}):
        return None
    return _seconds(before.created_at)


def _seconds(created_at: str | None) -> float | None:
    try:
        return datetime.fromisoformat(created_at).timestamp() if created_at else None
    except ValueError:  # a user's own saver may store anything
        return None


def read_steps(
    app: Pregel,
    index: ThreadIndex,
    tip: str,
    rows: Sequence[str],
    visit: StepVisitor | None = None,
    *,
    texts: TextLimit | bool = False,
    most_nested: int = MOST_NESTED,
) -> tuple[TraceStep, ...]:
    """Return some steps of a long thread, the oldest first, without reading the others.

    Args:
        tip: the checkpoint at the end of the line.
        rows: the wanted rows of that line, without gaps.
        visit: as in `read_trace`.
        texts: as in `read_trace`, or how many characters of a task's input and result to return.
        most_nested: how many histories of nested graphs to read at most.

    Raises:
        ValueError: the graph has no checkpointer.
    """
    if not rows:
        return ()
    line = index.line(tip)
    # An input that was dropped is recognized by what follows it.
    place_of_next = line.checkpoints.index(rows[-1]) + 1
    newest = line.checkpoints[min(place_of_next, len(line.checkpoints) - 1)]
    newer = index.newer(newest)
    thread = address(index.thread_id, index.ns)
    before = None if newer is None else address(index.thread_id, index.ns, newer)
    history = app.get_state_history(thread, before=before)
    transitions = list_transitions(history, newest, [], line.left)
    reader = TraceReader(app, thread, texts, most_nested)
    place = TraceLevel(app.nested(index.ns), index.thread_id, index.ns, "")
    wanted, found = {*rows}, []
    for step in reader.list_steps(place, transitions, visit or ignore):
        if step.checkpoint in wanted:
            found.append(step)
        if step.checkpoint == rows[0]:
            break
    return tuple(reversed(found))


def read_open_step(
    app: Pregel,
    where: RunnableConfig,
    visit: StepVisitor | None = None,
    *,
    texts: TextLimit | bool = False,
) -> tuple[TraceStep | None, Orphans]:
    """Return the step that a checkpoint leads to, if any, and what another version of the graph has
    left.

    Args:
        where: a checkpoint without successors, or the thread for its newest one.

    Raises:
        ValueError: the graph has no checkpointer, or nothing is stored for the thread.
    """
    head = read_snapshot(app, where)
    reader = TraceReader(app, where, texts)
    left = reader.find_left(app, head)
    if not head.next and not left.tasks:
        return None, left
    place = TraceLevel(app, coordinates(where)[0], "", "")
    return reader.read_open(place, head, left, visit or ignore), left
