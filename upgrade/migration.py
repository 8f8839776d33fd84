"""`Migration`: what has changed between versions of a graph, declared step by step, so that stored
threads continue under the new one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import filterfalse
from typing import Any, NamedTuple, Self

from ..channels.aggregate import Overwrite, is_overwrite, overwritten_value
from ..checkpoint.base import (
    CLAIM,
    INTERRUPT,
    KEPT,
    MADE_BY,
    NULL_TASK_ID,
    RESUME,
    RETURN,
    Checkpoint,
    CheckpointTuple,
    PendingWrite,
    coordinates,
)
from ..pregel import budgets
from ..pregel.errors import InvalidGraphError, nearest
from ..pregel.names import (
    GRAPH,
    PULL,
    PUSH,
    SPENT,
    START,
    TASKS,
    UNDO,
    child_ns,
    handler_name,
    is_handler,
    is_routing,
    is_under_way,
)
from ..pregel.program.version import (
    Versioned,
    find_version,
    is_retyped,
    rename_arrived,
    rename_channel,
    rename_node,
    rename_send,
)
from ..pregel.run.ledger import TaskRecord, describe_kept
from ..pregel.schedule.slots import find_under_way
from ..pregel.task.ids import task_id
from ..pregel.task.interrupts import TASK, identity_of, task_digits
from ..pregel.task.task import Task, handler_of
from ..pregel.types import Send

Pair = tuple[str, Any]


class _Step(NamedTuple):
    """One declared change.

    Attributes:
        concerns: the node or key that it changes, as a fingerprint names it.
        becomes: what that is called afterwards; None: it is gone.
        of_kind: it is only for threads in which that is of another kind, unless versions tell.
        renames: a node, and its new name; None if it renames none.
        checkpoint, write: convert a checkpoint, and one write that is recorded beside it; None
            drops the write.
    """

    concerns: str
    becomes: str | None
    of_kind: bool
    renames: tuple[str, str] | None
    checkpoint: Callable[[Checkpoint], Checkpoint]
    write: Callable[[str, Any], Pair | None]


class Migration:
    """The changes between versions of a graph, in their order, for `compile(migrate=...)`. Each
    method adds a change and returns the migration.

    A thread is converted when it is next used, or at once by `stategraph upgrade --apply`. Tasks
    of renamed nodes continue as what they were: what they have recorded is not done again, and
    their questions stay open, under other ids. Only a graph inside a renamed node starts over.

    Without versions, a change is made in the threads that have the node or the key that it names,
    and a value is mapped where its key is of another kind. With versions (`compile(version=...)`),
    a thread gets the changes after the version that has stored it.

    Args:
        since: the version from which the first changes lead on; None: threads without a version.

    >>> migration = Migration("1").rename_node("ask", "approve").to("2").map_value("price", float)
    >>> app = builder.compile(version="3", migrate=migration)  # doctest: +SKIP
    """

    def __init__(self, since: str | None = None) -> None:
        self._steps: list[_Step] = []
        self._starts: dict[str | None, int] = {since: 0}
        self._nodes: list[tuple[str, str]] = []
        self._keys: list[tuple[str, str]] = []

    def rename_node(self, old: str, new: str) -> Self:
        """Give a node another name, everywhere: as a target of `Send`s and in joins too."""
        self._rename(old, new)
        return self._rename(handler_name(old), handler_name(new))

    def _rename(self, old: str, new: str) -> Self:
        self._nodes.append((old, new))

        def rename_write(name: str, value: Any) -> Pair:
            if name == TASKS:
                sends = value if isinstance(value, list) else [value]
                value = [rename_send(send, old, new) for send in sends]
            elif is_routing(name):
                value = rename_arrived(value, old, new)
            if name == SPENT or (name == RETURN and budgets.is_record(value)):
                value = budgets.rename_node(value, old, new)
            if name == KEPT and value.get("path"):
                value = {**value, "path": _rename_path(value["path"], old, new)}
            return rename_channel(name, old, new), value

        convert = partial(rename_node, old=old, new=new)
        about = f"node {old!r}", f"node {new!r}"
        return self._add(*about, convert, rename_write, renames=(old, new))

    def rename_key(self, old: str, new: str) -> Self:
        """Give a key of the state another name."""
        self._keys.append((old, new))

        def rename(name: str) -> str:
            return new if name == old else name

        def rename_keys(names: Mapping[str, Any]) -> dict[str, Any]:
            return {rename(name): value for name, value in names.items()}

        def convert(checkpoint: Checkpoint) -> Checkpoint:
            updated = checkpoint.get("updated_channels")
            seen = checkpoint["versions_seen"].items()
            return Checkpoint(**{
                **checkpoint,
                "channel_values": rename_keys(checkpoint["channel_values"]),
                "channel_versions": rename_keys(checkpoint["channel_versions"]),
                "versions_seen": {node: rename_keys(each) for node, each in seen},
                "updated_channels": updated and [rename(name) for name in updated],
            })  # fmt: skip

        return self._add(
            f"key {old!r}", f"key {new!r}", convert, lambda n, v: (rename(n), v), rename_keys
        )

    def map_value(self, key: str, function: Callable[[Any], Any]) -> Self:
        """Convert the value of a key, and what tasks that have finished wrote there.

        Args:
            function: given the stored value, returns the one of the new version.
        """

        def convert(checkpoint: Checkpoint) -> Checkpoint:
            values = checkpoint["channel_values"]
            return Checkpoint(**{**checkpoint, "channel_values": _map(values, key, function)})

        def function_of_write(value: Any) -> Any:
            if is_overwrite(value):
                return Overwrite(function(overwritten_value(value)))
            return function(value)

        def write(name: str, value: Any) -> Pair:
            return name, function_of_write(value) if name == key else value

        about, inside = f"key {key!r}", partial(_map, key=key, function=function_of_write)
        return self._add(about, about, convert, write, inside, of_kind=True)

    def drop_key(self, key: str) -> Self:
        """Drop a key with its value."""

        def drop(names: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in names.items() if name != key}

        def convert(checkpoint: Checkpoint) -> Checkpoint:
            updated = checkpoint.get("updated_channels")
            return Checkpoint(**{
                **checkpoint,
                "channel_values": drop(checkpoint["channel_values"]),
                "channel_versions": drop(checkpoint["channel_versions"]),
                "updated_channels": updated and [name for name in updated if name != key],
            })  # fmt: skip

        return self._add(
            f"key {key!r}", None, convert, lambda n, v: None if n == key else (n, v), drop
        )

    def to(self, version: str) -> Self:
        """Say that the changes up to here lead to this version.

        Raises:
            ValueError: the migration has this version already.
        """
        if version in self._starts:
            raise ValueError(f"to({version!r}): this migration already leads to that version")
        self._starts[version] = len(self._steps)
        return self

    @property
    def renamed(self) -> dict[str, str]:
        """The renamed nodes, each with its last name."""
        found: dict[str, str] = {}
        for old, new in filterfalse(lambda pair: is_handler(pair[0]), self._nodes):
            found = {name: new if end == old else end for name, end in found.items()}
            found[old] = new
        return found

    def rename_edge_end(self, name: str) -> str:
        """Return the last name of a node, or of the channel of a join, in the graph's structure."""
        return _rename_in_turn(name, self._nodes)

    def rename_kind(self, name: str) -> str | None:
        """Return the last name of a `key NAME`; None if its value is converted or dropped."""
        for step in self._steps:
            if step.concerns == name:
                if step.becomes is None or step.of_kind:
                    return None
                name = step.becomes
        return name

    def check(self, fingerprint: Mapping[str, int]) -> None:
        """Refuse a change that leads to nothing in the graph.

        Args:
            fingerprint: that of the graph which is to have these threads.

        Raises:
            InvalidGraphError: with a sentence for each.
        """
        mistakes = []
        for number, step in enumerate(self._steps):
            name = step.becomes and self._find_end(step.becomes, number + 1)
            if name is not None and name not in fingerprint:
                kind, _, quoted = name.partition(" ")
                if is_handler(quoted[1:-1]):  # it is only there if the node has one
                    continue
                known = [each for each in fingerprint if each.startswith(f"{kind} ")]
                meant = nearest(quoted[1:-1], (each.partition(" ")[2][1:-1] for each in known))
                change = "converts" if step.of_kind else f"renames {step.concerns} to"
                mistakes.append(f"migrate {change} {name}, which the graph does not have; {meant}")
        ends = {} if self._has_versions else {name: self._find_end(name) for name in fingerprint}
        for name, end in ends.items():
            if end != name and _is_circle(name, ends):
                mistakes.append(
                    f"migrate gives {name} the name of another, and that its own: without versions "
                    "it cannot be told which threads have the new names. Name them: "
                    'Migration("1")....to("2"), and compile(version="2")'
                )
        if mistakes:
            raise InvalidGraphError(tuple(dict.fromkeys(mistakes)))

    @property
    def _has_versions(self) -> bool:
        return len(self._starts) > 1 or None not in self._starts

    def _find_end(self, name: str, start: int = 0) -> str | None:
        """What becomes of a node or a key by the changes from the start on; None: it is gone."""
        found: str | None = name
        for step in self._steps[start:]:
            found = step.becomes if step.concerns == found else found
        return found

    def _add(
        self,
        concerns: str,
        becomes: str | None,
        convert: Callable[[Checkpoint], Checkpoint],
        write: Callable[[str, Any], Pair | None],
        inside: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
        *,
        of_kind: bool = False,
        renames: tuple[str, str] | None = None,
    ) -> Self:
        """Add a change.

        Args:
            inside: converts the argument of a `Send`, if that is a dict of keys.
        """
        if inside is not None:
            convert, write = _with_sends(convert, write, inside)
        self._steps.append(_Step(concerns, becomes, of_kind, renames, convert, write))
        return self

    def __call__(self, checkpoint: Checkpoint, changed: Sequence[str]) -> Checkpoint:
        """Convert a checkpoint alone, without what is recorded beside it."""
        known = dict(checkpoint["versions_seen"].get(GRAPH, {}))
        kinds = {name for name in known if f"{name} has changed its kind" in changed}
        for step in self._find_steps(known, lambda name: name in kinds):
            checkpoint = step.checkpoint(checkpoint)
        return checkpoint

    def convert(self, found: CheckpointTuple, program: Versioned) -> CheckpointTuple:
        """Convert a checkpoint, which is changed in place, with what is recorded beside it.

        Raises:
            ValueError: a version has stored it that the migration does not have.
        """
        stored, mine = found.checkpoint["versions_seen"].get(GRAPH, {}), program.fingerprint
        pending, last = found.pending_writes or (), dict(self._keys)

        def find_steps(graph: Mapping[str, int]) -> list[_Step]:
            if graph == mine:
                return []
            known = dict(graph)

            def is_other(name: str) -> bool:
                final = name
                for old, new in last.items():
                    final = f"key {new!r}" if final == f"key {old!r}" else final
                return final in mine and is_retyped(known.get(name), mine[final])

            return [*self._find_steps(known, is_other)]

        steps, checkpoint = find_steps(stored), found.checkpoint
        for step in steps:
            checkpoint = step.checkpoint(checkpoint)
        # What another version has recorded since beside this checkpoint, or before at the origin of
        # a task under way, needs changes of its own.
        later = {id: find_steps(graph) for id, name, graph in pending if name == MADE_BY}
        later.pop(NULL_TASK_ID, None)  # commands of several versions stand there in a row
        writes: list[PendingWrite] = []
        for id, name, value in pending:
            if (id, name) == (NULL_TASK_ID, MADE_BY):
                later[id] = find_steps(value)
            pair: Pair | None = (name, value)
            for step in steps if name == KEPT else later.get(id, steps):
                pair = pair and step.write(*pair)
            if pair is not None:
                writes.append((id, *pair))
        undone = {id: _undo(each) for id, each in {"": steps, **later}.items()}
        converted = found._replace(checkpoint=checkpoint, pending_writes=writes)
        return converted._replace(pending_writes=_keep_ids(converted, program, undone))

    def find_former_ids(self, ns: str, ledger: Mapping[str, TaskRecord]) -> dict[str, str]:
        """Return the ids that questions had under former names of their nodes, as the graphs around
        have shown them, each with the one that the question has now.

        Args:
            ns: the namespace of the graph that asks.
            ledger: its tasks, converted.
        """
        former: dict[str, str] = {}
        for id, known in ledger.items():
            for end in {question.id[TASK] for question in known.waiting}:
                names = {new for _, new in self._nodes if task_digits(child_ns(ns, new, id)) == end}
                for old, new in reversed(self._nodes):
                    if new in names:
                        names.add(old)
                        digits = task_digits(child_ns(ns, old, id))
                        former |= {
                            digits + identity_of(each.id): each.id
                            for each in known.waiting
                            if each.id[TASK] == end
                        }
        return former

    def _find_steps(
        self, known: dict[str, int], is_retyped: Callable[[str], bool]
    ) -> Iterator[_Step]:
        """Yield the changes that a thread needs.

        Args:
            known: the fingerprint of the graph that has stored it; follows the changes.
        """
        version = find_version(known)
        versioned = self._has_versions
        if versioned and version not in self._starts and version is not None:
            names = ", ".join(repr(name) for name in self._starts if name is not None)
            raise ValueError(
                f"the thread was stored by version {version!r}, and the migration has only "
                f"{names}: begin it with Migration({version!r}), or add .to({version!r})"
            )
        start = self._starts.get(version, 0)
        for step in self._steps[start:]:
            if step.of_kind and not versioned and not is_retyped(step.concerns):
                continue
            if known and step.concerns not in known:
                continue
            yield step
            if known:
                kind = known.pop(step.concerns)
                if step.becomes is not None:
                    known[step.becomes] = kind


