"""Turns the rows of a thread into the states of its checkpoints. No SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from ..records import TaskWrites
from ..serde.delta import apply_deltas
from ..serde.msgpack import LARGE
from ..serde.serializer import FORMAT
from .rows import (
    ChannelValue,
    CheckpointBody,
    CheckpointRow,
    MaterializedState,
    Tables,
    ThreadKey,
    ValueDelta,
    ValueRow,
    restore_tails,
    unpack_body,
    unpack_tables,
    unpack_tasks,
)


def next_state(
    before: MaterializedState | None, key: ThreadKey, row: CheckpointRow, body: CheckpointBody
) -> MaterializedState:
    """Return the state of a checkpoint, given that of the row it links to, which is not changed."""
    state = MaterializedState(key, row.namespace_id, row.seq, row.checkpoint_id, 0)
    if before is not None:
        state.distance = before.distance + 1
        state.values, state.versions = dict(before.values), dict(before.versions)
        state.seen = dict(before.seen)
    _change_state(state, (body.values, body.versions, body.seen))
    return state


def _change_state(state: MaterializedState, tables: Tables) -> None:
    """Update the tables of a state to the next checkpoint."""
    values, versions, seen = tables
    for name, value in values.items():
        if value is None:
            state.values.pop(name, None)
        else:
            state.values[name] = value
    state.versions.update(versions)
    state.seen.update(seen)


def materialize(
    key: ThreadKey, chain: Sequence[CheckpointRow]
) -> tuple[MaterializedState, CheckpointBody]:
    """Return the state and the body of the first of some rows, each of which links to the next.

    Raises:
        DamagedError: a row is damaged, or the last one links to a missing one.
    """
    if chain[-1].link is not None:  # the query follows links until one leads nowhere
        raise key.damage_error(
            f"checkpoint {chain[-1].parent_id!r} is missing, and others depend on it"
        )
    for child, row in pairwise(chain):
        if child.parent_id != row.checkpoint_id:
            raise key.damage_error(
                f"checkpoint {child.checkpoint_id!r} links to a checkpoint that is not its parent"
            )
    first = chain[0]
    distance = len(chain) - 1
    state = MaterializedState(key, first.namespace_id, first.seq, first.checkpoint_id, distance)
    for row in reversed(chain[1:]):
        _change_state(state, unpack_tables(key, row))
    body = unpack_body(key, first)
    _change_state(state, (body.values, body.versions, body.seen))
    return state, body


class ValueReader:
    """Reads long values, and caches them.

    Args:
        rows: the rows of the wanted values and of all that they build on.
    """

    def __init__(self, key: ThreadKey, rows: Iterable[ValueRow]) -> None:
        self._key = key
        self._data = {(owner, channel): data for owner, channel, _, data in rows}
        self._known: dict[tuple[int, str], ChannelValue] = {}

    def fill(self, name: str, value: ChannelValue) -> None:
        """Set the bytes of a channel's value.

        Raises:
            DamagedError: the value is missing or is not what was written.
        """
        if value.blob is None:
            assert value.owner is not None
            known = self._read(name, value.owner, value.digest)
            value.blob, value.whole, value.deltas = known.blob, known.whole, known.deltas

    def _read(self, channel: str, owner: int, digest: bytes) -> ChannelValue:
        """Follow the deltas down to a known or whole value, and apply them to it."""
        start, start_digest = owner, digest
        place = self._key.place("value", [channel])
        found: list[ValueDelta] = []
        while True:  # a few dozen times for a value that has grown (benchmark P22)
            known = self._known.get((owner, channel))
            if known is not None:
                break
            form, base, base_digest, payload = self._unpack(place, channel, owner, digest)
            if base is None:
                if len(payload) <= LARGE:
                    payload = bytes(payload)
                known = ChannelValue((form or FORMAT, payload), whole=len(payload))
                break
            found.append(ValueDelta(base, base_digest, payload))
            owner, digest = base, base_digest
        assert known.blob is not None
        form, whole = known.blob
        found.reverse()
        try:
            payload = apply_deltas(whole, [each.delta for each in found])
        except ValueError as error:
            raise self._key.damage_error(f"the value of {channel!r}: {error}") from error
        deltas = [*known.deltas, *found]
        value = ChannelValue((form, payload), start, start_digest, known.whole, deltas)
        self._known[start, channel] = value
        return value

    def _unpack(self, place: bytes, channel: str, owner: int, digest: bytes) -> Any:
        """Return the content of a value's row, which is bound to this place."""
        try:
            data = self._data[owner, channel]
        except KeyError:
            raise self._key.damage_error(f"the value of {channel!r} is missing") from None
        # The checkpoint has the value's digest, so a row that was swapped for another valid one
        # does not match.
        if not isinstance(data, bytes) or data[-len(digest) :] != digest:
            raise self._key.damage_error(
                f"the value of {channel!r} is not the value that its checkpoint names"
            )
        return self._key.unpack_value(place, channel, data)


def read_writes(
    key: ThreadKey, checkpoint_id: str, rows: Iterable[bytes], after: CheckpointBody | None
) -> list[TaskWrites]:
    """Return what tasks wrote beside a checkpoint, in the order recorded.

    Args:
        rows: the rows recorded beside it.
        after: the body of the checkpoint that resulted from it, if any, with the values of
            `tails_of` read.

    Raises:
        DamagedError: a row is not what was written, or one is missing before another.
    """
    batches = list(read_batches(key, checkpoint_id, rows))
    if after is not None and after.parent_writes:
        # In chronological order: of two writes to one place, the first counts.
        batches.insert(after.parent_revision or 0, restore_tails(key, after))
    return [task for batch in batches for task in batch]


def read_batches(
    key: ThreadKey, checkpoint_id: str, rows: Iterable[bytes]
) -> Iterator[Sequence[TaskWrites]]:
    """Yield what was recorded beside a checkpoint, row by row; raises the same errors as
    `read_writes`."""
    for position, data in enumerate(rows):
        yield unpack_tasks(key.unpack("writes", [checkpoint_id, position], data))
