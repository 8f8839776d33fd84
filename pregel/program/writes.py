"""What a node returned becomes (channel, value) pairs on its task. Every rule about return values
is here.

A writer is told the result and the running task and appends to `task.writes`; it never touches a
channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ...channels.base import MISSING
from ..errors import InvalidRouteError, InvalidUpdateError, ParentCommand, nearest, warn
from ..names import END, ROOT, START, TASKS, is_handler
from ..types import Command, Send
from .callables import Updates
from .results import (
    NO_UPDATES,
    advice,
    find_lookalike,
    is_graph,
    is_record,
    mentions,
    misplaced_classes,
    record_fields,
    record_items,
)

Pair = tuple[str, Any]


class Draft:
    """Stands in for a task where writes are made that are not its own, or not yet.

    Attributes:
        name: of the node in whose name they are made.
        writes: what was written.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.writes: list[Pair] = []


class Writer:
    """Turns a node's result into writes.

    Attributes:
        is_async: whether async runs use `awrite`.
        routes: it asks a router, which observers are told of.
        writes_output: whether all it writes is the output of the graph.
        of_run: what it writes depends on the run, not on the result: a result from a cache does not
            bring it.
        passthrough: it reads what the result holds besides the keys of the state.
    """

    is_async = False
    routes = False
    writes_output = False
    of_run = False
    passthrough = False

    def write(self, result: Any, task: Any) -> None:
        """Append the writes that `result` stands for to `task.writes`.

        Raises:
            InvalidUpdateError: it stands for none that this graph can take.
        """
        raise NotImplementedError

    async def awrite(self, result: Any, task: Any) -> None:
        """`write` for coroutines."""
        self.write(result, task)

    def identity(self) -> str:
        """What tells its writes from those that another graph makes of the same result."""
        return ""

    def check(self, channels: Mapping[str, Any]) -> Iterable[str]:
        """A sentence for every mistake that can be seen before anything runs."""
        return ()


