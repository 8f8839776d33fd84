"""Turns a commit into the rows that it adds. No SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..labels import UNLABELLED, has_new_labels, labels_of
from ..records import Commit, TaskWrites, check_names
from ..serde import Blob
from ..serde.delta import (
    find_delta,
    is_outweighed,
    join_run,
    opening_length,
)
from .rows import (
    SELF,
    ChannelValue,
    CheckpointBody,
    MaterializedState,
    PackedBlob,
    PackedTask,
    ValueDelta,
    find_reach,
    form_in_row,
    pack_body,
    pack_id,
    pack_writes,
)

INLINE = 64
"""Values of at most this many bytes are stored in the checkpoint's row."""

SHORT = 2048
"""Writes of at most this many bytes are stored in the row of the checkpoint that resulted from
them."""


@dataclass(slots=True)
class CommitRows:
    """The rows that one commit adds, without sequences, which the database assigns.

    Attributes:
        link: the row it builds on, or None.
        long_values: the (channel, base, data) of the value rows.
        writes: what the parent's tasks wrote, as the bytes of a row, if it is long; otherwise None.
        values: the new values, for `apply_commit`.
        labels: the labels of its metadata that the namespace may not have yet.
        reach: see `MaterializedState`.
    """

    checkpoint_id: str
    parent_id: str | None
    link: int | None
    run_id: str | None
    body: bytes
    long_values: list[tuple[str, int | None, bytes]]
    writes: bytes | None
    values: dict[str, ChannelValue | None]
    labels: list[int]
    reach: int

    def size(self) -> int:
        """Return the number of bytes, without names."""
        long = sum(len(data) for _, _, data in self.long_values)
        return len(self.body) + len(self.writes or b"") + long


def build_rows(
    state: MaterializedState,
    commit: Commit,
    metadata: Blob,
    loads: Callable[[Blob], Any] | None,
) -> CommitRows:
    """Return the rows of a commit.

    Args:
        state: the state of its parent. It is empty if there is none; then the commit must hold
            everything.
        metadata: the encoded metadata.
        loads: decodes it, so that labels are made from what is stored; None if the checkpointer
            keeps no labels.
    """
    key = state.key
    values, long_values = _split_values(state, commit.values)
    shown = values
    versions, seen = commit.versions, commit.seen
    own = values, versions, seen
    reach = state.reach or find_reach((state.values, state.versions, state.seen), own)
    # A parent without a sequence is stored by the same statement, which links the two.
    complete = state.distance < 0 or (state.distance + 1 >= reach and state.seq >= 0)
    if complete:
        # It builds on no row, so that reading any checkpoint walks few rows, and older rows can be
        # deleted.
        shown = {**state.values, **values}
        versions, seen = {**state.versions, **versions}, {**state.seen, **seen}
        # Each time: the first commit of a run may have changed everything, the next ones little.
        reach = find_reach((shown, versions, seen), own)
    inline: Sequence[TaskWrites | PackedTask] = commit.writes if state.id else ()
    writes = None
    if inline and long_values:
        inline = _without_tails(commit.writes, values)
    if inline and (commit.head != commit.parent_id or _length(inline) > SHORT):
        # The writes of a checkpoint's tasks are read from the next row only; a fork's row is not
        # next.
        writes, inline = pack_writes(key, state.id, state.revision, commit.writes), ()
    # Counts the row of `writes` too, so that a later reader of the parent notices if it is missing.
    revision = state.revision + (writes is not None) if state.id else None
    body = CheckpointBody(
        commit.ts, commit.v, metadata, revision, commit.updated, shown, versions, seen
    )
    labels: list[int] = []
    if (
        loads is not None
        and not commit.metadata.keys() <= UNLABELLED  # most metadata has nothing to label
        and has_new_labels(commit.metadata, state.metadata)
    ):
        labels = sorted(labels_of(loads(metadata)))
    run_id = commit.metadata.get("run_id")
    if run_id is not None:
        check_names(run_id)
    return CommitRows(
        commit.id,
        commit.parent_id,
        None if complete else state.seq,
        run_id if isinstance(run_id, str) else None,
        pack_body(key, commit.id, commit.parent_id, body, complete, inline),
        long_values,
        writes,
        values,
        labels,
        reach,
    )


