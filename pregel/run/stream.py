"""Events become chunks: values, updates, custom, messages, tasks, checkpoints, debug. Pure filters.

Watching never changes a run: chunks are made from finished tasks and copies of channel values.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from ...channels.aggregate import BinaryOperatorAggregate
from ...channels.base import check_kind
from ...checkpoint.base import INTERRUPT, POST, RETURN, SLEEP
from ..clock import CLOCK
from ..names import METADATA
from ..schedule.machine import Machine
from ..task.task import Task
from ..types import Interrupt, Selection, StateSnapshot, StreamMode, names_of
from .checks import check_choice
from .tokens import message_id, messages_in, unstreamed, written_messages

OF_CHECKPOINTS: Final[frozenset[StreamMode]] = frozenset({"checkpoints", "debug"})
_OF_TASKS: Final[frozenset[StreamMode]] = frozenset({"tasks", "debug"})
LIVE: Final[frozenset[StreamMode]] = frozenset({"custom", "messages"})
"""Modes whose chunks come while a node runs, so that the reader's thread must be free to take
them."""


def read_modes(stream_mode: StreamMode | Sequence[StreamMode]) -> tuple[StreamMode, ...]:
    """One mode or several, as a tuple.

    Raises:
        ValueError: naming a mode that does not exist.
    """
    check_kind("stream_mode", stream_mode, Iterable, "a mode or a list of modes")
    modes = (stream_mode,) if isinstance(stream_mode, str) else tuple(stream_mode)
    for mode in modes:
        check_choice("stream_mode", mode, StreamMode)
    return modes


Form: TypeAlias = Callable[[Any], Any] | None
"""What a reader is shown in place of the values of the output's keys; None for those values."""


def rename(names: Mapping[str, str], value: Any) -> Any:
    """A dict of the output's keys under the names they have outside."""
    if not isinstance(value, dict):
        return value
    return {names.get(key, key): item for key, item in value.items()}


class Envelope:
    """How chunks are wrapped for one reader.

    Args:
        tagged: several modes were asked for, so each chunk comes with its mode.
        subgraphs: chunks of nested graphs are shown, so each comes with its namespace.
        typed: `version="v2"`: every chunk is a dict with type, ns and data.
    """

    __slots__ = ("subgraphs", "tagged", "typed")

    def __init__(self, tagged: bool, subgraphs: bool, typed: bool) -> None:
        self.tagged: bool = tagged
        self.subgraphs: bool = subgraphs
        self.typed: bool = typed

    def wrap(self, ns: tuple[str, ...], mode: StreamMode, data: Any, form: Form) -> Any:
        """The chunk as the reader gets it."""
        if mode == "values":
            if self.typed:
                return self._type_values(ns, data, form)
            data = data if form is None else form(data)
        elif self.typed:
            return {"type": mode, "ns": ns, "data": data}
        if self.subgraphs:
            return (ns, mode, data) if self.tagged else (ns, data)
        return (mode, data) if self.tagged else data

    def _type_values(self, ns: tuple[str, ...], data: Any, form: Form) -> Any:
        asked = isinstance(data, dict) and INTERRUPT in data
        interrupts = data.pop(INTERRUPT) if asked else ()
        wake_at = data.pop(SLEEP, None) if isinstance(data, dict) else None
        shown = data if form is None else form(data)
        part = {"type": "values", "ns": ns, "data": shown, "interrupts": interrupts}
        return part if wake_at is None else {**part, "wake_at": wake_at}