# -- StateGraph ------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WriteScope:
    """The names that the results of one graph's nodes may use.

    Attributes:
        keys: the state's keys that can be written; `{"__root__"}` for a graph whose state is one
            value.
        triggers: node name → the channel that makes it run.
        strict: refuse unknown keys instead of dropping them.
        nested: the node is a graph. Its whole output may have keys of its own, which are dropped;
            its commands may not.
        hints: key → its annotation.
        first: of START: key → what makes the value that its reducer starts with. In a record such a
            value is no update, but the field's default.
        undeclared: the nodes that a node must not go to, since it does not declare them and a join
            waits for whoever can still come.
        keyless: the nodes to which no Send may have a key: graphs that keep no memory of their own.
        unset: whether defaults of a pydantic model that were not set count as written.
        make: makes the writer of the graph's nodes, if that is no plain `StateWriter`.
        misplaced: the classes whose instances are looked at twice before they become the value of a
            key.
    """

    keys: Final[frozenset[str]]
    triggers: Final[Mapping[str, str]]
    strict: Final[bool] = True
    nested: Final[bool] = False
    hints: Final[Mapping[str, Any]] = field(default_factory=dict)
    first: Final[Mapping[str, Callable[[], Any]]] = field(default_factory=dict)
    make: Final[Callable[[WriteScope, Sequence[Pair]], StateWriter] | None] = None
    undeclared: Final[frozenset[str]] = frozenset()
    keyless: Final[frozenset[str]] = frozenset()
    unset: Final[bool] = False
    misplaced: Final[frozenset[type]] = field(default_factory=misplaced_classes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled without what depends on the libraries that a process has loaded."""
        return WriteScope, (
            self.keys, self.triggers, self.strict, self.nested, self.hints, self.first, self.make,
            self.undeclared, self.keyless, self.unset,
        )  # fmt: skip

    def make_writer(self, fixed: Sequence[Pair] = ()) -> StateWriter:
        """The writer of what a node returns.

        Args:
            fixed: what follows it every time.
        """
        return (self.make or StateWriter)(self, fixed)

    @property
    def root(self) -> bool:
        """Whether the state is one value without keys."""
        return ROOT in self.keys


class StateWriter(Writer):
    """The one normaliser of what a StateGraph node returns, followed by the node's fixed edges.

    Args:
        scope: which keys and nodes there are.
        fixed: writes made after every run of the node, whatever it returned: its edges and joins.
    """

    def __init__(self, scope: WriteScope, fixed: Sequence[Pair] = ()) -> None:
        self.scope = scope
        self.keys: frozenset[str] = scope.keys
        self.fixed: tuple[Pair, ...] = tuple(fixed)
        self.root: bool = scope.root

    def identity(self) -> str:
        """The node's edges and joins."""
        return repr(self.fixed)

    def write(self, result: Any, task: Any) -> None:
        """Append the updates, then where to go, then the node's fixed edges."""
        out = task.writes
        if result.__class__ is dict and not self.root:
            keys, misplaced = self.keys, self.scope.misplaced
            for key in result:
                if key in keys:
                    value = result[key]
                    if value.__class__ in misplaced:
                        self._look_at(key, value, task)
                    out.append((key, value))
                elif self.scope.strict and not self.scope.nested:
                    self._unknown_key(key, task)
        elif result is not None:
            self._result(result, task)
        out.extend(self.fixed)

    def _result(self, result: Any, task: Any) -> None:
        """Anything but a plain dict or None."""
        if isinstance(result, (Command, Send)):
            self._part(result, task)
            return
        if isinstance(result, Updates) or (
            isinstance(result, (list, tuple)) and not self._is_value(result)
        ):
            parent = _merge_parent_commands(result)
            # The first would end this node before the second was read, so that its part were lost.
            if parent is not None:
                raise ParentCommand(parent, task.name)
            for part in result:
                self._part(part, task)
            return
        self._update(result, task)

    def _is_value(self, result: Any) -> bool:
        """A list is the value itself in a root graph, unless it holds a Command or a Send; a
        NamedTuple is a record."""
        if is_record(result):
            return True
        return self.root and not any(
            isinstance(part, (Command, Send)) or find_lookalike(part) for part in result
        )

    def _part(self, part: Any, task: Any) -> None:
        if isinstance(part, Send):
            self.send(part, task)
        elif isinstance(part, Command):
            if part.graph == Command.PARENT:
                raise ParentCommand(part, task.name)
            if part.resume is not MISSING and part.resume is not None:
                raise InvalidUpdateError(
                    f"node {task.name!r} returned a Command with resume={shown(part.resume)}; "
                    "only the caller can answer: invoke(Command(resume=...), config)"
                )
            if part.update is not None:
                self._command_update(part.update, task)
            for step in part.steps():
                self.goto(step, task)
        elif part is not None:
            self._update(part, task)

    def _command_update(self, update: Any, task: Any) -> None:
        """Like a returned value; (key, value) pairs are allowed as well."""
        if isinstance(update, (list, tuple)) and not self.root and not is_record(update):
            if not all(isinstance(p, (list, tuple)) and len(p) == 2 for p in update):
                raise InvalidUpdateError(
                    f"node {task.name!r}: Command(update=...) must be a dict, a schema instance or "
                    f"(key, value) pairs, got {shown(update)}"
                )
            for key, value in update:
                self._pair(key, value, task)
        else:
            self._update(update, task)

    def _update(self, update: Any, task: Any) -> None:
        if self.root and not isinstance(update, Command) and find_lookalike(update) is None:
            task.writes.append((ROOT, update))
        elif isinstance(update, Mapping):
            for key, value in update.items():
                self._pair(key, value, task)
        elif is_record(update) and not isinstance(update, NO_UPDATES):
            self._record(update, task)
        else:
            raise InvalidUpdateError(
                f"node {task.name!r} must return a dict of state keys, a schema instance, "
                f"a Command, a Send or a list of these, got {shown(update)}"
                f"{advice(update, (*self.scope.triggers, END))} (INVALID_GRAPH_NODE_RETURN_VALUE)"
            )

    def _record(self, record: Any, task: Any) -> None:
        """Write the fields that are state keys. A record with none of them was returned by mistake,
        in place of a dict that holds it under a key."""
        items = record_items(record, self.scope.unset)
        found = [(key, value) for key, value in items if key in self.keys]
        first = self.scope.first
        for key, value in found:
            if key not in first or value != first[key]():
                self._pair(key, value, task)
        # All its fields may be unset: that is an update of nothing, not a mistake.
        if found or not self.keys.isdisjoint(record_fields(type(record))):
            return
        text = f"node {task.name!r} returned {shown(record)}, which has none of the state's keys"
        other = find_lookalike(record)
        if other is not None:
            text += f"; it is {other}"
        elif "messages" in self.keys and hasattr(record, "content"):
            text += '; return {"messages": [message]}'
        else:
            fields = list_names(record_fields(type(record)))
            text += f": its fields are {fields}; known: {list_names(self.keys)}"
        if self.scope.strict or other is not None:
            raise InvalidUpdateError(text)
        warn(
            f"node {task.name!r} returned a {type(record).__name__}, which has none of the state's "
            "keys; it was dropped"
        )

    def _pair(self, key: Any, value: Any, task: Any) -> None:
        if isinstance(key, str) and key in self.keys:
            if value.__class__ in self.scope.misplaced:
                self._look_at(key, value, task)
            task.writes.append((key, value))
        elif self.scope.strict:
            self._unknown_key(key, task)

    def _look_at(self, key: str, value: Any, task: Any) -> None:
        """Something that steers the graph, or was not awaited, became the value of a key. It is
        legal where the key's annotation names its class."""
        kind = value.__class__
        if kind in (Command, Send):
            if not mentions(self.scope.hints.get(key), kind):
                warn(
                    f"node {task.name!r} wrote a {kind.__name__} to the key {key!r}, where it is "
                    "stored like any other value and leads nowhere. Return it beside the dict, in "
                    f"a list; or annotate the key with {kind.__name__} if it is meant to be stored"
                )
            return
        raise InvalidUpdateError(
            f"node {task.name!r} wrote {shown(value)} to the key {key!r}{advice(value)}"
        )

    def _unknown_key(self, key: Any, task: Any) -> None:
        raise InvalidUpdateError(
            f"node {task.name!r} wrote the unknown key {key!r}; {nearest(key, self.keys)} "
            '(StateGraph(..., extra_keys="ignore") drops unknown keys)'
        )

    def goto(self, step: str | Send, task: Any) -> None:
        """Write what makes `step` run next; END is no step."""
        if isinstance(step, Send):
            self.send(step, task)
        elif step != END:
            task.writes.append((self._trigger(step, task), None))

    def send(self, send: Send, task: Any) -> None:
        """Write a Send, once its target is known to exist."""
        task.writes.append((TASKS, self.check_send(send, task)))

    def check_send(self, send: Send, task: Any) -> Send:
        """Refuse a Send to a node that does not exist, or with a key that means nothing there.
        Returns the Send to be written.

        Raises:
            InvalidRouteError: naming the nearest that does.
            InvalidUpdateError: the node's graph keeps no memory of its own.
        """
        if send.node.__class__ is not str or send.node not in self.scope.triggers:
            self._trigger(send.node, task)
            # Of a string enum, whose members a saver would not know.
            send.node = str.__str__(send.node)
        if send.key is not None and send.node in self.scope.keyless:
            raise InvalidUpdateError(explain_keyless(send.node, send.key))
        return send if send.race is None else note_sender(send, task)

    def _trigger(self, node: str, task: Any) -> str:
        channel = self.scope.triggers.get(node) if isinstance(node, str) else None
        if channel is None and isinstance(node, str) and node in self.scope.undeclared:
            raise InvalidUpdateError(
                f"node {task.name!r} goes to {node!r}, which it does not declare. A join of this "
                'graph has wait="reachable", or it is compiled with schedule="ready", and must '
                f"know who can still come: declare it by {_ways_to_declare(task.name, node)}"
            )
        if channel is None:
            why = nearest(node, self.scope.triggers)
            if node in (START, END):
                why = "neither START nor END can be run"
            elif node == "END":
                why = "write END, without quotes"
            raise InvalidRouteError(f"node {task.name!r} goes to the unknown node {node!r}; {why}")
        return channel


def _ways_to_declare(name: str, target: str) -> str:
    annotation = f'-> Command[Literal["{target}"]]'
    if is_handler(name):
        return f"the annotation of the error handler: {annotation}"
    by_node = f"add_node({name!r}, ..., destinations=[{target!r}])"
    return f"{by_node}, {annotation}, or the path_map of its router"


def find_keyless(sources: Mapping[str, Any]) -> frozenset[str]:
    """The nodes that are graphs and keep no memory of their own. What a function runs is not known
    before it has run.

    Args:
        sources: node name → what the node is made of.
    """
    return frozenset(
        name
        for name, source in sources.items()
        if is_graph(source) and source.checkpointer is not True
    )


def list_sends(value: Any) -> Sequence[Send]:
    """The Sends in a write to the TASKS channel: one, or a list."""
    return value if isinstance(value, list) else [value]


def note_sender(send: Send, task: Any) -> Send:
    """A racer as one of those that this task sends: those of other tasks are other races."""
    if isinstance(task, Draft):
        return send.sent_by(task.name)
    # Sends that an edit has kept stand beside those of a later step.
    return send.sent_by(f"{task.step} {task.path_text}")


def explain_keyless(node: str, key: str) -> str:
    """Why a Send to this node must not have a key, as a sentence."""
    return (
        f"a Send to node {node!r} has key={key!r}, but that node runs no graph that keeps a memory "
        "of its own for each key: compile its graph with checkpointer=True, or send without a key"
    )


def shown(value: Any) -> str:
    """A value in an error: its class and its first characters."""
    return f"{type(value).__name__}: {shortened(value)}"


def shortened(value: Any) -> str:
    """The first characters of a value."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def list_names(names: Iterable[str]) -> str:
    """The first of some names, as an error lists them."""
    listed = sorted(names)
    return ", ".join(map(repr, listed[:10])) + (", ..." if len(listed) > 10 else "") or "none"


def _update_pairs(update: Any) -> Iterable[Pair]:
    """The update of a command as (key, value) pairs."""
    if update is None:
        return ()
    if isinstance(update, Mapping):
        return update.items()
    if isinstance(update, (list, tuple)) and not is_record(update):
        return update
    return record_items(update)


def _merge_parent_commands(parts: Iterable[Any]) -> Command[Any] | None:
    """The PARENT commands of one return as one, or None. What is meant for this graph is lost with
    it."""
    commands = [p for p in parts if isinstance(p, Command) and p.graph == Command.PARENT]
    if len(commands) < 2:
        return commands[0] if commands else None
    pairs = [pair for command in commands for pair in _update_pairs(command.update)]
    goto = [step for command in commands for step in command.steps()]
    return Command(graph=Command.PARENT, update=pairs or None, goto=goto)


# -- raw Pregel nodes: a result, or what is made of it, goes to channels by name -------------------

class _Marker(Enum):
    PASSTHROUGH = "PASSTHROUGH"
    SKIP_WRITE = "SKIP_WRITE"


PASSTHROUGH: Final = _Marker.PASSTHROUGH
"""Write what the node returned."""
SKIP_WRITE: Final = _Marker.SKIP_WRITE
"""What a mapper returns to write nothing."""


@dataclass(frozen=True, slots=True)
class ChannelWriteEntry:
    """One write to one channel.

    Args:
        channel: its name.
        value: a constant, or `PASSTHROUGH` for the node's result.
        skip_none: write nothing when the value is None.
        mapper: applied to the value first; it may return `SKIP_WRITE`.
    """

    channel: str
    value: Any = PASSTHROUGH
    skip_none: bool = False
    mapper: Callable[[Any], Any] | None = None

    def pairs(self, result: Any) -> Sequence[Pair]:
        """The writes this entry makes of a node's result."""
        value = result if self.value is PASSTHROUGH else self.value
        if self.mapper is not None:
            value = self.mapper(value)
        if value is SKIP_WRITE or (self.skip_none and value is None):
            return ()
        return ((self.channel, value),)


@dataclass(frozen=True, slots=True)
class ChannelWriteTupleEntry:
    """Any number of writes computed from the node's result.

    Args:
        mapper: from the value to (channel, value) pairs; None for none.
        value: a constant, or `PASSTHROUGH` for the node's result.
    """

    mapper: Callable[[Any], Sequence[Pair] | None]
    value: Any = PASSTHROUGH

    def pairs(self, result: Any) -> Sequence[Pair]:
        """The writes this entry makes of a node's result."""
        return self.mapper(result if self.value is PASSTHROUGH else self.value) or ()


class ChannelWrite(Writer):
    """Writes to channels by name: the writer of raw Pregel nodes.

    Args:
        writes: entries, channel names (write the result), or `Send`s.
    """

    def __init__(
        self, writes: Sequence[ChannelWriteEntry | ChannelWriteTupleEntry | Send | str]
    ) -> None:
        self.writes: list[ChannelWriteEntry | ChannelWriteTupleEntry | Send] = [
            ChannelWriteEntry(w) if isinstance(w, str) else w for w in writes
        ]

    def identity(self) -> str:
        """The channels, as far as they are told beforehand."""
        return repr([getattr(entry, "channel", None) for entry in self.writes])

    def write(self, result: Any, task: Any) -> None:
        """Append what each entry makes of the result, in the order declared."""
        out, known = task.writes, task.known_channels()
        for entry in self.writes:
            if isinstance(entry, Send):
                out.append((TASKS, check_send(entry, task)))
                continue
            for channel, value in entry.pairs(result):
                if channel not in known:
                    raise InvalidUpdateError(
                        f"node {task.name!r} wrote to the unknown channel {channel!r}; "
                        f"{nearest(channel, known)}"
                    )
                if channel == TASKS:
                    out.extend((TASKS, check_send(send, task)) for send in list_sends(value))
                else:
                    out.append((channel, value))

    def check(self, channels: Mapping[str, Any]) -> Iterable[str]:
        """Static entries must name a channel, and not the engine's own."""
        for entry in self.writes:
            if isinstance(entry, ChannelWriteEntry):
                if entry.channel == TASKS:
                    yield f"writes to the reserved channel {TASKS!r}; add a Send instead"
                elif entry.channel not in channels:
                    near = nearest(entry.channel, channels)
                    yield f"writes to the unknown channel {entry.channel!r}; {near}"


def check_send(send: Any, task: Any) -> Send:
    """Refuse what is no Send, or goes to no node, in the task that wrote it. Returns the Send to be
    written.

    Raises:
        InvalidUpdateError: naming the node that wrote it.
    """
    if not isinstance(send, Send):
        raise InvalidUpdateError(
            f"node {task.name!r}: a write to {TASKS!r} must be a Send, got {shown(send)}"
        )
    nodes = task.known_nodes()
    if send.node not in nodes:
        raise InvalidRouteError(
            f"node {task.name!r} sends to the unknown node {send.node!r}; "
            f"{nearest(send.node, nodes)}"
        )
    if send.key is not None and find_keyless({send.node: nodes[send.node].source}):
        raise InvalidUpdateError(explain_keyless(send.node, send.key))
    return send if send.race is None else note_sender(send, task)