def _is_circle(name: str, ends: Mapping[str, str | None]) -> bool:
    found: str | None = name
    for _ in ends:
        found = ends.get(found) if found is not None else None
        if found == name:
            return True
    return False


def _map(names: Mapping[str, Any], key: str, function: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: function(value) if name == key else value for name, value in names.items()}


def _rename_in_turn(name: str, renames: Iterable[tuple[str, str]]) -> str:
    """Rename a node, or the channel of a trigger or a join."""
    for old, new in renames:
        name = new if name == old else rename_channel(name, old, new)
    return name


def _rename_path(path: Sequence[Any], old: str, new: str) -> tuple[Any, ...]:
    """The path of a task whose node was renamed, and of the task of its error handler."""
    first, *rest = path
    if first == PULL and rest and rest[0] == old:
        rest[0] = new
    return (_rename_path(first, old, new) if isinstance(first, tuple | list) else first, *rest)


def _with_sends(
    convert: Callable[[Checkpoint], Checkpoint],
    write: Callable[[str, Any], Pair | None],
    inside: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> tuple[Callable[[Checkpoint], Checkpoint], Callable[[str, Any], Pair | None]]:
    """The same, also for what `Send`s bring along, and an input."""

    def convert_send(send: Any) -> Any:
        known = isinstance(send, Send) and isinstance(send.arg, dict)
        if not known or send.node == UNDO:  # what that node is given is no state
            return send
        converted = copy(send)
        converted.arg = inside(send.arg)
        return converted

    def convert_all(checkpoint: Checkpoint) -> Checkpoint:
        converted, values = convert(checkpoint), {}
        for name, value in converted["channel_values"].items():
            if name == TASKS:
                value = [convert_send(send) for send in value]
            elif is_under_way(name):
                value = {**value, "send": convert_send(value["send"])}
            elif name == START and isinstance(value, dict):  # an input that is not taken yet
                value = inside(value)
            values[name] = value
        return Checkpoint(**{**converted, "channel_values": values})

    def write_all(name: str, value: Any) -> Pair | None:
        if name == TASKS:
            sends = value if isinstance(value, list) else [value]
            return name, [convert_send(send) for send in sends]
        return write(name, value)

    return convert_all, write_all


# -- tasks keep their ids --------------------------------------------------------------------------


def _keep_ids(
    found: CheckpointTuple, program: Versioned, undone: Mapping[str, Sequence[tuple[str, str]]]
) -> list[PendingWrite]:
    """Let the pending tasks of renamed nodes, and those behind renamed joins, continue under the
    ids that they have, so that their questions and results are known. Returns what is recorded of
    all tasks then.

    Args:
        undone: the renames of nodes by which names become those that the graph has stored; by the
            ids of tasks of which another one has.
    """
    pending = found.pending_writes or []
    values = found.checkpoint["channel_values"]
    _, ns, _ = coordinates(found.config)
    where = found.checkpoint["id"], ns, found.metadata["step"] + 1
    paths = ((id, value["path"]) for id, name, value in pending if name == KEPT)
    carried = {tuple(path): id for id, path in paths if path}
    kept: list[PendingWrite] = []
    asked: dict[str, str] = {}  # the digits of a task's questions → the new ones, since the name
    # of the node is in them

    def rename_questions(id: str, node: Any, back: Sequence[tuple[str, str]]) -> None:
        now, name = task_digits(child_ns(ns, node.name, id)), node.name
        for new, old in back:  # versions in between may have asked, too
            if name == new:
                name = old
                asked[task_digits(child_ns(ns, name, id))] = now

    def keep(task: Task, node: Any, path: tuple[Any, ...]) -> None:
        id = carried.get(path, "")  # an edit, or an earlier conversion, has kept it already
        if not id:
            id = task_id(*where, task)
            kept.append((id, KEPT, describe_kept(path)))
        rename_questions(id, node, undone[""])

    for node in program.nodes.values():
        for each in find_under_way(found.checkpoint).values():
            if each["node"] == node.name:
                back = undone.get(each["id"], undone[""])
                rename_questions(each["id"], node, back)
                if node.handler is not None and each["handler"] is not None:
                    rename_questions(each["handler"], node.handler, back)
        before = _find_before(node, undone[""])
        if (before.name, before.identity) == (node.name, node.identity):
            continue
        tasks = {node.path: Task(before, before.path, None)}
        if before.name != node.name:
            sends = enumerate(values.get(TASKS, ()))
            places = [place for place, send in sends if send.node == node.name]
            tasks |= {(PUSH, place, False): Task(before, place, None) for place in places}
        for path, task in tasks.items():
            keep(task, node, path)
            if node.handler is not None:
                handler = handler_of(task)
                keep(handler, node.handler, (*path[:3], *handler.path[len(task.path[:3]) :]))
    return [*(_rename_asked(write, asked) for write in pending), *kept]


def _undo(steps: Sequence[_Step]) -> list[tuple[str, str]]:
    """The renames of nodes that undo those of some changes."""
    return [each.renames[::-1] for each in reversed(steps) if each.renames is not None]


def _find_before(node: Any, undone: Sequence[tuple[str, str]]) -> Any:
    """A node as the graph had it that has stored the checkpoint."""
    before = copy(node)
    before.name = _rename_in_turn(node.name, undone)
    before.path = (PULL, before.name)
    triggers = (_rename_in_turn(trigger, undone) for trigger in node.triggers)
    before.identity = "\0".join((PULL, *sorted(triggers)))
    if node.handler is not None:
        before.handler = _find_before(node.handler, undone)
    return before


def _rename_asked(write: PendingWrite, asked: Mapping[str, str]) -> PendingWrite:
    """What is recorded of questions and answers, with the ids that the questions have now."""
    id, name, value = write

    def rename(question: str) -> str:
        return asked.get(question[TASK], question[TASK]) + identity_of(question)

    def rename_keys(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {rename(question): answer for question, answer in answers.items()}

    if name == INTERRUPT:
        return id, name, [replace(each, id=rename(each.id)) for each in value]
    if name == RESUME:
        return id, name, rename_keys(value)
    if name == CLAIM:
        before = [rename(question) for question in value["before"]]
        return id, name, {**value, "answers": rename_keys(value["answers"]), "before": before}
    return write
