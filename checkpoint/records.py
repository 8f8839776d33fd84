"""The parts of a stored thread: plain records, names, addresses. The engine creates them,
checkpointers store them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import get_annotations
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from typing_extensions import TypedDict

from ..channels.base import check_kind
from .serde import Blob
from .serde.codec import is_text

CHECKPOINT_FORMAT = 1
"""The number in `Checkpoint["v"]`."""

NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""The task id of writes that no task made: a `Command` given as input."""

POST_TASK_ID = "00000000-0000-0000-0000-000000000001"
"""The task id of what came in by posts."""

POST = "__post__"
"""The path, and shown name, of those writes."""

ERROR = "__error__"
INTERRUPT = "__interrupt__"
RESUME = "__resume__"
ERROR_SOURCE = "__error_source_node__"
NO_WRITES = "__no_writes__"
RETURN = "__return__"
DIGEST = "__digest__"
MADE_BY = "__made_by__"
CLAIM = "__claim__"
RAISED = "__raised__"
KEPT = "__kept__"
EDITED = "__edited__"
TRACEBACK = "__traceback__"
SLEEP = "__sleep__"

CONTROL_WRITES = {
    ERROR: -1,
    ERROR_SOURCE: -2,
    INTERRUPT: -3,
    RESUME: -4,
    CLAIM: -5,
    RAISED: -6,
    KEPT: -7,
    SLEEP: -8,
    EDITED: -9,
    TRACEBACK: -10,
}
"""Writes that describe a task instead of being its output, with their fixed place: a new one
replaces the old."""


class RunnableConfig(TypedDict, total=False):
    """The settings of one call. Every key is optional.

    `configurable` holds `thread_id` (which thread to continue), `checkpoint_id` (from which of its
    checkpoints), `checkpoint_ns` (which nested graph) and any key of your own. `recursion_limit` is
    the number of supersteps of user nodes one call may take; `max_concurrency` how many of them may
    run at once. `deadline` is when no further task starts, a time with a zone: those that run come
    to their ends and are kept, then the call raises `GraphDrained`; `invoke(None)` goes on.
    """

    tags: list[str]
    metadata: dict[str, Any]
    callbacks: Any
    run_name: str
    run_id: UUID | str | None
    max_concurrency: int | None
    recursion_limit: int
    deadline: datetime | None
    configurable: dict[str, Any]


class Checkpoint(TypedDict):
    """The whole state of a graph between two supersteps.

    `channel_values` are what the channels' `checkpoint()` returned; `channel_versions` the tick at
    which each last changed; `versions_seen` the versions of its triggers that each node saw when it
    last ran; `updated_channels` what the last superstep changed, sorted. `ts` is ISO-8601 UTC, for
    people only: order never depends on it.
    """

    v: int
    id: str
    ts: str
    channel_values: dict[str, Any]
    channel_versions: dict[str, int]
    versions_seen: dict[str, dict[str, int]]
    updated_channels: list[str] | None


class CheckpointMetadata(TypedDict, total=False):
    """The origin of a checkpoint. Scalars of the call's `metadata` and `configurable` are added to
    these keys.

    `source` is "input", "loop" (a superstep), "update" (`update_state`) or "fork"; `step` is -1 for
    the first input; `parents` maps the namespaces of enclosing graphs to their checkpoint ids.
    """

    source: Literal["input", "loop", "update", "fork"]
    step: int
    parents: dict[str, str]
    run_id: str


PendingWrite = tuple[str, str, Any]
"""(task id, channel, value)"""

Span = tuple[float, float]
"""(began, took): when an attempt at a task began, in seconds since the epoch, and the seconds it
took"""


class WithAttributes:
    """Laid over a named tuple: what it has beside its items are attributes, with defaults in the
    class. They are set and replaced by name, and are no part of its length, order and `repr`."""

    _attributes: frozenset[str] = frozenset()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._attributes |= get_annotations(cls).keys()

    def __new__(cls, *items: Any, **named: Any) -> Self:
        """Make one of its items, by position or name, and attributes."""
        fields: Sequence[str] = cls._fields  # type: ignore[attr-defined]
        made: Any
        if len(items) == len(fields) and cls._attributes.issuperset(named):
            made = tuple.__new__(cls, items)  # type: ignore[type-var]  # see `NamedTuple` (P40)
            made.__dict__ = named
        else:
            further = {name: named.pop(name) for name in cls._attributes & named.keys()}
            made = super().__new__(cls, *items, **named)
            made.__dict__.update(further)
        return made  # type: ignore[no-any-return]

    def _replace(self, **changes: Any) -> Self:
        """A copy with other items or attributes."""
        record: Any = self
        items = dict(zip(record._fields, record, strict=True))
        return type(self)(**items | self.__dict__ | changes)


