"""Copies a thread, row by row. Copies get new sequences, so every row that refers to one is
rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from .pruning import read_rows, set_head
from .queries import SqlSession
from .read_rows import read_batches
from .rows import (
    SELF,
    ChannelValue,
    CheckpointRow,
    ThreadKey,
    ValueRow,
    pack_body,
    pack_writes,
    unpack_body,
)

Copies = Sequence[tuple[ThreadKey, int, ThreadKey, int]]
"""The (key, id) of each namespace, followed by those of its target, which is empty."""


def copy_namespaces(session: SqlSession, pairs: Copies) -> None:
    """Copy whole namespaces, including the order among all their checkpoints."""
    copies = [_NamespaceCopy(session, *pair) for pair in pairs]
    work = [(owner, copy) for copy in copies for owner in copy.owners()]
    # In a copy, values whose checkpoint is gone have owners below zero, the oldest the highest.
    # They come first, since others build on them.
    for owner, copy in sorted(work, key=lambda each: (each[0] > 0, abs(each[0]))):
        copy.move(owner)
    for copy in copies:
        copy.finish()


class _NamespaceCopy:
    """The copy of one namespace, while it is made."""

    def __init__(
        self, session: SqlSession, key: ThreadKey, source: int, to: ThreadKey, target: int
    ) -> None:
        self._session, self._key, self._source = session, key, source
        self._to, self._target = to, target
        self._rows = {row.seq: row for row in read_rows(session, key, source)}
        self._owners: dict[int, list[str]] = {seq: [] for seq in self._rows}
        for owner, channel, _ in session.rows("all_values", source):
            self._owners.setdefault(owner, []).append(channel)
        # Values can outlive the checkpoints that wrote them; such owners get numbers that no
        # checkpoint has.
        self._lost = count(min([0, *self._owners]) - 1, -1)
        self._moved: dict[tuple[int, str], tuple[int, bytes]] = {}  # → owner and digest in the copy
        self._seqs: dict[int, int] = {}

    def owners(self) -> Iterable[int]:
        """Return the checkpoints, and the owners of values whose checkpoints are gone."""
        return self._owners

    def move(self, owner: int) -> None:
        """Copy one checkpoint with the values it wrote; everything that they build on has already
        been copied."""
        values = [self._copy_value(owner, channel) for channel in self._owners[owner]]
        row = self._rows.get(owner)
        seq = next(self._lost) if row is None else self._copy_checkpoint(row)
        for _, channel, base, data in values:
            self._session.run("add_value", self._target, seq, channel, base, data)
            self._moved[owner, channel] = (seq, self._to.digest(data))
        self._seqs[owner] = seq

    def _copy_value(self, owner: int, channel: str) -> ValueRow:
        rows = self._session.rows("one_value", self._source, owner, channel)
        if not rows:
            raise self._key.damage_error(f"the value of {channel!r} is missing")
        content = self._key.unpack("value", [channel], ValueRow(*rows[0]).data)
        form, base, digest, payload = content
        if base is not None:
            base, digest = self._find_moved(base, channel)
        data = self._to.pack("value", [channel], [form, base, digest, payload])
        self._moved[owner, channel] = (SELF, self._to.digest(data))
        return ValueRow(SELF, channel, base, data)

    def _copy_checkpoint(self, row: CheckpointRow) -> int:
        body = unpack_body(self._key, row)
        values: dict[str, ChannelValue | None] = {}
        for name, value in body.values.items():
            if value is not None and value.owner is not None:
                value = ChannelValue(None, *self._find_moved(value.owner, name))
            values[name] = value
        if row.link is not None and row.link not in self._seqs:
            raise self._key.damage_error(
                f"checkpoint {row.parent_id!r} is missing, and others depend on it"
            )
        link = None if row.link is None else self._seqs[row.link]
        body = body._replace(values=values)
        data = pack_body(self._to, row.checkpoint_id, row.parent_id, body, link is None)
        names = (row.checkpoint_id, row.parent_id)
        return self._session.add("add_row", self._target, *names, link, row.run_id, data)

    def _find_moved(self, owner: int, channel: str) -> tuple[int, bytes]:
        """Return the owner and digest of a copied value."""
        if (owner, channel) not in self._moved:
            raise self._key.damage_error(f"the value of {channel!r} is missing")
        return self._moved[owner, channel]

    def finish(self) -> None:
        """Copy the task writes, and set the head."""
        session = self._session
        written: dict[str, list[bytes]] = {}
        for checkpoint_id, data in session.rows("all_writes", self._source):
            written.setdefault(checkpoint_id, []).append(data)
        for checkpoint_id, batches in written.items():
            tasks_of = read_batches(self._key, checkpoint_id, batches)
            for position, tasks in enumerate(tasks_of):
                data = pack_writes(self._to, checkpoint_id, position, tasks)
                session.run("add_writes", self._target, checkpoint_id, data)
        session.run("copy_labels", self._source, self._target)
        session.run("copy_mark", self._source, self._target)
        if self._rows:
            last = max(self._rows)
            set_head(session, self._target, self._seqs[last], self._rows[last].checkpoint_id)