class Stream:
    """One run's chunks on their way to one reader. A nested run has one for each reader further up
    as well.

    Args:
        modes: what the reader asked for.
        put: takes a wrapped chunk; may be called from any thread.
        keys: the channels that values and updates show.
        ns: the run's namespace, one item per level.
        form: what `values` show.
    """

    __slots__ = ("_envelope", "_form", "_put", "_sent", "_shown", "_unnamed", "keys", "modes", "ns")

    def __init__(
        self,
        modes: Iterable[StreamMode],
        envelope: Envelope,
        put: Callable[[Any], None],
        keys: Selection,
        ns: tuple[str, ...] = (),
        form: Form = None,
    ) -> None:
        self.modes: frozenset[StreamMode] = frozenset(modes)
        self.keys: Selection = keys
        self.ns: tuple[str, ...] = ns
        self._envelope = envelope
        self._form = form
        self._put = put
        self._sent: set[Any] = set()
        self._unnamed = False  # messages were sent that get their ids from a reducer
        self._shown = frozenset(names_of(keys))

    @property
    def live(self) -> bool:
        """Whether chunks may come while a node runs."""
        return self._envelope.subgraphs or not LIVE.isdisjoint(self.modes)

    def below(self, graph: Any, ns: tuple[str, ...], deadline: Any = None) -> Stream | None:
        """The stream of a nested graph's run that reports here; None without `subgraphs`: then only
        what the node around that run returns is shown. With a `deadline`, nothing once that is
        abandoned."""
        if not self._envelope.subgraphs:
            return None
        put = self._put if deadline is None else deadline.fence(self._put)
        form = graph.output_form(self._envelope.typed)
        stream = Stream(self.modes, self._envelope, put, graph.program.stream, ns, form)
        # A message that was shown inside is not shown again when the parent returns it.
        stream._sent = self._sent
        return stream

    def emit(self, mode: StreamMode, data: Any) -> None:
        """Send one chunk, if its mode was asked for."""
        if mode in self.modes:
            if mode == "messages":
                self._sent.add(message_id(data[0]))
            self._put(self._envelope.wrap(self.ns, mode, data, self._form))

    # -- what the loop reports ---------------------------------------------------------------------

    def known(self, values: Iterable[Any]) -> None:
        """Note that the messages in these values have been shown, perhaps to the reader of an
        earlier call: they are not shown again when somebody returns them."""
        if "messages" in self.modes:
            self._sent.update(
                message_id(message) for value in values for message in messages_in(value)
            )

    def resumed(self, machine: Machine) -> None:
        """Show the state from which a run goes on."""
        self._know(machine)
        self.values(machine, always=True)

    def _know(self, machine: Machine) -> None:
        if "messages" in self.modes:
            state = machine.output(self.keys)
            self.known(state.values() if isinstance(state, dict) else (state,))

    def values(self, machine: Machine, *, always: bool = False) -> None:
        """Show the state, if a shown channel has changed."""
        if self._unnamed:
            self._unnamed = False
            self._know(machine)
        if "values" in self.modes and (always or not self._shown.isdisjoint(machine.changed or ())):
            self.emit("values", snapshot(machine.output(self.keys)))

    def question(self, machine: Machine, task: Task) -> None:
        """Show the state with the questions that a task has just asked, or the time until which it
        sleeps."""
        if "values" in self.modes:
            state = snapshot(machine.output(self.keys))
            values = state if isinstance(state, dict) else {}
            self.emit("values", {**values, **show_pause(task.interrupts, task.wake_at)})

    def preview(self, machine: Machine, writes: Sequence[tuple[str, Any]]) -> None:
        """Show the state with the writes of tasks that finished beside a paused one."""
        if "values" in self.modes and any(key in self._shown for key, _ in writes):
            self.emit("values", snapshot(machine.output_with(self.keys, writes)))

    def started(self, task: Task) -> None:
        """Show that a task is about to run."""
        if task.node.hidden or self.modes.isdisjoint(_OF_TASKS):
            return
        payload: dict[str, Any] = {
            "id": task.id,
            "name": task.name,
            "input": snapshot(task.input),
            "triggers": task.triggers,
        }
        metadata = task_metadata(task)
        if metadata:
            payload["metadata"] = metadata
        self.emit("tasks", payload)
        self._wrap_debug("task", task.step, payload)

    def ended(self, task: Task) -> None:
        """Show how a task has ended: it has finished, failed, paused, or was restored."""
        if task.paused and task.path[-1] is not True:  # a call's question is its parent's to ask
            # No question and no time: a breakpoint of a nested graph.
            shown = show_pause(task.interrupts, task.wake_at)
            self.emit("updates", shown or {INTERRUPT: ()})
        elif task.finished and not task.node.hidden:
            self._returned(task)
        if task.node.hidden or self.modes.isdisjoint(_OF_TASKS):
            return
        more = {} if task.wake_at is None else {"wake_at": task.wake_at}
        self._end(task, task.error, result_of(task.writes, self._shown), task.interrupts, **more)

    def lost(self, task: Task) -> None:
        """Show that a task has lost its race: it was not run, or was stopped."""
        if not self.modes.isdisjoint(_OF_TASKS):
            self._end(task, None, {}, (), lost=True)

    def _end(
        self, task: Task, error: Any, result: Any, questions: Sequence[Interrupt], **more: Any
    ) -> None:
        payload: dict[str, Any] = {
            "id": task.id,
            "name": task.name,
            "error": error,
            "result": result,
            "interrupts": [*map(asdict, questions)],
            **more,
        }
        self.emit("tasks", payload)
        self._wrap_debug("task_result", task.step, payload)

    def _returned(self, task: Task) -> None:
        """Show what a finished task wrote, and the messages in it that were not shown while it
        ran."""
        if "messages" in self.modes:
            self._messages(task)
        if "updates" in self.modes:
            chunk = {task.name: self._updates(task.writes)}
            if task.restored:
                chunk[METADATA] = {"cached": True}
            self.emit("updates", chunk)

    def _messages(self, task: Task) -> None:
        found = written_messages(task.writes)
        if not found:
            return
        ids = {message_id(message) for message in found}
        if None in ids:
            self._unnamed = True
        if not task.restored:
            for message in unstreamed(task.input, found, self._sent):
                self.emit("messages", (message, _message_metadata(task)))
        elif task.recorded:  # by an earlier call, which has shown them; what a cache had was not
            self._sent |= ids

    def posted(self, writes: Sequence[tuple[str, Any]]) -> None:
        """Show that the run has taken a post."""
        if "updates" in self.modes:
            self.emit("updates", {POST: self._updates(writes)})

    def _updates(self, writes: Sequence[tuple[str, Any]]) -> Any:
        """What was written, as `updates` shows it: a dict; one dict per write if a key was written
        twice; None for nothing. Where a single channel is shown, values without their key."""
        returned = [snapshot(value) for key, value in writes if key == RETURN]
        pairs = [(key, snapshot(value)) for key, value in writes if key in self._shown]
        if returned or (pairs and isinstance(self.keys, str)):
            values = returned or [value for _, value in pairs]
            return values[0] if len(values) == 1 else values
        if not pairs:
            return None
        update = dict(pairs)
        return update if len(update) == len(pairs) else [{key: value} for key, value in pairs]

    def breakpoint(self) -> None:
        """Show that the run stops at a breakpoint."""
        self.emit("updates", {INTERRUPT: ()})

    def checkpoint(self, state: StateSnapshot) -> None:
        """Show a checkpoint with the tasks that follow it."""
        payload = {
            "config": state.config,
            "parent_config": state.parent_config,
            "values": snapshot(state.values),
            "metadata": snapshot(state.metadata),
            "next": list(state.next),
            "tasks": [_checkpoint_task(task) for task in state.tasks],
        }
        self.emit("checkpoints", payload)
        self._wrap_debug("checkpoint", (state.metadata or {}).get("step", -1), payload)

    def _wrap_debug(self, kind: str, step: int, payload: Any) -> None:
        if "debug" in self.modes:
            now = datetime.fromtimestamp(CLOCK.time(), UTC).isoformat()
            self.emit("debug", {"step": step, "timestamp": now, "type": kind, "payload": payload})