class _CheckpointItems(NamedTuple):
    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    parent_config: RunnableConfig | None = None
    pending_writes: list[PendingWrite] | None = None


class CheckpointTuple(WithAttributes, _CheckpointItems):
    """A stored checkpoint with its pending writes: five items, as in LangGraph.

    `pending_writes` are ordered by task path, task id, position.

    Attributes:
        spans: when the tasks that wrote them ran: task id → one (began, took) per attempt, in
            seconds since the epoch and seconds; None from checkpointers that do not keep it.
        paths: the paths of these tasks as text, which ends with the name of a `@task` that was
            called; None from checkpointers that do not keep it.
        revision: changes whenever something is recorded beside the checkpoint, for `record`.
        head: the id of the newest checkpoint of its namespace at the time; None from checkpointers
            that do not tell.
        origins: those at which tasks under way have started, if their records were added.
    """

    spans: Mapping[str, Sequence[Span]] | None = None
    paths: Mapping[str, str] | None = None
    revision: int | None = None
    head: str | None = None
    origins: Sequence[CheckpointTuple] = ()


class LoadedTuple(CheckpointTuple):
    """A checkpoint as read, with what its checkpointer wants to know again when the run that starts
    from it commits; see `Commit.saver_state`."""

    saver_state: Any = None


NS_END = ":"
"""In a namespace, between a node's name and a task's id: the namespace belongs to that one task."""

KEY_MARK = f"{NS_END}="
"""In a namespace, between a node's name and the key of a `Send`: the namespace is one of several
histories that the node's graph keeps. No task's id begins so."""


def has_task_ids(ns: str) -> bool:
    """Whether a namespace belongs to tasks, so that no later run goes on with its history.

    >>> has_task_ids("outer|inner:46e4"), has_task_ids("outer|inner:=customer-7")
    (True, False)
    """
    return NS_END in ns.replace(KEY_MARK, "")


TRIGGER = "branch:to:"
"""How the names of the channels begin that make a StateGraph's node run."""

CONTINUES = "stategraph_continues"
"""In the metadata of an edit, or of the one checkpoint of a call with durability "exit": the
checkpoints whose tasks go on in it, so that what graphs inside them have stored stays."""


OF_TASK = "stategraph_task"
"""In the metadata of a nested graph's own history (`checkpointer=True`): the ids of the task that
ran it, and of those around it, the outermost first. The next task with that history starts over,
this one goes on; if one of them is executed again, what it had stored is void."""

REWOUND = "stategraph_rewound"
"""In the metadata of an edit or a fork: the checkpoint on which it was made, and from which on it
undoes what was done; of several on top of each other, the one below them. "" if nothing was undone.
A fork may lack it if that is its parent."""

UNDOING = "stategraph_undoing"
"""In the metadata of a checkpoint from which on the thread is being undone: the reason."""
UNDONE = "stategraph_undone"
"""In the metadata of the checkpoint that ends this: what was undone, why, and back to where."""

UNDER_WAY = "stategraph_under_way"
"""In the metadata of a checkpoint: tasks are under way there (schedule="ready")."""

SLOT = "__under_way__:"
"""How the names of the channels begin that hold one such task each. `versions_seen` says under this
name at which checkpoint that task has started, its origin: origin → version. So origins are stored
as changes, and found without a look at any value."""


class TaskWrites(NamedTuple):
    """What one task wrote, encoded: `writes` are (channel, blob) in write order; `spans` are its
    attempts since it was last recorded: began, took, began, took, ... in seconds, flat because
    there are so many of these."""

    task_id: str
    task_path: str
    writes: list[tuple[str, Blob]]
    spans: Sequence[float] = ()


