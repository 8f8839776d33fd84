"""Turns the rows of a thread into the states of its checkpoints. No SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from ..records import TaskWrites
from ..serde import Blob
from ..serde.delta import SharedBlob
from ..serde.msgpack import LARGE, unpack_view
from ..serde.serializer import FORMAT
from .rows import (
    SELF,
    ChannelValue,
    CheckpointBody,
    CheckpointRow,
    MaterializedState,
    Openings,
    ThreadKey,
    ValueDelta,
    unpack_body,
    unpack_tasks,
)

MOST_OPENINGS = 128
"""How many older values that share the bytes of a newer one are kept with it."""

RECENT = 750_000
"""How many bytes of long values a checkpointer keeps, so that it needs not read them again."""


def next_state(
    before: MaterializedState | None, key: ThreadKey, row: CheckpointRow, body: CheckpointBody
) -> MaterializedState:
    """Return the state of a checkpoint, given that of the row it links to, which is not changed."""
    state = MaterializedState(key, row.namespace_id, row.seq, row.checkpoint_id)
    if before is not None:
        state.distance = before.distance
        state.values, state.versions = dict(before.values), dict(before.versions)
        state.seen = dict(before.seen)
    _change_state(state, body)
    return state


def _change_state(state: MaterializedState, body: CheckpointBody) -> None:
    """Update the tables of a state to the next checkpoint."""
    state.distance += 1
    for name, value in body.values.items():
        if value is None:
            state.values.pop(name, None)
        else:
            state.values[name] = value
    state.versions.update(body.versions)
    state.seen.update(body.seen)


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
    state = MaterializedState(key, first.namespace_id, first.seq, first.checkpoint_id)
    for row in reversed(chain):
        body = unpack_body(key, row)
        _change_state(state, body)
    return state, body


NO_OPENINGS: Mapping[str, Openings] = {}
NO_VALUES: Mapping[tuple[int, bytes], ChannelValue] = {}


class ValueReader:
    """Reads long values.

    Args:
        rows: the rows of the wanted values and of all that they build on, by owner and channel.
        known: values that need not be read, by channel.
    """

    def __init__(
        self,
        key: ThreadKey,
        rows: Mapping[tuple[int, str], bytes],
        known: Mapping[str, Openings] = NO_OPENINGS,
    ) -> None:
        self._key = key
        self._data = rows
        self._known = known
        self._places: dict[str, bytes] = {}
        self._last: dict[str, ChannelValue] = {}

    def fill(self, name: str, value: ChannelValue) -> None:
        """Read the rows of a channel's value. If it builds on the one that was read last, the two
        share their bytes.

        Raises:
            DamagedError: the value is missing or is not what was written.
        """
        if value.base is not None:
            return  # that of several checkpoints
        assert value.owner is not None
        last, self._last[name] = self._last.get(name), value
        known = self._known.get(name, NO_VALUES)
        owner, digest = value.owner, value.digest
        found: list[ValueDelta] = []
        while last is None or (owner, digest) != (last.owner, last.digest):
            # a few dozen times for a value that has grown (benchmark P22)
            if (opening := known.get((owner, digest))) is not None:
                last = opening
                break
            form, content = self._unpack(name, owner, digest)
            if not isinstance(content, ValueDelta):
                found.reverse()
                value.base, value.whole, value.deltas = (form, content), len(content), found
                return
            found.append(content)
            owner, digest, _ = content
        found.reverse()
        value.whole, value.deltas = last.whole, [*last.deltas, *found]
        try:
            assert last.base is not None
            if not isinstance(last.base, SharedBlob):
                deltas = [each.delta for each in last.deltas]
                last.base = SharedBlob.share(last.base).change(deltas)
            value.base = last.base.change([each.delta for each in found])
        except ValueError as error:
            raise self._key.damage_error(f"the value of {name!r}: {error}") from error

    def read_tail(self, name: str, value: ChannelValue, size: int) -> Blob | None:
        """Return the last bytes of a value, if the delta in its own row ends with so many.

        Raises:
            DamagedError: as `fill`.
        """
        assert value.owner is not None
        form, content = self._unpack(name, value.owner, value.digest)
        if isinstance(content, ValueDelta):
            _, _, _, back, middle, *_ = unpack_view(content.delta)
            if not back and len(middle) >= size:
                return form, bytes(middle[-size:])
        return None

    def _unpack(self, channel: str, owner: int, digest: bytes) -> tuple[str, ValueDelta | bytes]:
        """Return the format of a value, and the delta or the whole value in its row."""
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
        place = self._places.get(channel)
        if place is None:
            place = self._places[channel] = self._key.place("value", [channel])
        form, base, base_digest, payload = self._key.unpack_value(place, channel, data)
        if base is not None:
            return form or FORMAT, ValueDelta(base, base_digest, payload)
        return form or FORMAT, payload if len(payload) > LARGE else bytes(payload)


class RecentValues:
    """Keeps the long values of checkpoints that were stored or read: a state that is looked at
    after that, or forked, is not read row by row again (benchmark P22). At most `RECENT` bytes are
    kept. The checkpointer's lock is held by whoever calls.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[int, str, int], ChannelValue] = {}
        self._size = 0

    def keep(
        self, namespace_id: int, values: Mapping[str, ChannelValue | None], *, of_head: bool = True
    ) -> None:
        """Keep the values of a checkpoint; those of the newest one in place of older ones."""
        for name, value in values.items():
            if value is None or value.owner is None:
                continue
            if value.blob is None:
                self._keep_opening(namespace_id, name, value)
                continue
            place = namespace_id, name, SELF if of_head else value.owner
            known = self._values.pop(place, None)
            self._values[place] = value
            if known is not value:
                self._size += _held_bytes(value)
            if known is not None and known is not value:
                self._size -= _held_bytes(known)
                openings, last = known.known_openings, value.deltas[-1:]
                if openings and last and last[0][:2] in openings:
                    value.known_openings = openings
        while self._size > RECENT:
            self._size -= _held_bytes(self._values.pop(next(iter(self._values))))

    def _keep_opening(self, namespace_id: int, name: str, value: ChannelValue) -> None:
        """Keep a value with that of the head, if the two share their bytes."""
        head = self._values.get((namespace_id, name, SELF))
        openings = head.known_openings if head is not None else None
        if openings and value.place not in openings and openings.share(value):
            if len(openings) >= MOST_OPENINGS:
                openings.popitem()
            openings[value.place] = replace(value)

    def fill(
        self, namespace_id: int, unread: Sequence[tuple[str, ChannelValue]]
    ) -> list[tuple[str, ChannelValue]]:
        """Fill in values that are known, by the checkpoint that wrote them and the digest of their
        row. Return the others."""
        left: list[tuple[str, ChannelValue]] = []
        for name, value in unread:
            assert value.owner is not None
            for owner in (value.owner, SELF):
                place = namespace_id, name, owner
                known = self._values.get(place)
                if known is None:
                    continue
                self._values[place] = self._values.pop(place)
                if known.digest != value.digest or known.owner != value.owner:
                    known = (known.known_openings or NO_VALUES).get((value.owner, value.digest))
                if known is not None:
                    value.blob, value.base = known.blob, known.base
                    value.whole, value.deltas = known.whole, known.deltas
                    break
            else:
                left.append((name, value))
        return left

    def openings(
        self, namespace_id: int, unread: Sequence[tuple[str, ChannelValue]]
    ) -> dict[str, Openings]:
        """Return, by channel, values that share their bytes with those of the head."""
        found: dict[str, Openings] = {}
        oldest = min([value.place[0] for _, value in unread])
        for name, _ in unread:
            head = self._values.get((namespace_id, name, SELF))
            if head is not None and head.blob is not None and name not in found:
                found[name] = head.openings(oldest)
        return found