def identify_messages(
    streams: Iterable[Stream], tasks: Iterable[Task], channels: Mapping[str, Any]
) -> None:
    """Give ids to the messages that tasks have written without one, if somebody reads messages: the
    reader is shown them under the ids that they will have in the state.

    To be called before the writes are encoded or applied. Without a reader the reducer gives them
    their ids.
    """
    for stream in streams:  # a generator expression would take a call for each (P4, P5)
        if "messages" in stream.modes:
            break
    else:
        return
    for task in tasks:
        writes = [
            (name, channel.identify(value))
            if isinstance(channel := channels.get(name), BinaryOperatorAggregate)
            else (name, value)
            for name, value in task.writes
        ]
        task.identify_writes(writes)


def show_pause(questions: Sequence[Any], wake_at: datetime | None) -> dict[str, Any]:
    """What the result of a call and the chunks of a stream show of a pause."""
    shown: dict[str, Any] = {INTERRUPT: questions} if questions else {}
    if wake_at is not None:
        shown[SLEEP] = wake_at
    return shown


def _message_metadata(task: Task) -> dict[str, Any]:
    """What comes with a message that a task has returned."""
    metadata: dict[str, Any] = task.config["metadata"]
    observing = task.run.observing
    listener = None if observing is None else observing.listener
    return metadata if listener is None else {**metadata, **listener.metadata}


def task_metadata(task: Task) -> dict[str, Any]:
    """The user's own metadata and tags of a task."""
    metadata = {**task.run.settings.config.get("metadata", {}), **task.node.metadata}
    tags = [*task.run.settings.config.get("tags", ()), *task.node.tags]
    return {**metadata, "tags": tags} if tags else metadata


def result_of(writes: Iterable[tuple[str, Any]], shown: Container[str]) -> dict[str, Any]:
    """What a task wrote to the shown channels; several writes to one become `{"$writes":
    [...]}`."""
    found: dict[str, list[Any]] = {}
    for key, value in writes:
        if key in shown or key == RETURN:
            found.setdefault(key, []).append(snapshot(value))
    return {
        key: values[0] if len(values) == 1 else {"$writes": values} for key, values in found.items()
    }


def snapshot(value: Any) -> Any:
    """A copy deep enough that a reader who appends to a list in it does not change the run."""
    if value.__class__ is dict:
        return {k: v.copy() if v.__class__ in (list, dict, set) else v for k, v in value.items()}
    return value.copy() if value.__class__ in (list, set) else value


def _checkpoint_task(task: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": task.id, "name": task.name}
    if task.error is not None:
        return {**shown, "error": task.error, "state": task.state}
    if task.result is not None:
        shown["result"] = task.result
    if task.wake_at is not None:
        shown["wake_at"] = task.wake_at
    return {**shown, "interrupts": tuple(task.interrupts), "state": task.state}