Place = tuple[str, str]
"""(thread id, namespace)"""


class Expected(NamedTuple):
    """What must be so for a record to be stored.

    Attributes:
        head: the id of the namespace's newest checkpoint.
        revision: how many records are beside it; None if the caller does not know.
    """

    head: str | None
    revision: int | None = None


class TransactionPlace(NamedTuple):
    """Where a transaction of `transact` is recorded, and what must be so then.

    Attributes:
        checkpoint_id: of the checkpoint beside which the record stands.
        expected: the head, which may be a later checkpoint (schedule="ready").
        record_id: of the record. If it is there, the function is not called.
        isolation: of the transaction, where the database lets one choose.
    """

    where: Place
    checkpoint_id: str
    expected: Expected
    record_id: str
    isolation: str | None = None


class Transacted(NamedTuple):
    """What a transaction has left: its record, and how often something is recorded beside the head
    now."""

    record: TaskWrites
    revision: int


class Post(NamedTuple):
    """What somebody has posted to a thread and no run has taken yet: an update of keys, encoded.
    `id` is never given to another post of the checkpointer."""

    id: int
    writes: Sequence[tuple[str, Blob]]


@dataclass(slots=True, eq=False)
class Commit:
    """One superstep, ready to be stored in one transaction. All values are already encoded, so
    later changes to the live state cannot reach the history. The checkpointer may keep its dicts
    and lists: nobody changes them any more.

    Attributes:
        head: the id of the newest checkpoint this run has seen in this namespace, or None.
        parent_id: the checkpoint this one continues; differs from `head` only in a fork.
        values: the channels that changed since the parent; None for one that is now empty.
        versions: the versions of those channels.
        seen: the entries of `versions_seen` that changed since the parent.
        writes: finished tasks' writes, which belong to the *parent* checkpoint.
        carried: records that stand beside *this* checkpoint from its start, in the same
            transaction: of tasks of earlier checkpoints that go on in it, and of the claim.
        taken: the ids of the posts received with this step; they are deleted in the same
            transaction, and their writes are among `writes`.
        requires: (namespace, checkpoint id): what must be the head of other namespaces of the
            thread, in the same transaction. A commit in the memory of a nested graph
            (`checkpointer=True`) requires the head of the whole graph, "", on which its run works.
        whole: builds the complete `Checkpoint`, for checkpointers that store nothing else.
        saver_state: the checkpointer's own state for this run, from the tuple with which the run
            started or from its previous commit. The checkpointer reads it and stores here what it
            needs at the next commit, so it lives as long as the run. None: the checkpointer has to
            read the parent first.
        revision: how many records are beside the head, as far as the run knows; None if it does
            not.
    """

    thread_id: str
    checkpoint_ns: str
    id: str
    head: str | None
    parent_id: str | None
    ts: float | str
    metadata: dict[str, Any]
    values: dict[str, Blob | None]
    versions: dict[str, int]
    seen: dict[str, dict[str, int]]
    updated: list[str] | None
    writes: list[TaskWrites]
    whole: Callable[[], Checkpoint] = field(repr=False)
    v: int = CHECKPOINT_FORMAT
    carried: Sequence[TaskWrites] = ()
    taken: Sequence[int] = ()
    requires: Sequence[tuple[str, str | None]] = ()
    saver_state: Any = field(default=None, repr=False, compare=False)
    revision: int | None = field(default=None, repr=False, compare=False)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to store but a checkpoint and the writes before it, and nothing
        to check but its own head."""
        return not self.carried and not self.taken and not self.requires


def coordinates(config: RunnableConfig) -> tuple[str, str, str | None]:
    """The (thread id, namespace, checkpoint id or None) that a config names.

    Raises:
        ValueError: the config has no thread_id, or one of these is not valid Unicode.
        TypeError: it is no config; or the thread_id is no name, but a list, for instance.
    """
    words = 'a dict such as {"configurable": {"thread_id": "1"}}'
    check_kind("config", config, (dict, Mapping), words)
    configurable = config.get("configurable") or {}
    thread_id = configurable.get("thread_id")
    if thread_id is None or thread_id == "":
        raise ValueError(
            "a graph with a checkpointer needs a thread_id: "
            'pass config={"configurable": {"thread_id": "..."}}'
        )
    if not isinstance(thread_id, (str, int, UUID)) or isinstance(thread_id, bool):
        raise TypeError(f"thread_id must be a string, an integer or a UUID, got {thread_id!r:.200}")
    found = (
        str(thread_id),
        configurable.get("checkpoint_ns") or "",
        configurable.get("checkpoint_id"),
    )
    _, checkpoint_ns, checkpoint_id = found
    check_kind("checkpoint_ns", checkpoint_ns, str, "a string")
    if checkpoint_id is not None:
        check_kind("checkpoint_id", checkpoint_id, str, "a string")
    check_names(*found)
    return found


def check_search(filter: Any, before: Any, limit: Any) -> None:
    """Refuse a search of checkpoints by anything but metadata, a checkpoint and a number.

    Raises:
        TypeError: see `check_kind`.
        ValueError: the number is negative, or none.
    """
    if filter is not None:
        check_kind("filter", filter, Mapping, "a dict of metadata")
    if before is not None:
        check_kind("before", before, Mapping, "a config that names a checkpoint")
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise ValueError(f"limit must be an integer >= 0, got {limit!r}")


def check_names(*names: Any) -> None:
    """Refuse what some database cannot hold as text, before anything is stored under it.

    Raises:
        ValueError: a name has a NUL character, or half a surrogate pair.
    """
    for name in names:
        if not isinstance(name, str):
            continue
        if "\0" in name:
            raise ValueError(
                f"the name {name!r} must not contain a NUL character: no database can store it"
            )
        if not name.isascii() and not is_text(name):
            raise ValueError(
                f"the name {name!r} must be valid Unicode: it has half a surrogate pair"
            )


def check_checkpoint(checkpoint: Checkpoint, metadata: CheckpointMetadata) -> None:
    """`check_names` for all names in a checkpoint and its metadata's run id."""
    run_id = metadata.get("run_id")
    check_names(
        checkpoint["id"], run_id, *checkpoint["channel_versions"], *checkpoint["versions_seen"]
    )