def apply_commit(
    state: MaterializedState, commit: Commit, rows: CommitRows, seq: int
) -> MaterializedState:
    """Update the parent's state, in place, to the commit that was stored with this sequence."""
    for name, value in rows.values.items():
        if value is None:
            state.values.pop(name, None)
        else:
            if value.owner is not None:
                value.owner = seq  # it was SELF until the database assigned a sequence
            state.values[name] = value
    state.versions.update(commit.versions)
    state.seen.update(commit.seen)
    state.metadata = commit.metadata
    state.seq, state.id, state.revision = seq, commit.id, 1 if commit.carried else 0
    state.size += 1
    state.distance = 0 if rows.link is None else state.distance + 1
    state.reach = rows.reach
    return state


def _split_values(
    state: MaterializedState, blobs: Mapping[str, Blob | None]
) -> tuple[dict[str, ChannelValue | None], list[tuple[str, int | None, bytes]]]:
    """Return the new values, and the rows of the long ones."""
    values: dict[str, ChannelValue | None] = {}
    long_values = []
    for name, blob in blobs.items():
        if blob is None:
            values[name] = None
        elif len(blob[1]) <= INLINE:
            values[name] = ChannelValue(blob)
        else:
            value, base, content = _shrink_value(state.settled(name), blob)
            data = state.key.pack("value", [name], content)
            value.owner, value.digest = SELF, state.key.digest(data)
            values[name] = value
            long_values.append((name, base, data))
    return values, long_values


def _shrink_value(
    old: ChannelValue | None, blob: Blob
) -> tuple[ChannelValue, int | None, list[Any]]:
    """Return a long value, its base and the content of its row: a delta on the old value if that
    saves space."""
    form, payload = blob
    if old is not None and old.owner is not None and old.blob is not None and old.blob[0] == form:
        # The row names the base by owner and digest, so that no other value can take its place.
        # Once the deltas weigh more than the whole value, the value is stored whole again.
        base = old.blob
        if type(base[1]) is not bytes:  # a large one is read as a view
            base = form, bytes(base[1])
        delta = find_delta(base, blob)
        if delta is not None:
            last = ValueDelta(old.owner, old.digest, delta)
            deltas = _join_runs(old.whole, [*old.deltas, last])
            size = sum([len(each.delta) for each in deltas])
            # Up to twice the length of the value may be read, so that a value that only grows is
            # never stored whole again.
            if not is_outweighed(old.whole + size, len(deltas), 2 * len(payload)):
                value = ChannelValue((form, payload), whole=old.whole, deltas=deltas)
                return value, deltas[-1].base, [form_in_row(form), *deltas[-1]]
    value = ChannelValue((form, payload), whole=len(payload))
    return value, None, [form_in_row(form), None, b"", payload]


def _join_runs(whole: int, deltas: list[ValueDelta]) -> list[ValueDelta]:
    """Return the deltas of a value, with each last run of deltas of similar size combined.

    Args:
        whole: the length of the value that the first delta is based on.
    """
    while run := join_run(whole, [each.delta for each in deltas]):
        start, delta = run
        deltas = [*deltas[:start], deltas[start]._replace(delta=delta)]
    return deltas


def _without_tails(
    tasks: Iterable[TaskWrites], values: Mapping[str, ChannelValue | None]
) -> list[PackedTask]:
    """Return what tasks wrote, without the bytes with which the new values end: what was appended
    to a list is already stored in its value."""
    return [
        (
            pack_id(task_id),
            task_path,
            [(name, _cut_tail(values.get(name), blob)) for name, blob in writes],
            spans,
        )
        for task_id, task_path, writes, spans in tasks
    ]


def _cut_tail(value: ChannelValue | None, blob: Blob) -> PackedBlob:
    form, payload = blob
    if value is None or value.owner is None or value.blob is None or value.blob[0] != form:
        return form_in_row(form), payload
    start = opening_length(payload)
    size = len(payload) - start
    if size <= INLINE or not value.blob[1].endswith(payload[start:]):
        return form_in_row(form), payload
    return size, payload[:start]


def _length(tasks: Iterable[TaskWrites | PackedTask]) -> int:
    """Return about how many bytes the writes of some tasks take."""
    length = 0
    for _, _, writes, _ in tasks:
        for _, (_, payload) in writes:
            length += 64 + len(payload)
    return length