def _held_bytes(value: ChannelValue) -> int:
    """Return how many bytes a value holds at most: itself, the value on which it is based, and the
    deltas, which `is_outweighed` bounds."""
    assert value.blob is not None
    return 3 * len(value.blob[1])


def read_writes(
    key: ThreadKey,
    checkpoint_id: str,
    rows: Iterable[bytes],
    after: CheckpointBody | None = None,
    read_tail: Callable[[str, int], Blob] | None = None,
) -> list[TaskWrites]:
    """Return what tasks wrote beside a checkpoint, in the order recorded.

    Args:
        rows: the rows recorded beside it.
        after: the body of the checkpoint that resulted from it, if any.
        read_tail: reads the tails of its values, see `unpack_tasks`.

    Raises:
        DamagedError: a row is not what was written, or one is missing before another.
    """
    batches = list(read_batches(key, checkpoint_id, rows)) if rows else []
    if after is not None and after.parent_writes:
        # In chronological order: of two writes to one place, the first counts.
        inline = unpack_tasks(after.parent_writes, read_tail)
        batches.insert(after.parent_revision or 0, inline)
    return [task for batch in batches for task in batch]


def read_batches(
    key: ThreadKey, checkpoint_id: str, rows: Iterable[bytes]
) -> Iterator[Sequence[TaskWrites]]:
    """Yield what was recorded beside a checkpoint, row by row; raises the same errors as
    `read_writes`."""
    for position, data in enumerate(rows):
        yield unpack_tasks(key.unpack("writes", [checkpoint_id, position], data))