def address(thread_id: str, checkpoint_ns: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """The config that names a thread, a namespace and, if given, a checkpoint."""
    configurable: dict[str, Any] = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    if checkpoint_id is not None:
        configurable["checkpoint_id"] = checkpoint_id
    return {"configurable": configurable}


def write_index(position: int, channel: str) -> int:
    """The place of a write among its task's: control writes have a fixed one below zero."""
    return CONTROL_WRITES.get(channel, position)


def collect_writes(tasks: Sequence[TaskWrites]) -> list[tuple[str, str, Blob]]:
    """(task id, channel, blob) of what tasks wrote, by task path, task id and position. Of several
    writes at one position the first counts, but of control writes the last."""
    if len(tasks) == 1 and CONTROL_WRITES.keys().isdisjoint([name for name, _ in tasks[0].writes]):
        (task,) = tasks  # the usual case, read for each checkpoint of a history (benchmark P40)
        return [(task.task_id, *write) for write in task.writes]
    if not tasks:
        return []
    kept: dict[tuple[str, int], tuple[str, str, Blob]] = {}
    for task_id, task_path, writes, _ in tasks:
        for position, (channel, blob) in enumerate(writes):
            index = write_index(position, channel)
            if index < 0 or (task_id, index) not in kept:
                kept[task_id, index] = (task_path, channel, blob)
    order = sorted((path, task_id, index) for (task_id, index), (path, _, _) in kept.items())
    return [(task_id, *kept[task_id, index][1:]) for _, task_id, index in order]


def spans_of(tasks: Iterable[TaskWrites]) -> dict[str, tuple[Span, ...]]:
    """Task id → its attempts, in the order recorded."""
    found: dict[str, tuple[Span, ...]] = {}
    for task in tasks:
        if task.spans:
            numbers = iter(task.spans)
            found[task.task_id] = (
                *found.get(task.task_id, ()),
                *zip(numbers, numbers, strict=True),
            )
    return found


def iso(ts: float | str) -> str:
    """When a checkpoint was made, as ISO-8601; it is kept as it was given."""
    return ts if isinstance(ts, str) else datetime.fromtimestamp(ts, UTC).isoformat()
